"""Service times where a host log shows how much the workers do."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.whatif.loader_observe import ObservedService
from tracelens.whatif.loader_seen import WorkersSeen, always_starved, divided, slow_one, waited_for


def seen(
    computing: float, reading: float = 0.0, busiest: float | None = None, others: float | None = None
) -> WorkersSeen:
    busy = computing + reading
    return WorkersSeen(
        computing, reading, busy if busiest is None else busiest, busy if others is None else others
    )


def fitted(*service: float) -> ObservedService:
    return ObservedService(np.asarray(service), np.zeros(len(service)), "measured", True, 2.0)


def view(spans: list[float], step: float) -> tuple[np.ndarray, np.ndarray]:
    """(when each batch was handed over, how long next took): the rest of a step takes ``step``."""
    took = np.asarray(spans)
    return np.cumsum(took + step) - step, took


def test_waits_are_told_from_handing_over() -> None:
    assert waited_for([0.1, 0.1, 5.0, 0.1, 0.4], 10.0).tolist() == [False, False, True, False, False]
    # where every batch is waited for there is no quick one to compare with
    assert waited_for([8.0, 9.0, 8.5, 9.5], 10.0).all()


def test_starved_is_whom_every_round_of_workers_keeps_waiting() -> None:
    assert always_starved([9.0, 0.0, 0.0, 8.0, 0.0, 0.0, 9.0], 3)
    assert not always_starved([9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0], 3)
    assert always_starved([5.0, 5.0], 8)
    # below what counts as a wait
    assert not always_starved([0.1, 0.1, 0.1, 0.1], 2, least=0.2)
    # one late batch does most of the waiting
    assert not always_starved([0.5, 0.5, 40.0, 0.5, 0.5, 0.5, 0.5, 0.5], 2, least=0.2)


def test_busy_workers_take_as_long_as_the_waits_show() -> None:
    ends, spans = view([30.0, 0.1] * 4, 5.0)
    got = divided(fitted(40.0, 44.0, 36.0), ends, spans, 2, 20.0, seen(0.72, 0.24), starved=True)
    assert (got.cpu_ms + got.wait_ms).tolist() == pytest.approx([40.0, 44.0, 36.0])
    assert got.cpu_ms[0] == pytest.approx(30.0)
    assert (got.held_ms, got.slow_worker, got.error) == (0.0, 1.0, None)
    assert got.running == pytest.approx(1.44)


def test_starved_by_idle_workers_is_held_up() -> None:
    """Two workers compute for 45 % of the time: a batch is 18 ms of work, and 20 ms is what the job gets it in."""
    ends, spans = view([30.0, 0.1] * 4, 5.0)
    got = divided(fitted(40.0), ends, spans, 2, 20.0, seen(0.45), starved=True)
    assert got.cpu_ms == pytest.approx(np.full(8, 18.0))
    assert got.wait_ms == pytest.approx(np.zeros(8))
    assert got.held_ms == 20.0


def test_waits_now_and_then_do_not_make_workers_held_up() -> None:
    ends, spans = view([0.1] * 6 + [60.0] + [0.1] * 5, 10.0)
    got = divided(None, ends, spans, 3, 15.0, seen(0.4), starved=False)
    times = got.cpu_ms + got.wait_ms
    assert got.held_ms == 0.0
    assert float(times.mean()) == pytest.approx(18.0)
    # begun once its worker was through with the batch three before it, itself begun when the job was: 120 ms ago, less
    # one quick batch; the others share what is left
    assert times.argmax() == 6
    assert times[6] == pytest.approx(120.0 - times[0], abs=1.0)
    assert np.delete(times, 6) == pytest.approx(np.full(11, (12 * 18.0 - times[6]) / 11))


def test_one_busy_worker_that_all_waits_are_for_is_slow() -> None:
    ends, spans = view([75.0, 0.1, 0.1] * 3, 5.0)
    got = divided(fitted(90.0), ends, spans, 3, 30.0, seen(0.5, busiest=1.0, others=0.25), starved=True)
    assert got.slow_worker == pytest.approx(4.0)
    assert got.cpu_ms == pytest.approx(np.full(9, 3 * 30.0 / 4.0))
    # waits for batches of others too: slow batches, not a slow worker
    ends, spans = view([75.0, 0.1, 40.0] * 3, 5.0)
    got = divided(fitted(90.0), ends, spans, 3, 30.0, seen(0.5, busiest=1.0, others=0.25), starved=True)
    assert got.slow_worker == 1.0


def test_without_a_wait_the_log_alone_says_how_long_a_batch_takes() -> None:
    ends, spans = view([0.1] * 8, 10.0)
    got = divided(None, ends, spans, 4, 10.0, seen(0.3, 0.1))
    assert (got.cpu_ms + got.wait_ms) == pytest.approx(np.full(8, 16.0))
    assert got.known == "measured"
    assert got.error == pytest.approx(0.03)


def test_a_worker_that_is_slow_with_every_batch_is_told_from_slow_batches() -> None:
    worker = np.tile([0, 1, 2], 4)
    assert slow_one(np.where(worker == 1, 44.0, 10.0 + worker), worker) == (1, pytest.approx(4.0))
    # one batch of worker 1 is quick, or there are too few of it to tell, or all are alike
    mixed = np.where(worker == 1, 44.0, 11.0)
    mixed[4] = 10.0
    assert slow_one(mixed, worker) is None
    assert slow_one([44.0, 44.0, 11.0, 11.0, 11.0], [1, 1, 0, 0, 0]) is None
    assert slow_one(np.full(12, 10.0), worker) is None
    assert slow_one([10.0, 11.0, 12.0], [0, 0, 0]) is None
