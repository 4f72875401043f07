"""The data is a tensor in memory; two workers only pick rows of it, stack them and send them back."""

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows of one tensor."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.rows, self.targets = torch.rand(4096, 4096), torch.randint(0, 10, (4096,))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index % 4096], self.targets[index % 4096]


args = options(__doc__)
torch.set_num_threads(1)
loader = DataLoader(
    Rows(256 * args.steps), batch_size=256, num_workers=2 if args.workers is None else args.workers
)
train(loader, dense(4096, 16), args.steps)
