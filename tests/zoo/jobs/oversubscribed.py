"""Sixteen threads an operator, as a larger machine had cores: on two they wait for each other."""

import torch
from common import options, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__)
torch.set_num_threads(16)
data = TensorDataset(torch.rand(16 * args.steps, 3, 64, 64), torch.randint(0, 10, (16 * args.steps,)))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
)  # fmt: skip
train(DataLoader(data, batch_size=16), model, args.steps)
