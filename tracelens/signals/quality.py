"""Signals about the recording itself: what is missing, repaired, cut off, or too little."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace.dialects import LAUNCH_CALLS
from tracelens.trace.tables import Device, Host

TRACE = "trace"


def quality_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``quality.*``: counts and shares that the quality rules test."""
    report, steps, activity = analysis.tables.report, analysis.steps, analysis.activity
    out.add("quality.steps", steps.steady, "count", TRACE)
    out.add("quality.step_source", steps.source or "none", None, TRACE)
    out.add("quality.truncated", report.truncated, None, TRACE)
    out.add("quality.skipped_events", report.skipped, "count", TRACE)
    out.add("quality.repaired_events", report.repaired, "count", TRACE)
    out.add("quality.zero_time_events", report.zero_time, "count", TRACE)
    out.add("quality.clock_shift_ms", report.clock_shift_ns / 1e6, "ms", TRACE)
    out.add("quality.graph_launches", activity.graph_launches, "count", TRACE)
    out.add("quality.cpu_only", not analysis.has_gpu, None, TRACE)
    out.add("quality.expects_gpu", expects_gpu(analysis), None, TRACE)
    out.add("quality.other_gpus", activity.other_gpus, "count", TRACE)
    out.add("quality.other_share", analysis.phases.shares()["other"], "share", TRACE)
    out.add("quality.queued_share", analysis.phases.queued.total / max(analysis.length, 1), "share", TRACE)
    stacks = bool((activity.host.kind == Host.PYTHON).any())
    out.add("quality.stacks", stacks, None, TRACE)
    _coverage(analysis, out)
    durations = steps.durations.astype(float)
    if steps.steady >= 2 and durations.mean() > 0:
        out.add("quality.step_error", mean_error(durations), "ratio", TRACE)
    out.missing("fewer than two steady steps", "quality.step_error")


def mean_error(values: NDArray[np.float64]) -> float:
    """Relative standard error of a mean."""
    return float(values.std() / values.mean() / values.size**0.5)


def expects_gpu(analysis: RankAnalysis) -> bool:
    """Whether a trace without kernels is of a job with a GPU: it launches, the file lists devices, or a GPU log shows work."""
    if analysis.has_gpu or bool(analysis.activity.calls(LAUNCH_CALLS).size):
        return True
    if analysis.tables.metadata.get("deviceProperties"):
        return True
    log = analysis.gpu_log
    used = log.utilization_gpu[np.isfinite(log.utilization_gpu)] if log is not None else np.empty(0)
    return bool(used.size and used.mean() > 0.02)


def _coverage(analysis: RankAnalysis, out: Signals) -> None:
    """``coverage``: share of launches in the window whose kernel was recorded; ``unlaunched``: kernels without a launch."""
    activity = analysis.activity
    device, host = activity.device, activity.host
    launched = activity.calls(LAUNCH_CALLS)
    rows = launched[
        (host.start[launched] >= analysis.window[0])
        & (host.start[launched] < analysis.window[1])
        & (host.corr[launched] > 0)
    ]
    if not rows.size:
        out.missing("no launch call in the steady window", "quality.coverage")
    else:
        out.add("quality.coverage", float(np.isin(host.corr[rows], device.corr).mean()), "share", TRACE)
    kernels = analysis.in_window & (device.kind <= Device.COMMUNICATION)
    if kernels.any():
        first = host.start[0] if len(host) else 0
        unlaunched = kernels & (device.launch < 0) & (device.start > first)
        out.add("quality.unlaunched_share", float(unlaunched.sum() / kernels.sum()), "share", TRACE)
    out.missing("no kernel in the steady window", "quality.unlaunched_share")
