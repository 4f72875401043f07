"""No DataLoader: a generator decodes each batch in the training loop."""

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader

args = options(__doc__, loader="use a DataLoader with one worker")
torch.set_num_threads(1)
data = Pictures(32 * args.steps, crop=64)


class Batches:
    """32 samples at a time, made when they are asked for."""

    def __iter__(self):
        for first in range(0, len(data), 32):
            pictures, targets = zip(*(data[index] for index in range(first, first + 32)), strict=True)
            yield torch.stack(pictures), torch.tensor(targets)


batches = DataLoader(data, batch_size=32, num_workers=1) if args.loader else Batches()
train(batches, convolutions(32), args.steps)
