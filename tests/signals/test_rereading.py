"""A first epoch that reads from storage what later ones find in memory, and waits for workers that make little."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.bundlekit import Run
from tracelens.bundle import RankFiles
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.runlog import RunLog, read_run_log
from tracelens.ingest.tables import HostLog
from tracelens.signals.rereading import rereading_signals
from tracelens.signals.signal import Signals


def log_of(run: Run, folder: Path) -> RunLog:
    return read_run_log(RankFiles(0, run.write(folder / "run") / "rank0"))


def signals_of(log: RunLog | None, host: HostLog | None = None) -> Signals:
    out = Signals()
    out.add("load.service_ms", 1.5, "ms", "test")
    rereading_signals(log, host, out)
    return out


def reads(folder: Path, log: RunLog, first_epoch_bytes: float, later_bytes: float) -> HostLog:
    """Samples of one worker that reads so much from storage in the first epoch, and in all later ones."""
    ends = [int(log.steps.t1[log.steps.epoch == e].max()) for e in np.unique(log.steps.epoch)]
    marks = [int(log.steps.t0[0]), ends[0], ends[-1]]
    times = np.linspace(marks[0], marks[-1], 41)
    counter = np.interp(times, marks, [0, first_epoch_bytes, first_epoch_bytes + later_bytes])
    path = folder / "host.jsonl"
    path.write_text("".join(
        json.dumps({"ts": int(t), "processes": [{"pid": 7, "role": "worker", "read_bytes": float(c)}]}) + "\n"
        for t, c in zip(times, counter, strict=True)
    ))  # fmt: skip
    return read_host_log(path)


@pytest.fixture
def cold(tmp_path: Path) -> RunLog:
    """Three epochs of 40 steps, the first of twice the length; its fetches wait 30 ms longer in each of two workers."""
    run = Run(steps=120, per_epoch=40, slow=lambda step: 10.0 if step < 40 else 0.0)
    log = log_of(run, tmp_path)
    early = log.fetches.epoch == 0
    t0 = np.where(early, log.fetches.t0 - 30_000_000, log.fetches.t0)
    return dataclasses.replace(log, fetches=dataclasses.replace(log.fetches, t0=t0))


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        (40 * 1e6, 0, 15),  # 1 MB a step explains a second
        (40 * 5e3, 0, 5),  # 5 KB explain 5 ms
        (40 * 1e6, 80 * 1e6, 0),  # later epochs read as much: nothing is cached
        (0, 0, 0),
    ],
)
def test_a_cold_first_epoch(
    cold: RunLog, tmp_path: Path, first: float, later: float, expected: float
) -> None:
    out = signals_of(cold, reads(tmp_path, cold, first, later))
    assert out.number("load.first_epoch_ratio") == pytest.approx(2.0)
    assert out.number("load.cold_wait_ms") == pytest.approx(expected, rel=0.1, abs=0.01)


def test_what_was_read_is_missing_without_host_samples(cold: RunLog) -> None:
    out = signals_of(cold)
    assert out.number("load.first_epoch_ratio") == pytest.approx(2.0)
    assert out.number("load.cold_wait_ms") is None


def test_one_epoch_says_nothing_about_a_cache(tmp_path: Path) -> None:
    out = signals_of(log_of(Run(steps=60), tmp_path))
    assert out.number("load.first_epoch_ratio") is None
    assert out.number("load.cold_wait_ms") is None


def test_waiting_for_a_core_is_not_told_from_waiting_for_storage(cold: RunLog, tmp_path: Path) -> None:
    unknown = dataclasses.replace(cold.fetches, run_delay_ms=np.full(len(cold.fetches), np.nan))
    log = dataclasses.replace(cold, fetches=unknown)
    assert signals_of(log, reads(tmp_path, log, 1e9, 0)).number("load.cold_wait_ms") is None


def test_start_up_does_not_count(tmp_path: Path) -> None:
    """Steps and fetches are slow in the first half of the first epoch only."""
    run = Run(steps=120, per_epoch=40, slow=lambda step: 10.0 if step < 20 else 0.0)
    log = log_of(run, tmp_path)
    first = (log.fetches.epoch == 0) & (log.fetches.batch < 16)
    slow = dataclasses.replace(log.fetches, t0=np.where(first, log.fetches.t0 - 90_000_000, log.fetches.t0))
    out = signals_of(dataclasses.replace(log, fetches=slow), reads(tmp_path, log, 1e9, 0))
    assert out.number("load.first_epoch_ratio") == pytest.approx(1.0)
    assert out.number("load.cold_wait_ms") == 0


def test_a_step_of_two_batches_waits_for_each(tmp_path: Path) -> None:
    log = log_of(Run(wait_ms=4.0, batch_size=32), tmp_path)
    one = signals_of(log)
    assert one.number("load.wait_per_batch_ms") == pytest.approx(4.0)
    assert one.number("load.workers_excess_ms") == pytest.approx(2.5)
    steps = dataclasses.replace(log.steps, samples=log.steps.samples * 2)
    two = signals_of(dataclasses.replace(log, steps=steps))
    assert two.number("load.wait_per_batch_ms") == pytest.approx(2.0)
    assert two.number("load.workers_excess_ms") == pytest.approx(1.0)


def test_without_workers_nobody_waits_for_them(tmp_path: Path) -> None:
    assert signals_of(log_of(Run(workers=0), tmp_path)).number("load.wait_per_batch_ms") is None
    assert signals_of(None).number("load.wait_per_batch_ms") is None
