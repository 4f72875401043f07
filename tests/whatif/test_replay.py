"""Replays of graphs small enough to work out by hand, and what must hold for every graph."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whatif.graphs import Maker, mean
from tracelens.whatif import graph as g
from tracelens.whatif.replay import Feed, Scenario, _Arrivals, fit_service, replay, replay_together
from tracelens.whatif.scenarios import CLASSES
from tracelens.whatif.timing import Timing

BASE = Scenario("base")
MS = 1e6


def repeated(steps: int = 4, **timing: float) -> tuple[Maker, range]:
    return Maker(**timing), range(steps)  # type: ignore[arg-type]


# --- one host, one stream ---------------------------------------------------------------------------------------------


def test_host_bound_step_is_the_host_time_and_latency_only_shifts_the_first_step() -> None:
    made, steps = repeated(latency=50)
    for _ in steps:
        made.launch(30, gap=90)
        made.step()
    result = replay(made.graph(), [BASE])
    # the kernel starts 50 after its launch began at 90; later ones follow at the host's pace of 90 + 10
    assert result.first_pass_ns[0].tolist() == [90 + 50 + 30, 100, 100, 100]
    assert result.mean_ns[0] == 100


def test_device_bound_step_is_the_kernels_and_the_gaps_between_them() -> None:
    made, steps = repeated(between=5)
    for _ in steps:
        made.launch(100)
        made.launch(40)
        made.step()
    assert mean(made.graph()) == 100 + 40 + 2 * 5


def test_a_full_queue_holds_the_host_back() -> None:
    """Four kernels of 100 after 350 of Python: with room for two launches the host starts its Python late."""

    def step_of(queue: int) -> float:
        made, steps = repeated(queue=queue)
        for _ in steps:
            made.launch(100, gap=350, host=g.PYTHON)
            for _ in range(3):
                made.launch(100)
            made.step()
        return mean(made.graph())

    # the 4th launch waits until the 2nd kernel starts, 100 after the 1st; then 350 of Python: 450 from start to start
    assert step_of(2) == 450
    # host 390, kernels 400: they overlap
    assert step_of(1024) == 400


def test_a_graph_launch_starts_all_its_kernels_in_order() -> None:
    made, steps = repeated(between=2)
    for _ in steps:
        made.graph_launch([10, 20, 30])
        made.step()
    assert mean(made.graph()) == 10 + 20 + 30 + 3 * 2


def test_hidden_graph_work_delays_the_kernel_after_it() -> None:
    made, steps = repeated()
    for _ in steps:
        made.launch(100, hidden=500)
        made.step()
    graph = made.graph()
    assert mean(graph) == 600
    # kernels that were not recorded are nobody's to free
    assert mean(graph, CLASSES["gpu"]) == 500


def test_another_process_has_fewer_turns_where_our_kernels_need_fewer() -> None:
    """Each step kernels of 300 and 100, the other process on the GPU for 200 before the second and 80 after it."""
    made, steps = repeated()
    for _ in steps:
        made.launch(300)
        last = made.launch(100, work=g.MEMORY, hidden=200)
        made.sync(last)
        made.step()
    graph = made.graph()
    shared = dataclasses.replace(graph, foreign=True, tail=np.array([0.0, 80.0] * 4))
    assert mean(shared) == 300 + 200 + 100 + 80
    # a quarter of our work is left, so a quarter of the turns; the second launch is 10 into the step
    assert mean(shared, CLASSES["gpu"]) == 10 + 100 + (200 + 80) / 4
    # a host that waits for nothing does not shorten the other's turns
    assert mean(shared, Scenario("free", sync=False)) == 680
    # what a graph hides is as long as it was
    assert mean(graph, CLASSES["gpu"]) == 10 + 100 + 200


def test_backlog_at_the_start_delays_the_first_pass_only() -> None:
    made, steps = repeated()
    for _ in steps:
        made.launch(100, gap=190)
        made.step()
    result = replay(made.graph(backlog=(300.0,), begun=200.0), [BASE])
    # work queued before runs until 300, so the kernels launched at 190 and 390 run 300-400 and 400-500; then 590, 790
    assert result.first_pass_ns[0].tolist() == [200, 100, 190, 200]
    assert result.mean_ns[0] == 200


def test_a_deep_queue_does_not_hide_the_pace_of_the_host() -> None:
    """20 steps of 1000 were queued; with kernels free the host's 250 a step remain, not nothing."""
    made, steps = repeated()
    for _ in steps:
        made.launch(1000, gap=240)
        made.step()
    graph = made.graph(backlog=(20_000.0,), begun=20_000.0)
    assert replay(graph, [CLASSES["gpu"]]).steps_ns[0].tolist() == [250, 250, 250, 250]
    assert mean(graph) == 1000
    assert mean(graph, CLASSES["gpu"]) == 250
    assert mean(graph, Scenario("half", device=((g.ARITHMETIC, 0.5),))) == 500
    # kernels of 100: ten queued steps are worked off in the first two passes, as kernels of 1000 they would not be
    shorter = made.graph(backlog=(10_000.0,), begun=10_000.0)
    assert mean(shorter, Scenario("tenth", device=((g.ARITHMETIC, 0.1),))) == 250


