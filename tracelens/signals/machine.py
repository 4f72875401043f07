"""Signals about the machine: cores, how busy they are and with whom, storage waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.bundle import UNSHARED
from tracelens.ingest.tables import HostLog, ProcessTable
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals

LOG = "host log"
_AT_WORK = 1.0  # percent of a core
_NAMES = (
    "machine.system_cpu", "machine.iowait", "machine.main_cpu", "machine.worker_cpu", "machine.workers", "machine.affinity",
    "machine.quota_cores", "machine.throttled", "machine.main_threads", "machine.worker_threads", "machine.run_delay",
    "machine.dev_shm_used_share", "machine.memory_used_share", "machine.swap_used", "machine.psi_io", "machine.psi_memory",
    "machine.worker_read_bytes_s", "machine.network_storage", "machine.foreign_cores", "load.worker_imbalance",
)  # fmt: skip


def machine_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``machine.*`` from the host log; the core count from the settings where no log has it."""
    whole = analysis.whole_host_log
    if whole is not None:
        out.add("machine.foreign_cores", foreign_cores(whole), "cores", "host log (whole run)")
    _pair(analysis.run_log.pair_speeds if analysis.run_log is not None else (), out)
    host_log_signals(analysis.host_log, analysis.settings.get("cpu_count"), analysis.rank, out)
    whole = analysis.whole_host_log
    usual, most = _worker_cpu(whole, analysis.rank) if whole is not None and len(whole) else (None, None)
    why = "no host log of the whole run, or no worker process in it"
    out.add("machine.worker_cpu_usual", usual, "cores", LOG, why)
    out.add("machine.worker_cpu_most", most, "cores", LOG, why)


_AGREE = 1.05  # two looks that differ by more were disturbed by something else


def _pair(looks: Sequence[float], out: Signals) -> None:
    """How fast two CPUs are together (disturbances only slow them down, so the best look is nearest), and whether they
    share a core: said where it takes no second look, or two agree."""
    best = max(looks, default=None)
    source, why = "measured before and after the job", "needs a recorded bundle"
    out.add("machine.pair_speed", best, "ratio", source, why)
    shared: bool | None = None
    if best is not None and best >= UNSHARED:
        shared = False
    elif len(looks) > 1 and max(looks) <= _AGREE * min(looks):
        shared = True
    out.add("machine.shared_core", shared, None, source, why if best is None else "no two looks agree")


def host_log_signals(log: HostLog | None, count: object, rank: int | None, out: Signals) -> None:
    """What a host log says; ``count`` is the number of cores where the log does not have it."""
    if log is not None and len(log):
        _sampled(log, out, rank)
        cores = _mean(log.cpu_count)
        count = int(cores) if cores else count
    out.missing("no host log (a recorded bundle or --host-log)", *_NAMES)
    out.add(
        "machine.cores",
        count if isinstance(count, int) else None,
        "count",
        LOG,
        "the core count was not recorded",
    )
    usable = [
        v
        for v in (
            out.number("machine.cores"),
            out.number("machine.affinity"),
            out.number("machine.quota_cores"),
        )
        if v
    ]
    out.add(
        "machine.usable_cores",
        min(usable) if usable else None,
        "count",
        LOG,
        "the core count was not recorded",
    )


def _worker_cpu(log: HostLog, rank: int | None) -> tuple[float | None, float | None]:
    """CPU use of a worker, the mean over workers: its median and its highest over the samples in which they work at all.

    The highest is seen where nothing stops them, as while they fill their queues at the start: it tells how much of their
    work is computing.
    """
    workers = _of_rank(log.processes, rank).role_is("worker")
    workers = workers.take(np.isfinite(workers.cpu_percent))
    count = np.bincount(workers.row, minlength=len(log))
    total = np.bincount(workers.row, weights=workers.cpu_percent, minlength=len(log))
    each = total[count > 0] / count[count > 0]
    each = each[each >= _AT_WORK]
    return (float(np.median(each)) / 100, float(each.max()) / 100) if each.size else (None, None)


def _of_rank(processes: ProcessTable, rank: int | None) -> ProcessTable:
    return processes.take((processes.rank == rank) | (processes.rank < 0)) if rank is not None else processes


