"""Steps: where they begin on the host, when their GPU work completes, and which of them are steady.

A step's duration is the spacing between the completions of successive steps' last GPU work (design section 2):
the host may run many steps ahead of the GPU, so host spans alone say nothing about speed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.activity import Activity
from tracelens.signals.repetition import kernel_period
from tracelens.trace import dialects
from tracelens.trace.tables import Host

Ints = NDArray[np.int64]

_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: .*Loss|^autograd::engine::evaluate_function: ")
COMPLETE_SHARE = (
    0.8  # a last step with fewer kernels than this share of the median lost some at the profiler's stop
)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in order. ``begin``/``end`` are host times, ``done`` when their last GPU work completed (ns).

    ``owner`` gives the step of every device activity (-1: before the first, n: after the last).
    Steady steps are ``first`` .. ``last``; the steady window is ``window``.
    """

    source: str | None
    number: Ints
    begin: Ints
    end: Ints
    done: Ints
    owner: Ints
    first: int
    last: int
    window: tuple[int, int]
    startup: int = 0
    incomplete: int = 0

    @property
    def count(self) -> int:
        """Steps found."""
        return int(self.number.size)

    @property
    def steady(self) -> int:
        """Steps in the steady window."""
        return self.last - self.first + 1 if self.count else 0

    @property
    def edges(self) -> Ints:
        """Completions that bound the steady steps: ``steady + 1`` instants."""
        if not self.count:
            return np.array(self.window, dtype=np.int64)
        return np.concatenate(([self.window[0]], self.done[self.first : self.last + 1]))

    @property
    def durations(self) -> Ints:
        """Durations of the steady steps in ns."""
        return np.diff(self.edges) if self.count else np.empty(0, dtype=np.int64)


def find_steps(activity: Activity) -> Steps:
    """Steps by the profiler's markers, else optimizer steps, loader events, backward passes, kernel repetition."""
    for source, finder in _SOURCES:
        found = finder(activity)
        if found is not None:
            begin, end, number = found
            steps = _complete(activity, source, begin, end, number)
            if steps.window[1] > steps.window[0]:  # steps that take no time are damage
                return steps
    low, high = activity.tables.extent
    nothing = np.empty(0, dtype=np.int64)
    owner = np.full(len(activity.device), -1, dtype=np.int64)
    return Steps(None, nothing, nothing, nothing, nothing, owner, 0, -1, (low, high))


Found = tuple[Ints, Ints, Ints]


def _markers(activity: Activity) -> Found | None:
    rows = np.flatnonzero(activity.markers & (activity.host.thread == activity.main_thread))
    if not rows.size:
        return None
    numbers = [dialects.step_number(activity.tables.names[n]) for n in activity.host.name[rows]]
    number = np.array([i if n is None else n for i, n in enumerate(numbers)], dtype=np.int64)
    return activity.host.start[rows], activity.host.end[rows], number


def _optimizer(activity: Activity) -> Found | None:
    """A step ends with its optimizer's step; several optimizers in one step count once."""
    rows = np.flatnonzero(activity.optimizer_steps & (activity.host.thread == activity.main_thread))
    if rows.size < 2:
        return None
    ends = activity.host.end[rows]
    keep = _one_per_step(activity, rows)
    return _from_ends(activity, ends[keep])


def _one_per_step(activity: Activity, rows: Ints) -> Ints:
    """The last optimizer call of each step: the name that recurs least often, where names alternate."""
    names = activity.host.name[rows]
    unique, counts = np.unique(names, return_counts=True)
    if unique.size == 1:
        return _last_of_bursts(activity.host.start[rows], activity.host.end[rows])
    rarest = unique[np.flatnonzero(counts == counts.min())]
    last = max(rarest, key=lambda name: int(activity.host.start[rows[names == name]][0]))
    return np.flatnonzero(names == last)


def _last_of_bursts(start: Ints, end: Ints) -> Ints:
    """Calls that follow each other at once (several optimizers of one class) belong to one step."""
    if start.size < 3:
        return np.arange(start.size)
    gap = start[1:] - end[:-1]
    spacing = float(np.median(np.diff(end)))
    regular = float(np.percentile(gap, 90))
    burst = gap < 0.02 * max(regular, spacing)
    return np.flatnonzero(np.concatenate((~burst, [True])))


def _loader(activity: Activity) -> Found | None:
    rows = np.flatnonzero(activity.next_events & (activity.host.thread == activity.main_thread))
    if rows.size < 2:
        return None
    begin = activity.host.start[rows]
    last = int(activity.host.end[activity.host.thread == activity.main_thread].max())
    return begin, np.append(begin[1:], last), np.arange(begin.size, dtype=np.int64)


