"""Eight workers on two cores share a cache behind a lock that spins: who holds it hardly gets a core."""

import multiprocessing

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader


class Cached(Pictures):
    """Pictures whose files are read under one lock for all workers; waiting for it is a loop."""

    def __init__(self, length: int) -> None:
        super().__init__(length, side=160)
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        while not self.lock.acquire(block=False):
            pass
        try:
            return super().__getitem__(index)
        finally:
            self.lock.release()


args = options(__doc__)
torch.set_num_threads(1)
data = Cached(8 * args.steps)
loader = DataLoader(data, batch_size=8, num_workers=8 if args.workers is None else args.workers)
train(loader, convolutions(16), args.steps)
