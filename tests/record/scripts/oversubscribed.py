"""num_workers=0 and a transform whose library threads fight over the cores: the loader starves the training."""

import sys

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

threads = int(sys.argv[2])


class Transformed(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        torch.set_num_threads(threads)  # as a library that takes every core for each call does
        image = torch.from_numpy(numpy.full((400, 400), index % 7, dtype="float32"))
        for _ in range(2):
            image = torch.mm(image, image) * 1e-3
        return image[:8, 0]


model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Transformed(int(sys.argv[1]) * 4), batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
