"""The data is a tensor in memory; two workers only pickle it and send it back."""

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__)
torch.set_num_threads(1)
data = TensorDataset(torch.rand(4096, 4096), torch.randint(0, 10, (4096,)))
loader = DataLoader(data, batch_size=256, num_workers=2 if args.workers is None else args.workers)
train(loader, dense(4096, 16), args.steps)
