"""The primitives: shared resources, the bounded launch queue, in-order streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator.resources import Shared, capped, cores, launch_scan, stream_scan


def _drain(shared: Shared) -> list[tuple[float, object]]:
    out = []
    while len(shared):
        at = shared.due
        out.append((at, shared.pop(at)))
    return out


def test_two_copies_on_one_link_take_twice_as_long() -> None:
    link = Shared(capped(10.0, 10.0))
    link.add(0.0, 100.0, "a")
    link.add(0.0, 100.0, "b")
    assert _drain(link) == [(20.0, "a"), (20.0, "b")]


def test_a_late_task_slows_the_first_only_while_both_run() -> None:
    link = Shared(capped(10.0, 10.0))
    link.add(0.0, 100.0, "first")
    link.add(5.0, 100.0, "late")
    # 50 done alone, 50 at half speed until 15, then 50 left of the late one at full speed
    assert _drain(link) == [(15.0, "first"), (20.0, "late")]


def test_one_task_never_exceeds_its_own_rate() -> None:
    storage = Shared(capped(1000.0, 50.0))
    storage.add(0.0, 500.0, "x")
    assert storage.due == pytest.approx(10.0)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 100)), min_size=1, max_size=12))
def test_work_is_conserved(jobs: list[tuple[float, float]]) -> None:
    """A saturated server finishes all its work at capacity: busy time is work over capacity."""
    shared = Shared(lambda n: 1.0 / n)
    arrivals = sorted(jobs)
    served, busy, at = 0, 0.0, 0.0
    pending = list(arrivals)
    while pending or len(shared):
        nxt = shared.due
        if pending and pending[0][0] <= nxt:
            t, work = pending.pop(0)
            busy += (t - at) if len(shared) else 0.0
            shared.add(t, work, None)
            at = t
        else:
            busy += nxt - at
            shared.pop(nxt)
            at = nxt
            served += 1
    assert served == len(jobs)
    assert busy == pytest.approx(sum(w for _, w in jobs), rel=1e-6, abs=1e-6)


def test_cores_are_shared_and_extra_threads_cost() -> None:
    assert cores(4, 1, 0.0)(2) == 1.0
    assert cores(4, 1, 0.0)(8) == pytest.approx(0.5)
    assert cores(4, 8, 0.35)(2) < 1.0


def _queue_by_hand(calls: list[float], starts_of: list[float]) -> list[float]:
    delay, out = 0.0, []
    for call, slot in zip(calls, starts_of, strict=True):
        delay = max(delay, slot - call, 0.0)
        out.append(delay)
    return out


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 200)), min_size=1, max_size=30))
def test_a_full_queue_delays_this_launch_and_all_behind_it(rows: list[tuple[float, float]]) -> None:
    calls = np.cumsum([r[0] for r in rows])
    slots = np.array([r[1] for r in rows])
    got = launch_scan(calls, slots)
    np.testing.assert_allclose(got, _queue_by_hand(calls.tolist(), slots.tolist()), atol=1e-9)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 20)), min_size=1, max_size=30), st.floats(0, 100))
def test_a_stream_runs_in_order_without_overlap(rows: list[tuple[float, float]], free: float) -> None:
    ready = np.array([r[0] for r in rows])
    durations = np.array([r[1] for r in rows])
    before = np.concatenate(([0.0], np.cumsum(durations)[:-1]))
    start = stream_scan(ready, before, free)
    at = free
    for i in range(len(rows)):
        at = max(at, ready[i])
        assert start[i] == pytest.approx(at)
        at += durations[i]
