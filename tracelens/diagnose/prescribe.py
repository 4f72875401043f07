"""From fired rules to changes: what to set, today's value, the suggested one, a snippet; and what is not worth doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracelens.diagnose.engine import Evaluation
from tracelens.model import Curve, Declined, Memory, Plan, Recommendation, Verdict
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs


@dataclass(frozen=True, slots=True)
class Advice:
    """What a prescription holds."""

    recommendations: tuple[Recommendation, ...] = ()
    plan: Plan | None = None
    declined: tuple[Declined, ...] = ()
    memory: Memory = field(default_factory=Memory)
    curves: tuple[Curve, ...] = ()


def prescribe(
    verdict: Verdict,
    analysis: RankAnalysis,
    signals: Signals,
    evaluations: Mapping[str, Evaluation],
    whatifs: WhatIfs,
) -> Advice:
    """Recommendations for the fired rules."""
    return Advice()
