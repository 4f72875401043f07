"""Signals about host<->device copies: bytes, memory kind, rate, how many, and what of them is exposed."""

from __future__ import annotations

import numpy as np

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace.tables import Device, Pin

TRACE = "trace"
_SMALL_COPY = 64 * 1024
_NAMES = (
    "transfer.saving_ms", "transfer.h2d_bytes", "transfer.h2d_count", "transfer.pageable_share", "transfer.h2d_gb_s",
    "transfer.small_count", "transfer.blocked_ms", "transfer.gpu_share", "transfer.blocking_syncs", "transfer.bulk_d2h_ms",
)  # fmt: skip


def transfer_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``transfer.*`` per steady step; ``saving_ms`` is the exposed part of the transfer phase."""
    if not analysis.has_gpu:
        out.missing("no GPU work in the trace", *_NAMES)
        return
    device = analysis.activity.device
    out.add("transfer.saving_ms", analysis.per_step_ms(analysis.phases.parts["transfer"].total), "ms", TRACE)
    h2d = analysis.in_window & (device.kind == Device.H2D)
    out.add("transfer.h2d_count", float(h2d.sum()) / analysis.step_count, "count", TRACE)
    size, duration = device.bytes[h2d], (device.end - device.start)[h2d]
    known = size >= 0
    if not known.any():
        out.missing("the copies carry no byte counts" if h2d.any() else "no host-to-device copy", *_NAMES)
        _blocked(analysis, out)
        return
    total = float(size[known].sum())
    out.add("transfer.h2d_bytes", total / analysis.step_count, "bytes", TRACE)
    pin = device.pin[h2d][known]
    worded = pin != Pin.UNKNOWN
    pageable = float(size[known][pin == Pin.PAGEABLE].sum()) / max(float(size[known][worded].sum()), 1.0)
    out.add(
        "transfer.pageable_share",
        pageable if worded.any() else None,
        "share",
        TRACE,
        "copies do not say pageable or pinned",
    )
    large = known & (size >= _SMALL_COPY) & (duration > 0)
    rate = float(size[large].sum() / duration[large].sum()) if large.any() else None
    out.add("transfer.h2d_gb_s", rate, "GB/s", TRACE, "no copy of 64 KB or more")
    out.add(
        "transfer.small_count",
        float((known & (size < _SMALL_COPY)).sum()) / analysis.step_count,
        "count",
        TRACE,
    )
    bulk = analysis.in_window & (device.kind == Device.D2H) & (device.bytes >= _SMALL_COPY)
    out.add(
        "transfer.bulk_d2h_ms",
        analysis.per_step_ms(float((device.end - device.start)[bulk].sum())),
        "ms",
        TRACE,
    )
    out.add("transfer.gpu_share", float(duration.sum()) / max(analysis.length, 1), "share", TRACE)
    _blocked(analysis, out)


def _blocked(analysis: RankAnalysis, out: Signals) -> None:
    """Time in copy calls that their bytes explain: what the host spends copying, waiting for kernels left out."""
    calls = analysis.copies
    inside = (calls.end > analysis.window[0]) & (calls.start < analysis.window[1])
    spent = np.minimum(calls.end - calls.start, calls.explained)[inside]
    out.add("transfer.blocked_ms", analysis.per_step_ms(float(spent.sum())), "ms", TRACE)
    out.add("transfer.blocking_syncs", _own_syncs(analysis) / analysis.step_count, "count", TRACE)


def _own_syncs(analysis: RankAnalysis) -> int:
    """Synchronisations right after a host-to-device copy: how torch waits for a copy without ``non_blocking``."""
    activity, calls = analysis.activity, analysis.copies
    syncs = activity.sync_calls
    device = activity.device
    others = np.unique(np.concatenate((device.launch[device.launch >= 0], calls.row)))
    start = activity.host.start
    others = others[np.argsort(start[others], kind="stable")]
    if not others.size or not syncs.size:
        return 0
    inside = syncs[(start[syncs] >= analysis.window[0]) & (start[syncs] < analysis.window[1])]
    before = np.searchsorted(start[others], start[inside], side="left") - 1
    copies = calls.row[calls.kind == Device.H2D]
    return int(np.isin(others[before[before >= 0]], copies).sum())
