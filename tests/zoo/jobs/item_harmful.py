"""A metric that reads every element of the weights with .item() in Python at each step."""

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__, vectorised="one operator instead of a loop")
torch.set_num_threads(1)
data = TensorDataset(torch.rand(32 * args.steps, 64), torch.randint(0, 10, (32 * args.steps,)))
model = dense(64, 1024)
history = []


def norm(step: int, loss: torch.Tensor) -> None:
    """The norm of the last layer."""
    weights = model[-1].weight.detach()
    if args.vectorised:
        history.append(float(weights.square().sum().sqrt()))
    else:
        history.append(sum(value.item() ** 2 for row in weights for value in row) ** 0.5)


train(DataLoader(data, batch_size=32), model, args.steps, norm)
