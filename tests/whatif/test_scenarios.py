"""The standard what-ifs of small traces: exact savings, merged changes, sampling, held-out error, the profiler's share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tracekit import ALL_REDUCE, GEMM, POINTWISE, WORKERS, Loop, Trace
from tracelens.bundle import RankFiles
from tracelens.ingest.runlog import read_run_log
from tracelens.signals.analysis import RankAnalysis
from tracelens.whatif import graph as g
from tracelens.whatif import scenarios as module
from tracelens.whatif.bounds import WhatIfs
from tracelens.whatif.fidelity import EVENT_NS, held_out_errors
from tracelens.whatif.replay import Feed, Scenario
from tracelens.whatif.scenarios import CAUSES, CLASSES, PAIRS, RankReplay, merge, what_ifs, what_ifs_of

KERNELS = ((GEMM, 300.0),) * 2


def analysis_of(loop: Loop, folder: Path, **settings: Any) -> RankAnalysis:
    return RankAnalysis(loop.trace().tables(folder), settings)


def replayed(analysis: RankAnalysis, busy: float | None = None) -> tuple[WhatIfs, RankReplay]:
    whatifs, found = what_ifs(analysis, busy)
    assert found is not None
    assert whatifs.kind == "replay"
    return whatifs, found


# --- whole loops ------------------------------------------------------------------------------------------------------


def test_loading_in_the_main_process_is_what_cpu_frees(tmp_path: Path) -> None:
    """A step: 2000 of loading, 60 of copy, 610 of kernels; .item() keeps them apart."""
    loop = Loop(kernels=KERNELS, load_us=2000, wait=True)
    whatifs, rank = replayed(analysis_of(loop, tmp_path))
    assert abs(whatifs.error or 1) < 0.005
    # of the replayed step without loading, everything but 2000 us remains
    assert rank.causes["load.saving_ms"] == pytest.approx(2.0, rel=0.01)
    assert whatifs.saving_ms["cpu"] == pytest.approx(whatifs.step_ms - 0.671, rel=0.01)
    assert whatifs.saving_ms["communication"] == 0
    # the copy would run from 8 to 68 after its call began; without it, and the call's 6, the kernel starts at 20: what is
    # left of aten::to is still dispatched
    assert whatifs.saving_ms["h2d_copy"] == pytest.approx(0.0485, abs=0.001)


def test_gpu_bound_loop_is_freed_by_its_kernels_only(tmp_path: Path) -> None:
    loop = Loop(steps=12, kernels=((GEMM, 1000.0),) * 4, load_us=200)
    whatifs, rank = replayed(analysis_of(loop, tmp_path))
    assert (whatifs.saving_ms["cpu"] or 0) < 0.01
    # copy 60 and two optimizer kernels of 5 share the stream with 4000 of matrix work; the host's 300 is hidden
    assert whatifs.saving_ms["gpu"] == pytest.approx(4.07 - 0.30, abs=0.05)
    assert whatifs.saving_ms["h2d_copy"] == pytest.approx(0.06, abs=0.005)
    assert whatifs.saving_ms["memory_bandwidth"] == pytest.approx(0.01, abs=0.005)
    assert rank.causes["load.saving_ms"] < 0.01


def test_removing_item_lets_the_host_run_ahead(tmp_path: Path) -> None:
    loop = Loop(kernels=KERNELS, wait=True)
    whatifs, rank = replayed(analysis_of(loop, tmp_path))
    # 891 today; without the wait the GPU's 60 + 600 + 10 + 1 remain
    assert whatifs.step_ms == pytest.approx(0.891)
    assert rank.causes["sync.saving_ms"] == pytest.approx(0.891 - 0.671, rel=0.01)
    # a host that costs nothing waits for nothing either: the GPU's own time to the microsecond
    assert whatifs.saving_ms["cpu"] == pytest.approx(0.891 - 0.671, abs=0.002)


def test_workers_that_are_waited_for_are_freed_with_cpu(tmp_path: Path) -> None:
    loop = Loop(steps=10, load_us=9000, kernels=KERNELS, wait=True, iterator=WORKERS)
    whatifs, rank = replayed(analysis_of(loop, tmp_path, num_workers=2))
    # 9.69 ms, of which the GPU works 0.671
    assert whatifs.saving_ms["cpu"] == pytest.approx(whatifs.step_ms - 0.671, abs=0.02)
    # batches that lie ready are still handed over, 100 us each
    assert rank.causes["load.saving_ms"] == pytest.approx(8.9, abs=0.03)


def test_exposed_collectives_are_communications_and_overlapped_ones_are_not(tmp_path: Path) -> None:
    def trace(exposed: bool) -> Trace:
        out = Trace()
        for number in range(8):
            at = 1000 + 1000 * number
            out.step(number, at, at + 998)
            out.launch(at + 10, GEMM, at + 20, at + 620)
            out.call("cudaStreamWaitEvent", at + 30, at + 31)
            start = at + 620 if exposed else at + 25
            out.launch(at + 35, ALL_REDUCE, start, start + 300, stream=20)
            out.call("cudaStreamWaitEvent", at + 45, at + 46)
            last = max(at + 620, start + 300)
            out.launch(at + 50, POINTWISE, last + 1, last + 21)
            out.call("cudaStreamSynchronize", at + 60, last + 25)
        return out

    exposed, _ = replayed(RankAnalysis(trace(True).tables(tmp_path / "a")))
    hidden, _ = replayed(RankAnalysis(trace(False).tables(tmp_path / "b")))
    assert exposed.saving_ms["communication"] == pytest.approx(0.3, rel=0.02)
    assert hidden.saving_ms["communication"] == pytest.approx(0.0, abs=0.01)


def test_pairs_save_what_neither_does_alone(tmp_path: Path) -> None:
    """Host and GPU level: either alone leaves the other as the limit."""
    loop = Loop(kernels=((GEMM, 300.0),) * 4, load_us=1150, steps=12)
    whatifs, rank = replayed(analysis_of(loop, tmp_path))
    both = rank.pairs[("cpu", "gpu")]
    cpu, gpu = whatifs.saving_ms["cpu"] or 0, whatifs.saving_ms["gpu"] or 0
    assert both > cpu + 0.5
    assert both > gpu + 0.5
    assert set(rank.pairs) == set(PAIRS)
    for (one, other), saving in rank.pairs.items():
        assert saving >= max(whatifs.saving_ms[one] or 0, whatifs.saving_ms[other] or 0) - 1e-9


def test_a_loader_that_keeps_its_workers_half_busy_is_known_from_the_host_log(tmp_path: Path) -> None:
    """Nothing waited for today; freeing the GPU makes the loader the limit only where its service is known."""
    loop = Loop(steps=14, kernels=((GEMM, 1000.0),) * 4, load_us=20, iterator=WORKERS, wait=True)
    settings = {"num_workers": 2, "prefetch_factor": 2}
    blind, _ = replayed(analysis_of(loop, tmp_path / "a", **settings))
    known, _ = replayed(analysis_of(loop, tmp_path / "b", **settings), busy=0.5)
    # two workers, half of their time: one batch each half step at best
    assert known.saving_ms["gpu"] == pytest.approx(0.5 * known.step_ms, rel=0.02)
    assert (blind.saving_ms["gpu"] or 0) > 0.9 * blind.step_ms


# --- further scenarios on the same graph ------------------------------------------------------------------------------


def test_scenarios_are_collected_and_replayed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rank = replayed(analysis_of(Loop(kernels=KERNELS, wait=True), tmp_path))
    calls: list[list[str]] = []
    real = module.replay_together

    def counted(feeds: list[Feed], scenarios: list[Scenario], *args: Any, **more: Any) -> Any:
        calls.append([s.name for s in scenarios])
        return real(feeds, scenarios, *args, **more)

    monkeypatch.setattr(module, "replay_together", counted)
    base, sync = Scenario("base"), Scenario("no sync", sync=False)
    assert rank.means([base], later=True) is None
    assert rank.means([base, sync], later=True) is None
    assert calls == []
    later = rank.means([Scenario("load", host=((g.LOAD, 0.0),))])
    assert later is not None
    # one replay answered all that was asked for since
    assert [sorted(c) for c in calls] == [["base", "load", "no sync"]]
    values = rank.means([sync, base])
    assert values is not None
    assert len(calls) == 1
    assert values[0] < values[1] == pytest.approx(rank.base_ns)
    # known ones are answered at once even when asked for later
    assert rank.means([base, sync], later=True) == values[::-1]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_alone_gives_its_what_if(tmp_path: Path, name: str) -> None:
    whatifs, rank = replayed(analysis_of(Loop(kernels=KERNELS, wait=True), tmp_path))
    unprofiled = module.UNPROFILED
    means = rank.means([unprofiled, merge(unprofiled, CLASSES[name]), Scenario("base")])  # type: ignore[index]
    assert means is not None
    # with the loader free nothing of its model is left: that is compared with the recorded steps
    recorded = rank.graph.recorded_ns / rank.graph.steps
    against = recorded * means[0] / means[2] if CLASSES[name].loader == 0 else means[0]  # type: ignore[index]
    saving = whatifs.saving_ms[name]  # type: ignore[index]
    assert saving == pytest.approx(whatifs.step_ms * (1 - means[1] / against), abs=1e-9)


def test_merge_takes_the_stronger_of_each() -> None:
    one = Scenario(
        "a", host=((g.LOAD, 0.5), (g.CAST, 0.1)), device=((g.H2D, 0.3),), sync=False, loader=0.4, call=0.9
    )
    other = Scenario(
        "b", host=((g.LOAD, 0.2),), device=((g.H2D, 0.6), (g.MEMORY, 0.0)), copy_wait=False, call=0.7
    )
    both, turned = merge(one, other), merge(other, one)
    assert both.name == "a+b"
    assert dict(both.host) == {g.LOAD: 0.2, g.CAST: 0.1}
    assert dict(both.device) == {g.H2D: 0.3, g.MEMORY: 0.0}
    assert (both.sync, both.copy_wait, both.loader, both.call) == (False, False, 0.4, 0.7)
    assert merge(one, CLASSES["h2d_copy"]).copy_calls == merge(CLASSES["h2d_copy"], one).copy_calls == 0
    assert (dict(turned.host), dict(turned.device)) == (dict(both.host), dict(both.device))
    assert (turned.sync, turned.copy_wait, turned.loader, turned.call) == (False, False, 0.4, 0.7)


def test_merge_keeps_the_shorter_durations() -> None:
    first, second = (
        Scenario("a", durations=np.array([1.0, 5.0])),
        Scenario("b", durations=np.array([3.0, 2.0])),
    )
    merged = merge(first, second).durations
    assert merged is not None
    assert merged.tolist() == [1.0, 2.0]
    for pair in ((first, Scenario("c")), (Scenario("c"), first)):
        alone = merge(*pair).durations
        assert alone is not None
        assert alone.tolist() == [1.0, 5.0]


def test_causes_are_parts_of_their_class(tmp_path: Path) -> None:
    whatifs, rank = replayed(analysis_of(Loop(kernels=KERNELS, wait=True, python_us=900), tmp_path))
    assert set(rank.causes) == set(CAUSES)
    cpu = whatifs.saving_ms["cpu"] or 0
    for name, saving in rank.causes.items():
        if not name.startswith(("transfer", "communication")):
            assert saving <= cpu + 1e-9, name
    assert rank.causes["host.python_ms"] == pytest.approx(0.9, rel=0.01)


# --- what is not replayed, and what is not trusted --------------------------------------------------------------------


def test_long_windows_are_sampled_from_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(steps=40, kernels=KERNELS, wait=True)
    whole, all_steps = replayed(analysis_of(loop, tmp_path / "a"))
    assert not all_steps.sampled
    monkeypatch.setattr(
        module, "MAX_TASKS", 160
    )  # ten tasks of five kernels a step and a fixed ten: eight steps
    part, few = replayed(analysis_of(loop, tmp_path / "b"))
    assert few.sampled
    assert few.graph.steps == 8
    steps = analysis_of(loop, tmp_path / "b").steps
    middle = steps.first + (steps.steady - 8) // 2
    assert few.graph.start_ns == steps.begin[middle]
    # alike steps: the sample says what the whole says
    assert part.saving_ms["cpu"] == pytest.approx(whole.saving_ms["cpu"], rel=0.01)


def test_a_replay_that_is_off_gives_bounds_and_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis = analysis_of(Loop(kernels=KERNELS), tmp_path)
    for error, trusted in ((0.049, True), (0.051, False), (-0.051, False)):
        monkeypatch.setattr(module, "held_out_errors", lambda *_, found=error: [found])
        whatifs, rank = what_ifs(analysis)
        assert whatifs.error == error
        assert (whatifs.kind == "replay") is trusted
        assert (rank is not None) is trusted


def test_two_launching_threads_are_not_replayed(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(8):
        at = 1000 + 1000 * number
        trace.step(number, at, at + 998)
        trace.op("aten::mm", at, at + 900)
        trace.launch(at + 10, GEMM, at + 20, at + 320)
        trace.op("aten::mm", at, at + 900, tid=777)
        trace.launch(at + 110, GEMM, at + 330, at + 400, tid=777)
    whatifs, rank = what_ifs(RankAnalysis(trace.tables(tmp_path)))
    assert rank is None
    assert whatifs.kind == "bound"
    assert whatifs.error is None


def changing(folder: Path, late: float) -> RankAnalysis:
    """Eight steps of which the later four launch at ``late`` times the cost; constants are fitted on the first half."""
    trace = Trace()
    host = 1000.0
    for number in range(9):
        begin = host
        for _ in range(20):
            cost = 4.0 if number < 5 else 4.0 * late
            trace.launch(host, GEMM, host + 8, host + 10, cost=cost)
            host += cost + 1
        trace.step(number, begin, host - 0.5)
    return RankAnalysis(trace.tables(folder))


def error_of(analysis: RankAnalysis, graph: g.Graph) -> float:
    steps = analysis.steps
    return held_out_errors([analysis], [(steps.first, steps.last)], [Feed(graph)], None)[0]


def test_the_error_is_that_of_steps_that_were_not_fitted(tmp_path: Path) -> None:
    analysis = changing(tmp_path, 1.0)
    graph = g.build_graph(analysis)
    assert graph is not None
    assert abs(error_of(analysis, graph)) < 0.01
    # the GPU starts 10 after a launch in the first half and 40 after it in the later: what was fitted on the first must miss
    trace, host = Trace(), 1000.0
    for number in range(17):
        begin, host = host, host + 30
        start = host + (10 if number < 9 else 40)
        trace.launch(host, GEMM, start, start + 100)
        trace.call("cudaStreamSynchronize", host + 5, start + 105)
        host = start + 105
        trace.step(number, begin, host - 1)
    lagging = RankAnalysis(trace.tables(tmp_path / "lag"))
    again = g.build_graph(lagging)
    assert again is not None
    assert error_of(lagging, again) == pytest.approx(145 / 175 - 1, abs=0.01)


def test_one_or_two_steps_are_compared_as_recorded(tmp_path: Path) -> None:
    analysis = analysis_of(Loop(steps=2, kernels=KERNELS, wait=True), tmp_path)
    assert analysis.steps.steady < 3
    whatifs, rank = replayed(analysis)
    assert rank.few
    assert abs(whatifs.error or 1) < 0.03


@pytest.mark.parametrize(("steps", "whole"), [(4, True), (9, False)])
def test_a_few_steps_that_start_up_fills_are_all_replayed(tmp_path: Path, steps: int, whole: bool) -> None:
    """Each step one launch takes 3000, loading its module, of 3.4 ms; a longer recording has a steady state."""
    trace, host = Trace(), 1000.0
    for number in range(steps):
        begin = host
        for k in range(8):
            cost = 3000.0 if k == 3 else 4.0
            trace.launch(host, GEMM, host + cost + 5, host + cost + 45, cost=cost)
            host += cost + 50
        trace.step(number, begin, host - 1)
    whatifs, rank = replayed(RankAnalysis(trace.tables(tmp_path)))
    assert rank.few is whole
    assert rank.graph.steps == (4 if whole else 8)
    # eight kernels of 40 remain, one behind the other
    assert whatifs.speedup("cpu") == pytest.approx(3.43 / 0.33, rel=0.05)


# --- the profiler's own cost ------------------------------------------------------------------------------------------


def with_baseline(analysis: RankAnalysis, folder: Path, baseline: list[float]) -> RankAnalysis:
    """The analysis of a bundle's window before which unprofiled steps of these lengths (ms) ran."""
    folder.mkdir(parents=True)
    record = {"window": 0, "kind": "lean", "file": "w.json", "baseline_ms": baseline, "complete": True}
    (folder / "windows.jsonl").write_text(json.dumps(record) + "\n")
    return dataclasses.replace(analysis, run_log=read_run_log(RankFiles(0, folder)), trace_name="w.json")


