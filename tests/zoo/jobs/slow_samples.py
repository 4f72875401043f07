"""One of eight batches holds a picture that takes far longer to decode than all others."""

import torch
from common import Pictures, convolutions, options, train
from torch.utils.data import DataLoader


class Uneven(Pictures):
    """Every 32nd sample is a panorama: it is decoded in 150 tiles."""

    tiles = 150

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        for _ in range(self.tiles if index % 32 == 31 else 1):
            sample = super().__getitem__(index)
        return sample


args = options(__doc__, tiled="the panoramas were cut beforehand: one tile is decoded")
torch.set_num_threads(1)
data = Uneven(4 * args.steps, side=160, crop=128)
if args.tiled:
    data.tiles = 1
loader = DataLoader(data, batch_size=4, num_workers=2 if args.workers is None else args.workers)
train(loader, convolutions(24), args.steps)
