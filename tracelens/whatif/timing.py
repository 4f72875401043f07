"""The few constants of a replay, fitted from a trace: launch cost, launch latency, gap between kernels, queue length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.trace.tables import Device

DEFAULT_QUEUE = 1024  # kernels that a CUDA stream takes before a launch blocks
FULL = 0.98  # of what the queue was ever seen to hold: it has no room
_ENOUGH = 5
_IDLE_NS = 20_000
_LAUNCH_NS = 5_000.0
_LATENCY_NS = 6_000.0  # where the GPU never ran dry: typical of CUDA on current hosts
_GAP_NS = 1_000.0


@dataclass(frozen=True, slots=True)
class Timing:
    """``launch_ns``: usual duration of a launch call; ``latency_ns``: from a launch's start to the kernel's on an idle
    GPU; ``gap_ns``: between queued kernels of a stream; ``queue``: launches outstanding before the next one blocks."""

    launch_ns: float
    latency_ns: float
    gap_ns: float
    queue: int


def fit_timing(analysis: RankAnalysis, steps: NDArray[np.int64] | None = None) -> Timing:
    """Medians over the activities owned by ``steps`` (default: all)."""
    device, host = analysis.activity.device, analysis.activity.host
    mine = device.launch >= 0
    if steps is not None:
        mine &= np.isin(analysis.steps.owner, steps)
    rows = np.flatnonzero(mine & (device.kind <= Device.COMMUNICATION))
    if not rows.size:
        return Timing(_LAUNCH_NS, _LATENCY_NS, _GAP_NS, DEFAULT_QUEUE)
    launch = device.launch[rows]
    spent = (host.end - host.start)[launch]
    usual = _launch_cost(analysis, spent, host.start[launch])
    lag = (device.start[rows] - host.start[launch]).astype(np.float64)
    anything = np.concatenate(([0], np.maximum.accumulate(device.end)[:-1]))[rows]
    idle = (anything > 0) & (anything < host.start[launch] - _IDLE_NS)
    latency = float(np.median(lag[idle])) if idle.sum() >= 5 else _LATENCY_NS
    previous = stream_predecessor(device.stream, device.end)[rows]
    queued = previous > host.start[launch] + 2 * usual
    gaps = (device.start[rows] - previous)[queued & (previous > 0)]
    gaps = gaps[(gaps >= 0) & (gaps < _IDLE_NS)]
    gap = float(np.median(gaps)) if gaps.size >= 5 else _GAP_NS
    return Timing(usual, min(max(latency, 1.0), _IDLE_NS), gap, _queue(analysis, spent, usual, launch))


def _launch_cost(analysis: RankAnalysis, spent: NDArray[np.int64], at: NDArray[np.int64]) -> float:
    """What a launch costs that finds room in the queue: one that found it full lasts longer, the quick ones tell.

    Where the queue was full all along, next to none did: then at most what launches usually cost."""
    outstanding = outstanding_at(analysis, at)
    most = int(outstanding.max(initial=0))
    free = outstanding < FULL * most if most >= FULL * DEFAULT_QUEUE else np.ones(spent.size, dtype=bool)
    known = spent[free] if free.sum() >= _ENOUGH else spent
    usual = float(np.median(known[known <= 4 * np.percentile(known, 10)]))
    return usual if free.sum() >= _ENOUGH else min(usual, _LAUNCH_NS)


def stream_predecessor(stream: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each activity, when the one before it on its stream ended (0: none)."""
    previous = np.zeros(stream.size, dtype=np.int64)
    for code in np.unique(stream):
        rows = np.flatnonzero(stream == code)
        previous[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    return previous


def _queue(analysis: RankAnalysis, spent: NDArray[np.int64], usual: float, launch: NDArray[np.int64]) -> int:
    """The launches outstanding where launches blocked; the usual limit, or more, where none did."""
    outstanding = outstanding_at(analysis, analysis.activity.host.start[launch])
    long = spent > max(100_000.0, 20 * usual)
    if long.sum() >= 5 and np.median(outstanding[long]) > 64:
        return max(int(np.median(outstanding[long])), 64)
    return max(DEFAULT_QUEUE, int(outstanding.max(initial=0)) + 1)


def outstanding_at(analysis: RankAnalysis, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Launched but not yet started activities at each instant; those launched before the capture count too."""
    device, host = analysis.activity.device, analysis.activity.host
    joined = device.launch >= 0
    launched = np.sort(host.start[device.launch[joined]])
    earlier = int((~joined).sum())
    return (
        np.searchsorted(launched, at, side="left") + earlier - np.searchsorted(device.start, at, side="right")
    )
