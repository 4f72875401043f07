"""Anomaly checks, cuDNN's search, pinning and synchronisations left in the loop, in traces that hold a known number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bundlekit import cpu_trace
from tests.signalkit import CONVOLUTION
from tests.tracekit import GEMM, Loop, Trace
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.leftovers import leftover_signals
from tracelens.signals.signal import Signals

BACKWARD = "autograd::engine::evaluate_function: MulBackward0"


def signals_of(trace: Trace, folder: Path) -> Signals:
    out = Signals()
    leftover_signals(RankAnalysis(trace.tables(folder)), out)
    return out


def with_each_step(add: Callable[[Trace, float, int], None], load_us: float = 2000) -> Trace:
    """A loop that starves while it loads; ``add(trace, us, number)`` puts something there, 1 ms into each step."""
    out = Loop(steps=10, load_us=load_us, kernels=[(GEMM, 100)] * 3).trace()
    steps = [e for e in out.events if str(e.get("name", "")).startswith("ProfilerStep")]
    for number, step in enumerate(steps):
        add(out, step["ts"] + 1000, number)
    return out


def test_a_plain_loop_has_none_of_it(tmp_path: Path) -> None:
    out = signals_of(with_each_step(lambda *_: None), tmp_path)
    for name in (
        "sync.device_count",
        "sync.optimizer_count",
        "host.pin_calls",
        "host.pin_ms",
        "convolution.search_ms",
    ):
        assert out.number(name) == 0, name
    assert out.number("kernels.convolution_ms") == 0
    assert out["autograd.nan_checks"].value is None  # no backward pass was recorded


def checks(out: Trace, at: float, number: int) -> None:
    """Three nodes, each tested and read back, 100 us each."""
    for node in range(3):
        start = at + 110 * node
        out.op(BACKWARD, start, start + 108)
        out.op("aten::isnan", start + 1, start + 21)
        out.op("aten::_is_any_true", start + 21, start + 41)
        out.op("aten::item", start + 41, start + 101)


def test_every_node_is_tested_in_anomaly_mode(tmp_path: Path) -> None:
    out = signals_of(with_each_step(checks), tmp_path)
    assert out.number("autograd.nan_checks") == pytest.approx(3)
    assert out.number("autograd.nan_check_ms") == pytest.approx(0.3, rel=0.05)


def test_reads_outside_the_backward_pass_are_no_checks(tmp_path: Path) -> None:
    def reads(out: Trace, at: float, number: int) -> None:
        out.op(BACKWARD, at, at + 50)
        out.op("aten::isnan", at + 100, at + 120)
        out.op("aten::item", at + 120, at + 150)

    assert signals_of(with_each_step(reads), tmp_path).number("autograd.nan_checks") == 0


def test_checks_without_a_gpu(tmp_path: Path) -> None:
    trace = cpu_trace()
    for step in [e for e in trace.events if str(e.get("name", "")).startswith("ProfilerStep")]:
        checks(trace, step["ts"] + 5000, 0)
    out = signals_of(trace, tmp_path)
    assert out.number("autograd.nan_checks") == pytest.approx(3)
    assert out["host.pin_ms"].value is None


def test_convolutions_that_wait_for_timings(tmp_path: Path) -> None:
    """Each step but the first searches for 400 us; the longest search is start-up."""

    def search(out: Trace, at: float, number: int) -> None:
        length = 900 if number == 3 else 400
        out.op("aten::cudnn_convolution", at, at + length)
        out.call("cudaEventSynchronize", at + 50, at + length - 50)

    out = signals_of(with_each_step(search), tmp_path)
    steady = out.number("convolution.search_steps")
    assert steady is not None
    assert steady >= 7
    assert out.number("convolution.search_ms") == pytest.approx(0.4 * (steady - 1) / steady, rel=0.05)


def test_a_search_in_one_step_does_not_recur(tmp_path: Path) -> None:
    def once(out: Trace, at: float, number: int) -> None:
        out.op("aten::cudnn_convolution", at, at + 400)
        if number == 5:
            out.call("cudaEventSynchronize", at + 50, at + 350)

    out = signals_of(with_each_step(once), tmp_path)
    assert out.number("convolution.search_ms") == 0
    assert out.number("convolution.search_steps") == 1


def test_convolution_kernels_are_summed(tmp_path: Path) -> None:
    trace = Loop(steps=8, load_us=5, kernels=[(GEMM, 300), (CONVOLUTION, 200)] * 2).trace()
    assert signals_of(trace, tmp_path).number("kernels.convolution_ms") == pytest.approx(0.4, rel=0.03)


def test_pinning_and_whole_device_waits(tmp_path: Path) -> None:
    def add(out: Trace, at: float, number: int) -> None:
        out.call("cudaHostAlloc", at, at + 300)
        out.call("cudaFreeHost", at + 310, at + 330)
        out.call("cudaDeviceSynchronize", at + 400, at + 410)

    out = signals_of(with_each_step(add), tmp_path)
    assert out.number("host.pin_calls") == pytest.approx(1)
    assert out.number("host.pin_ms") == pytest.approx(0.32, rel=0.05)
    assert out.number("sync.device_count") == pytest.approx(1)


def test_values_read_inside_the_optimizer(tmp_path: Path) -> None:
    trace = Loop(steps=8, load_us=500).trace()  # its GPU lags behind
    for event in [e for e in trace.events if str(e.get("name", "")).startswith("Optimizer.step")]:
        trace.call("cudaStreamSynchronize", event["ts"] + 1, event["ts"] + 2)
    out = signals_of(trace, tmp_path)
    assert out.number("sync.optimizer_count") == pytest.approx(1)
    assert out.number("sync.device_count") == 0  # the one that ends the recording is not the job's
