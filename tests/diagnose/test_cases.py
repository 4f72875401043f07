"""Every collected report of a slow job: the rule that names it, the advice, and signals that the tool really computes."""

from __future__ import annotations

import pytest

from benchmarks.cases import REPORTS, judge_case, load_cases, origin, titles
from tests.signalkit import produced
from tracelens.diagnose.rules import load_rules

CASES = load_cases()
RULES = load_rules()


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named_and_the_advice_is_what_helped(name: str) -> None:
    judged = judge_case(name, CASES[name], RULES)
    assert judged.wrong == ()
    assert judged.covered == ("unknown" not in CASES[name])


def test_nine_in_ten_are_covered() -> None:
    covered = sum(judge_case(name, case, RULES).covered for name, case in CASES.items())
    assert covered >= 0.9 * len(CASES)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if "signals" in case])
def test_a_case_holds_only_signals_that_a_recording_gives(name: str) -> None:
    known = produced()
    assert [signal for signal in CASES[name]["signals"] if signal not in known] == []


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.get("rules")])
def test_without_its_signals_a_rule_does_not_fire(name: str) -> None:
    """The rules fire for what the case says, not for what every job has."""
    case = {**CASES[name], "signals": {"load.mode": "workers"}}
    judged = judge_case(name, case, RULES)
    assert [rule for rule in case["rules"] if rule not in str(judged.wrong)] == []


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("trace", "trace"), ("loader log", "agent"), ("host log (whole run)", "sampler"), ("GPU log and trace", "NVML+trace"),
        ("loader log and host log", "agent+sampler"), ("step log (unprofiled steps)", "agent"), ("kernel names", "trace"),
    ],
)  # fmt: skip
def test_where_a_signal_comes_from(source: str, part: str) -> None:
    assert origin(source) == part


def test_every_collected_report_has_an_entry() -> None:
    if not (REPORTS / "slow_jobs.md").is_file():
        pytest.skip("the collected reports are not on this machine")
    assert set(titles(REPORTS)) == set(CASES)