def host_bound(folder: Path, factor: float) -> RankAnalysis:
    """40 launches a step; the profiler makes everything on the host ``factor`` times as long."""
    loop = Loop(
        steps=10, kernels=((POINTWISE, 2.0),) * 40, host_us=20 * factor, load_us=0, copy_bytes=0, iterator=None,
        optimizer_launches=0,
    )  # fmt: skip
    return analysis_of(loop, folder)


def test_the_profilers_share_is_taken_off_dispatch(tmp_path: Path) -> None:
    profiled = host_bound(tmp_path / "a", 2.0)
    plain, _ = replayed(host_bound(tmp_path / "b", 1.0))
    whatifs, rank = replayed(with_baseline(profiled, tmp_path / "log", [plain.step_ms] * 5))
    assert whatifs.step_ms == pytest.approx(plain.step_ms)
    # the graph now runs at the unprofiled pace, kernels as they were
    assert rank.base_ns / 1e6 == pytest.approx(plain.step_ms, rel=0.02)
    assert rank.graph.duration.sum() == 40 * 2000.0 * rank.graph.steps
    assert rank.host_ms < 0.6 * replayed(profiled)[1].host_ms


def test_without_a_longer_window_nothing_is_taken_off(tmp_path: Path) -> None:
    analysis = host_bound(tmp_path / "a", 1.0)
    untouched = replayed(analysis)[1].graph
    step = analysis.step_ms or 0
    whatifs, rank = replayed(with_baseline(analysis, tmp_path / "log", [step * 1.2] * 3))
    assert np.array_equal(rank.graph.gap, untouched.gap)
    assert np.array_equal(rank.graph.call, untouched.call)
    # how long a step takes is what the unprofiled ones took
    assert whatifs.step_ms == pytest.approx(step * 1.2)