def _mean(values: Any) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _sampled(log: HostLog, out: Signals, rank: int | None) -> None:
    def share(name: str, value: float | None, scale: float = 100.0) -> None:
        out.add(name, None if value is None else value / scale, "share", LOG)

    share("machine.system_cpu", _mean(log.system_cpu_percent))
    share("machine.iowait", _mean(log.iowait_percent))
    share("machine.psi_io", _mean(log.psi_io))
    share("machine.psi_memory", _mean(log.psi_memory))
    processes = log.processes
    mine = _of_rank(processes, rank)
    main, workers = mine.role_is("main"), mine.role_is("worker")
    out.add("machine.main_cpu", _scaled(_mean(main.cpu_percent)), "cores", LOG)
    out.add("machine.main_threads", _mean(main.num_threads), "count", LOG)
    counts = np.bincount(workers.row, minlength=len(log)) if len(workers) else np.zeros(len(log))
    # new processes are looked for now and then only, so that the first samples of a worker's life miss it
    seen = counts[counts > 0]
    number = float(np.median(seen)) if seen.size else 0.0
    out.add("machine.workers", number if len(processes) else None, "count", LOG)
    out.add(
        "machine.worker_cpu", _scaled(_mean(workers.cpu_percent)), "cores", LOG, "no worker process was seen"
    )
    each = [_mean(workers.cpu_percent[workers.pid == pid]) for pid in np.unique(workers.pid)]
    loads = np.array([v for v in each if v is not None])
    uneven = (
        float(loads.max() / max(np.median(loads), 1.0)) if loads.size >= 2 and loads.max() >= 50 else None
    )
    out.add(
        "load.worker_imbalance", uneven, "ratio", LOG, "fewer than two workers were seen, or none is busy"
    )
    out.add("machine.worker_threads", _mean(workers.num_threads), "count", LOG, "no worker process was seen")
    delay = _mean(mine.run_delay_share)
    out.add("machine.run_delay", delay, "cores", LOG, "no run-queue delays in the log")
    affinity = main.affinity_count[np.isfinite(main.affinity_count)]
    worker_affinity = workers.affinity_count[np.isfinite(workers.affinity_count)]
    both = [float(a.min()) for a in (affinity, worker_affinity) if a.size]
    out.add("machine.affinity", min(both) if both else None, "count", LOG)
    out.add("machine.quota_cores", _mean(log.quota_cores), "count", LOG, "no cgroup quota")
    periods, throttled = _growth(log.nr_periods), _growth(log.nr_throttled)
    out.add(
        "machine.throttled",
        throttled / periods if periods and throttled is not None else None,
        "share",
        LOG,
        "no cgroup quota",
    )
    share("machine.dev_shm_used_share", _mean(log.dev_shm_used / log.dev_shm_total), 1.0)
    share("machine.memory_used_share", _mean(1 - log.mem_available / log.mem_total), 1.0)
    out.add("machine.swap_used", _mean(log.swap_used), "bytes", LOG)
    out.add("machine.worker_read_bytes_s", _read_rate(mine), "bytes/s", LOG)
    out.add("machine.network_storage", log.network_storage, None, LOG, "no input file was seen open")
    if out.value("machine.foreign_cores") is None:
        out.add(
            "machine.foreign_cores",
            foreign_cores(log),
            "cores",
            LOG,
            "not all of the job's processes were sampled",
        )


def foreign_cores(log: HostLog) -> float | None:
    """Cores that processes outside the job kept busy, on average; None where no sample knows all of the job's own."""
    processes = log.processes
    count = np.bincount(processes.row, minlength=len(log))
    known = np.bincount(processes.row, weights=np.isfinite(processes.cpu_percent), minlength=len(log))
    own = np.bincount(processes.row, weights=np.nan_to_num(processes.cpu_percent), minlength=len(log))
    rest = (log.system_cpu_percent * log.cpu_count - own) / 100
    return _mean(np.maximum(rest[(count > 0) & (known == count)], 0.0))


def _scaled(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _growth(counter: Any) -> float | None:
    known = counter[np.isfinite(counter)]
    return float(known[-1] - known[0]) if known.size >= 2 else None


def _read_rate(processes: ProcessTable) -> float | None:
    """Bytes a second that all the job's processes together read."""
    total = 0.0
    seen = False
    for pid in np.unique(processes.pid):
        rows = processes.take((processes.pid == pid) & np.isfinite(processes.read_bytes))
        if len(rows) >= 2 and rows.t_ns[-1] > rows.t_ns[0]:
            total += max(float(rows.read_bytes[-1] - rows.read_bytes[0]), 0.0) / (
                (rows.t_ns[-1] - rows.t_ns[0]) / 1e9
            )
            seen = True
    return total if seen else None
