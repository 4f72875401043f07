"""What a small trace becomes as a graph: kinds of work, what waits for what, and that no recorded wait gets in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tracekit import ALL_REDUCE, GEMM, POINTWISE, WORKERS, Loop, Trace
from tests.whatif.graphs import mean
from tracelens.ingest.nvidia_smi import parse_query_csv
from tracelens.signals.analysis import RankAnalysis
from tracelens.trace.tables import Pin
from tracelens.whatif import graph as g
from tracelens.whatif.replay import Scenario
from tracelens.whatif.timing import fit_timing

US = 1000.0
KERNELS = ((GEMM, 300.0),) * 2
LOOP = Loop(kernels=KERNELS)  # a step: copy, two matrix products, two optimizer kernels


def analysis_of(trace: Trace, folder: Path, **settings: Any) -> RankAnalysis:
    return RankAnalysis(trace.tables(folder), settings)


def graph_of(loop: Loop, folder: Path, **settings: Any) -> g.Graph:
    graph = g.build_graph(analysis_of(loop.trace(), folder, **settings))
    assert graph is not None
    return graph


def test_a_loop_becomes_its_launches_with_their_work(tmp_path: Path) -> None:
    graph = graph_of(LOOP, tmp_path)
    steps = graph.steps
    assert steps == 7  # eight recorded, the first is start-up to the steady window's edge
    assert graph.kind.tolist() == [g.LAUNCH] * 5 * steps
    assert graph.count.tolist() == [1] * 5 * steps
    step = [g.H2D, g.ARITHMETIC, g.ARITHMETIC, g.MEMORY, g.MEMORY]
    assert graph.work.tolist() == step * steps
    assert (graph.duration / US).tolist() == [60, 300, 300, 5, 5] * steps
    assert graph.owner.tolist() == [s for s in range(steps) for _ in range(5)]
    assert graph.bytes[::5].tolist() == [600_000] * steps
    assert graph.pin[::5].tolist() == [int(Pin.PINNED)] * steps
    assert (graph.call / US).tolist() == [6, 4, 4, 4, 4] * steps
    assert (graph.waits_for == -1).all()
    # the trace's own mean is what the replay gives back
    assert mean(graph) == pytest.approx(graph.recorded_ns / steps, rel=0.01)


def test_host_work_is_split_by_what_it_is(tmp_path: Path) -> None:
    gap = graph_of(replace(LOOP, python_us=500), tmp_path).gap[5] / US  # before the second step's copy
    assert gap[g.LOAD] == 200
    assert gap[g.PYTHON] == 500
    # the optimizer's last 5 us, then the pauses around them and the first 4 us of aten::to
    assert gap[g.OPTIMIZER] == 5
    assert 0 < gap[g.DISPATCH] <= 10
    assert gap[g.ALLOCATION] == gap[g.CAST] == 0


def test_a_pageable_copy_waits_for_itself_and_a_pinned_one_for_nothing(tmp_path: Path) -> None:
    graph = graph_of(replace(LOOP, pinned=False), tmp_path)
    copies = np.flatnonzero(graph.kind == g.LAUNCH)[::5]
    assert graph.waits_for[copies].tolist() == graph.first[copies].tolist()
    assert not graph.small_wait[copies].any()
    assert graph.pin[graph.first[copies]].tolist() == [int(Pin.PAGEABLE)] * graph.steps
    # its own cost is that of a launch: that it lasted until the copy's end comes out of the dependency
    assert (graph.call[copies] / US).tolist() == [4] * graph.steps
    assert (graph.slack[copies] == 0).all()


def test_item_waits_for_its_copy_and_not_for_a_length(tmp_path: Path) -> None:
    graph = graph_of(replace(LOOP, wait=True), tmp_path)
    item = np.flatnonzero(graph.work == g.D2H_SMALL)
    rows = np.flatnonzero(np.isin(graph.waits_for, item))
    assert rows.size == graph.steps
    assert graph.small_wait[rows].all()
    assert (graph.slack[rows] / US).tolist() == [2] * graph.steps


def test_no_recorded_wait_enters(tmp_path: Path) -> None:
    """Kernels twice as long: every wait of the recording is longer, the host's side of the graph is the same."""
    short = graph_of(replace(LOOP, wait=True), tmp_path / "short")
    long = graph_of(replace(LOOP, wait=True, kernels=((GEMM, 600.0),) * 2), tmp_path / "long")
    assert np.array_equal(short.gap, long.gap)
    assert np.array_equal(short.call, long.call)
    assert np.array_equal(short.slack, long.slack)
    # and with the kernels' durations exchanged one recording predicts the other
    assert mean(short, Scenario("longer", durations=long.duration)) == pytest.approx(mean(long), rel=1e-9)


