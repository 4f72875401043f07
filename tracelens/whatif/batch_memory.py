"""GPU memory against the batch size: fixed + per_sample * B, and the largest batch that is safe.

The law is that of LLMem and DNNAbacus (errors of 1.6 and 2.8 % where published): parameters, gradients and
optimizer state do not depend on the batch, activations grow with it in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError

MARGIN = 0.05  # kept free of what the law predicts, for its own error
RESERVE = 0.08  # the last share of the memory that no advice enters
UNMEASURED = 2.0  # no advice beyond this multiple of a batch size that was seen


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """fixed_bytes + per_sample_bytes * B, in bytes, with what belongs to it.

    ``gap_bytes``: reserved minus allocated at the peak (fragmentation and caching); it is kept at every size.
    ``transient_fixed_bytes``: how much of what is freed every step may not grow with the batch (workspaces,
    gradients); it makes the lower bound. ``relative_error``: of a prediction, 90 %.
    ``basis``: ``sizes`` (several batch sizes seen) or ``timeline`` (one size, and the memory's floor).
    """

    fixed_bytes: float
    per_sample_bytes: float
    seen: tuple[float, ...]
    basis: Literal["sizes", "timeline"]
    gap_bytes: float = 0.0
    transient_fixed_bytes: float = 0.0
    relative_error: float = 0.03

    def allocated(self, batch: float) -> float:
        """Peak of allocated bytes with this batch size."""
        return self.fixed_bytes + self.per_sample_bytes * batch

    def interval(self, batch: float) -> tuple[float, float]:
        """90 % interval of ``allocated``; no further than measured for sizes that were seen."""
        peak = self.allocated(batch)
        nearest = min(self.seen, key=lambda size: abs(size - batch))
        growth = abs(batch / nearest - 1.0)
        spread = self.relative_error * min(1.0, growth)
        fixed_share = min(self.transient_fixed_bytes, self.per_sample_bytes * nearest)
        shift = fixed_share * (batch / nearest - 1.0)
        low, high = sorted((peak, peak - shift))
        return low * (1 - spread), high * (1 + spread)

    def reserved(self, batch: float) -> float:
        """Peak of reserved bytes: what the allocator takes from the device."""
        return self.allocated(batch) + self.gap_bytes


def fit_memory(points: Sequence[tuple[float, float]], *, gap_bytes: float = 0.0) -> MemoryFit:
    """From ``points`` (batch size, peak allocated bytes) with at least two batch sizes; least squares.

    The highest peak of each size counts: the peak is what has to fit. A negative share is impossible and is
    set to 0. Raises InputError with fewer than two sizes; ``memory_from_timeline`` needs only one.
    """
    peaks: dict[float, float] = {}
    for batch, peak in points:
        if not (batch > 0 and peak > 0 and math.isfinite(peak)):
            raise InputError("memory points need a batch size and a peak above 0; record the run again")
        peaks[batch] = max(peak, peaks.get(batch, 0.0))
    if len(peaks) < 2:
        raise InputError(
            "fitting memory from peaks needs two batch sizes; give the allocator's timeline instead"
        )
    sizes = np.asarray(sorted(peaks), dtype=np.float64)
    values = np.asarray([peaks[size] for size in sizes], dtype=np.float64)
    slope, start = (float(v) for v in np.polyfit(sizes, values, 1))
    if slope < 0:
        slope, start = 0.0, float(values.max())
    if start < 0:
        slope, start = float(np.sum(values * sizes) / np.sum(sizes**2)), 0.0
    misfit = float(np.max(np.abs(start + slope * sizes - values) / values))
    return MemoryFit(
        start, slope, tuple(float(s) for s in sizes), "sizes", gap_bytes, 0.0, max(0.02, 2 * misfit)
    )


def memory_from_timeline(
    allocated_bytes: npt.ArrayLike,
    batch: float,
    *,
    boundaries: Sequence[int] | None = None,
    peak_bytes: float | None = None,
    reserved_bytes: float | None = None,
    gradient_bytes: float | None = None,
    state_bytes: float | None = None,
) -> MemoryFit:
    """From the allocator's timeline over steady steps, with one batch size.

    ``allocated_bytes``: total allocated after each event. ``boundaries``: indices into it where steps end; only what
    lies between the first and the last counts. The floor of the timeline, after gradients were dropped and before
    activations are there, holds parameters, optimizer state and gradients that are kept: it does not depend on the
    batch. At the very end of a step it may still hold gradients that the peak, at the end of the forward pass, does
    not. ``peak_bytes``: the run-wide peak where it is known, else that of the timeline. ``state_bytes``: parameters
    and optimizer state counted otherwise; the floor is never taken to be lower. ``gradient_bytes``: gradients that
    are freed between steps.
    """
    line = np.asarray(allocated_bytes, dtype=np.float64)
    if len(line) == 0 or not batch > 0 or not np.isfinite(line).all():
        raise InputError(
            "the allocator's timeline is empty; record with memory profiling (profile_memory=True)"
        )
    within = line
    if boundaries is not None and len(boundaries) > 1:
        within = line[int(min(boundaries)) : int(max(boundaries)) + 1]
    floor = float(np.min(within))
    floor = max(floor, state_bytes or 0.0)
    peak = max(float(np.max(line)), peak_bytes or 0.0)
    transient = max(peak - floor, 0.0)
    # workspaces of convolutions and matrix products: up to a tenth of what a step frees, and gradients
    not_growing = min(transient, 0.1 * transient + (gradient_bytes or 0.0))
    gap = max(0.0, (reserved_bytes or peak) - peak)
    return MemoryFit(min(floor, peak), transient / batch, (float(batch),), "timeline", gap, not_growing, 0.05)


def max_safe_batch(
    fit: MemoryFit, capacity_bytes: float, *, outside_bytes: float = 0.0, multiple: int = 1
) -> int:
    """The largest batch size whose reserved peak, with a margin of 5 %, stays out of the last 8 % of the
    memory.

    ``outside_bytes``: memory in use that the allocator does not know (CUDA context, other processes).
    ``multiple``: round down to a multiple of it. 0 where nothing fits. Not limited to 2x: see
    ``advisable_batch``.
    """
    usable = (1 - RESERVE) * capacity_bytes - outside_bytes - fit.gap_bytes
    room = usable / (1 + MARGIN) - fit.fixed_bytes
    if room <= 0:
        return 0
    if fit.per_sample_bytes <= 0:
        return int(max(fit.seen) * UNMEASURED)
    largest = math.floor(room / fit.per_sample_bytes + 1e-9)
    return largest // multiple * multiple


def advisable_batch(
    fit: MemoryFit, capacity_bytes: float, current: int, *, outside_bytes: float = 0.0
) -> int:
    """The largest batch size to advise: safe, at most twice the largest size seen, in steps people use.

    Steps are an eighth of today's size where that is whole, else its largest divisor among 1, 2, 4. Never below
    today's size, which is known to fit.
    """
    step = current // 8 if current % 8 == 0 else math.gcd(current, 8)
    top = min(
        max_safe_batch(fit, capacity_bytes, outside_bytes=outside_bytes), int(max(fit.seen) * UNMEASURED)
    )
    if top <= current:
        return current
    return current + (top - current) // step * step
