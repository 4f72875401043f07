"""The rule engine: four outcomes, kept apart, and one cause said once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tracelens.diagnose.rules import Condition, Rule
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs

Outcome = Literal["fired", "superseded", "passed", "not applicable", "could not be evaluated"]

_OUTSIDE = ("communication.waiting_ms", "gpu.shared_saving_ms")
# measured over the whole run, at moments that a profiled window, from which the what-ifs come, need not hold
_WHOLE_RUN = ("host.gc_saving_ms", "load.validation_start_ms")
_OPS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A rule's outcome; ``saving_ms`` a step where it fired and that is known; ``lacking`` the missing signals."""

    rule: Rule
    outcome: Outcome
    saving_ms: float | None = None
    lacking: tuple[str, ...] = ()


def holds(condition: Condition, signals: Signals) -> bool | None:
    """Whether a condition holds; None where a signal is missing or of another type."""
    left = signals.value(condition.signal)
    right: Any = condition.value
    if condition.of is not None:
        other = signals.number(condition.of)
        right = None if other is None else other * condition.times
    if left is None or right is None:
        return None
    try:
        return bool(_OPS[condition.op](left, right))
    except TypeError:
        return None


def evaluate(rule: Rule, signals: Signals, whatifs: WhatIfs) -> Evaluation:
    """One rule against the signals of one rank."""
    applies = [holds(c, signals) for c in rule.applies]
    if any(result is False for result in applies):
        return Evaluation(rule, "not applicable")
    unclear = tuple(c.signal for c, result in zip(rule.applies, applies, strict=True) if result is None)
    if unclear:
        return Evaluation(rule, "could not be evaluated", lacking=unclear)
    lacking = tuple(name for name in rule.requires if signals.value(name) is None)
    if lacking:
        return Evaluation(rule, "could not be evaluated", lacking=lacking)
    if _steps(rule, signals) < rule.min_steps:
        return Evaluation(rule, "could not be evaluated", lacking=("steps.steady",))
    every = [holds(c, signals) for c in rule.all]
    some = [holds(c, signals) for c in rule.any]
    if any(result is False for result in every) or (some and all(result is False for result in some)):
        return Evaluation(rule, "passed")
    unknown = [c.signal for c, result in zip(rule.all, every, strict=True) if result is None]
    if some and not any(some):
        unknown += [c.signal for c, result in zip(rule.any, some, strict=True) if result is None]
    if unknown:
        return Evaluation(rule, "could not be evaluated", lacking=tuple(unknown))
    if any(holds(c, signals) for c in rule.unless):
        return Evaluation(rule, "passed")
    return Evaluation(rule, "fired", saving_ms=_saving(rule, signals, whatifs))


def _steps(rule: Rule, signals: Signals) -> float:
    """Steps behind a rule's evidence: those of the logs where all of it comes from there, else the trace's steady ones."""
    sources = [signals[name].source or "" for name in rule.requires]
    logged = bool(sources) and all(source.startswith(("step log", "loader log")) for source in sources)
    return signals.number("steps.count" if logged else "steps.steady") or 0


def _saving(rule: Rule, signals: Signals, whatifs: WhatIfs) -> float | None:
    """The rule's own estimate, never more than its class saves in all."""
    own = signals.number(rule.saving_signal) if rule.saving_signal else None
    resource = rule.saving_whatif or rule.bottleneck
    ceiling = whatifs.saving_ms.get(resource) if resource else None
    if rule.bottleneck in ("gpu", "communication") and rule.saving_signal in _OUTSIDE:
        ceiling = None  # waiting for others: no what-if of the rank's own resources contains it
    if rule.saving_signal in _WHOLE_RUN:
        ceiling = None
    known = [value for value in (own, ceiling) if value is not None]
    if not known or not (rule.saving_signal or rule.saving_whatif) or (rule.saving_signal and not own):
        return None
    return min(known)


def evaluate_all(rules: Mapping[str, Rule], signals: Signals, whatifs: WhatIfs) -> dict[str, Evaluation]:
    """Every rule's outcome, after suppression: a fired rule silences those it supersedes, also through others."""
    results = {rule.id: evaluate(rule, signals, whatifs) for rule in rules.values()}
    fired = [r for r in results.values() if r.outcome == "fired"]
    silenced: set[str] = set()
    # the larger saving speaks first; a silenced rule silences nobody
    for result in sorted(fired, key=lambda r: -(r.saving_ms or 0.0)):
        if result.rule.id not in silenced:
            silenced |= _superseded(result.rule, rules)
    for result in fired:
        if result.rule.id in silenced:
            results[result.rule.id] = Evaluation(result.rule, "superseded")
    return results


def _superseded(rule: Rule, rules: Mapping[str, Rule]) -> set[str]:
    """Ids that a rule names; ``prefix.*`` stands for every rule with that prefix but itself."""
    found: set[str] = set()
    for entry in rule.supersedes:
        if entry.endswith(".*"):
            found |= {name for name in rules if name.startswith(entry[:-1]) and name != rule.id}
        else:
            found.add(entry)
    return found
