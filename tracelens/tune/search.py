"""What to try next: a function of the trials so far, so that a tuning can be taken up at any point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracelens.check.speed import speedup
from tracelens.tune.trial import Trial

GAIN = 1.02  # a smaller gain is not worth a setting


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to record with next, and what was promised for them over the best trial so far."""

    sets: tuple[str, ...]
    promised: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """A trial in the story: its speed-up over the best one before it, with interval, and whether it was kept."""

    trial: Trial
    ratio: float | None
    interval: tuple[float, float] | None
    kept: bool


def story(trials: Sequence[Trial]) -> list[Step]:
    """Which trials gained. The first is kept; a later one where it is clearly faster than the best before it."""
    steps: list[Step] = []
    best: Trial | None = None
    for trial in trials:
        if trial.sample is None:
            steps.append(Step(trial, None, None, False))
            continue
        if best is None or best.sample is None:
            best = trial
            steps.append(Step(trial, 1.0, (1.0, 1.0), True))
            continue
        ratio, interval, _ = speedup([best.sample], [trial.sample])
        kept = ratio >= GAIN and interval[0] > 1.0
        steps.append(Step(trial, ratio, interval, kept))
        if kept:
            best = trial
    return steps


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The last trial that was kept."""
    kept = [step.trial for step in story(trials) if step.kept]
    return kept[-1] if kept else None


def next_candidate(trials: Sequence[Trial]) -> Candidate | None:
    """The best trial's plan as a whole, then its parts by gain, whatever was not tried yet; None when all was."""
    best = best_of(trials)
    if best is None or best.result is None:
        return None
    tried = {_key(trial.sets) for trial in trials}
    for sets, promised in _options(best):
        merged = merge(best.sets, sets)
        if _key(merged) not in tried:
            return Candidate(merged, promised)
    return None


def _options(best: Trial) -> Iterable[tuple[tuple[str, ...], float | None]]:
    result = best.result
    if result is None:
        return
    plan = result.plan
    if plan is not None and plan.set_flags and (plan.predicted_speedup or GAIN) >= GAIN:
        # the plan's number is for all of it; where a part needs a code edit, --set gets less
        whole = len(plan.set_flags) == len(plan.parameters)
        yield tuple(map(text_of, plan.set_flags)), plan.predicted_speedup if whole else None
    single = [
        one for one in result.recommendations if one.set_flag and (one.predicted_speedup or GAIN) >= GAIN
    ]
    for one in sorted(single, key=lambda one: -(one.predicted_speedup or 0.0)):
        yield (text_of(one.set_flag or ""),), one.predicted_speedup


def text_of(flag: str) -> str:
    """``num_workers=4`` from ``--set num_workers=4``."""
    return flag.removeprefix("--set").strip().lstrip("=").strip()


def merge(before: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Settings with later ones in place of earlier ones of the same name."""
    values: dict[str, str] = {}
    for text in (*before, *new):
        name, _, value = text.partition("=")
        values[name] = value
    return tuple(f"{name}={value}" for name, value in values.items())


def _key(sets: Iterable[str]) -> frozenset[str]:
    return frozenset(text.lower() for text in sets)
