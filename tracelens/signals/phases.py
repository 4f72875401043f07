"""Phases: the exclusive partition of wall time of design section 4, each instant to the first line that claims it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.model import PHASES, Phase
from tracelens.signals.activity import Activity
from tracelens.trace.intervals import EMPTY, Intervals
from tracelens.trace.tables import Device, Host

Ints = NDArray[np.int64]

COPY_CALL_NS = 20_000  # fixed cost of a copy call (design section 4)
_LATE_NS = 50_000  # after its launch call nothing keeps work that long on an idle GPU
SLOW_COPY = 3.0  # bytes per ns where the trace shows no copy of that kind (design section 4)

HOST_PARTS = (
    "queue_gap", "synchronisation", "allocation", "optimizer", "cast", "validation", "dispatch", "python",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phases:
    """The partition of ``window``; ``host_parts`` splits the host phase, ``starved``/``queued`` the GPU's idle time."""

    window: tuple[int, int]
    parts: Mapping[Phase, Intervals]
    host_parts: Mapping[str, Intervals]
    starved: Intervals
    queued: Intervals
    busy: Intervals

    @property
    def length(self) -> int:
        """Length of the window in ns."""
        return self.window[1] - self.window[0]

    def shares(self) -> dict[str, float]:
        """Share of the window of each phase; they sum to 1."""
        return {name: self.parts[name].total / self.length if self.length else 0.0 for name in PHASES}

    def per_step(self, edges: Ints) -> dict[Phase, Ints]:
        """Nanoseconds of each phase between successive ``edges``."""
        return {name: self.parts[name].measure(edges[:-1], edges[1:]) for name in PHASES}


def copy_rates(activity: Activity) -> dict[tuple[int, int], float]:
    """Fastest rate seen, bytes per ns, by (direction, memory kind)."""
    device = activity.device
    rates: dict[tuple[int, int], float] = {}
    rows = np.flatnonzero(
        np.isin(device.kind, (Device.H2D, Device.D2H)) & (device.bytes > 0) & (device.end > device.start)
    )
    for row in rows:
        key = (int(device.kind[row]), int(device.pin[row]))
        rates[key] = max(
            rates.get(key, 0.0), float(device.bytes[row] / (device.end[row] - device.start[row]))
        )
    return rates


@dataclass(frozen=True, slots=True)
class CopyCalls:
    """Host<->device copy calls on launching threads; ``explained`` is how long their bytes account for (ns)."""

    row: Ints
    start: Ints
    end: Ints
    kind: Ints
    pin: Ints
    bytes: Ints
    explained: Ints


def copy_calls(activity: Activity) -> CopyCalls:
    """Copy calls with the direction, memory kind and bytes of the copy they started."""
    rows = activity.copy_calls
    device = activity.device
    copies = np.flatnonzero((device.kind >= Device.H2D) & (device.kind <= Device.P2P) & (device.launch >= 0))
    by_launch = {int(device.launch[c]): int(c) for c in copies}
    rates = copy_rates(activity)
    kept: list[tuple[int, int, int, int, int]] = []
    for row in rows.tolist():
        copy = by_launch.get(row)
        if copy is None:
            kept.append((row, -1, 0, -1, COPY_CALL_NS))
            continue
        kind, pin, size = int(device.kind[copy]), int(device.pin[copy]), int(device.bytes[copy])
        if kind not in (Device.H2D, Device.D2H):
            continue
        rate = rates.get((kind, pin), SLOW_COPY)
        kept.append((row, kind, pin, size, int(max(size, 0) / rate) + COPY_CALL_NS))
    columns = np.array(kept, dtype=np.int64).reshape(-1, 5).T
    row = columns[0]
    return CopyCalls(
        row, activity.host.start[row], activity.host.end[row], columns[1], columns[2], columns[3], columns[4]
    )


