"""The training process itself waits 3 ms for every sample (num_workers=0)."""

import time

import torch
from common import convolutions, options, train
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    """Samples behind a network, fetched one after the other."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.003)
        return torch.rand(3, 64, 64), index % 10


args = options(__doc__)
torch.set_num_threads(1)
loader = DataLoader(Remote(16 * args.steps), batch_size=16, num_workers=args.workers or 0)
train(loader, convolutions(32), args.steps)
