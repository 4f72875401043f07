"""Every sample is a request to a store that answers after 8 ms; the one worker waits for most of the time."""

import time

import torch
from common import convolutions, options, train
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    """Samples behind a network: latency, and hardly any CPU time."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.008)
        return torch.rand(3, 32, 32), index % 10


args = options(__doc__)
torch.set_num_threads(1)
loader = DataLoader(
    Remote(8 * args.steps), batch_size=8, num_workers=1 if args.workers is None else args.workers
)
train(loader, convolutions(16), args.steps)
