"""Signals about memory: how near its limit it is, and whether it keeps growing, on the GPU and on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import RunLog
from tracelens.ingest.tables import HostLog
from tracelens.signals.signal import Signals

Floats = NDArray[np.float64]

STEPS, HOST = "step log", "host log (whole run)"
_RISES = 3
_EVEN = 0.5
_SAMPLES = 24
_WARM_UP_S = 60.0
_GPU = (
    "gpu.allocated_peak_share", "gpu.reserved_share", "gpu.cached_share", "gpu.memory_full_steps", "gpu.memory_growth_bytes",
)  # fmt: skip
_MACHINE = (
    "machine.memory_full_s", "machine.memory_growth_bytes", "machine.recorded_s", "machine.swap_growth_share",
    "load.shm_free_batches",
)  # fmt: skip


def memory_signals(log: RunLog | None, host: HostLog | None, capacity: float | None, out: Signals) -> None:
    """``gpu.*`` memory from the step log, ``machine.*`` from the host samples; ``capacity`` is the GPU's where it is known."""
    if log is not None:
        _device(log, capacity, out)
    out.missing("needs a recorded bundle of a job that uses a GPU", *_GPU)
    if host is not None and len(host):
        _host(host, out)
        _shared(host, out)
    out.missing("needs a recorded bundle with host samples", *_MACHINE)


def steady_rise(values: Floats) -> float | None:
    """How much ``values`` rose over their last three quarters, None unless they rose in each third of these alike.

    What warms up, and the maxima of varying shapes, rise ever more rarely: of n such values a third of the rest
    brings less than one new maximum (ln 2, ln 3/2, ln 4/3). A leak brings many in each, and as much in the last.
    """
    if values.size < _SAMPLES:
        return None
    rest = values[values.size // 4 :]
    thirds = np.array_split(rest, 3)
    levels = np.array([rest[0], *(third[-1] for third in thirds)])
    gains = np.diff(levels)
    often = all(int((np.diff(third) > 0).sum()) >= _RISES for third in thirds)
    if not often or gains.min() <= 0 or gains.min() < _EVEN * gains.max():
        return None
    return float(gains.sum())


def _device(log: RunLog, capacity: float | None, out: Signals) -> None:
    device = log.process.get("device")
    total = device.get("total_memory") if isinstance(device, dict) else None
    limit = float(total) if isinstance(total, int | float) and total > 0 else capacity
    peak, reserved = log.steps.mem_peak, log.steps.mem_reserved
    known = np.isfinite(peak)
    if not known.any() or not limit:
        return
    highest = float(peak[known].max())
    held = reserved[np.isfinite(reserved)]
    most = float(held.max()) if held.size else None
    out.add("gpu.allocated_peak_share", highest / limit, "share", STEPS)
    out.add("gpu.reserved_share", most / limit if most else None, "share", STEPS)
    out.add("gpu.cached_share", max(1 - highest / most, 0.0) if most else None, "share", STEPS)
    rise = steady_rise(peak[known])
    numbers = log.steps.step[known]
    steps = float(numbers[-1] - numbers[numbers.size // 4]) if rise is not None else 0.0
    each = rise / steps if rise is not None and steps > 0 else None
    reason = "memory does not keep growing, or too few steps were recorded"
    out.add("gpu.memory_growth_bytes", each, "bytes", STEPS, reason)
    out.add(
        "gpu.memory_full_steps", max(limit - highest, 0.0) / each if each else None, "count", STEPS, reason
    )


def _host(log: HostLog, out: Signals) -> None:
    seconds = float(log.t_ns[-1] - log.t_ns[0]) / 1e9
    out.add("machine.recorded_s", seconds, "s", HOST)
    swap, total = log.swap_used[np.isfinite(log.swap_used)], log.mem_total[np.isfinite(log.mem_total)]
    swapped = float(swap[-1] - swap[0]) / float(total[-1]) if swap.size >= 2 and total.size else None
    out.add("machine.swap_growth_share", swapped, "share", HOST, "swap or memory was not sampled")
    rate = _growth_rate(log)
    reason = "the job's memory does not keep growing, or less than a minute was recorded"
    out.add("machine.memory_growth_bytes", 60 * rate if rate else None, "bytes", HOST, reason)
    free = log.mem_available[np.isfinite(log.mem_available)]
    out.add(
        "machine.memory_full_s", float(free[-1]) / rate if rate and free.size else None, "s", HOST, reason
    )


def _growth_rate(log: HostLog) -> float | None:
    """Bytes a second by which the job grows and the machine's available memory shrinks, whichever is less.

    Resident memory counts mapped files, which the kernel may drop at any time; available memory does not miss
    them. Available memory also shrinks for others. Only what both show is the job's own.
    """
    processes = log.processes.take((log.processes.role != "other") & np.isfinite(log.processes.rss))
    if not len(processes):
        return None
    count = np.bincount(processes.row, minlength=len(log))
    total = np.bincount(processes.row, weights=processes.rss, minlength=len(log)).astype(np.float64)
    # only samples that looked at every process can be compared
    rows = np.flatnonzero((count == count.max()) & np.isfinite(log.mem_available))
    if rows.size < _SAMPLES:
        return None
    after = rows[rows.size // 4 :]
    seconds = float(log.t_ns[after[-1]] - log.t_ns[after[0]]) / 1e9
    grown, shrunk = steady_rise(total[rows]), steady_rise(-log.mem_available[rows])
    if grown is None or shrunk is None or seconds < _WARM_UP_S:
        return None
    return min(grown, shrunk) / seconds


def _shared(log: HostLog, out: Signals) -> None:
    """``load.shm_free_batches``: how many more batches /dev/shm had room for when it was fullest."""
    free = log.dev_shm_total - log.dev_shm_used
    known = free[np.isfinite(free)]
    size = out.number("load.batch_bytes")
    out.add(
        "load.shm_free_batches", float(known.min()) / size if known.size and size else None, "count",
        "host log (whole run) and loader log", "the size of a batch or of /dev/shm was not recorded",
    )  # fmt: skip
