"""Drawing a plain job: the choices of each split, a batch for the step time wanted, a loader to match."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.simulator import models
from benchmarks.simulator.hardware import DEVICES
from benchmarks.simulator.params import Params
from benchmarks.simulator.plan import build

SPLITS = {
    "train": {
        "images": ("resnet", "normnet"),
        "matmul": ("encoder", "resnet"),
        "light": ("mlp", "dlrm", "encoder"),
        "norms": ("normnet",),
        "tables": ("dlrm",),
        "recurrent": ("lstm",),
        "all": models.TRAIN_TEMPLATES,
        "devices": ("T4", "V100", "A100-40", "RTX3090", "2080Ti"),
        "fast": ("V100", "A100-40", "RTX3090"),
    },
    "test": {
        "images": ("convnext", "unet"),
        "matmul": ("decoder", "convnext"),
        "light": ("resmlp", "twotower", "decoder"),
        "norms": ("unet",),
        "tables": ("twotower",),
        "recurrent": ("gru",),
        "all": models.TEST_TEMPLATES,
        "devices": ("A10", "A100-80", "L4", "RTX4090", "H100", "H200"),
        "fast": ("A100-80", "H100", "RTX4090"),
    },
}


@dataclass(slots=True)
class Draw:
    """The random stream of one attempt, with the choices of its split."""

    rng: np.random.Generator
    split: str

    def pick(self, *values: Any) -> Any:
        """One of ``values``."""
        return values[int(self.rng.integers(len(values)))]

    def kind(self, name: str) -> Any:
        """A template or device of this split by its group."""
        return self.pick(*SPLITS[self.split][name])

    def uniform(self, a: float, b: float) -> float:
        """Uniform in ``[a, b]``."""
        return float(self.rng.uniform(a, b))

    def log(self, a: float, b: float) -> float:
        """Log-uniform in ``[a, b]``."""
        return float(math.exp(self.rng.uniform(math.log(a), math.log(b))))

    def whole(self, a: int, b: int) -> int:
        """An integer in ``[a, b]``."""
        return int(self.rng.integers(a, b + 1))


BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)


@lru_cache(maxsize=4096)
def cost_ms(
    template: str, batch: int, dtype: str, device: str, sizes: tuple[tuple[str, Any], ...]
) -> tuple[float, float, float]:
    """Estimated GPU and host milliseconds of one step of a plain job, and the share of kernels that underfill."""
    plan = build(Params(template=template, batch=batch, dtype=dtype, device=device, sizes=sizes))
    gpu = float(plan.kernel_us.sum() + len(plan.kernels)) / 1e3
    return gpu, float(plan.base.sum()) / 1e3 + 0.3, plan.small_us / 1e3 / gpu


def job(
    d: Draw,
    group: str,
    low: float,
    high: float,
    dtypes: tuple[str, ...] = ("fp16", "bf16", "tf32", "fp32"),
    *,
    device: str | None = None,
    ratio: tuple[float, float] = (0.0, math.inf),
    underfilled: float = 0.0,
) -> tuple[Params, float, float]:
    """A plain job whose GPU step takes ``low``..``high`` ms; returns it with its GPU and host ms.

    ``ratio`` bounds GPU time over host time, ``underfilled`` the least share of time in kernels that do not fill
    the GPU.
    """
    fit: list[tuple[Params, float, float]] = []
    for _attempt in range(60):
        template, dev = d.kind(group), device or d.kind("devices")
        dtype = d.pick(*dtypes)
        if not DEVICES[dev].supports(dtype):
            continue
        sizes = draw_sizes(d, template)
        for batch in BATCHES:
            g, h, small = cost_ms(template, batch, dtype, dev, sizes)
            if not (low <= g <= high and ratio[0] <= g / h <= ratio[1] and small >= underfilled):
                continue
            p = Params(template=template, batch=batch, dtype=dtype, device=dev, sizes=sizes)
            net = models.build(template, batch, dtype, dev, dict(sizes))
            if models.fixed_bytes(net, "AdamW") + models.activation_bytes(net) <= 0.8 * net.device.memory:
                fit.append((p, g, h))
        if len(fit) >= 3:
            break
    if not fit:
        raise LookupError(f"no {group} job between {low} and {high} ms")
    p, g, h = d.pick(*fit)
    return plain_loader(d, p, max(g, h)), g, h


def draw_sizes(d: Draw, template: str) -> tuple[tuple[str, Any], ...]:
    options: dict[str, dict[str, tuple[Any, ...]]] = {
        "resnet": {"img": (96, 128, 160, 224), "blocks": (1, 2)},
        "convnext": {"img": (96, 128, 192), "blocks": (2, 3)},
        "encoder": {"seq": (64, 128, 256), "d": (256, 512, 768), "depth": (3, 5)},
        "decoder": {"seq": (64, 128, 256, 512), "d": (384, 768), "depth": (3, 4)},
        "mlp": {"width": (512, 1024, 2048), "depth": (6, 10)},
        "resmlp": {"width": (512, 768, 1536), "depth": (6, 9)},
        "dlrm": {"tables": (6, 10), "d": (32, 64, 128)},
        "twotower": {"history": (10, 20), "d": (64, 128)},
        "lstm": {"seq": (12, 20), "hidden": (256, 512, 768), "depth": (1, 2)},
        "gru": {"seq": (10, 18), "hidden": (320, 640, 1024), "depth": (1, 2)},
        "normnet": {"img": (64, 96, 128), "depth": (4, 6)},
        "unet": {"img": (64, 96, 128), "depth": (4, 6)},
    }
    return tuple((k, d.pick(*v)) for k, v in options[template].items())


def plain_loader(
    d: Draw, p: Params, step: float, share: float | None = None, workers: int | None = None
) -> Params:
    """Workers that need ``share`` of the step to keep up, on a host with cores to spare."""
    w = workers if workers is not None else d.pick(4, 6, 8, 12)
    s = share if share is not None else d.uniform(0.15, 0.5)
    service = s * step * max(w, 1)
    return p.but(
        workers=w,
        sample_cpu_ms=0.8 * service / p.batch,
        sample_wait_ms=0.1 * service / p.batch,
        collate_ms=0.05 * service,
        sample_kb=d.log(4, 150),
        machine_cores=d.pick(16, 24, 32, 48, 64),
        storage_mbs=20000.0,
        stream_mbs=4000.0,
        loader_sigma=d.uniform(0.03, 0.12),
        pin_gbs=d.uniform(6, 12),
        handoff_ms=0.05,
        host_gbs=d.uniform(60, 150),
        pageable_gbs=d.uniform(3.0, 6.5),
        python_us=d.uniform(3, 8),
        step_python_ms=d.uniform(0.1, 0.5),
        host_sigma=d.uniform(0.08, 0.2),
        gpu_sigma=d.uniform(0.01, 0.03),
    )
