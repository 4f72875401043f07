"""Signals about loading: how long the GPU waits for data, where samples are made, and how busy those places are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace.intervals import Intervals

TRACE, SETTINGS, HOST = "trace", "loader settings", "host log"
_STALL = 0.1  # a step counts as stalled where loading takes more than this share of the mean step


def loader_mode(analysis: RankAnalysis) -> str | None:
    """``main_process`` or ``workers``, from the profiler's range name, else the settings; None where neither says."""
    activity = analysis.activity
    names = [activity.tables.names[i] for i in np.unique(activity.host.name[activity.next_events])]
    if any("_SingleProcess" in name for name in names):
        return "main_process"
    if any("_MultiProcessing" in name for name in names):
        return "workers"
    workers = analysis.settings.get("num_workers")
    if isinstance(workers, int) and not isinstance(workers, bool):
        return "workers" if workers > 0 else "main_process"
    return None


def loader_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``load.*`` and ``loader.*``: waits from the trace, arguments from the settings, load on cores from the host log."""
    for key in (
        "num_workers",
        "batch_size",
        "pin_memory",
        "prefetch_factor",
        "persistent_workers",
        "dataset_len",
    ):
        value = analysis.settings.get(key)
        known = isinstance(value, int | float | str | bool)
        out.add(
            f"loader.{key}",
            value if known else None,
            None,
            SETTINGS,
            "the DataLoader's arguments were not recorded (--loader)",
        )
    mode = loader_mode(analysis)
    out.add("load.mode", mode, None, TRACE, "no DataLoader events and no settings")
    _waits(analysis, out)
    _first_kernel(analysis, out)
    _epochs(analysis, out)


def _waits(analysis: RankAnalysis, out: Signals) -> None:
    activity, phases, steps = analysis.activity, analysis.phases, analysis.steps
    if not activity.next_events.any():
        out.missing(
            "the trace has no DataLoader events",
            "load.saving_ms",
            "load.next_share",
            "load.stalled_share",
            "load.burst",
            "load.max_wait_ms",
        )
        return
    load = phases.parts["load"]
    exposed = load.intersect(phases.starved) if analysis.has_gpu else load
    out.add("load.saving_ms", analysis.per_step_ms(exposed.total), "ms", TRACE)
    out.add(
        "load.next_share",
        activity.next.clip(*analysis.window).total / max(analysis.length, 1),
        "share",
        TRACE,
    )
    if steps.steady < 2:
        out.missing("fewer than two steady steps", "load.stalled_share", "load.burst", "load.max_wait_ms")
        return
    waits = load.measure(steps.edges[:-1], steps.edges[1:]).astype(float)
    mean = float(steps.durations.mean())
    out.add("load.stalled_share", float((waits > _STALL * mean).mean()), "share", TRACE)
    out.add("load.burst", burst(waits), "ratio", TRACE, "no wait in the loader")
    out.add("load.max_wait_ms", float(waits.max()) / 1e6, "ms", TRACE)


def burst(waits: NDArray[np.float64]) -> float | None:
    """Coefficient of variation of the per-step waits: 0 even, above 1 a few steps do all the waiting; None without waits."""
    mean = float(waits.mean()) if waits.size else 0.0
    return float(waits.std()) / mean if mean > 0 else None


def _first_kernel(analysis: RankAnalysis, out: Signals) -> None:
    """``load.before_first_kernel_ms``: starved host time from a step's begin to its first launch, outside ``next``."""
    steps, activity = analysis.steps, analysis.activity
    if not analysis.has_gpu or not steps.count or steps.source == "kernel_sequence":
        out.missing(
            "needs a GPU and steps that a marker, an optimizer or a loader bounds",
            "load.before_first_kernel_ms",
        )
        return
    device, host = activity.device, activity.host
    joined = np.flatnonzero(
        (device.launch >= 0) & (steps.owner >= steps.first) & (steps.owner <= steps.last) & (device.kind <= 1)
    )
    first = np.full(steps.count, np.iinfo(np.int64).max)
    np.minimum.at(first, steps.owner[joined], host.start[device.launch[joined]])
    chosen = np.arange(steps.first, steps.last + 1)
    chosen = chosen[first[chosen] < np.iinfo(np.int64).max]
    waiting = analysis.phases.parts["host"].intersect(analysis.phases.starved)
    copies = analysis.copies
    waiting = waiting.subtract(Intervals.of(copies.start, copies.end))
    out.add(
        "load.before_first_kernel_ms",
        analysis.per_step_ms(float(waiting.measure(steps.begin[chosen], first[chosen]).sum())),
        "ms", TRACE,
    )  # fmt: skip


def _epochs(analysis: RankAnalysis, out: Signals) -> None:
    """``load.epoch_start_ms``: loading that recurs once an epoch, per step, where epochs are shorter than the trace."""
    length, batch = analysis.settings.get("dataset_len"), analysis.batch_size
    name = "load.epoch_start_ms"
    if not isinstance(length, int) or not batch:
        out.missing("needs dataset_len and batch_size", name)
        return
    epoch = -(-length // batch)
    steps = analysis.steps
    if steps.steady < 3 or epoch > steps.steady + 1:
        out.missing("an epoch is longer than the trace", name)
        return
    waits = analysis.phases.parts["load"].measure(steps.edges[:-1], steps.edges[1:]).astype(float)
    # the phase of the epoch is where the waits gather; the rest is what an ordinary step waits
    sums = [(float(waits[offset::epoch].mean()), offset) for offset in range(min(epoch, waits.size))]
    peak, offset = max(sums)
    ordinary = float(np.median(np.delete(waits, np.arange(offset, waits.size, epoch)))) if epoch > 1 else 0.0
    out.add(name, max(peak - ordinary, 0.0) / epoch / 1e6, "ms", "trace and loader settings")
