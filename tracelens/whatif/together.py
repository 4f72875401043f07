"""Which ranks can be replayed together, and where they meet.

A collective ends on all ranks together and begins on each when that is ready: the n-th of one rank is the n-th of every
other. What it takes once all have arrived is what it took on the rank that arrived last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.trace.tables import Device
from tracelens.whatif.replay import Feed

Ints = NDArray[np.int64]

_TOGETHER = 0.02  # of a step: how far the ends of one collective may lie apart on two ranks, clocks aligned
_TOGETHER_NS = 50_000.0


def meeting(analyses: Sequence[RankAnalysis], feeds: Sequence[Feed]) -> list[Feed] | None:
    """The feeds with their collectives joined and their clocks aligned; None where the ranks' collectives are not the same
    ones: others in kind or number, or ended apart (groups of some ranks only, other steps)."""
    if len(feeds) < 2 or len({feed.graph.steps for feed in feeds}) != 1:
        return None
    found = [_collectives(analysis, feed) for analysis, feed in zip(analyses, feeds, strict=True)]
    names = [[analysis.tables.names[c] for c in feed.graph.names[at].tolist()]
             for analysis, feed, at in zip(analyses, feeds, found, strict=True)]  # fmt: skip
    if not names[0] or any(other != names[0] for other in names[1:]):
        return None
    ends, lengths = [], []
    for analysis, feed, at in zip(analyses, feeds, found, strict=True):
        device, rows = analysis.activity.device, feed.graph.rows
        assert rows is not None
        ends.append((device.end[rows[at]] - feed.graph.start_ns).astype(np.float64))
        lengths.append(feed.graph.duration[at])
    # recordings of two machines need not share a clock
    offsets = [float(np.median(ends[0] - other)) for other in ends]
    apart = np.abs(np.stack([other + offset for other, offset in zip(ends, offsets, strict=True)]) - ends[0])
    step = feeds[0].graph.recorded_ns / feeds[0].graph.steps
    if np.percentile(apart, 90) > max(_TOGETHER * step, _TOGETHER_NS):
        return None
    transfer = np.minimum.reduce(lengths)
    joined = []
    for feed, at, offset in zip(feeds, found, offsets, strict=True):
        duration, meets = feed.graph.duration.copy(), np.zeros(feed.graph.duration.size, dtype=bool)
        duration[at], meets[at] = transfer, True
        graph = dataclasses.replace(feed.graph, duration=duration)
        joined.append(dataclasses.replace(feed, graph=graph, meets=meets, offset_ns=offset))
    return joined


def _collectives(analysis: RankAnalysis, feed: Feed) -> Ints:
    """The activities of a graph that are collectives."""
    assert feed.graph.rows is not None
    return np.flatnonzero(analysis.activity.device.kind[feed.graph.rows] == Device.COMMUNICATION)


def common_steps(analyses: Sequence[RankAnalysis]) -> list[tuple[int, int]] | None:
    """First and last steady step of each rank, the same ones by their number; None where they share none."""
    steady = [a.steps.number[a.steps.first : a.steps.last + 1] for a in analyses]
    if not all(numbers.size for numbers in steady):
        return None
    low, high = max(int(n[0]) for n in steady), min(int(n[-1]) for n in steady)
    spans = []
    for analysis in analyses:
        inside = np.flatnonzero((analysis.steps.number >= low) & (analysis.steps.number <= high))
        if not inside.size or inside.size != high - low + 1:
            return None
        spans.append((int(inside[0]), int(inside[-1])))
    return spans
