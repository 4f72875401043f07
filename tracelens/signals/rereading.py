"""Signals about loading over the run: a first epoch slower than the others, and batches that wait longer than they take."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import RunLog, StepLog
from tracelens.ingest.tables import HostLog
from tracelens.signals.signal import Signals

STEPS, LOADER = "step log (unprofiled steps)", "loader log"
_FEW = 10
# a disk that seeks for every small file: about 100 reads a second of 10 KB
_SLOWEST_BYTES_MS = 1000.0
_COLD = ("load.first_epoch_ratio", "load.cold_wait_ms")
_WORKERS = ("load.wait_per_batch_ms", "load.workers_excess_ms")


def rereading_signals(log: RunLog | None, host: HostLog | None, out: Signals) -> None:
    """``load.first_epoch_ratio``, ``load.cold_wait_ms``, ``load.wait_per_batch_ms`` and ``load.workers_excess_ms``.

    ``host`` are the host samples of the whole run.
    """
    if log is not None:
        _first_epoch(log, host, out)
        _wait_per_batch(log, out)
    out.missing("needs a recorded bundle with ten steps of two epochs", *_COLD)
    out.missing("needs a recorded bundle of a loader with workers and a known batch size", *_WORKERS)


def _first_epoch(log: RunLog, host: HostLog | None, out: Signals) -> None:
    """How much slower steps are in the first epoch than later, and how much longer they wait for what it reads."""
    steps, made = log.steps, log.fetches
    # start-up reads once too, and early; a cold cache lasts for the whole of the first epoch
    early = np.flatnonzero(steps.epoch == 0)
    cold_steps = np.zeros(len(steps), dtype=bool)
    cold_steps[early[early.size // 2 :]] = True
    first, later = steps.plain & cold_steps, steps.plain & (steps.epoch > 0)
    if min(int(first.sum()), int(later.sum())) < _FEW:
        return
    slower = float(steps.duration_ms[first].mean() / steps.duration_ms[later].mean())
    out.add(_COLD[0], slower, "ratio", STEPS)
    workers = log.settings.get("num_workers")
    places = max(workers, 1) if isinstance(workers, int) else 1
    # a worker's first batches wait for imports and open files, whatever the cache holds; without run-queue delays
    # nobody can tell waiting for storage from waiting for a core
    rows = _without_first(made.worker, made.epoch, made.t0)
    rows &= np.isfinite(made.cpu_ms) & np.isfinite(made.run_delay_ms)
    cold = rows & (made.epoch == 0) & (made.t0 >= steps.t0[cold_steps].min())
    warm = rows & (made.epoch > 0)
    if min(int(cold.sum()), int(warm.sum())) < _FEW:
        return
    excess = float(made.waiting_ms[cold].mean() - made.waiting_ms[warm].mean()) / places
    read = _bytes_per_step(host, steps, cold_steps)
    again = _bytes_per_step(host, steps, steps.epoch > 0)
    if read is None or again is None:
        out.missing("what the processes read from storage was not sampled", _COLD[1])
        return
    # locks, sleep and a crowded machine make fetches wait too: only what the bytes can explain is the storage's
    explained = max(read - again, 0.0) / _SLOWEST_BYTES_MS
    out.add(_COLD[1], min(max(excess, 0.0), explained), "ms", "loader log and host log")


def _bytes_per_step(host: HostLog | None, steps: StepLog, chosen: NDArray[np.bool_]) -> float | None:
    """Bytes that the job's processes read from storage during some steps, a step; what a cache holds is not read."""
    if host is None:
        return None
    low, high = int(steps.t0[chosen].min()), int(steps.t1[chosen].max())
    processes = host.processes.take((host.processes.role != "other") & np.isfinite(host.processes.read_bytes))
    if int(((processes.t_ns >= low) & (processes.t_ns <= high)).sum()) < 2:
        return None
    total = 0.0
    for pid in np.unique(processes.pid):
        rows = processes.take(processes.pid == pid)
        before, after = np.interp([low, high], rows.t_ns, rows.read_bytes)
        total += max(float(after - before), 0.0)
    return total / int(chosen.sum())


def _without_first(
    worker: NDArray[np.int64], epoch: NDArray[np.int64], t0: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """For each fetch, whether it is not the first of its worker in its epoch."""
    order = np.lexsort((t0, worker, epoch))
    same = np.zeros(order.size, dtype=bool)
    same[1:] = (worker[order][1:] == worker[order][:-1]) & (epoch[order][1:] == epoch[order][:-1])
    keep = np.empty(order.size, dtype=bool)
    keep[order] = same
    return keep


def _wait_per_batch(log: RunLog, out: Signals) -> None:
    """The median wait for a batch, and by how much a step waits longer than making its batches itself would take."""
    workers, batch = log.settings.get("num_workers"), log.settings.get("batch_size")
    rows = log.steps.plain & np.isfinite(log.steps.wait_ms) & np.isfinite(log.steps.samples)
    if not isinstance(workers, int) or workers < 1 or not isinstance(batch, int) or int(rows.sum()) < _FEW:
        return
    batches = np.maximum(log.steps.samples[rows] / batch, 1.0)
    wait = float(np.median(log.steps.wait_ms[rows] / batches))
    out.add(_WORKERS[0], wait, "ms", STEPS)
    service = out.number("load.service_ms")
    excess = max(wait - service, 0.0) * float(np.median(batches)) if service is not None else None
    out.add(
        _WORKERS[1], excess, "ms", "step log and loader log", "how long batches take to make was not recorded"
    )
