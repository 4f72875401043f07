"""Host-to-device copies under other settings: pinned memory, non_blocking, a stream of their own, merging,
dtype.

The rules are CUDA's (programming guide, "asynchronous concurrent execution"; runtime API, "API
synchronization behavior"): a copy from pageable memory is staged through a pinned buffer and its call returns
when the host's part is done, whatever ``non_blocking`` says; a copy from pinned memory runs alone on a copy
engine, and with ``non_blocking=True`` its call returns at once. torch synchronises the stream after every
copy without ``non_blocking``. What a call waits for before its own bytes move (kernels queued in front of it)
is not the copy's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError

Floats = npt.NDArray[np.float64]
Basis = Literal["measured", "link", "prior"]
Change = Literal["pin_memory", "non_blocking", "pin_memory+non_blocking", "copy_stream", "merge", "dtype"]

LANE_GBS = {1: 0.25, 2: 0.5, 3: 0.984, 4: 1.969, 5: 3.938, 6: 7.563}  # one way, on paper
LINK_EFFICIENCY = (0.75, 0.85, 0.92)  # of paper, large pinned copies; 0.85 is the published figure
PINNED_PRIOR_GBS = (5.0, 12.0, 26.0)  # link unknown: x8 of generation 3 to x16 of generation 4, both at 85 %
PIN_COPY_GBS = (
    4.0,
    6.3,
    10.0,
)  # one thread copying a batch into pinned memory: memcpy of one core on server CPUs
CALL_MS = (0.004, 0.010, 0.030)  # an asynchronous copy call: 4 to 30 us, more where a profiler watches
LATENCY_MS = 0.002  # a copy engine's own start-up for one copy
SMALL_BYTES = 64 * 1024  # pageable copies up to this size return without waiting for the device


@dataclass(frozen=True, slots=True)
class Range:
    """An expected value with its 90 % interval."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(bounds: tuple[float, float, float]) -> Range:
        """From (low, value, high)."""
        return Range(bounds[1], bounds[0], bounds[2])


@dataclass(frozen=True, slots=True)
class Copies:
    """Host-to-device copies of ``steps`` steps: one entry a copy, ms and bytes.

    ``gpu_ms``: duration on the device. ``call_ms``: duration of the call on the host, ``waited_ms``: how much
    of it went by before the copy's own bytes moved (0 where unknown). ``pinned``: from pinned memory.
    """

    nbytes: Floats
    gpu_ms: Floats
    call_ms: Floats
    pinned: npt.NDArray[np.bool_]
    steps: int
    waited_ms: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        for name in ("nbytes", "gpu_ms", "call_ms", "waited_ms"):
            object.__setattr__(self, name, np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64)))
        object.__setattr__(self, "pinned", np.atleast_1d(np.asarray(self.pinned, dtype=bool)))
        if self.waited_ms.size == 0:
            object.__setattr__(self, "waited_ms", np.zeros(len(self.nbytes)))
        lengths = {
            len(self.nbytes),
            len(self.gpu_ms),
            len(self.call_ms),
            len(self.pinned),
            len(self.waited_ms),
        }
        if len(lengths) != 1 or self.steps < 1:
            raise InputError(
                "copies need bytes, device and host times of equal number, and at least one step"
            )
        if any((a < 0).any() or not np.isfinite(a).all() for a in (self.nbytes, self.gpu_ms, self.call_ms)):
            raise InputError("copy sizes and times must be finite and not negative")

    @property
    def own_call_ms(self) -> Floats:
        """Host time of each call that the copy itself explains: without waiting, and at least nothing."""
        return np.maximum(self.call_ms - np.maximum(self.waited_ms, 0.0), 0.0)

    def rate_gbs(self, pinned: bool) -> float | None:
        """GB/s of the larger copies of one memory kind, all bytes by all time; None where there are none."""
        big = (self.pinned == pinned) & (self.nbytes >= SMALL_BYTES) & (self.gpu_ms > 0)
        if not big.any():
            return None
        return float(self.nbytes[big].sum() / self.gpu_ms[big].sum() / 1e6)


@dataclass(frozen=True, slots=True)
class CopyEffect:
    """One change: copy time on the device and host time blocked by copies, ms a step, before and after.

    ``overlapped``: after the change the device may compute while it copies. ``basis``: where the rate comes
    from. ``note``: why a change does nothing, or what else it needs; empty otherwise.
    """

    change: Change
    gpu_before_ms: float
    gpu_after_ms: Range
    host_before_ms: float
    host_after_ms: Range
    overlapped: bool
    basis: Basis
    note: str = ""

    @property
    def helps(self) -> bool:
        """Whether copy or host time falls, also at the pessimistic end, or overlap becomes possible."""
        less = self.gpu_after_ms.high < self.gpu_before_ms or self.host_after_ms.high < self.host_before_ms
        return less or (self.overlapped and self.gpu_before_ms > 0)