def _backward(activity: Activity) -> Found | None:
    """A step ends where the autograd engine's last function of a backward pass ends."""
    host = activity.host
    rows = np.flatnonzero((host.kind == Host.OPERATOR) & activity.matching(_BACKWARD))
    if rows.size < 4:
        return None
    start, end = host.start[rows], np.maximum.accumulate(host.end[rows])
    gap = start[1:] - end[:-1]
    threshold = max(5 * float(np.median(np.maximum(gap, 1))), 0.05 * float(gap.max()))
    ends = end[np.concatenate((gap > threshold, [True]))]
    lengths = np.diff(ends)
    if ends.size < 3 or lengths.min() < 0.2 * np.median(lengths):
        return None
    return _from_ends(activity, ends)


def _kernels(activity: Activity) -> Found | None:
    """The period of the kernel sequence: a step begins where its first kernel is launched."""
    device = activity.device
    joined = np.flatnonzero(device.launch >= 0)
    order = joined[np.argsort(activity.host.start[device.launch[joined]], kind="stable")]
    found = kernel_period(device.name[order])
    if found is None:
        return None
    offset, period = found
    starts = activity.host.start[device.launch[order]][offset::period]
    covered = int(starts[-1] - starts[0]) if starts.size else 0
    low, high = activity.tables.extent
    if starts.size < 4 or covered < 0.9 * (high - low):
        return None
    return starts[:-1], starts[1:], np.arange(starts.size - 1, dtype=np.int64)


def _from_ends(activity: Activity, ends: Ints) -> Found:
    begin = np.concatenate(([activity.tables.extent[0]], ends[:-1]))
    return begin, ends, np.arange(ends.size, dtype=np.int64)


_SOURCES = (
    ("profiler_step", _markers),
    ("optimizer_step", _optimizer),
    ("loader_next", _loader),
    ("backward", _backward),
    ("kernel_sequence", _kernels),
)


def _complete(activity: Activity, source: str, begin: Ints, end: Ints, number: Ints) -> Steps:
    owner = step_of_activities(activity, begin, int(end[-1]))
    count = begin.size
    done = end.copy()
    kernels = np.zeros(count, dtype=np.int64)
    if len(activity.device):
        inside = (owner >= 0) & (owner < count)
        latest = np.zeros(count, dtype=np.int64)
        np.maximum.at(latest, owner[inside], activity.device.end[inside])
        kernels = np.bincount(owner[inside], minlength=count)
        done = np.where(kernels > 0, latest, end)
    done = np.maximum.accumulate(done)
    first, last, startup, incomplete = _steady(activity, source, begin, end, done, kernels)
    low = int(done[first - 1]) if first > 0 else int(begin[0])
    return Steps(
        source,
        number,
        begin,
        end,
        done,
        owner,
        first,
        last,
        (low, int(done[last])),
        startup=startup,
        incomplete=incomplete,
    )


def step_of_activities(activity: Activity, begin: Ints, stop: int) -> Ints:
    """The step that launched each activity; one without a recorded launch follows its stream's predecessor."""
    device, host = activity.device, activity.host
    owner = np.full(len(device), -1, dtype=np.int64)
    joined = device.launch >= 0
    at = host.start[device.launch[joined]]
    step = np.searchsorted(begin, at, side="right") - 1
    owner[joined] = np.where(at >= stop, begin.size, step)
    for stream in np.unique(device.stream[~joined]):
        rows = np.flatnonzero(device.stream == stream)
        known = joined[rows]
        position = np.maximum.accumulate(np.where(known, np.arange(rows.size), -1))
        owner[rows] = np.where(known | (position < 0), owner[rows], owner[rows[np.maximum(position, 0)]])
    return owner


def _steady(
    activity: Activity, source: str, begin: Ints, end: Ints, done: Ints, kernels: Ints
) -> tuple[int, int, int, int]:
    """``(first, last, start-up steps cut, incomplete steps cut)``; with fewer than three steps all are kept."""
    count = begin.size
    if count < 3:
        return 0, count - 1, 0, 0
    last, incomplete = count - 1, 0
    host = end - begin
    if kernels.any():
        # one that launched all its work is whole, however short on the host beside steps that were starting up
        cut_short = kernels[last] < COMPLETE_SHARE * np.median(kernels[:-1])
    else:
        cut_short = source == "profiler_step" and host[last] < 0.05 * np.median(host[:-1])
    if cut_short:
        last, incomplete = last - 1, 1
    durations = np.diff(done)  # of steps 1 .. count-1
    first = 1
    while last - first >= 3:
        own, rest = durations[first - 1], durations[first:last]
        # a leading stall that no later step comes near is start-up; one that recurs stays in
        if own > 2 * np.median(rest) and own > 1.5 * rest.max():
            first += 1
        else:
            break
    return min(first, last), last, first - 1, incomplete
