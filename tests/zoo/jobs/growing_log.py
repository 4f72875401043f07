"""The whole history of the run is written anew as JSON at every step: the longer it runs, the slower."""

import json
import tempfile
from pathlib import Path

import torch
from common import dense, options, train
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__, append="append one line a step")
torch.set_num_threads(1)
data = TensorDataset(torch.rand(32 * args.steps, 128), torch.randint(0, 10, (32 * args.steps,)))
model = dense(128, 384)
history = []

with tempfile.TemporaryDirectory() as name:
    path = Path(name) / "history.json"

    def log(step: int, loss: torch.Tensor) -> None:
        """The loss and the gradients of the last layer."""
        gradients = model[-1].bias.grad.tolist() + model[-1].weight.grad[:, :32].flatten().tolist()
        history.append({"step": step, "loss": float(loss), "gradients": gradients})
        if args.append:
            with path.open("a") as file:
                file.write(json.dumps(history.pop()) + "\n")
        else:
            path.write_text(json.dumps(history))

    train(DataLoader(data, batch_size=32), model, args.steps, log)
