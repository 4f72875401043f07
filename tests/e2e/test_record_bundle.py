"""One recorded run, looked at from all sides: the bundle says what happened and the job did not notice."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.record.jobs import PYTHON, TRAIN, Recorded, environment, record
from tracelens.bundle import Bundle, RankFiles

pytest.importorskip("torch")

ARGUMENTS = (
    "--steps",
    "52",
    "--workers",
    "2",
    "--epochs",
    "2",
    "--validate",
    "--digest",
    "--delay",
    "0.0005",
)
STEPS = 104


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("run"), PYTHON, TRAIN, *ARGUMENTS)


@pytest.fixture(scope="module")
def rank(recorded: Recorded) -> RankFiles:
    (only,) = recorded.bundle.ranks
    return only


def test_the_job_is_as_it_was(recorded: Recorded, tmp_path: Path) -> None:
    plain = subprocess.run(
        [PYTHON, TRAIN, *ARGUMENTS],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert recorded.code == 0
    assert recorded.stdout == plain.stdout
    own = [line for line in recorded.stderr.splitlines() if not line.startswith("tracelens:")]
    assert own == plain.stderr.splitlines()
    assert list(tmp_path.iterdir()) == []
    assert [entry.name for entry in recorded.path.parent.iterdir()] == ["bundle"]


def test_every_step_is_logged_once(rank: RankFiles) -> None:
    assert [step["step"] for step in rank.steps] == list(range(STEPS))
    assert {step["source"] for step in rank.steps} == {"optimizer"}
    assert {step["samples"] for step in rank.steps} == {8}
    assert [step["epoch"] for step in rank.steps] == [0] * 52 + [1] * 52
    for before, after in zip(rank.steps, rank.steps[1:], strict=False):
        assert before["t0"] <= before["t1"] <= after["t0"]
    assert any(step.get("rss") for step in rank.steps)
    assert all(step["gc_ms"] >= 0 and step["gc_runs"] >= 0 for step in rank.steps)
    assert all(0 <= step["wait_ms"] <= (step["t1"] - step["t0"]) / 1e6 + 0.01 for step in rank.steps)


def test_windows_open_where_they_are_planned(rank: RankFiles) -> None:
    assert [(window["kind"], window["first_step"]) for window in rank.windows] == [
        ("lean", 12), ("shapes", 32), ("stacks", 42),
    ]  # fmt: skip
    for window in rank.windows:
        assert window["complete"]
        assert window["kernels"] == 0
        assert window["missing_kernels_reason"].startswith("no GPU")
        assert window["flags"]["anomaly"] is False
        assert len(window["baseline_ms"]) == 8
        assert len(window["after_ms"]) == 8
        inside = [step["step"] for step in rank.steps if step["window"] == window["window"]]
        assert inside == list(range(window["first_step"], window["last_step"] + 1))
    assert 6 <= rank.windows[0]["last_step"] - 11 <= 12


def test_traces_hold_the_steps_on_the_same_clock(rank: RankFiles) -> None:
    for window, path in zip(rank.windows, rank.traces, strict=True):
        with gzip.open(path, "rt") as file:
            trace = json.load(file)
        base = trace.get("baseTimeNanoseconds", 0)  # torch 2.1 writes absolute times
        events = trace["traceEvents"]
        markers = {
            event["name"]: event for event in events if str(event.get("name")).startswith("ProfilerStep#")
        }
        steps = [step for step in rank.steps if step["window"] == window["window"]]
        assert set(markers) == {f"ProfilerStep#{step['step']}" for step in steps}
        for step in steps:
            marker = markers[f"ProfilerStep#{step['step']}"]
            start = base + marker["ts"] * 1000
            assert abs(start - step["t0"]) < 5e6
            assert abs(start + marker["dur"] * 1000 - step["t1"]) < 5e6
        names = {event.get("name") for event in events}
        assert "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__" in names
        shapes = any("Input Dims" in event.get("args", {}) for event in events)
        stacks = any(event.get("cat") == "python_function" for event in events)
        assert (shapes, stacks) == (window["kind"] == "shapes", window["kind"] == "stacks")


def test_loaders_are_told_apart(rank: RankFiles) -> None:
    described = [line for line in rank.loader if line["event"] == "loader"]
    assert [(line["loader"], line["num_workers"], line["sampler"]) for line in described] == [
        (0, 2, "RandomSampler"), (1, 0, "SequentialSampler"),
    ]  # fmt: skip
    assert described[0]["dataset"] == "Numbers"
    assert described[0]["dataset_kind"] == "map"
    assert described[0]["dataset_len"] == 416
    assert described[0]["prefetch_factor"] == 2
    assert described[0]["dataset_module"] == "__main__"
    assert described[0]["getitems"] is False
    assert described[0]["file"].endswith("train.py")
    assert "DataLoader(" in Path(TRAIN).read_text().splitlines()[described[0]["line"] - 1]
    passes = [line for line in rank.loader if line["event"] == "iter"]
    assert [(line["loader"], line["epoch"], line["training"], line["workers"]) for line in passes] == [
        (0, 0, True, 2), (1, 0, False, 0), (0, 1, True, 2), (1, 1, False, 0),
    ]  # fmt: skip
    # with workers the sampler is asked while the iterator is made, else by the first next
    assert [("sampler_bytes" in line, line["loader"]) for line in passes] == [(True, 0), (False, 1)] * 2
    ends = [line for line in rank.loader if line["event"] == "iter_end"]
    assert [(line["loader"], line["batches"], line["steps"], line["training"]) for line in ends] == [
        (0, 52, 52, True), (1, 4, 0, False), (0, 52, 52, True), (1, 4, 0, False),
    ]  # fmt: skip


def test_batches_are_seen_from_both_sides(rank: RankFiles) -> None:
    batches = {
        (line["epoch"], line["batch"]): line
        for line in rank.loader
        if line["event"] == "batch" and line["loader"] == 0
    }
    fetches = {(line["epoch"], line["batch"]): line for line in rank.workers if line["event"] == "fetch"}
    assert set(batches) == set(fetches) == {(epoch, batch) for epoch in (0, 1) for batch in range(52)}
    for key, batch in batches.items():
        fetch = fetches[key]
        assert fetch["t1"] <= batch["t1"] + 1_000_000
        assert fetch["samples"] == batch["samples"] == 8
        assert fetch["bytes"] == batch["bytes"] == 8 * 16 * 4 + 8 * 8
        assert batch["dtypes"] == {"float32": 512, "int64": 64}
        assert fetch["t1"] - fetch["t0"] >= 8 * 500_000
        assert fetch["cpu_ms"] * 1e6 < fetch["t1"] - fetch["t0"]
        assert 0 <= fetch["collate_ms"] <= (fetch["t1"] - fetch["t0"]) / 1e6
        assert batch["queue_depth"] >= 0
        assert batch["sampler_ms"] >= 0
        assert fetch.get("syscr") is None or fetch["syscr"] >= 0
    workers = [line for line in rank.workers if line["event"] == "worker"]
    assert len(workers) == 4
    assert all(line["start_ms"] > 0 and line["threads"] == 1 for line in workers)
    assert max(line.get("slowest_sample_ms", 0) for line in rank.workers) >= 0.5


def test_validation_in_the_main_process_has_fetch_times(rank: RankFiles) -> None:
    inside = [line for line in rank.loader if line["event"] == "batch" and line["loader"] == 1]
    assert len(inside) == 8
    assert all(0 < line["collate_ms"] < line["fetch_ms"] for line in inside)
    assert not any(line["training"] for line in inside)
    assert [line["batch"] for line in inside if "sampler_bytes" in line] == [0, 0]


def test_process_and_events(recorded: Recorded, rank: RankFiles) -> None:
    (process,) = rank.process
    assert process["rank"] == 0
    assert process["threads"]["intraop"] >= 1
    assert process["cpu"]["affinity"] >= 1
    assert process["flags"]["anomaly"] is False
    assert process["platform"] == sys.platform
    assert process["device"] is None
    bundle = recorded.bundle
    # "machine" only where a core seemed shared before the job
    assert [event["event"] for event in bundle.events if event["event"] not in ("warning", "machine")] == [
        "start", "torch", "agent", "done", "exit", "end",
    ]  # fmt: skip
    assert bundle.exit is not None
    assert bundle.exit["code"] == 0
    assert bundle.finished
    (done,) = bundle.events_of("done")
    assert done["steps"] == STEPS


def test_nothing_personal_is_kept(recorded: Recorded) -> None:
    home = str(Path.home())
    for path in recorded.path.rglob("*"):
        if not path.is_file():
            continue
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert home.encode() + b"/" not in text, path
    bundle = Bundle.open(recorded.path)
    assert bundle.manifest["redacted"] is True
    assert bundle.manifest["command"][1] == "train.py"
    assert set(rank_env(bundle)) <= {
        "OMP_NUM_THREADS",
        "PYTHONUNBUFFERED",
        "CUDA_VISIBLE_DEVICES",
        "PYTHONHASHSEED",
    }


def rank_env(bundle: Bundle) -> dict[str, str]:
    return dict(bundle.ranks[0].process[0]["env"])
