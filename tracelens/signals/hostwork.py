"""Signals about the host: dispatch, Python, synchronisation, allocation, the optimizer, conversions, start-up."""

from __future__ import annotations

import numpy as np

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace import dialects
from tracelens.trace.intervals import EMPTY, Intervals
from tracelens.trace.tables import Device, Host

TRACE = "trace"
LONG_PYTHON_NS = (
    100_000  # a pause between operators longer than this is work of its own, not interpreter overhead
)
_SLOW_CALL_NS = 500_000
_FIRST_USE = 50  # a call this many times the median of its kind loads, compiles or initialises something


def host_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``host.*`` in ms a step of starved host time, split by what the launching thread did; ``dispatch.*`` and ``sync.*``."""
    phases, activity = analysis.phases, analysis.activity
    starved = phases.starved
    parts = {name: part.intersect(starved) for name, part in phases.host_parts.items()}
    python = parts["python"]
    lengths = python.end - python.start
    long = Intervals(python.start[lengths >= LONG_PYTHON_NS], python.end[lengths >= LONG_PYTHON_NS])
    # the short gaps before a launch are what launching costs; where nothing is launched, all of it is Python
    short = python.total - long.total if analysis.has_gpu else 0.0
    out.add("host.python_ms", analysis.per_step_ms(python.total - short), "ms", TRACE)
    first_use = first_use_time(analysis).intersect(parts["dispatch"])
    dispatch = parts["dispatch"].total + short - first_use.total
    out.add("host.dispatch_ms", analysis.per_step_ms(dispatch), "ms", TRACE)
    out.add("startup.first_use_ms", analysis.per_step_ms(first_use.total), "ms", TRACE)
    out.add("host.optimizer_ms", analysis.per_step_ms(parts["optimizer"].total), "ms", TRACE)
    out.add("host.cast_ms", analysis.per_step_ms(parts["cast"].total), "ms", TRACE)
    out.add("host.allocation_ms", analysis.per_step_ms(parts["allocation"].total), "ms", TRACE)
    out.add(
        "host.saving_ms", analysis.per_step_ms(phases.parts["host"].intersect(starved).total), "ms", TRACE
    )
    out.add("host.queue_gap_ms", analysis.per_step_ms(phases.queued.total), "ms", TRACE)
    allocations = _inside(analysis, activity.allocation_calls)
    out.add("host.allocation_calls", float(allocations) / analysis.step_count, "count", TRACE)
    _dispatch(analysis, out)
    _synchronisation(analysis, out)
    _startup(analysis, out)
    _stalls(analysis, out)
    if not analysis.has_gpu:
        share = phases.shares()
        out.add("host.cpu_compute_share", share["compute"], "share", TRACE)
    else:
        out.missing("the run uses a GPU", "host.cpu_compute_share")


def _inside(analysis: RankAnalysis, rows: np.ndarray) -> int:
    start = analysis.activity.host.start[rows]
    return int(((start >= analysis.window[0]) & (start < analysis.window[1])).sum())


def _dispatch(analysis: RankAnalysis, out: Signals) -> None:
    if not analysis.has_gpu:
        out.missing(
            "no GPU work in the trace",
            "dispatch.kernels",
            "dispatch.kernel_us",
            "dispatch.launch_us",
            "dispatch.optimizer_kernels",
        )
        return
    device, host = analysis.activity.device, analysis.activity.host
    kernels = analysis.in_window & (device.kind <= Device.COMMUNICATION)
    out.add("dispatch.kernels", float(analysis.step_kernels.mean()), "count", TRACE)
    if kernels.any():
        out.add("dispatch.kernel_us", float(np.mean((device.end - device.start)[kernels])) / 1e3, "us", TRACE)
    launches = np.unique(device.launch[kernels & (device.launch >= 0)])
    if launches.size:
        spent = (host.end - host.start)[launches]
        out.add("dispatch.launch_us", float(np.median(spent)) / 1e3, "us", TRACE)
        in_optimizer = analysis.activity.optimizer.covers(host.start[launches])
        out.add("dispatch.optimizer_kernels", float(in_optimizer.sum()) / analysis.step_count, "count", TRACE)
    out.missing("no kernel in the steady window", "dispatch.kernel_us")
    out.missing("launches were not recorded", "dispatch.launch_us", "dispatch.optimizer_kernels")


def _synchronisation(analysis: RankAnalysis, out: Signals) -> None:
    """Waits for the GPU, and the starved time that follows because nothing was queued behind the wait."""
    names = ("sync.count", "sync.saving_ms", "sync.wait_ms")
    if not analysis.has_gpu:
        out.missing("no GPU work in the trace", *names)
        return
    activity, low, high = analysis.activity, *analysis.window
    host, calls = activity.host, analysis.copies
    # a copy to the host, or from pageable memory, that lasts beyond what its bytes explain waits like a synchronisation
    waits = calls.row[(calls.end - calls.start) > 2 * calls.explained]
    rows = np.unique(np.concatenate((activity.sync_calls, waits)))
    rows = rows[(host.end[rows] > low) & (host.start[rows] < high)]
    small_d2h = calls.row[
        (calls.kind == Device.D2H)
        & (calls.bytes >= 0)
        & (calls.bytes < 65536)
        & (calls.end > low)
        & (calls.start < high)
    ]
    rows = np.unique(np.concatenate((rows, small_d2h)))
    # a call that returns at once (nothing was pending) or ends the window's last step waits for nobody
    out.add("sync.count", float(rows.size) / analysis.step_count, "count", TRACE)
    out.add("sync.wait_ms", analysis.per_step_ms(float((host.end - host.start)[rows].sum())), "ms", TRACE)
    gaps = analysis.phases.starved
    covering = activity.rows_to_intervals(rows)
    # the gap was opened by the wait: the GPU ran dry while, or just as, the host stood in it
    opened = (
        covering.covers(gaps.start) | covering.covers(gaps.start - 1)
        if len(gaps)
        else np.empty(0, dtype=bool)
    )
    saving = Intervals(gaps.start[opened], gaps.end[opened]).intersect(analysis.phases.parts["host"])
    out.add("sync.saving_ms", analysis.per_step_ms(saving.total), "ms", TRACE)


def _startup(analysis: RankAnalysis, out: Signals) -> None:
    """``startup.share``: share of the recording, on the host, before the first steady step."""
    steps = analysis.steps
    if not steps.count:
        out.missing("no steps to tell start-up from the rest", "startup.share")
        return
    low = analysis.tables.extent[0]
    before = int(steps.begin[steps.first]) - low
    out.add("startup.share", before / max(int(steps.end[steps.last]) - low, 1), "share", TRACE)


def first_use_time(analysis: RankAnalysis) -> Intervals:
    """Time in launch and load calls that last far longer than their kind: kernels loaded, compiled or tuned."""
    host = analysis.activity.host
    calls = (host.kind == Host.RUNTIME) & analysis.activity.on_launching_thread
    rows = np.flatnonzero(calls & (host.end > analysis.window[0]) & (host.start < analysis.window[1]))
    wanted = analysis.activity.matching(dialects.LAUNCH_CALLS) | analysis.activity.matching(
        dialects.MODULE_CALLS
    )
    launches = rows[wanted[rows]]
    if launches.size < 3:
        return EMPTY
    spent = host.end[launches] - host.start[launches]
    return analysis.activity.rows_to_intervals(
        launches[(spent > _FIRST_USE * np.median(spent)) & (spent > _SLOW_CALL_NS)]
    )


def _stalls(analysis: RankAnalysis, out: Signals) -> None:
    """Steps in which the host holds the GPU up far longer than usual: checkpoints, validation, logging, collections."""
    steps = analysis.steps
    if steps.steady < 5:
        out.missing(
            "fewer than five steady steps",
            "host.stall_ms",
            "host.stall_steps",
            "host.stall_of",
            "host.stall_period",
        )
        return
    idle = analysis.phases.parts["host"].intersect(analysis.phases.starved)
    held = idle.measure(steps.edges[:-1], steps.edges[1:]).astype(float)
    usual, typical = float(np.median(held)), float(np.median(steps.durations))
    stalled = np.flatnonzero(held > usual + 0.5 * typical)
    frequent = stalled.size > 0.34 * held.size
    excess = float((held[stalled] - usual).sum()) if not frequent else 0.0
    out.add("host.stall_ms", analysis.per_step_ms(excess), "ms", TRACE)
    out.add("host.stall_steps", 0 if frequent else int(stalled.size), "count", TRACE)
    out.add("host.stall_of", int(held.size), "count", TRACE)
    spacing = np.diff(stalled)
    regular = spacing.size >= 2 and spacing.max() - spacing.min() <= 1 and not frequent
    out.add(
        "host.stall_period",
        float(np.median(spacing)) if regular else None,
        "steps",
        TRACE,
        "stalls do not recur at one interval",
    )
