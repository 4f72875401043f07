"""loss.item() at every step, where the loss is there already: it costs nothing."""

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__, no_item="keep the loss as a tensor")
torch.set_num_threads(1)
data = TensorDataset(torch.rand(32 * args.steps, 256), torch.randint(0, 10, (32 * args.steps,)))
losses = []
train(
    DataLoader(data, batch_size=32),
    dense(256, 1536, depth=4),
    args.steps,
    lambda step, loss: losses.append(loss.detach() if args.no_item else loss.item()),
)
