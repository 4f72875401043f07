"""Signals about the time before the first step: processes of the job that crowd the cores while data are prepared."""

from __future__ import annotations

import numpy as np

from tracelens.ingest.runlog import RunLog
from tracelens.ingest.tables import HostLog
from tracelens.signals.signal import Signals

HOST = "host log (before the first step)"
CROWDING = ("startup.crowded_s", "startup.threads_per_core")
_LONGEST_NS = 5_000_000_000  # between two samples: beyond, nobody looked


def crowding_signals(log: RunLog, host: HostLog | None, out: Signals) -> None:
    """``startup.crowded_s``: how long at least one thread for each usable core waited for one; ``startup.threads_per_core``:
    the job's threads in that time."""
    found = _crowding(log, host) if host is not None and len(host) and len(log.steps) else None
    if found is not None:
        seconds, threads = found
        out.add("startup.crowded_s", seconds, "s", HOST)
        out.add("startup.threads_per_core", threads, "count", HOST, "the cores were never crowded")
    out.missing("no host samples from before the first step", *CROWDING)


def _crowding(log: RunLog, host: HostLog) -> tuple[float, float | None] | None:
    cores = log.settings.get("cpu_count") or float(np.nanmax(host.cpu_count, initial=0.0))
    early = host.processes.take(host.processes.t_ns < log.steps.t0[0])
    asked = np.isfinite(early.run_delay_share)
    if not cores or not asked.any():
        return None
    rows, place = np.unique(early.row[asked], return_inverse=True)
    waiting = np.bincount(place, weights=early.run_delay_share[asked])
    threads = np.bincount(early.row, weights=np.nan_to_num(early.num_threads), minlength=len(host))[rows]
    times = host.t_ns[rows]
    length = np.minimum(np.diff(times, prepend=times[0]), _LONGEST_NS)
    crowded = waiting >= cores
    if not crowded.any():
        return 0.0, None
    return float(length[crowded].sum()) / 1e9, float(np.median(threads[crowded])) / cores
