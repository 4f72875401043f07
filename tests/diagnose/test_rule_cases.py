"""Every rule fires where it should and stays silent just beside that: fixtures/rules/cases.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.judge import signals_of, whatifs_of
from tracelens.diagnose.engine import evaluate
from tracelens.diagnose.rules import load_rules
from tracelens.diagnose.text import fill, slots

CASES: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).resolve().parents[2] / "fixtures" / "rules" / "cases.toml").read_text("utf-8")
)
RULES = load_rules()
NEAR = [(rule, position) for rule, case in CASES.items() for position in range(len(case["near"]))]


def test_every_rule_has_a_case_that_fires_and_a_near_miss() -> None:
    assert sorted(CASES) == sorted(RULES)
    assert all(case["fires"] and case["near"] for case in CASES.values())


@pytest.mark.parametrize("rule", CASES)
def test_fires(rule: str) -> None:
    evaluation = evaluate(RULES[rule], signals_of(CASES[rule]["fires"]), whatifs_of())
    assert evaluation.outcome == "fired", evaluation.lacking


@pytest.mark.parametrize(("rule", "position"), NEAR)
def test_near_miss(rule: str, position: int) -> None:
    changes = dict(CASES[rule]["near"][position])
    expected = changes.pop("expect", "passed")
    values = {**CASES[rule]["fires"], **changes}
    assert evaluate(RULES[rule], signals_of(values), whatifs_of()).outcome == expected


@pytest.mark.parametrize("rule", RULES)
def test_text_names_only_signals_that_a_firing_rule_has(rule: str) -> None:
    text = RULES[rule].advice
    assert text
    filled = fill(text, signals_of(CASES[rule]["fires"]))
    assert "{" not in filled
    optional = {name for name in slots(text) if CASES[rule]["fires"].get(name) is None} - {"steps.mean_ms"}
    assert not optional & set(RULES[rule].requires)


@pytest.mark.parametrize("rule", RULES)
def test_the_files_hold_what_the_docs_need(rule: str) -> None:
    one = RULES[rule]
    assert Path(one.source).stem == rule
    assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)?", rule)
    assert one.since
    assert one.title[0].isupper()
    assert not one.title.endswith(".")
    assert {n for n in one.supersedes if not n.endswith(".*")} <= set(RULES), (
        "names a rule that does not exist"
    )
    if not one.is_quality:
        assert one.bottleneck is not None
        assert one.doc.get("fix")
        assert one.doc.get("false_positives")


def test_rules_name_only_signals_that_are_computed(tmp_path: Path) -> None:
    """A misspelt signal would make its rule silent for ever."""
    from tests.tracekit import Loop
    from tracelens.signals.analysis import RankAnalysis
    from tracelens.signals.catalog import rank_signals

    known = set(rank_signals(RankAnalysis(Loop().trace().tables(tmp_path))))
    known |= {  # need all ranks
        "communication.late_rank", "communication.waiting_ms", "communication.uneven_ms", "communication.late_share",
    }  # fmt: skip
    named: dict[str, str] = {}
    for rule in RULES.values():
        for condition in (*rule.applies, *rule.all, *rule.any, *rule.unless):
            named |= {name: rule.id for name in (condition.signal, condition.of) if name}
        named |= dict.fromkeys((*rule.requires, *slots(rule.advice)), rule.id)
    assert {name: rule for name, rule in named.items() if name not in known} == {}