def test_loader_requests_are_taken_over(tmp_path: Path) -> None:
    graph = graph_of(replace(LOOP, iterator=WORKERS, load_us=9000), tmp_path, num_workers=2)
    nexts = np.flatnonzero(graph.kind == g.NEXT)
    assert graph.requests.row.tolist() == nexts.tolist()
    assert nexts.size == graph.steps
    # every call waited 9 ms, so none shows what remains when a batch lies ready: the usual 100 us are taken
    own = graph.call[nexts]
    assert (own == 100 * US).all()
    assert (graph.requests.there - graph.requests.asked + own).tolist() == [9e6] * graph.steps


def test_quick_calls_show_what_handing_a_batch_over_costs(tmp_path: Path) -> None:
    loop = replace(LOOP, iterator=WORKERS, load_us=700, slow=lambda s: 30_000.0 if s % 2 else 0.0)
    graph = graph_of(loop, tmp_path, num_workers=2)
    assert (graph.call[graph.kind == g.NEXT] == 700 * US).all()
    assert sorted(set((graph.requests.there - graph.requests.asked).tolist())) == [0, 30_000 * US]


def test_samples_made_in_the_main_process_are_host_work(tmp_path: Path) -> None:
    graph = graph_of(replace(LOOP, load_us=9000), tmp_path)
    assert not (graph.kind == g.NEXT).any()
    assert graph.gap[:, g.LOAD].sum() / graph.steps == pytest.approx(9e6)


def stepped(build: Callable[[Trace, float], None], steps: int = 5, length: float = 1000) -> Trace:
    trace = Trace()
    for number in range(steps):
        start = 1000 + number * length
        trace.step(number + 3, start, start + length - 2)
        build(trace, start)
    return trace


def graph_from(build: Callable[[Trace, float], None], folder: Path) -> g.Graph:
    graph = g.build_graph(analysis_of(stepped(build), folder))
    assert graph is not None
    return graph


def test_a_wait_event_ties_the_next_launch_to_the_other_stream(tmp_path: Path) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.launch(at + 10, GEMM, at + 20, at + 320, stream=7)
        trace.call("cudaStreamWaitEvent", at + 30, at + 31)
        trace.launch(at + 40, ALL_REDUCE, at + 322, at + 422, stream=20)
        trace.call("cudaStreamWaitEvent", at + 50, at + 51)
        trace.launch(at + 60, POINTWISE, at + 424, at + 444, stream=7)

    graph = graph_from(step, tmp_path)
    assert graph.streams == 2
    per_step = np.arange(graph.steps) * 3
    assert graph.work[:3].tolist() == [g.ARITHMETIC, g.COMMUNICATION, g.MEMORY]
    assert graph.after[per_step + 1].tolist() == per_step.tolist()
    assert graph.after[per_step + 2].tolist() == (per_step + 1).tolist()
    assert (graph.after[per_step] == -1).all()


def test_streams_without_a_wait_are_independent(tmp_path: Path) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.launch(at + 10, GEMM, at + 20, at + 320, stream=7)
        trace.launch(at + 40, ALL_REDUCE, at + 50, at + 150, stream=20)

    assert (graph_from(step, tmp_path).after == -1).all()


def test_a_graph_launch_owns_all_its_kernels(tmp_path: Path) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.correlation += 1
        trace.call("cudaGraphLaunch", at + 10, at + 16, correlation=trace.correlation)
        for k in range(4):
            trace.kernel(GEMM, at + 20 + 100 * k, at + 119 + 100 * k, trace.correlation)

    graph = graph_from(step, tmp_path)
    assert graph.count.tolist() == [4] * graph.steps
    assert graph.first.tolist() == [4 * s for s in range(graph.steps)]


def test_kernels_hidden_by_a_graph_are_charged_before_the_next_one(tmp_path: Path) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.correlation += 1
        trace.call("cudaGraphLaunch", at + 10, at + 16, correlation=trace.correlation)
        trace.launch(at + 20, POINTWISE, at + 600, at + 610)

    graph = graph_from(step, tmp_path)
    # ready at launch + latency, started at 600: what lies between ran but was not recorded
    assert (graph.hidden == (600 - 20) * US - graph.timing.latency_ns).all()
    plain = graph_from(lambda trace, at: trace.launch(at + 20, POINTWISE, at + 600, at + 610), tmp_path / "b")
    assert not plain.hidden.any()


