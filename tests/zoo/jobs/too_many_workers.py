"""Sixteen workers decode on two cores; the training step, which needs both, waits for its turn."""

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader

args = options(__doc__)
torch.set_num_threads(2)
data = Pictures(32 * args.steps, side=192)
loader = DataLoader(data, batch_size=32, num_workers=16 if args.workers is None else args.workers)
train(loader, convolutions(16), args.steps)
