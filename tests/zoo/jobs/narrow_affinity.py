"""The job was pinned to one core; its two workers and the training share it while other cores are idle."""

import os

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader

args = options(__doc__, all_cores="use every core there is")
if not args.all_cores:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(1)
data = Pictures(32 * args.steps)
loader = DataLoader(data, batch_size=32, num_workers=2 if args.workers is None else args.workers)
train(loader, convolutions(4), args.steps)