def test_passes_go_on_from_where_the_last_one_ended() -> None:
    """A queue that only fills after some steps: one pass flatters, the measured pass does not."""
    made, steps = repeated(4, queue=4)
    for _ in steps:
        made.launch(300)
        made.launch(10, stream=1)
        made.sync(0 if made.steps == 0 else 2 * (made.steps - 1))
        made.step()
    graph = made.graph()
    first, third = (float(replay(graph, [BASE], passes=n).mean_ns[0]) for n in (1, 3))
    assert first == third == 300
    host = [replay(graph, [BASE], passes=n).steps_ns[0].tolist() for n in (1, 2, 3)]
    assert host[1] == host[2] == [300.0] * 4


def test_a_step_that_launches_nothing_takes_no_time() -> None:
    """Gradient accumulation: steps without work of their own count as steps, and the mean stays exact."""
    made = Maker()
    for number in range(4):
        if number % 2:
            made.launch(200)
        made.step()
    result = replay(made.graph(), [BASE])
    assert result.steps_ns[0].tolist() == [0, 200, 0, 200]
    assert result.mean_ns[0] == 100


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stream", "expected"), [(0, 200.0), (1, 100.0)])
def test_streams_run_side_by_side(stream: int, expected: float) -> None:
    made, steps = repeated()
    for _ in steps:
        made.launch(100)
        made.launch(100, stream=stream)
        made.step()
    assert mean(made.graph()) == expected


def test_a_kernel_waits_for_the_other_stream() -> None:
    made, steps = repeated(between=3)
    for _ in steps:
        kernel = made.launch(100)
        collective = made.launch(60, stream=1, after=kernel, work=g.COMMUNICATION)
        made.launch(20, after=collective)
        made.step()
    graph = made.graph()
    # 100, gap, 60, gap, 20, gap: the chain leaves no room for the next step's kernel
    assert mean(graph) == 100 + 60 + 20 + 3 * 3
    # a free collective still sits between the two kernels
    assert mean(graph, CLASSES["communication"]) == 100 + 20 + 3 * 3


def test_an_overlapped_collective_costs_nothing() -> None:
    made, steps = repeated()
    for _ in steps:
        kernel = made.launch(50)
        made.launch(60, stream=1, after=kernel, work=g.COMMUNICATION)
        made.launch(150)
        made.step()
    graph = made.graph()
    assert mean(graph) == mean(graph, CLASSES["communication"]) == 200


