"""Conservation: what the engine may never do, whatever the job."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.simulator.engine import CPU_UNION, Simulation, simulate_step_us
from benchmarks.simulator.params import Params
from benchmarks.simulator.plan import COMM

JOB = Params(template="mlp", sizes=(("width", 512), ("depth", 4), ("features", 128)), device="V100", dtype="fp32",
             batch=512, warm=4, horizon=30, traced=8, sample_cpu_ms=0.002, sample_wait_ms=0.0, sample_kb=1.0)  # fmt: skip

JOBS = {
    "plain": JOB,
    "main process": JOB.but(workers=0, sample_cpu_ms=0.02),
    "pageable": JOB.but(pin=False, non_blocking=False),
    "synchronising": JOB.but(mid_syncs=3, item=True),
    "allocating": JOB.but(mallocs=3),
    "small queue": JOB.but(queue=32, batch=16384),
    "copy stream": JOB.but(copy_stream=True, wide=4.0),
    "two ranks": JOB.but(ranks=2, busbw_gbs=5.0, bucket_mb=1.0),
    "straggler": JOB.but(ranks=2, straggler="host", straggle_x=4.0),
    "throttled": JOB.but(clock=0.6),
}


def _steps(sim: Simulation, rank: int = 0):
    return [r for r in sim.ranks[rank].records if r.item0 is not None]


@pytest.mark.parametrize("name", JOBS)
def test_no_stream_overlaps_itself(name: str) -> None:
    sim = Simulation(JOBS[name], record=True).run()
    for rank in sim.ranks:
        for stream in (0, 1):
            spans = []
            for rec in rank.records:
                mine = np.flatnonzero((rank.plan.kernel_kind == COMM) == bool(stream))
                spans += [(float(rec.kernel0[j]), float(rec.kernel0[j] + rec.kernel_us[j])) for j in mine]
                spans += [
                    (c.start, c.end) for c in rec.copies if (c.stream != 7) == bool(stream) and not stream
                ]
            spans.sort()
            assert all(b[0] >= a[1] - 1e-6 for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("name", JOBS)
def test_a_kernel_starts_after_its_launch_and_the_host_never_goes_back(name: str) -> None:
    sim = Simulation(JOBS[name], record=True).run()
    for rank in sim.ranks:
        for rec in _steps(sim, rank.index):
            launch = rec.item0[rank.plan.launch_item]
            assert np.all(rec.kernel0 >= launch)
            assert np.all(np.diff(rec.item0) >= -1e-6)
            assert np.all(rec.item1 >= rec.item0 - 1e-6)


def test_a_launch_waits_for_a_slot_of_the_queue() -> None:
    p = JOBS["small queue"]
    sim = Simulation(p, record=True).run()
    rank = sim.ranks[0]
    starts = rank.history[p.queue : p.queue + rank.launched]
    n = len(rank.plan.kernels)
    per_step = n + len(rank.plan.net.inputs)
    blocked = 0
    for rec in _steps(sim):
        first = rec.step * per_step + len(rank.plan.net.inputs)
        ends = rec.item1[rank.plan.launch_item]
        for j in range(n):
            assert ends[j] >= starts[first + j - p.queue] - 1e-6
            blocked += ends[j] - rec.item0[rank.plan.launch_item[j]] > 50.0
    assert blocked > 10, "the job is GPU-limited, so the queue must have blocked"


def test_collectives_end_together_and_start_when_ready() -> None:
    sim = Simulation(JOBS["straggler"], record=True).run()
    fast, slow = sim.ranks[0], sim.ranks[1]
    which = np.flatnonzero(fast.plan.kernel_kind == COMM)
    assert len(which)
    for a, b in zip(_steps(sim, 0), _steps(sim, 1), strict=True):
        np.testing.assert_allclose((a.kernel0 + a.kernel_us)[which], (b.kernel0 + b.kernel_us)[which])
        assert a.kernel0[which[0]] < b.kernel0[which[0]], "the fast rank waits inside its collective"
    assert slow.done[-1] == pytest.approx(fast.done[-1], rel=0.05)


def test_a_synchronisation_waits_for_the_kernels_before_it() -> None:
    sim = Simulation(JOBS["synchronising"], record=True).run()
    for rec in _steps(sim):
        assert len(rec.waits) == 4
        for _, item, _, t1 in rec.waits:
            before = sim.ranks[0].plan.launch_item <= item
            assert t1 >= float((rec.kernel0 + rec.kernel_us)[before].max())


def test_pageable_copies_block_until_the_bytes_are_there() -> None:
    sim = Simulation(JOBS["pageable"], record=True).run()
    for rec in _steps(sim):
        assert all(c.sync1 >= c.end for c in rec.copies)


def test_the_same_seed_gives_the_same_run() -> None:
    a, b = (Simulation(JOB, record=True).run() for _ in range(2))
    assert a.ranks[0].done == b.ranks[0].done
    assert a.ranks[0].done != Simulation(JOB.but(seed=1), record=True).run().ranks[0].done


@pytest.mark.parametrize("name", JOBS)
def test_freeing_nothing_changes_nothing_and_freeing_something_never_costs(name: str) -> None:
    p = JOBS[name]
    base = Simulation(p).run().step_us
    assert simulate_step_us(p) == base
    for free in ("loader", "loader_cpu", "transfer", "launch", "python", "optimizer", "sync", "gpu_compute", "gpu_memory",
                 "gpu_small", "comm", "throttle", "cores"):  # fmt: skip
        assert simulate_step_us(p, frozenset({free})) <= base * 1.01, free
    everything = CPU_UNION | {"transfer", "gpu_compute", "gpu_memory", "comm"}
    assert simulate_step_us(p, everything) < 0.2 * base


def test_a_saturated_gpu_sets_the_pace_and_lags() -> None:
    p = JOB.but(batch=16384, warm=14)
    sim = Simulation(p, record=True).run()
    rank = sim.ranks[0]
    work = float(rank.plan.kernel_us.sum())
    assert sim.step_us == pytest.approx(work, rel=0.15)
    assert rank.done[-1] - rank.logs[-1].end > 5 * work, "the host runs ahead as far as the queue lets it"
