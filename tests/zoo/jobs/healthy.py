"""Nothing is wrong: one worker prepares batches well ahead of a step that computes all the time."""

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader

args = options(__doc__)
torch.set_num_threads(1)
data = Pictures(8 * args.steps, side=96, crop=96)
loader = DataLoader(data, batch_size=8, num_workers=1 if args.workers is None else args.workers)
train(loader, convolutions(64), args.steps)
