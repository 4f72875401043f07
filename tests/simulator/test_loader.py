"""The loader: torch's own order of things."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulator.loader import Loader, Noise
from benchmarks.simulator.params import Params

BASE = Params(
    batch=10, workers=3, prefetch=2, pin=False, sample_cpu_ms=1.0, sample_wait_ms=0.0, sample_kb=0.0, collate_ms=0.0,
    ipc_us_mb=0.0, touch=0.0, handoff_ms=0.0, loader_sigma=0.0, fork_ms=0.0, init_ms=0.0, machine_cores=64,
    epoch_batches=1000,
)  # fmt: skip


def _loader(p: Params, **more: object) -> Loader:
    return Loader(p, Noise.draw(p, np.random.default_rng(0)), 1_000_000, **more)  # type: ignore[arg-type]


def _take(loader: Loader, n: int, work_us: float) -> list[tuple[float, float]]:
    t = loader.begin_epoch(0.0, loader.p.epoch_batches)
    got = []
    for _ in range(n):
        t, wait = loader.next(t)
        got.append((t, wait))
        t += work_us
    return got


def test_workers_take_batches_round_robin() -> None:
    loader = _loader(BASE)
    _take(loader, 9, 0.0)
    assert [f.worker for f in loader.log] == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_batches_arrive_in_order_behind_a_slow_worker() -> None:
    loader = _loader(BASE.but(slow_worker=10.0))
    got = _take(loader, 6, 0.0)
    assert [f.batch for f in loader.log] == list(range(6))
    # batch 0 takes 100 ms at the slow worker; 1 and 2 were ready long before and wait for it
    assert got[0][0] >= 100_000.0
    assert loader.log[1].ready < got[0][0]
    assert got[2][0] - got[0][0] < 1000.0


def test_an_idle_trainer_gets_one_batch_a_service_time_over_workers() -> None:
    got = _take(_loader(BASE), 40, 0.0)
    step = (got[-1][0] - got[9][0]) / 30
    assert step == pytest.approx(10_000.0 / 3, rel=0.05)


def test_prefetch_bounds_what_is_made_ahead() -> None:
    loader = _loader(BASE)
    loader.begin_epoch(0.0, 1000)
    loader.next(1e9)
    # all primed batches are done, none beyond prefetch_factor * num_workers (one more was handed out just now)
    assert loader.depth == BASE.prefetch * BASE.workers - 1


def test_no_workers_make_the_batch_in_the_trainer() -> None:
    got = _take(_loader(BASE.but(workers=0)), 3, 5000.0)
    assert [w for _, w in got] == pytest.approx([10_000.0] * 3)


def test_workers_share_the_cores() -> None:
    few = _take(_loader(BASE.but(workers=8, machine_cores=2)), 60, 0.0)
    step = (few[-1][0] - few[19][0]) / 40
    assert step >= 10_000.0 / 2 * 0.9


def test_storage_at_its_cap_is_not_helped_by_workers() -> None:
    p = BASE.but(sample_cpu_ms=0.0, sample_kb=1000.0, storage_mbs=100.0, stream_mbs=80.0)
    steps = []
    for workers in (2, 8):
        got = _take(_loader(p.but(workers=workers)), 60, 0.0)
        steps.append((got[-1][0] - got[19][0]) / 40)
    assert steps[0] == pytest.approx(10 * 1024_000 / 100.0, rel=0.05)
    assert steps[1] == pytest.approx(steps[0], rel=0.1)


def test_epochs_start_workers_anew_unless_persistent() -> None:
    costs = {}
    for persistent in (False, True):
        p = BASE.but(fork_ms=10.0, init_ms=200.0, persistent=persistent, epoch_batches=6)
        loader = _loader(p)
        t = loader.begin_epoch(0.0, 6)
        for _ in range(6):
            t, _ = loader.next(t)
        begin = t
        t = loader.begin_epoch(t, 6)
        t, _ = loader.next(t)
        costs[persistent] = t - begin
    assert costs[False] - costs[True] >= 200_000.0


def test_the_pin_thread_is_one_server() -> None:
    p = BASE.but(pin=True, pin_gbs=0.1, workers=8)
    got = _take(_loader(p), 60, 0.0)
    # 1 MB at 0.1 GB/s is 10 ms a batch, however many workers
    assert (got[-1][0] - got[19][0]) / 40 == pytest.approx(10_000.0, rel=0.05)


def test_bursts_are_absorbed_by_a_deeper_queue() -> None:
    waits = {}
    for prefetch in (1, 8):
        p = BASE.but(prefetch=prefetch, burst_every=20, burst_ms=100.0)
        waits[prefetch] = sum(w for _, w in _take(_loader(p), 100, 12_000.0)[10:])
    assert waits[8] < 0.2 * waits[1]
