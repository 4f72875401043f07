"""Whatever dies, the bundle stays readable and says what is missing; a failing recorder never stops the job."""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.record.jobs import (
    PYTHON,
    SCRIPTS,
    TRAIN,
    environment,
    kill_group,
    launch,
    lines_in,
    notes,
    record,
    start,
    wait_for,
)  # fmt: skip
from tracelens.bundle import Bundle

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sends Linux signals")

ENDLESS = (PYTHON, TRAIN, "--steps", "20000", "--work", "0.005")


def rank_steps(bundle: Bundle) -> list[dict[str, Any]]:
    (rank,) = bundle.ranks
    return rank.steps


def warnings(bundle: Bundle) -> str:
    return " | ".join(str(event["message"]) for event in bundle.events_of("warning"))


def test_kill_9_of_everything(tmp_path: Path) -> None:
    process = start(tmp_path, *ENDLESS, "--workers", "1")
    steps = tmp_path / "bundle" / "rank0" / "steps.jsonl"
    try:
        wait_for(lambda: lines_in(steps) > 60)
    finally:
        before = lines_in(steps)
        kill_group(process)
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.exit is None
    assert not bundle.finished
    (rank,) = bundle.ranks
    assert len(rank.steps) >= before  # at most half a second of lines is lost
    assert [window["kind"] for window in rank.windows if window["complete"]] == ["lean", "shapes", "stacks"]
    assert len(rank.traces) == 3
    assert rank.process
    assert any(line["event"] == "fetch" for line in rank.workers)
    said = notes(bundle.path)
    last = rank.steps[-1]["step"]
    assert "The recording has no end: the job still runs, or it was killed together with its recorder" in said
    assert f"; the last recorded step, {last}, ended " in said


def _sampler(bundle: Path) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"tracelens.record.sampler" in words and os.fsencode(bundle) in words:
                return int(entry.name)
    return None


