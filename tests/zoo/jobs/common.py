"""What the example jobs share: small networks, the training loop, pictures that cost CPU time to decode.

Each job beside this file is a plain training script with one known fault. It knows nothing of tracelens and
needs torch and numpy only.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


def options(description: str | None, **flags: str) -> argparse.Namespace:
    """``--steps`` and ``--workers`` and one switch a keyword: what repairs the job."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--workers", type=int, default=None)
    for name, text in flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)
    return parser.parse_args()


def convolutions(width: int = 8, classes: int = 10) -> nn.Module:
    """A small network for pictures of any size."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )  # fmt: skip


def dense(features: int, hidden: int, classes: int = 10, depth: int = 2) -> nn.Module:
    """A perceptron."""
    layers: list[nn.Module] = [nn.Linear(features, hidden), nn.ReLU()]
    for _ in range(depth - 2):
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(hidden, classes))


def train(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    model: nn.Module,
    steps: int,
    after: Callable[[int, torch.Tensor], None] | None = None,
) -> None:
    """``steps`` iterations over as many epochs as that takes; ``after(step, loss)`` runs at the end of each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    step = 0
    while step < steps:
        for inputs, targets in batches:
            loss = loss_of(model(inputs.float()), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if after is not None:
                after(step, loss)
            step += 1
            if step >= steps:
                break


def encode(seed: int, side: int) -> bytes:
    """A picture as PNG stores it: each row's differences, deflated."""
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(rng.integers(-3, 4, size=(side, side, 3)), axis=1)
    return zlib.compress(np.diff(smooth, axis=1, prepend=0).astype(np.uint8).tobytes(), 1)


def decode(data: bytes, side: int) -> np.ndarray:
    """Inflate, undo the row filter, and turn into floats: the work of an image decoder on one core."""
    rows = np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(side, side, 3)
    picture = np.cumsum(rows, axis=1, dtype=np.uint8).astype(np.float32)
    return (picture - picture.mean()) / (picture.std() + 1e-3)


class Pictures(Dataset):
    """Pictures that are decoded when they are asked for, cut down to ``crop``; a few files stand for many."""

    def __init__(self, length: int, side: int = 256, crop: int = 32, files: int = 16) -> None:
        self.length, self.side, self.crop = length, side, crop
        self.files = [encode(seed, side) for seed in range(files)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = decode(self.files[index % len(self.files)], self.side)
        return torch.from_numpy(picture[: self.crop, : self.crop].transpose(2, 0, 1).copy()), index % 10