def test_the_profilers_share_is_not_taken_off_loading(tmp_path: Path) -> None:
    loop = Loop(steps=10, kernels=((POINTWISE, 2.0),) * 40, host_us=40, load_us=3000, optimizer_launches=0)
    analysis = with_baseline(analysis_of(loop, tmp_path / "a"), tmp_path / "log", [4.0] * 5)
    whatifs, rank = replayed(analysis)
    assert whatifs.step_ms == 4.0
    assert rank.graph.gap[:, g.LOAD].sum() / rank.graph.steps == pytest.approx(3e6, rel=0.001)
    assert rank.causes["load.saving_ms"] == pytest.approx(3.0, rel=0.03)


def test_what_recording_costs_an_event_is_not_the_hosts(tmp_path: Path) -> None:
    """Without a baseline the least cost of an event is taken off: the kernels' saving ends at the unprofiled host."""
    loop = Loop(
        steps=10, kernels=((GEMM, 60.0),) * 40, host_us=10, load_us=0, copy_bytes=0, iterator=None, optimizer_launches=0,
    )  # fmt: skip
    whatifs, rank = replayed(analysis_of(loop, tmp_path))
    # 40 operators of 10 us with 1 between them, each with its launch; the step's marker and 5 at its end
    host = 40 * 11 + 5
    events = 40 * 2 + 1
    left = whatifs.step_ms - (whatifs.saving_ms["gpu"] or 0)
    assert left == pytest.approx((host - events * EVENT_NS / 1e3) / 1e3, abs=0.003)
    assert rank.graph.gap[:, g.PROFILER].sum() / rank.graph.steps == pytest.approx(
        events * EVENT_NS, abs=2 * EVENT_NS
    )


