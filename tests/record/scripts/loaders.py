"""DataLoaders of every kind, one after the other; the kinds are named on the command line."""

import sys

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)


class Map(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index)), "name": "sample"}


class Batched(Map):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 24, step):
            yield torch.full((4,), float(index))


class Pages(BatchSampler):
    def __iter__(self):
        yield from ([start, start + 1, start + 2] for start in range(0, 24, 3))


class Custom(DataLoader):
    pass


def collate(samples):
    return torch.stack([sample["x"] for sample in samples]), len(samples)


def build(kind):
    if kind == "spawn":
        return DataLoader(Map(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    if kind == "forkserver":
        return DataLoader(Map(), batch_size=4, num_workers=1, multiprocessing_context="forkserver")
    if kind == "persistent":
        return DataLoader(Map(), batch_size=4, num_workers=2, persistent_workers=True)
    if kind == "batch_sampler":
        return DataLoader(
            Map(), batch_sampler=Pages(SequentialSampler(Map()), 3, False), num_workers=1, collate_fn=collate
        )
    if kind == "unordered":
        return DataLoader(Map(), batch_size=4, num_workers=2, in_order=False)
    if kind == "stream":
        return DataLoader(Stream(), batch_size=4, num_workers=2)
    if kind == "stream0":
        return DataLoader(Stream(), batch_size=4)
    if kind == "unbatched":
        return DataLoader(Map(), batch_size=None)
    if kind == "subclass":
        return Custom(Map(), batch_size=4, sampler=RandomSampler(Map()))
    if kind == "getitems":
        return DataLoader(Batched(), batch_size=4, num_workers=1)
    raise SystemExit("unknown kind " + kind)


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        loader = build(kind)
        for _epoch in range(2):
            print(kind, sum(1 for _ in loader))
