"""Parts of a Result that every analysis fills alike: evidence, missing signals, quality notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.diagnose.engine import Evaluation
from tracelens.diagnose.text import fill
from tracelens.model import Evidence, Missing, QualityNote
from tracelens.signals.signal import Signals


def evidence(evaluation: Evaluation, signals: Signals) -> tuple[Evidence, ...]:
    """The signals that a rule tests or needs, as far as they are known."""
    names = [*evaluation.rule.evidence, *evaluation.rule.requires]
    found = []
    for name in dict.fromkeys(names):
        signal = signals.get(name)
        if signal is not None and signal.value is not None:
            found.append(Evidence(signal.name, signal.value, signal.unit, signal.source))
    return tuple(found)


def missing_signals(signals: Signals) -> tuple[Missing, ...]:
    """Every signal without a value, and why."""
    return tuple(Missing(s.name, s.reason or "not recorded") for s in signals.values() if s.value is None)


def quality_notes(
    evaluations: Mapping[str, Evaluation], signals: Signals, notes: Sequence[str]
) -> tuple[QualityNote, ...]:
    """What reading the inputs had to say (how the run ended comes first there), then what the quality rules found."""
    fired = [
        QualityNote(e.rule.id, fill(e.rule.advice, signals))
        for e in evaluations.values()
        if e.outcome == "fired" and e.rule.is_quality
    ]
    return (*(QualityNote("quality.input", note) for note in notes), *fired)
