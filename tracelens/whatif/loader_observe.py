"""Service times of a loader whose workers were not recorded, from what the main process saw of it.

Without workers, ``next`` is the service. With workers, delivery in order and round robin, batches k and k + n come
from the same one of n workers: where the main process waited for both, that worker fetched without a pause between
them, and the ends of the two ``next`` calls lie one service time apart. A loader that was never waited for only
shows that it is fast enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.whatif.loader_inputs import Floats

WAITED_MS = 0.5  # a next() that takes no longer did not wait: the batch was there
_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class ObservedService:
    """Service time of a batch, ms, in the order of batches; CPU and waiting apart.

    ``known``: ``measured``; ``upper``: no batch was waited for, so that the values are the slowest that would have
    kept up. ``in_worker``: they hold the worker's share of the hand-over. ``running``: threads that computed on
    average meanwhile, for ``LoaderInputs.recorded_running``.
    """

    cpu_ms: Floats
    wait_ms: Floats
    known: Literal["measured", "upper"]
    in_worker: bool
    running: float


def service_without_workers(next_ms: npt.ArrayLike, cpu_share: float = 1.0) -> ObservedService:
    """num_workers=0: ``next_ms`` are the durations of ``next``, which fetches and collates in the main process.

    ``cpu_share``: how much of them is CPU time, from host samples or the recorder; all of it where unknown, which
    is the cautious choice: waiting needs no core.
    """
    service = _finite(next_ms)
    return ObservedService(service * cpu_share, service * (1 - cpu_share), "measured", False, 1.0)


def service_with_workers(
    next_end_ms: npt.ArrayLike, next_ms: npt.ArrayLike, num_workers: int, cpu_share: float = 1.0
) -> ObservedService:
    """``num_workers`` above 0: ``next_end_ms`` says when each batch was handed over, ``next_ms`` how long it took.

    Both in the order of batches of one epoch, without gaps. Batches are in order (not ``in_order=False``).
    """
    ends, spans = _finite(next_end_ms), _finite(next_ms)
    if len(ends) != len(spans) or num_workers < 1:
        raise InputError(
            "the loader's next() needs a start and an end for every batch, and its number of workers"
        )
    waited = spans > WAITED_MS
    apart = ends[num_workers:] - ends[:-num_workers]
    both = waited[num_workers:] & waited[:-num_workers]
    if int(both.sum()) >= _ENOUGH:
        service = apart[both]
        running = max(1.0, num_workers * cpu_share)
        return ObservedService(service * cpu_share, service * (1 - cpu_share), "measured", True, running)
    if len(ends) < 2:
        raise InputError("the loader's service time needs at least two batches; trace more steps")
    period = float(ends[-1] - ends[0]) / (len(ends) - 1)
    slowest = np.full(1, period * num_workers)
    return ObservedService(slowest * cpu_share, slowest * (1 - cpu_share), "upper", True, 1.0)


def _finite(values: npt.ArrayLike) -> Floats:
    data = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if len(data) == 0 or not np.isfinite(data).all():
        raise InputError("the loader's next() was not traced; record with the loader's events")
    return data