GPU_LOG = """timestamp, index, uuid, utilization.gpu [%]
2026/12/01 17:40:10.702, 0, GPU-aa, {used} %
"""


@pytest.mark.parametrize(("used", "foreign"), [(100, True), (62, False)])
def test_another_process_on_the_gpu_has_the_time_between_queued_kernels(
    tmp_path: Path, used: int, foreign: bool
) -> None:
    """Two kernels of 300 with 200 between them, launched together; .item() returns 150 after the second. The log shows
    a GPU that is always at work, or one that works as much as the trace does."""

    def step(trace: Trace, at: float) -> None:
        trace.launch(at + 10, GEMM, at + 20, at + 320)
        trace.launch(at + 15, GEMM, at + 520, at + 820)
        trace.call("cudaStreamSynchronize", at + 25, at + 970)

    trace = stepped(step)
    tables = trace.tables(tmp_path)
    graph = g.build_graph(RankAnalysis(tables, gpu_log=parse_query_csv(GPU_LOG.format(used=used), "gpu.csv")))
    assert graph is not None
    assert graph.foreign is foreign
    if not foreign:
        assert not graph.hidden.any()
        return
    assert graph.tail is not None
    assert (graph.hidden[1::2] / US).tolist() == pytest.approx([200 - 1] * graph.steps, abs=1)
    assert (graph.tail[1::2] / US).tolist() == [100] * graph.steps
    assert mean(graph) == pytest.approx(graph.recorded_ns / graph.steps, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "size", "work", "pin"),
    [
        ("HtoD (Pageable -> Device)", 4_000_000, g.H2D, Pin.PAGEABLE),
        ("HtoD (Pinned -> Device)", 4_000_000, g.H2D, Pin.PINNED),
        ("DtoH (Device -> Pageable)", 4, g.D2H_SMALL, Pin.PAGEABLE),
        ("DtoH (Device -> Pinned)", 65_536, g.D2H_BULK, Pin.PINNED),
        ("DtoH (Device -> Pageable)", 65_535, g.D2H_SMALL, Pin.PAGEABLE),
        ("PtoP (Device -> Device)", 4_000_000, g.COMMUNICATION, Pin.UNKNOWN),
    ],
)
def test_copies_are_told_apart(tmp_path: Path, kind: str, size: int, work: int, pin: Pin) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.correlation += 1
        trace.call("cudaMemcpyAsync", at + 10, at + 15, correlation=trace.correlation)
        trace.copy(at + 20, at + 60, size, trace.correlation, kind)
        trace.launch(at + 30, GEMM, at + 61, at + 200)

    graph = graph_from(step, tmp_path)
    assert graph.work[0::2].tolist() == [work] * graph.steps
    assert graph.pin[0::2].tolist() == [int(pin)] * graph.steps
    # none of these calls lasted as long as its copy: nothing blocks
    assert (graph.waits_for == -1).all()


def test_a_small_pageable_copy_to_the_device_does_not_block(tmp_path: Path) -> None:
    """It fits the staging buffer: even a call that outlasts its copy did not wait for it."""

    def copying(size: int) -> Callable[[Trace, float], None]:
        def step(trace: Trace, at: float) -> None:
            trace.correlation += 1
            trace.call("cudaMemcpyAsync", at + 10, at + 62, correlation=trace.correlation)
            trace.copy(at + 20, at + 60, size, trace.correlation)
            trace.launch(at + 70, GEMM, at + 80, at + 200)

        return step

    assert (graph_from(copying(1000), tmp_path / "small").waits_for == -1).all()
    large = graph_from(copying(1_000_000), tmp_path / "large")
    assert large.waits_for[0::2].tolist() == large.first[0::2].tolist()
    assert (large.slack[0::2] == 2 * US).all()


def test_a_synchronisation_waits_for_the_last_work_that_ended_with_it(tmp_path: Path) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.launch(at + 10, GEMM, at + 20, at + 320, stream=7)
        trace.launch(at + 30, ALL_REDUCE, at + 40, at + 700, stream=20)
        trace.call("cudaStreamSynchronize", at + 50, at + 325)

    graph = graph_from(step, tmp_path)
    rows = np.flatnonzero(graph.kind == g.SYNC)
    # the collective still ran when the call returned: it was not waited for
    assert graph.waits_for[rows].tolist() == [2 * s for s in range(graph.steps)]
    assert (graph.slack[rows] == 5 * US).all()


