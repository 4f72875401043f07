"""A few seconds of training on CPU: every knob that the recorder's tests turn is an option."""

import argparse
import hashlib
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Numbers(Dataset):
    """Generated samples that cost ``delay`` seconds each."""

    def __init__(self, count, delay):
        self.count = count
        self.delay = delay

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.delay:
            time.sleep(self.delay)
        return torch.full((16,), float(index % 7)) + torch.rand(16), index % 3


class Stream(IterableDataset):
    """The same as an iterable; ``shard`` splits it between the workers."""

    def __init__(self, count, shard):
        self.count = count
        self.shard = shard

    def __iter__(self):
        info = get_worker_info() if self.shard else None
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.count, step):
            yield torch.full((16,), float(index % 7)), index % 3


class Blind(IterableDataset):
    """Never asks which worker it runs in."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for index in range(self.count):
            yield torch.full((16,), float(index % 7)), index % 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--work", type=float, default=0.0)
    parser.add_argument("--context", default=None)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--dataset", default="map", choices=["map", "stream", "sharded", "blind"])
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--raise-at", type=int, default=None)
    parser.add_argument("--digest", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(7)
    count = args.steps * args.batch
    dataset = {
        "map": lambda: Numbers(count, args.delay),
        "stream": lambda: Stream(count, False),
        "sharded": lambda: Stream(count, True),
        "blind": lambda: Blind(count),
    }[args.dataset]()
    loader = DataLoader(
        dataset,
        batch_size=args.batch,
        shuffle=args.dataset == "map",
        num_workers=args.workers,
        multiprocessing_context=args.context,
        persistent_workers=args.persistent,
    )
    validation = DataLoader(Numbers(4 * args.batch, 0.0), batch_size=args.batch) if args.validate else None
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _epoch in range(args.epochs):
        for number, (inputs, targets) in enumerate(loader):
            if args.raise_at is not None and number >= args.raise_at:
                raise ValueError("the training went wrong")
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if args.work:
                time.sleep(args.work)
        if args.validate:
            with torch.no_grad():
                for inputs, _targets in validation:
                    model(inputs)
    if args.digest:
        print(hashlib.sha256(repr(losses).encode()).hexdigest(), torch.rand(1).item())


if __name__ == "__main__":
    main()
