"""Samples are quick; a collate function that builds the batch in Python, element by element, is not."""

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, Dataset

WIDTH = 512


class Sequences(Dataset):
    """Token lists of varying length."""

    def __init__(self, length: int) -> None:
        self.length = length
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 1000, (64, WIDTH), generator=generator).tolist()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        return self.tokens[index % 64][: WIDTH - index % 32], index % 10


def padded(batch: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads one token at a time."""
    inputs = torch.zeros(len(batch), WIDTH)
    for row, (tokens, _) in enumerate(batch):
        for column, token in enumerate(tokens):
            inputs[row, column] = token / 1000
    return inputs, torch.tensor([target for _, target in batch])


def padded_at_once(batch: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads a row at a time."""
    inputs = torch.zeros(len(batch), WIDTH)
    for row, (tokens, _) in enumerate(batch):
        inputs[row, : len(tokens)] = torch.tensor(tokens) / 1000
    return inputs, torch.tensor([target for _, target in batch])


args = options(__doc__, by_row="pad a row at a time")
torch.set_num_threads(1)
loader = DataLoader(
    Sequences(16 * args.steps),
    batch_size=16,
    num_workers=1 if args.workers is None else args.workers,
    collate_fn=padded_at_once if args.by_row else padded,
)
train(loader, dense(WIDTH, 512), args.steps)
