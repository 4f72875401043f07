"""Where a report goes: links, pipes and devices stay what they are, inputs are never overwritten, stdout may fail."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_report_cli import TRACES, assert_one_line, tracelens
from tests.tracekit import Loop
from tracelens import reporting
from tracelens.errors import OutputError, UsageError
from tracelens.reporting import keep_inputs, write_file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A loader-bound trace with its settings beside it."""
    (tmp_path / "loader.json").write_text('{"num_workers": 0}')
    return Path(shutil.copy(TRACES / "loader_main_process.json.gz", tmp_path / "run.pt.trace.json.gz"))


def test_a_link_is_followed(tmp_path: Path) -> None:
    folder, link = tmp_path / "there", tmp_path / "link"
    folder.mkdir()
    link.symlink_to("there/new")
    for text in ("first", "second"):  # the target does not exist, then exists
        write_file(link, text)
        assert link.is_symlink()
        assert (folder / "new").read_text() == text
    assert [p.name for p in folder.iterdir()] == ["new"]


def test_links_in_a_circle_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="cannot write"):
        write_file(tmp_path / "a", "text")
    assert (tmp_path / "a").is_symlink()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(("minor", "full"), [(3, False), (7, True)], ids=["null", "full"])
def test_a_device_is_written_to(tmp_path: Path, minor: int, full: bool) -> None:
    device = tmp_path / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        device.open("w").close()
    except PermissionError:
        pytest.skip("no device can be made or opened here")
    if full:
        with pytest.raises(OutputError, match="No space left"):
            write_file(device, "text")
    else:
        write_file(device, "text")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["device"]


@pytest.mark.parametrize("option", ["-o", "--json", "--markdown", "--perfetto"])
@pytest.mark.parametrize("name", ["run.pt.trace.json.gz", "loader.json", "link"])
def test_an_output_that_is_an_input(trace: Path, tmp_path: Path, option: str, name: str) -> None:
    (tmp_path / "link").symlink_to(trace.name)
    before = (tmp_path / name).read_bytes()
    done = tracelens("report", trace.name, option, name, cwd=tmp_path)
    assert_one_line(done, 2, f"output {name} is also an input")
    assert (tmp_path / name).read_bytes() == before


def test_two_outputs_in_one_file(trace: Path, tmp_path: Path) -> None:
    done = tracelens("report", trace.name, "-o", "r", "--json", "./r", cwd=tmp_path)
    assert_one_line(done, 2, "given as two outputs")
    assert not (tmp_path / "r").exists()


def test_files_of_a_bundle_are_inputs(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    for name in ("bundle.json", "events.jsonl", "rank0/steps.jsonl", "report.html"):
        (tmp_path / name).touch()
    for name in ("bundle.json", "events.jsonl", "rank0/steps.jsonl"):
        with pytest.raises(UsageError, match="also an input"):
            keep_inputs([tmp_path], [tmp_path / name])
    keep_inputs([tmp_path], [tmp_path / "report.html", None, "-", os.devnull, os.devnull])


def test_compare_keeps_its_inputs(trace: Path, tmp_path: Path) -> None:
    for option in ("-o", "--markdown"):
        done = tracelens("compare", trace.name, trace.name, option, trace.name, cwd=tmp_path)
        assert_one_line(done, 2, "also an input")


def test_html_to_stdout(trace: Path, tmp_path: Path) -> None:
    done = tracelens("report", trace, "-o", "-", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!doctype html>")
    assert not (tmp_path / "-").exists()
    assert_one_line(
        tracelens("report", trace, "-o", "-", "--json", "-", cwd=tmp_path), 2, "-o - and --json -"
    )


def test_a_terminal_that_is_not_utf8(trace: Path, tmp_path: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    done = tracelens("report", trace, cwd=tmp_path, env=ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert "samples are made in the training process" in done.stdout
    block = [
        tracelens("report", trace, "--markdown", "-", cwd=tmp_path, env=env).stdout
        for env in (ascii_only, {})
    ]
    assert block[0] == block[1] != ""


def run_with_stdout(trace: Path, stdout: int | None, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tracelens", "report", trace.name, *options], cwd=trace.parent, stdout=stdout,
        stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        preexec_fn=(lambda: os.close(1)) if stdout is None else None,
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--json", "-")], ids=["summary", "json"])
def test_stdout_is_closed(trace: Path, options: tuple[str, ...]) -> None:
    done = run_with_stdout(trace, None, *options)
    assert (done.returncode, done.stderr) == (3, "tracelens: cannot write to stdout: it is closed\n")


@pytest.mark.parametrize("options", [(), ("--json", "-")], ids=["summary", "json"])
def test_stdout_is_full(trace: Path, options: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)  # opened, never named as an output
    try:
        done = run_with_stdout(trace, full, *options)
    finally:
        os.close(full)
    assert (done.returncode, done.stderr) == (
        3,
        "tracelens: cannot write to stdout: No space left on device\n",
    )


@pytest.mark.parametrize(
    "command", [("rules", "list"), ("rules", "show", "host.sync"), ("doctor",)], ids=" ".join
)
def test_stdout_is_full_for_the_other_commands(command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tracelens", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (
        3,
        "tracelens: cannot write to stdout: No space left on device\n",
    )


def test_a_lone_surrogate_is_written(tmp_path: Path) -> None:
    write_file(tmp_path / "f", "a\udcffb")
    assert (tmp_path / "f").read_text() == "a?b"
    assert reporting.colored() is False


@pytest.mark.parametrize("change", [{"ts": 1, "dur": 0}, {"dur": 0}, {"ts": 1}], ids=lambda c: "+".join(c))
def test_a_trace_whose_times_say_nothing(tmp_path: Path, change: dict[str, int]) -> None:
    document = json.loads(Loop(steps=6).trace().write(tmp_path / "t.json").read_text())
    for event in document["traceEvents"]:
        event.update({key: value for key, value in change.items() if key in event})
    (tmp_path / "t.json").write_text(json.dumps(document))
    (tmp_path / "loader.json").write_text('{"num_workers": 0, "batch_size": 4}')
    done = tracelens("report", "t.json", cwd=tmp_path, env={"PYTHONWARNINGS": "default"})
    assert (done.returncode, done.stderr) == (0, "")
