"""Cases of prescriptions from small traces."""

from __future__ import annotations

from tracelens.diagnose.advice.case import Case
from tracelens.diagnose.judge import judge
from tracelens.diagnose.rules import load_rules
from tracelens.signals.analysis import RankAnalysis

RULES = load_rules()


def case_of(analysis: RankAnalysis) -> Case:
    """The rank judged, as a prescription gets it."""
    j = judge(analysis, RULES)
    return Case(j.analysis, j.signals, j.evaluations, j.whatifs, j.replayed, j.bottleneck, j.cause)
