"""One worker decodes pictures for a step that is much shorter; the second core is idle."""

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader

args = options(__doc__)
torch.set_num_threads(1)
data = Pictures(32 * args.steps)
loader = DataLoader(data, batch_size=32, num_workers=1 if args.workers is None else args.workers)
train(loader, convolutions(2), args.steps)
