from __future__ import annotations

import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.check.test_compare import run_of, side
from tests.render.samples import loader_bound
from tracelens.check.budget import Budget, Check, Limit, check, checks_text, junit_xml, read_budget
from tracelens.errors import InputError
from tracelens.model import Gpu


def only(value: str, test: str, bound: object) -> Check:
    return check(side(run_of(50.0)), Budget((Limit(value, test, bound),)))[0]


@pytest.mark.parametrize(
    ("value", "test", "bound", "passed"),
    [
        ("steps.mean_ms", "max", 100, True), ("steps.mean_ms", "max", 1, False), ("phases.load", "min", 0.9, False),
        ("verdict.bottleneck", "equals", "cpu", True), ("verdict.cause", "not_in", ["load.too_few_workers"], False),
        ("verdict.cause", "not_in", ["load.storage"], True), ("recommendations.0.parameter", "equals", "num_workers", True),
    ],
)  # fmt: skip
def test_limits(value: str, test: str, bound: object, passed: bool) -> None:
    assert only(value, test, bound).passed is passed


def test_what_was_not_measured_has_not_passed() -> None:
    result = dataclasses.replace(loader_bound(), gpu=Gpu(None, None))
    found = check(side(run_of(50.0, result=result)), Budget((Limit("gpu.busy", "min", 0.0),)))[0]
    assert not found.passed
    assert "not measured" in found.message


def test_a_name_that_the_result_does_not_have_fails() -> None:
    assert "has no steps.meen_ms" in only("steps.meen_ms", "max", 1).message


@pytest.mark.parametrize(("after", "passed"), [(50.0, True), (51.0, True), (60.0, False), (40.0, True)])
def test_the_baseline(after: float, passed: bool) -> None:
    found = check(side(run_of(after)), Budget((), 0.05), [side(run_of(50.0))])
    assert [one.passed for one in found] == [passed]


def test_other_hardware_is_no_baseline() -> None:
    found = check(side(run_of(50.0)), Budget((), 0.05), [side(run_of(50.0, facts={"gpu": "H100"}))])
    assert not found[0].passed
    assert "hardware" in found[0].message


def test_a_baseline_that_is_wanted_must_be_given() -> None:
    with pytest.raises(InputError, match="--baseline"):
        check(side(run_of(50.0)), Budget((), 0.05))


def test_a_budget_is_read(tmp_path: Path) -> None:
    path = tmp_path / "budget.toml"
    path.write_text('[[limit]]\nvalue = "steps.mean_ms"\nmax = 80\nmin = 1\n[baseline]\nmax_slowdown = 0.1\n')
    assert read_budget(path) == Budget(
        (Limit("steps.mean_ms", "max", 80), Limit("steps.mean_ms", "min", 1)), 0.1
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limit = 3", "two brackets"), ("[[limit]]\nmax = 3", "needs value"), ('[[limit]]\nvalue = "a"', "has no limit"),
        ('[[limit]]\nvalue = "a"\nmax = "b"', "makes no sense"), ('[[limit]]\nvalue = "a"\nmost = 1', "makes no sense"),
        ("[baseline]\nslower = 1", "max_slowdown"), ("[limits]", "unknown table"), ("", "sets no limit"), ("[[", "not TOML"),
    ],
)  # fmt: skip
def test_a_budget_that_makes_no_sense_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_budget(path)
    assert "\n" not in str(caught.value)


def test_a_budget_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_budget(tmp_path / "budget.toml")


def test_junit_and_text_say_the_same() -> None:
    checks = (Check("a < b", True, "fine"), Check("c & d", False, "too slow \x07"))
    suite = ElementTree.fromstring(junit_xml(checks, "run").split("\n", 1)[1])
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.find("failure") is None for case in suite] == [True, False]
    assert [line[:4] for line in checks_text(checks).splitlines()] == ["pass", "FAIL"]
