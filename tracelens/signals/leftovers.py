"""Signals about work that belongs outside the loop and was left in it: anomaly mode's checks, cuDNN's search for
algorithms, memory pinned anew, synchronisation of the whole device, reads of single values in the optimizer."""

from __future__ import annotations

import re

import numpy as np

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.kernel_names import family
from tracelens.signals.signal import Signals
from tracelens.trace import dialects
from tracelens.trace.intervals import Intervals
from tracelens.trace.tables import Device, Host

TRACE = "trace"
_NODE = re.compile(r"^autograd::engine::evaluate_function")
# what the engine runs on each node's outputs in anomaly mode: isnan (ne before torch 2.0), any, and a read of the result
_CHECK = re.compile(r"^aten::(isnan|ne|any|_is_any_true|item|_local_scalar_dense|is_nonzero)$")
_TEST, _READ = re.compile(r"^aten::(isnan|ne)$"), re.compile(r"^aten::item$")
_CONVOLUTION = re.compile(r"^aten::(cudnn|miopen)_convolution|^aten::convolution_backward$")
_TIMING = re.compile(
    r"^(cuda|hip)(EventSynchronize|EventElapsedTime|StreamSynchronize|DeviceSynchronize)", re.IGNORECASE
)
_WHOLE_DEVICE = re.compile(r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize", re.IGNORECASE)
_ALLOCATES = re.compile(r"HostAlloc|HostMalloc|MallocHost|HostRegister", re.IGNORECASE)
_GPU = (
    "convolution.search_ms", "convolution.search_steps", "kernels.convolution_ms", "sync.device_count", "sync.optimizer_count",
    "host.pin_calls", "host.pin_ms",
)  # fmt: skip


def leftover_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``autograd.*``, ``convolution.search_*``, ``kernels.convolution_ms``, ``sync.*_count`` and ``host.pin_*``, a step."""
    _anomaly(analysis, out)
    if not analysis.has_gpu:
        out.missing("no GPU work in the trace", *_GPU)
        return
    _search(analysis, out)
    _convolutions(analysis, out)
    activity, host = analysis.activity, analysis.activity.host
    whole = _in_steps(analysis, activity.calls(_WHOLE_DEVICE))
    out.add("sync.device_count", whole.size / analysis.step_count, "count", TRACE)
    reads = _in_steps(analysis, np.union1d(activity.sync_calls, _value_reads(analysis)))
    held = activity.optimizer.covers(host.start[reads])
    out.add("sync.optimizer_count", float(held.sum()) / analysis.step_count, "count", TRACE)
    pins = _in_steps(analysis, activity.calls(dialects.HOST_ALLOC_CALLS))
    allocating = activity.matching(_ALLOCATES)
    out.add("host.pin_calls", float(allocating[pins].sum()) / analysis.step_count, "count", TRACE)
    waited = activity.rows_to_intervals(pins).intersect(analysis.phases.starved).clip(*analysis.window)
    out.add("host.pin_ms", analysis.per_step_ms(waited.total), "ms", TRACE)


def _in_steps(analysis: RankAnalysis, rows: np.ndarray) -> np.ndarray:
    """Those host events that begin while the host is in a steady step: its spans, since the GPU's run later, and since the
    profiler's own synchronisation follows the last one."""
    steps = analysis.steps
    low, high = (
        (int(steps.begin[steps.first]), int(steps.end[steps.last])) if steps.steady > 0 else analysis.window
    )
    start = analysis.activity.host.start[rows]
    return np.asarray(rows[(start >= low) & (start < high)])


def _value_reads(analysis: RankAnalysis) -> np.ndarray:
    """Rows of copies to the host of a few bytes: how ``.item()`` and ``bool(tensor)`` read a value."""
    calls = analysis.copies
    return np.asarray(calls.row[(calls.kind == Device.D2H) & (calls.bytes >= 0) & (calls.bytes < 65536)])


def _anomaly(analysis: RankAnalysis, out: Signals) -> None:
    """Outputs of backward nodes that are tested for NaN and read back at once, a step, and the time that takes."""
    activity, host = analysis.activity, analysis.activity.host
    nodes = np.flatnonzero(activity.matching(_NODE))
    if not nodes.size:
        out.missing("the trace has no backward pass", "autograd.nan_checks", "autograd.nan_check_ms")
        return
    backward = activity.rows_to_intervals(nodes)
    rows = np.flatnonzero((host.kind == Host.OPERATOR) & activity.matching(_CHECK))
    rows = _in_steps(analysis, rows[backward.covers(host.start[rows])])
    tested, read = (int(activity.matching(pattern)[rows].sum()) for pattern in (_TEST, _READ))
    checks = min(tested, read)
    out.add("autograd.nan_checks", checks / analysis.step_count, "count", TRACE)
    spent = activity.rows_to_intervals(rows)
    if analysis.has_gpu:
        spent = spent.intersect(analysis.phases.starved)
    out.add(
        "autograd.nan_check_ms",
        analysis.per_step_ms(spent.clip(*analysis.window).total) if checks else 0.0,
        "ms",
        TRACE,
    )


def _search(analysis: RankAnalysis, out: Signals) -> None:
    """Convolutions that time their algorithms: they wait for events inside the operator, which no ordinary one does.

    The step that searches longest is left out: the first of a shape is start-up, what recurs is not.
    """
    activity, steps = analysis.activity, analysis.steps
    host = activity.host
    if not steps.steady:
        out.missing("no steps were found", "convolution.search_ms", "convolution.search_steps")
        return
    rows = np.flatnonzero((host.kind == Host.OPERATOR) & activity.matching(_CONVOLUTION))
    waits = host.start[np.flatnonzero((host.kind == Host.RUNTIME) & activity.matching(_TIMING))]
    waits = np.sort(waits)
    timed = np.searchsorted(waits, host.end[rows]) > np.searchsorted(waits, host.start[rows])
    searching = activity.rows_to_intervals(rows[timed])
    steady = slice(steps.first, steps.last + 1)
    spent = searching.measure(steps.begin[steady], steps.end[steady])
    recurring = float(spent.sum() - spent.max()) if spent.size else 0.0
    out.add("convolution.search_ms", analysis.per_step_ms(recurring), "ms", TRACE)
    out.add("convolution.search_steps", int(np.count_nonzero(spent)), "count", TRACE)


def _convolutions(analysis: RankAnalysis, out: Signals) -> None:
    device, names = analysis.activity.device, analysis.tables.names
    codes = np.unique(device.name[device.kind == Device.KERNEL]).tolist()
    chosen = np.isin(device.name, [code for code in codes if family(names[code]) == "convolution"])
    chosen &= device.kind == Device.KERNEL
    running = Intervals.of(device.start[chosen], device.end[chosen]).clip(*analysis.window)
    out.add("kernels.convolution_ms", analysis.per_step_ms(running.total), "ms", "kernel names")
