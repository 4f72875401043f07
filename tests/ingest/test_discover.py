"""What a path is: bundles, trace files, folders of ranks, side files, and one clear line for anything else."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from tests.bundlekit import Run, gpu_trace
from tests.tracekit import Loop, Trace
from tracelens.errors import InputError
from tracelens.ingest.discover import Extras, discover, newest_run
from tracelens.ingest.loader_settings import read_loader_settings


def trace_at(path: Path) -> Path:
    return Loop(steps=3).trace().write(path)


def test_a_trace_file_alone(tmp_path: Path) -> None:
    run = discover([trace_at(tmp_path / "job.pt.trace.json.gz")])
    assert [r.rank for r in run.ranks] == [None]
    assert run.title == "job"
    assert run.home == tmp_path
    assert run.report_name == "job.report.html"
    assert run.bundle is None


def test_side_files_beside_a_trace_are_found(tmp_path: Path) -> None:
    trace_at(tmp_path / "rank0.pt.trace.json.gz")
    (tmp_path / "loader.json").write_text('{"num_workers": 3}')
    (tmp_path / "gpu.csv").write_text("timestamp, index\n")
    (tmp_path / "host.jsonl").write_text("{}\n")
    (rank,) = discover([tmp_path]).ranks
    assert rank.loader == {"num_workers": 3}
    assert rank.gpu_logs == (tmp_path / "gpu.csv",)
    assert rank.host_logs == (tmp_path / "host.jsonl",)
    assert discover([tmp_path / "rank0.pt.trace.json.gz"]).ranks == (rank,)


def test_side_files_beside_one_of_several_traces_belong_to_nobody(tmp_path: Path) -> None:
    """A folder of unrelated traces: the loader.json there may be another's."""
    first, _ = trace_at(tmp_path / "a.json"), trace_at(tmp_path / "b.json")
    (tmp_path / "loader.json").write_text('{"num_workers": 3}')
    assert discover([first]).ranks[0].loader == {}


def test_ranks_of_a_folder_by_folder_or_by_file_name(tmp_path: Path) -> None:
    for number in (10, 2):
        trace_at(tmp_path / "a" / f"rank{number}" / "t.json")
        trace_at(tmp_path / "b" / f"host_rank-{number}.123.pt.trace.json.gz")
    assert [r.rank for r in discover([tmp_path / "a"]).ranks] == [2, 10]
    assert sorted(r.rank or 0 for r in discover([tmp_path / "b"]).ranks) == [2, 10]


def test_several_files_make_one_run(tmp_path: Path) -> None:
    files = [trace_at(tmp_path / str(k) / "t.json") for k in range(3)]
    run = discover(files)
    assert [r.traces for r in run.ranks] == [(f,) for f in files]
    assert run.report_name == "report.html"


def test_given_side_files_come_before_found_ones_and_apply_to_every_rank(tmp_path: Path) -> None:
    for number in range(2):
        trace_at(tmp_path / "run" / f"rank{number}" / "t.json")
        (tmp_path / "run" / f"rank{number}" / "gpu.csv").write_text("x\n")
        (tmp_path / "run" / f"rank{number}" / "loader.json").write_text('{"num_workers": 1, "batch_size": 8}')
    log, settings = tmp_path / "smi.csv", tmp_path / "mine.json"
    log.write_text("x\n")
    settings.write_text('{"num_workers": 6}')
    run = discover([tmp_path / "run"], Extras(gpu_logs=(log,), loader=settings))
    for number, rank in enumerate(run.ranks):
        assert rank.gpu_logs == (log, tmp_path / "run" / f"rank{number}" / "gpu.csv")
        assert rank.loader == {"num_workers": 6, "batch_size": 8}


def test_files_that_are_no_traces_are_left_alone(tmp_path: Path) -> None:
    trace_at(tmp_path / "t.json")
    (tmp_path / "package.json").write_text('{"traceEvents": []}')
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "notes.txt").write_text('"traceEvents": [')
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"other": 1}')[:15])
    assert discover([tmp_path]).ranks[0].traces == (tmp_path / "t.json",)


@pytest.mark.parametrize("layout", ["pretty", "compact", "list", "tail"])
def test_every_layout_is_known_for_a_trace(tmp_path: Path, layout: str) -> None:
    path = Loop(steps=3).trace().write(tmp_path / "x.json.gz", layout)
    assert discover([tmp_path]).ranks[0].traces == (path,)


def test_a_bundle_gives_its_ranks_logs_and_settings(tmp_path: Path) -> None:
    folder = Run(window=range(12, 18), trace=gpu_trace()).write(tmp_path / "run")
    (folder / "gpu.jsonl").write_text("")
    (folder / "host.jsonl").write_text("{}\n")
    run = discover([folder])
    (rank,) = run.ranks
    assert run.bundle is not None
    assert (run.title, run.home) == ("run", folder)
    assert rank.rank == 0
    assert rank.loader["num_workers"] == 2
    assert rank.run_log is not None
    assert len(rank.run_log.steps) == 40
    assert [t.name for t in rank.traces] == ["window-0.pt.trace.json.gz"]
    assert rank.gpu_logs == ()  # an empty log is none
    assert rank.host_logs == (folder / "host.jsonl",)


