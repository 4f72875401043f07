"""The roofline of each kernel from the shapes of the operator that launched it.

Williams, Waterman, Patterson, "Roofline" (CACM 2009): a kernel cannot be faster than its arithmetic at the device's
peak rate nor than its least memory traffic at the DRAM rate; the slower of the two is what limits it. Both rates are
taken as far as kernels of this very trace reach them, so that a throttled or power-capped device is seen as it ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.activity import Activity
from tracelens.signals.devices import DeviceSpec
from tracelens.signals.kernel_names import MATRIX_FAMILIES, family, gradient, number_format
from tracelens.signals.operator_work import WorkBook
from tracelens.signals.traffic import kernel_share
from tracelens.trace.tables import Device

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# shares of the published peaks that well-made kernels reach, used where the trace does not show better: large cuBLAS
# matmuls 60-80 %, cuDNN convolutions 50-65 %, fused attention with its exponentials 60-75 %, streaming kernels 75-90 %
_ARITHMETIC_REACH = {"gemm": 0.7, "convolution": 0.6, "attention": 0.7}
_MEMORY_REACH = 0.8
_GROUPS = tuple(_ARITHMETIC_REACH)  # of matrix families that reach alike
_CLEAR = 2.0  # times beyond the ridge, where there is no doubt that arithmetic limits
_LONG_NS = 10_000  # shorter kernels never reach a rate
_ENOUGH_NS = 200_000  # of such kernels, to read a reach off them
_TELLING = 0.05  # and of all kernels at that peak
_ARITHMETIC_BOUNDS = (0.2, 1.0)  # a clock throttled to a third, kernels at their usual reach
_MEMORY_BOUNDS = (
    0.6,
    0.95,
)  # what DRAM reaches of its paper rate; beyond lie caches, below badly written kernels
_TENSOR_WIDTH = {"tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_CHANNEL_BYTES = (
    16  # tensor-core convolutions read this much of neighbouring channels at a time and pad up to it
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Per activity (NaN where unknown): ``flops``, ``bytes``, ``peak`` FLOP/s of its format.

    ``padding``: times as long as its FLOPs at the peak rate the arithmetic takes: a tensor-core convolution pads its
    channels, attention has an exponential for every score.
    ``certain``: the bytes follow from recorded sizes and types (a list's element type is not written).
    ``exact``: the FLOPs follow from recorded sizes. ``row``: the host row of the operator used (-1: none).
    ``group``: of matrix kernels, which ones reach alike: products, convolutions, attention (-1: none).
    """

    flops: Floats
    bytes: Floats
    peak: Floats
    padding: Floats
    certain: NDArray[np.bool_]
    exact: NDArray[np.bool_]
    row: Ints
    group: NDArray[np.int8]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Activities with a place on the roofline."""
        return np.asarray(np.isfinite(self.bytes) & (np.isfinite(self.peak) | (self.flops == 0)), dtype=bool)


def estimate(activity: Activity, owner: Ints, spec: DeviceSpec) -> Estimate:
    """FLOPs, least bytes and peak rate of each activity. ``owner``: host row of its operator (-1: unknown)."""
    device, tables = activity.device, activity.tables
    n = len(device)
    out = Estimate(
        np.full(n, nan), np.full(n, nan), np.full(n, nan), np.ones(n), np.zeros(n, dtype=bool),
        np.zeros(n, dtype=bool), np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int8),
    )  # fmt: skip
    copies = (device.kind == Device.D2D) & (device.bytes > 0)
    fills = (device.kind == Device.MEMSET) & (device.bytes > 0)
    for rows, passes in ((copies, 2.0), (fills, 1.0)):
        out.flops[rows], out.bytes[rows] = 0.0, passes * device.bytes[rows]
    if not tables.shapes:
        return out
    names = tables.names
    kernels = np.flatnonzero((device.kind == Device.KERNEL) & (owner >= 0))
    codes = np.unique(device.name[kernels])
    matrix = np.zeros(len(names), dtype=bool)
    part = np.zeros(len(names), dtype=np.int64)
    group = np.zeros(len(names), dtype=np.int8)
    for code in codes.tolist():
        label = family(names[code])
        if label in MATRIX_FAMILIES:
            matrix[code], group[code] = True, _GROUPS.index(label if label in _GROUPS else "gemm")
    part[codes] = [gradient(names[c]) for c in codes.tolist()]
    book = WorkBook(activity)

    is_matrix = matrix[device.name[kernels]]
    main = kernels[is_matrix]
    rows, index = book.matrix_rows(owner[main], device.name[main])
    main, rows, index = main[index >= 0], rows[index >= 0], index[index >= 0]
    share = _shares(rows, index, part[device.name[main]], (device.end - device.start)[main], book)
    flops = np.array([w.flops if w.flops is not None else nan for w in book.works] or [nan])
    moved = np.array([w.bytes if w.bytes is not None else nan for w in book.works] or [nan])
    exact = np.array([w.exact for w in book.works] or [False])
    some = share > 0
    out.flops[main[some]] = (flops[index] * share)[some]
    out.bytes[main[some]] = (moved[index] * share)[some]
    out.exact[main[some]] = (exact[index] | (part[device.name[main]] > 0))[some]
    out.row[main] = rows
    out.peak[main], out.padding[main] = _peaks(device.name[main], index, book, spec)
    out.certain[main] = True
    out.group[main] = group[device.name[main]]

    rest = kernels[~is_matrix]
    byte_counts, certain = book.traffic(owner[rest], device.name[rest])
    seen = np.isfinite(byte_counts)
    rest, byte_counts = rest[seen], byte_counts[seen]
    out.certain[rest] = certain[seen]
    out.flops[rest] = 0.0
    out.bytes[rest] = byte_counts * _portions(activity, owner[rest], rest)
    out.row[rest] = owner[rest]
    return out


def _portions(activity: Activity, owner: Ints, kernels: Ints) -> Floats:
    """The share of its operator's bytes that each kernel moves: by name, and of what such names leave by time."""
    device, names = activity.device, activity.tables.names
    if not kernels.size:
        return np.empty(0)
    pairs, inverse = np.unique(
        np.stack((activity.host.name[owner], device.name[kernels])), axis=1, return_inverse=True
    )
    told = [kernel_share(names[operator], names[kernel]) for operator, kernel in pairs.T.tolist()]
    known = np.array([nan if share is None else share for share in told])[inverse.ravel()]
    _, group = np.unique(owner, return_inverse=True)
    by_name = np.bincount(group, weights=np.nan_to_num(known))
    spent = np.where(np.isnan(known), (device.end - device.start)[kernels], 0).astype(np.float64)
    by_time = np.bincount(group, weights=spent)
    rest = np.maximum(1 - by_name[group], 0.0) * spent / np.maximum(by_time[group], 1.0)
    return np.where(np.isnan(known), rest, known)


