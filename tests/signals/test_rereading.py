"""A first epoch that reads from storage what later ones find in memory, and waits for workers that make little."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.bundlekit import Run
from tracelens.bundle import RankFiles
from tracelens.ingest.runlog import RunLog, read_run_log
from tracelens.signals.rereading import rereading_signals
from tracelens.signals.signal import Signals


def log_of(run: Run, folder: Path) -> RunLog:
    return read_run_log(RankFiles(0, run.write(folder / "run") / "rank0"))


def signals_of(log: RunLog | None) -> Signals:
    out = Signals()
    rereading_signals(log, out)
    return out


def test_a_cold_first_epoch(tmp_path: Path) -> None:
    run = Run(steps=60, per_epoch=20, slow=lambda step: 10.0 if step < 20 else 0.0)
    log = log_of(run, tmp_path)
    warm = signals_of(log)
    assert warm.number("load.first_epoch_ratio") == pytest.approx(2.0)
    assert warm.number("load.cold_wait_ms") == 0
    early = log.fetches.epoch == 0
    cold = dataclasses.replace(log.fetches, t0=np.where(early, log.fetches.t0 - 30_000_000, log.fetches.t0))
    assert signals_of(dataclasses.replace(log, fetches=cold)).number("load.cold_wait_ms") == pytest.approx(15)


def test_one_epoch_says_nothing_about_a_cache(tmp_path: Path) -> None:
    out = signals_of(log_of(Run(steps=60), tmp_path))
    assert out.number("load.first_epoch_ratio") is None
    assert out.number("load.cold_wait_ms") is None


def test_the_first_batch_of_a_worker_does_not_count(tmp_path: Path) -> None:
    log = log_of(Run(steps=60, per_epoch=20), tmp_path)
    first = (log.fetches.epoch == 0) & (log.fetches.batch < 2)
    slow = dataclasses.replace(log.fetches, t0=np.where(first, log.fetches.t0 - 900_000_000, log.fetches.t0))
    assert signals_of(dataclasses.replace(log, fetches=slow)).number("load.cold_wait_ms") == 0


def test_a_step_of_two_batches_waits_for_each(tmp_path: Path) -> None:
    log = log_of(Run(wait_ms=4.0, batch_size=32), tmp_path)
    assert signals_of(log).number("load.wait_per_batch_ms") == pytest.approx(4.0)
    steps = dataclasses.replace(log.steps, samples=log.steps.samples * 2)
    assert signals_of(dataclasses.replace(log, steps=steps)).number("load.wait_per_batch_ms") == 2.0


def test_without_workers_nobody_waits_for_them(tmp_path: Path) -> None:
    assert signals_of(log_of(Run(workers=0), tmp_path)).number("load.wait_per_batch_ms") is None
    assert signals_of(None).number("load.wait_per_batch_ms") is None
