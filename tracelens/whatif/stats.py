"""Uncertainty of means: block bootstrap for correlated steps, standard errors, and their combination."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def block_length(count: int) -> int:
    """Steps in a block: the cube-root rule of Hall, Horowitz and Jing (1995), at least one."""
    return max(1, round(math.pow(count, 1 / 3)))


def block_error(values: npt.ArrayLike) -> float:
    """Standard error of the mean of a correlated series, by batch means; 0 with fewer than two values.

    Blocks of ``block_length`` steps; what is left over at the end joins the last block.
    """
    data = np.asarray(values, dtype=np.float64)
    count = len(data)
    if count < 2:
        return 0.0
    blocks = max(2, count // block_length(count))
    edges = np.linspace(0, count, blocks + 1).astype(np.int64)
    sizes = np.diff(edges)
    means = np.add.reduceat(data, edges[:-1]) / sizes
    mean = float(np.mean(data))
    weighted = float(np.sum((sizes * (means - mean)) ** 2)) / count**2
    return math.sqrt(weighted * blocks / (blocks - 1))


def over_rounds(values: npt.ArrayLike, length: int) -> float:
    """Mean of a series of period ``length``: of all stretches of as many whole periods as there are in it.

    A series that ends within a period has a mean that depends on where it ends. The plain mean where there is not
    even one period.
    """
    data = np.asarray(values, dtype=np.float64)
    whole = len(data) // max(length, 1) * max(length, 1)
    if whole == 0 or length <= 1:
        return float(np.mean(data))
    total = np.concatenate(([0.0], np.cumsum(data)))
    return float(np.mean(total[whole:] - total[:-whole])) / whole


def bootstrap_mean(
    values: npt.ArrayLike, level: float = 0.9, *, draws: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean of a step series and its interval, by circular block bootstrap (Politis and Romano 1992)."""
    data = np.asarray(values, dtype=np.float64)
    count = len(data)
    if count == 0:
        raise ValueError("the mean of no steps is undefined")
    mean = float(np.mean(data))
    if count == 1:
        return mean, mean, mean
    means = _resampled(data, draws, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return mean, float(min(low, mean)), float(max(high, mean))


def bootstrap_ratio(
    before: npt.ArrayLike, after: npt.ArrayLike, level: float = 0.9, *, draws: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """Speed-up mean(before) / mean(after) of two independent step series, with its interval."""
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if len(first) == 0 or len(second) == 0:
        raise ValueError("a speed-up needs steps on both sides")
    ratio = float(np.mean(first) / np.mean(second))
    ratios = _resampled(first, draws, seed) / _resampled(second, draws, seed + 1)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return ratio, float(min(low, ratio)), float(max(high, ratio))


def combine(value: float, intervals: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """One interval from independent ones around the same positive value: quadrature in log, by side."""
    down = up = 0.0
    for low, high in intervals:
        down += max(0.0, math.log(value / low)) ** 2 if low > 0 else math.inf
        up += max(0.0, math.log(high / value)) ** 2
    return value * math.exp(-math.sqrt(down)), value * math.exp(math.sqrt(up))


def weighted_quantile(values: npt.ArrayLike, weights: npt.ArrayLike, levels: Iterable[float]) -> Floats:
    """Quantiles of a weighted sample (inverse of its step-wise distribution function, interpolated)."""
    data, mass = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    order = np.argsort(data)
    cumulative = np.cumsum(mass[order])
    middle = (cumulative - 0.5 * mass[order]) / cumulative[-1]
    return np.interp(np.asarray(list(levels), dtype=np.float64), middle, data[order])


def _resampled(data: Floats, draws: int, seed: int) -> Floats:
    count = len(data)
    length = block_length(count)
    blocks = -(-count // length)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, count, size=(draws, blocks, 1))
    index = ((starts + np.arange(length)) % count).reshape(draws, -1)[:, :count]
    return np.asarray(data[index].mean(axis=1), dtype=np.float64)
