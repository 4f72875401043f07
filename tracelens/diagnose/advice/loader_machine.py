"""The cores that a job may use, who else computes on them, and what else limits its workers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracelens.diagnose.advice.case import Case
from tracelens.signals.deliveries import computing_beside
from tracelens.signals.signal import Signals
from tracelens.whatif import loader_model as model
from tracelens.whatif.loader_fit import busy_elsewhere
from tracelens.whatif.loader_inputs import LoaderSettings

ASSUMED_CORES = 8.0  # where nobody recorded how many: a small share of a training host


def usable_cores(signals: Signals) -> tuple[float, bool]:
    cores = signals.number("machine.usable_cores")
    return (float(cores), True) if cores else (ASSUMED_CORES, False)


def elsewhere(case: Case, cores: float, settings: LoaderSettings) -> float:
    """Threads of other processes that compete for the cores: from how long the fetches waited for one, at most as many
    as the host's samples saw."""
    foreign = case.signals.number("machine.foreign_cores")
    most = foreign if foreign is not None else math.inf
    log = case.analysis.run_log
    if log is not None:
        made = log.fetches
        # the first batch of each worker meets workers that still start
        rows = (
            np.isfinite(made.cpu_ms) & np.isfinite(made.run_delay_ms) & (made.batch >= settings.num_workers)
        )
        beside = computing_beside(log.deliveries, made, rows) if rows.sum() >= 3 else None
        if beside is not None:
            # a core that is busy all the time looks alike with one rival on it and with five; the waits do not. But a
            # few waits do not show a rival at all times: no more than the samples saw, unless they saw every core busy
            computing = max(1.0, beside)
            delay = float(made.run_delay_ms[rows].sum())
            found = busy_elsewhere(cores, float(made.cpu_ms[rows].sum()), delay, computing)
            return found if most >= cores - computing else min(found, most)
    return float(np.clip(most, 0.0, max(cores - 1, 0.0))) if foreign is not None else 0.0


def consumer(case: Case, consume: np.ndarray, batches: int) -> dict[str, Any]:
    """How the rest of a step uses the CPU, and whether the host runs ahead of a device."""
    mean = float(np.mean(consume))
    if case.analysis.has_gpu:
        host = case.replayed.host_ms / batches if case.replayed is not None else mean
        return {"main_cpu_ms": min(host, mean), "run_ahead": _run_ahead(case)}
    return {"main_cpu_ms": mean, "main_threads": threads(case), "run_ahead": 0}


def _run_ahead(case: Case) -> int:
    """How many steps the host gets ahead of the device: 0 where it waits for its step's own work (``.item()``), 1 where
    for the one before it (a blocking copy queues behind that), else what loops without waits reach before a batch is due."""
    if case.replayed is None:
        return 2
    graph = case.replayed.graph
    waiting = np.flatnonzero(graph.waits_for >= 0)
    target = graph.waits_for[waiting]
    done = np.cumsum(graph.duration)
    total = np.bincount(graph.owner, weights=graph.duration, minlength=graph.steps)
    before = np.concatenate(([0.0], np.cumsum(total)[:-1]))
    late = done[target] - before[graph.owner[target]] >= 0.5 * total[graph.owner[target]]
    own = late & (graph.owner[target] == graph.step[waiting])
    if np.unique(graph.step[waiting[own]]).size > 0.5 * graph.steps:
        return 0
    return 1 if np.unique(graph.step[waiting]).size > 0.5 * graph.steps else 2


def threads(case: Case) -> int:
    """Cores that the training process keeps busy while it computes: by its CPU use, at most its intra-op threads."""
    log = case.analysis.run_log
    given = log.process.get("threads") if log is not None else None
    most = given.get("intraop") if isinstance(given, dict) else None
    used, waiting = case.signals.number("machine.main_cpu"), case.signals.number("phase.load") or 0.0
    if not isinstance(most, int) or most < 1:
        return 1
    if used is None or waiting >= 0.95:
        return most
    return int(np.clip(round(used / (1 - waiting)), 1, most))


def limits_of(case: Case, cores: float, size: float | None) -> model.Limits:
    log = case.analysis.run_log
    host = case.analysis.host_log
    free = shm = rss = None
    if host is not None:
        known = host.mem_available[np.isfinite(host.mem_available)]
        free = float(known.min()) if known.size else None
    if log is not None:
        shared = log.process.get("dev_shm_bytes")
        shm = float(shared) if isinstance(shared, int | float) else None
        grown = log.fetches.rss[np.isfinite(log.fetches.rss)]
        rss = float(np.median(grown)) if grown.size and (log.fetches.worker >= 0).any() else None
    kind = case.analysis.settings.get("dataset_kind")
    shards = bool(case.analysis.settings.get("shards")) if kind == "iterable" else None
    return model.Limits(
        cores=cores, ram_free=free, worker_rss=rss, shm_bytes=shm, bytes_per_batch=size or 0.0, shards=shards
    )
