"""One training loop whose faults are flags. Prints one JSON line: steps, samples a second, medians.

python benchmarks/zoo/train.py --model resnet --workers 1 --decode-ms 3 --steps 80
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.zoo.nets import Decoder, ResNet, chain

INPUTS = {"float32": torch.float32, "float64": torch.float64, "uint8": torch.uint8}


class Generated(Dataset):  # type: ignore[type-arg]
    """Samples from a small pool, with ``decode_ms`` of honest CPU work each."""

    def __init__(self, a: argparse.Namespace, count: int) -> None:
        self.count = count
        self.decode_s = a.decode_ms / 1e3
        g = torch.Generator().manual_seed(0)
        self.model = a.model
        if a.model == "resnet":
            self.pool = torch.randint(0, 255, (8, 3, a.image, a.image), generator=g, dtype=torch.uint8)
            self.pool = self.pool.to(INPUTS[a.input_dtype])
        else:
            self.pool = torch.randint(0, a.vocab, (64, a.length + 1), generator=g)
        self.blob = os.urandom(1 << 15)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        until = time.thread_time() + self.decode_s
        while time.thread_time() < until:
            zlib.compress(self.blob, 1)
        x = self.pool[index % len(self.pool)]
        return (x, index % 10) if self.model == "resnet" else x


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags; the defaults are a healthy job."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", choices=("resnet", "decoder"), default="resnet")
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true", help="small networks and inputs, for smoke tests on a CPU")
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--prefetch", type=int, default=2)
    p.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--non-blocking", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--decode-ms", type=float, default=0.0)
    p.add_argument("--image", type=int, default=224)
    p.add_argument("--input-dtype", choices=tuple(INPUTS), default="float32")
    p.add_argument("--dtype", choices=("fp32", "tf32", "bf16"), default="bf16")
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--vocab", type=int, default=8192)
    p.add_argument("--item", action="store_true", help="read the loss every step")
    p.add_argument("--syncs", type=int, default=0, help="boolean masks inside the forward pass")
    p.add_argument("--pointwise", type=int, default=0, help="elementwise operators on the model's input")
    p.add_argument("--compile", action="store_true", help="compile the elementwise chain")
    p.add_argument("--fill", type=float, default=0.0, help="share of the device's memory to occupy")
    p.add_argument("--checkpoint-every", type=int, default=0)
    p.add_argument("--single-tensor", action="store_true", help="an optimizer without foreach")
    p.add_argument(
        "--empty-cache",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="free cached memory each step",
    )
    a = p.parse_args(argv)
    if a.tiny:
        a.image, a.length, a.vocab = min(a.image, 32), min(a.length, 16), 128
    return a


def build(a: argparse.Namespace) -> nn.Module:
    """The network of the flags on its device."""
    net: nn.Module
    if a.model == "resnet":
        net = ResNet((1, 1), 8, 10) if a.tiny else ResNet()
    else:
        net = Decoder(a.vocab, 32, 2, 2, a.length) if a.tiny else Decoder(a.vocab, length=a.length)
        net.syncs = a.syncs
    return net.to(a.device)


def loss_of(net: nn.Module, a: argparse.Namespace, batch: Any, grow: Any) -> torch.Tensor:
    """Copy the batch, run the forward pass, return the loss."""
    if a.model == "resnet":
        images, labels = batch
        x = images.to(a.device, non_blocking=a.non_blocking)
        y = labels.to(a.device, non_blocking=a.non_blocking)
        x = x.float() / 255.0
        if a.pointwise:
            x = grow(x, a.pointwise)
        return nn.functional.cross_entropy(net(x).float(), y)
    ids = batch.to(a.device, non_blocking=a.non_blocking)
    logits = net(ids[:, :-1])
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def main(argv: list[str] | None = None) -> int:
    """Train for ``--steps`` steps; 0 when done."""
    a = arguments(argv)
    cuda = a.device.startswith("cuda")
    if cuda and not torch.cuda.is_available():
        print("no CUDA device here", file=sys.stderr)
        return 4
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = a.dtype == "tf32"
    torch.backends.cudnn.benchmark = cuda
    torch.manual_seed(0)
    net = build(a)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=not a.single_tensor)
    grow = torch.compile(chain) if a.compile else chain
    ballast = None
    if a.fill and cuda:
        free, total = torch.cuda.mem_get_info()
        ballast = torch.empty(
            max(0, int(a.fill * total) - (total - free)), dtype=torch.uint8, device=a.device
        )
    loader = DataLoader(
        Generated(a, a.steps * a.batch),
        batch_size=a.batch,
        num_workers=a.workers,
        pin_memory=a.pin and cuda,
        persistent_workers=a.workers > 0,
        prefetch_factor=a.prefetch if a.workers else None,
        drop_last=True,
    )
    amp = torch.autocast("cuda", torch.bfloat16) if cuda and a.dtype == "bf16" else contextlib.nullcontext()
    durations, samples, last = [], 0, None
    with tempfile.TemporaryDirectory() as folder:
        for step, batch in enumerate(loader):
            optimizer.zero_grad(set_to_none=True)
            with amp:
                loss = loss_of(net, a, batch, grow)
            loss.backward()
            optimizer.step()
            if a.item and loss.item() != loss.item():
                raise FloatingPointError("the loss is not a number")
            if a.empty_cache and cuda:
                torch.cuda.empty_cache()
            if a.checkpoint_every and step % a.checkpoint_every == a.checkpoint_every - 1:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, Path(folder) / "state.pt")
            now = time.perf_counter()
            if last is not None:
                durations.append(now - last)
            last = now
            samples += a.batch
        if cuda:
            torch.cuda.synchronize()
    del ballast
    steady = durations[min(12, len(durations) // 3) :]
    print(json.dumps({
        "steps": len(durations) + 1, "device": torch.cuda.get_device_name() if cuda else "cpu", "batch": a.batch,
        "median_ms": round(1e3 * statistics.median(steady), 4), "mean_ms": round(1e3 * statistics.fmean(steady), 4),
        "samples_per_s": round(a.batch / statistics.fmean(steady), 2),
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
