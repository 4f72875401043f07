"""What a prescription is made from, and the few questions that all of them ask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from tracelens.diagnose.engine import Evaluation
from tracelens.model import Bottleneck, Curve, Declined, Memory, Plan, Recommendation
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs
from tracelens.whatif.replay import Scenario
from tracelens.whatif.scenarios import CLASSES, LOADED, RankReplay, merge
from tracelens.whatif.stats import block_error

_FEW = 3
_REHEARSED = 1.5  # any gain that no branch gives up on
WAITS = 0.03  # of a step spent waiting for data: from here on the rules count it
# Standard error of the ratio of two recordings of one job, beyond what their own steps show: of 44 pairs on two virtual
# machines half differed by more than 2.5 %; hosts that are not shared do better.
RUNS = 0.025
WORTH = 0.02  # a change that gains less is not recommended (design section 7)


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a replay can show: likely, pessimistic and optimistic scenario, and where they come from."""

    likely: Scenario
    low: Scenario
    high: Scenario
    basis: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A recommendation with the change behind it (None where no replay shows it)."""

    recommendation: Recommendation
    change: Change | None = None
    in_plan: bool = True


@dataclass(frozen=True, slots=True)
class Advice:
    """All that is prescribed."""

    recommendations: tuple[Recommendation, ...] = ()
    plan: Plan | None = None
    declined: tuple[Declined, ...] = ()
    memory: Memory = field(default_factory=Memory)
    curves: tuple[Curve, ...] = ()


@dataclass(frozen=True)
class Case:
    """One judged rank. In a ``rehearsal`` questions to the replay are only collected, so that one replay answers all.

    ``starved``: another rank that waits more for its data than this one; the loader's advice is about that one.
    """

    analysis: RankAnalysis
    signals: Signals
    evaluations: Mapping[str, Evaluation]
    whatifs: WhatIfs
    replayed: RankReplay | None
    bottleneck: Bottleneck
    cause: str | None
    rehearsal: bool = False
    starved: Case | None = None

    def fired(self, rule: str) -> bool:
        """Whether a rule fired and was not silenced."""
        return rule in self.evaluations and self.evaluations[rule].outcome == "fired"

    @property
    def fired_load_rule(self) -> str | None:
        """The loading rule that saves most, of those that may be a cause; one that saves nothing of loading is none."""
        fired = [
            e
            for e in self.evaluations.values()
            if e.outcome == "fired" and e.rule.id.startswith("load.") and e.rule.may_be_cause and e.saving_ms
        ]
        return max(fired, key=lambda e: e.saving_ms or 0.0).rule.id if fired else None

    @property
    def step_ms(self) -> float:
        """Today's mean step."""
        return self.whatifs.step_ms

    @property
    def noise(self) -> float:
        """Relative standard error of the mean step, runs of alike steps counted as one (block bootstrap)."""
        analysis = self.analysis
        durations = analysis.plain_ms if analysis.has_step_log else analysis.steps.durations / 1e6
        if durations.size < 3:
            return 0.05  # one or two steps: their spread is unknown, and was 1-10 % on the runs at hand
        return float(block_error(durations) / max(float(np.mean(durations)), 1e-9))

    def speedups(self, scenarios: Sequence[Scenario], base: Scenario | None = None) -> list[float] | None:
        """Ratios of throughput under scenarios, against ``base`` (default: unchanged); None without a replay."""
        if self.replayed is None:
            return None
        first = base or Scenario("base")
        means = self.replayed.means([first, *scenarios], later=self.rehearsal)
        if means is None:
            return [_REHEARSED] * len(scenarios)
        return [float(means[0] / max(m, 1.0)) for m in means[1:]]

    def consume_ms(self, also: Scenario | None = None) -> np.ndarray:
        """Step times with every batch ready, in ms: recorded values where a step log has them, else their mean."""
        analysis = self.analysis
        if self.replayed is not None:
            scenario = merge(LOADED, also) if also is not None else LOADED
            # no estimate of the loader is left in this replay: taken as it is, not as a ratio to one that has it
            means = self.replayed.means([scenario], later=self.rehearsal)
            return np.array([max(means[0], 1.0) / 1e6 if means else self.step_ms / _REHEARSED])
        if analysis.has_step_log and np.isfinite(analysis.plain_wait_ms).all():
            held = np.maximum(analysis.plain_ms - analysis.plain_wait_ms, 1e-3)
            return held[analysis.plain_within] if analysis.plain_within.sum() >= _FEW else held
        waiting = self.signals.number("load.saving_ms") or 0.0
        return np.array([max(self.step_ms - waiting, 1e-3)])

    def next_bottleneck(self, applied: Scenario | None) -> Bottleneck | None:
        """The class that limits once a change is applied: again the one that saves most, waste before work."""
        if self.replayed is None:
            return None
        base = applied or Scenario("base")
        names = list(CLASSES)
        gains = self.speedups([merge(base, CLASSES[name]) for name in names], base)
        if gains is None:
            return None
        saved = {name: 1 - 1 / max(gain, 1e-9) for name, gain in zip(names, gains, strict=True)}
        waste = {n: s for n, s in saved.items() if n in ("cpu", "h2d_copy", "communication") and s >= 0.08}
        work = {n: s for n, s in saved.items() if n in ("gpu", "memory_bandwidth") and s >= 0.08}
        pool = waste or work
        return cast(Bottleneck, max(pool.items(), key=lambda item: item[1])[0]) if pool else "none"

    def stated(
        self, gain: float, interval: tuple[float, float], noise: float | None = None
    ) -> tuple[float | None, tuple[float, float] | None]:
        """The number as it may be said: none where the replay is not to be trusted or noise could make the gain.

        ``noise``: relative error of what the gain is measured against, where that is not the mean step.
        """
        error = self.whatifs.error
        if error is not None and abs(error) > 0.05:
            return None, None
        if gain - 1 < 2 * (self.noise if noise is None else noise):
            return None, None
        low, high = widened(interval[0], gain, interval[1], RUNS)
        return round(gain, 3), (round(low, 3), round(high, 3))


def widened(low: float, gain: float, high: float, noise: float) -> tuple[float, float]:
    """A 90 % interval of a ratio with a further relative standard error added in quadrature."""
    down = math.hypot(math.log(gain / min(low, gain)), 1.645 * noise)
    up = math.hypot(math.log(max(high, gain) / gain), 1.645 * noise)
    return gain * math.exp(-down), gain * math.exp(up)