# --- several ranks ----------------------------------------------------------------------------------------------------


def ranks(folder: Path, host_us: float, *, apart_us: float = 0.0, first: int = 1) -> list[RankAnalysis]:
    """Two ranks of 800 of kernels and a collective of 100; the second has ``host_us`` of Python first. The first one's
    clock is ``apart_us`` behind, its first step number ``first``."""
    traces = [Trace(), Trace()]
    at = 1000.0
    for number in range(10):
        ends = at + host_us + 820 + 100
        for trace, python, clock, step in ((traces[0], 0.0, apart_us, first), (traces[1], host_us, 0.0, 1)):
            begin = at - clock
            trace.step(number + step, begin, ends - clock + 25)
            trace.launch(begin + python + 10, GEMM, begin + python + 20, begin + python + 820)
            trace.launch(begin + python + 20, ALL_REDUCE, begin + python + 820, ends - clock, stream=20)
            trace.call("cudaStreamWaitEvent", begin + python + 25, begin + python + 26)
            trace.launch(begin + python + 30, POINTWISE, ends - clock, ends - clock + 10)
            trace.call("cudaStreamSynchronize", begin + python + 40, ends - clock + 20)
        at = ends + 30
    return [RankAnalysis(t.tables(folder / str(i)), rank=i) for i, t in enumerate(traces)]