def _shares(rows: Ints, index: Ints, part: Ints, duration: Ints, book: WorkBook) -> Floats:
    """The share of its operator's work that each matrix kernel does: by time, each gradient by its own kernels.

    Kernels whose name tells no gradient do what the named ones of the same operator leave.
    """
    if not rows.size:
        return np.empty(0)
    gradients = np.array([w.gradients for w in book.works], dtype=np.int64)[index]
    part = np.where(gradients == 2, part, 0)
    _, operator = np.unique(rows, return_inverse=True)
    slot = operator * 3 + part
    size = 3 * (int(operator.max()) + 1)
    weight = np.maximum(duration, 1).astype(np.float64)
    total = np.bincount(slot, weights=weight, minlength=size)
    named = (total.reshape(-1, 3)[:, 1:] > 0).sum(axis=1)[operator]
    portion = np.where(part > 0, 0.5, np.where(gradients == 2, (2 - named) / 2, 1.0))
    return np.asarray(portion * weight / total[slot])


def _peaks(name: NDArray[np.int32], index: Ints, book: WorkBook, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """The peak rate of the format that each matrix kernel computes in, and how much longer its arithmetic takes."""
    if not name.size:
        return np.empty(0), np.empty(0)
    listed = book.activity.tables.names
    pairs, inverse = np.unique(name.astype(np.int64) * (len(book.works) + 1) + index, return_inverse=True)
    rates, padding = [], []
    for pair in pairs.tolist():
        code, at = divmod(pair, len(book.works) + 1)
        work = book.works[at]
        used = number_format(listed[code], work.format)
        rates.append(spec.peak(used) or nan)
        # FlashAttention-3 (Shah et al. 2024, section 3.1): exponentials take as long as the products at head size 64
        special = work.exponentials / spec.exponentials * rates[-1] / work.flops if work.flops else 0.0
        padding.append(_padding(work.channels, used) + special)
    return np.array(rates)[inverse], np.array(padding)[inverse]


def _padding(channels: tuple[int, int] | None, used: str | None) -> float:
    """Executed over needed FLOPs of a convolution on tensor cores with few channels: the first layer's 3 become 8."""
    width = _TENSOR_WIDTH.get(used or "")
    if channels is None or width is None or 0 in channels:
        return 1.0
    least = _CHANNEL_BYTES // width
    return float(np.prod([-(-c // least) * least / c for c in channels]))


@dataclass(frozen=True, slots=True)
class Reach:
    """Shares of the published peaks that this trace's kernels reach; ``seen``: read off them rather than assumed.

    ``arithmetic``: by peak rate and group of kernels, for each that the trace has.
    """

    arithmetic: dict[tuple[float, int], float]
    memory: float
    arithmetic_seen: bool
    memory_seen: bool

    def rates(self, peak: Floats, group: NDArray[np.int8]) -> Floats:
        """The reachable FLOP/s for each kernel's peak."""
        rates = peak * _ARITHMETIC_REACH["gemm"]
        for (value, number), share in self.arithmetic.items():
            rates[(peak == value) & (group == number)] = value * share
        return rates


def reach(found: Estimate, duration: Ints, blocks: Ints, spec: DeviceSpec) -> Reach:
    """How far kernels get that one rate limits beyond doubt: what the best tenth of them, by time, achieves.

    The best, because a badly written kernel says nothing about the device."""
    # less than half a wave of blocks (-1: not recorded) never reaches a rate either; persistent kernels launch one
    long = found.known & (duration >= _LONG_NS) & ((blocks < 0) | (2 * blocks > spec.sms))
    seconds = np.maximum(duration, 1) / 1e9
    moving = found.bytes / spec.bandwidth
    computing = np.where(
        found.flops > 0, found.flops * found.padding / np.where(np.isfinite(found.peak), found.peak, 1.0), 0.0
    )
    streams = long & found.certain & (found.flops == 0) & (found.bytes > 0)
    streams &= moving < _MEMORY_BOUNDS[1] * seconds  # faster than DRAM is a cache
    memory, memory_seen = _MEMORY_REACH, False
    if duration[streams].sum() >= _ENOUGH_NS:
        memory = float(np.clip(_best((moving / seconds)[streams], duration[streams]), *_MEMORY_BOUNDS))
        memory_seen = True
    clear = long & (computing > _CLEAR * moving)
    shares: dict[tuple[float, int], float] = {}
    arithmetic_seen = False
    for peak, number in sorted(
        set(zip(found.peak[computed := computing > 0].tolist(), found.group[computed].tolist(), strict=True))
    ):
        own = (found.peak == peak) & (found.group == number)
        rows = clear & own
        spent = duration[rows].sum()
        if spent >= _ENOUGH_NS and spent >= _TELLING * duration[own].sum():
            share = _best((computing / seconds)[rows], duration[rows])
            arithmetic_seen = True
        else:
            # what some of them reach that may wait for memory, all of them can
            reached = own & long
            share = _ARITHMETIC_REACH[_GROUPS[number]]
            if duration[reached].sum() >= _ENOUGH_NS:
                share = max(share, _best((computing / seconds)[reached], duration[reached]))
        shares[peak, number] = float(np.clip(share, *_ARITHMETIC_BOUNDS))
    return Reach(shares, memory, arithmetic_seen, memory_seen)


def _best(values: Floats, weights: Ints) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, 0.9 * total[-1])])


def times(found: Estimate, reached: Reach, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Seconds that each kernel's arithmetic and its memory traffic need at the rates within reach (NaN: unknown)."""
    moving = found.bytes / (spec.bandwidth * reached.memory)
    rates = reached.rates(found.peak, found.group)
    computing = np.where(found.flops == 0, 0.0, found.flops * found.padding / rates)
    return computing, moving
