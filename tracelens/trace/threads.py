"""One thread under two ids: CUPTI names threads by pthread, the profiler by the system's id, and some files keep both.

Such a pair is told by what only one thread can do: the calls lie inside the other id's operators (or carry their
external ids), and the two ids are never inside a call at once. Threads that launch nothing (the pin thread, a
communicator's watchdog) really are others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracelens.trace.tables import Host, HostEvents

Ints = NDArray[np.int64]

_SHARE = 0.95  # of the calls must belong to the other id's operators: a few straddle the edges of ranges


def merged_threads(
    host: HostEvents, threads: Sequence[tuple[str, str]], launched: Ints
) -> tuple[NDArray[np.int32], tuple[tuple[str, str], ...]]:
    """Thread codes with such pairs made one, and the labels that remain; ``launched`` are the device's correlations."""
    code = np.arange(len(threads), dtype=np.int32)
    runtime = host.kind == Host.RUNTIME
    launches = runtime & (host.corr > 0) & np.isin(host.corr, launched)
    for thread in np.unique(host.thread[launches]).tolist():
        own = host.thread == thread
        if not runtime[own].all():
            continue
        calls = host.take(own)
        for other in range(len(threads)):
            if other != thread and threads[other][0] == threads[thread][0] and _same(host, calls, other):
                code[thread] = other
                break
    kept = np.flatnonzero(code == np.arange(len(threads)))
    renumbered = np.full(len(threads), -1, dtype=np.int32)
    renumbered[kept] = np.arange(kept.size)
    labels = tuple(threads[k] for k in kept.tolist())
    return renumbered[code][host.thread] if len(host) else host.thread, labels


def _same(host: HostEvents, calls: HostEvents, other: int) -> bool:
    theirs = host.thread == other
    operators = host.take(theirs & (host.kind == Host.OPERATOR))
    if not len(operators):
        return False
    at = np.searchsorted(operators.start, calls.start, side="right") - 1
    latest = np.maximum.accumulate(operators.end)
    contained = (at >= 0) & (latest[np.maximum(at, 0)] >= calls.end)
    named = (calls.ext > 0) & np.isin(calls.ext, operators.ext)
    if float((contained | named).mean()) < _SHARE:
        return False
    running = host.take(theirs & (host.kind == Host.RUNTIME))
    if not len(running):
        return True
    before = np.searchsorted(running.start, calls.end, side="left") - 1
    busy_until = np.maximum.accumulate(running.end)
    return not bool(((before >= 0) & (busy_until[np.maximum(before, 0)] > calls.start)).any())
