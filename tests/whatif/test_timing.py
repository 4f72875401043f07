"""The constants of a replay, from traces in which they are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tracekit import GEMM, Loop, Trace
from tracelens.signals.analysis import RankAnalysis
from tracelens.whatif.timing import DEFAULT_QUEUE, fit_timing, outstanding_at


def analysis_of(trace: Trace, folder: Path) -> RankAnalysis:
    return RankAnalysis(trace.tables(folder))


def loop(count: int, cost: float, latency: float, gap: float, kernel: float, slow_every: int = 0) -> Trace:
    """Steps of ``count`` launches that cost ``cost``; the GPU idles before each step."""
    trace = Trace()
    host = free = 1000.0
    for number in range(6):
        begin = host
        for k in range(count):
            spent = 50 * cost if slow_every and k % slow_every == 3 else cost
            start = max(host + latency, free + gap)
            trace.launch(host, GEMM, start, start + kernel, cost=spent)
            host, free = host + spent + 1, start + kernel
        host = max(host, free) + 500
        trace.step(number, begin, host - 2)
    return trace


def test_launch_latency_and_gap_come_out_as_put_in(tmp_path: Path) -> None:
    timing = fit_timing(analysis_of(loop(10, cost=5, latency=9, gap=2, kernel=100), tmp_path))
    assert timing.launch_ns == 5000
    assert timing.latency_ns == 9000
    assert timing.gap_ns == 2000
    assert timing.queue == DEFAULT_QUEUE


def test_a_few_slow_launches_do_not_move_the_usual_one(tmp_path: Path) -> None:
    timing = fit_timing(analysis_of(loop(20, cost=5, latency=9, gap=2, kernel=100, slow_every=5), tmp_path))
    assert timing.launch_ns == 5000


def test_a_host_bound_trace_has_no_queued_kernels_and_takes_the_usual_gap(tmp_path: Path) -> None:
    timing = fit_timing(analysis_of(loop(10, cost=40, latency=9, gap=2, kernel=5), tmp_path))
    assert timing.gap_ns == 1000
    assert timing.latency_ns == 9000


def test_only_the_chosen_steps_are_fitted(tmp_path: Path) -> None:
    """The later half launches at 8 us: fitting the first half must not see it."""
    trace = Trace()
    host = 1000.0
    for number in range(8):
        cost = 4.0 if number < 4 else 8.0
        for _ in range(10):
            trace.launch(host, GEMM, host + 10, host + 15, cost=cost)
            host += 30
        trace.step(number, host - 300, host - 1)
    analysis = analysis_of(trace, tmp_path)
    assert fit_timing(analysis, np.arange(0, 4)).launch_ns == 4000
    assert fit_timing(analysis, np.arange(4, 8)).launch_ns == 8000


def test_without_kernels_defaults_are_used(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 0, 10)
    timing = fit_timing(analysis_of(trace, tmp_path))
    assert timing.queue == DEFAULT_QUEUE
    assert timing.launch_ns > 0


@pytest.mark.parametrize("python", [0, 60])
def test_launches_into_a_full_queue_do_not_tell_what_a_launch_costs(tmp_path: Path, python: int) -> None:
    """1030 kernels of 40 us were queued before the capture: every launch waits until one starts, unless ``python`` of 60
    before each of the first twenty lets the queue drain."""
    trace = Trace()
    for k in range(1030):
        trace.kernel(GEMM, 40 * k, 40 * k + 39)
    starts = [40.0 * k for k in range(1030)]
    host = 245.0
    for number in range(6):
        begin = host
        for _ in range(20):
            host += python if number == 0 else 0
            room = starts[len(starts) - 1023]
            cost = max(4.0, room - host)
            starts.append(starts[-1] + 40)
            trace.launch(host, GEMM, starts[-1], starts[-1] + 39, cost=cost)
            host += cost + 1
        trace.step(number, begin, host)
    timing = fit_timing(analysis_of(trace, tmp_path))
    assert timing.launch_ns == (4_000 if python else 5_000)


def test_outstanding_counts_launched_and_not_started(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(GEMM, 50, 150)  # launched before the capture
    trace.kernel(GEMM, 150, 250)  # ... and one that starts later
    for k in range(3):
        trace.launch(100 + 10 * k, GEMM, 250 + 100 * k, 350 + 100 * k)
    analysis = analysis_of(trace, tmp_path)
    at = np.array([105, 125, 160, 260, 460]) * 1000
    # at 105: one of the earlier two and one launch; 125: three launches; then one less with each start
    assert outstanding_at(analysis, at).tolist() == [2, 4, 3, 2, 0]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_loop_replays_with_its_own_constants(tmp_path: Path, ahead: bool) -> None:
    kernels = ((GEMM, 300.0 if ahead else 5.0),) * 8
    timing = fit_timing(analysis_of(Loop(kernels=kernels, copy_bytes=0).trace(), tmp_path))
    assert timing.launch_ns == 4000
    assert timing.gap_ns == (0 if ahead else 1000)