def test_a_queue_that_waited_for_collectives_does_not_outlast_them() -> None:
    """4000 were queued, of which the stream works for 200 and waits for the rest; the host takes 250 a step, kernels 100."""
    made, steps = repeated()
    for _ in steps:
        kernel = made.launch(100, gap=230)
        made.launch(800, stream=1, after=kernel, work=g.COMMUNICATION)
        made.step()
    graph = made.graph(backlog=(4000.0, 0.0), begun=4000.0)
    graph = dataclasses.replace(graph, queued=np.array([200.0, 0.0]))
    base, free = replay(graph, [BASE, CLASSES["communication"]], passes=1).first_pass_ns
    # as recorded the first kernel waits for all that was queued
    assert base[0] == 100 + 800
    assert free.sum() == max(4 * 250 + 90 - 4000, 0)
    assert mean(graph, CLASSES["communication"]) == 250


# --- several ranks ----------------------------------------------------------------------------------------------------


def rank(kernel: float, transfer: float = 10.0, collectives: int = 1) -> Feed:
    """Steps of a kernel and then collectives, that the host waits for."""
    made, steps = repeated()
    for _ in steps:
        last = made.launch(kernel)
        for _ in range(collectives):
            last = made.launch(transfer, stream=1, after=last, work=g.COMMUNICATION)
        made.sync(last)
        made.step()
    graph = made.graph()
    return Feed(graph, meets=graph.work == g.COMMUNICATION)


def test_ranks_wait_for_the_last_one_and_no_longer_where_communication_is_free() -> None:
    fast, slow = replay_together([rank(40), rank(100)], [BASE, CLASSES["communication"], CLASSES["gpu"]])
    assert fast.mean_ns.tolist() == [110, 40, 20]
    # with kernels free the collective's launch is 10 into the step
    assert slow.mean_ns.tolist() == [110, 100, 20]


def test_two_collectives_in_a_step_are_met_in_order() -> None:
    both = replay_together([rank(40, collectives=2), rank(100, collectives=2)], [BASE])
    assert [r.mean_ns[0] for r in both] == [120, 120]


def test_clocks_that_are_apart_do_not_matter() -> None:
    early, late = rank(40), dataclasses.replace(rank(100), offset_ns=5_000.0)
    assert [r.mean_ns[0] for r in replay_together([early, late], [BASE])] == [110, 110]


def test_ranks_that_meet_unequally_often_are_refused() -> None:
    with pytest.raises(ValueError, match="equally often"):
        replay_together([rank(40), rank(40, collectives=2)], [BASE])


# --- waits of the host ------------------------------------------------------------------------------------------------


def pageable() -> g.Graph:
    """Each step: a copy of 200 that blocks until 5 after its end, then 40 of Python, then a kernel of 100."""
    made, steps = repeated()
    for _ in steps:
        made.launch(200, work=g.H2D, blocks=True, slack=5, size=1_000_000)
        made.launch(100, gap=40, host=g.PYTHON)
        made.step()
    return made.graph()


def test_a_pageable_copy_blocks_the_host_until_it_is_done() -> None:
    graph = pageable()
    # the copy waits for the kernel before it on the stream; 200 + 5 + 40, then the kernel's 100
    assert mean(graph) == 345
    # not waiting for it: only the GPU's own 300 remain
    assert mean(graph, Scenario("non_blocking", copy_wait=False)) == 300
    # the host's work is hidden behind the copy no longer blocking; the copy itself is free too
    assert mean(graph, CLASSES["h2d_copy"]) == 100
    # .item()-like waits are another thing: removing those leaves the copy blocking
    assert mean(graph, Scenario("sync", sync=False)) == 345


def test_item_waits_for_the_kernel() -> None:
    made, steps = repeated(latency=20)
    for _ in steps:
        kernel = made.launch(100, gap=30)
        made.sync(kernel, gap=5, slack=8)
        made.step()
    graph = made.graph()
    # item returns 8 after the kernel; 30 of host work, 20 of launch latency, 100 of kernel
    assert mean(graph) == 8 + 30 + 20 + 100
    assert mean(graph, Scenario("sync", sync=False)) == 100
    assert mean(graph, Scenario("non_blocking", copy_wait=False)) == 158


