"""The agent of a process: ranks, restarts, and whose error an error is."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tracelens.agent.config import Config
from tracelens.agent.runtime import Agent
from tracelens.bundle import Bundle, write_manifest

torch = pytest.importorskip("torch")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    write_manifest(tmp_path, {"id": "x"})
    return tmp_path


def make(bundle: Path) -> Agent:
    return Agent(Config(str(bundle), []), torch)


def test_a_second_process_of_the_same_rank_gets_the_next_number(bundle: Path) -> None:
    first, second = make(bundle), make(bundle)
    first.activate()
    second.activate()
    assert (first.rank, second.rank) == (0, 1)
    assert "kept as rank 1" in str(Bundle.open(bundle).events_of("warning"))
    first.close()
    third = make(bundle)
    third.activate()
    assert third.rank == 0
    assert len(Bundle.open(bundle).ranks[0].process) == 1  # the same pid: lines are merged
    second.close()
    third.close()


def test_numbers_go_on_after_a_restart(bundle: Path) -> None:
    first = make(bundle)
    first.activate()
    assert (first.first_step, first.first_window) == (0, 0)
    for number in range(500):
        first.write("steps.jsonl", {"step": number})
    first.write("windows.jsonl", {"window": 0})
    first.close()
    with (bundle / "rank0" / "steps.jsonl").open("a") as file:
        file.write('{"step": 50')  # killed while it wrote
    second = make(bundle)
    second.activate()
    assert (second.first_step, second.first_window) == (500, 1)
    second.close()


def test_a_failure_is_said_once_and_switches_everything_off(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = make(bundle)
    for _ in range(2):
        try:
            raise ValueError("ours")
        except ValueError as error:
            agent.fail("test", error)
    assert not agent.on
    assert capsys.readouterr().err.count("ValueError: ours") == 1
    assert len(Bundle.open(bundle).events_of("warning")) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGALRM")
def test_an_error_of_the_jobs_signal_handler_is_not_kept(bundle: Path) -> None:
    agent = make(bundle)

    def handler(number: int, frame: Any) -> None:
        raise TimeoutError("the job's own")

    def interrupted() -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            time.sleep(2)
        except Exception as error:
            agent.fail("test", error)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError, match="the job's own"):
            interrupted()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert agent.on


def test_a_stderr_that_is_gone_is_no_failure(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(bundle)
    monkeypatch.setattr(sys, "stderr", None)
    agent.warn("test", "nobody hears this", loud=True)
    assert len(Bundle.open(bundle).events_of("warning")) == 1
