"""The steady steps as a graph to replay: host interactions in order, the work they launch, what waits for what.

An interaction is a call through which the host meets something else: a launch, a copy, a synchronisation, the
loader's ``next``. Between two of them lies host work, split by what it is. No recorded start or wait enters: a
wait is a dependency, and its length comes out of the replay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.signals import kernels
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.hostwork import LONG_PYTHON_NS
from tracelens.signals.loader import loader_mode
from tracelens.trace.intervals import Intervals, overlaps
from tracelens.trace.tables import Device, Host
from tracelens.whatif.dependencies import across_streams, backlog, blocked, waits
from tracelens.whatif.kinds import (
    ALLOCATION,
    ARITHMETIC,
    CALL,
    CAST,
    COMMUNICATION,
    COPY,
    D2H_BULK,
    D2H_SMALL,
    DEVICE_WORK,
    DISPATCH,
    H2D,
    HOST_WORK,
    LAUNCH,
    LOAD,
    MEMORY,
    NEXT,
    OPTIMIZER,
    PROFILER,
    PYTHON,
    SMALL,
    SMALL_COPY,
    SYNC,
    UNKNOWN,
)
from tracelens.whatif.timing import Timing, fit_timing
from tracelens.whatif.unrecorded import unrecorded

__all__ = [
    "ALLOCATION",
    "ARITHMETIC",
    "CALL",
    "CAST",
    "COMMUNICATION",
    "COPY",
    "D2H_BULK",
    "D2H_SMALL",
    "DEVICE_WORK",
    "DISPATCH",
    "H2D",
    "HOST_WORK",
    "LAUNCH",
    "LOAD",
    "MEMORY",
    "NEXT",
    "OPTIMIZER",
    "PROFILER",
    "PYTHON",
    "SMALL",
    "SMALL_COPY",
    "SYNC",
    "UNKNOWN",
    "Graph",
    "Requests",
    "build_graph",
    "copying_operators",
    "device_work",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_HANDOVER_NS = 2_000_000.0  # unpickling a batch and handing it over; a ``next`` that lasts longer waits
_QUICK_NS = 100_000.0  # where every call waited: what quick ones took in recordings of others (0.07-0.15 ms)
_COPY_OPERATOR = re.compile(r"^aten::(to|_to_copy|copy_|pin_memory)$")


@dataclass(frozen=True, slots=True)
class Requests:
    """The loader's ``next`` calls: row of the interaction, when asked and when the batch was there (recorded ns).

    Recorded times of ``next`` are the one thing a replay takes over: without worker timelines they alone say
    when batches were complete (design section 5).
    """

    row: Ints
    asked: Floats
    there: Floats


@dataclass(frozen=True)
class Graph:
    """Interactions in host order (arrays of length n) and activities in launch order (length m).

    ``gap`` (n, 8): host work before the interaction by kind, ns. ``call``: the interaction's own cost, ns.
    ``first``/``count``: its activities. ``waits_for``: the activity whose end it waits for (-1: none),
    ``slack`` how long after that end it returns. ``step``: steady step that it belongs to.
    ``backlog``: per stream, when work queued before the first interaction ends, ns after the steps begin on the host;
    ``queued``: ns of it in which the stream works rather than waits (None: all).
    ``call_work``: the kind of host work that the interaction's own cost is (None: all dispatch).
    ``host_ns``: how long the host took for the steps, less than ``recorded_ns`` where it ran ahead of the GPU (None: as
    long).
    ``rows``: each activity's row in the trace, ``events``: recorded host events that begin in the gap (None: a graph not
    made from one).
    Activities: ``hidden`` ns of unrecorded work before it, ``tail`` ns after it (None: 0) (a CUDA graph's; where ``foreign``
    another process's turns, which come and go with our own work),
    ``duration`` ns, ``work`` class, ``stream`` index, ``after``: an activity on another stream that
    must end first (-1: none), ``owner`` steady step.
    """

    kind: Ints
    gap: Floats
    call: Floats
    first: Ints
    count: Ints
    waits_for: Ints
    slack: Floats
    small_wait: NDArray[np.bool_]
    step: Ints
    duration: Floats
    work: Ints
    stream: Ints
    after: Ints
    owner: Ints
    bytes: Ints
    pin: Ints
    names: Ints
    requests: Requests
    timing: Timing
    backlog: Floats
    hidden: Floats
    steps: int
    streams: int
    concurrent: float
    recorded_ns: float
    begun_ns: float
    start_ns: int
    call_work: Ints | None = None
    rows: Ints | None = None
    events: Ints | None = None
    tail: Floats | None = None
    queued: Floats | None = None
    foreign: bool = False
    host_ns: float | None = None

    def __len__(self) -> int:
        return int(self.kind.size)


def build_graph(
    analysis: RankAnalysis, first: int | None = None, last: int | None = None, timing: Timing | None = None
) -> Graph | None:
    """The graph of steady steps ``first`` .. ``last`` (default all); None where there is nothing to replay.

    ``timing`` fitted on other steps may be given, so that these were not used to fit anything.
    """
    steps = analysis.steps
    if not analysis.has_gpu or not steps.count:
        return None
    first = steps.first if first is None else first
    last = steps.last if last is None else last
    rows, kinds = _interactions(analysis, first, last)
    if rows.size < 2 or not (kinds == LAUNCH).any():
        return None
    timing = timing or fit_timing(analysis)
    host, device = analysis.activity.host, analysis.activity.device
    start, end = host.start[rows], host.end[rows]

    order, begin, count = _activities(analysis, rows)
    low = int(steps.begin[first])
    previous = np.concatenate(
        ([_previous_end(analysis, int(start[0]), low)], np.maximum.accumulate(end)[:-1])
    )
    gap = _host_work(analysis, np.minimum(previous, start), start)
    usual = timing.launch_ns
    spent = (end - start).astype(np.float64)
    position = np.full(len(device), -1, dtype=np.int64)
    position[order] = np.arange(order.size)

    waits_for, slack, small, late = waits(analysis, rows, kinds, order, position, begin, count)
    call = np.where(waits_for >= 0, np.minimum(spent, usual), spent)
    held_up = (kinds == LAUNCH) & (waits_for < 0) & blocked(analysis, rows, spent, timing)
    call[held_up] = usual
    requests = _requests(analysis, rows, kinds, call)
    own_step = np.clip(
        np.searchsorted(steps.begin[first : last + 1], start, side="right") - 1, 0, last - first
    )
    streams, stream = np.unique(device.stream[order], return_inverse=True)
    recorded = float(steps.done[last] - (steps.done[first - 1] if first > 0 else steps.begin[0]))
    after = across_streams(analysis, rows, order, position, begin, count)
    hidden, foreign = unrecorded(analysis, order, after, timing)
    until, queued = backlog(analysis, order, streams, low)
    tail = np.zeros(order.size) if foreign else None
    if tail is not None:
        waiting = waits_for >= 0
        np.maximum.at(tail, waits_for[waiting], late[waiting])
    return Graph(
        kind=kinds, gap=gap, call=call, first=begin, count=count, waits_for=waits_for, slack=slack, small_wait=small,
        step=own_step, duration=(device.end - device.start)[order].astype(np.float64), work=device_work(analysis)[order],
        stream=stream.astype(np.int64), after=after, backlog=until, queued=queued,
        hidden=hidden,
        owner=np.clip(steps.owner[order] - first, 0, last - first),
        bytes=device.bytes[order], pin=device.pin[order].astype(np.int64), names=device.name[order].astype(np.int64),
        requests=requests, timing=timing, steps=last - first + 1, streams=int(streams.size),
        concurrent=_concurrency(analysis), recorded_ns=recorded,
        begun_ns=float(steps.done[last] - low) - recorded, start_ns=low,
        call_work=_call_work(analysis, rows, kinds, order, begin, count), rows=order,
        foreign=foreign, tail=tail, host_ns=float(steps.end[last] - low),
        events=_recorded_events(analysis, np.minimum(previous, start), start),
    )  # fmt: skip


def device_work(analysis: RankAnalysis) -> Ints:
    """The class of every activity on the rank's GPU."""
    device = analysis.activity.device
    work = np.full(len(device), UNKNOWN, dtype=np.int64)
    for limit, code in ((kernels.ARITHMETIC, ARITHMETIC), (kernels.MEMORY, MEMORY), (kernels.SMALL, SMALL)):
        work[analysis.kernels.limit == limit] = code
    work[np.isin(device.kind, (Device.COMMUNICATION, Device.P2P))] = COMMUNICATION
    work[device.kind == Device.H2D] = H2D
    to_host = device.kind == Device.D2H
    work[to_host] = np.where(device.bytes[to_host] >= SMALL_COPY, D2H_BULK, D2H_SMALL)
    return work


def _interactions(analysis: RankAnalysis, first: int, last: int) -> tuple[Ints, Ints]:
    """Rows of the steps' interactions in host order, and their kinds."""
    activity, steps = analysis.activity, analysis.steps
    low, high = int(steps.begin[first]), int(steps.end[last])
    device = activity.device
    launches = np.unique(device.launch[device.launch >= 0])
    launches = launches[activity.on_launching_thread[launches]]
    pieces = [(launches, LAUNCH), (np.setdiff1d(activity.sync_calls, launches), SYNC)]
    pieces.append((np.setdiff1d(activity.allocation_calls, launches), CALL))
    if loader_mode(analysis) == "workers":
        pieces.append(
            (np.flatnonzero(activity.next_events & (activity.host.thread == activity.main_thread)), NEXT)
        )
    rows = np.concatenate([rows for rows, _ in pieces])
    kinds = np.concatenate([np.full(rows.size, kind) for rows, kind in pieces])
    start = activity.host.start[rows]
    inside = (start >= low) & (start < high)
    rows, kinds, start = rows[inside], kinds[inside], start[inside]
    order = np.argsort(start, kind="stable")
    return rows[order], kinds[order]


def _activities(analysis: RankAnalysis, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Activities in launch order, with each interaction's first one and their number (a graph launches many)."""
    device = analysis.activity.device
    rank = np.full(len(analysis.activity.host), -1, dtype=np.int64)
    rank[rows] = np.arange(rows.size)
    mine = np.flatnonzero(device.launch >= 0)
    at = rank[device.launch[mine]]
    mine, at = mine[at >= 0], at[at >= 0]
    order = np.lexsort((device.start[mine], at))
    mine, at = mine[order], at[order]
    count = np.bincount(at, minlength=rows.size)
    return mine, np.cumsum(count) - count, count


def _previous_end(analysis: RankAnalysis, first_start: int, low: int) -> int:
    """End of the last interaction before the steps begin, else where they begin: host work counts from there."""
    return min(low, first_start)


def _host_work(analysis: RankAnalysis, low: Ints, high: Ints) -> Floats:
    """Host work in each [low, high) by kind: the first that claims an instant gets it."""
    activity = analysis.activity
    work = np.zeros((low.size, len(HOST_WORK)))
    rest = Intervals.of(low, high)
    claims = {
        LOAD: activity.next,
        ALLOCATION: activity.rows_to_intervals(activity.allocation_calls),
        COPY: copying_operators(analysis),
        CAST: activity.casts,
        OPTIMIZER: activity.optimizer,
        DISPATCH: activity.operators,
    }
    for kind, claim in claims.items():
        part = rest.intersect(claim)
        work[:, kind] = part.measure(low, high)
        rest = rest.subtract(claim)
    # a short pause between operators is interpreter overhead of dispatching them
    long = (rest.end - rest.start) >= LONG_PYTHON_NS
    work[:, PYTHON] = Intervals(rest.start[long], rest.end[long]).measure(low, high)
    work[:, DISPATCH] += Intervals(rest.start[~long], rest.end[~long]).measure(low, high)
    return work


def _recorded_events(analysis: RankAnalysis, low: Ints, high: Ints) -> Ints:
    """Host events of launching threads that begin in each [low, high)."""
    host = analysis.activity.host
    kinds = (Host.OPERATOR, Host.ANNOTATION, Host.RUNTIME, Host.PYTHON)
    starts = np.sort(host.start[analysis.activity.on_launching_thread & np.isin(host.kind, kinds)])
    return np.asarray(np.searchsorted(starts, high) - np.searchsorted(starts, low), dtype=np.int64)


def copying_operators(analysis: RankAnalysis) -> Intervals:
    """Time in operators that do nothing but copy to the device: ``aten::to`` and the like around a copy call."""
    activity, calls = analysis.activity, analysis.copies
    host = activity.host
    start = np.sort(calls.start[calls.kind == Device.H2D])
    operators = np.flatnonzero(
        activity.on_launching_thread & (host.kind == Host.OPERATOR) & activity.matching(_COPY_OPERATOR)
    )
    inside = np.searchsorted(start, host.end[operators]) > np.searchsorted(start, host.start[operators])
    return activity.rows_to_intervals(operators[inside])


def _call_work(
    analysis: RankAnalysis, rows: Ints, kinds: Ints, order: Ints, begin: Ints, count: Ints
) -> Ints:
    """The kind of host work that each interaction's own cost belongs to."""
    activity = analysis.activity
    work = np.full(rows.size, DISPATCH, dtype=np.int64)
    work[activity.optimizer.covers(activity.host.start[rows])] = OPTIMIZER
    work[copying_operators(analysis).covers(activity.host.start[rows])] = COPY
    single = np.flatnonzero((kinds == LAUNCH) & (count == 1))
    copies = activity.device.kind[order[begin[single]]] == Device.H2D
    work[single[copies]] = COPY
    work[kinds == CALL] = ALLOCATION
    work[kinds == NEXT] = LOAD
    return work


def _requests(analysis: RankAnalysis, rows: Ints, kinds: Ints, call: Floats) -> Requests:
    """The loader's ``next`` calls; sets the cost of ``next`` itself in ``call``: what the quick ones took."""
    at = np.flatnonzero(kinds == NEXT)
    start, end = analysis.activity.host.start[rows[at]], analysis.activity.host.end[rows[at]]
    spent = (end - start).astype(np.float64)
    own = np.zeros(at.size)
    if at.size:
        usual = float(np.percentile(spent, 25)) if spent.size >= 4 else float(spent.min())
        own = np.minimum(spent, usual if usual <= _HANDOVER_NS else _QUICK_NS)
        call[at] = own
    return Requests(at, start.astype(np.float64), end - own)


def _concurrency(analysis: RankAnalysis) -> float:
    """Share of host time in which two launching threads are inside operators at once: the graph has one host."""
    host, activity = analysis.activity.host, analysis.activity
    spans = []
    for thread in activity.launching_threads:
        mine = (host.thread == thread) & np.isin(host.kind, (Host.OPERATOR, Host.RUNTIME))
        mine &= (host.end > analysis.window[0]) & (host.start < analysis.window[1])
        spans.append(Intervals.of(host.start[mine], host.end[mine]))
    both = 0
    for i, left in enumerate(spans):
        for right in spans[i + 1 :]:
            start, end, _, _ = overlaps(left, right)
            both += int((end - start).sum())
    return both / max(analysis.length, 1)
