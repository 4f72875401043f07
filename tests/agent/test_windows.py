"""The windows against a profiler that plays a GPU: preparation, limits, missing kernels, forks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracelens.agent import environment, kineto, sigterm, windows
from tracelens.agent.config import Config
from tracelens.agent.runtime import Agent
from tracelens.agent.schedule import is_traced
from tracelens.agent.windows import Windows
from tracelens.bundle import Bundle, write_manifest

torch = pytest.importorskip("torch")
EVENT = '{"ph": "X", "cat": "kernel", "name": "k"}'


class Profiler:
    """Writes down what is done to it."""

    def __init__(self, calls: list[str], kernels: int) -> None:
        self.calls = calls
        self.kernels = kernels

    def prepare_trace(self) -> None:
        self.calls.append("prepare")

    def start_trace(self) -> None:
        self.calls.append("start")

    def stop_trace(self) -> None:
        self.calls.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        self.calls.append("export")
        events = ",\n".join([EVENT] * self.kernels)
        Path(path).write_text(f'{{"traceEvents": [{events}]}}\n')


class Job:
    """A loop of steps with a GPU that only exists in the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        write_manifest(folder, {"id": "x"})
        self.calls: list[str] = []
        self.kinds: list[str] = []
        self.kernels = 3
        real = torch
        cuda = SimpleNamespace(
            is_initialized=lambda: True, current_device=lambda: 0,
            get_device_properties=lambda index: SimpleNamespace(
                name="Play GPU", uuid="GPU-1", total_memory=1, multi_processor_count=2, major=9, minor=0
            ),
        )  # fmt: skip

        class Torch:
            version = SimpleNamespace(cuda="12.4", hip=None)

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        stand_in = Torch()
        stand_in.cuda = cuda  # type: ignore[attr-defined]
        self.agent = Agent(Config(str(folder), [], **options), stand_in)
        monkeypatch.setattr(kineto, "make", self._make)
        monkeypatch.setattr(kineto, "records_cuda", lambda torch: True)
        self.windows = Windows(self.agent)
        self.step = 0

    def _make(self, torch: Any, kind: str) -> Profiler:
        self.kinds.append(kind)
        return Profiler(self.calls, self.kernels)

    def run(self, until: int) -> list[int | None]:
        self.agent.activate()
        found = []
        while self.step < until:
            self.step += 1
            found.append(self.windows.boundary(self.step, time.time_ns() + 10**9, 1000.0))
        return found


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    found = Job(tmp_path, monkeypatch)
    yield found
    found.windows.close(complete=False)  # takes the signal handler back
    found.agent.close()


def recorded(job: Job) -> list[dict[str, Any]]:
    return Bundle.open(job.agent.config.bundle).ranks[0].windows


def warnings(job: Job) -> str:
    return str([event["message"] for event in Bundle.open(job.agent.config.bundle).events_of("warning")])


def test_with_a_gpu_the_profiler_is_prepared_one_step_ahead(job: Job) -> None:
    job.run(10)
    assert job.calls == []
    job.run(11)
    assert job.calls == ["prepare"]
    job.run(12)
    assert job.calls == ["prepare", "start"]
    assert job.run(18) == [0] * 6
    assert job.calls == ["prepare", "start", "stop", "export"]
    (window,) = recorded(job)
    assert (window["first_step"], window["last_step"], window["kernels"], window["cuda"]) == (12, 17, 3, True)
    assert len(window["baseline_ms"]) == 8
    job.run(60)
    assert job.kinds == ["lean", "shapes", "stacks"]
    job.windows.finish(60)
    # the step before a window starts is the profiler's warm-up, and belongs to nobody
    assert [len(window["after_ms"]) for window in recorded(job)] == [8, 7, 8]


