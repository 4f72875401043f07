"""How fast a run was: its undisturbed steps, and the ratio of two runs with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.bundle import Bundle
from tracelens.ingest.runlog import RunLog, read_run_log
from tracelens.model import Result
from tracelens.whatif.stats import bootstrap_mean, bootstrap_ratio

LEVEL = 0.9
LEAST = 3  # steps
UNPROFILED, PROFILED = "unprofiled steps", "profiled steps"
_Z90 = 1.645
# quantiles of Student's t at 95 %, by degrees of freedom: the spread between a few runs is itself uncertain
_T95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Steps of one run: durations in ms, in order, the mean number of samples a step, and which steps they are."""

    durations_ms: Floats
    samples: float | None
    basis: str

    @property
    def mean_ms(self) -> float:
        """Mean duration."""
        return float(np.mean(self.durations_ms))

    def cost(self, per_sample: bool) -> Floats:
        """Milliseconds a sample, or a step."""
        return self.durations_ms / self.samples if per_sample and self.samples else self.durations_ms


def logged_sample(bundle: Bundle) -> Sample | None:
    """The unprofiled steps of a bundle, of the rank that logged most; None with fewer than three."""
    found = [_undisturbed(read_run_log(rank)) for rank in bundle.ranks if rank.steps]
    kept = [one for one in found if one is not None]
    return max(kept, key=lambda one: len(one.durations_ms)) if kept else None


def _undisturbed(log: RunLog) -> Sample | None:
    steps = log.steps
    keep = np.asarray(steps.plain, dtype=bool)
    if keep.sum() < LEAST:
        return None
    samples = steps.samples[keep]
    known = bool(np.isfinite(samples).all()) and float(np.mean(samples)) > 0
    return Sample(steps.duration_ms[keep], float(np.mean(samples)) if known else None, UNPROFILED)


def traced_sample(result: Result) -> Sample | None:
    """The steady steps that a result shows; None with fewer than three."""
    durations = np.array([row.duration_ms for row in result.step_rows if row.steady], dtype=np.float64)
    if len(durations) < LEAST:
        return None
    batch = result.throughput.batch_size
    return Sample(durations, float(batch) if batch else None, PROFILED)


def throughput(samples: Sequence[Sample]) -> tuple[float, tuple[float, float]] | None:
    """Samples/s over the runs and its interval; None where the batch size is unknown."""
    if not samples or any(one.samples is None for one in samples):
        return None
    logs, inside = _costs(samples, per_sample=True)
    error = max(inside, _between(logs))
    rate = 1000.0 / math.exp(float(np.mean(logs)))
    return rate, (rate * math.exp(-error), rate * math.exp(error))


def speedup(before: Sequence[Sample], after: Sequence[Sample]) -> tuple[float, tuple[float, float], bool]:
    """``(ratio, interval, per_sample)``: throughput of AFTER over BEFORE; per step where batch sizes are unknown.

    One run a side: block bootstrap over steps. More runs: the spread between them is in the interval too.
    """
    per_sample = all(one.samples is not None for one in (*before, *after))
    if len(before) == len(after) == 1:
        ratio, low, high = bootstrap_ratio(before[0].cost(per_sample), after[0].cost(per_sample), LEVEL)
        return ratio, (low, high), per_sample
    (first, first_inside), (second, second_inside) = _costs(before, per_sample), _costs(after, per_sample)
    ratio = math.exp(float(np.mean(first) - np.mean(second)))
    margin = math.exp(max(math.hypot(first_inside, second_inside), _between(first, second)))
    return ratio, (ratio / margin, ratio * margin), per_sample


def _costs(samples: Sequence[Sample], per_sample: bool) -> tuple[Floats, float]:
    """Logarithm of each run's mean cost, and half the width of their mean's 90 % interval as their steps have it."""
    logs, within = [], []
    for one in samples:
        mean, low, high = bootstrap_mean(one.cost(per_sample), LEVEL)
        logs.append(math.log(mean))
        within.append(max(math.log(high / mean), math.log(mean / low)))
    return np.array(logs), math.sqrt(sum(width**2 for width in within)) / len(logs)


def _between(*sides: Floats) -> float:
    """Half the width of the 90 % interval that the spread between repeats gives to the difference of means.

    The sides are runs of one job on one machine: their spread is pooled (Student's t with pooled variance), since two
    repeats alone know next to nothing of it.
    """
    freedom = sum(side.size - 1 for side in sides)
    if freedom < 1:
        return 0.0
    pooled = sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / freedom
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else _Z90
    return quantile * math.sqrt(pooled * sum(1 / side.size for side in sides))
