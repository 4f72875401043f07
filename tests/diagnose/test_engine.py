"""Outcomes kept apart, and one cause said once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.judge import signals_of, whatifs_of
from tracelens.diagnose.engine import evaluate, evaluate_all
from tracelens.diagnose.rules import Rule, load_rules, parse_rule
from tracelens.diagnose.text import fill, slots
from tracelens.errors import InputError


def rule(name: str = "load.a", **changes: Any) -> Rule:
    table: dict[str, Any] = {
        "id": name, "title": "A rule", "class": "cpu", "requires": ["a.ms"],
        "when": {"all": [{"signal": "a.ms", "op": ">=", "value": 10}]}, "doc": {"why": "x"},
    }  # fmt: skip
    return parse_rule({**table, **changes}, f"{name}.toml")


B = {"signal": "b", "op": "==", "value": True}
EITHER = {"when": {"any": [B, {"signal": "c", "op": "<", "value": 1}]}}
HALF = {"when": {"all": [{"signal": "a.ms", "op": ">", "of": "total.ms", "times": 0.5}]}}
UNLESS = {"when": {"all": [{"signal": "a.ms", "op": ">", "value": 1}], "unless": [B]}}
APPLIES = {"all": [{"signal": "mode", "op": "==", "value": "workers"}]}


@pytest.mark.parametrize(
    ("changes", "values", "outcome"),
    [
        ({}, {"a.ms": 10}, "fired"),
        ({}, {"a.ms": 9.99}, "passed"),
        ({}, {"a.ms": "missing"}, "could not be evaluated"),
        ({}, {}, "could not be evaluated"),
        ({"applies": APPLIES}, {"a.ms": 50, "mode": "main"}, "not applicable"),
        ({"applies": APPLIES}, {"a.ms": "missing", "mode": "main"}, "not applicable"),
        ({"applies": APPLIES}, {"a.ms": 50, "mode": "workers"}, "fired"),
        ({"applies": APPLIES}, {"a.ms": 50}, "could not be evaluated"),
        ({"min_steps": 20}, {"a.ms": 50}, "could not be evaluated"),
        (EITHER, {"a.ms": 1, "b": True}, "fired"),
        (EITHER, {"a.ms": 1, "b": False}, "could not be evaluated"),
        (EITHER, {"a.ms": 1, "b": False, "c": 2}, "passed"),
        (HALF, {"a.ms": 6, "total.ms": 10}, "fired"),
        (HALF, {"a.ms": 5, "total.ms": 10}, "passed"),
        (UNLESS, {"a.ms": 5, "b": True}, "passed"),
        (UNLESS, {"a.ms": 5}, "fired"),
        ({"when": {"all": [{"signal": "a.ms", "op": ">", "value": "text"}]}}, {"a.ms": 5}, "could not be evaluated"),
    ],
)  # fmt: skip
def test_outcomes(changes: dict[str, Any], values: dict[str, Any], outcome: str) -> None:
    evaluation = evaluate(rule(**changes), signals_of(values), whatifs_of())
    assert evaluation.outcome == outcome
    assert bool(evaluation.lacking) == (outcome == "could not be evaluated")


def test_a_rule_never_saves_more_than_its_class() -> None:
    greedy = rule(saving={"signal": "a.ms"})
    assert evaluate(greedy, signals_of({"a.ms": 50.0}), whatifs_of(cpu=20.0)).saving_ms == 20.0
    assert evaluate(greedy, signals_of({"a.ms": 12.0}), whatifs_of(cpu=20.0)).saving_ms == 12.0
    assert evaluate(rule(), signals_of({"a.ms": 12.0}), whatifs_of(cpu=20.0)).saving_ms is None
    by_class = rule(saving={"whatif": "gpu"})
    assert evaluate(by_class, signals_of({"a.ms": 12.0}), whatifs_of(gpu=7.0)).saving_ms == 7.0


def outcomes(rules: list[Rule], **values: Any) -> dict[str, str]:
    found = evaluate_all({r.id: r for r in rules}, signals_of(values), whatifs_of())
    return {name: e.outcome for name, e in found.items()}


def test_a_fired_rule_silences_what_it_supersedes() -> None:
    rules = [
        rule("load.a", supersedes=["load.b", "host.*"]),
        rule("load.b"),
        rule("host.c"),
        rule("transfer.d"),
    ]
    assert outcomes(rules, **{"a.ms": 50}) == {
        "load.a": "fired", "load.b": "superseded", "host.c": "superseded", "transfer.d": "fired",
    }  # fmt: skip


def test_a_rule_that_did_not_fire_silences_nobody() -> None:
    quiet = rule("load.a", supersedes=["load.b"], when={"all": [{"signal": "a.ms", "op": ">", "value": 99}]})
    assert outcomes([quiet, rule("load.b")], **{"a.ms": 50}) == {"load.a": "passed", "load.b": "fired"}


def test_of_two_that_supersede_each_other_the_larger_saving_speaks() -> None:
    small = rule("load.a", supersedes=["load.b"], saving={"signal": "small.ms"})
    large = rule("load.b", supersedes=["load.a"], saving={"signal": "a.ms"})
    assert outcomes([small, large], **{"a.ms": 50, "small.ms": 5}) == {
        "load.a": "superseded",
        "load.b": "fired",
    }


def test_a_prefix_does_not_silence_the_rule_itself() -> None:
    assert outcomes([rule("load.a", supersedes=["load.*"])], **{"a.ms": 50}) == {"load.a": "fired"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"when": {}}, "[when]"),
        ({"when": {"all": [{"signal": "a", "op": "=>", "value": 1}]}}, "condition"),
        ({"when": {"all": [{"signal": "a", "op": ">"}]}}, "exactly one of value and of"),
        (
            {"when": {"all": [{"signal": "a", "op": ">", "value": 1, "of": "b"}]}},
            "exactly one of value and of",
        ),
        ({"when": {"all": [{"signal": "a", "op": ">", "value": 1, "code": "x"}]}}, "condition"),
        ({"when": {"all": {"signal": "a"}}}, "lists"),
        ({"class": "disk"}, "disk"),
        ({"saving": {"seconds": 1}}, "[saving]"),
        ({"saving": {"whatif": "disk"}}, "disk"),
        ({"doc": {}}, "[doc]"),
        ({"doc": {"why": "x", "because": "y"}}, "[doc]"),
        ({"requires": "a.ms"}, "requires"),
        ({"supersedes": [1]}, "supersedes"),
        ({"titel": "x"}, "titel"),
        ({"id": 5}, "id 5"),
        ({"title": " "}, "title"),
        ({"min_steps": "many"}, "min_steps"),
        ({"cause": "no"}, "cause"),
        ({"advice": "text"}, "advice"),
        ({"advice": {"txt": "x"}}, "advice"),
        ({"applies": {"some": []}}, "applies"),
        ({"when": {"all": [{"signal": "a", "op": ">", "of": "b", "times": "twice"}]}}, "times"),
    ],
)
def test_a_broken_rule_is_one_line_that_names_file_and_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as raised:
        rule(**changes)
    assert str(raised.value).startswith("load.a.toml: ")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("field", ["id", "title", "when", "doc"])
def test_a_field_that_is_missing(field: str) -> None:
    table = {
        "id": "a",
        "title": "A",
        "when": {"all": [{"signal": "a", "op": ">", "value": 1}]},
        "doc": {"why": "x"},
    }
    del table[field]
    with pytest.raises(InputError, match=f"field '{field}' is missing"):
        parse_rule(table, "a.toml")


MINE = """
id = "{id}"
title = "Mine"
class = "cpu"
{extra}
[when]
all = [{{ signal = "a", op = ">", value = 1 }}]
[doc]
why = "x"
"""


def test_a_folder_of_ones_own_adds_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "new.toml").write_text(MINE.format(id="load.mine", extra=""))
    (tmp_path / "over.toml").write_text(MINE.format(id="load.storage", extra="override = true"))
    rules = load_rules((tmp_path,))
    shipped = load_rules()
    assert set(rules) == {*shipped, "load.mine"}
    assert rules["load.storage"].title == "Mine"
    assert rules["load.storage"].source == str(tmp_path / "over.toml")
    assert shipped["load.storage"].title != "Mine"


def test_an_id_that_exists_needs_override(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(MINE.format(id="load.storage", extra=""))
    with pytest.raises(InputError, match="override = true"):
        load_rules((tmp_path,))


def test_a_rule_file_is_data(tmp_path: Path) -> None:
    """Nothing in a rule is evaluated: a value that looks like code is text."""
    (tmp_path / "a.toml").write_text(
        MINE.format(id="load.mine", extra="").replace("value = 1", 'value = "__import__(1)"')
    )
    own = load_rules((tmp_path,))["load.mine"]
    assert evaluate(own, signals_of({"a": 5}), whatifs_of()).outcome == "could not be evaluated"


def test_text() -> None:
    signals = signals_of(
        {"load.saving_ms": 12.345, "load.mode": "workers", "x.count": 7.04, "gone.ms": "missing"}
    )
    text = "{load.saving_ms} of each {steps.mean_ms}; {load.mode}, {x.count}; {gone.ms}; {not.there}; {plain}"
    assert fill(text, signals) == "12.3 ms of each 100 ms; workers, 7; unknown; unknown; {plain}"
    assert slots(text) == ("load.saving_ms", "steps.mean_ms", "load.mode", "x.count", "gone.ms", "not.there")


def test_rules_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule().title = "x"  # type: ignore[misc]
