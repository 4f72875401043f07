from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.render.samples import loader_bound
from tracelens.check.speed import UNPROFILED, Sample
from tracelens.model import Plan, Recommendation, Result
from tracelens.tune.report import in_code
from tracelens.tune.search import best_of, merge, next_candidate, story, text_of
from tracelens.tune.trial import Trial


def advised(
    *recommendations: tuple[str, float | None], plan: tuple[tuple[str, ...], float] | None = None
) -> Result:
    rule = "load.too_few_workers"
    listed = tuple(
        Recommendation(
            text.partition("=")[0], None, None, gain, None, None, rule, None, set_flag=f"--set {text}"
        )
        for text, gain in recommendations
    )
    whole = None
    if plan is not None:
        texts, gain = plan
        whole = Plan(
            tuple(t.partition("=")[0] for t in texts),
            gain,
            None,
            set_flags=tuple(f"--set {t}" for t in texts),
        )
    return dataclasses.replace(loader_bound(), recommendations=listed, plan=whole)


def trial(
    number: int, mean_ms: float | None, *sets: str, result: Result | None = None, code: int = 0
) -> Trial:
    made = Trial(number, Path(f"run{number}"), sets, code)
    rng = np.random.default_rng(number)
    steps = None if mean_ms is None else Sample(mean_ms * rng.normal(1, 0.02, 50), 8.0, UNPROFILED)
    # what is computed from the bundle on first use
    made.__dict__.update(sample=steps, result=result if result is not None else advised())
    return made


BOTH = advised(
    ("num_workers=4", 1.5), ("pin_memory=true", 1.1), plan=(("num_workers=4", "pin_memory=true"), 1.6)
)


def test_the_plan_is_tried_first_as_a_whole() -> None:
    candidate = next_candidate([trial(0, 100, result=BOTH)])
    assert candidate is not None
    assert candidate.sets == ("num_workers=4", "pin_memory=true")
    assert candidate.promised == 1.6


def test_then_its_parts_where_the_whole_did_not_gain() -> None:
    trials = [trial(0, 100, result=BOTH), trial(1, 110, "num_workers=4", "pin_memory=true")]
    candidate = next_candidate(trials)
    assert candidate is not None
    assert candidate.sets == ("num_workers=4",)
    trials.append(trial(2, 110, "num_workers=4"))
    candidate = next_candidate(trials)
    assert candidate is not None
    assert candidate.sets == ("pin_memory=true",)
    assert next_candidate([*trials, trial(3, 100, "pin_memory=true")]) is None


def test_after_a_gain_the_new_run_says_what_is_next_and_its_settings_are_kept() -> None:
    trials = [
        trial(0, 100, result=advised(("num_workers=4", 1.5))),
        trial(1, 60, "num_workers=4", result=advised(("prefetch_factor=4", 1.1))),
    ]
    candidate = next_candidate(trials)
    assert candidate is not None
    assert candidate.sets == ("num_workers=4", "prefetch_factor=4")


def test_a_later_value_replaces_the_earlier_one() -> None:
    trials = [
        trial(0, 100, result=advised(("num_workers=4", 1.5))),
        trial(1, 60, "num_workers=4", result=advised(("num_workers=6", 1.2))),
    ]
    candidate = next_candidate(trials)
    assert candidate is not None
    assert candidate.sets == ("num_workers=6",)


def test_what_is_not_promised_to_gain_is_not_tried() -> None:
    assert next_candidate([trial(0, 100, result=advised(("num_workers=4", 1.01)))]) is None


def test_a_recommendation_without_a_number_is_tried_after_those_with_one() -> None:
    first = trial(0, 100, result=advised(("num_threads=1", None), ("num_workers=4", 1.2)))
    candidate = next_candidate([first])
    assert candidate is not None
    assert candidate.sets == ("num_workers=4",)
    candidate = next_candidate([first, trial(1, 100, "num_workers=4")])
    assert candidate is not None
    assert candidate.sets == ("num_threads=1",)


def test_a_gain_within_the_noise_is_not_kept() -> None:
    trials = [trial(0, 100), trial(1, 99.5, "num_workers=4"), trial(2, 60, "num_workers=6")]
    assert [step.kept for step in story(trials)] == [True, False, True]
    assert best_of(trials) is trials[2]


def test_a_run_that_failed_is_no_measurement_and_not_tried_again() -> None:
    first = trial(0, 100, result=advised(("batch_size=512", 1.4)))
    failed = trial(1, None, "batch_size=512", code=1)
    assert best_of([first, failed]) is first
    assert next_candidate([first, failed]) is None


def test_settings_merge_by_name() -> None:
    assert merge(("num_workers=2", "Photos.batch_size=8"), ("num_workers=4",)) == (
        "num_workers=4",
        "Photos.batch_size=8",
    )


@pytest.mark.parametrize("flag", ["--set num_workers=4", "num_workers=4", "--set=num_workers=4"])
def test_a_flag_is_its_setting(flag: str) -> None:
    assert text_of(flag) == "num_workers=4"


def test_settings_in_code() -> None:
    lines = in_code(
        ("num_workers=4", "persistent_workers=true", "num_threads=1", "Photos.multiprocessing_context=spawn")
    )
    assert lines == [
        "torch.set_num_threads(1)",
        "DataLoader(..., num_workers=4, persistent_workers=True)",
        "DataLoader(..., multiprocessing_context='spawn')  # the loader Photos",
    ]
