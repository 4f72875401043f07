"""Two ranks over gloo; the environment says who is who (torchrun, accelerate, or a plain spawn)."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(rank, world, method, steps):
    if method is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
    data = TensorDataset(torch.randn(steps * 8, 4))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads abort the process now and then (torch alone, too) if it exits at once


if __name__ == "__main__":
    count = int(sys.argv[1])
    if len(sys.argv) > 2:
        mp.start_processes(
            train,
            args=(2, "file://" + os.path.abspath(sys.argv[2]), count),
            nprocs=2,
            start_method=sys.argv[3],
        )
    else:
        train(None, None, None, count)
