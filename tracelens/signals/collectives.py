"""Signals about single collectives: how many are tiny, and how fast the large ones move their bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace.intervals import Intervals
from tracelens.trace.tables import Collective, Device

TRACE = "trace"
_TINY = 64 * 1024  # bytes: below, a collective costs its latency and no bandwidth
_LARGE = 4_000_000  # bytes: above, its latency no longer counts
_APART = 1.5  # largest over smallest message, from which the difference of their times tells a rate
_NAMES = (
    "communication.tiny_count",
    "communication.tiny_ms",
    "communication.bus_gb_s",
    "communication.one_machine",
)
# bytes that cross each link for a byte of the message, by (ranks - 1) / ranks (NCCL's definition of bus bandwidth)
_CROSSINGS = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0}


def collective_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``communication.count``, ``.tiny_*``, ``.bus_gb_s`` and ``.one_machine``."""
    device = analysis.activity.device
    mine = (
        np.flatnonzero(analysis.in_window & (device.kind == Device.COMMUNICATION))
        if analysis.has_gpu
        else np.empty(0, int)
    )
    if not mine.size:
        out.missing("no collective in the trace", "communication.count", *_NAMES)
        return
    out.add("communication.count", mine.size / analysis.step_count, "count", TRACE)
    known = analysis.tables.collectives
    found = [known.get(int(corr)) for corr in device.corr[mine]]
    size = np.array([-1 if one is None else one.bytes for one in found])
    if (size >= 0).any():
        tiny = mine[(size >= 0) & (size < _TINY)]
        out.add("communication.tiny_count", tiny.size / analysis.step_count, "count", TRACE)
        exposed = Intervals.of(device.start[tiny], device.end[tiny]).intersect(
            analysis.phases.parts["communication"]
        )
        out.add("communication.tiny_ms", analysis.per_step_ms(exposed.total), "ms", TRACE)
        rate = _bus_rate(found, (device.end - device.start)[mine].astype(float))
        out.add(
            "communication.bus_gb_s",
            rate,
            "GB/s",
            TRACE,
            "large collectives of one size alone: nobody can tell waiting from moving",
        )
    world, listed = analysis.tables.world_size, analysis.tables.metadata.get("deviceProperties")
    gpus = len(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else None
    # a process that sees as many GPUs as there are ranks has them in its own machine
    known_place = world is not None and world > 1 and gpus is not None
    out.add(
        "communication.one_machine", world <= gpus if known_place and world and gpus else None, None, TRACE,
        "the trace does not say how many ranks and GPUs there are",
    )  # fmt: skip
    out.missing("the trace does not say how large collectives are", *_NAMES)


def _crossing_bytes(one: Collective | None) -> float:
    """Bytes that each link carries for it, NaN where it is small, unknown, or of another kind."""
    if one is None or one.ranks < 2 or one.bytes < _LARGE or one.kind not in _CROSSINGS:
        return float("nan")
    return one.bytes * _CROSSINGS[one.kind] * (one.ranks - 1) / one.ranks


def _bus_rate(found: Sequence[Collective | None], spent: np.ndarray) -> float | None:
    """GB/s by which large collectives take longer the more they carry: what each waits for a late rank falls out."""
    carried = np.array([_crossing_bytes(one) for one in found])
    known = np.isfinite(carried) & (spent > 0)
    sizes = np.unique(carried[known])
    if sizes.size < 2 or sizes[-1] < _APART * sizes[0]:
        return None
    fastest = [float(spent[known & (carried == size)].min()) for size in sizes.tolist()]
    slope = float(np.polyfit(sizes, fastest, 1)[0])
    return 1 / slope if slope > 0 else None


def shared_rate(ranks: Sequence[RankAnalysis]) -> float | None:
    """GB/s of large collectives, each timed on the rank that came last and so did not wait; None where the ranks' collectives
    cannot be laid beside each other."""
    columns = []
    for rank in ranks:
        device = rank.activity.device
        mine = np.flatnonzero((device.kind == Device.COMMUNICATION) & rank.in_window)
        carried = np.array(
            [_crossing_bytes(rank.tables.collectives.get(int(corr))) for corr in device.corr[mine]]
        )
        large = np.isfinite(carried)
        columns.append((carried[large], (device.end - device.start)[mine][large].astype(float)))
    if len(columns) < 2 or any(not np.array_equal(sizes, columns[0][0]) for sizes, _ in columns):
        return None
    spent = np.min([lengths for _, lengths in columns], axis=0)
    known = spent > 0
    return float(np.median(columns[0][0][known] / spent[known])) if known.sum() >= 3 else None


def unevenness(ranks: Sequence[RankAnalysis]) -> tuple[float, float] | None:
    """``(ms a step that a rank waits for the last one of that step, share of steps in which the same rank is last)``.

    A collective ends on all ranks together, so that the rank with the least time in them in a step arrived last. None
    for one rank, or where the ranks' steps cannot be laid beside each other.
    """
    rows = []
    for rank in ranks:
        steps, device = rank.steps, rank.activity.device
        mine = (
            (device.kind == Device.COMMUNICATION) & (steps.owner >= steps.first) & (steps.owner <= steps.last)
        )
        if not mine.any():
            return None
        rows.append(
            np.bincount(
                steps.owner[mine] - steps.first, weights=(device.end - device.start)[mine].astype(float), minlength=steps.steady
            )
        )  # fmt: skip
    if len(rows) < 2 or len({row.size for row in rows}) != 1 or rows[0].size < 3:
        return None
    spent = np.array(rows)
    last = np.argmin(spent, axis=0)
    waits = (spent - spent.min(axis=0)).sum(axis=0) / (len(rows) - 1)
    # steps in which nobody waits to speak of name no rank
    weights = np.bincount(last, weights=waits, minlength=len(rows))
    share = float(weights.max() / weights.sum()) if weights.sum() > 0 else 1.0
    return float(waits.mean()) / 1e6, share
