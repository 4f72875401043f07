"""A training with what belongs outside the loop: anomaly detection, a collection in each step, a sampler that takes its time."""

import gc
import time

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Slow(Sampler):
    """5 ms an index."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        for index in range(self.count):
            time.sleep(0.005)
            yield index


def main():
    dataset = TensorDataset(torch.rand(160, 16), torch.zeros(160, dtype=torch.int64))
    loader = DataLoader(dataset, batch_size=4, sampler=Slow(len(dataset)))
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in loader:
        with torch.autograd.set_detect_anomaly(True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        gc.collect()


if __name__ == "__main__":
    main()
