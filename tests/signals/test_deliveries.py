"""What waits for batches were spent on: small timelines in ms."""

import numpy as np
import pytest

from tracelens.ingest.runlog import Deliveries, Fetches
from tracelens.signals.deliveries import computing_beside, fetching_beside, waits

MS = 1_000_000


def _deliveries(*rows: tuple[int, float, float]) -> Deliveries:
    batch, t0, t1 = zip(*rows, strict=True)
    return Deliveries(np.array(batch), np.zeros(len(rows), dtype=np.int64), _ns(t0), _ns(t1))


def _ns(values: tuple[float, ...]) -> np.ndarray:
    return np.array([round(v * MS) for v in values], dtype=np.int64)


def _fetches(*rows: tuple[int, float, float, float]) -> Fetches:
    """Batch, begin, end, collate."""
    batch, t0, t1, collate = zip(*rows, strict=True)
    unknown = np.full(len(rows), np.nan)
    zero = np.zeros(len(rows), dtype=np.int64)
    return Fetches(
        zero, zero, np.array(batch), zero, _ns(t0), _ns(t1), unknown, unknown, unknown,
        np.array(collate, dtype=float), *[unknown] * 7,
    )  # fmt: skip


def test_a_wait_for_a_batch_that_is_made_meanwhile_is_making() -> None:
    found = waits(_deliveries((0, 10, 30)), _fetches((0, 0, 30, 0)), 4)
    assert found.wait.tolist() == [20]
    assert found.handover.tolist() == [0]
    assert found.own.tolist() == [30]


def test_what_comes_after_the_making_is_handover_and_so_is_collating() -> None:
    found = waits(_deliveries((0, 10, 40)), _fetches((0, 0, 30, 5)), 4)
    assert found.handover.tolist() == [15]
    assert found.share(found.handover) == pytest.approx(0.5)


def test_a_batch_that_was_there_and_still_took_time_to_receive_is_all_handover() -> None:
    found = waits(_deliveries((0, 50, 58)), _fetches((0, 0, 30, 20)), 4)
    assert found.handover.tolist() == [8]


def test_a_later_batch_that_is_ready_is_held_back() -> None:
    found = waits(_deliveries((0, 10, 100)), _fetches((0, 0, 100, 0), (1, 0, 20, 0), (2, 20, 40, 0)), 4)
    assert found.held.tolist() == [80]
    assert found.share(found.held) == pytest.approx(80 / 90)


def test_what_is_ready_behind_a_batch_of_the_usual_length_is_not_held_back_by_it() -> None:
    # one worker's core is a third slower: its batches always come last
    made = [(2 * k, 130 * k, 130 * k + 130, 0) for k in range(4)] + [
        (2 * k + 1, 100 * k, 100 * k + 100, 0) for k in range(4)
    ]
    found = waits(_deliveries((0, 10, 130), (2, 140, 260)), _fetches(*made), 4)
    assert found.wait.tolist() == [120, 120]
    assert found.held.tolist() == [0, 0]


def test_only_what_the_workers_hold_can_be_held_back() -> None:
    found = waits(_deliveries((0, 10, 100)), _fetches((0, 0, 100, 0), (5, 0, 20, 0)), 4)
    assert found.held.tolist() == [0]


def test_a_batch_without_a_record_is_left_out_and_no_wait_has_no_share() -> None:
    found = waits(_deliveries((0, 10, 10), (7, 20, 90)), _fetches((0, 0, 5, 0)), 4)
    assert found.wait.tolist() == [0]
    assert found.share(found.held) is None
    empty = waits(_deliveries((0, 10, 20)), _fetches((3, 0, 5, 0)), 4)
    assert empty.wait.size == 0


def test_threads_beside_a_fetch_are_the_other_fetches_and_training_that_does_not_wait() -> None:
    # two workers at the same 40 ms of every 100; training waits for the first 30 of them
    fetches = _fetches((0, 0, 40, 0), (1, 0, 40, 0), (2, 100, 140, 0), (3, 100, 140, 0))
    assert computing_beside(_deliveries((0, 0, 30), (1, 100, 130)), fetches) == pytest.approx(2 + 10 / 40)


def test_fetches_one_after_the_other_are_alone() -> None:
    fetches = _fetches((0, 0, 40, 0), (1, 40, 80, 0))
    assert computing_beside(_deliveries((0, 0, 40), (1, 40, 80)), fetches) == pytest.approx(1.0)


def test_without_fetches_nothing_is_known() -> None:
    assert computing_beside(_deliveries((0, 0, 40)), _fetches((0, 5, 5, 0))) is None


def test_batches_that_are_made_while_training_computes() -> None:
    # training computes from 30 to 100; one batch is made in the first 10 of it, two in the last 20
    fetches = _fetches((0, 0, 40, 0), (1, 80, 120, 0), (2, 80, 120, 0))
    assert fetching_beside(_deliveries((0, 0, 30), (1, 100, 120)), fetches) == pytest.approx((10 + 40) / 70)
    assert fetching_beside(_deliveries((0, 0, 30)), fetches) is None
