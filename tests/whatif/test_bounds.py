"""What-ifs where no replay is possible: shares of phases, and what is not known stays unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracekit import ALL_REDUCE, GEMM, POINTWISE, Loop, Trace
from tracelens.ingest.nvidia_smi import parse_query_csv
from tracelens.model import RESOURCES
from tracelens.signals.analysis import RankAnalysis
from tracelens.whatif.bounds import WhatIfs, bounds


def test_share_and_speedup_of_a_saving() -> None:
    whatifs = WhatIfs(100.0, {"cpu": 25.0, "gpu": 0.0, "h2d_copy": 100.0, "communication": None}, "bound")
    assert whatifs.share("cpu") == 0.25
    assert whatifs.speedup("cpu") == pytest.approx(4 / 3)
    assert whatifs.speedup("gpu") == 1.0
    # nothing would remain: capped, not infinite
    assert whatifs.speedup("h2d_copy") == pytest.approx(1000)
    # unknown is not zero
    assert whatifs.share("communication") is whatifs.speedup("communication") is None
    assert whatifs.share("memory_bandwidth") is None


def test_a_step_without_length_has_no_shares() -> None:
    assert WhatIfs(0.0, {"cpu": 1.0}, "bound").share("cpu") is None


def test_phases_bound_what_each_class_saves(tmp_path: Path) -> None:
    """A step of 1000: 100 idle before the copy's 50, 500 of matrix work, 100 of pointwise, 150 of collectives, 100 idle."""
    trace = Trace()
    for number in range(8):
        at = 1000 + 1000 * number
        trace.step(number, at, at + 999)
        trace.op("aten::to", at + 60, at + 99)
        trace.correlation += 1
        trace.call("cudaMemcpyAsync", at + 90, at + 95, correlation=trace.correlation)
        trace.copy(at + 100, at + 150, 600_000, trace.correlation, "HtoD (Pinned -> Device)")
        trace.op("aten::mm", at + 96, at + 130)
        trace.launch(at + 100, GEMM, at + 150, at + 650)
        trace.launch(at + 110, POINTWISE, at + 650, at + 750)
        trace.launch(at + 120, ALL_REDUCE, at + 750, at + 900, stream=20)
    found = bounds(RankAnalysis(trace.tables(tmp_path)))
    assert found.kind == "bound"
    assert found.step_ms == pytest.approx(1.0)
    assert found.saving_ms["communication"] == pytest.approx(0.15)
    assert found.saving_ms["h2d_copy"] == pytest.approx(0.05, abs=0.006)
    assert found.saving_ms["gpu"] == pytest.approx(0.5)
    assert found.saving_ms["memory_bandwidth"] == pytest.approx(0.1)
    # idle, less what copying explains; nothing of it had been launched
    assert found.saving_ms["cpu"] == pytest.approx(0.2, abs=0.01)
    assert sum(v or 0 for v in found.saving_ms.values()) == pytest.approx(1.0, abs=0.001)


def test_queued_gaps_are_not_the_hosts(tmp_path: Path) -> None:
    """Work was launched long before the gap: a faster host would not close it."""

    def trace(launch_at: float) -> Trace:
        out = Trace()
        for number in range(8):
            at = 1000 + 1000 * number
            out.step(number, at, at + 999)
            out.launch(at + 10, GEMM, at + 20, at + 420)
            out.launch(at + launch_at, GEMM, at + 700, at + 1000)
        return out

    queued = bounds(RankAnalysis(trace(30).tables(tmp_path / "a")))
    starved = bounds(RankAnalysis(trace(690).tables(tmp_path / "b")))
    assert (starved.saving_ms["cpu"] or 0) - (queued.saving_ms["cpu"] or 0) == pytest.approx(0.28, abs=0.001)


def operators_only(trace: Trace) -> Trace:
    """Eight steps of 1000, 400 of them loading."""
    for number in range(8):
        at = 1000 + 1000 * number
        trace.step(number, at, at + 999)
        trace.next(at, at + 400)
        trace.op("aten::mm", at + 400, at + 999)
    return trace


def test_without_a_gpu_operators_stay(tmp_path: Path) -> None:
    found = bounds(RankAnalysis(operators_only(Trace(metadata={"schemaVersion": 1})).tables(tmp_path)))
    assert found.saving_ms["cpu"] == pytest.approx(0.4, abs=0.005)
    assert found.saving_ms["h2d_copy"] == found.saving_ms["communication"] == found.saving_ms["gpu"] == 0
    # nothing says what the host's memory would give
    assert found.saving_ms["memory_bandwidth"] is None


def test_every_class_is_answered(tmp_path: Path) -> None:
    assert set(bounds(RankAnalysis(Loop().trace().tables(tmp_path))).saving_ms) == set(RESOURCES)


def test_kernels_hidden_in_graphs_are_of_unknown_kinds(tmp_path: Path) -> None:
    """400 of each 1000 queued behind a graph launch with nothing recorded: neither kind of kernel has a bound."""

    def found(hidden: bool) -> WhatIfs:
        trace = Trace()
        for number in range(8):
            at = 1000 + 1000 * number
            trace.step(number, at, at + 999)
            trace.correlation += 1
            trace.call(
                "cudaGraphLaunch" if hidden else "cudaFree", at + 5, at + 15, correlation=trace.correlation
            )
            trace.launch(at + 20, POINTWISE, at + 30, at + 500)
            trace.launch(at + 40, GEMM, at + 900, at + 990)
        return bounds(RankAnalysis(trace.tables(tmp_path / str(hidden))))

    assert found(True).saving_ms["gpu"] is None
    assert found(True).saving_ms["memory_bandwidth"] is None
    assert found(True).saving_ms["cpu"] is not None
    assert found(False).saving_ms["memory_bandwidth"] == pytest.approx(0.47)


@pytest.mark.parametrize(("used", "cpu"), [(70, 0.3), (10, 0.4)])
def test_of_a_gpu_that_was_not_recorded_its_log_says_what_remains(
    tmp_path: Path, used: int, cpu: float
) -> None:
    """The first sample lies before the work. Of the GPU's own work nothing is known."""
    rows = "".join(f"2026/12/01 17:40:10.{i}02, 0, GPU-aa, {u} %\n" for i, u in enumerate((0, used, used)))
    log = parse_query_csv("timestamp, index, uuid, utilization.gpu [%]\n" + rows, "gpu.csv")
    found = bounds(RankAnalysis(operators_only(Trace()).tables(tmp_path), gpu_log=log))
    assert found.saving_ms["cpu"] == pytest.approx(cpu, abs=0.005)
    assert all(found.saving_ms[name] is None for name in RESOURCES if name != "cpu")


def test_where_only_the_gpu_was_recorded_all_its_idle_time_may_be_the_hosts(tmp_path: Path) -> None:
    trace = Trace()
    for k in range(10):
        trace.kernel(GEMM, 1000 * k, 1000 * k + 700)
        trace.copy(1000 * k + 700, 1000 * k + 750, 600_000)
    found = bounds(RankAnalysis(trace.tables(tmp_path)))
    assert found.share("cpu") == pytest.approx(0.25, abs=0.03)
    assert found.share("h2d_copy") == pytest.approx(0.05, abs=0.01)
    # whether anything waits for the kernels nobody can tell
    assert found.saving_ms["gpu"] is found.saving_ms["memory_bandwidth"] is None