def pinned_rate(
    copies: Copies, pcie_gen: int | None = None, pcie_width: int | None = None
) -> tuple[Range, Basis]:
    """Expected GB/s of large pinned copies: measured in this trace, else 85 % of the link, else a prior.

    Never below what pageable copies reach here: they cross the same link.
    """
    measured, pageable = copies.rate_gbs(True), copies.rate_gbs(False)
    if measured is not None:
        big = copies.pinned & (copies.nbytes >= SMALL_BYTES) & (copies.gpu_ms > 0)
        rates = copies.nbytes[big] / copies.gpu_ms[big] / 1e6
        low, high = (float(v) for v in np.quantile(rates, (0.05, 0.95)))
        return Range(measured, min(low, 0.95 * measured), max(high, 1.05 * measured)), "measured"
    if pcie_gen in LANE_GBS and pcie_width:
        paper = LANE_GBS[pcie_gen] * pcie_width
        low, value, high = (share * paper for share in LINK_EFFICIENCY)
        basis: Basis = "link"
    else:
        low, value, high = PINNED_PRIOR_GBS
        basis = "prior"
    floor = pageable or 0.0
    return Range(max(value, floor), max(low, floor), max(high, floor)), basis


def pin_copy_ms(batch_bytes: float) -> Range:
    """Time to copy one batch into pinned memory: on the pin thread, or in the main process with 0 workers."""
    low, value, high = (batch_bytes / gbs / 1e6 for gbs in reversed(PIN_COPY_GBS))
    return Range(value, low, high)


def pin_memory(
    copies: Copies,
    *,
    non_blocking: bool,
    num_workers: int,
    pcie_gen: int | None = None,
    pcie_width: int | None = None,
) -> CopyEffect:
    """Copies from pinned memory. Without ``non_blocking`` the host still waits for each copy, only less.

    With 0 workers torch pins in the main process: the host pays for that copy instead.
    """
    rate, basis = pinned_rate(copies, pcie_gen, pcie_width)
    count = len(copies.nbytes)
    pageable = ~copies.pinned
    kept = float(copies.gpu_ms[copies.pinned].sum())

    def device(gbs: float) -> float:
        moved = copies.nbytes[pageable] / gbs / 1e6 + LATENCY_MS
        return (
            kept + float(np.minimum(moved, np.maximum(copies.gpu_ms[pageable], LATENCY_MS)).sum())
        ) / copies.steps

    after = Range(device(rate.value), device(rate.high), device(rate.low))
    calls = [count / copies.steps * call for call in CALL_MS]
    staged = Range(0.0, 0.0, 0.0)
    if num_workers == 0:
        staged = pin_copy_ms(float(copies.nbytes[pageable].sum()) / copies.steps)
    blocked = Range(0.0, 0.0, 0.0) if non_blocking else after
    host = Range(
        calls[1] + blocked.value + staged.value,
        calls[0] + blocked.low + staged.low,
        calls[2] + blocked.high + staged.high,
    )
    note = "with num_workers=0 the main process copies into pinned memory itself" if num_workers == 0 else ""
    if not pageable.any():
        note = "all copies are from pinned memory already"
    change: Change = "pin_memory+non_blocking" if non_blocking else "pin_memory"
    return _effect(copies, change, after, host, non_blocking and bool(pageable.any()), basis, note)


def non_blocking(copies: Copies) -> CopyEffect:
    """``non_blocking=True`` alone: frees the host for pinned copies, does nothing for pageable ones."""
    gpu = _per_step(copies, copies.gpu_ms)
    own = copies.own_call_ms
    blocking = copies.pinned & (own > CALL_MS[2])  # quicker calls return at once already
    kept = float(own[~blocking].sum()) / copies.steps
    ends = [kept + float(np.minimum(own[blocking], call).sum()) / copies.steps for call in CALL_MS]
    note = ""
    if not copies.pinned.any():
        note = "copies from pageable memory block whatever non_blocking says; pin_memory comes first"
    elif not blocking.any():
        note = "copies from pinned memory return at once already"
    return _effect(
        copies,
        "non_blocking",
        Range(gpu, gpu, gpu),
        Range.of((ends[0], ends[1], ends[2])),
        bool(blocking.any()),
        "measured",
        note,
    )


