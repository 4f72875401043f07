"""Pictures are decoded in the training process (num_workers=0)."""

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader

args = options(__doc__)
torch.set_num_threads(1)
data = Pictures(8 * args.steps)
loader = DataLoader(data, batch_size=8, num_workers=args.workers or 0)
train(loader, convolutions(24), args.steps)
