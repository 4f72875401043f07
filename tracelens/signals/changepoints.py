"""Change-points: where the level of a sequence shifts for good, however noisy or skewed the sequence is.

Values are replaced by the normal scores of their ranks, so that stalls of any size count once and the noise level is
known (1) instead of estimated; then penalised least squares, solved exactly by PELT (Killick, Fearnhead and Eckley 2012).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_SEGMENT = 4
# in units of log(n): a Schwarz penalty (a position and a level) is 2; shifts in less than 1 % of pure noise need a little more
PENALTY = 3.0
_BLOCKS = 1000  # longer sequences are cut into blocks: a shift is placed to a thousandth of the run


def change_points(values: ArrayLike, penalty: float = PENALTY) -> Ints:
    """Positions where a new level begins, ascending, without 0. ``values``: (n,) in order of time, finite."""
    series = np.asarray(values, dtype=np.float64)
    size = -(-series.size // _BLOCKS) if series.size else 1
    if series.size < 2 * MIN_SEGMENT or np.ptp(series) == 0:
        return np.empty(0, dtype=np.int64)
    scores = normal_scores(series)
    whole = scores.size // size * size
    blocks = scores[:whole].reshape(-1, size).mean(axis=1) * np.sqrt(size)
    return np.asarray(_pelt(blocks, penalty * np.log(blocks.size)) * size, dtype=np.int64)


def normal_scores(values: Floats) -> Floats:
    """The standard normal quantile of each value's rank, ties at their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.concatenate(([0], np.cumsum(counts)[:-1]))
    rank = (below + (counts - 1) / 2)[inverse]
    return normal_quantile((rank + 0.5) / values.size)


def normal_quantile(p: Floats) -> Floats:
    """The inverse of the standard normal distribution, by interpolation of its distribution function; 0 < p < 1."""
    z = np.linspace(-5, 5, 4001)
    density = np.exp(-(z**2) / 2)
    cumulative = np.cumsum(density) - density / 2
    return np.asarray(np.interp(p, cumulative / density.sum(), z), dtype=np.float64)


def _pelt(x: Floats, penalty: float) -> Ints:
    """The segmentation that minimises squared residuals plus ``penalty`` a change, exactly."""
    count = x.size
    total = np.concatenate(([0.0], np.cumsum(x)))
    square = np.concatenate(([0.0], np.cumsum(x * x)))
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    previous = np.zeros(count + 1, dtype=np.int64)
    candidates = np.array([0], dtype=np.int64)
    for end in range(MIN_SEGMENT, count + 1):
        length = end - candidates
        cost = square[end] - square[candidates] - (total[end] - total[candidates]) ** 2 / length
        value = best[candidates] + cost
        at = int(np.argmin(value))
        best[end] = value[at] + penalty
        previous[end] = candidates[at]
        # what cannot win now never will (the pruning of PELT)
        candidates = candidates[value <= best[end]]
        fresh = end - MIN_SEGMENT + 1
        if fresh >= MIN_SEGMENT:
            candidates = np.append(candidates, fresh)
    found = []
    end = int(previous[count])
    while end > 0:
        found.append(end)
        end = int(previous[end])
    return np.array(found[::-1], dtype=np.int64)
