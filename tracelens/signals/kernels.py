"""What limits each kernel: arithmetic, device memory, or too little work to fill the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.tables import GpuLog
from tracelens.signals.activity import Activity
from tracelens.signals.devices import DeviceSpec, assumed, describe, lookup
from tracelens.signals.kernel_names import MATRIX_FAMILIES, family, precision
from tracelens.signals.operators import launching_operators
from tracelens.signals.other_window import KnownKernels, learn, recognised, take_over
from tracelens.signals.roofline import Estimate, Reach, estimate, reach, times
from tracelens.trace.tables import Device

__all__ = [
    "ARITHMETIC", "BASES", "COUNTERS", "FAMILY", "LIMITS", "MATRIX_FAMILIES", "MEMORY", "NOTHING", "SAME_KERNEL", "SHAPES",
    "SMALL", "UNKNOWN", "KernelClasses", "classify", "family", "precision",
]  # fmt: skip

ARITHMETIC, MEMORY, SMALL, UNKNOWN = 0, 1, 2, 3
LIMITS = ("arithmetic", "memory", "small", None)
# where a class was read from
SHAPES, SAME_KERNEL, FAMILY, COUNTERS, NOTHING = range(5)
BASES = (
    "estimated from shapes", "same kernel and grid with known shapes", "kernel family", "DRAM counters", "unknown",
)  # fmt: skip

_BOUND = {
    "attention": ARITHMETIC, "convolution": ARITHMETIC, "gemm": ARITHMETIC, "gemv": MEMORY, "recurrent": ARITHMETIC,
    "fused": UNKNOWN,
}  # fmt: skip
_SMALL_NS = 4_000  # below, a kernel's own ramp-up and drain are most of its time
_NEAR_RIDGE = 1.5
_SATURATED = 0.6  # least share of a memory-limited kernel's time that its traffic explains
_BUSY_COUNTER = 0.6  # a unit that counters show this busy, on average over all kernels, is what they wait for


@dataclass(frozen=True, slots=True)
class KernelClasses:
    """For each activity of the rank's GPU: limit code (-1 for what is not a kernel), and where it was read from.

    ``basis`` is SHAPES, SAME_KERNEL, FAMILY, COUNTERS or NOTHING (-1 for no kernel). ``owner`` is the host row of the
    operator that launched it (-1: unknown). ``estimate`` holds FLOPs and least bytes where shapes tell them.
    """

    limit: NDArray[np.int8]
    source: str
    basis: NDArray[np.int8]
    owner: NDArray[np.int64]
    estimate: Estimate | None = None
    spec: DeviceSpec | None = None
    reach: Reach | None = None

    def share(self, activity: Activity, limit: int, mask: NDArray[np.bool_]) -> float | None:
        """Share of kernel time (within ``mask``) with that limit."""
        return self._share(activity, self.limit == limit, mask)

    def basis_share(self, activity: Activity, basis: int, mask: NDArray[np.bool_]) -> float | None:
        """Share of kernel time (within ``mask``) whose class was read from that basis."""
        return self._share(activity, self.basis == basis, mask)

    def _share(self, activity: Activity, wanted: NDArray[np.bool_], mask: NDArray[np.bool_]) -> float | None:
        duration = (activity.device.end - activity.device.start).astype(float)
        kernels = mask & (self.limit >= 0)
        total = float(duration[kernels].sum())
        return float(duration[kernels & wanted].sum()) / total if total else None


def classify(
    activity: Activity, log: GpuLog | None = None, known: KnownKernels | None = None
) -> KernelClasses:
    """Classes by roofline where shapes were recorded, else by kernel family; too small by grid and duration.

    ``log``: hardware counters, where it has them, settle what neither tells. ``known``: what another window of the run,
    which was recorded with shapes, tells of the same kernels.
    """
    device = activity.device
    duration = device.end - device.start
    properties = activity.tables.device_properties(activity.gpu if activity.gpu is not None else 0)
    spec = _device(activity, properties, log)
    limit, basis = _by_family(activity)
    owner = launching_operators(activity)
    units = properties.get("numSms")
    if not isinstance(units, int) or units <= 0:
        units = spec.sms if spec is not None and spec.basis == "table" else 0
    # less than half a wave of blocks leaves most of the GPU idle, whatever the kernel does
    underfilled = (device.blocks > 0) & (device.blocks * 2 <= units)
    found = reached = None
    judged = taken = np.zeros(len(device), dtype=bool)
    elsewhere = np.full(len(device), -1, dtype=np.int64)
    if known is not None:
        elsewhere = recognised(activity, limit >= 0, known)
    if spec is not None and len(device):
        found = estimate(activity, owner, spec)
        if known is not None:
            elsewhere[found.known] = -1
            taken = take_over(found, elsewhere, known)
        reached = reach(found, duration, device.blocks, spec)
        computing, moving = times(found, reached, spec)
        judged = (limit >= 0) & found.known
        # near the ridge the estimates cannot tell; a kernel that leaves the DRAM idle is not limited by it
        unsaturated = (moving < _NEAR_RIDGE * computing) & (moving * 1e9 < _SATURATED * duration)
        limit[judged] = np.where((computing > moving) | unsaturated, ARITHMETIC, MEMORY)[judged]
        basis[judged] = np.where(taken, SAME_KERNEL, SHAPES)[judged]
        _same_kernel(activity, limit, basis, judged)
        needed = np.where(judged, np.maximum(computing, moving), 0.0) * 1e9
        # ramp-up, drain or idle units take longer than the work itself would
        idle = judged & (needed < 0.5 * duration) & ((duration < _SMALL_NS) | underfilled)
        limit[idle] = SMALL
    if known is not None:
        # what launches of unlike work leave is the limit that the kernel mostly has
        rest = (elsewhere >= 0) & ~judged & (basis != SAME_KERNEL)
        limit[rest], basis[rest] = known.limit[elsewhere[rest]], SAME_KERNEL
        judged = judged | rest
    _by_counters(limit, basis, log)
    kernel = (limit >= 0) & ~judged
    limit[kernel & ((duration < _SMALL_NS) | underfilled)] = SMALL
    source = _source(basis, duration, spec, bool(judged.any()))
    return KernelClasses(limit, source, basis, owner, found, spec, reached)


def _device(activity: Activity, properties: Mapping[str, Any], log: GpuLog | None) -> DeviceSpec | None:
    """The device by the trace's properties, else by the GPU log's name, else by the architecture that kernels name."""
    spec = describe(properties)
    if spec is None and log is not None and len(log):
        spec = next((s for name in np.unique(log.name).tolist() if (s := lookup(name)) is not None), None)
    if spec is not None:
        return spec
    device, names = activity.device, activity.tables.names
    return assumed(names[code] for code in np.unique(device.name[device.kind == Device.KERNEL]).tolist())


def _by_family(activity: Activity) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    device, names = activity.device, activity.tables.names
    by_name = np.full(len(names), UNKNOWN, dtype=np.int8)
    for code in np.unique(device.name[device.kind == Device.KERNEL]).tolist():
        label = family(names[code])
        by_name[code] = UNKNOWN if label is None else _BOUND.get(label, MEMORY)
    limit = np.where(device.kind == Device.KERNEL, by_name[device.name], -1).astype(np.int8)
    limit[np.isin(device.kind, (Device.MEMSET, Device.D2D))] = MEMORY
    basis = np.where(limit < 0, -1, np.where(limit == UNKNOWN, NOTHING, FAMILY)).astype(np.int8)
    return limit, basis


def _same_kernel(
    activity: Activity, limit: NDArray[np.int8], basis: NDArray[np.int8], judged: NDArray[np.bool_]
) -> None:
    """Kernels without shapes (launched before the recording began) take the class that the same kernel, launched with the
    same grid and block, has elsewhere in the trace for most of its time."""
    device = activity.device
    if not judged.any() or judged.all():
        return
    key = (device.name.astype(np.int64) << 40) | (np.clip(device.blocks, 0, 2**28 - 1) << 12)
    key |= np.clip(device.block_threads, 0, 4095)
    wanted = (limit >= 0) & ~judged & (device.kind == Device.KERNEL)
    known = judged & np.isin(key, key[wanted])
    if not known.any():
        return
    keys, inverse = np.unique(key[known], return_inverse=True)
    spent = np.zeros((keys.size, 2))
    np.add.at(spent, (inverse, limit[known]), (device.end - device.start)[known])
    rows = np.flatnonzero(wanted)
    at = np.minimum(np.searchsorted(keys, key[rows]), keys.size - 1)
    rows, at = rows[keys[at] == key[rows]], at[keys[at] == key[rows]]
    limit[rows] = np.argmax(spent[at], axis=1)
    basis[rows] = SAME_KERNEL


def known_kernels(activity: Activity, classes: KernelClasses) -> KnownKernels | None:
    """What this window, recorded with shapes, tells of its kernels; None where it tells nothing."""
    if classes.estimate is None or not (classes.basis == SHAPES).any():
        return None
    return learn(activity, classes.limit, classes.basis == SHAPES, classes.estimate, len(LIMITS))


def _by_counters(limit: NDArray[np.int8], basis: NDArray[np.int8], log: GpuLog | None) -> None:
    """Kernels that nothing else tells about take the side that the counters show busy, where they show one."""
    if log is None or not len(log) or not (limit == UNKNOWN).any():
        return
    dram, tensor = _busy(log.gpm_dram_bw), _busy(log.gpm_tensor)
    if dram >= _BUSY_COUNTER and dram > tensor:
        side = MEMORY
    elif tensor >= _BUSY_COUNTER:
        side = ARITHMETIC
    else:
        return
    rows = limit == UNKNOWN
    limit[rows], basis[rows] = side, COUNTERS


def _busy(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else 0.0


def _source(
    basis: NDArray[np.int8], duration: NDArray[np.int64], spec: DeviceSpec | None, shapes: bool
) -> str:
    """Where the classes come from, most kernel time first, in words with shares."""
    spent = np.bincount(basis[basis >= 0], weights=duration[basis >= 0].astype(float), minlength=len(BASES))
    total = float(spent.sum())
    if not total:
        return BASES[FAMILY]
    parts = [
        (code, f"{spent[code] / total:.0%}")
        for code in np.argsort(-spent).tolist()
        if spent[code] / total >= 0.005
    ]
    words = ", ".join(
        f"{BASES[code]} ({share} of kernel time)" if len(parts) > 1 else BASES[code] for code, share in parts
    )
    if shapes and spec is not None and spec.basis != "table":
        words += f"; peak rates of {spec.name}, {spec.basis}"
    return words
