"""Steps from each source, start-up, the last step, and what must not be taken for a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tracekit import GEMM, POINTWISE, Loop, Trace
from tracelens.signals.repetition import kernel_period
from tracelens.signals.steps import Steps, find_steps

LAYERS = ((GEMM, 300), (POINTWISE, 60), ("softmax_warp_forward", 30)) * 3


def steps_of(trace: Trace, tmp_path: Path) -> Steps:
    return find_steps(trace.activity(tmp_path))


def test_markers_come_first(tmp_path: Path) -> None:
    steps = steps_of(Loop(steps=8, first=11).trace(), tmp_path)
    assert (steps.source, steps.count, steps.steady) == ("profiler_step", 8, 7)
    assert steps.number.tolist() == list(range(11, 19))
    assert (np.diff(steps.durations) == 0).all()
    assert steps.durations.sum() == steps.window[1] - steps.window[0]


def test_the_gpu_side_copy_of_a_marker_is_no_step(tmp_path: Path) -> None:
    trace = Loop(steps=6).trace()
    for number in range(3, 9):
        trace.add("gpu_user_annotation", f"ProfilerStep#{number}", 2000 * number, 2000 * number + 900, 0, 7)
    assert steps_of(trace, tmp_path).count == 6


def test_optimizer_steps(tmp_path: Path) -> None:
    steps = steps_of(Loop(steps=8, markers=False).trace(), tmp_path)
    assert (steps.source, steps.count) == ("optimizer_step", 8)


def test_loader_events(tmp_path: Path) -> None:
    steps = steps_of(Loop(steps=8, markers=False, optimizer_launches=0, load_us=500).trace(), tmp_path)
    assert (steps.source, steps.count) == ("loader_next", 8)


def test_backward_passes(tmp_path: Path) -> None:
    trace = Loop(steps=8, markers=False, optimizer_launches=0, iterator=None, load_us=400).trace()
    launches = [e for e in trace.events if e["name"] == "aten::add"]
    for event in launches:
        if launches.index(event) % 6 >= 3:
            trace.op(
                "autograd::engine::evaluate_function: AddBackward0",
                event["ts"] - 1,
                event["ts"] + event["dur"] + 1,
            )
    steps = steps_of(trace, tmp_path)
    assert (steps.source, steps.count) == ("backward", 8)


def test_repeated_kernels(tmp_path: Path) -> None:
    trace = Loop(
        steps=12, markers=False, optimizer_launches=0, iterator=None, load_us=0, kernels=LAYERS, wait=True
    ).trace()
    for event in trace.events:  # eleven names a step, so that layers do not repeat inside one
        if event["cat"] == "kernel":
            event["name"] += str(event["args"]["correlation"] % 11)
    steps = steps_of(trace, tmp_path)
    assert (steps.source, steps.count) == ("kernel_sequence", 11)


def test_no_steps_at_all(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 10, 500)
    trace.launch(20, GEMM, 30, 400)
    steps = steps_of(trace, tmp_path)
    assert (steps.source, steps.count, steps.steady) == (None, 0, 0)
    assert steps.window == (10_000, 500_000)
    result = trace.result(tmp_path)
    assert "quality.no_steps" in [note.rule for note in result.quality]


def test_start_up_is_cut_and_counted(tmp_path: Path) -> None:
    trace = Loop(
        steps=10, startup_us=0, load_us=100, slow=lambda step: 60_000.0 if step == 1 else 0.0
    ).trace()
    steps = steps_of(trace, tmp_path)
    assert (steps.startup, steps.first, steps.steady) == (1, 2, 8)


def test_a_recurring_stall_stays_in(tmp_path: Path) -> None:
    trace = Loop(steps=12, load_us=100, slow=lambda step: 60_000.0 if step % 4 == 1 else 0.0).trace()
    steps = steps_of(trace, tmp_path)
    assert (steps.startup, steps.steady) == (0, 11)
    assert (steps.durations > 50_000_000).sum() == 3


def test_a_last_step_that_lost_its_kernels_is_left_out(tmp_path: Path) -> None:
    trace = Loop(steps=8).trace()
    kernels = [e for e in trace.events if e["cat"] == "kernel"]
    for event in kernels[-8:]:
        trace.events.remove(event)
    steps = steps_of(trace, tmp_path)
    assert (steps.incomplete, steps.last, steps.steady) == (1, 6, 6)


def test_a_last_step_that_launched_all_its_work_is_whole_however_short(tmp_path: Path) -> None:
    """Beside steps that load modules for 500 ms the last takes 3 % of their time on the host."""
    loop = Loop(steps=6, slow=lambda step: 500_000.0 if step < 5 else 0.0)
    assert steps_of(loop.trace(), tmp_path / "a").last == 5
    # one that launched nothing is the profiler's end
    trace = Loop(steps=6).trace()
    last = max(e["ts"] + e["dur"] for e in trace.events)
    trace.step(99, last + 10, last + 12)
    assert steps_of(trace, tmp_path / "b").incomplete == 1


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_steps_are_all_kept_from_the_first_marker(tmp_path: Path, count: int) -> None:
    trace = Loop(steps=count).trace()
    steps = steps_of(trace, tmp_path)
    assert (steps.count, steps.steady, steps.startup) == (count, count, 0)
    assert steps.window[0] == 1_000_000
    result = trace.result(tmp_path)
    assert "quality.few_steps" in [note.rule for note in result.quality]
    assert result.verdict.confidence <= 0.8


def test_several_optimizers_make_one_step(tmp_path: Path) -> None:
    """A GAN: two optimizers of different classes in turn."""
    trace = Loop(steps=8, markers=False).trace()
    for event in [e for e in trace.events if e["name"] == "Optimizer.step#SGD.step"]:
        trace.annotation("Optimizer.step#Adam.step", event["ts"] - 2000, event["ts"] - 1990)
    assert steps_of(trace, tmp_path).count == 8


def test_two_optimizers_of_one_class_one_after_the_other(tmp_path: Path) -> None:
    trace = Loop(steps=8, markers=False).trace()
    for event in [e for e in trace.events if e["name"] == "Optimizer.step#SGD.step"]:
        end = event["ts"] + event["dur"]
        trace.annotation("Optimizer.step#SGD.step", end + 1, end + 4)
    assert steps_of(trace, tmp_path).count == 8


def test_gradient_accumulation_has_fewer_steps_than_batches(tmp_path: Path) -> None:
    """Four batches, one optimizer step: the iteration is the optimizer's."""
    trace = Loop(steps=24, markers=False, load_us=300).trace()
    optimizer = [e for e in trace.events if e["name"] == "Optimizer.step#SGD.step"]
    for position, event in enumerate(optimizer):
        if position % 4 != 3:
            trace.events.remove(event)
    steps = steps_of(trace, tmp_path)
    assert (steps.source, steps.count) == ("optimizer_step", 6)


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    activity = Loop(steps=6, load_us=5).trace().activity(tmp_path)
    steps = find_steps(activity)
    launched = activity.host.start[activity.device.launch]
    expected = np.searchsorted(steps.begin, launched, side="right") - 1
    inside = launched < steps.end[-1]
    assert (steps.owner[inside] == expected[inside]).all()
    # the host is far ahead: kernels of a step run after the host has left it
    assert (activity.device.end > steps.end[np.minimum(steps.owner, 5)]).any()


def test_the_period_of_a_sequence() -> None:
    step = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert kernel_period(np.tile(step, 5)) == (0, 9)
    assert kernel_period(np.arange(100)) is None
    assert kernel_period(np.tile(step, 2)) is None
    layers = np.concatenate([np.tile([1, 2, 3, 4, 5, 6, 7, 8], 4), [50, 51]])  # layers repeat inside a step
    assert kernel_period(np.tile(layers, 4)) == (0, 34)


def test_a_cpu_only_run_has_steps_by_host_ends(tmp_path: Path) -> None:
    trace = Trace(metadata={})
    for number in range(6):
        trace.next(1000 + 500 * number, 1100 + 500 * number)
        trace.op("aten::mm", 1100 + 500 * number, 1450 + 500 * number)
        trace.step(number, 1000 + 500 * number, 1490 + 500 * number)
    steps = steps_of(trace, tmp_path)
    assert (steps.count, steps.steady) == (6, 5)
    assert steps.durations.tolist() == [500_000] * 5
