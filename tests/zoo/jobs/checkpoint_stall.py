"""Every eight steps the model and its history are saved, and the training waits until the disk has them."""

import os
import tempfile
from pathlib import Path

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__, seldom="save every 1000 steps")
torch.set_num_threads(1)
data = TensorDataset(torch.rand(32 * args.steps, 256), torch.randint(0, 10, (32 * args.steps,)))
model = dense(256, 768, depth=3)
moments = torch.rand(24, 1_000_000)

with tempfile.TemporaryDirectory() as name:

    def save(step: int, loss: torch.Tensor) -> None:
        """A checkpoint that survives a power cut."""
        if step % (1000 if args.seldom else 8) == 7:
            path = Path(name) / "model.pt"
            with path.open("wb") as file:
                torch.save({"step": step, "model": model.state_dict(), "moments": moments}, file)
                file.flush()
                os.fsync(file.fileno())

    train(DataLoader(data, batch_size=32), model, args.steps, save)
