from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tune.test_search import advised, trial
from tracelens.errors import InputError, UsageError
from tracelens.tune import loop
from tracelens.tune.journal import NAME, open_journal
from tracelens.tune.loop import CommandError, TuneOptions, tune
from tracelens.tune.report import tuned_text
from tracelens.tune.trial import Trial, last_line, run_trial

COMMAND = (sys.executable, "train.py")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """A job whose step takes 100 ms, 60 with workers, and 50 with prefetching too; the runs made so far."""
    monkeypatch.chdir(tmp_path)
    made: list[tuple[str, ...]] = []
    times = {(): 100.0, ("num_workers=4",): 60.0, ("num_workers=4", "prefetch_factor=8"): 50.0}
    results = {
        (): advised(("num_workers=4", 1.6)),
        ("num_workers=4",): advised(("prefetch_factor=8", 1.2)),
    }

    def fake(number: int, folder: Path, command: Any, sets: tuple[str, ...], **_: Any) -> Trial:
        made.append(sets)
        (folder / f"run{number}").mkdir()
        return trial(number, times[sets], *sets, result=results.get(sets))

    monkeypatch.setattr(loop, "run_trial", fake)
    # a taken-up tuning reads its trials from the bundles
    monkeypatch.setattr(
        loop.Journal, "trials",
        lambda journal: [
            trial(line["run"], times[tuple(line["set"])], *line["set"], result=results.get(tuple(line["set"])))
            for line in map(json.loads, (journal.folder / NAME).read_text().splitlines())
            if line["event"] == "run"
        ],
    )  # fmt: skip
    return made


def quiet(_: str) -> None:
    return None


def test_it_goes_on_while_it_gains_and_says_what_to_keep(jobs: list[tuple[str, ...]]) -> None:
    tuned = tune(TuneOptions(COMMAND), quiet)
    assert jobs == [(), ("num_workers=4",), ("num_workers=4", "prefetch_factor=8")]
    assert tuned.best is tuned.trials[-1]
    text = tuned_text(tuned, COMMAND)
    assert "DataLoader(..., num_workers=4, prefetch_factor=8)" in text
    assert "Best: run 2, 2.0" in text


def test_the_number_of_runs_is_bounded(jobs: list[tuple[str, ...]]) -> None:
    tuned = tune(TuneOptions(COMMAND, max_runs=2), quiet)
    assert len(jobs) == 2
    assert "--max-runs" in tuned.ended


def test_no_run_is_begun_when_the_time_is_up(jobs: list[tuple[str, ...]]) -> None:
    tuned = tune(TuneOptions(COMMAND, max_minutes=0.01), quiet)
    assert jobs == [()]
    assert "--max-minutes" in tuned.ended


def test_a_tuning_is_taken_up_where_it_ended(jobs: list[tuple[str, ...]]) -> None:
    first = tune(TuneOptions(COMMAND, max_runs=2), quiet)
    jobs.clear()
    second = tune(TuneOptions(COMMAND, resume=first.folder), quiet)
    assert jobs == [("num_workers=4", "prefetch_factor=8")]
    assert second.folder == first.folder
    assert [t.number for t in second.trials] == [0, 1, 2]


def test_another_command_does_not_take_it_up(jobs: list[tuple[str, ...]]) -> None:
    folder = tune(TuneOptions(COMMAND, max_runs=1), quiet).folder
    with pytest.raises(UsageError, match="another command"):
        tune(TuneOptions((*COMMAND, "--epochs", "2"), resume=folder), quiet)


def test_a_folder_that_is_no_tuning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tuning folder"):
        open_journal(COMMAND, tmp_path)


@pytest.mark.parametrize(
    "options",
    [TuneOptions(()), TuneOptions(COMMAND, max_runs=0), TuneOptions(COMMAND, max_minutes=0), TuneOptions(COMMAND, stop_after=2)],
)  # fmt: skip
def test_options_that_make_no_sense_are_bad_usage(options: TuneOptions) -> None:
    with pytest.raises(UsageError):
        tune(options, quiet)


def test_a_command_that_does_not_exist_is_exit_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="command not found") as caught:
        tune(TuneOptions(("no-such-program",)), quiet)
    assert caught.value.exit_code == 4


def test_a_command_that_fails_is_exit_4_and_its_last_words_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, "-c", "raise SystemExit('the data set is missing')")
    with pytest.raises(CommandError, match="the data set is missing"):
        tune(TuneOptions(command), quiet)


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    done = run_trial(
        0, tmp_path, (sys.executable, "-c", "import time; time.sleep(60)"), (), stop_after=10, seconds=1.0
    )
    assert done.cut
    assert done.seconds < 20
    assert not done.ran
    assert "time was up" in done.why_failed()


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "run0.log"
    assert last_line(log) == str(log)
    log.write_text("one\ntwo\n\n")
    assert last_line(log) == "two"
