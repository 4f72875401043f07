"""As many workers as cores decode pictures, and that is still too slow: the cores are the limit."""

import os

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader

args = options(__doc__, small_files="pictures of a quarter of the pixels, as prepared ahead of the training")
torch.set_num_threads(1)
cores = len(os.sched_getaffinity(0))
data = Pictures(32 * args.steps, side=128 if args.small_files else 256)
loader = DataLoader(data, batch_size=32, num_workers=cores if args.workers is None else args.workers)
train(loader, convolutions(2), args.steps)