def test_an_allocation_call_goes_with_allocation_and_not_with_dispatch() -> None:
    made, steps = repeated()
    for _ in steps:
        made.allocation(300)
        made.launch(10)
        made.step()
    graph = made.graph()
    assert mean(graph) == 310
    assert mean(graph, Scenario("allocation", host=((g.ALLOCATION, 0.0),))) == 10
    assert mean(graph, Scenario("dispatch", host=((g.DISPATCH, 0.0),))) == 300


# --- what is free -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(len(g.HOST_WORK)))
def test_freeing_one_kind_of_host_work_saves_exactly_it(kind: int) -> None:
    lengths = {k: 100.0 * 2**k for k in range(len(g.HOST_WORK))}
    made, steps = repeated()
    for _ in steps:
        made.work(lengths)
        made.step()
    graph = made.graph()
    whole = sum(lengths.values())
    assert mean(graph) == whole
    # what recording costs goes with dispatch
    own = lengths[kind] + (lengths[g.PROFILER] if kind == g.DISPATCH else 0.0)
    assert mean(graph, Scenario("free", host=((kind, 0.0),))) == whole - own
    assert mean(graph, Scenario("half", host=((kind, 0.5),))) == whole - own / 2


def test_dispatch_is_freed_without_the_profilers_cost_where_that_is_said_apart() -> None:
    made, steps = repeated()
    for _ in steps:
        made.work({g.DISPATCH: 100.0, g.PROFILER: 30.0})
        made.step()
    apart = Scenario("apart", host=((g.DISPATCH, 0.0), (g.PROFILER, 1.0)))
    assert mean(made.graph(), apart) == 30
    assert mean(made.graph(), Scenario("unprofiled", host=((g.PROFILER, 0.0),))) == 100


@pytest.mark.parametrize("work", range(len(g.DEVICE_WORK)))
def test_freeing_one_class_of_device_work_saves_exactly_it(work: int) -> None:
    lengths = {w: 100.0 * 2**w for w in range(len(g.DEVICE_WORK))}
    made, steps = repeated(call_ns=1)
    for _ in steps:
        for code, length in lengths.items():
            made.launch(length, work=code)
        made.step()
    graph = made.graph()
    whole = sum(lengths.values())
    assert mean(graph) == whole
    assert mean(graph, Scenario("free", device=((work, 0.0),))) == whole - lengths[work]


def test_replaced_durations_are_the_ones_replayed() -> None:
    graph = pageable()
    faster = graph.duration.copy()
    faster[graph.work == g.H2D] = 50.0
    assert mean(graph, Scenario("pinned", durations=faster, copy_wait=False)) == 150
    assert mean(graph, Scenario("quick but blocking", durations=faster)) == 50 + 5 + 40 + 100


def test_cheaper_calls_shorten_calls_only() -> None:
    made, steps = repeated()
    for _ in steps:
        made.launch(1, gap=60, call=40)
        made.step()
    assert mean(made.graph(), Scenario("half", call=0.5)) == 80


# --- the loader -------------------------------------------------------------------------------------------------------


def fed(
    there: list[float], workers: int, consume: float = 0.1 * MS, asked: list[float] | None = None
) -> g.Graph:
    """Steps that ask for a batch and launch one kernel; ``there``: when each batch was had, in ms."""
    made = Maker()
    before = 0.0
    for number, at in enumerate(there):
        want = asked[number] * MS if asked else before + consume
        made.next(want, at * MS)
        made.launch(10_000, gap=consume, host=g.PYTHON)
        made.step()
        before = at * MS
    return made.graph(recorded=there[-1] * MS)


