"""Batches of 50 MB of floats cross from a worker to the training process; making them costs little."""

import torch
from common import options
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 512


class Volumes(Dataset):
    """Views of data that is in memory: float32, or the bytes it was measured as."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self.length = length
        self.volume = torch.randint(0, 255, (3, SIDE, SIDE), dtype=torch.uint8).to(dtype)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.volume, index % 10


class Thumbnails(nn.Module):
    """Looks at every 16th pixel only: the step is short."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(3 * (SIDE // 16) ** 2, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.classify(inputs[:, :, ::16, ::16].flatten(1).float())


args = options(__doc__, as_bytes="keep the pixels as uint8: a quarter of the bytes")
torch.set_num_threads(1)
data = Volumes(16 * args.steps, torch.uint8 if args.as_bytes else torch.float32)
loader = DataLoader(data, batch_size=16, num_workers=1 if args.workers is None else args.workers)
model = Thumbnails()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for inputs, targets in loader:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
