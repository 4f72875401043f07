"""Any launcher, unchanged: every rank that trains is recorded, and the command stays what it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.record.jobs import (
    PYTHON,
    SCRIPTS,
    TRAIN,
    environment,
    kill_group,
    launch,
    lines_in,
    record,
    start,
    wait_for,
)  # fmt: skip
from tracelens.bundle import Bundle

torch = pytest.importorskip("torch")

BIN = Path(sys.executable).parent
DDP = str(SCRIPTS / "ddp.py")


def ranks(path: Path) -> list[tuple[int, int]]:
    """(rank, steps) of what was recorded."""
    return [(rank.rank, len(rank.steps)) for rank in Bundle.open(path).ranks]


def test_a_module(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(TRAIN, package / "train.py")
    recorded = record(tmp_path, PYTHON, "-m", "package.train", "--steps", "5")
    assert recorded.code == 0
    assert ranks(recorded.path) == [(0, 5)]


def test_a_shell_script_with_the_default_place(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"cd /\necho from the shell\n{PYTHON} {TRAIN} --steps 5\nexit 7\n")
    recorded = record(tmp_path, "bash", "run.sh", out=None)
    assert recorded.code == 7
    assert recorded.stdout == "from the shell\n"
    (bundle,) = (tmp_path / "tracelens-runs").iterdir()
    assert bundle.name.endswith("Z-run")
    assert ranks(bundle) == [(0, 5)]
    opened = Bundle.open(bundle)
    assert opened.exit is not None
    assert (opened.exit["code"], opened.exit["signal"]) == (7, None)


def test_torchrun(tmp_path: Path) -> None:
    recorded = record(tmp_path, str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", DDP, "46")
    assert recorded.code == 0, recorded.stderr
    assert ranks(recorded.path) == [(0, 46), (1, 46)]
    bundle = recorded.bundle
    assert [rank.process[0]["world_size"] for rank in bundle.ranks] == [2, 2]
    opened = [[(window["kind"], window["first_step"]) for window in rank.windows] for rank in bundle.ranks]
    assert opened[0] == opened[1] == [("lean", 12), ("shapes", 32), ("stacks", 42)]
    assert {len(rank.traces) for rank in bundle.ranks} == {3}


@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=pytest.mark.zoo)])
def test_ranks_that_the_script_starts_itself(method: str, tmp_path: Path) -> None:
    recorded = record(tmp_path, PYTHON, DDP, "20", "meeting", method)
    assert recorded.code == 0, recorded.stderr
    assert ranks(recorded.path) == [(0, 20), (1, 20)]
    assert len(recorded.bundle.events_of("done")) == 2


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    recorded = record(
        tmp_path, str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", TRAIN, "--steps", "8",
        env={"HF_HOME": str(tmp_path / "hf")},
    )  # fmt: skip
    assert recorded.code == 0, recorded.stderr
    assert ranks(recorded.path) == [(0, 8)]


def test_srun_below_us(tmp_path: Path) -> None:
    recorded = record(tmp_path, PYTHON, str(SCRIPTS / "fake_srun.py"), PYTHON, TRAIN, "--steps", "5")
    assert recorded.code == 0, recorded.stderr
    assert ranks(recorded.path) == [(0, 5), (1, 5)]


def test_srun_above_us_gives_one_bundle(tmp_path: Path) -> None:
    command = [
        PYTHON,
        str(SCRIPTS / "fake_srun.py"),
        *launch(tmp_path, PYTHON, TRAIN, "--steps", "5", out=None),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (bundle,) = (tmp_path / "tracelens-runs").iterdir()
    assert bundle.name.endswith("-train-4711")
    assert ranks(bundle) == [(0, 5), (1, 5)]
    assert len(Bundle.open(bundle).events_of("exit")) == 2


def test_a_job_in_another_environment_without_tracelens(tmp_path: Path) -> None:
    builder = venv.EnvBuilder(with_pip=False, symlinks=True)
    builder.create(tmp_path / "theirs")
    python = tmp_path / "theirs" / "bin" / "python"
    site = next((tmp_path / "theirs" / "lib").glob("python*/site-packages"))
    (site / "torch.pth").write_text(str(Path(torch.__file__).resolve().parent.parent) + "\n")
    for module, found in (("torch", True), ("tracelens.bundle", False)):
        tried = subprocess.run(
            [str(python), "-c", f"import {module}"],
            env=environment(),
            cwd="/",
            capture_output=True,
            check=False,
        )
        assert (tried.returncode == 0) is found
    recorded = record(tmp_path, str(python), TRAIN, "--steps", "5", "--workers", "1")
    assert recorded.code == 0, recorded.stderr
    assert ranks(recorded.path) == [(0, 5)]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ((PYTHON, "-I", TRAIN, "--steps", "3"), "python -I ignores PYTHONPATH"),
        ((PYTHON, "-c", "print('no torch')"), "Python ran, but never imported torch"),
        (("env", "-i", PYTHON, "-c", "pass"), "env -i empties the environment"),
        (("true",), "no Python process of the command had our PYTHONPATH"),
        ((PYTHON, "-c", "import torch"), "torch was imported, but nothing trained"),
    ],
)
def test_nothing_recorded_is_said_loudly(command: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    recorded = record(tmp_path, *command)
    assert recorded.code == 0
    (line,) = [line for line in recorded.stderr.splitlines() if "NOTHING WAS RECORDED" in line]
    assert reason in line
    assert any(reason in event["message"] for event in recorded.bundle.events_of("warning"))


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    recorded = record(tmp_path, "no-such-program")
    assert (recorded.code, recorded.stderr) == (2, "tracelens: command not found: no-such-program\n")
    assert not recorded.path.exists()


def test_an_existing_bundle_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "mine").touch()
    recorded = record(tmp_path, "true")
    assert recorded.code == 2
    assert "exists already" in recorded.stderr


def test_a_signal_gives_its_code(tmp_path: Path) -> None:
    recorded = record(tmp_path, "bash", "-c", "kill -SEGV $$")
    assert recorded.code == 128 + signal.SIGSEGV
    assert recorded.bundle.exit is not None
    assert recorded.bundle.exit["signal"] == signal.SIGSEGV


def test_ctrl_c_once_ends_the_job_and_the_bundle_is_finished(tmp_path: Path) -> None:
    process = start(tmp_path, PYTHON, TRAIN, "--steps", "5000", "--work", "0.01", "--workers", "1")
    try:
        wait_for(lambda: lines_in(tmp_path / "bundle" / "rank0" / "steps.jsonl") > 5)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, stderr = process.communicate(timeout=30)
    finally:
        kill_group(process)
    assert process.returncode == 128 + signal.SIGINT
    assert "KeyboardInterrupt" in stderr
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.finished
    assert bundle.events_of("done")
    assert [event["type"] for event in bundle.events_of("exception")] == ["KeyboardInterrupt"]


def test_a_signal_to_us_alone_reaches_the_job(tmp_path: Path) -> None:
    process = start(tmp_path, PYTHON, TRAIN, "--steps", "5000", "--work", "0.01")
    try:
        wait_for(lambda: lines_in(tmp_path / "bundle" / "rank0" / "steps.jsonl") > 5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        kill_group(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert Bundle.open(tmp_path / "bundle").finished


def test_stop_after_ends_the_job_cleanly(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import runpy, sys\nsys.argv = ['train.py', '--steps', '500', '--workers', '1']\n"
        f"try:\n    runpy.run_path({TRAIN!r}, run_name='__main__')\nfinally:\n    print('cleaned up')\n"
    )
    recorded = record(tmp_path, PYTHON, str(script), stop_after=30)
    assert (recorded.code, recorded.stdout) == (0, "cleaned up\n")
    assert "Traceback" not in recorded.stderr
    (rank,) = recorded.bundle.ranks
    assert len(rank.steps) == 30
    assert [window["kind"] for window in rank.windows if window["complete"]] == ["lean", "shapes", "stacks"]


def test_stop_after_ends_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    recorded = record(
        tmp_path, str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", DDP, "5000", stop_after=15
    )
    assert recorded.code == 0, recorded.stderr
    assert ranks(recorded.path) == [(0, 15), (1, 15)]
    assert recorded.stderr.count("stopping the job after 15 steps") == 1


def test_without_traces_or_stacks(tmp_path: Path) -> None:
    recorded = record(tmp_path, PYTHON, TRAIN, "--steps", "50", stacks=False)
    assert [window["kind"] for window in recorded.bundle.ranks[0].windows] == ["lean", "shapes"]
    other = record(tmp_path, PYTHON, TRAIN, "--steps", "50", trace=False, out=str(tmp_path / "other"))
    assert other.bundle.ranks[0].windows == []
    assert len(other.bundle.ranks[0].steps) == 50


def test_sensitive_values_are_kept_when_asked_for(tmp_path: Path) -> None:
    recorded = record(
        tmp_path, PYTHON, TRAIN, "--steps", "3", include_sensitive=True, env={"MY_TOKEN": "hunter2"}
    )
    assert recorded.bundle.manifest["command"] == [PYTHON, TRAIN, "--steps", "3"]
    assert recorded.bundle.ranks[0].process[0]["env"]["MY_TOKEN"] == "hunter2"
    closed = record(
        tmp_path, PYTHON, TRAIN, "--steps", "3", out=str(tmp_path / "b"), env={"MY_TOKEN": "hunter2"}
    )
    kept = b"".join(path.read_bytes() for path in closed.path.rglob("*") if path.is_file())
    assert b"hunter2" not in kept
    assert b"MY_TOKEN" not in kept