def copy_stream(copies: Copies, compute_ms: float) -> CopyEffect:
    """Copies on a stream of their own: device time that computing cannot hide, ``compute_ms`` being a step's
    kernels.

    Only pinned copies run beside kernels; a pageable copy stays where it is.
    """
    pinned = float(copies.gpu_ms[copies.pinned].sum()) / copies.steps
    rest = float(copies.gpu_ms[~copies.pinned].sum()) / copies.steps
    exposed = rest + max(0.0, pinned - compute_ms)
    slack = 0.1 * min(pinned, compute_ms)  # copies and kernels share the device's memory
    note = "" if pinned else "only pinned copies overlap kernels; pin_memory comes first"
    host = _per_step(copies, copies.own_call_ms)
    return _effect(
        copies,
        "copy_stream",
        Range(exposed, exposed, exposed + slack),
        Range(host, host, host),
        pinned > 0,
        "measured",
        note,
    )


def merge_copies(copies: Copies, largest: float = SMALL_BYTES) -> CopyEffect:
    """All copies up to ``largest`` bytes in a step as one: their bytes stay, calls and start-ups go."""
    small = copies.nbytes <= largest
    count = int(small.sum())
    gpu, host = _per_step(copies, copies.gpu_ms), _per_step(copies, copies.own_call_ms)
    per_step = count / copies.steps
    if per_step <= 1:
        note = "there is at most one small copy a step"
        return _effect(
            copies, "merge", Range(gpu, gpu, gpu), Range(host, host, host), False, "measured", note
        )
    share = 1.0 - 1.0 / per_step
    call = float(copies.own_call_ms[small].sum()) / copies.steps
    # a start-up is at most what the quickest small copy took
    start = min(float(copies.gpu_ms[small].min()), LATENCY_MS)
    saved = per_step * share * start
    after_gpu, after_host = gpu - saved, host - call * share
    return _effect(
        copies,
        "merge",
        Range(after_gpu, max(0.0, gpu - float(copies.gpu_ms[small].sum()) / copies.steps * share), gpu),
        Range(after_host, after_host, after_host + 0.5 * call * share),
        False,
        "measured",
        "",
    )


def convert_on_device(
    copies: Copies, ratio: float, *, which: npt.NDArray[np.bool_] | None = None
) -> CopyEffect:
    """Send the narrower type and convert on the GPU: bytes times ``ratio`` (0.25 for uint8 instead of
    float32).

    ``which``: the copies concerned, else all of at least 64 KiB. Time above the start-up falls in proportion.
    """
    if not 0 < ratio <= 1:
        raise InputError("the ratio of a narrower type must be above 0 and at most 1")
    chosen = copies.nbytes >= SMALL_BYTES if which is None else np.asarray(which, dtype=bool)
    saved_gpu = np.maximum(copies.gpu_ms[chosen] - LATENCY_MS, 0.0) * (1 - ratio)
    own = copies.own_call_ms[chosen]
    blocking = np.minimum(own, np.where(own > CALL_MS[2], own, 0.0))
    saved_host = np.maximum(blocking - CALL_MS[1], 0.0) * (1 - ratio)
    gpu, host = _per_step(copies, copies.gpu_ms), _per_step(copies, copies.own_call_ms)
    less_gpu, less_host = float(saved_gpu.sum()) / copies.steps, float(saved_host.sum()) / copies.steps
    note = "" if chosen.any() else "there is no large copy to narrow"
    return _effect(
        copies,
        "dtype",
        Range(gpu - less_gpu, gpu - less_gpu, gpu - 0.8 * less_gpu),
        Range(host - less_host, host - less_host, host - 0.8 * less_host),
        False,
        "measured",
        note,
    )


def pinned_bytes(batch_bytes: float, num_workers: int, prefetch_factor: int) -> float:
    """Pinned host memory that the loader holds at most: every prefetched batch, one in use, one being pinned.

    torch's host allocator rounds blocks up to a power of two.
    """
    if batch_bytes <= 0:
        return 0.0
    block = 2.0 ** np.ceil(np.log2(batch_bytes))
    return float(block * (num_workers * prefetch_factor + 2))


def pinning_fits(batch_bytes: float, num_workers: int, prefetch_factor: int, ram_free: float | None) -> bool:
    """Whether pinning leaves at least half of the free RAM; unknown RAM is no obstacle."""
    return ram_free is None or pinned_bytes(batch_bytes, num_workers, prefetch_factor) <= 0.5 * ram_free


def _per_step(copies: Copies, values: Floats) -> float:
    return float(values.sum()) / copies.steps


def _effect(
    copies: Copies, change: Change, gpu: Range, host: Range, overlapped: bool, basis: Basis, note: str
) -> CopyEffect:
    return CopyEffect(
        change,
        _per_step(copies, copies.gpu_ms),
        gpu,
        _per_step(copies, copies.own_call_ms),
        host,
        overlapped,
        basis,
        note,
    )