def test_missing_kernels_are_said_with_a_reason(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.kernels = 0
    job.run(20)
    (window,) = recorded(job)
    assert window["kernels"] == 0
    assert "CUPTI delivered nothing" in window["missing_kernels_reason"]
    assert "holds no GPU kernels" in capsys.readouterr().err


def test_no_window_opens_when_memory_is_short(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "available_bytes", lambda: 100 << 20)
    job.run(60)
    assert job.kinds == []
    assert "less than 1 GB of memory is free" in warnings(job)


def test_a_window_that_eats_memory_is_closed_early(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run(13)
    monkeypatch.setattr(environment, "resident_bytes", lambda: 1 << 40)
    job.run(20)
    assert recorded(job)[0]["last_step"] == 13
    assert "memory runs short" in warnings(job)


def test_traces_are_bounded_in_bytes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_BUNDLE_LIMIT", 10)
    job.run(60)
    assert job.kinds == ["lean"]
    assert "already hold" in warnings(job)


def test_steps_that_fill_a_trace_by_themselves_are_not_traced_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_TRACE_LIMIT", 60)
    job.run(60)
    assert job.kinds == ["lean", "stacks"]
    assert "no shapes window at step 32: one step takes" in warnings(job)
    assert "could not be kept: it has 0 MB" in warnings(job)


def test_shapes_and_stacks_end_before_workers_are_forked(job: Job) -> None:
    job.run(33)
    assert job.windows.is_open
    job.windows.before_fork()
    assert not job.windows.is_open
    (_, window) = recorded(job)
    assert (window["kind"], window["complete"], window["reason"]) == (
        "shapes",
        True,
        "loader workers were started",
    )


def test_a_lean_window_goes_on_over_a_fork(job: Job) -> None:
    job.run(14)
    job.windows.before_fork()
    assert job.windows.is_open


def test_a_job_that_ends_between_preparation_and_start(job: Job) -> None:
    job.run(11)
    job.windows.finish(11)
    assert job.calls == ["prepare", "start", "stop"]
    assert recorded(job) == []


def test_only_some_of_many_ranks_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "64")
    job = Job(tmp_path, monkeypatch)
    job.run(60)
    assert job.kinds == []
    for world in (1, 2, 8, 9, 64, 100, 1000):
        assert 1 <= sum(is_traced(rank, world) for rank in range(world)) <= 8
        assert is_traced(0, world)


def test_sigterm_is_caught_only_while_a_window_is_open(job: Job) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    job.run(13)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    job.run(20)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_during_an_export_waits_for_its_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(sigterm.os, "kill", lambda pid, number: killed.append((number, list(job.calls))))
    job.run(13)
    export = Profiler.export_chrome_trace

    def interrupted(profiler: Profiler, path: str) -> None:
        signal.raise_signal(signal.SIGTERM)
        assert killed == []
        export(profiler, path)

    monkeypatch.setattr(Profiler, "export_chrome_trace", interrupted)
    job.run(18)
    assert killed == [(signal.SIGTERM, ["prepare", "start", "stop", "export"])]
    (window,) = recorded(job)
    assert window["complete"]
    assert window["file"]


def test_sigterm_in_a_window_exports_and_ends(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(sigterm.os, "kill", lambda pid, number: killed.append(number))
    job.run(14)
    signal.raise_signal(signal.SIGTERM)
    assert killed == [signal.SIGTERM]
    (window,) = recorded(job)
    assert (window["complete"], window["reason"], window["last_step"]) == (False, "SIGTERM", 13)


def test_quiet_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    lazy = {"_inductor", "_dynamo"}
    stand_in = SimpleNamespace(_lazy_modules=lazy)
    monkeypatch.delitem(__import__("sys").modules, "torch._inductor", raising=False)
    with kineto.Quiet(stand_in):
        assert os.environ["KINETO_LOG_LEVEL"] == "99"
        assert lazy == {"_dynamo"}
    assert "KINETO_LOG_LEVEL" not in os.environ
    assert lazy == {"_inductor", "_dynamo"}
    monkeypatch.setenv("KINETO_LOG_LEVEL", "1")
    with kineto.Quiet(stand_in):
        assert os.environ["KINETO_LOG_LEVEL"] == "1"