def test_kill_9_of_the_sampler(tmp_path: Path) -> None:
    process = start(tmp_path, PYTHON, TRAIN, "--steps", "150", "--work", "0.02")
    bundle = (tmp_path / "bundle").resolve()
    try:
        pid = wait_for(lambda: _sampler(bundle))
        wait_for(lambda: lines_in(bundle / "rank0" / "steps.jsonl") > 2)
        os.kill(pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
    finally:
        kill_group(process)
    assert process.returncode == 0
    assert stderr.count("the sampler ended early (code -9)") == 1
    opened = Bundle.open(bundle)
    assert "the sampler ended early" in warnings(opened)
    assert len(opened.ranks[0].steps) == 150
    assert "The sampler ended early (code -9); CPU and GPU timelines stop here" in notes(bundle)


def test_kill_9_of_one_rank(tmp_path: Path) -> None:
    torchrun = str(Path(sys.executable).parent / "torchrun")
    process = start(
        tmp_path, torchrun, "--standalone", "--nproc-per-node", "2", str(SCRIPTS / "ddp.py"), "20000"
    )
    bundle = tmp_path / "bundle"
    try:
        wait_for(lambda: lines_in(bundle / "rank1" / "steps.jsonl") > 50)
        os.kill(Bundle.open(bundle).ranks[1].process[0]["pid"], signal.SIGKILL)
        process.communicate(timeout=60)
    finally:
        kill_group(process)
    assert process.returncode == 1
    opened = Bundle.open(bundle)
    assert opened.finished
    assert [len(rank.steps) > 50 for rank in opened.ranks] == [True, True]
    # the other rank fails for want of its peer, or torchrun ends it first, whatever it is at
    assert {event["rank"] for event in opened.events_of("done")} <= {0}
    failed = {event["rank"] for event in opened.events_of("exception")}
    assert failed <= {0}
    said = notes(bundle)
    assert (
        "The process of rank 1 ended suddenly" if failed else "The processes of ranks 0 and 1 ended suddenly"
    ) in said
    assert ("The training ended with" if failed else "The job did not end well: exit code 1") in said


def test_an_exception_in_training(tmp_path: Path) -> None:
    recorded = record(tmp_path, PYTHON, TRAIN, "--steps", "60", "--raise-at", "15")
    assert recorded.code == 1
    assert "ValueError: the training went wrong" in recorded.stderr
    bundle = recorded.bundle
    (event,) = bundle.events_of("exception")
    assert (event["type"], event["message"]) == ("ValueError", "the training went wrong")
    (rank,) = bundle.ranks
    assert len(rank.steps) == 15
    (window,) = rank.windows
    assert (window["complete"], window["first_step"], window["last_step"]) == (False, 12, 14)
    assert window["reason"] == "the job ended inside the window"
    with gzip.open(rank.traces[0], "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"} <= names
    said = notes(bundle.path)
    assert "The training ended with ValueError after 15 recorded steps: the training went wrong." in said
    assert (
        "Profiler window 0 (lean, from step 12) was cut short (the job ended inside the window); its trace holds"
        in said
    )


def test_sigterm_inside_a_window_exports_it(tmp_path: Path) -> None:
    process = start(tmp_path, PYTHON, TRAIN, "--steps", "20000", "--work", "0.1")
    bundle = tmp_path / "bundle"
    try:
        wait_for(lambda: lines_in(bundle / "rank0" / "windows.jsonl") > 0)
        os.kill(Bundle.open(bundle).ranks[0].process[0]["pid"], signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        kill_group(process)
    assert process.returncode == 128 + signal.SIGTERM
    (rank,) = Bundle.open(bundle).ranks
    (window,) = rank.windows
    assert (window["complete"], window["reason"], window["first_step"]) == (False, "SIGTERM", 12)
    assert len(rank.traces) == 1
    said = notes(bundle)
    assert "The job did not end well: SIGTERM ended it; the last recorded step," in said
    assert "Profiler window 0 (lean, from step 12) was cut short (SIGTERM)" in said


def test_a_killed_worker(tmp_path: Path) -> None:
    process = start(tmp_path, *ENDLESS, "--workers", "2")
    bundle = tmp_path / "bundle"
    try:
        wait_for(lambda: lines_in(bundle / "rank0" / "steps.jsonl") > 3)
        (rank,) = Bundle.open(bundle).ranks
        os.kill(
            next(line["pid"] for line in rank.workers), signal.SIGKILL
        )  # as the kernel does when memory runs out
        process.communicate(timeout=60)
    finally:
        kill_group(process)
    assert process.returncode == 1
    opened = Bundle.open(bundle)
    assert opened.finished
    (event,) = opened.events_of("exception")
    # mostly torch's "DataLoader worker (pid ...) is killed", else a torn pipe: it depends on what the worker was at
    assert event["type"] in ("RuntimeError", "ConnectionResetError", "EOFError", "FileNotFoundError")
    assert (
        f"The training ended with {event['type']} after {len(rank_steps(opened))} recorded steps: "
        in notes(bundle)
    )


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    recorded = record(
        tmp_path,
        PYTHON,
        TRAIN,
        "--steps",
        "5",
        out="/proc/nowhere/bundle",
        env={"TMPDIR": str(tmp_path / "tmp")},
    )
    assert recorded.code == 0
    assert "cannot write /proc/nowhere/bundle" in recorded.stderr
    bundle = Bundle.open(tmp_path / "tmp" / "tracelens-runs" / "bundle")
    assert len(bundle.ranks[0].steps) == 5
    assert "cannot be written, the bundle is" in warnings(bundle)
    said = notes(bundle.path)
    assert "/proc/nowhere/bundle cannot be written, the bundle is" in said
    assert "No step was traced: the job ended after 5 steps, the first window opens at step 12." in said


def test_no_place_to_write_to_at_all(tmp_path: Path) -> None:
    code = (
        "import tempfile; tempfile.tempdir = '/proc/none'\n"
        "import sys; from pathlib import Path; from tracelens.record.launcher import RecordOptions, run\n"
        "sys.exit(run(RecordOptions(tuple(sys.argv[1:]), out=Path('/proc/nowhere/bundle'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "bash", "-c", "echo ran; exit 5"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "ran\n")
    assert "the job runs unrecorded" in done.stderr


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        command = (PYTHON, TRAIN, "--steps", "300", "--workers", "1", "--digest")
        recorded = record(tmp_path, *command, out=str(disk / "bundle"))
        plain = subprocess.run(
            command, env=environment(), capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert recorded.code == 0
        assert recorded.stdout == plain.stdout
        assert "No space left on device" in recorded.stderr
        assert recorded.stderr.count("the job goes on, lines are dropped") <= 4
        bundle = recorded.bundle
        assert bundle.ranks[0].steps[0]["step"] == 0
        assert bundle.exit is not None  # the last lines found room
        assert bundle.finished
        assert "No space left on device" in notes(bundle.path)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_file_size_limit(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    argv = launch(tmp_path, PYTHON, TRAIN, "--steps", "120")
    done = subprocess.run(
        argv, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False, preexec_fn=limited
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stderr
    (rank,) = Bundle.open(tmp_path / "bundle").ranks
    assert 10 < len(rank.steps) < 120
    assert rank.traces == []
    assert "Cannot write steps.jsonl: File too large" in notes(tmp_path / "bundle")
    (lost,) = re.findall(
        r"lines that could not be written are missing: .*steps.jsonl (\d+)",
        warnings(Bundle.open(tmp_path / "bundle")),
    )
    assert len(rank.steps) + int(lost) == 120


@pytest.mark.parametrize(
    ("sabotage", "message", "steps"),
    [
        pytest.param(
            "torch.profiler.profiler._KinetoProfile.start_trace = boom",
            "profiling failed and is off",
            50,
            marks=pytest.mark.zoo,
        ),
        ("torch.profiler.profiler._KinetoProfile.export_chrome_trace = boom", "could not be kept", 50),
        ("sys.modules['_tracelens_agent.loader'].describe = boom", "recording stopped in process", 0),
    ],
)
def test_a_broken_recorder_leaves_the_job_alone(
    sabotage: str, message: str, steps: int, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import runpy, sys, torch, torch.profiler.profiler\n"
        "def boom(*args, **kwargs):\n    raise RuntimeError('sabotage')\n"
        f"{sabotage}\nsys.argv = ['train.py', '--steps', '50', '--workers', '1', '--digest']\n"
        f"runpy.run_path({TRAIN!r}, run_name='__main__')\n"
    )
    recorded = record(tmp_path, PYTHON, str(script))
    plain = subprocess.run(
        [PYTHON, TRAIN, "--steps", "50", "--workers", "1", "--digest"],
        env=environment(), capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert recorded.code == 0
    assert recorded.stdout == plain.stdout
    assert message in recorded.stderr
    assert message in warnings(recorded.bundle)
    assert sum(len(rank.steps) for rank in recorded.bundle.ranks) == steps
