"""Every fifth batch takes long, and a queue of one batch cannot ride over it although the mean would do."""

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader


class Bursts(Pictures):
    """Whole batches: in each run of five, four are quick and one is slow."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        for _ in range(50 if index // 4 % 5 == 4 else 1):
            sample = super().__getitem__(index)
        return sample


args = options(__doc__)
torch.set_num_threads(1)
data = Bursts(4 * args.steps, side=160, crop=160)
loader = DataLoader(
    data, batch_size=4, num_workers=1 if args.workers is None else args.workers, prefetch_factor=1
)
train(loader, convolutions(48), args.steps)
