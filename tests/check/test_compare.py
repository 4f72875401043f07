from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.render.samples import loader_bound
from tracelens.check.compare import compare, load_side
from tracelens.check.comparison import Comparison, Confirmation
from tracelens.check.sides import Run, Side
from tracelens.check.speed import UNPROFILED, Sample
from tracelens.check.views import html_text, markdown_text, terminal_text
from tracelens.errors import InputError
from tracelens.model import Curve, Plan, Recommendation, Result
from tracelens.render.html import html_report

MACHINE = {"gpu": "A100", "gpu_memory_bytes": 42_000_000_000, "gpus": 1, "cpu_model": "EPYC", "cpu_count": 16}
SETTINGS = {"num_workers": 2, "pin_memory": False, "batch_size": 64, "prefetch_factor": 2}


def recommendation(
    parameter: str, current: object, suggested: object, predicted: float, low: float, high: float
) -> Recommendation:
    return Recommendation(
        parameter, current, suggested, predicted, (low, high), "gpu", "load.too_few_workers", None,
        set_flag=f"--set {parameter}={suggested}",
    )  # fmt: skip


def result_with(
    *recommendations: Recommendation, plan: Plan | None = None, curves: tuple[Curve, ...] = ()
) -> Result:
    return dataclasses.replace(loader_bound(), recommendations=recommendations, plan=plan, curves=curves)


def run_of(
    mean_ms: float, settings: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None,
    result: Result | None = None, name: str = "run",
) -> Run:  # fmt: skip
    rng = np.random.default_rng(int(mean_ms * 10))
    steps = Sample(mean_ms * rng.normal(1.0, 0.02, 60), 64.0, UNPROFILED)
    return Run(
        name,
        result or loader_bound(),
        {**MACHINE, **(facts or {})},
        {**SETTINGS, **(settings or {})},
        steps,
        None,
    )


def side(*runs: Run) -> Side:
    return Side(runs[0].name, runs)


WORKERS = recommendation("num_workers", 2, 6, 1.5, 1.4, 1.6)


def only(found: Comparison) -> Confirmation:
    assert len(found.confirmations) == 1
    return found.confirmations[0]


def test_a_recommendation_that_kept_its_word_is_inside() -> None:
    before = run_of(75.0, result=result_with(WORKERS))
    found = compare(side(before), side(run_of(50.0, {"num_workers": 6})))
    row = only(found)
    assert found.outcome == "faster"
    assert row.status == "as suggested"
    assert row.measured == pytest.approx(1.5, rel=0.02)
    assert row.inside is True


def test_one_that_did_not_is_outside_and_the_direction_is_said() -> None:
    before = run_of(50.0, result=result_with(WORKERS))
    found = compare(side(before), side(run_of(60.0, {"num_workers": 6})))
    assert found.outcome == "slower"
    assert only(found).inside is False
    assert only(found).overlap is False


def test_a_change_that_was_not_made_is_not_judged() -> None:
    found = compare(side(run_of(50.0, result=result_with(WORKERS))), side(run_of(40.0)))
    row = only(found)
    assert (row.status, row.measured, row.inside) == ("not applied", None, None)


def test_another_value_is_held_against_the_curve() -> None:
    curve = Curve(
        "num_workers", "throughput", "samples/s", (2.0, 4.0, 6.0), (100.0, 130.0, 150.0), (95.0, 120.0, 140.0),
        (105.0, 140.0, 160.0), current=2.0, suggested=6.0,
    )  # fmt: skip
    before = run_of(65.0, result=result_with(WORKERS, curves=(curve,)))
    row = only(compare(side(before), side(run_of(50.0, {"num_workers": 4}))))
    assert row.status == "another value"
    assert row.predicted == pytest.approx(1.3)
    assert row.interval == pytest.approx((1.2, 1.4))
    assert row.inside is True


def test_changes_made_together_are_judged_by_the_plan() -> None:
    pinned = recommendation("pin_memory", False, True, 1.1, 1.05, 1.15)
    plan = Plan(("num_workers", "pin_memory"), 1.6, (1.5, 1.7))
    before = run_of(80.0, result=result_with(WORKERS, pinned, plan=plan))
    rows = compare(side(before), side(run_of(50.0, {"num_workers": 6, "pin_memory": True}))).confirmations
    assert [row.measured for row in rows[:2]] == [None, None]
    assert rows[2].parameter == "num_workers + pin_memory"
    assert (rows[2].predicted, rows[2].inside) == (1.6, True)


def test_half_a_plan_and_another_change_is_not_held_against_the_plan() -> None:
    pinned = recommendation("pin_memory", False, True, 1.1, 1.05, 1.15)
    plan = Plan(("num_workers", "pin_memory", "non_blocking"), 1.8, (1.7, 1.9))
    before = run_of(80.0, result=result_with(WORKERS, pinned, plan=plan))
    last = compare(side(before), side(run_of(50.0, {"num_workers": 6, "pin_memory": True}))).confirmations[-1]
    assert (last.predicted, last.inside) == (None, None)
    assert last.measured == pytest.approx(1.6, rel=0.02)


def test_what_cannot_be_seen_is_said_to_be_invisible() -> None:
    blocking = recommendation("non_blocking", False, True, 1.2, 1.1, 1.3)
    row = only(compare(side(run_of(50.0, result=result_with(blocking))), side(run_of(40.0))))
    assert row.status == "not visible"


