"""Signals about loading over the run: a first epoch slower than the others, and batches that wait longer than they take."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import RunLog
from tracelens.signals.signal import Signals

STEPS, LOADER = "step log (unprofiled steps)", "loader log"
_FEW = 10
_COLD, _WORKERS = ("load.first_epoch_ratio", "load.cold_wait_ms"), ("load.wait_per_batch_ms",)


def rereading_signals(log: RunLog | None, out: Signals) -> None:
    """``load.first_epoch_ratio``, ``load.cold_wait_ms`` and ``load.wait_per_batch_ms``."""
    if log is not None:
        _first_epoch(log, out)
        _wait_per_batch(log, out)
    out.missing("needs a recorded bundle with ten steps of two epochs", *_COLD)
    out.missing("needs a recorded bundle of a loader with workers and a known batch size", *_WORKERS)


def _first_epoch(log: RunLog, out: Signals) -> None:
    """How much slower steps are in the first epoch than later, and how much longer its fetches wait, per batch."""
    steps, made = log.steps, log.fetches
    first, later = steps.plain & (steps.epoch == 0), steps.plain & (steps.epoch > 0)
    if min(int(first.sum()), int(later.sum())) < _FEW:
        return
    slower = float(steps.duration_ms[first].mean() / steps.duration_ms[later].mean())
    out.add(_COLD[0], slower, "ratio", STEPS)
    workers = log.settings.get("num_workers")
    places = max(workers, 1) if isinstance(workers, int) else 1
    # a worker's first batches wait for imports and open files, whatever the cache holds
    rows = _without_first(made.worker, made.epoch, made.t0) & np.isfinite(made.cpu_ms)
    cold, warm = rows & (made.epoch == 0), rows & (made.epoch > 0)
    if min(int(cold.sum()), int(warm.sum())) < _FEW:
        return
    excess = float(made.waiting_ms[cold].mean() - made.waiting_ms[warm].mean())
    out.add(_COLD[1], max(excess, 0.0) / places, "ms", LOADER)


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
    """The median wait for a batch; a step that takes several batches waits for each."""
    workers, batch = log.settings.get("num_workers"), log.settings.get("batch_size")
    rows = log.steps.plain & np.isfinite(log.steps.wait_ms) & np.isfinite(log.steps.samples)
    if not isinstance(workers, int) or workers < 1 or not isinstance(batch, int) or int(rows.sum()) < _FEW:
        return
    batches = np.maximum(log.steps.samples[rows] / batch, 1.0)
    out.add(_WORKERS[0], float(np.median(log.steps.wait_ms[rows] / batches)), "ms", STEPS)
