"""Service times of a loader whose workers a host log shows: how much they compute and read, and whether they are held up.

What the main process saw of the loader says how long the batches took that it waited for (``loader_observe``); the
log says how much work there was in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.whatif.loader_inputs import Floats
from tracelens.whatif.loader_observe import ObservedService, finite

HANDOVER_MS = 2.0  # a usual next() that takes longer waits: handing over takes less
LOG_ERROR = 0.03  # relative standard error of a load that samples of tenths of a second show
BUSY = 0.85  # of a worker's time: one that computes and reads less while it is waited for is held up
ONE_SLOW = 1.5  # times as busy as the others, who make batches of the same kind


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """What a host log shows of the workers: the share of its time that each computes, and waits for storage.

    ``busiest``: computing and waiting of the one that does most; ``others``: of the others on average (equal to it
    where there is one worker).
    """

    computing: float
    reading: float
    busiest: float
    others: float

    @property
    def busy(self) -> float:
        """Share of a worker's time in which a batch progresses."""
        return min(self.computing + self.reading, 1.0)


def waited_for(next_ms: npt.ArrayLike, batch_ms: float) -> npt.NDArray[np.bool_]:
    """Which batches were not there when they were asked for: ``next`` took longer than handing over takes.

    ``batch_ms``: from one batch to the next; a twentieth of it is no wait worth the name.
    """
    spans = finite(next_ms)
    quick = float(np.percentile(spans, 25))
    return spans > (quick if quick < HANDOVER_MS else 0.0) + max(0.05 * batch_ms, 0.2)


def always_starved(waits: npt.ArrayLike, num_workers: int, least: float = 0.0) -> bool:
    """Whether no batch was ever ready early: any ``num_workers`` steps in a row had to wait, and about as long as others.

    ``waits``: how long each step found its consumer (the GPU) idle for want of data; above ``least`` it counts. Workers
    that run in step deliver in bursts of ``num_workers``; a tenth of the rounds may pass without a wait. Where a few
    rounds do most of the waiting it is a few batches that are late.
    """
    lengths = np.atleast_1d(np.asarray(waits, dtype=np.float64))
    ones = np.ones(min(max(num_workers, 1), len(lengths)))
    rounds = np.convolve(np.where(lengths > least, lengths, 0.0), ones, mode="valid")
    return bool(np.mean(rounds > 0) >= 0.9 and np.median(rounds) >= 0.5 * np.mean(rounds))


def divided(
    fitted: ObservedService | None,
    next_end_ms: npt.ArrayLike,
    next_ms: npt.ArrayLike,
    num_workers: int,
    batch_ms: float,
    seen: WorkersSeen,
    *,
    starved: bool = False,
    prefetch_factor: int = 2,
) -> ObservedService:
    """Service times with a host log at hand, which knows how much work is in them.

    ``fitted``: what the waits show of busy workers (None: nothing); ``next_end_ms``, ``next_ms``: as in
    ``service_with_workers``; ``batch_ms``: from one batch to the next; ``starved``: batches are used as fast as they
    come. Of the ``num_workers * batch_ms`` that the workers have for a batch they spend ``seen.busy`` on it.

    Starved although none of the workers is busy: something holds them up (a quota, too few cores, the hand-over).
    Then their work alone is the service time, and ``batch_ms`` what no number of them goes below. Starved by one of
    them, which is busy while the others are not: it is slower than they are. Otherwise the slow batches are the ones
    that were waited for, and the others share what work is left.
    """
    ends, spans = finite(next_end_ms), finite(next_ms)
    work = seen.busy * num_workers * batch_ms
    waited = waited_for(spans, batch_ms)
    times, held, slow = np.full(len(spans), work), 0.0, 1.0
    error: float | None = LOG_ERROR
    if waited.any():
        if seen.busy >= BUSY and fitted is not None:
            times, error = fitted.cpu_ms + fitted.wait_ms, None
        elif starved and seen.busiest < BUSY:
            held = batch_ms
        elif starved and seen.busiest >= ONE_SLOW * seen.others and _of_one_worker(waited, num_workers):
            slow = seen.busiest / seen.others
            times = np.full(len(spans), num_workers * batch_ms / slow)
        else:
            times = _slow_ones(ends, spans, waited, num_workers, prefetch_factor, work)
    share = seen.computing / max(seen.computing + seen.reading, 1e-9)
    running = max(1.0, num_workers * min(seen.computing, 1.0))
    return ObservedService(times * share, times * (1 - share), "measured", True, running, held, error, slow)


def _of_one_worker(waited: npt.NDArray[np.bool_], num_workers: int) -> bool:
    """Whether one worker made all of the batches that were waited for, two at least, and in every round."""
    late = np.flatnonzero(waited)
    return bool(num_workers > 1 and late.size >= 2 and np.unique(late % num_workers).size == 1)


def _slow_ones(
    ends: Floats,
    spans: Floats,
    waited: npt.NDArray[np.bool_],
    num_workers: int,
    prefetch_factor: int,
    mean: float,
) -> Floats:
    """The service times, of the given mean, where some batches are slow: each worker followed from batch to batch.

    A batch that was waited for was begun when its worker had finished the one before and had its index, and was
    ready when it was handed over; the others take alike. Whole rounds of workers.
    """
    count, ahead = len(ends), num_workers * prefetch_factor
    keep = slice(count % num_workers if count > num_workers else 0, None)
    usual, times = mean, np.full(count, mean)
    for _ in range(4):
        ready, followed = np.zeros(count), np.zeros(count, dtype=bool)
        for k in range(count):
            before, sent = k - num_workers, k - ahead
            begun = [float(ready[before])] if before >= 0 else []
            begun += [float(ends[sent])] if sent >= 0 else []
            asked = float(ends[k] - spans[k])
            followed[k] = waited[k] and bool(begun)
            times[k] = max(float(ends[k]) - max(begun), 0.0) if followed[k] else usual
            ready[k] = ends[k] if waited[k] else min((max(begun) if begun else asked - usual) + usual, asked)
        slow = followed & (times > usual)
        for k in np.flatnonzero(waited & ~followed).tolist():
            # nothing shows when it was begun: it took as long as the next ones of the same worker
            later = [j for j in range(k + num_workers, count, num_workers) if waited[j]]
            if later:
                times[k] = float(np.mean(times[later]))
                slow[k] = times[k] > usual
        left = mean * len(times[keep]) - float(times[keep][slow[keep]].sum())
        if slow[keep].all() or left <= 0:
            return np.asarray(times[keep] * (mean / max(float(times[keep].mean()), 1e-9)))
        usual = left / float((~slow[keep]).sum())
    return np.where(slow, times, usual)[keep]


def slow_one(service_ms: npt.ArrayLike, worker: npt.ArrayLike) -> tuple[int, float] | None:
    """The worker that takes longer for every batch than the others do, and how many times; None where there is none.

    Three batches of each worker at least, and the quickest of the slow one slower than the others' usual (median).
    """
    times, made_by = np.asarray(service_ms, dtype=np.float64), np.asarray(worker)
    names, counts = np.unique(made_by, return_counts=True)
    if names.size < 2 or counts.min() < 3:
        return None
    medians = np.array([float(np.median(times[made_by == name])) for name in names])
    slowest = int(np.argmax(medians))
    others = float(np.mean(times[made_by != names[slowest]]))
    quickest = float(times[made_by == names[slowest]].min())
    ratio = float(np.mean(times[made_by == names[slowest]])) / max(others, 1e-9)
    second = float(np.delete(medians, slowest).max())
    return (int(names[slowest]), ratio) if ratio >= ONE_SLOW and quickest > second else None
