"""What each wait for a batch was spent on: the main process's waits laid over the workers' own timeline.

A batch that training waits for is, at any moment of the wait, not yet begun (its worker is at an earlier one), being
made, or made and on its way: copied, pickled, received. Meanwhile later batches may lie ready behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import Deliveries, Fetches

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_EPOCH = 1 << 40  # more batches than an epoch has
_SLOW = 1.5  # times what the quicker batches take: less is a busier core


@dataclass(frozen=True, slots=True)
class Waits:
    """One row for each delivered batch whose making was recorded, in order of delivery; ms.

    ``handover``: the part of the wait in which the batch was collated, or made already. ``held``: the part in which
    a later batch was made already while this slow one was not. ``own``: making this batch took, collating left out.
    """

    wait: Floats
    handover: Floats
    held: Floats
    own: Floats

    def share(self, part: Floats) -> float | None:
        """``part`` of all waiting; None where nothing was waited for."""
        total = float(self.wait.sum())
        return min(float(part.sum()) / total, 1.0) if total > 0 else None


def waits(deliveries: Deliveries, fetches: Fetches, ahead: int) -> Waits:
    """The waits; ``ahead``: batches that all workers together hold (num_workers * prefetch_factor).

    Deliveries in profiled windows must be left out by the caller; what a worker did not log is left out here.
    """
    made = fetches.epoch * _EPOCH + fetches.batch
    order = np.argsort(made, kind="stable")
    keys, begin, end = made[order], fetches.t0[order], fetches.t1[order]
    collate = np.nan_to_num(fetches.collate_ms[order])
    making = np.maximum((end - begin) / 1e6 - collate, 0.0)
    wanted = deliveries.epoch * _EPOCH + deliveries.batch
    at = np.minimum(np.searchsorted(keys, wanted), max(keys.size - 1, 0))
    known = (deliveries.batch >= 0) & (keys.size > 0)
    known[known] = keys[at[known]] == wanted[known]
    at, start, stop = at[known], deliveries.t0[known], deliveries.t1[known]
    wait = (stop - start) / 1e6
    after = np.maximum(stop - np.maximum(start, end[at]), 0) / 1e6
    # collating is the last thing that a fetch does
    collating = (
        np.maximum(
            np.minimum(stop, end[at]) - np.maximum(start, end[at] - (collate[at] * 1e6).astype(np.int64)), 0
        )
        / 1e6
    )
    ready = np.full(at.size, np.iinfo(np.int64).max)
    for step in range(1, ahead + 1):
        later = np.minimum(at + step, keys.size - 1)
        same = keys[later] == keys[at] + step
        ready = np.where(same, np.minimum(ready, end[later]), ready)
    held = np.clip(np.minimum(stop, end[at]) - np.maximum(start, ready), 0, None) / 1e6
    own = making[at]
    # in order a worker on a busier core makes all wait as well, but nothing of its batches is slow
    if making.size:
        held[own < _SLOW * np.percentile(making, 25)] = 0.0
    return Waits(wait, np.minimum(after + collating, wait), held, own)


def computing_beside(
    deliveries: Deliveries, fetches: Fetches, rows: NDArray[np.bool_] | None = None
) -> float | None:
    """How many threads compute on average while a batch is made: the workers at theirs, and training when it does not wait.

    Fetches that come in bursts meet each other more often than the workers' mean load says. ``rows``: the fetches
    that are asked about, all unless given. None without any.
    """
    begin = fetches.t0 if rows is None else fetches.t0[rows]
    end = fetches.t1 if rows is None else fetches.t1[rows]
    total = float((end - begin).sum())
    if total <= 0:
        return None
    made = _overlap(fetches.t0, fetches.t1, begin, end)
    # waits follow each other without overlap; what lies between two of them is training
    waited = _overlap(deliveries.t0, deliveries.t1, begin, end)
    return made / total + 1.0 - min(waited / total, 1.0)


def fetching_beside(deliveries: Deliveries, fetches: Fetches) -> float | None:
    """How many batches are being made on average while training computes, between two waits. None without either."""
    if len(deliveries) < 2 or not len(fetches):
        return None
    # within one pass: between two of them workers start
    same = np.diff(deliveries.epoch) == 0
    begin, end = deliveries.t1[:-1][same], deliveries.t0[1:][same]
    total = float((end - begin).sum())
    return _overlap(fetches.t0, fetches.t1, begin, end) / total if total > 0 else None


def _overlap(starts: Ints, ends: Ints, begin: Ints, end: Ints) -> float:
    """Time that the spans ``starts`` to ``ends`` share with each of ``begin`` to ``end``, summed over all pairs, ns."""
    opened = _elapsed(np.sort(starts), end) - _elapsed(np.sort(starts), begin)
    closed = _elapsed(np.sort(ends), end) - _elapsed(np.sort(ends), begin)
    return float((opened - closed).sum())


def _elapsed(since: Ints, at: Ints) -> Floats:
    """For each instant, the time that passed since each of the sorted instants before it, summed: their count's integral."""
    if not since.size:
        return np.zeros(at.size)
    sums = np.concatenate(([0.0], np.cumsum((since - since[0]).astype(float))))
    count = np.searchsorted(since, at, side="right")
    return np.asarray(count * (at - since[0]).astype(float) - sums[count])
