"""The primitives of the simulation: shared resources and in-order queues.

``Shared`` is a processor-sharing server (CPU cores, storage, host memory, a link): all tasks on it advance
at one rate that depends only on how many there are, so a single virtual clock and a heap are exact.
``launch_scan`` and ``stream_scan`` are max-plus scans: a launch waits for a slot of the bounded queue, a
kernel for its launch and for the kernel before it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Shared:
    """Tasks of some work each, all served at ``rate(n)`` work units per us when ``n`` are present."""

    def __init__(self, rate: Callable[[int], float]) -> None:
        self._rate = rate
        self._heap: list[tuple[float, int, object]] = []
        self._virtual = 0.0
        self._at = 0.0
        self._order = count()
        self.due = math.inf
        """When the next task finishes if nothing else arrives; infinity when idle."""

    def __len__(self) -> int:
        return len(self._heap)

    def _advance(self, t: float) -> None:
        if self._heap and t > self._at:
            self._virtual += self._rate(len(self._heap)) * (t - self._at)
        self._at = max(self._at, t)

    def _plan(self) -> None:
        if self._heap:
            left = max(self._heap[0][0] - self._virtual, 0.0)
            self.due = self._at + left / self._rate(len(self._heap))
        else:
            self.due = math.inf

    def add(self, t: float, work: float, task: object) -> None:
        """A task with ``work`` to do arrives at ``t`` (never before the last event)."""
        self._advance(t)
        heapq.heappush(self._heap, (self._virtual + work, next(self._order), task))
        self._plan()

    def pop(self, t: float) -> object:
        """Remove and return the task that finishes at ``t`` (``due``)."""
        self._advance(t)
        finish, _, task = heapq.heappop(self._heap)
        self._virtual = max(self._virtual, finish)
        self._plan()
        return task


def capped(capacity: float, each: float = 1.0) -> Callable[[int], float]:
    """A rate: every task gets ``each`` until ``capacity`` is reached, then an equal share of it."""
    return lambda n: min(each, capacity / n)


def cores(capacity: float, threads: int, penalty: float) -> Callable[[int], float]:
    """The rate of each process when ``n`` processes of ``threads`` runnable threads share ``capacity`` cores.

    Up to capacity each runs at full speed; beyond it they share, and every runnable thread over the capacity
    costs ``penalty`` (switches, cold caches, spinning team members).
    """

    def rate(n: int) -> float:
        share = min(1.0, capacity / n)
        over = n * threads / capacity - 1.0
        return share / (1.0 + penalty * over) if over > 0 else share

    return rate


def launch_scan(calls: Floats, slots: Floats, delay: float = 0.0) -> Floats:
    """Delay of each launch by back-pressure: ``calls`` are undelayed times, ``slots`` when a slot is free.

    A blocked launch delays everything behind it; ``delay`` is what the segment starts with.
    """
    out = np.maximum(slots - calls, delay)
    return np.maximum.accumulate(out, out=out)


def stream_scan(ready: Floats, before: Floats, free: float) -> Floats:
    """Start of each kernel on a stream: not before ``ready``, not before the stream is ``free``, in order.

    ``before[i]`` is the work (durations and gaps) of the kernels in front of ``i`` in this segment.
    """
    slack = np.maximum(ready - before, free)
    np.maximum.accumulate(slack, out=slack)
    return slack + before
