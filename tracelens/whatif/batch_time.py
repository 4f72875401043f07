"""Step time against the batch size: max(launch floor, a + b * B), and what a larger batch gains.

Below the floor the host cannot launch faster, or the kernels are too small for their size to matter; above it
the device's work grows in proportion. On published ResNet-50 throughputs this hinge errs by 0.7 to 2.6 %, a
straight line by 7.9 to 14.3 %. Timings alone do not show the knee before it is reached, so an extrapolation
is bounded by physics: doubling the batch costs at least nothing and at most twice the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError

DIMINISHING = 0.05  # doubling the batch for less than this much throughput is not worth its memory
_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class TimeFit:
    """max(floor_ms, fixed_ms + per_sample_ms * B, feed_ms_per_sample * B), in ms a step.

    ``fixed_low_ms``, ``fixed_high_ms``: bounds of the part of the device's time at the largest size seen that
    does not grow; they make the band. ``feed_ms_per_sample``: what loading needs for a sample (0: unlimited).
    ``basis``: ``sizes``, ``kernels`` (one size, split by kernel). ``points``: step times at some sizes that a replay
    with its work grown gives, which knows what overlaps and what waits for what; between them lines, beyond them the
    law, scaled to the nearest.
    """

    floor_ms: float
    fixed_ms: float
    per_sample_ms: float
    seen: tuple[float, ...]
    basis: Literal["sizes", "kernels"]
    fixed_low_ms: float
    fixed_high_ms: float
    noise: float = _NOISE
    feed_ms_per_sample: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    def step_ms(self, batch: float) -> float:
        """Predicted step time."""
        return max(self._law(batch) * self._anchor(batch), self.feed_ms_per_sample * batch)

    def _law(self, batch: float) -> float:
        return max(self.floor_ms, self.fixed_ms + self.per_sample_ms * batch)

    def _anchor(self, batch: float) -> float:
        """What the replay gives over what the law gives, at the nearest sizes that were replayed."""
        if not self.points:
            return 1.0
        sizes, times = zip(*self.points, strict=True)
        near = min(max(batch, sizes[0]), sizes[-1])
        replayed = float(np.interp(near, sizes, times))
        return replayed / max(self._law(near), 1e-12)

    def interval(self, batch: float) -> tuple[float, float]:
        """90 % interval of ``step_ms``: the growing share of the device's time between its bounds, and noise."""
        largest = max(self.seen)
        device = self.fixed_ms + self.per_sample_ms * largest
        ends = [self.step_ms(batch)]
        for fixed in (self.fixed_low_ms, self.fixed_high_ms):
            grown = fixed + max(device - fixed, 0.0) * batch / largest
            ends.append(max(max(self.floor_ms, grown) * self._anchor(batch), self.feed_ms_per_sample * batch))
        return min(ends) * (1 - self.noise), max(ends) * (1 + self.noise)

    def samples_per_s(self, batch: float) -> float:
        """Predicted throughput."""
        return 1000.0 * batch / self.step_ms(batch)

    def gain(self, current: float, batch: float) -> tuple[float, float, float]:
        """Ratio of throughputs at ``batch`` to ``current``, and its 90 % interval."""
        low, high = self.interval(batch)
        base = self.step_ms(current) / current
        return base / (self.step_ms(batch) / batch), base / (high / batch), base / (low / batch)

    @property
    def diminishing_from(self) -> float:
        """The batch size from which doubling gains less than 5 %; infinite where it never does."""
        low, high = 1e-3, 1e9  # the gain of doubling falls steadily from 2 to 1
        if self._doubling(high) >= 1 + DIMINISHING:
            return math.inf
        if self._doubling(low) < 1 + DIMINISHING:
            return 0.0
        while high / low > 1.001:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._doubling(middle) >= 1 + DIMINISHING else (low, middle)
        return high

    def _doubling(self, batch: float) -> float:
        return 2 * self.step_ms(batch) / self.step_ms(2 * batch)


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One point of the predicted curve."""

    batch: int
    samples_per_s: float
    low: float
    high: float


def fit_time(
    points: Sequence[tuple[float, float]], *, floor_ms: float = 0.0, feed_ms_per_sample: float = 0.0
) -> TimeFit:
    """From ``points`` (batch size, step ms) with at least two batch sizes.

    ``floor_ms``: the launch floor where the trace shows it (host time to launch a step); 0 where it does not.
    The hinge with the least relative squared error over all positions of the knee is taken; where fewer than
    two points lie beyond the knee, the line runs through the last two.
    """
    times: dict[float, list[float]] = {}
    for batch, took in points:
        if not (batch > 0 and took > 0 and math.isfinite(took)):
            raise InputError("step times need a batch size and a duration above 0; record the run again")
        times.setdefault(batch, []).append(took)
    if len(times) < 2:
        raise InputError("fitting time from steps needs two batch sizes; give the kernels' times instead")
    size = np.asarray(sorted(times), dtype=np.float64)
    ms = np.asarray([float(np.mean(times[s])) for s in size], dtype=np.float64)
    best: tuple[float, float, float, float] | None = None
    for split in range(len(size)):  # points before it lie on the floor
        beyond = max(min(split, len(size) - 2), 0)
        fixed, slope = _line(size[beyond:], ms[beyond:])
        level = max(float(np.exp(np.mean(np.log(ms[:split])))) if split else 0.0, floor_ms)
        law = np.maximum(level, fixed + slope * size)
        error = float(np.sum((law / ms - 1.0) ** 2)) + 1e-4 * split  # the simpler one among equals
        if best is None or error < best[0]:
            best = (error, level, fixed, slope)
    assert best is not None
    _, level, fixed, slope = best
    device = fixed + slope * float(size[-1])
    # beyond the last size the line is the least that a convex curve through both points can cost; the most is
    # proportional growth
    misfit = float(np.max(np.abs(np.maximum(level, fixed + slope * size) / ms - 1.0)))
    return TimeFit(
        level,
        fixed,
        slope,
        tuple(float(s) for s in size),
        "sizes",
        0.0,
        min(max(fixed, 0.0) * 1.1, device),
        max(_NOISE, misfit),
        feed_ms_per_sample,
    )


def time_from_kernels(
    batch: float,
    kernel_ms: npt.ArrayLike,
    *,
    grows: npt.ArrayLike | None = None,
    launch_floor_ms: float = 0.0,
    small_ms: float = 0.01,
    feed_ms_per_sample: float = 0.0,
) -> TimeFit:
    """From one batch size: ``kernel_ms`` are the kernels of a step (ms each, or summed by name).

    ``grows``: which kernels' work depends on the batch (optimizer, gradient reduction and weight casts do
    not). Without it, kernels shorter than ``small_ms`` are taken not to: 10 us is what launching and filling
    a device costs whatever the size. The band: everything grows, or the fixed part is the kernels below 5
    ``small_ms``.
    """
    duration = np.asarray(kernel_ms, dtype=np.float64)
    if len(duration) == 0 or not batch > 0 or (duration < 0).any():
        raise InputError(
            "the batch model needs the kernels of a step; record a trace with the GPU's activity"
        )
    mask = np.asarray(grows, dtype=bool) if grows is not None else duration >= small_ms
    total = float(duration.sum())
    fixed = float(duration[~mask].sum())
    loose = float(duration[~mask | (duration < 5 * small_ms)].sum())
    return TimeFit(
        launch_floor_ms,
        fixed,
        (total - fixed) / batch,
        (float(batch),),
        "kernels",
        0.0,
        max(loose, min(total, 1.3 * fixed)),
        0.05,
        feed_ms_per_sample,
    )


def curve(fit: TimeFit, batches: Sequence[int]) -> tuple[BatchPoint, ...]:
    """Throughput with its band for each batch size."""
    points = []
    for batch in sorted(set(batches)):
        low, high = fit.interval(batch)
        points.append(
            BatchPoint(batch, fit.samples_per_s(batch), 1000.0 * batch / high, 1000.0 * batch / low)
        )
    return tuple(points)


def _line(size: np.ndarray, ms: np.ndarray) -> tuple[float, float]:
    """Fixed and per-sample part, least relative squares, neither negative."""
    weight = 1.0 / ms
    design = np.stack([weight, size * weight], axis=1)
    fixed, slope = (float(v) for v in np.linalg.lstsq(design, np.ones(len(ms)), rcond=None)[0])
    if slope < 0:
        return float(np.mean(ms)), 0.0
    return fixed, slope
