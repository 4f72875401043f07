"""Where steps end: optimizers, explicit calls, loaders, and loops that mix them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.agent.config import Config
from tracelens.agent.steps import StepLog


class Optimizer:
    pass


class Cuda:
    @staticmethod
    def is_initialized() -> bool:
        return False


class Torch:
    cuda = Cuda


class Agent:
    """Stands for the runtime: keeps lines instead of writing them."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.config = Config(bundle="", settings=[], stop_after=stop_after)
        self.torch = Torch
        self.lines: list[dict[str, Any]] = []
        self.active = False
        self.started_ns = 0
        self.first_step = 0
        self.rank = 0
        self.said: list[str] = []

    def activate(self) -> None:
        self.active = True

    def write(self, name: str, record: dict[str, Any], urgent: bool = False) -> None:
        assert name == "steps.jsonl"
        self.lines.append(record)

    def event(self, kind: str, **fields: Any) -> None:
        self.said.append(kind)

    def say(self, message: str) -> None:
        self.said.append(message)


def make(**options: Any) -> tuple[Agent, StepLog]:
    agent = Agent(**options)
    return agent, StepLog(agent, lambda upcoming, end, duration: None, lambda: None, agent.said.append)  # type: ignore[arg-type]


def batch(steps: StepLog, samples: int = 4, wait: int = 1000, training: bool = True, epoch: int = 0) -> None:
    import time

    steps.before_next(time.time_ns(), training)
    steps.on_batch(wait, samples, epoch, training)


def sources(agent: Agent) -> list[tuple[int, str, int | None]]:
    return [(line["step"], line["source"], line["samples"]) for line in agent.lines]


def test_one_optimizer() -> None:
    agent, steps = make()
    optimizer = Optimizer()
    for _ in range(3):
        batch(steps)
        steps.on_optimizer(optimizer)
    assert sources(agent) == [(0, "optimizer", 4), (1, "optimizer", 4), (2, "optimizer", 4)]
    assert [line["wait_ms"] for line in agent.lines] == [0.001] * 3


def test_accumulation_sums_waits_and_samples() -> None:
    agent, steps = make()
    optimizer = Optimizer()
    for _ in range(2):
        for _ in range(40):
            batch(steps, wait=1_000_000)
        steps.on_optimizer(optimizer)
    assert sources(agent) == [(0, "optimizer", 160), (1, "optimizer", 160)]
    assert [line["wait_ms"] for line in agent.lines] == [40, 40]


@pytest.mark.parametrize("pattern", ["dg", "dddddg", "gdd"])
def test_a_gan_counts_its_leader(pattern: str) -> None:
    agent, steps = make()
    optimizers = {"d": Optimizer(), "g": Optimizer()}
    for _ in range(5):
        batch(steps)
        for letter in pattern:
            steps.on_optimizer(optimizers[letter])
    assert len(agent.lines) == 5 * pattern.count(pattern[0])


def test_a_new_optimizer_takes_over_from_one_that_is_gone() -> None:
    agent, steps = make()
    for _ in range(3):
        optimizer = Optimizer()
        steps.on_optimizer(optimizer)
        steps.on_optimizer(optimizer)
        del optimizer
    assert len(agent.lines) == 6


def test_a_new_optimizer_beside_the_old_one_takes_over_at_once() -> None:
    agent, steps = make()
    first, second = Optimizer(), Optimizer()
    for optimizer in (first, second):
        for _ in range(20):
            batch(steps)
            steps.on_optimizer(optimizer)
    assert len(agent.lines) == 39
    assert sum(line["samples"] for line in agent.lines) == 160


def test_optimizers_that_take_turns_on_one_batch_keep_their_leader() -> None:
    agent, steps = make()
    first, second = Optimizer(), Optimizer()
    for _ in range(10):
        batch(steps)
        steps.on_optimizer(first)
        for _ in range(5):
            steps.on_optimizer(second)
    assert len(agent.lines) == 10