def test_given_settings_override_a_bundles(tmp_path: Path) -> None:
    folder = Run().write(tmp_path / "run")
    settings = tmp_path / "l.json"
    settings.write_text('{"num_workers": 9}')
    assert discover([folder], Extras(loader=settings)).ranks[0].loader["num_workers"] == 9


def test_complete_lean_windows_come_first(tmp_path: Path) -> None:
    folder = Run().write(tmp_path / "run")
    rank = folder / "rank0"
    kinds = [("shapes", True), ("lean", False), ("stacks", True), ("lean", True)]
    with (rank / "windows.jsonl").open("w") as out:
        for number, (kind, complete) in enumerate(kinds):
            name = f"window-{number}.pt.trace.json.gz"
            trace_at(rank / name)
            out.write(json.dumps({"window": number, "kind": kind, "complete": complete, "file": name}) + "\n")
    assert [t.name[7] for t in discover([folder]).ranks[0].traces] == ["3", "0", "2", "1"]


def test_a_window_that_no_line_names_is_still_read(tmp_path: Path) -> None:
    folder = Run().write(tmp_path / "run")
    path = trace_at(folder / "rank0" / "window-7.pt.trace.json.gz")
    assert discover([folder]).ranks[0].traces == (path,)


def test_the_newest_run_by_its_manifest(tmp_path: Path) -> None:
    for name, age in (("b", 30), ("a", 10), ("c", 20)):
        folder = Run(steps=2).write(tmp_path / name)
        os.utime(folder / "bundle.json", (1e9 - age, 1e9 - age))
    (tmp_path / "no-bundle").mkdir()
    assert newest_run(tmp_path).name == "a"


@pytest.mark.parametrize("make", ["missing", "empty"])
def test_no_run_says_what_to_do(tmp_path: Path, make: str) -> None:
    if make == "empty":
        (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="tracelens record"):
        newest_run(tmp_path / "runs")


def test_one_line_for_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.json does not exist"):
        discover([tmp_path / "nothing.json"])
    with pytest.raises(InputError, match="does not exist"):
        discover([trace_at(tmp_path / "t.json")], Extras(gpu_logs=(tmp_path / "gone.csv",)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no trace"):
        discover([tmp_path / "empty"])
    one, other = Run(steps=2).write(tmp_path / "x"), Run(steps=2).write(tmp_path / "y")
    with pytest.raises(InputError, match="one bundle at a time"):
        discover([one, other])


@pytest.mark.parametrize(
    ("text", "message"), [("{num_workers: 4}", "is not JSON"), ("[1]", "must hold a JSON"), ("4", "must hold a JSON")]
)  # fmt: skip
def test_loader_settings_that_are_no_object(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "l.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_loader_settings(path)
    assert "\n" not in str(caught.value)


def test_loader_settings_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_loader_settings(tmp_path)


def test_a_folder_with_one_trace_and_empty_ones_beside_it(tmp_path: Path) -> None:
    Trace().write(tmp_path / "run" / "rank1" / "t.json")
    (tmp_path / "run" / "rank0").mkdir()
    assert [r.rank for r in discover([tmp_path / "run"]).ranks] == [1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_workers", v) for v in ('"four"', "[1]", "true", "2.5", "NaN", "-1", "1e400", "1e30", "1000000")),
        *(("batch_size", v) for v in ("0", "-1", '"x"', "1e400", "NaN", "1" + "0" * 400)),
        ("prefetch_factor", "0"), ("prefetch_factor", "1000000000"), ("pin_memory", '"maybe"'), ("persistent_workers", "1"),
    ],
)  # fmt: skip
def test_a_loader_setting_that_cannot_be(tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "loader.json"
    path.write_text(f'{{"{key}": {value}}}')
    with pytest.raises(InputError, match=f"loader.json: {key} must be") as caught:
        read_loader_settings(path)
    assert len(str(caught.value).removeprefix(str(path))) < 120
    assert "\n" not in str(caught.value)


def test_loader_settings_that_are_unknown_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "loader.json"
    path.write_text(
        '{"num_workers": 0, "batch_size": 64.0, "prefetch_factor": null, "pin_memory": false, "x": [1]}'
    )
    assert read_loader_settings(path)["batch_size"] == 64


def test_loader_settings_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "loader.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is not JSON"):
        read_loader_settings(path)


def test_lines_of_a_bundle_that_cannot_be_merged_are_noted(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "bundle.json").write_text('{"schema": "tracelens.bundle/1"}')
    (tmp_path / "rank0" / "windows.jsonl").write_text('{"window": {"a": 1}}\n{"window": 0}\n')
    notes = discover([tmp_path]).notes
    assert "Lines with a damaged window were left out: rank0/windows.jsonl (1)." in notes
