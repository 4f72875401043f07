"""How fast two CPUs are together: which pairs are asked about, and what comes of it here."""

import os
from pathlib import Path

import pytest

from tracelens.bundle import Bundle
from tracelens.record import pairing, session
from tracelens.record.options import RecordOptions


def test_known_siblings_are_asked_about_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_siblings", lambda cpu: [cpu, cpu + 4])
    assert pairing._pairs([0, 1, 4, 5]) == [(0, 4)]


def test_hidden_siblings_are_the_neighbour_or_half_the_list_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_siblings", lambda cpu: [cpu])
    assert pairing._pairs([0, 1, 2, 3]) == [(0, 1), (0, 2)]
    assert pairing._pairs([2, 7]) == [(2, 7)]
    assert pairing._pairs([3]) == []


def test_a_sibling_that_may_not_be_used_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_siblings", lambda cpu: [cpu, 9])
    assert pairing._pairs([0, 1]) == [(0, 1)]


def test_what_is_measured_here_is_a_speed_and_changes_nothing_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    found = pairing.pair_speed()
    assert found is None or 0 < found <= 1
    assert os.sched_getaffinity(0) == before


def test_cpus_that_others_keep_busy_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # a hundred seconds of others' work between two looks
    looks = iter([0.0, 100.0])
    monkeypatch.setattr(pairing, "_busy_s", lambda cpus: next(looks))
    monkeypatch.setattr(pairing, "_rounds", lambda cpus: [5] * len(cpus))
    assert pairing._measure((0, 1)) is None


def test_the_best_of_both_is_set_against_the_best_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[100], [60, 80], [90], [40, 50], [80], [60, 60], *[[90], [60, 70]] * 7])
    monkeypatch.setattr(pairing, "_busy_s", lambda cpus: None)
    monkeypatch.setattr(pairing, "_rounds", lambda cpus: next(answers))
    assert pairing._measure((0, 1)) == pytest.approx(0.7)
    assert next(answers, None) is None


def test_a_shared_core_is_not_believed_from_a_few_disturbed_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([*[[100], [50, 60]] * 4, [98], [96, 96]])
    monkeypatch.setattr(pairing, "_busy_s", lambda cpus: None)
    monkeypatch.setattr(pairing, "_rounds", lambda cpus: next(answers))
    assert pairing._measure((0, 1)) == pytest.approx(0.96)
    assert next(answers, None) is None


def test_less_than_two_hyper_threads_do_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_busy_s", lambda cpus: None)
    monkeypatch.setattr(pairing, "_rounds", lambda cpus: [100] if len(cpus) == 1 else [45, 50])
    assert pairing._measure((0, 1)) is None


def test_the_kernels_list_of_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "list"
    monkeypatch.setattr(pairing, "Path", lambda text: listed)
    for text, wanted in (("0,8\n", [0, 8]), ("2-3\n", [2, 3]), ("x", []), ("", [])):
        listed.write_text(text)
        assert pairing._siblings(0) == wanted


@pytest.mark.parametrize("within_job", [False, True])
def test_a_process_that_trains_is_not_forked_for_it(
    within_job: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "pair_speed", lambda: 0.7)
    opened = session.open_session(RecordOptions(("python",), tmp_path / "run"), [], within_job=within_job)
    assert opened is not None
    assert Bundle.open(opened.bundle).manifest["host"] == {"pair_speed": None if within_job else 0.7}


@pytest.mark.parametrize(
    ("first", "later", "asked", "found"),
    [
        (0.64, 0.94, True, 0.94), (0.64, 0.62, True, 0.64), (None, 0.9, True, 0.9), (0.64, None, True, 0.64),
        (0.9, 0.6, False, 0.9),
    ],
)  # fmt: skip
def test_a_core_that_seemed_shared_is_asked_about_again_after_the_job(
    first: float | None,
    later: float | None,
    asked: bool,
    found: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "pair_speed", lambda: first)
    opened = session.open_session(RecordOptions(("python",), tmp_path / "run"), [])
    assert opened is not None
    monkeypatch.setattr(session, "pair_speed", lambda: later)
    session.measure_again(opened)
    bundle = Bundle.open(opened.bundle)
    assert bool(bundle.events_of("machine")) == asked
    assert max(bundle.pair_speeds) == found


def test_a_damaged_speed_is_none(tmp_path: Path) -> None:
    for damaged in ('"x"', "[]", "-1", "NaN", "7", "true"):
        (tmp_path / "bundle.json").write_text(
            f'{{"schema": "tracelens.bundle/1", "host": {{"pair_speed": {damaged}}}}}'
        )
        assert Bundle.open(tmp_path).pair_speeds == ()
