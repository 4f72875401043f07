"""How many groups a set of numbers forms: as many as a noise with one mode would not feign.

The statistic is the share of variance that the best split into k groups explains; its null distribution is drawn from
uniform, normal and double exponential noise, whichever feigns groups best at that number of values.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.003  # of a test; a run has a handful of them
_DRAWS = 2000
_LARGEST = 200  # the threshold falls with the number of values: beyond this many the one of this many is kept
_THIRD = 0.15
_THIN = 64  # three groups are searched among so many quantiles


def group_count(values: Floats) -> tuple[int, float]:
    """``(groups, clearness)`` of ``values`` (n,): 1, 2 or 3 groups; fewer than four values are one.

    ``clearness``: how many times less they leave unexplained than noise would; above 1 for more than one group.
    """
    if values.size < 4 or np.ptp(values) <= 1e-12:
        return 1, 0.0
    ordered = np.sort(values)[None, :]
    nearest = max(n for n in _sizes() if n <= values.size)
    rest_of_two = max(1 - float(explained_by_two(ordered)[0][0]), 1e-12)
    two = (1 - null_quantile(nearest, 2)) / rest_of_two
    if values.size >= 8:
        rest = max(1 - float(_explained_by_three(ordered)[0]), 1e-12)
        three = (1 - null_quantile(nearest, 3)) / rest
        # cutting a broad group in two takes three quarters of what it leaves unexplained; a third group takes nearly all
        if three > 1 and rest < _THIRD * rest_of_two:
            return 3, three
    return (2, two) if two > 1 else (1, two)


def best_cut(values: Floats) -> float:
    """The value that parts ``values`` into the two groups that explain most variance: the upper begins there."""
    ordered = np.sort(values)
    _, at = explained_by_two(ordered[None, :])
    return float(ordered[int(at[0])])


def explained_by_two(ordered: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """For each row of sorted values (m, n): the largest share of variance that one cut explains, and its place."""
    count = ordered.shape[1]
    centred = ordered - ordered.mean(axis=1, keepdims=True)
    left = np.cumsum(centred, axis=1)[:, :-1]
    size = np.arange(1, count)
    between = left**2 * (1 / size + 1 / (count - size))
    at = np.argmax(between, axis=1)
    total = np.maximum((centred**2).sum(axis=1), 1e-300)
    return between[np.arange(len(at)), at] / total, at + 1


def _explained_by_three(ordered: Floats) -> Floats:
    """As ``explained_by_two`` for the best two cuts, on at most ``_THIN`` quantiles of each row."""
    if ordered.shape[1] > _THIN:
        ordered = ordered[:, np.linspace(0, ordered.shape[1] - 1, _THIN).round().astype(int)]
    count = ordered.shape[1]
    centred = ordered - ordered.mean(axis=1, keepdims=True)
    left = np.concatenate((np.zeros((len(ordered), 1)), np.cumsum(centred, axis=1)), axis=1)
    best = np.zeros(len(ordered))
    for low in range(1, count - 1):
        high = np.arange(low + 1, count)
        between = (
            left[:, low, None] ** 2 / low
            + (left[:, high] - left[:, low, None]) ** 2 / (high - low)
            + left[:, high] ** 2 / (count - high)
        )
        best = np.maximum(best, between.max(axis=1))
    return np.asarray(best / np.maximum((centred**2).sum(axis=1), 1e-300), dtype=np.float64)


@lru_cache(maxsize=1)
def _sizes() -> tuple[int, ...]:
    grid = sorted({*range(4, 16), *np.geomspace(16, _LARGEST, 12).round().astype(int).tolist()})
    return tuple(int(n) for n in grid)


@lru_cache(maxsize=64)
def null_quantile(count: int, groups: int) -> float:
    """The share that ``groups`` explain in one-mode noise of ``count`` values with probability ``LEVEL``."""
    random = np.random.default_rng(count)
    draws = _DRAWS if groups == 2 else _DRAWS // 4  # three groups cost more to search
    worst = 0.0
    for noise in (random.random, random.standard_normal, random.laplace):
        size = (draws, count)
        rows = np.sort(noise(size=size), axis=1)
        explained = explained_by_two(rows)[0] if groups == 2 else _explained_by_three(rows)
        worst = max(worst, float(np.quantile(explained, 1 - LEVEL)))
    return worst