def test_one_worker_feeds_a_batch_a_service_time() -> None:
    graph = fed([3.0 * (i + 1) for i in range(8)], 1)
    assert fit_service(graph, 1, 2).tolist() == pytest.approx([3 * MS] * 8)
    assert mean(graph, workers=1, prefetch=2) == pytest.approx(3 * MS)
    half = mean(graph, Scenario("half", loader=0.5), workers=1, prefetch=2)
    assert half == pytest.approx(1.5 * MS)
    # batches always there: what the host does remains (100 us and a launch of 10 ns)
    assert mean(graph, Scenario("free", loader=0.0), workers=1, prefetch=2) == pytest.approx(0.1 * MS + 10)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_workers_share_the_batches_round_robin(workers: int) -> None:
    """W workers of 12 ms: W batches every 12 ms, seen as bursts."""
    there = [12.0 * (1 + i // workers) + 0.01 * (i % workers) for i in range(6 * workers)]
    graph = fed(there, workers, consume=0.001 * MS)
    service = fit_service(graph, workers, 2 * workers)
    waited = [i for i in range(workers, len(there)) if i % workers == 0]
    assert service[waited] == pytest.approx([12 * MS] * len(waited), rel=0.01)
    assert mean(graph, workers=workers, prefetch=2) == pytest.approx(12 * MS / workers, rel=0.01)


def test_rare_slow_batches_do_not_make_the_unknown_first_one_slow() -> None:
    """Every fourth batch takes 20 ms, the others 1: a pass begins with an ordinary one, and the mean is the recorded one."""
    there, asked, now = [], [], 0.0
    for number in range(12):
        asked.append(now)
        now += 20.0 if number % 4 == 2 else 0.0
        there.append(now)
        now += 2.0
    graph = fed(there, 1, consume=2.0 * MS, asked=asked)
    service = fit_service(graph, 1, 2)
    assert service[0] < 3 * MS
    assert service[[6, 10]].tolist() == pytest.approx([22 * MS] * 2, rel=0.05)
    # four steps of 2 ms and 20 ms of waiting
    assert mean(graph, workers=1, prefetch=2) == pytest.approx(28 * MS / 4, rel=0.03)


@pytest.mark.parametrize("batches", [9, 10, 11])
def test_a_window_that_ends_inside_a_burst_is_measured_over_whole_rounds(batches: int) -> None:
    """4 workers of 12 ms give a batch every 3 ms; a pass of ten batches alone would show 2.4 or 3.6."""
    graph = fed([12.0 * (1 + i // 4) + 0.01 * (i % 4) for i in range(batches)], 4, consume=0.001 * MS)
    assert mean(graph, workers=4, prefetch=2) == pytest.approx(3 * MS, rel=0.01)


def arrivals(service: list[float], workers: int, ahead: int, factor: float = 1.0) -> _Arrivals:
    made = Maker()
    for _ in service:
        made.next(0.0, 0.0)
    graph = made.graph()
    found = _Arrivals(graph, [Scenario("x", loader=factor)], np.array(service), workers, ahead)
    found.first = np.zeros(workers)  # every worker began its first batch at 0
    return found


def taken(loader: _Arrivals, asked: list[float]) -> list[float]:
    return [float(loader.take(i, np.array([at]), np.array([at]))[0]) for i, at in enumerate(asked)]


def test_batches_are_delivered_in_order_however_fast_the_other_worker_is() -> None:
    # worker 0 makes batches 0, 2, 4 in 9 each, worker 1 makes 1, 3, 5 in 1 each
    assert taken(arrivals([9, 1, 9, 1, 9, 1], 2, 4), [0] * 6) == [9, 1, 18, 2, 27, 3]


def test_a_worker_may_not_run_further_ahead_than_prefetch_allows() -> None:
    # one worker, two batches ahead: the third is begun when the first is taken at 100
    assert taken(arrivals([10, 10, 10, 10], 1, 2), [100, 100, 100, 100]) == [100, 100, 110, 120]
    # with room for four it has them all by then
    assert taken(arrivals([10, 10, 10, 10], 1, 4), [100, 100, 100, 100]) == [100, 100, 100, 100]


def test_a_free_loader_never_makes_the_host_wait() -> None:
    assert taken(arrivals([50, 50, 50], 1, 2, factor=0.0), [1, 2, 3]) == [1, 2, 3]


def test_a_loader_that_was_never_waited_for_is_not_seen_to_limit() -> None:
    times = [1.0 * (i + 1) for i in range(6)]
    graph = fed(times, 2, asked=times)
    assert not fit_service(graph, 2, 4).any()
    # a host log that saw its workers half busy gives them a service time: half of two workers' step
    assert fit_service(graph, 2, 4, busy=0.5)[4:] == pytest.approx([1.0 * MS] * 2)


@pytest.mark.parametrize("busy", [None, 0.15])
def test_waits_among_the_first_batches_alone_show_busy_workers(busy: float | None) -> None:
    """Eight workers, nine steps: each batch but the first and last is waited for, and no worker's second one is.

    A GPU made free gains nothing then. How much of a core the workers use does not count: they may be reading.
    """
    there = [5.0 * i for i in range(1, 9)] + [40.5]
    asked = [5.0] + [t + 0.5 for t in there[:-1]]
    graph = fed(there, 8, consume=0.4 * MS, asked=asked)
    service = fit_service(graph, 8, 16, busy=busy)
    assert float(np.median(service)) == pytest.approx(8 * 40.5 / 9 * MS, rel=0.25)


def test_one_early_wait_does_not_make_the_workers_busy() -> None:
    """The first of nine batches is waited for, 5 % of the window: what else limits stays free to gain."""
    asked = [10.0 * i for i in range(9)]
    there = [4.5, *asked[1:]]
    graph = fed(there, 6, consume=5 * MS, asked=asked)
    assert not fit_service(graph, 6, 12).any()


def test_waits_that_ended_leave_the_workers_as_busy_as_a_log_saw_them() -> None:
    """Of nine batches the first two are waited for, 45 of 90 ms; then every worker delivers in time."""
    asked = [0.0, 5.0, *(50.0 + 6 * i for i in range(7))]
    there = [3.0, 47.0, *asked[2:]]
    graph = fed(there, 4, consume=5 * MS, asked=asked)
    assert not fit_service(graph, 4, 8).any()
    step = graph.recorded_ns / graph.steps
    assert fit_service(graph, 4, 8, busy=0.4) == pytest.approx([0.4 * 4 * step] * 9)
    # more workers than the trace has batches: half of these in time are enough
    assert not fit_service(graph, 12, 24).any()


# --- for every graph --------------------------------------------------------------------------------------------------

LENGTH = st.integers(0, 400).map(float)


@st.composite
def graphs(draw: st.DrawFn) -> g.Graph:
    """Any mixture of launches on three streams, blocking copies, waits across streams, synchronisations and allocations."""
    made = Maker(
        latency=draw(st.integers(0, 50)), between=draw(st.integers(0, 10)), queue=draw(st.sampled_from([2, 3, 8, 1024])),
        call_ns=float(draw(st.integers(1, 20))),
    )  # fmt: skip
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 6))):
            what = draw(st.sampled_from(["launch", "launch", "copy", "sync", "allocation"]))
            if what == "sync" and made.activities:
                made.sync(
                    draw(st.integers(0, len(made.activities) - 1)),
                    draw(LENGTH),
                    slack=float(draw(st.integers(0, 9))),
                )
            elif what == "allocation":
                made.allocation(draw(LENGTH), draw(LENGTH))
            elif what == "copy":
                made.launch(
                    draw(LENGTH), draw(LENGTH), work=g.H2D, stream=draw(st.integers(0, 2)), blocks=draw(st.booleans()),
                    slack=float(draw(st.integers(-5, 9))), host=g.PYTHON,
                )  # fmt: skip
            else:
                after = draw(st.integers(-1, len(made.activities) - 1))
                made.launch(
                    draw(LENGTH), draw(LENGTH), work=draw(st.integers(0, 4)), stream=draw(st.integers(0, 2)), after=after,
                    hidden=draw(st.sampled_from([0.0, 0.0, 70.0])), host=draw(st.integers(0, 5)),
                )  # fmt: skip
        made.launch(draw(LENGTH))
        made.step()
    return made.graph()


@st.composite
def freed(draw: st.DrawFn) -> Scenario:
    """Some of the work shorter, some waits removed."""
    factor = st.sampled_from([0.0, 0.3, 0.9, 1.0])
    return Scenario(
        "freed",
        host=tuple((k, draw(factor)) for k in range(len(g.HOST_WORK))),
        device=tuple((w, draw(factor)) for w in range(len(g.DEVICE_WORK))),
        sync=draw(st.booleans()), copy_wait=draw(st.booleans()), call=draw(factor),
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(graphs(), freed())
def test_freeing_something_never_ends_a_replay_later(graph: g.Graph, scenario: Scenario) -> None:
    ends = np.cumsum([replay(graph, [BASE, scenario], passes=n).mean_ns for n in range(1, 6)], axis=0)
    assert (ends[:, 1] <= ends[:, 0] + 1e-6).all()


@settings(max_examples=60, deadline=None)
@given(graphs(), freed(), freed())
def test_a_replay_is_deterministic_and_scenarios_do_not_touch_each_other(
    graph: g.Graph, one: Scenario, other: Scenario
) -> None:
    together = replay(graph, [BASE, one, other])
    again = replay(graph, [BASE, one, other])
    assert np.array_equal(together.steps_ns, again.steps_ns)
    for number, scenario in enumerate((BASE, one, other)):
        assert np.array_equal(replay(graph, [scenario]).steps_ns[0], together.steps_ns[number])


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([0.5, 2.0, 8.0]))
def test_times_scale(graph: g.Graph, factor: float) -> None:
    t = graph.timing
    scaled = dataclasses.replace(
        graph, gap=graph.gap * factor, call=graph.call * factor, slack=graph.slack * factor, duration=graph.duration * factor,
        hidden=graph.hidden * factor, backlog=graph.backlog * factor, begun_ns=graph.begun_ns * factor,
        timing=Timing(t.launch_ns * factor, t.latency_ns * factor, t.gap_ns * factor, t.queue),
    )  # fmt: skip
    assert replay(scaled, [BASE]).steps_ns == pytest.approx(replay(graph, [BASE]).steps_ns * factor)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_a_pass_takes_at_least_every_stream_and_at_most_everything_in_a_row(graph: g.Graph) -> None:
    step = float(replay(graph, [BASE], passes=30).mean_ns[0]) * graph.steps
    busiest = max(
        float((graph.duration + graph.hidden)[graph.stream == s].sum()) for s in range(graph.streams)
    )
    slack = np.maximum(graph.slack, 0).sum()
    latency = (graph.timing.latency_ns + graph.timing.gap_ns) * graph.duration.size
    everything = (
        graph.gap.sum() + graph.call.sum() + graph.duration.sum() + graph.hidden.sum() + slack + latency
    )
    assert busiest - 1e-6 <= step <= everything + graph.timing.gap_ns * graph.duration.size + 1e-6


def test_a_host_that_runs_ahead_takes_batches_at_its_own_pace() -> None:
    # four workers seen once each: busy for a step a worker, and a step is the host's while the GPU falls behind
    graph = fed([10.0, 20.0, 30.0, 40.0], 4, asked=[0.0, 10.0, 20.0, 30.0])
    usual = fit_service(graph, 4, 8)
    ahead = fit_service(dataclasses.replace(graph, host_ns=graph.recorded_ns / 2), 4, 8)
    assert usual.min() > 0
    assert ahead.tolist() == pytest.approx((usual / 2).tolist())