def test_an_allocation_call_that_frees_waits_for_the_device(tmp_path: Path) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.launch(at + 10, GEMM, at + 20, at + 320)
        trace.call("cudaFree", at + 50, at + 330)
        trace.call("cudaMalloc", at + 340, at + 440)

    graph = graph_from(step, tmp_path)
    frees = np.flatnonzero(graph.kind == g.CALL)[0::2]
    assert graph.waits_for[frees].tolist() == list(range(graph.steps))
    # what it waited is not its cost
    assert (graph.call[frees] <= graph.timing.launch_ns).all()
    mallocs = np.flatnonzero(graph.kind == g.CALL)[1::2]
    assert (graph.call[mallocs] == 100 * US).all()


def test_work_queued_before_the_steps_is_a_backlog(tmp_path: Path) -> None:
    trace = Trace()
    trace.launch(900, GEMM, 910, 1700)  # launched before the first step, runs into it
    for number in range(5):
        start = 1000 + 1000 * number
        trace.step(number, start, start + 998)
        trace.launch(start + 10, GEMM, max(start + 20, 1701), max(start + 20, 1701) + 100)
    analysis = analysis_of(trace, tmp_path)
    graph = g.build_graph(analysis, 0, analysis.steps.last)
    assert graph is not None
    assert graph.backlog.tolist() == [700 * US]


@pytest.mark.parametrize("kernel", [100, 16])
def test_a_launch_held_up_by_a_full_queue_costs_what_a_launch_costs(tmp_path: Path, kernel: int) -> None:
    """1100 launches of 4 us run ahead of longer kernels; from 1024 outstanding on each waits for room."""
    trace = Trace()
    host, free, starts = 1000.0, 1000.0, []
    for number in range(4):
        begin = host
        for _ in range(500):
            starts.append(max(host + 4, free))
            blocked = starts[-1025] if len(starts) > 1024 else 0.0
            cost = max(4.0, blocked - host)
            trace.launch(host, GEMM, starts[-1], starts[-1] + kernel, cost=cost)
            free, host = starts[-1] + kernel, host + cost + 1
        trace.step(number, begin, host)
        host += 2
    analysis = analysis_of(trace, tmp_path)
    timing = fit_timing(analysis)
    assert timing.queue == pytest.approx(1024, abs=2)
    graph = g.build_graph(analysis)
    assert graph is not None
    # at the queue's edge a launch waits for less than what tells a held-up launch from a slow one
    assert (graph.call == timing.launch_ns).mean() > 0.998
    assert graph.call.max() <= 10 * timing.launch_ns
    assert mean(graph) == pytest.approx(500 * kernel * US, rel=0.01)
    # short kernels make room soon: with them free the host runs at the pace of its launches
    assert mean(graph, Scenario("free", device=((g.ARITHMETIC, 0.0),))) == pytest.approx(
        500 * 5 * US, rel=0.01
    )


def test_two_launching_threads_are_measured(tmp_path: Path) -> None:
    def step(trace: Trace, at: float) -> None:
        trace.op("aten::mm", at, at + 400)
        trace.launch(at + 10, GEMM, at + 20, at + 320)
        trace.op("aten::mm", at + 100, at + 600, tid=777)
        trace.launch(at + 110, GEMM, at + 330, at + 400, tid=777)

    # both inside operators from 100 to 400 of each 1000
    assert graph_from(step, tmp_path).concurrent == pytest.approx(0.3, abs=0.02)
    assert graph_of(LOOP, tmp_path / "one").concurrent == 0


def add_operator(trace: Trace, at: float) -> None:
    trace.op("aten::mm", at, at + 900)


def test_nothing_to_replay_without_gpu_or_steps(tmp_path: Path) -> None:
    host_only = stepped(add_operator)
    assert g.build_graph(analysis_of(host_only, tmp_path / "cpu")) is None
    bare = Trace()
    bare.launch(10, GEMM, 20, 30)
    assert g.build_graph(analysis_of(bare, tmp_path / "bare")) is None


def test_steps_may_be_chosen(tmp_path: Path) -> None:
    analysis = analysis_of(LOOP.trace(), tmp_path)
    whole, part = g.build_graph(analysis), g.build_graph(analysis, 3, 5)
    assert whole is not None
    assert part is not None
    assert part.steps == 3
    assert len(part) == 15
    assert part.recorded_ns == float(analysis.steps.done[5] - analysis.steps.done[2])
