"""Batches of two samples through a deep, narrow network: every operator is far too small."""

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__)
torch.set_num_threads(1)
data = TensorDataset(torch.rand(2 * args.steps * 16, 16), torch.randint(0, 10, (2 * args.steps * 16,)))
train(DataLoader(data, batch_size=2), dense(16, 16, depth=120), args.steps)