@pytest.mark.parametrize("apart_us", [0.0, 300.0])
def test_a_late_rank_is_freed_for_all(tmp_path: Path, apart_us: float) -> None:
    """600 of Python on the second: its host holds both ranks up, and with it free neither waits."""
    outcomes = what_ifs_of(ranks(tmp_path, 600, apart_us=apart_us), [None, None])
    for whatifs, replay in outcomes:
        assert whatifs.kind == "replay"
        assert abs(whatifs.error or 1) < 0.01
        assert replay is not None
        assert whatifs.step_ms == pytest.approx(1.55, rel=0.01)
        # 910 of kernels and the transfer remain
        assert whatifs.saving_ms["cpu"] == pytest.approx(1.55 - 0.91, abs=0.02)
        # the kernels of both are free: the second's Python and the transfer remain
        assert whatifs.saving_ms["gpu"] == pytest.approx(0.8, abs=0.02)
    # nobody waits for anybody any more
    assert outcomes[0][0].saving_ms["communication"] == pytest.approx(0.7, abs=0.02)
    assert outcomes[1][0].saving_ms["communication"] == pytest.approx(0.1, abs=0.02)


def test_ranks_that_share_no_steps_are_replayed_alone(tmp_path: Path) -> None:
    (fast, alone), _ = what_ifs_of(ranks(tmp_path, 600, first=101), [None, None])
    assert alone is not None
    assert len(alone.feeds) == 1
    # the collective is as long as recorded, whatever made the other rank late
    assert fast.saving_ms["cpu"] == pytest.approx(0.03, abs=0.03)


def test_collectives_that_end_apart_are_not_joined(tmp_path: Path) -> None:
    """Another rank's steps of the same kind but another length: groups of their own."""
    first, _ = ranks(tmp_path / "a", 600)
    _, other = ranks(tmp_path / "b", 900)
    assert all(
        replay is not None and len(replay.feeds) == 1
        for _, replay in what_ifs_of([first, other], [None, None])
    )


@pytest.mark.parametrize(("before", "told"), [(5.5, 5.5), (1.0, None)])
def test_steps_of_a_host_that_runs_ahead_are_no_baseline(
    before: float, told: float | None, tmp_path: Path
) -> None:
    """Five ms of kernels a step: a step of one did not wait for them."""
    loop = Loop(steps=10, kernels=((POINTWISE, 500.0),) * 10, load_us=0, copy_bytes=0)
    analysis = with_baseline(analysis_of(loop, tmp_path / "a"), tmp_path / "log", [before] * 5)
    assert analysis.baseline_ms == told