def partition(activity: Activity, window: tuple[int, int]) -> Phases:
    """The phases of a window (ns)."""
    low, high = window
    whole = Intervals.single(low, high)
    if activity.gpu is None:
        return _cpu_only(activity, whole, window)
    compute = activity.busy((Device.KERNEL, Device.MEMSET, Device.D2D)).clip(low, high)
    communication = activity.busy((Device.COMMUNICATION, Device.P2P)).clip(low, high).subtract(compute)
    working = compute.union(communication)
    copying = activity.busy((Device.H2D, Device.D2H)).clip(low, high).subtract(working)
    busy = working.union(copying)
    idle = whole.subtract(busy)

    calls = copy_calls(activity)
    explained = Intervals.of(np.maximum(calls.start, calls.end - calls.explained), calls.end)
    transfer = copying.union(idle.intersect(explained))
    idle = idle.subtract(explained)
    load = idle.intersect(activity.next)
    idle = idle.subtract(activity.next)
    known = _known(activity)
    host, other = idle.intersect(known), idle.subtract(known)
    starved, queued = split_idle(activity, whole.subtract(busy))
    parts: dict[Phase, Intervals] = {
        "compute": compute, "communication": communication, "transfer": transfer,
        "load": load, "host": host, "other": other,
    }  # fmt: skip
    return Phases(window, parts, _host_parts(activity, host, queued, calls), starved, queued, busy)


def _cpu_only(activity: Activity, whole: Intervals, window: tuple[int, int]) -> Phases:
    """Without a GPU, compute is operator time outside ``next``, and ``next`` is load."""
    load = whole.intersect(activity.next)
    rest = whole.subtract(activity.next)
    compute = rest.intersect(activity.operators)
    rest = rest.subtract(activity.operators)
    known = _known(activity)
    host = rest.intersect(known)
    parts: dict[Phase, Intervals] = {
        "compute": compute, "communication": EMPTY, "transfer": EMPTY,
        "load": load, "host": host, "other": rest.subtract(known),
    }  # fmt: skip
    host_parts = dict.fromkeys(HOST_PARTS, EMPTY)
    optimizer = host.intersect(activity.optimizer)
    host_parts |= {"optimizer": optimizer, "python": host.subtract(activity.optimizer)}
    return Phases(window, parts, host_parts, whole, EMPTY, compute)


def _known(activity: Activity) -> Intervals:
    """Where something is known of the launching threads: from each one's first recorded event to its last.

    Between two recorded events a thread runs Python or native code that nobody annotated: known to be host time.
    """
    host = activity.host
    spans = []
    for thread in activity.launching_threads:
        rows = (host.thread == thread) & (host.kind != Host.OVERHEAD)
        if rows.any():
            spans.append((int(host.start[rows].min()), int(host.end[rows].max())))
    return Intervals.of([s for s, _ in spans], [e for _, e in spans]) if spans else EMPTY


def split_idle(activity: Activity, idle: Intervals) -> tuple[Intervals, Intervals]:
    """``(starved, queued)``: a gap is queued where the work that ends it was launched before the gap began, and from its
    launch on where it took far longer to start than launches take: it waited for work that was not recorded.

    Work without a recorded launch was launched before the capture, so its gap is queued. A gap that nothing
    ends within the trace is starved: nothing was queued.
    """
    device = activity.device
    if not len(idle) or not len(device):
        return idle, EMPTY
    never = np.iinfo(np.int64).min
    launched, returned = np.full(len(device), never), np.full(len(device), never)
    joined = device.launch >= 0
    launched[joined] = activity.host.start[device.launch[joined]]
    returned[joined] = activity.host.end[device.launch[joined]]
    following = np.searchsorted(device.start, idle.end, side="left")
    exists = following < len(device)
    # a gap begins where the last earlier activity ended, also where the window cuts its beginning
    ended = np.concatenate(([never], np.maximum.accumulate(device.end)))[following]
    begin = np.where(ended > never, ended, idle.start)
    ending = np.minimum(following, max(len(device) - 1, 0))
    queued = exists & (launched[ending] <= begin)
    late = exists & ~queued & (idle.end - returned[ending] > _LATE_NS)
    cut = np.where(queued, idle.start, np.where(late, np.maximum(returned[ending], idle.start), idle.end))
    before, behind = cut > idle.start, cut < idle.end
    return Intervals(idle.start[before], cut[before]), Intervals(cut[behind], idle.end[behind])


def _host_parts(
    activity: Activity, host: Intervals, queued: Intervals, calls: CopyCalls
) -> dict[str, Intervals]:
    waits = Intervals.of(calls.start, calls.end).union(activity.rows_to_intervals(activity.sync_calls))
    claims = (
        ("queue_gap", queued),
        ("synchronisation", waits),
        ("allocation", activity.rows_to_intervals(activity.allocation_calls)),
        ("optimizer", activity.optimizer),
        ("cast", activity.casts),
        ("validation", EMPTY),
        ("dispatch", activity.operators),
    )
    parts: dict[str, Intervals] = {}
    rest = host
    for name, claim in claims:
        parts[name] = rest.intersect(claim)
        rest = rest.subtract(claim)
    parts["python"] = rest
    return parts
