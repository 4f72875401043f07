"""Service times of a loader whose workers were not recorded, from what the main process saw of it.

Without workers, ``next`` is the service. With workers, delivery in order and round robin, batches k and k + n come
from the same one of n workers. A batch that the main process waited for is handed over when it is finished, so
between two such batches of one worker lie the service times of the batches in between. That holds while the worker
cannot have stopped for want of indices, which takes more than ``prefetch_factor`` batches. A loader that was never
waited for only shows that it is fast enough.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.whatif.loader_inputs import Floats

WAITED_MS = 0.5  # a next() that takes no longer did not wait: the batch was there
_ENOUGH = 2
_KEPT_UP = 0.8


@dataclass(frozen=True, slots=True)
class ObservedService:
    """Service time of a batch, ms, in the order of batches; CPU and waiting apart.

    ``known``: ``measured``; ``upper``: too few batches were waited for. Then the value is four fifths of the slowest
    service that would have kept up: the truth may be far lower, more workers gain nothing, and what fewer would do
    is not known. ``in_worker``: they hold the worker's share of the hand-over. ``running``: threads that computed on
    average meanwhile, for ``LoaderInputs.recorded_running``. ``collate_ms``: CPU time of collating, contained in
    ``cpu_ms``; None where it was not recorded. ``held_ms``, ``error``, ``slow_worker``: see ``LoaderInputs``.
    """

    cpu_ms: Floats
    wait_ms: Floats
    known: Literal["measured", "upper"]
    in_worker: bool
    running: float
    held_ms: float = 0.0
    error: float | None = None
    slow_worker: float = 1.0
    collate_ms: float | None = None


def service_without_workers(next_ms: npt.ArrayLike, cpu_share: float = 1.0) -> ObservedService:
    """num_workers=0: ``next_ms`` are the durations of ``next``, which fetches and collates in the main process.

    ``cpu_share``: how much of them is CPU time, from host samples or the recorder; all of it where unknown, which
    is the cautious choice: waiting needs no core.
    """
    service = finite(next_ms)
    return ObservedService(service * cpu_share, service * (1 - cpu_share), "measured", False, 1.0)


def service_with_workers(
    next_end_ms: npt.ArrayLike,
    next_ms: npt.ArrayLike,
    num_workers: int,
    *,
    prefetch_factor: int = 2,
    epoch: npt.ArrayLike | None = None,
    cpu_share: float = 1.0,
) -> ObservedService:
    """``num_workers`` above 0: ``next_end_ms`` says when each batch was handed over, ``next_ms`` how long it took.

    Both in the order of batches, without gaps; ``epoch`` numbers each batch's epoch where there are several. Batches
    come in order (not ``in_order=False``).
    """
    ends, spans = finite(next_end_ms), finite(next_ms)
    if len(ends) != len(spans) or num_workers < 1:
        raise InputError(
            "the loader's next() needs a start and an end for every batch, and its number of workers"
        )
    if len(ends) < 2:
        raise InputError("the loader's service time needs at least two batches; trace more steps")
    passes = np.zeros(len(ends)) if epoch is None else np.asarray(epoch, dtype=np.float64)
    times = _between_waits(ends, spans, passes, num_workers, prefetch_factor)
    known = times[np.isfinite(times)]
    if len(known) >= _ENOUGH:
        running = max(1.0, num_workers * cpu_share)
        return ObservedService(known * cpu_share, known * (1 - cpu_share), "measured", True, running)
    slowest = np.full(1, _KEPT_UP * num_workers * _period(ends, spans, passes))
    return ObservedService(slowest * cpu_share, slowest * (1 - cpu_share), "upper", True, 1.0)


def _between_waits(
    ends: Floats, spans: Floats, passes: Floats, num_workers: int, prefetch_factor: int
) -> Floats:
    """The service time of each batch that lies between two waits for one worker; NaN for the others."""
    times = np.full(len(ends), np.nan)
    for number in np.unique(passes):
        members = np.flatnonzero(passes == number)
        for worker in range(min(num_workers, len(members))):
            own = members[worker::num_workers]
            seen = np.flatnonzero(spans[own] > WAITED_MS)
            for first, last in itertools.pairwise(seen.tolist()):
                if last - first <= prefetch_factor:
                    times[own[first + 1 : last + 1]] = (ends[own[last]] - ends[own[first]]) / (last - first)
    return times


def _period(ends: Floats, spans: Floats, passes: Floats) -> float:
    """The consumer's pace: mean time from one batch to the next that was there when it was asked for."""
    apart = np.diff(ends)
    there = (np.diff(passes) == 0) & (spans[1:] <= WAITED_MS)
    return float(np.mean(apart[there] if there.any() else apart))


def finite(values: npt.ArrayLike) -> Floats:
    data = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if len(data) == 0 or not np.isfinite(data).all():
        raise InputError("the loader's next() was not traced; record with the loader's events")
    return data