@pytest.mark.parametrize(
    ("fact", "value", "word"),
    [("gpu", "H100", "GPU A100 against H100"), ("cpu_model", "Xeon", "CPU EPYC against Xeon"), ("gpus", 2, "number of GPUs")],
)  # fmt: skip
def test_different_hardware_is_not_judged(fact: str, value: object, word: str) -> None:
    before = run_of(75.0, result=result_with(WORKERS))
    found = compare(side(before), side(run_of(50.0, {"num_workers": 6}, {fact: value})))
    assert found.outcome == "not comparable"
    assert found.refusal is not None
    assert word in found.refusal
    assert (found.measured, found.confirmations) == (None, ())


def test_more_cores_are_an_allotment_and_not_other_hardware() -> None:
    found = compare(
        side(run_of(75.0, facts={"usable_cores": 4.0})), side(run_of(50.0, facts={"usable_cores": 8.0}))
    )
    assert found.refusal is None
    assert [(c.group, c.name) for c in found.changes] == [("settings", "usable_cores")]


def test_settings_versions_code_and_variables_are_listed_as_changed() -> None:
    before = run_of(50.0, facts={"torch": "2.5", "git_commit": "a", "env.OMP_NUM_THREADS": "4"})
    after = run_of(50.0, {"num_workers": 4}, {"torch": "2.6", "git_commit": "b", "env.MKL_NUM_THREADS": "1"})
    changes = {(c.group, c.name): (c.before, c.after) for c in compare(side(before), side(after)).changes}
    assert changes == {
        ("settings", "num_workers"): (2, 4), ("versions", "torch"): ("2.5", "2.6"), ("code", "git_commit"): ("a", "b"),
        ("environment", "env.OMP_NUM_THREADS"): ("4", None), ("environment", "env.MKL_NUM_THREADS"): (None, "1"),
    }  # fmt: skip


def test_other_changes_beside_the_recommended_one_are_named() -> None:
    before = run_of(75.0, result=result_with(WORKERS), facts={"torch": "2.5"})
    found = compare(side(before), side(run_of(50.0, {"num_workers": 6, "drop_last": True}, {"torch": "2.6"})))
    assert any("torch" in note and "drop_last" in note for note in found.notes)


def test_steps_within_their_noise_are_no_change() -> None:
    assert compare(side(run_of(50.0)), side(run_of(50.1))).outcome == "unchanged"


def test_repeats_are_taken_together_and_listed() -> None:
    found = compare(side(run_of(50.0), run_of(52.0), run_of(48.0)), side(run_of(40.0)))
    assert found.before.runs == 3
    assert found.before.runs_ms == pytest.approx((50.0, 52.0, 48.0), rel=0.02)
    assert "runs" in terminal_text(found)


def test_unknown_hardware_is_said() -> None:
    bare = dataclasses.replace(run_of(50.0), facts={})
    found = compare(side(bare), side(run_of(40.0)))
    assert found.outcome == "faster"
    assert any("hardware of BEFORE was not recorded" in note for note in found.notes)


def test_too_few_steps_give_no_ratio() -> None:
    empty = dataclasses.replace(run_of(50.0), logged=None, traced=None)
    found = compare(side(empty), side(run_of(40.0)))
    assert (found.outcome, found.measured) == ("unknown", None)
    assert found.headline.startswith("The speeds cannot be compared")


# -- views -----------------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Comparison:
    return compare(side(run_of(75.0, result=result_with(WORKERS))), side(run_of(50.0, {"num_workers": 6})))


def test_the_terminal_says_the_answer_first_and_fits(held: Comparison) -> None:
    lines = terminal_text(held, width=80).splitlines()
    assert lines[0].startswith("Faster: 1.5")
    assert max(map(len, lines)) <= 80
    assert "inside" in terminal_text(held)


def test_markdown_has_every_table_and_escapes_data(held: Comparison) -> None:
    nasty = dataclasses.replace(held, before=dataclasses.replace(held.before, name="<b>|@you `x`"))
    text = markdown_text(nasty)
    assert "<b>" not in text
    assert "@you" not in text
    rows = [line for line in text.splitlines() if line.startswith("| `num_workers=6`")]
    assert len(rows) == 1
    assert "inside" in rows[0]


def test_html_is_complete_without_network_or_script_and_escapes_data(held: Comparison) -> None:
    nasty = dataclasses.replace(held, before=dataclasses.replace(held.before, name="<img src=x onerror=1>"))
    page = html_text(nasty)
    assert "<img" not in page
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"?https?:", page)
    assert "c-predicted" in page
    assert "c-compare" in page


def test_html_of_a_refusal_shows_both_sides_and_no_ratio() -> None:
    found = compare(side(run_of(75.0)), side(run_of(50.0, facts={"gpu": "H100"})))
    page = html_text(found)
    assert "Not comparable" in page
    assert "c-predicted" not in page


# -- paths -----------------------------------------------------------------------------------------------


def test_a_report_of_ours_is_a_side(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html_report(result_with(WORKERS)), "utf-8")
    loaded = load_side(path)
    assert loaded.first.result.recommendations == (WORKERS,)
    assert compare(loaded, loaded).outcome in ("unchanged", "unknown")


def test_a_report_knows_the_machine_as_well_as_its_bundle_does(tmp_path: Path) -> None:
    bundle = load_side(Path(__file__).parents[2] / "fixtures" / "runs" / "cpu_training")
    path = tmp_path / "report.html"
    path.write_text(html_report(bundle.first.result), "utf-8")
    facts = load_side(path).first.facts
    assert facts == bundle.first.facts
    assert {"cpu_model", "python", "torch", "command"} <= facts.keys()


def test_a_path_that_is_not_there_is_one_line() -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_side(Path("nowhere/run"))
