"""A rank's logs as columns: which steps tell the speed, which loader trains, what a damaged file still gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bundlekit import MS, START, Run, cut_last_line, lines
from tracelens.bundle import RankFiles
from tracelens.ingest.runlog import RunLog, read_run_log


def log_of(run: Run, folder: Path) -> RunLog:
    return read_run_log(RankFiles(0, run.write(folder / "run") / "rank0"))


def steps_of(folder: Path, durations: list[float], windows: dict[int, int] | None = None) -> RunLog:
    now, rows = START, []
    for number, length in enumerate(durations):
        rows.append(
            {"step": number, "t0": now, "t1": now + int(length * MS), "window": (windows or {}).get(number)}
        )
        now += int(length * MS)
    folder.mkdir(parents=True, exist_ok=True)
    lines(folder / "steps.jsonl", rows)
    return read_run_log(RankFiles(0, folder))


def test_columns_are_what_was_written(tmp_path: Path) -> None:
    log = log_of(Run(steps=12, step_ms=10, wait_ms=4), tmp_path)
    assert len(log.steps) == 12
    assert log.steps.duration_ms.tolist() == [10.0] * 12
    assert log.steps.wait_ms.tolist() == [4.0] * 12
    assert log.steps.samples.tolist() == [32.0] * 12
    assert log.steps.window.tolist() == [-1] * 12
    assert np.isnan(log.steps.mem_peak).all()  # not written is unknown, never 0
    assert log.batch_bytes == 1_000_000
    assert log.queue_depth.tolist() == [0.0] * 12
    assert log.starts_ms.tolist() == [30.0]


def test_batches_made_in_workers_come_from_the_worker_logs(tmp_path: Path) -> None:
    made = log_of(Run(steps=12, workers=3, service_ms=20, cpu_ms=15), tmp_path).fetches
    assert len(made) == 12
    assert sorted(set(made.worker.tolist())) == [0, 1, 2]
    assert made.batch.tolist() == list(range(12))  # by time, whichever file they came from
    assert made.wall_ms.tolist() == [20.0] * 12
    assert made.cpu_ms.tolist() == [15.0] * 12
    assert made.waiting_ms.tolist() == [5.0] * 12


def test_batches_made_in_the_training_process_come_from_next(tmp_path: Path) -> None:
    made = log_of(Run(steps=12, workers=0, wait_ms=6, cpu_ms=5), tmp_path).fetches
    assert made.worker.tolist() == [-1] * 12
    assert made.wall_ms.tolist() == [6.0] * 12
    assert made.waiting_ms.tolist() == [1.0] * 12


def test_waiting_is_neither_computing_nor_being_kept_from_a_core(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    fetch = {"event": "fetch", "loader": 0, "worker": 0, "batch": 0, "t0": START, "t1": START + 20 * MS}
    rows = [
        {**fetch, "cpu_ms": 5.0, "run_delay_ms": 7.0},
        {**fetch, "cpu_ms": None},
        {**fetch, "cpu_ms": 25.0},
    ]
    lines(tmp_path / "rank0" / "worker-7.jsonl", rows)
    lines(tmp_path / "rank0" / "loader.jsonl", [{"event": "loader", "loader": 0, "num_workers": 1}])
    made = read_run_log(RankFiles(0, tmp_path / "rank0")).fetches
    assert made.waiting_ms.tolist() == [8.0, 20.0, 0.0]


def test_settings_are_the_effective_arguments_and_the_usable_cores(tmp_path: Path) -> None:
    log = log_of(Run(workers=3, cores=6), tmp_path)
    assert log.settings["num_workers"] == 3
    assert log.settings["pin_memory"] is False  # false is known, unlike null
    assert log.settings["batch_size"] == 32
    assert log.settings["cpu_count"] == 6


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ({"count": 64, "affinity": 8, "quota": 2.5}, 2),
        ({"count": 64, "affinity": 8}, 8),
        ({"quota": 0.5}, 1),
        ({}, None),
    ],
)
def test_cores_are_the_fewest_of_count_affinity_and_quota(
    tmp_path: Path, cpu: dict[str, Any], expected: int | None
) -> None:
    lines(tmp_path / "process.jsonl", [{"pid": 1, "cpu": cpu}])
    assert read_run_log(RankFiles(0, tmp_path)).settings.get("cpu_count") == expected


def test_a_loader_without_a_batch_size_is_measured_by_its_batches(tmp_path: Path) -> None:
    """batch_sampler and batch_size=None: the batches say how large they are; the last, smaller one does not count."""
    run = Run(steps=11, batch_size=24, loader={"batch_size": None})
    assert log_of(run, tmp_path).settings["batch_size"] == 24


def test_the_training_loader_is_the_one_that_delivered_most_training_batches(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"event": "loader", "loader": k, "num_workers": k} for k in range(3)]
    rows += [{"event": "batch", "loader": 0, "training": False, "batch": i} for i in range(50)]  # validation
    rows += [{"event": "batch", "loader": 1, "training": True, "batch": i} for i in range(20)]
    rows += [{"event": "batch", "loader": 2, "training": True, "batch": i} for i in range(5)]
    lines(tmp_path / "loader.jsonl", rows)
    log = read_run_log(RankFiles(0, tmp_path))
    assert log.settings["num_workers"] == 1
    assert len(log.loaders) == 3
    # an evaluation script has only loaders without gradients: then the busiest of them
    lines(tmp_path / "loader.jsonl", [r for r in rows if r["event"] == "loader" or not r["training"]])
    assert read_run_log(RankFiles(0, tmp_path)).settings["num_workers"] == 0


def test_profiled_steps_and_the_ones_after_them_do_not_tell_the_speed(tmp_path: Path) -> None:
    log = steps_of(tmp_path, [10.0] * 12, {4: 0, 5: 0, 9: 1})
    assert np.flatnonzero(~log.steps.plain).tolist() == [0, 4, 5, 6, 9, 10]


def test_start_up_is_left_out_and_recurring_stalls_are_not(tmp_path: Path) -> None:
    slow_start = steps_of(tmp_path / "a", [900.0, 300.0] + [10.0] * 30)
    assert np.flatnonzero(~slow_start.steps.plain).tolist() == [0, 1]
    # every eighth step stalls, the first among them: that is how the job runs
    stalls = steps_of(tmp_path / "b", [10.0, 80.0] + ([10.0] * 7 + [80.0]) * 4)
    assert stalls.steps.plain[1:].all()


def test_few_steps_are_all_kept(tmp_path: Path) -> None:
    assert steps_of(tmp_path, [500.0, 10.0, 10.0]).steps.plain.all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 1000), min_size=1, max_size=40), st.sets(st.integers(0, 39)))
def test_plain_steps_are_never_profiled_and_some_remain(
    tmp_path_factory: pytest.TempPathFactory, durations: list[float], profiled: set[int]
) -> None:
    log = steps_of(tmp_path_factory.mktemp("steps"), durations, dict.fromkeys(profiled, 0))
    assert not (log.steps.plain & (log.steps.window >= 0)).any()
    if len(durations) >= 20 and not profiled:
        assert log.steps.plain.sum() >= len(durations) - 6


@pytest.mark.parametrize(
    "name", ["steps.jsonl", "loader.jsonl", "worker-101.jsonl", "process.jsonl", "windows.jsonl"]
)
def test_a_half_written_last_line_costs_that_line_only(tmp_path: Path, name: str) -> None:
    whole = log_of(Run(steps=20, workers=1, window=range(12, 16)), tmp_path)
    cut_last_line(tmp_path / "run" / "rank0" / name)
    cut = read_run_log(RankFiles(0, tmp_path / "run" / "rank0"))
    lost = [len(whole.steps) - len(cut.steps), len(whole.fetches) - len(cut.fetches)]
    lost.append(len(whole.queue_depth) - len(cut.queue_depth))
    expected = {"steps.jsonl": [1, 0, 0], "worker-101.jsonl": [0, 1, 0], "loader.jsonl": [0, 0, 1]}
    assert lost == expected.get(name, [0, 0, 0])
    assert len(cut.windows) == (0 if name == "windows.jsonl" else 1)
    assert ("cpu_count" in cut.settings) is (name != "process.jsonl")


def test_nothing_written_is_an_empty_log(tmp_path: Path) -> None:
    log = read_run_log(RankFiles(0, tmp_path))
    assert len(log.steps) == len(log.fetches) == 0
    assert log.settings == {}
    assert log.batch_bytes is None
    assert log.windows == ()


def test_lines_that_are_no_steps_are_skipped(tmp_path: Path) -> None:
    good = {"step": 1, "t0": START, "t1": START + MS, "wait_ms": True, "samples": "many"}
    text = (
        "\n".join([json.dumps(good), '{"step": 2}', "[1, 2]", "null", '{"t0": "x", "t1": 5}', "garbage{"])
        + "\n"
    )
    (tmp_path / "steps.jsonl").write_text(text)
    log = read_run_log(RankFiles(0, tmp_path))
    assert log.steps.step.tolist() == [1]
    assert np.isnan(log.steps.wait_ms).all()  # true is no number of milliseconds
    assert np.isnan(log.steps.samples).all()
