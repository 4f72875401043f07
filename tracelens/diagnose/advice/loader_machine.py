"""The cores that a job may use, who else computes on them, and what else limits its workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.diagnose.advice.case import Case
from tracelens.signals.deliveries import computing_beside, fetching_beside
from tracelens.signals.signal import Signals
from tracelens.whatif import loader_choice as choice
from tracelens.whatif.graph import HOST_WORK, LOAD
from tracelens.whatif.loader_fit import busy_elsewhere
from tracelens.whatif.loader_inputs import LoaderSettings, Machine, main_slowdown
from tracelens.whatif.replay import Scenario

_FULL = 0.7  # of the cores: what a job gets of them that wants more than all
_SLOWER = 1.1
_READING, _UNSEEN = (
    0.5,
    2,
)  # from this share of reading on: at most so many times the readers that storage was seen to serve
ASSUMED_CORES = 8.0  # where nobody recorded how many: a small share of a training host


def usable_cores(signals: Signals) -> tuple[float, bool]:
    cores = signals.number("machine.usable_cores")
    return (float(cores), True) if cores else (ASSUMED_CORES, False)


def elsewhere(case: Case, cores: float, settings: LoaderSettings) -> float:
    """Always runnable threads of other processes: from how long the fetches waited for a core, and at most as many as
    explain the cores that the host's samples saw others use."""
    foreign = case.signals.number("machine.foreign_cores")
    log = case.analysis.run_log
    if log is not None:
        made = log.fetches
        # the first batch of each worker meets workers that still start
        rows = (
            np.isfinite(made.cpu_ms) & np.isfinite(made.run_delay_ms) & (made.batch >= settings.num_workers)
        )
        beside = computing_beside(log.deliveries, made, rows) if rows.sum() >= 3 else None
        if beside is not None:
            computing = max(1.0, beside)
            delay = float(made.run_delay_ms[rows].sum())
            found = busy_elsewhere(cores, float(made.cpu_ms[rows].sum()), delay, computing)
            return found if foreign is None else min(found, threads_of(foreign, cores, computing))
    return float(np.clip(foreign, 0.0, max(cores - 1, 0.0))) if foreign is not None else 0.0


def threads_of(used: float, cores: float, running: float) -> float:
    """Always runnable threads that get ``used`` cores beside ``running`` others: as many, or under fair sharing of too
    few cores those whose share it is."""
    if used + running <= cores:
        return used
    return used * running / max(cores - used, 0.01 * cores)


def hyper_threads(machine: Machine, signals: Signals) -> tuple[Machine, Machine | None]:
    """The machine with its hyper-threads, where the recorder measured how fast two CPUs are together; and what it may be at
    best, where it is not sure that these share a core."""
    pair = signals.number("machine.pair_speed")
    if pair is None or signals.value("machine.shared_core") is False:
        return machine, None
    paired = replace(machine, threads_per_core=2, smt_yield=max(2 * pair - 1, 0.05))
    return paired, None if signals.value("machine.shared_core") else machine


def workers_beside(case: Case) -> float:
    """How many workers compute on average while the training does; 0 where that was not recorded."""
    log = case.analysis.run_log
    if log is None or not (log.fetches.worker >= 0).any():
        return 0.0
    computing = case.signals.number("load.service_cpu_share")
    running = min((computing or 1.0) + (case.signals.number("load.run_delay_share") or 0.0), 1.0)
    return (fetching_beside(log.deliveries, log.fetches) or 0.0) * running


def consumer(case: Case, consume: np.ndarray, batches: int) -> dict[str, Any]:
    """How the rest of a step uses the CPU, and whether the host runs ahead of a device."""
    mean = float(np.mean(consume))
    if case.analysis.has_gpu:
        host = case.replayed.host_ms / batches if case.replayed is not None else mean
        return {
            "main_cpu_ms": min(host, mean),
            "host_share": host_share(case, mean * batches),
            "run_ahead": _run_ahead(case),
        }
    return {"main_cpu_ms": mean, "main_threads": threads(case), "run_ahead": 0}


def host_share(case: Case, consume_ms: float) -> float:
    """How much of a step with every batch ready grows with the host's own work: 0 where the GPU hides it, 1 where all."""
    if case.replayed is None:
        return 0.0
    slower = Scenario("batches ready, host a tenth slower", _host_times(_SLOWER), loader=0.0, call=_SLOWER)
    means = case.replayed.means([slower], later=case.rehearsal)
    if means is None:
        return 0.0
    return float(np.clip((means[0] / 1e6 / consume_ms - 1) / (_SLOWER - 1), 0.0, 1.0))


def relieved(case: Case, cores: float, workers: int, consume_ms: float) -> float:
    """How much of a step with every batch ready goes once the main process shares its ``cores`` with no ``workers``."""
    if case.replayed is None:
        return 0.0
    factor = 1 / main_slowdown(workers, cores)
    alone = Scenario(f"batches ready, host work x {factor:.3f}", _host_times(factor), loader=0.0, call=factor)
    means = case.replayed.means([alone], later=case.rehearsal)
    return float(np.clip(1 - means[0] / 1e6 / consume_ms, 0.0, 1.0)) if means else 0.0


def is_crowded(case: Case, cores: float, settings: LoaderSettings, used: float) -> bool:
    """Whether far more workers than cores want these: ``used`` cores' worth of computing is what they get together.

    What they want is that and the time in which they were runnable and had no core, where that was recorded.
    """
    main, log = case.signals.number("machine.main_cpu") or 0.0, case.analysis.run_log
    wanted = used
    if log is not None:
        known = np.isfinite(log.fetches.cpu_ms) & np.isfinite(log.fetches.run_delay_ms)
        computing, delay = log.fetches.cpu_ms[known].sum(), log.fetches.run_delay_ms[known].sum()
        wanted *= 1.0 + float(delay) / max(float(computing), 1e-9)
    return settings.num_workers + 1 >= 2 * cores and wanted + main >= _FULL * cores


def _host_times(factor: float) -> tuple[tuple[int, float], ...]:
    """All host work but loading, which is free, times a factor."""
    return tuple((kind, 0.0 if kind == LOAD else factor) for kind in range(len(HOST_WORK)))


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
    most = log.intraop_threads if log is not None else None
    used, waiting = case.signals.number("machine.main_cpu"), case.signals.number("phase.load") or 0.0
    if most is None:
        return 1
    if used is None or waiting >= 0.95:
        return most
    return int(np.clip(round(used / (1 - waiting)), 1, most))


def limits_of(case: Case, cores: float, size: float | None, reading: float = 0.0) -> choice.Limits:
    """What the number of workers must respect. ``size``: bytes of a batch; ``reading``: share of making it that waits."""
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
    workers = case.analysis.settings.get("num_workers")
    readers = None
    if isinstance(workers, int) and workers > 0 and reading >= _READING:
        readers = _UNSEEN * workers
    return choice.Limits(
        readers=readers,
        cores=cores,
        ram_free=free,
        worker_rss=rss,
        shm_bytes=shm,
        bytes_per_batch=size or 0.0,
        shards=shards,
    )
