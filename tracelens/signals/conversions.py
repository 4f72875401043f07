"""Signals about work that only moves data to another place or order: layouts, copies back, compilation in the loop."""

from __future__ import annotations

import re

import numpy as np

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace.intervals import Intervals
from tracelens.trace.tables import Device

TRACE = "trace"
# cuDNN's own conversions around a convolution whose tensors do not have the layout of its kernel
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw", re.IGNORECASE)
# the ranges that Dynamo and Inductor write while they compile
_COMPILATION = re.compile(r"\(dynamo_timed\)$")
_BULK = 64 * 1024


def conversion_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``kernels.layout_conversion_ms``, ``transfer.exposed_d2h_*`` and ``compile.*``, per steady step."""
    _compilation(analysis, out)
    if not analysis.has_gpu:
        out.missing(
            "no GPU work in the trace", "kernels.layout_conversion_ms", "transfer.exposed_d2h_ms",
            "transfer.bulk_d2h_bytes",
        )  # fmt: skip
        return
    device, window = analysis.activity.device, analysis.window
    layout = analysis.activity.device_matching(_LAYOUT) & (device.kind == Device.KERNEL)
    alone = Intervals.of(device.start[layout], device.end[layout]).clip(*window)
    out.add("kernels.layout_conversion_ms", analysis.per_step_ms(alone.total), "ms", "kernel names")
    back = (device.kind == Device.D2H) & (device.bytes >= _BULK) & analysis.in_window
    exposed = Intervals.of(device.start[back], device.end[back]).intersect(analysis.phases.parts["transfer"])
    unsized = bool(((device.kind == Device.D2H) & (device.bytes < 0)).any())
    reason = "the copies carry no byte counts"
    out.add(
        "transfer.exposed_d2h_ms",
        None if unsized else analysis.per_step_ms(exposed.total),
        "ms",
        TRACE,
        reason,
    )
    out.add(
        "transfer.bulk_d2h_bytes", None if unsized else float(device.bytes[back].sum()) / analysis.step_count,
        "bytes", TRACE, reason,
    )  # fmt: skip


def _compilation(analysis: RankAnalysis, out: Signals) -> None:
    """Time in torch.compile that no kernel covers, and in how many of the steady steps something was compiled."""
    steps, host, window = analysis.steps, analysis.activity.host, analysis.window
    if not steps.steady:
        out.missing("no steps were found", "compile.time_ms", "compile.steps")
        return
    rows = analysis.activity.matching(_COMPILATION)
    spent = Intervals.of(host.start[rows], host.end[rows])
    exposed = spent.intersect(analysis.phases.starved) if analysis.has_gpu else spent
    out.add("compile.time_ms", analysis.per_step_ms(exposed.clip(*window).total), "ms", TRACE)
    steady = slice(steps.first, steps.last + 1)
    held = spent.measure(steps.begin[steady], steps.end[steady])
    out.add("compile.steps", int(np.count_nonzero(held)), "count", TRACE)
