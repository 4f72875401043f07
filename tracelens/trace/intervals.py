"""Interval algebra on integer nanoseconds: sorted, disjoint, half-open [start, end) sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of instants as sorted, disjoint, non-touching, non-empty half-open intervals."""

    start: Ints
    end: Ints

    @classmethod
    def of(cls, start: ArrayLike, end: ArrayLike) -> Intervals:
        """The union of any intervals, in any order, overlapping or not; empty ones vanish."""
        starts = np.asarray(start, dtype=np.int64).ravel()
        ends = np.asarray(end, dtype=np.int64).ravel()
        keep = ends > starts
        starts, ends = starts[keep], ends[keep]
        if starts.size == 0:
            return EMPTY
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        # a new interval begins where a start lies beyond every earlier end
        fresh = np.concatenate(([True], starts[1:] > ends[:-1]))
        last = np.concatenate((fresh[1:], [True]))
        return cls(starts[fresh], ends[last])

    @classmethod
    def single(cls, start: int, end: int) -> Intervals:
        """One interval, or the empty set where ``end <= start``."""
        return cls.of([start], [end])

    def __len__(self) -> int:
        return int(self.start.size)

    @property
    def total(self) -> int:
        """Length of the set in nanoseconds."""
        return int((self.end - self.start).sum())

    def union(self, other: Intervals) -> Intervals:
        """Instants in either."""
        if not len(other):
            return self
        if not len(self):
            return other
        return Intervals.of(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def intersect(self, other: Intervals) -> Intervals:
        """Instants in both."""
        start, end, _, _ = overlaps(self, other)
        return Intervals(start, end) if start.size else EMPTY

    def subtract(self, other: Intervals) -> Intervals:
        """Instants in this one and not in the other."""
        if not len(self) or not len(other):
            return self
        low, high = int(self.start[0]), int(self.end[-1])
        return self.intersect(other.complement(low, high))

    def complement(self, low: int, high: int) -> Intervals:
        """Instants of [low, high) that are not in the set."""
        inside = self.clip(low, high)
        starts = np.concatenate(([low], inside.end))
        ends = np.concatenate((inside.start, [high]))
        return Intervals.of(starts, ends)

    def clip(self, low: int, high: int) -> Intervals:
        """The part of the set within [low, high)."""
        return Intervals.of(np.maximum(self.start, low), np.minimum(self.end, high))

    def covers(self, instants: ArrayLike) -> NDArray[np.bool_]:
        """For each instant, whether it lies in the set."""
        points = np.asarray(instants, dtype=np.int64)
        if not len(self):
            return np.zeros(points.shape, dtype=bool)
        index = np.searchsorted(self.start, points, side="right") - 1
        return np.asarray((index >= 0) & (points < self.end[np.maximum(index, 0)]), dtype=bool)

    def measure(self, low: ArrayLike, high: ArrayLike) -> Ints:
        """For each [low, high), how many nanoseconds of it lie in the set."""
        lows, highs = np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)
        if not len(self):
            return np.zeros(np.broadcast(lows, highs).shape, dtype=np.int64)
        return np.asarray(np.maximum(self._before(highs) - self._before(lows), 0), dtype=np.int64)

    def _before(self, points: Ints) -> Ints:
        cumulative = np.concatenate(([0], np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, points, side="right")
        previous = np.maximum(index - 1, 0)
        spill = np.where(index > 0, np.maximum(self.end[previous] - points, 0), 0)
        return np.asarray(cumulative[index] - spill, dtype=np.int64)


EMPTY = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def overlaps(left: Intervals, right: Intervals) -> tuple[Ints, Ints, Ints, Ints]:
    """Every pairwise overlap of two sets: starts, ends, and the index of each in ``left`` and ``right``."""
    if not len(left) or not len(right):
        none = np.empty(0, dtype=np.int64)
        return none, none, none, none
    first = np.searchsorted(right.end, left.start, side="right")
    stop = np.searchsorted(right.start, left.end, side="left")
    count = np.maximum(stop - first, 0)
    in_left = np.repeat(np.arange(len(left)), count)
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    in_right = np.repeat(first, count) + offset
    start = np.maximum(left.start[in_left], right.start[in_right])
    end = np.minimum(left.end[in_left], right.end[in_right])
    return start, end, in_left, in_right
