"""Which operator launched each device activity, and which operators enclose which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.activity import Activity
from tracelens.trace.tables import Host

Ints = NDArray[np.int64]


def launching_operators(activity: Activity) -> Ints:
    """For each activity on the rank's GPU, the host row of the innermost operator that launched it (-1: unknown).

    By external id where the file has it, else the innermost operator around the launch on its own thread.
    """
    device, host = activity.device, activity.host
    owner = np.full(len(device), -1, dtype=np.int64)
    operators = np.flatnonzero(host.kind == Host.OPERATOR)
    if not operators.size or not owner.size:
        return owner
    linked = operators[host.ext[operators] >= 0]
    if linked.size:
        order = np.argsort(host.ext[linked], kind="stable")
        keys, rows = host.ext[linked][order], linked[order]
        ext = device.ext.astype(np.int64)
        through = (ext < 0) & (device.launch >= 0)
        ext[through] = host.ext[device.launch[through]]
        at = np.minimum(np.searchsorted(keys, ext), keys.size - 1)
        owner = np.where((ext >= 0) & (keys[at] == ext), rows[at], -1)
    alone = np.flatnonzero((owner < 0) & (device.launch >= 0))
    if alone.size:
        calls = device.launch[alone]
        owner[alone] = enclosing(activity, operators, host.thread[calls], host.start[calls])
    return owner


def enclosing(activity: Activity, operators: Ints, thread: NDArray[np.int32], at: Ints) -> Ints:
    """For each (thread, instant), the host row of the innermost of ``operators`` around it (-1: none)."""
    host = activity.host
    found = np.full(at.size, -1, dtype=np.int64)
    for code in np.unique(thread).tolist():
        rows = operators[host.thread[operators] == code]
        if not rows.size:
            continue
        mine = thread == code
        start, end = host.start[rows], host.end[rows]
        parent = parents(start, end)
        inner = np.searchsorted(start, at[mine], side="right") - 1
        late = (inner >= 0) & (end[np.maximum(inner, 0)] < at[mine])
        while late.any():
            inner[late] = parent[inner[late]]
            late = (inner >= 0) & (end[np.maximum(inner, 0)] < at[mine])
        found[mine] = np.where(inner >= 0, rows[np.maximum(inner, 0)], -1)
    return found


def parents(start: Ints, end: Ints) -> Ints:
    """For nested spans of one thread, sorted by start with the longest first: the index of the span around each (-1).

    Every pointer begins at the span before and follows pointers until its span reaches far enough; what is skipped
    lies wholly before, so following pointers that are not final yet is safe.
    """
    parent = np.arange(-1, start.size - 1, dtype=np.int64)
    short = np.flatnonzero(parent >= 0)
    short = short[end[parent[short]] < end[short]]
    while short.size:
        parent[short] = parent[parent[short]]
        short = short[parent[short] >= 0]
        short = short[end[parent[short]] < end[short]]
    return parent


def parent_operators(activity: Activity) -> Ints:
    """For each host row that is an operator, the host row of the operator around it on its thread (-1: none)."""
    host = activity.host
    around = np.full(len(host), -1, dtype=np.int64)
    operators = np.flatnonzero(host.kind == Host.OPERATOR)
    for code in np.unique(host.thread[operators]).tolist():
        rows = operators[host.thread[operators] == code]
        inner = parents(host.start[rows], host.end[rows])
        around[rows] = np.where(inner >= 0, rows[np.maximum(inner, 0)], -1)
    return around
