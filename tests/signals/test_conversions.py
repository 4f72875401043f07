"""Layout conversions, copies back to the host and compilation, in traces that hold a known amount of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracekit import GEMM, Loop, Trace
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.conversions import conversion_signals
from tracelens.signals.signal import Signals

LAYOUT = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>"


def signals_of(trace: Trace, folder: Path) -> Signals:
    out = Signals()
    conversion_signals(RankAnalysis(trace.tables(folder)), out)
    return out


def test_layout_kernels_are_summed_over_a_step(tmp_path: Path) -> None:
    out = signals_of(Loop(load_us=5, kernels=[(GEMM, 300), (LAYOUT, 60)] * 3).trace(), tmp_path)
    assert out.number("kernels.layout_conversion_ms") == pytest.approx(0.18, rel=0.02)
    assert out.number("transfer.exposed_d2h_ms") == 0


def compiling(trace: Trace, at: float) -> Trace:
    """The trace with a compilation of 100 us, in nested ranges, ``at`` us into its third and fourth step."""
    for step in [e for e in trace.events if str(e.get("name", "")).startswith("ProfilerStep")][2:4]:
        begin = step["ts"] + at
        trace.op("_compile.compile_inner (dynamo_timed)", begin, begin + 100)
        trace.op("backend_compile (dynamo_timed)", begin + 10, begin + 60)
    return trace


def test_compilation_that_leaves_the_gpu_idle(tmp_path: Path) -> None:
    trace = Loop(load_us=400, kernels=[(GEMM, 20)] * 3).trace()
    plain = signals_of(trace, tmp_path)
    assert plain.number("compile.time_ms") == plain.number("compile.steps") == 0
    out = signals_of(compiling(trace, at=200), tmp_path)
    steady = RankAnalysis(trace.tables(tmp_path)).steps.steady
    assert out.number("compile.time_ms") == pytest.approx(0.2 / steady, rel=0.02)
    assert out.number("compile.steps") == 2


def test_compilation_behind_queued_kernels_costs_nothing(tmp_path: Path) -> None:
    out = signals_of(compiling(Loop(load_us=5, kernels=[(GEMM, 300)] * 3).trace(), at=20), tmp_path)
    assert out.number("compile.time_ms") == 0


@pytest.mark.parametrize(("size", "bulk"), [(4_000_000, True), (4, False)])
def test_copies_back_that_no_kernel_covers(tmp_path: Path, size: int, bulk: bool) -> None:
    """Each step copies for 400 us while nothing computes; a copy of a few bytes reads a number and is no bulk copy."""
    trace = Loop(load_us=1000, kernels=[(GEMM, 20)] * 3).trace()
    for step in [e for e in trace.events if str(e.get("name", "")).startswith("ProfilerStep")]:
        begin = step["ts"] + 200
        trace.copy(begin, begin + 400, size, kind="DtoH (Device -> Pageable)")
    out = signals_of(trace, tmp_path)
    moved, exposed = out.number("transfer.bulk_d2h_bytes"), out.number("transfer.exposed_d2h_ms")
    assert moved is not None
    assert exposed == pytest.approx(0.4 * moved / size)
    assert (moved > 0) == bulk
