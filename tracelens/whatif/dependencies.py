"""What waits for what in a replay: calls for activities, activities for other streams, launches for room in the queue."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.trace import dialects
from tracelens.trace.tables import Device, DeviceEvents, Pin
from tracelens.whatif.kinds import CALL, LAUNCH, SMALL_COPY, SYNC
from tracelens.whatif.timing import FULL, Timing, outstanding_at

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_RETURN_NS = 50_000  # what a call takes at most to return once what it waits for has ended
# a launch this many times the usual duration may have waited for room in the queue, as full as it was ever seen; and
# one that found it nearly so
_BLOCKED_FULL, _BLOCKED = 2, 10
_NEARLY_FULL = 0.8


def waits(
    analysis: RankAnalysis, rows: Ints, kinds: Ints, order: Ints, position: Ints, begin: Ints, count: Ints
) -> tuple[Ints, Floats, NDArray[np.bool_], Floats]:
    """For each interaction, the activity it waits for, how long after its end it returns, whether it is ``.item()``-like,
    and how much longer it took than a return does."""
    host, device = analysis.activity.host, analysis.activity.device
    waits_for = np.full(rows.size, -1, dtype=np.int64)
    slack = np.zeros(rows.size)
    small, late = np.zeros(rows.size, dtype=bool), np.zeros(rows.size)
    names = analysis.tables.names
    synchronous = np.fromiter(
        (n.startswith(("cudaFree", "hipFree", "cudaMalloc", "hipMalloc")) for n in names), bool, len(names)
    )
    last_on: dict[int, int] = {}
    main_stream = (
        int(np.bincount(np.unique(device.stream[order], return_inverse=True)[1]).argmax())
        if order.size
        else 0
    )
    streams = np.unique(device.stream[order]) if order.size else np.empty(0, dtype=np.int64)
    compute_stream = int(streams[main_stream]) if streams.size else 0
    for i in range(rows.size):
        row = int(rows[i])
        end = int(host.end[row])
        if kinds[i] == LAUNCH:
            mine = order[begin[i] : begin[i] + count[i]]
            last = int(mine[-1])
            kind = int(device.kind[last])
            if _blocks(kind, int(device.pin[last]), int(device.bytes[last])) and 2 * end >= int(
                device.start[last]
            ) + int(device.end[last]):
                waits_for[i] = position[last]
                slack[i] = float(np.clip(end - int(device.end[last]), -_RETURN_NS, _RETURN_NS))
                small[i] = kind == Device.D2H and int(device.bytes[last]) < SMALL_COPY
            for activity in mine.tolist():
                last_on[int(device.stream[activity])] = activity
        elif kinds[i] == SYNC or (kinds[i] == CALL and synchronous[host.name[row]]):
            target = _sync_target(
                device.end, last_on, end, int(host.start[row]), compute_stream, kinds[i] == SYNC
            )
            if target is not None:
                waits_for[i] = position[target]
                if device.end[target] > host.start[row]:
                    returned = float(max(end - int(device.end[target]), 0))
                    slack[i] = min(returned, _RETURN_NS)
                    late[i] = returned - slack[i]
                small[i] = not (
                    i and kinds[i] == SYNC and _bulk_copy(device, order, kinds, begin, count, i - 1)
                )
    return waits_for, slack, small, late


def _bulk_copy(device: DeviceEvents, order: Ints, kinds: Ints, begin: Ints, count: Ints, i: int) -> bool:
    """Whether an interaction is a copy to the device, or a large one to the host: torch waits for a blocking copy in a
    synchronisation right after it, which then is the copy's and not an ``.item()``'s."""
    if kinds[i] != LAUNCH or count[i] != 1:
        return False
    last = int(order[begin[i]])
    kind = int(device.kind[last])
    return kind == Device.H2D or (kind == Device.D2H and int(device.bytes[last]) >= SMALL_COPY)


def _blocks(kind: int, pin: int, size: int) -> bool:
    """Whether a copy call of that kind may wait for its copy (CUDA runtime API, synchronisation behaviour).

    Pinned copies are asynchronous, a blocking one is followed by a synchronisation of its own; pageable ones return
    once staged to the device, at once where they fit the staging buffer, or once they are back on the host.
    """
    if kind == Device.D2H:
        return pin != Pin.PINNED
    return kind == Device.H2D and pin != Pin.PINNED and (size < 0 or size > SMALL_COPY)


def _sync_target(
    ends: Ints, last_on: dict[int, int], end: int, start: int, compute_stream: int, always: bool
) -> int | None:
    """The activity a synchronisation waits for: of the last launched on each stream, the latest that had ended with the call.

    A stream whose last work was still running when the call returned was not waited for.
    """
    done = [a for a in last_on.values() if int(ends[a]) <= end + 20_000]
    if not done:
        return None
    latest = max(done, key=lambda a: int(ends[a]))
    if int(ends[latest]) > start:
        return latest
    # nothing was pending as recorded: it would wait for the compute stream, if for any
    if not always:
        return None
    last = last_on.get(compute_stream)
    return last if last is not None and int(ends[last]) <= end + 20_000 else None


def blocked(analysis: RankAnalysis, rows: Ints, spent: Floats, timing: Timing) -> NDArray[np.bool_]:
    """Whether each call waited for room: as much work was outstanding at its start as the queue is taken to hold, and it
    lasted longer than launches do. A full queue takes a launch for every kernel that starts, so short kernels make short
    waits."""
    outstanding = outstanding_at(analysis, analysis.activity.host.start[rows])
    full = (outstanding >= FULL * timing.queue) & (spent > _BLOCKED_FULL * timing.launch_ns)
    nearly = (outstanding >= _NEARLY_FULL * timing.queue) & (spent > _BLOCKED * timing.launch_ns)
    return np.asarray(full | nearly, dtype=bool)


def across_streams(
    analysis: RankAnalysis, rows: Ints, order: Ints, position: Ints, begin: Ints, count: Ints
) -> Ints:
    """For each activity, one on another stream that it waits for.

    Said by a stream-wait call before the launch (then: the last work launched on another stream), or shown by its
    start right at another stream's end where its own stream and launch had long been ready. A collective waits for what
    was launched before it: torch makes its stream wait for the current one.
    """
    device, host = analysis.activity.device, analysis.activity.host
    after = np.full(order.size, -1, dtype=np.int64)
    if order.size == 0 or np.unique(device.stream[order]).size < 2:
        return after
    waits = analysis.activity.calls(dialects.WAIT_CALLS)
    wait_at = host.start[waits]
    start, end, stream = device.start[order], device.end[order], device.stream[order]
    launch = host.start[device.launch[order]]
    previous_launch = np.concatenate(([-1], launch[:-1]))
    announced = np.searchsorted(wait_at, launch, side="left") > np.searchsorted(
        wait_at, previous_launch, side="left"
    )
    announced |= device.kind[order] == Device.COMMUNICATION
    ready = np.maximum(launch + 3_000, _previous_on_stream(stream, end))
    last_on: dict[int, int] = {}
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    for k in range(order.size):
        own = int(stream[k])
        if announced[k]:
            others = [j for s, j in last_on.items() if s != own and end[j] <= start[k] + 2_000]
            if others:
                after[k] = max(others, key=lambda j: int(end[j]))
        if after[k] < 0 and start[k] - ready[k] > 10_000:
            low, high = np.searchsorted(ends, start[k] - 15_000), np.searchsorted(ends, start[k] + 1_000)
            near = [int(j) for j in by_end[low:high] if stream[j] != own and j < k]
            if near:
                after[k] = max(near, key=lambda j: int(end[j]))
        last_on[own] = k
    return after


def backlog(analysis: RankAnalysis, order: Ints, streams: Ints, low: int) -> tuple[Floats, Floats]:
    """When each stream is free of work that these steps did not launch, ns after ``low``, not before it; and for how long
    it works until then."""
    device = analysis.activity.device
    mine = np.zeros(len(device), dtype=bool)
    mine[order] = True
    first = int(device.start[order].min()) if order.size else low
    earlier = ~mine & (device.start < max(first, low))
    ends, works = [], []
    for stream in streams:
        start, end = (times[earlier & (device.stream == stream)] for times in (device.start, device.end))
        ends.append(max(int(end.max(initial=low)) - low, 0))
        works.append(int(np.maximum(end - np.maximum(start, low), 0).sum()))
    return np.array(ends, dtype=np.float64), np.array(works, dtype=np.float64)


def _previous_on_stream(stream: Ints, end: Ints) -> Ints:
    previous = np.zeros(stream.size, dtype=np.int64)
    for code in np.unique(stream):
        rows = np.flatnonzero(stream == code)
        previous[rows[1:]] = end[rows[:-1]]
    return previous
