"""What a window recorded with shapes tells of the same kernels in another window of the run, recorded without."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.activity import Activity
from tracelens.signals.roofline import Estimate
from tracelens.trace.tables import Device

_ALIKE = 1.1  # launches whose work differs by less did the same

Key = tuple[str, int, int]  # kernel name, blocks, threads a block


@dataclass(frozen=True, slots=True)
class KnownKernels:
    """Kernels by name and launch, and for each of them its limit for most of its time and the work of one launch.

    ``work`` is unknown (NaN) where launches did not all do the same.
    """

    number: dict[Key, int]
    limit: NDArray[np.int8]
    work: Estimate


def learn(
    activity: Activity, limit: NDArray[np.int8], judged: NDArray[np.bool_], found: Estimate, limits: int
) -> KnownKernels:
    """From the kernels that shapes told the limit of (``judged``); ``limits``: how many kinds of limit there are."""
    device, names = activity.device, activity.tables.names
    rows = np.flatnonzero(judged & (device.kind == Device.KERNEL))
    launches = _launches(activity, rows)
    kinds, first, inverse = np.unique(launches, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.ravel()
    spent = np.zeros((len(kinds), limits))
    np.add.at(spent, (inverse, limit[rows]), (device.end - device.start)[rows])
    alike = np.ones(len(kinds), dtype=bool)
    for values in (found.flops[rows], found.bytes[rows], np.nan_to_num(found.peak[rows])):
        low, high = np.full(len(kinds), np.inf), np.full(len(kinds), -np.inf)
        np.minimum.at(low, inverse, values)
        np.maximum.at(high, inverse, values)
        alike &= high <= _ALIKE * low
    one = rows[first]
    number = {(names[n], b, t): at for at, (n, b, t) in enumerate(kinds.tolist())}
    work = Estimate(
        found.flops[one], np.where(alike, found.bytes[one], nan), found.peak[one], found.padding[one],
        found.certain[one], found.exact[one], np.full(one.size, -1, dtype=np.int64), found.group[one],
    )  # fmt: skip
    return KnownKernels(number, np.argmax(spent, axis=1).astype(np.int8), work)


def recognised(activity: Activity, wanted: NDArray[np.bool_], known: KnownKernels) -> NDArray[np.int64]:
    """For each activity the number of the known kernel that it is a launch of; -1: none, or not ``wanted``."""
    device, names = activity.device, activity.tables.names
    rows = np.flatnonzero(wanted & (device.kind == Device.KERNEL))
    found = np.full(len(device), -1, dtype=np.int64)
    kinds, inverse = np.unique(_launches(activity, rows), axis=0, return_inverse=True)
    codes = np.array([known.number.get((names[n], b, t), -1) for n, b, t in kinds.tolist()], dtype=np.int64)
    if codes.size:
        found[rows] = codes[inverse.ravel()]
    return found


def take_over(into: Estimate, which: NDArray[np.int64], known: KnownKernels) -> NDArray[np.bool_]:
    """Writes the work of recognised kernels into an estimate; which ones had any."""
    rows = np.flatnonzero(which >= 0)
    rows = rows[known.work.known[which[rows]]]
    at = which[rows]
    for name in ("flops", "bytes", "peak", "padding", "certain", "exact", "group"):
        getattr(into, name)[rows] = getattr(known.work, name)[at]
    taken = np.zeros(which.size, dtype=bool)
    taken[rows] = True
    return taken


def _launches(activity: Activity, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A row of name, blocks and threads a block for each."""
    device = activity.device
    launches = np.empty((rows.size, 3), dtype=np.int64)
    launches[:, 0] = device.name[rows]
    launches[:, 1] = device.blocks[rows]
    launches[:, 2] = device.block_threads[rows]
    return launches
