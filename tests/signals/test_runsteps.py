"""Signals of a bundle's logs: speed, waits, stalls and the making of batches of runs whose times are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bundlekit import Run, cpu_trace, gpu_trace
from tracelens.bundle import RankFiles
from tracelens.ingest.runlog import read_run_log
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.runsteps import corrected_shares, run_signals
from tracelens.signals.signal import Signals
from tracelens.trace.reader import read_trace


def analysis_of(run: Run, folder: Path) -> RankAnalysis:
    """The run's window with its logs."""
    run.trace = run.trace or cpu_trace()
    run.window = run.window or range(12, 18)
    rank = run.write(folder / "run") / "rank0"
    log = read_run_log(RankFiles(0, rank))
    path = rank / "window-0.pt.trace.json.gz"
    return RankAnalysis(read_trace(path), log.settings, run_log=log, trace_name=path.name)


def signals_of(run: Run, folder: Path) -> Signals:
    out = Signals()
    run_signals(analysis_of(run, folder), out)
    return out


def test_speed_is_that_of_the_unprofiled_steps(tmp_path: Path) -> None:
    """The profiled steps take twice as long; the step log's others count."""
    out = signals_of(Run(steps=40, step_ms=10, slow=lambda s: 10.0 if 12 <= s < 19 else 0.0), tmp_path)
    assert out.number("steps.mean_ms") == out.number("steps.median_ms") == out.number("steps.p95_ms") == 10
    assert out.number("steps.count") == 40
    assert out.number("quality.step_error") == 0
    assert out.number("throughput.samples_per_s") == pytest.approx(3200)


def test_waits_for_data(tmp_path: Path) -> None:
    out = signals_of(Run(steps=40, step_ms=10, wait_ms=4), tmp_path)
    assert out.number("load.wait_ms") == out.number("load.saving_ms") == out.number("load.max_wait_ms") == 4
    assert out.number("load.stalled_share") == 1
    assert out.value("load.mode") == "workers"


def test_samples_made_in_the_training_process_are_said_to_be(tmp_path: Path) -> None:
    out = signals_of(Run(workers=0), tmp_path)
    assert out.value("load.mode") == "main_process"
    assert out.number("load.worker_busy") is None
    reason = out["load.queue_depth"].reason
    assert reason is not None
    assert "main process" in reason


def test_one_step_in_four_waits(tmp_path: Path) -> None:
    run = Run(steps=60, step_ms=10, wait_ms=0, late=lambda s: 40.0 if s % 4 == 3 else 0.0)
    out = signals_of(run, tmp_path)
    assert out.number("load.stalled_share") == pytest.approx(0.25, abs=0.03)
    assert out.number("load.max_wait_ms") == 40
    # no median hides it: the mean wait is a quarter of the stall
    assert out.number("load.wait_ms") == pytest.approx(10, rel=0.1)


def test_stalls_that_are_not_waits_recur_every_eight_steps(tmp_path: Path) -> None:
    out = signals_of(Run(steps=80, slow=lambda s: 100.0 if s % 8 == 5 and s > 26 else 0.0), tmp_path)
    assert out.number("host.stall_period") == 8
    steps = out.number("host.stall_steps")
    assert steps == 7  # 29, 37 ... 77
    # 100 ms each, over the unprofiled steps
    assert out.number("host.stall_ms") == pytest.approx(700 / (80 - 12), rel=0.02)


def test_waits_are_no_stalls_of_the_host(tmp_path: Path) -> None:
    out = signals_of(Run(steps=80, late=lambda s: 100.0 if s % 8 == 5 else 0.0), tmp_path)
    assert out.number("host.stall_steps") == 0
    assert out.number("host.stall_ms") == 0


def test_irregular_stalls_have_no_period(tmp_path: Path) -> None:
    slow = {25: 80.0, 30: 80.0, 51: 80.0}
    out = signals_of(Run(steps=80, slow=lambda s: slow.get(s, 0.0)), tmp_path)
    assert out.number("host.stall_steps") == 3
    assert out.value("host.stall_period") is None


def test_an_epochs_first_step_is_counted_over_the_epoch(tmp_path: Path) -> None:
    run = Run(steps=60, per_epoch=20, late=lambda s: 300.0 if s % 20 == 0 else 0.0)
    assert signals_of(run, tmp_path).number("load.epoch_start_ms") == pytest.approx(300 / 20)


