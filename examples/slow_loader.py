"""A training script with a deliberately slow loader: every image is "decoded" in the training process.

It needs torch and nothing else, runs on a CPU or a GPU in a few seconds, and knows nothing of tracelens:

    tracelens record -- python examples/slow_loader.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Pictures that cost CPU time to make, as JPEG decoding and augmentation do."""

    def __init__(self, length: int, size: int) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 4 * self.size, 4 * self.size, generator=generator)
        for _ in range(6):  # blur, as a stand-in for a chain of augmentations
            image = nn.functional.avg_pool2d(image, 5, stride=1, padding=2)
        return nn.functional.interpolate(image[None], size=(self.size, self.size))[0], index % 10


def main() -> None:
    """Train a small convolutional network for a number of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    photos = Photos(options.steps * options.batch_size, 32)
    loader = DataLoader(photos, batch_size=options.batch_size, num_workers=options.workers)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for step, (images, labels) in enumerate(loader):
        loss = loss_of(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}")
    print(f"done after {options.steps} steps on {device}")


if __name__ == "__main__":
    main()
