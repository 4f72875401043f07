"""The period of a sequence: how many kernels make a step when nothing else marks one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_REPEATS = 3
MIN_PERIOD = 8
MATCH = 0.9
COVERAGE = 0.9  # layers repeat inside one step too; only what fills the whole trace is taken for steps


def kernel_period(sequence: NDArray[Any]) -> tuple[int, int] | None:
    """``(offset, period)`` of a sequence of codes that repeats at least three times, None where none does.

    Candidate periods are the distances between occurrences of a rare code; the smallest at which at least
    90 % of the codes equal the one a period later, and whose repeats fill 90 % of the sequence, wins.
    """
    size = sequence.size
    if size < MIN_REPEATS * MIN_PERIOD:
        return None
    codes, counts = np.unique(sequence, return_counts=True)
    candidates: set[int] = set()
    for code in codes[np.argsort(counts, kind="stable")]:
        at = np.flatnonzero(sequence == code)
        if at.size < MIN_REPEATS:
            continue
        gaps, often = np.unique(np.diff(at), return_counts=True)
        candidates.add(int(gaps[int(np.argmax(often))]))
        if len(candidates) >= 16:
            break
    for period in sorted(candidates):
        if period < MIN_PERIOD or period * MIN_REPEATS > size:
            continue
        same = sequence[period:] == sequence[:-period]
        offset = int(np.argmax(same))
        if same.mean() >= MATCH and (size - offset) // period * period >= COVERAGE * size:
            return offset, period
    return None
