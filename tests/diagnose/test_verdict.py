"""Waste before work, 8 % of the step, and what a reader is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnose.judge import signals_of, whatifs_of
from tracelens.diagnose import verdict as decide
from tracelens.diagnose.engine import evaluate_all
from tracelens.diagnose.rules import load_rules
from tracelens.model import RESOURCES

RULES = load_rules()


def decided(
    values: dict[str, Any] | None = None,
    kind: str = "replay",
    error: float | None = 0.0,
    **saving: float | None,
) -> Any:
    """The class and the reason, from savings of a 100 ms step; classes that are not named save nothing."""
    whatifs = whatifs_of(kind, error, **{**dict.fromkeys(RESOURCES, 0.0), **saving})
    signals = signals_of({"phase.compute": 0.5, "gpu.busy": 0.5, **(values or {})})
    evaluations = evaluate_all(RULES, signals, whatifs)
    return decide.bottleneck(whatifs, signals, evaluations), whatifs, signals, evaluations


@pytest.mark.parametrize(
    ("saving", "expected"),
    [
        ({"cpu": 33.0, "gpu": 56.0}, "cpu"),
        ({"cpu": 8.0, "gpu": 90.0}, "cpu"),
        ({"cpu": 7.9, "gpu": 90.0}, "gpu"),
        ({"cpu": 10.0, "h2d_copy": 12.0, "memory_bandwidth": 60.0}, "h2d_copy"),
        ({"communication": 30.0, "cpu": 10.0}, "communication"),
        ({"gpu": 20.0, "memory_bandwidth": 30.0}, "memory_bandwidth"),
        ({"gpu": 30.0, "memory_bandwidth": 20.0}, "gpu"),
        ({"cpu": 7.0, "h2d_copy": 7.0, "gpu": 7.0}, "none"),
        ({"cpu": None, "h2d_copy": 20.0}, "h2d_copy"),
        ({}, "none"),
    ],
)
def test_classes(saving: dict[str, float | None], expected: str) -> None:
    (name, reason), *_ = decided(**saving)
    assert (name, reason) == (expected, None)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"quality.unlaunched_share": 1.0, "gpu.busy": 0.6}, "nothing but GPU work was recorded"),
        ({"quality.cpu_only": True, "quality.expects_gpu": True}, "no kernel was recorded"),
        ({"quality.other_share": 0.7}, "70 %"),
        ({"quality.coverage": 0.2}, "20 %"),
        ({"quality.coverage": 0.0}, "0 %"),
    ],
)
def test_no_verdict_without_evidence(values: dict[str, Any], says: str) -> None:
    (name, reason), whatifs, signals, evaluations = decided(values, cpu=50.0)
    assert name == "inconclusive"
    assert says in reason
    assert decide.confidence(name, whatifs, signals, evaluations) <= 0.5


def test_what_is_not_measured_is_no_reason_to_doubt() -> None:
    (name, _), *_ = decided({"quality.coverage": "missing", "quality.other_share": "missing"}, cpu=50.0)
    assert name == "cpu"


def sure(
    values: dict[str, Any] | None = None, kind: str = "replay", error: float | None = 0.0, **saving: float
) -> float:
    (name, _), whatifs, signals, evaluations = decided(values, kind, error, **saving)
    return decide.confidence(name, whatifs, signals, evaluations)


def test_bounds_are_never_more_than_four_fifths_sure() -> None:
    assert sure(kind="bound", error=None, cpu=90.0) <= 0.8 < sure(cpu=90.0)


def test_a_clear_margin_is_surer_than_a_narrow_one() -> None:
    assert sure(cpu=40.0) > sure(cpu=40.0, h2d_copy=38.0)
    assert sure(cpu=40.0) > sure(cpu=8.1)
    assert sure(gpu=60.0, cpu=0.0) > sure(gpu=60.0, cpu=7.5)


def test_doubts_lower_confidence() -> None:
    plain = sure(cpu=40.0)
    assert sure(error=0.06, cpu=40.0) < plain
    assert sure({"quality.step_error": 0.25}, cpu=40.0) < plain
    assert sure({"quality.coverage": 0.7}, cpu=40.0) < plain
    assert (
        sure({"quality.steps": 2, "steps.steady": 2, "quality.step_source": "profiler_step"}, cpu=40.0) <= 0.8
    )


@pytest.mark.parametrize("name", ["cpu", "h2d_copy", "communication", "gpu", "memory_bandwidth", "none"])
def test_each_other_class_is_ruled_out_with_a_number(name: Any) -> None:
    _, whatifs, *_ = decided(cpu=1.0, h2d_copy=2.0, communication=3.0, gpu=4.0, memory_bandwidth=5.0)
    ruled = decide.ruled_out(name, whatifs)
    assert {r.bottleneck for r in ruled} == set(RESOURCES) - {name}
    assert all("ms" in r.reason and "100 ms" in r.reason for r in ruled)


def test_a_class_that_could_not_be_judged_says_so() -> None:
    _, whatifs, *_ = decided(cpu=30.0, memory_bandwidth=None)
    reason = {r.bottleneck: r.reason for r in decide.ruled_out("cpu", whatifs)}["memory_bandwidth"]
    assert "could not be judged" in reason


def test_a_finding_beside_the_verdict_is_never_its_cause() -> None:
    """Layout conversions that save more than any rule of the class that names a cause."""
    values = {"kernels.layout_conversion_ms": 30.0, "kernels.memory_ms": 20.0, "gpu.busy": 0.95}
    (name, _), _, _, evaluations = decided(values, memory_bandwidth=40.0)
    assert name == "memory_bandwidth"
    assert evaluations["compute.layout"].saving_ms == 30
    assert decide.cause(name, evaluations) == "memory.bandwidth"


def test_findings_beside_the_verdict_silence_nobody() -> None:
    beside = {rule.id for rule in RULES.values() if not rule.may_be_cause}
    assert beside
    assert not any(set(RULES[name].supersedes) for name in beside)
