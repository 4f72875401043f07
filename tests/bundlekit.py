"""Small bundles made in code: a step log, a loader log and worker logs of a run whose times are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tracekit import PID, Loop, Trace

START = 1_700_000_000_000_000_000
MS = 1_000_000


@dataclass
class Run:
    """A run of ``steps`` steps of ``step_ms``, of which ``wait_ms`` went into waiting for the next batch.

    Batches take ``service_ms`` of wall and ``cpu_ms`` of CPU time to make, in ``workers`` processes or, with 0, in
    ``next``. ``slow`` maps a step to extra milliseconds outside loading, ``late`` to extra waiting. ``window`` names
    the profiled steps, ``trace`` what is written for them.
    """

    steps: int = 40
    step_ms: float = 10.0
    wait_ms: float = 4.0
    workers: int = 2
    service_ms: float = 20.0
    cpu_ms: float = 18.0
    collate_ms: float = 1.0
    batch_size: int | None = 32
    per_epoch: int | None = None
    slow: Callable[[int], float] = lambda step: 0.0
    late: Callable[[int], float] = lambda step: 0.0
    window: range | None = None
    trace: Trace | None = None
    first_ms: float = 0.0
    cores: int = 8
    threads: int = 1
    loader: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = True

    def write(self, folder: Path) -> Path:
        """Writes the bundle and gives its folder."""
        rank = folder / "rank0"
        rank.mkdir(parents=True)
        (folder / "bundle.json").write_text(json.dumps({
            "schema": "tracelens.bundle/1", "id": folder.name, "created_ns": START, "tool": {"version": "0.1.0"},
            "command": ["python", "train.py"], "options": {"set": []}, "git": {}, "redacted": True, "job": {},
        }))  # fmt: skip
        events: list[dict[str, Any]] = [{"ts": START, "event": "start"}]
        if self.finished:
            events += [
                {"ts": START, "event": "exit", "code": 0, "signal": None},
                {"ts": START, "event": "end"},
            ]
        lines(folder / "events.jsonl", events)
        lines(rank / "process.jsonl", [{
            "ts": START, "pid": PID, "rank": 0, "world_size": 1, "python": "3.11", "torch": "2.8.0",
            "cpu": {"count": self.cores, "affinity": self.cores, "quota": None}, "threads": {"intraop": self.threads},
            "dev_shm_bytes": 1 << 33,
        }])  # fmt: skip
        self._logs(rank)
        self._window(rank)
        return folder

    def _logs(self, rank: Path) -> None:
        per_epoch = self.per_epoch or self.steps
        steps: list[dict[str, Any]] = []
        loader: list[dict[str, Any]] = [{
            "event": "loader", "loader": 0, "ts": START, "dataset": "Images", "dataset_kind": "map",
            "dataset_len": per_epoch * (self.batch_size or 1), "batch_size": self.batch_size, "num_workers": self.workers,
            "pin_memory": False, "prefetch_factor": 2 if self.workers else None, "persistent_workers": False,
            "in_order": True, "pid": PID, **self.loader,
        }]  # fmt: skip
        made: dict[int, list[dict[str, Any]]] = {w: [] for w in range(self.workers)}
        now = START
        for number in range(self.steps):
            epoch, batch = divmod(number, per_epoch)
            if batch == 0:
                loader.append({
                    "event": "iter", "loader": 0, "epoch": epoch, "ts": now, "start_ms": 30.0, "training": True,
                    "workers": self.workers,
                })  # fmt: skip
            wait = self.wait_ms + self.late(number)
            length = (
                self.step_ms + self.late(number) + self.slow(number) + (self.first_ms if number == 0 else 0)
            )
            profiled = 0 if self.window is not None and number in self.window else None
            steps.append({
                "step": number, "t0": now, "t1": now + int(length * MS), "wait_ms": wait, "samples": self.batch_size,
                "window": profiled, "source": "optimizer", "epoch": epoch,
            })  # fmt: skip
            got: dict[str, Any] = {
                "event": "batch", "loader": 0, "epoch": epoch, "batch": batch, "t0": now, "t1": now + int(wait * MS),
                "samples": self.batch_size, "bytes": 1_000_000, "training": True,
            }  # fmt: skip
            if self.workers:
                got["queue_depth"] = 0
                worker = number % self.workers
                end = now + int(wait * MS)
                made[worker].append({
                    "event": "fetch", "loader": 0, "worker": worker, "batch": batch, "epoch": epoch,
                    "t0": end - int(self.service_ms * MS), "t1": end, "cpu_ms": self.cpu_ms, "io_wait_ms": 0.0,
                    "run_delay_ms": 0.0, "collate_ms": self.collate_ms, "bytes": 1_000_000, "rss": 200_000_000,
                })  # fmt: skip
            else:
                got |= {"fetch_ms": wait, "cpu_ms": self.cpu_ms, "collate_ms": self.collate_ms}
            loader.append(got)
            now += int(length * MS)
        lines(rank / "steps.jsonl", steps)
        lines(rank / "loader.jsonl", loader)
        for worker, fetched in made.items():
            lines(rank / f"worker-{PID + 1 + worker}.jsonl", fetched)

    def _window(self, rank: Path) -> None:
        if self.window is None:
            return
        first, last = self.window[0], self.window[-1]
        record: dict[str, Any] = {
            "window": 0, "kind": "lean", "first_step": first, "last_step": last,
            "t0": START + int(first * self.step_ms * MS), "t1": START + int((last + 1) * self.step_ms * MS),
            "baseline_ms": [self.step_ms] * min(6, first), "complete": self.trace is not None,
        }  # fmt: skip
        if self.trace is not None:
            record["file"] = "window-0.pt.trace.json.gz"
            self.trace.write(rank / "window-0.pt.trace.json.gz")
        lines(rank / "windows.jsonl", [record])


def lines(path: Path, records: list[dict[str, Any]]) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def cut_last_line(path: Path) -> None:
    """Cuts the last line in half, as a killed process leaves it."""
    text = path.read_bytes()
    last = text.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(text[: last + (len(text) - last) // 2])


def cpu_trace(steps: int = 6, load_us: float = 4000, step_us: float = 10000, first: int = 12) -> Trace:
    """Steps on the CPU alone: ``next``, then operators up to the step's end."""
    trace = Trace(metadata={"schemaVersion": 1})
    for number in range(steps):
        at = 1000 + step_us * number
        trace.step(first + number, at, at + step_us - 2)
        trace.next(at, at + load_us)
        trace.op("aten::linear", at + load_us + 1, at + step_us - 10)
    return trace


def gpu_trace(steps: int = 6, load_us: float = 4000, first: int = 12) -> Trace:
    """Steps on a GPU that load ``load_us`` and then keep it busy for 6 ms, ``.item()`` between them."""
    return Loop(
        steps=steps,
        load_us=load_us,
        kernels=[("ampere_sgemm_128x128_nn", 590.0)] * 10,
        wait=True,
        first=first,
    ).trace()
