"""Lines of a JSONL log as columns; what is not a number there is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def floats(rows: Sequence[Mapping[str, Any]], name: str, missing: float = np.nan) -> Floats:
    """One field of all rows as float64, ``missing`` where it is no number."""
    values = [row.get(name) for row in rows]
    return np.array([float(v) if is_number(v) else missing for v in values], dtype=np.float64)


def integers(rows: Sequence[Mapping[str, Any]], name: str) -> Ints:
    """One field of all rows as int64, -1 where it is no number."""
    values = [row.get(name) for row in rows]
    return np.array([int(v) if is_number(v) else -1 for v in values], dtype=np.int64)
