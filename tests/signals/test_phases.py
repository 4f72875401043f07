"""Each nanosecond to exactly one phase, whatever the trace looks like."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracekit import ALL_REDUCE, GEMM, Loop, Trace
from tracelens.model import PHASES
from tracelens.signals.activity import Activity
from tracelens.signals.phases import Phases, partition, split_idle
from tracelens.trace.intervals import Intervals
from tracelens.trace.tables import Device, DeviceEvents, Host, HostEvents, MemoryEvents, TraceTables

NAMES = (
    "aten::mm", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "cudaMemcpyAsync", "cudaStreamSynchronize",
    "cudaMalloc", "Optimizer.step#SGD.step", "aten::to", "cudaLaunchKernel", "ProfilerStep#1", "kernel", "Memcpy",
)  # fmt: skip
HOST_KINDS = (Host.OPERATOR, Host.ANNOTATION, Host.RUNTIME, Host.RUNTIME, Host.RUNTIME, Host.ANNOTATION, Host.OPERATOR,
              Host.RUNTIME, Host.ANNOTATION)  # fmt: skip
spans = st.tuples(st.integers(0, 400), st.integers(0, 120))


@st.composite
def activities(draw: st.DrawFn, gpu: bool = True) -> Activity:
    """Any host events and activities: overlapping, nested, on any thread, stream and device, joined or not."""
    host_rows = sorted(
        draw(st.lists(st.tuples(spans, st.integers(0, 8), st.integers(0, 1)), min_size=1, max_size=15))
    )
    count = len(host_rows)
    host = HostEvents(
        np.array([HOST_KINDS[name] for _, name, _ in host_rows], np.int8),
        np.array([name for _, name, _ in host_rows], np.int32),
        np.array([thread for _, _, thread in host_rows], np.int32),
        np.array([span[0] for span, _, _ in host_rows], np.int64),
        np.array([span[0] + span[1] for span, _, _ in host_rows], np.int64),
        np.full(count, -1, np.int64), np.full(count, -1, np.int64), np.full(count, -1, np.int32),
    )  # fmt: skip
    kinds = st.sampled_from(list(Device))
    rows = sorted(draw(st.lists(
        st.tuples(spans, kinds, st.integers(0, 1), st.integers(0, 2), st.integers(-1, count - 1), st.integers(-1, 9000)),
        min_size=1 if gpu else 0, max_size=15 if gpu else 0,
    )))  # fmt: skip
    size = len(rows)
    device = DeviceEvents(
        np.array([kind for _, kind, *_ in rows], np.int8), np.full(size, 9, np.int32),
        np.array([row[2] for row in rows], np.int32), np.array([row[3] for row in rows], np.int64),
        np.array([row[0][0] for row in rows], np.int64), np.array([sum(row[0]) for row in rows], np.int64),
        np.full(size, -1, np.int64), np.full(size, -1, np.int64), np.array([row[5] for row in rows], np.int64),
        np.zeros(size, np.int8), np.full(size, -1, np.int64), np.full(size, -1, np.int64), np.full(size, np.nan),
        np.array([row[4] for row in rows], np.int64),
    )  # fmt: skip
    none = np.empty(0, np.int64)
    memory = MemoryEvents(none, none.astype(np.int32), none, none, none)
    return Activity(TraceTables(host, device, memory, NAMES, (("1", "1"), ("1", "2")), {}, (), {}, 0, False))


def assert_exclusive(phases: Phases, low: int, high: int) -> None:
    assert sum(phases.parts[name].total for name in PHASES) == max(high - low, 0)
    for a, b in combinations(PHASES, 2):
        assert phases.parts[a].intersect(phases.parts[b]).total == 0, (a, b)
    covered = Intervals.of([], [])
    for name in PHASES:
        covered = covered.union(phases.parts[name])
    assert covered.total == max(high - low, 0)
    assert covered.clip(low, high).total == covered.total
    host = phases.host_parts.values()
    assert sum(part.total for part in host) == phases.parts["host"].total


@settings(deadline=None, max_examples=150)
@given(activities(), st.integers(-20, 600), st.integers(0, 600))
def test_phases_sum_to_the_window_and_never_overlap(activity: Activity, low: int, length: int) -> None:
    phases = partition(activity, (low, low + length))
    assert_exclusive(phases, low, low + length)
    idle = length - phases.busy.total
    assert phases.starved.total + phases.queued.total == idle
    assert phases.starved.intersect(phases.queued).total == 0
    assert phases.host_parts["queue_gap"].subtract(phases.queued).total == 0


@settings(deadline=None, max_examples=80)
@given(activities(gpu=False), st.integers(0, 500), st.integers(0, 300))
def test_without_a_gpu_too(activity: Activity, low: int, length: int) -> None:
    phases = partition(activity, (low, low + length))
    assert_exclusive(phases, low, low + length)
    assert phases.parts["transfer"].total == phases.parts["communication"].total == 0


@settings(deadline=None, max_examples=60)
@given(activities(), st.lists(st.integers(0, 600), min_size=2, max_size=6))
def test_steps_share_out_the_window(activity: Activity, edges: list[int]) -> None:
    bounds = np.array(sorted(edges), dtype=np.int64)
    phases = partition(activity, (int(bounds[0]), int(bounds[-1])))
    per_step = phases.per_step(bounds)
    assert sum(parts.sum() for parts in per_step.values()) == bounds[-1] - bounds[0]
    for position in range(bounds.size - 1):
        assert (
            sum(int(parts[position]) for parts in per_step.values())
            == bounds[position + 1] - bounds[position]
        )


def shares(trace: Trace, tmp_path: Path, low: float, high: float) -> Phases:
    return partition(trace.activity(tmp_path), (round(low * 1000), round(high * 1000)))


def test_the_order_of_claims(tmp_path: Path) -> None:
    """Everything at once: a kernel, a collective, a copy and next; then one less at a time."""
    trace = Trace()
    trace.next(0, 100)
    trace.op("aten::mm", 0, 150)
    trace.call("cudaLaunchKernel", 1, 2, correlation=1)
    trace.kernel(GEMM, 10, 20, 1)
    trace.call("cudaLaunchKernel", 3, 4, correlation=2)
    trace.kernel(ALL_REDUCE, 10, 40, 2, stream=20)
    trace.copy(10, 60, 100, 77, stream=21)
    got = shares(trace, tmp_path, 10, 200)
    assert {name: got.parts[name].total for name in PHASES} == {
        "compute": 10_000, "communication": 20_000, "transfer": 20_000, "load": 40_000, "host": 50_000, "other": 50_000,
    }  # fmt: skip


def test_nothing_is_counted_twice_when_everything_is_busy(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 1000, 2000)
    trace.next(1000, 2000)
    for number, at in enumerate(range(1000, 2000, 100)):
        trace.call("cudaLaunchKernel", at, at + 50, correlation=number + 1)
        trace.kernel(GEMM, at, at + 100, number + 1, stream=number % 3)
        trace.copy(at, at + 100, 10, 900, stream=9)
    got = shares(trace, tmp_path, 1000, 2000)
    assert got.shares() == {name: float(name == "compute") for name in PHASES}


def queued_and_starved(tmp_path: Path, launched_at: float) -> Phases:
    """A gap from 100 to 200 us between two kernels, the second launched at ``launched_at``."""
    trace = Trace()
    trace.op("aten::mm", 0, 400)
    trace.call("cudaLaunchKernel", 10, 15, correlation=1)
    trace.kernel(GEMM, 20, 100, 1)
    trace.call("cudaLaunchKernel", launched_at, launched_at + 5, correlation=2)
    trace.kernel(GEMM, 200, 300, 2)
    return shares(trace, tmp_path, 20, 300)


def test_a_gap_is_queued_where_its_work_was_launched_before_it_began(tmp_path: Path) -> None:
    early, late = queued_and_starved(tmp_path / "a", 50), queued_and_starved(tmp_path / "b", 150)
    assert (early.starved.total, early.queued.total) == (0, 100_000)
    assert (late.starved.total, late.queued.total) == (100_000, 0)
    assert early.parts["host"].total == late.parts["host"].total == 100_000
    assert early.host_parts["queue_gap"].total == 100_000
    assert late.host_parts["queue_gap"].total == 0


def test_a_window_that_cuts_a_gap_does_not_change_what_it_is(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 0, 400)
    trace.launch(10, GEMM, 20, 100)
    trace.launch(150, GEMM, 200, 300)
    cut = shares(trace, tmp_path, 180, 300)
    assert (cut.starved.total, cut.queued.total) == (20_000, 0)


@pytest.mark.parametrize(("call", "starved"), [(10, 60), (400, 500)])
def test_a_gap_that_outlasts_its_launch_is_queued_from_there_on(
    tmp_path: Path, call: float, starved: float
) -> None:
    """Idle from 100; work launched at 150 starts at 500: it waited for what was not recorded, unless its launch was slow."""
    trace = Trace()
    trace.launch(10, GEMM, 20, 100)
    trace.launch(150, GEMM, 600, 700, cost=call)
    got = partition(trace.activity(tmp_path), (0, 700_000))
    inside = got.starved.clip(100_000, 600_000)
    assert inside.total == starved * 1000
    assert got.queued.total == 500_000 - inside.total


def test_work_launched_before_the_capture_is_queued_and_real(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 0, 400)
    trace.kernel(GEMM, 20, 100, 500)
    trace.kernel(GEMM, 150, 250, 501)
    got = shares(trace, tmp_path, 20, 250)
    assert got.parts["compute"].total == 180_000
    assert (got.starved.total, got.queued.total) == (0, 50_000)


@pytest.mark.parametrize(("call_us", "copied"), [(15.0, 15_000), (500.0, 20_000 + 100_000)])
def test_a_copy_call_is_transfer_for_as_long_as_its_bytes_explain(
    tmp_path: Path, call_us: float, copied: int
) -> None:
    """300 kB at 3 bytes per ns take 100 us; a call costs 20 us more; the rest of a longer call waits for something."""
    trace = Trace()
    trace.op("aten::to", 0, 2000)
    trace.launch(5, GEMM, 10, 11)
    trace.call("cudaMemcpyAsync", 1000 - call_us, 1000, correlation=9)
    trace.copy(1990, 2090, 300_000, 9)  # at 3 bytes per ns: the fastest rate seen is this copy's own
    got = shares(trace, tmp_path, 11, 1900)
    assert got.parts["transfer"].total == min(copied, round(call_us * 1000))
    assert got.parts["host"].total == 1_889_000 - got.parts["transfer"].total
    if call_us > 120:
        assert got.host_parts["synchronisation"].total == round(call_us * 1000) - copied


def test_a_device_to_host_read_that_waits_for_kernels_is_no_copy_problem(tmp_path: Path) -> None:
    trace = Loop(wait=True, load_us=5, python_us=900).trace()
    result = trace.result(tmp_path)
    assert result.phases["transfer"] < 0.03
    assert result.verdict.bottleneck == "cpu"


def test_the_pin_thread_never_claims_time(tmp_path: Path) -> None:
    trace = Loop(load_us=3000).trace()
    straight = trace.result(tmp_path / "a")
    for at in range(1000, 20_000, 500):
        trace.call("cudaMemcpyAsync", at, at + 400, tid="pin")
        trace.call("cudaEventQuery", at + 410, at + 420, tid="pin")
    assert trace.result(tmp_path / "b").phases == straight.phases


# the host may be ten steps ahead


def lagging(steps_ahead: int, gap: float) -> Trace:
    """The same GPU work, launched just in time or ``steps_ahead`` steps before it runs."""
    trace, steps, each, kernels = Trace(), 30, 1000.0, 4
    origin = 2000 + each * steps_ahead
    for step in range(steps):
        runs = origin + step * each
        calls = runs - each * steps_ahead - 60
        for kernel in range(kernels):
            at = calls + 12 * kernel
            trace.op("aten::mm", at, at + 10)
            start = runs + kernel * each / kernels
            trace.launch(at + 2, GEMM, start, start + each / kernels - gap)
        trace.annotation("Optimizer.step#SGD.step", calls + 50, calls + 55)
        trace.step(step, calls - 1, calls + 56)
    trace.call("cudaDeviceSynchronize", calls + 60, origin + steps * each + 5, correlation=9999)
    trace.op("aten::sync", calls + 60, origin + steps * each + 5)
    return trace


@pytest.mark.parametrize("gap", [0.0, 40.0])
def test_a_gpu_ten_steps_behind_has_the_same_phases_and_step_duration(tmp_path: Path, gap: float) -> None:
    prompt, behind = lagging(0, gap).result(tmp_path / "a"), lagging(10, gap).result(tmp_path / "b")
    assert behind.steps == prompt.steps
    assert behind.steps.mean_ms == pytest.approx(1.0)
    assert behind.phases == pytest.approx(prompt.phases, abs=1e-6)
    assert behind.phases["compute"] == pytest.approx(1 - gap / 250)
    assert behind.gpu == prompt.gpu
    # the gaps of a GPU that lags are not the host's to give back
    # host and kernels are level here: one alone made free saves nothing, and the lag must not be taken for a host problem
    assert behind.verdict.bottleneck in ("gpu", "none")
    assert behind.what_if.cpu == pytest.approx(1.0, abs=0.08)
    assert prompt.verdict.bottleneck in (("cpu",) if gap else ("gpu", "none"))


def test_split_idle_of_a_trace_that_ends_idle(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 0, 900)
    trace.launch(10, GEMM, 20, 100)
    starved, queued = split_idle(trace.activity(tmp_path), Intervals.single(100_000, 900_000))
    assert (starved.total, queued.total) == (800_000, 0)


def test_host_parts_name_what_the_launching_thread_did(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 0, 10)
    trace.launch(2, GEMM, 10, 20)
    trace.call("cudaStreamSynchronize", 30, 40)
    trace.call("cudaMalloc", 50, 60)
    trace.annotation("Optimizer.step#Adam.step", 70, 80)
    trace.op("aten::to", 90, 100)
    trace.op("aten::add", 110, 120)
    got = shares(trace, tmp_path, 20, 130)
    expected = {
        "synchronisation": 10,
        "allocation": 10,
        "optimizer": 10,
        "cast": 10,
        "dispatch": 10,
        "python": 50,
    }
    assert {name: part.total // 1000 for name, part in got.host_parts.items() if part.total} == expected
    assert got.parts["other"].total == 10_000  # after the last recorded event nothing is known