def test_the_parts_of_a_zero_optimizer_are_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    agent, steps = make()
    optimizer = Optimizer()
    for _ in range(4):
        batch(steps)
        for _ in range(7):
            steps.on_optimizer(optimizer)
    assert len(agent.lines) == 4


def test_several_steps_on_one_batch_are_several_steps() -> None:
    agent, steps = make()
    optimizer = Optimizer()
    for _ in range(4):
        batch(steps)
        for _ in range(3):
            steps.on_optimizer(optimizer)
    assert len(agent.lines) == 12


def test_a_leader_that_stopped_stepping_is_replaced() -> None:
    agent, steps = make()
    first, second = Optimizer(), Optimizer()
    steps.on_optimizer(first)
    for _ in range(40):
        steps.on_optimizer(second)
    assert 20 < len(agent.lines) < 40


def test_explicit_calls_win_and_do_not_count_the_first_step_twice() -> None:
    agent, steps = make()
    optimizer = Optimizer()
    for _ in range(4):
        batch(steps)
        steps.on_optimizer(optimizer)
        steps.on_explicit()
    assert sources(agent) == [(0, "optimizer", 4), (1, "explicit", 4), (2, "explicit", 4), (3, "explicit", 4)]


def test_inference_counts_batches_after_a_while() -> None:
    agent, steps = make()
    for _ in range(30):
        batch(steps, training=False)
    assert [line["step"] for line in agent.lines] == list(range(29))
    assert {line["source"] for line in agent.lines} == {"loader"}
    assert {line["samples"] for line in agent.lines} == {4}
    for before, after in zip(agent.lines, agent.lines[1:], strict=False):
        assert before["t1"] == after["t0"]


def test_a_short_loop_without_optimizer_is_told_at_the_end() -> None:
    agent, steps = make()
    for _ in range(5):
        batch(steps)
    assert agent.lines == []
    agent.activate()
    steps.finish()
    assert sources(agent) == [(index, "loader", 4) for index in range(4)]


def test_an_optimizer_after_sanity_batches_owns_the_log() -> None:
    agent, steps = make()
    for _ in range(3):
        batch(steps, training=False)
    optimizer = Optimizer()
    for _ in range(2):
        batch(steps)
        steps.on_optimizer(optimizer)
    assert [line["source"] for line in agent.lines] == ["optimizer", "optimizer"]


def test_validation_batches_do_not_count_into_a_step() -> None:
    agent, steps = make()
    optimizer = Optimizer()
    batch(steps)
    steps.on_optimizer(optimizer)
    batch(steps, training=False, samples=100)
    batch(steps)
    steps.on_optimizer(optimizer)
    assert sources(agent)[1] == (1, "optimizer", 4)


def test_stop_after_exits_cleanly_and_insists() -> None:
    agent, steps = make(stop_after=2)
    optimizer = Optimizer()
    steps.on_optimizer(optimizer)
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            steps.on_optimizer(optimizer)
        assert stopped.value.code == 0
    assert agent.said.count("stop") == 1


@given(st.lists(st.sampled_from(["batch", "quiet", "a", "b", "explicit"]), max_size=80))
def test_steps_are_numbered_and_never_overlap(actions: list[str]) -> None:
    agent, steps = make()
    optimizers = {"a": Optimizer(), "b": Optimizer()}
    calls: dict[str, Callable[[], None]] = {
        "batch": lambda: batch(steps),
        "quiet": lambda: batch(steps, training=False),
        "a": lambda: steps.on_optimizer(optimizers["a"]),
        "b": lambda: steps.on_optimizer(optimizers["b"]),
        "explicit": steps.on_explicit,
    }
    for action in actions:
        calls[action]()
    steps.finish()
    assert [line["step"] for line in agent.lines] == list(range(len(agent.lines)))
    for before, after in zip(agent.lines, agent.lines[1:], strict=False):
        assert before["t0"] <= before["t1"] <= after["t0"] <= after["t1"]
