"""When a kind of step recurs: every N steps, every epoch, every N seconds, or from one step on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.units import number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_REGULAR = 0.8  # share of the distances that must agree
_CLOCK = 0.15  # variation of the distances in time up to which a clock is behind it
_SUSTAINED = 5


@dataclass(frozen=True, slots=True)
class Recurrence:
    """``every_steps`` or ``every_s`` where it is periodic; ``epoch`` where that is an epoch; ``text`` for a person.

    ``burst``: steps of one occurrence (mean). ``sustained``: it lasts, rather than recurs.
    """

    every_steps: int | None = None
    every_s: float | None = None
    epoch: bool = False
    sustained: bool = False
    burst: float = 1.0
    text: str | None = None


def recurrence(
    member: NDArray[np.bool_],
    start_s: Floats | None = None,
    numbers: Sequence[int] | Ints | None = None,
    epoch_steps: int | None = None,
    epochs: Ints | None = None,
) -> Recurrence:
    """How the steps of one kind lie among all steps.

    ``member`` (n,) flags in order of time; ``start_s`` (n,) when each step began; ``numbers`` (n,) how steps are called;
    ``epoch_steps`` the steps of an epoch, ``epochs`` (n,) the epoch of each step, where either is known.
    """
    rows = np.flatnonzero(member)
    if not rows.size or rows.size == member.size:
        return Recurrence()
    onset = rows[np.concatenate(([True], np.diff(rows) > 1))]
    burst = rows.size / onset.size
    if epochs is not None and _at_epochs(onset, epochs):
        return Recurrence(epoch=True, burst=burst, text="every epoch")
    gaps = np.diff(onset)
    every = int(np.median(gaps)) if gaps.size else 0
    # a missed occurrence doubles a distance and leaves the rhythm
    regular = bool(gaps.size) and every > 1 and float((gaps % every == 0).mean()) >= _REGULAR
    if epoch_steps and epoch_steps > 1 and gaps.size and (np.abs(gaps - epoch_steps) <= 1).all():
        return Recurrence(
            epoch_steps, epoch=True, burst=burst, text=f"every epoch ({number(epoch_steps)} steps)"
        )
    if onset.size >= 3 and regular:
        text = f"every {number(every)} steps"
        if burst >= 1.5:
            text = f"{number(round(burst, 1))} steps in every {number(every)}"
        return Recurrence(every, burst=burst, text=text)
    if burst >= _SUSTAINED and onset.size <= max(2, rows.size // 10):
        return Recurrence(sustained=True, burst=burst, text=_stretch(rows, onset, member.size, numbers))
    if start_s is not None and onset.size >= 4:
        spacing = np.diff(start_s[onset])
        mean = float(spacing.mean())
        if mean > 0 and float(spacing.std()) / mean < _CLOCK:
            return Recurrence(every_s=mean, burst=burst, text=f"every {number(round(mean, 3))} s")
    return Recurrence(burst=burst)


def recurs(steps: Ints) -> float | None:
    """The interval, in steps, at which the steps of these numbers recur; None where they keep none."""
    if not steps.size:
        return None
    member = np.zeros(int(steps.max() - steps.min()) + 1, dtype=bool)
    member[steps - steps.min()] = True
    every = recurrence(member).every_steps
    return float(every) if every is not None else None


def _at_epochs(onset: Ints, epochs: Ints) -> bool:
    """Whether the occurrences are the beginnings of epochs, nearly all of those that were seen."""
    first = np.flatnonzero(np.diff(epochs) > 0) + 1
    if first.size < 2:
        return False
    near = np.isin(onset, np.concatenate((first, first + 1, [0])))
    seen = np.isin(first, onset) | np.isin(first + 1, onset)
    return float(near.mean()) >= _REGULAR and float(seen.mean()) >= _REGULAR


def _stretch(rows: Ints, onset: Ints, count: int, numbers: Sequence[int] | Ints | None) -> str | None:
    if onset.size != 1:
        return None
    first, last = int(rows[0]), int(rows[-1])
    called = [int(n) for n in numbers] if numbers is not None else list(range(count))
    if last == count - 1:
        return f"from step {called[first]} on"
    if first == 0:
        return f"up to step {called[last]}"
    return f"steps {called[first]} to {called[last]}"