def test_one_epoch_says_nothing_about_epochs(tmp_path: Path) -> None:
    found = signals_of(Run(steps=40), tmp_path)["load.epoch_start_ms"]
    assert found.value is None
    assert "two epochs" in (found.reason or "")


def test_the_making_of_a_batch(tmp_path: Path) -> None:
    """20 ms of wall, 15 of CPU, 1 of collation in two workers that together deliver every 10 ms."""
    out = signals_of(Run(steps=41, step_ms=10, workers=2, service_ms=20, cpu_ms=15), tmp_path)
    assert out.number("load.service_ms") == 20
    assert out.number("load.service_cpu_share") == 0.75
    assert out.number("load.io_share") == 0.25
    assert out.number("load.collate_share") == 0.05
    assert out.number("load.slowest_ratio") == 1
    # 41 fetches of 20 ms by two workers in 420 ms
    assert out.number("load.worker_busy") == pytest.approx(41 * 20 / (2 * 420))
    assert out.number("load.batch_bytes") == 1_000_000


def test_half_the_service_time_is_half_the_signal(tmp_path: Path) -> None:
    long = signals_of(Run(service_ms=20, cpu_ms=10), tmp_path / "a")
    short = signals_of(Run(service_ms=10, cpu_ms=10), tmp_path / "b")
    assert (long.number("load.service_ms"), short.number("load.service_ms")) == (20, 10)
    assert (long.number("load.io_share"), short.number("load.io_share")) == (0.5, 0)


def test_a_trace_alone_says_that_a_bundle_would_know_more(tmp_path: Path) -> None:
    out = Signals()
    run_signals(RankAnalysis(gpu_trace().tables(tmp_path)), out)
    assert out.value("quality.baseline") is False
    for name in ("quality.distortion", "load.service_ms", "load.io_share"):
        assert out[name].value is None
        assert "bundle" in (out[name].reason or "")


def test_distortion_compares_the_window_with_the_steps_before_it(tmp_path: Path) -> None:
    """Windows of 10 ms steps after a baseline of 8 ms."""
    out = signals_of(Run(steps=40, step_ms=8, trace=cpu_trace(step_us=10000)), tmp_path)
    assert out.value("quality.baseline") is True
    assert out.number("quality.distortion") == pytest.approx(0.25, abs=0.01)


def test_shares_without_a_gpu_are_those_of_the_unprofiled_steps(tmp_path: Path) -> None:
    """The profiler slows operators: in its window loading is 40 %, in the job 60 %."""
    analysis = analysis_of(Run(steps=40, step_ms=10, wait_ms=6), tmp_path)
    window = analysis.phases.shares()
    assert window["load"] == pytest.approx(0.4, abs=0.01)
    shares = corrected_shares(analysis)
    assert shares["load"] == pytest.approx(0.6)
    assert sum(shares.values()) == pytest.approx(1.0)
    # what is not loading keeps its proportions
    assert shares["compute"] / window["compute"] == pytest.approx(0.4 / (1 - window["load"]))


def test_shares_with_a_gpu_are_the_windows(tmp_path: Path) -> None:
    analysis = analysis_of(Run(steps=40, trace=gpu_trace()), tmp_path)
    assert corrected_shares(analysis) == dict(analysis.phases.shares())
    shares = corrected_shares(analysis)
    # 4 ms of loading, 0.06 of copying, 5.9 + 0.01 of kernels: which is which matters
    assert shares["load"] == pytest.approx(4.0 / (analysis.step_ms or 1), rel=0.01)
    assert shares["compute"] == pytest.approx(5.91 / (analysis.step_ms or 1), rel=0.01)
    assert shares["transfer"] == pytest.approx(0.065 / (analysis.step_ms or 1), rel=0.1)


def test_a_run_that_died_early_leaves_the_windows_speed(tmp_path: Path) -> None:
    analysis = analysis_of(Run(steps=4, window=range(1, 4)), tmp_path)
    assert not analysis.has_step_log
    out = Signals()
    run_signals(analysis, out)
    assert out.number("steps.mean_ms") is None
    assert np.isfinite(out.number("load.service_ms") or np.nan)
