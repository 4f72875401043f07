"""The zoo: each job, its fault, and what repairs it.

``causes`` are the right answers (rule ids; the first is the plainest), ``fix`` is what repairs the job: texts
of ``--set`` or the job's own switch. ``gain`` says which way throughput goes: ``faster``, or ``same`` where
there is nothing to repair and nothing must be promised. ``real`` jobs burn real CPU or disk, the others sleep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

JOBS = Path(__file__).resolve().parent / "jobs"


@dataclass(frozen=True, slots=True)
class Job:
    """One training script of the zoo."""

    name: str
    causes: tuple[str, ...]
    sets: tuple[str, ...] = ()
    switch: str | None = None
    gain: Literal["faster", "same"] = "faster"
    real: bool = True
    steps: int = 90
    env: tuple[tuple[str, str], ...] = ()
    sweep: tuple[str, ...] = field(default=())

    @property
    def script(self) -> Path:
        """The script's file."""
        return JOBS / f"{self.name}.py"

    def command(self, python: str, *, repaired: bool = False, steps: int | None = None) -> tuple[str, ...]:
        """The job's argv; ``repaired`` adds its own switch."""
        extra = (self.switch,) if repaired and self.switch else ()
        return (python, str(self.script), "--steps", str(steps or self.steps), *extra)

    @property
    def parameter(self) -> str | None:
        """The argument that ``--set`` changes."""
        return self.sets[0].partition("=")[0] if self.sets else None


def _workers(*values: int) -> tuple[str, ...]:
    return tuple(f"num_workers={value}" for value in values)


ZOO: tuple[Job, ...] = (
    Job("decode_main", ("load.main_process",), _workers(1), sweep=_workers(0, 1, 2)),
    Job("decode_few", ("load.too_few_workers",), _workers(2), sweep=_workers(0, 1, 2, 3)),
    Job("decode_all_cores", ("load.cores_exhausted",), switch="--small-files"),
    Job("remote_storage", ("load.storage", "load.too_few_workers"), _workers(2), real=False, sweep=_workers(0, 1, 2)),
    Job("sleepy_main", ("load.main_process",), _workers(2), real=False, sweep=_workers(0, 1, 2)),
    Job("small_files", ("load.storage", "load.too_few_workers"), switch="--warm", steps=60),
    Job("slow_samples", ("load.slow_samples",), switch="--tiled", steps=240),
    Job("heavy_collate", ("load.collate_ipc",), switch="--by-row"),
    Job("large_batches", ("load.collate_ipc",), switch="--as-bytes", steps=80),
    Job("epoch_respawn", ("load.worker_startup",), ("persistent_workers=true",), steps=160),
    Job("too_many_workers", ("load.too_many_workers",), _workers(2), steps=240, sweep=_workers(0, 1, 2, 4, 8)),
    Job("tiny_batch", ("host.cpu_compute", "host.launch_bound", "host.python"), ("batch_size=32",), steps=160),
    Job("item_harmless", ("host.cpu_compute",), switch="--no-item", gain="same", steps=160),
    Job("item_harmful", ("host.python", "host.launch_bound", "host.cpu_compute"), switch="--vectorised", steps=240),
    Job("checkpoint_stall", ("host.periodic_stall",), switch="--seldom", steps=160),
    Job("growing_log", ("host.python",), switch="--append", steps=160),
    Job("in_memory_workers", ("load.collate_ipc", "load.too_many_workers"), _workers(0), steps=160, sweep=_workers(0, 1, 2)),
    Job("narrow_affinity", ("load.affinity",), switch="--all-cores"),
    Job(
        "oversubscribed", ("load.oversubscribed_threads",), ("num_threads=2",),
        sweep=("num_threads=1", "num_threads=2", "num_threads=4", "num_threads=16"),
    ),
    Job("shallow_prefetch", ("load.shallow_prefetch",), ("prefetch_factor=8",), steps=160),
    Job("generator_loader", ("load.custom", "host.python"), switch="--loader"),
    Job("healthy", ("host.cpu_compute",), gain="same"),
)  # fmt: skip

BY_NAME = {job.name: job for job in ZOO}
