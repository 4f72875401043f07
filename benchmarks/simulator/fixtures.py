"""The small runs that the tests read: fixed parameters, few steps, the same bytes each time."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.simulator.output import write_bundle, write_trace
from benchmarks.simulator.params import Params
from benchmarks.simulator.run import simulate

ROOT = Path(__file__).resolve().parents[2] / "fixtures"

_SMALL = Params(
    family="fixture",
    split="train",
    template="mlp",
    sizes=(("width", 1024), ("depth", 3), ("features", 256)),
    device="V100",
    dtype="fp32",
    batch=256,
    warm=4,
    horizon=24,
    traced=4,
    window_at=4,
    workers=2,
    machine_cores=8,
    sample_cpu_ms=0.004,
    sample_wait_ms=0.0005,
    sample_kb=1.0,
    collate_ms=0.1,
    fork_ms=5.0,
    init_ms=20.0,
)

# slow enough to be seen, small enough to be kept
TRACES: dict[str, tuple[Params, str]] = {
    "healthy": (
        _SMALL.but(seed=1, dtype="fp16", batch=4096, sample_cpu_ms=0.0002, sample_wait_ms=0.0, sample_kb=0.1,
                   item=True,
                   sizes=(("width", 4096), ("depth", 3), ("features", 128))),
        "new",
    ),
    "too_few_workers": (_SMALL.but(seed=2, sample_cpu_ms=0.08), "new"),
    "main_process_old": (_SMALL.but(seed=3, workers=0, sample_cpu_ms=0.02, pin=False, non_blocking=False), "old"),
    "launch_bound": (_SMALL.but(seed=4, batch=16, dispatch=1.6), "new"),
    "pageable": (
        _SMALL.but(seed=5, template="normnet", sizes=(("img", 48), ("depth", 2)), batch=256, pin=False,
                   non_blocking=False, pageable_gbs=2.5, dtype="fp16"),
        "new",
    ),
    "straggler": (
        _SMALL.but(seed=6, ranks=2, machine_cores=16, batch=1024, straggler="loader", straggle_x=6.0,
                   sample_cpu_ms=0.006, traced=3),
        "new",
    ),
    "gpu_lag": (
        _SMALL.but(seed=7, template="dlrm", sizes=(("tables", 3),), batch=8192,
            sample_cpu_ms=0.0001, sample_wait_ms=0.0, sample_kb=0.05, optimizer_impl="fused",
                   window_at=14),
        "new",
    ),
}  # fmt: skip
RUNS: dict[str, Params] = {
    "too_few_workers": _SMALL.but(seed=11, sample_cpu_ms=0.06),
    "worker_startup": _SMALL.but(
        seed=12, persistent=False, epoch_batches=6, init_ms=60.0, traced=8, window_at=3
    ),
    "periodic_stall": _SMALL.but(seed=13, stall_every=4, stall_ms=30.0, traced=10, window_at=2),
    "cpu_training": _SMALL.but(
        seed=14, device=None, pin=False, non_blocking=False, batch=64, main_threads=6, workers=1
    ),
}


def write_fixtures(root: Path | None = None) -> list[tuple[Path, int]]:
    """Write all fixtures below ``root`` (default: the repository's); returns the folders and their bytes."""
    base = root or ROOT
    written = []
    for name, (p, dialect) in TRACES.items():
        written.append(write_trace(simulate(p), _empty(base / "traces" / name), dialect))
    for name, p in RUNS.items():
        written.append(write_bundle(simulate(p), _empty(base / "runs" / name)))
    return [(w, sum(f.stat().st_size for f in w.rglob("*") if f.is_file())) for w in written]


def _empty(folder: Path) -> Path:
    """The folder without what an earlier generator left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder
