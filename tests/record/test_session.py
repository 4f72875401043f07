"""Names, places and messages of a recording."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tracelens.bundle import Bundle, append_line, write_manifest
from tracelens.errors import UsageError
from tracelens.record import session
from tracelens.record.diagnosis import outcome_messages, unapplied, why_no_agent
from tracelens.record.options import RecordOptions, parse_setting, parse_settings
from tracelens.record.session import git_state, launch_id, open_session, script_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --x", "train"),
        ("python -m pkg.train", "train"),
        ("torchrun --nproc-per-node 2 /a/b/my train.py", "train"),
        ("python -m torch.distributed.run train.py", "train"),
        ("bash run.sh", "run"),
        ("srun python finetune.py", "finetune"),
        ("/opt/bin/trainer --fast", "trainer"),
        ("accelerate launch main.py", "main"),
    ],
)
def test_runs_are_called_after_their_script(command: str, name: str) -> None:
    assert script_name(tuple(command.split())) == name


def test_two_runs_in_one_second_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session.time, "strftime", lambda *arguments: "20260101T000000Z")
    options = RecordOptions(("python", "t.py"))
    names = []
    for _ in range(3):
        opened = open_session(options, [])
        assert opened is not None
        names.append(opened.bundle.name)
    assert names == ["20260101T000000Z-t", "20260101T000000Z-t-2", "20260101T000000Z-t-3"]


def test_settings_are_typed_and_the_specific_one_comes_last() -> None:
    found = parse_settings(
        ("ImageFolder.num_workers=2", "num_workers=4", "pin_memory=yes", "prefetch_factor=none")
    )
    assert [(setting.loader, setting.key, setting.value) for setting in found] == [
        (None, "num_workers", 4), (None, "pin_memory", True), (None, "prefetch_factor", None),
        ("ImageFolder", "num_workers", 2),
    ]  # fmt: skip
    assert parse_setting("0.drop_last=false").loader == "0"
    with pytest.raises(UsageError, match="already set to 4"):
        parse_settings(("num_workers=4", "num_workers=5"))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (None, 0)),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "3"},
            ("slurm-7-1", 3),
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, (None, 0)),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_NTASKS": "1"}, (None, 0)),
    ],
)
def test_parallel_launches(
    variables: dict[str, str], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _clean(monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch_id() == expected


def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("SLURM_") or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def test_a_follower_without_a_leader_records_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _clean(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_JOIN_SECONDS", 0.1)
    values = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    opened = open_session(RecordOptions(("python", "t.py")), [])
    assert opened is not None
    assert opened.bundle.name.endswith("-t-7-task1")
    assert opened.leader


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert git_state(("python", "t.py")) == {"commit": None, "dirty": None}
    (tmp_path / "t.py").write_text("1\n")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "t.py"], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *arguments], check=True, cwd=tmp_path)
    state = git_state(("python", "t.py"))
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "t.py").write_text("2\n")
    assert git_state(("python", "t.py"))["dirty"] is True
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir("/")
    assert git_state(("python", str(tmp_path / "t.py")))["commit"] == state["commit"]


def bundle_of(folder: Path, *events: dict[str, Any]) -> Bundle:
    write_manifest(folder, {"id": "x"})
    for event in events:
        append_line(folder / "events.jsonl", event)
    return Bundle.open(folder)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("docker run image python train.py", "docker starts the job with its own environment"),
        ("srun --container-image=x python train.py", "container"),
        ("python3 -E train.py", "python -E ignores PYTHONPATH"),
        ("python -uI -m pkg", "python -uI ignores"),
        ("env -i python train.py", "env -i empties"),
        ("sudo python train.py", "sudo --preserve-env"),
        ("./train", "no Python process"),
    ],
)
def test_likely_reasons(command: str, reason: str, tmp_path: Path) -> None:
    assert reason in why_no_agent(bundle_of(tmp_path), RecordOptions(tuple(command.split())))


def test_an_agent_without_steps(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, {"ts": 1, "event": "agent"})
    ((loud, message),) = outcome_messages(bundle, RecordOptions(("python",)), 1.0)
    assert loud
    assert "NO STEP WAS RECORDED" in message


def test_settings_that_nothing_took(tmp_path: Path) -> None:
    bundle = bundle_of(
        tmp_path,
        {"event": "set", "setting": "num_workers=4", "applied": True},
        {"event": "set", "setting": "batch_size=8", "applied": False, "reason": "it has a batch sampler"},
    )
    options = RecordOptions(
        ("python",), set=("num_workers=4", "batch_size=8", "num_threads=2", "X.drop_last=1")
    )
    assert unapplied(bundle, options) == [
        "--set batch_size=8 was not applied: it has a batch sampler",
        "--set num_threads=2 was not applied: torch was not imported",
        "--set X.drop_last=1 was not applied: no DataLoader that it names was built",
    ]


def test_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = RecordOptions(
        ("python", "t.py", "--key", "secret"), out=tmp_path / "b", set=("num_workers=2",), stop_after=9
    )
    opened = open_session(options, parse_settings(options.set))
    assert opened is not None
    manifest = json.loads((tmp_path / "b" / "bundle.json").read_text())
    assert manifest["schema"] == "tracelens.bundle/1"
    assert manifest["command"] == ["python", "t.py", "--key", "<value>"]
    assert manifest["options"] == {"set": ["num_workers=2"], "stop_after": 9, "trace": True, "stacks": True}
    environment = opened.environment({"PYTHONPATH": "/theirs", "HOME": "/x"})
    assert environment["PYTHONPATH"].endswith("inject:/theirs")
    assert environment["HOME"] == "/x"
    assert json.loads(environment["TRACELENS_OPTIONS"])["stop_after"] == 9
    again = opened.environment(environment)
    assert again["PYTHONPATH"] == environment["PYTHONPATH"]
