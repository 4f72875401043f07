"""Epochs of eight batches: the workers, which load an index when they start, are started anew for each."""

import torch
from common import Pictures, convolutions, decode, options, train
from torch.utils.data import DataLoader, get_worker_info


def load_index(worker: int) -> None:
    """What every worker does first: read and check the index of the data set."""
    data = get_worker_info().dataset
    for name in range(80):
        decode(data.files[name % len(data.files)], data.side)


args = options(__doc__)
torch.set_num_threads(1)
data = Pictures(8 * 16, side=192)
loader = DataLoader(
    data,
    batch_size=16,
    num_workers=2 if args.workers is None else args.workers,
    worker_init_fn=load_index,
)
train(loader, convolutions(8), args.steps)
