"""Collections, the sampler, what fetches read and what batches are made of, in bundles that hold a known amount of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bundlekit import START, Run
from tracelens.bundle import RankFiles
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.runlog import RunLog, read_run_log
from tracelens.signals.recorded import expected_largest, exposure, recorded_signals
from tracelens.signals.signal import Signals

Change = Callable[[dict[str, Any]], dict[str, Any]]


def log_of(folder: Path, run: Run, **changes: Change) -> RunLog:
    """The run's log after each line of the named files (``steps``, ``loader``, ``worker``, ``process``) was changed."""
    rank = run.write(folder / "run") / "rank0"
    for name, change in changes.items():
        for path in rank.glob(f"{name}*.jsonl"):
            lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run_log(RankFiles(0, rank))


def signals_of(log: RunLog | None) -> Signals:
    out = Signals()
    recorded_signals(log, None, out)
    return out


def test_nothing_recorded_is_unknown() -> None:
    out = signals_of(None)
    assert out["torch.anomaly_mode"].value is None
    assert all(signal.value is None and signal.reason for signal in out.values())


def test_an_old_bundle_is_unknown_too(tmp_path: Path) -> None:
    out = signals_of(log_of(tmp_path, Run(steps=40)))
    for name in (
        "host.gc_ms",
        "load.sampler_ms",
        "load.read_calls",
        "torch.cudnn_benchmark",
        "cudnn.retuned_share",
    ):
        assert out[name].value is None, name


def test_switches_come_from_the_newest_window(tmp_path: Path) -> None:
    run = Run(steps=40, window=range(12, 18))
    before = {"anomaly": False, "cudnn_benchmark": True, "deterministic": None}
    log = log_of(
        tmp_path, run, process=lambda line: line | {"flags": before, "platform": "linux"},
        windows=lambda line: line | {"flags": {"anomaly": True, "cudnn_benchmark": None}},
    )  # fmt: skip
    out = signals_of(log)
    assert out.value("torch.anomaly_mode") is True
    assert out.value("torch.cudnn_benchmark") is True
    assert out.value("torch.deterministic") is None
    assert out.value("machine.platform") == "linux"


def test_pauses_that_lengthen_steps(tmp_path: Path) -> None:
    """Every tenth step pauses for 20 ms and is that much longer."""
    log = log_of(
        tmp_path, Run(steps=100, slow=lambda step: 20.0 if step % 10 == 5 else 0.0),
        steps=lambda line: line | {"gc_ms": 20.0 if line["step"] % 10 == 5 else 0.0},
    )  # fmt: skip
    out = signals_of(log)
    assert out.number("host.gc_ms") == pytest.approx(2.0, rel=0.05)
    assert out.number("host.gc_worst_ms") == 20.0
    assert out.number("host.gc_saving_ms") == pytest.approx(2.0, rel=0.05)


def test_pauses_that_a_host_ahead_of_its_gpu_hides(tmp_path: Path) -> None:
    log = log_of(
        tmp_path, Run(steps=100), steps=lambda line: line | {"gc_ms": 5.0 if line["step"] % 10 == 5 else 0.0}
    )
    assert signals_of(log).number("host.gc_saving_ms") == pytest.approx(0.0, abs=1e-9)


def test_many_ranks_wait_for_the_longest_pause(tmp_path: Path) -> None:
    log = log_of(
        tmp_path, Run(steps=100, slow=lambda step: 20.0 if step % 10 == 5 else 0.0),
        steps=lambda line: line | {"gc_ms": 20.0 if line["step"] % 10 == 5 else 0.0},
        process=lambda line: line | {"world_size": 16},
    )  # fmt: skip
    saving = signals_of(log).number("host.gc_saving_ms")
    assert saving == pytest.approx(20 * (1 - 0.9**16), rel=0.05)


def test_the_largest_of_several_draws() -> None:
    values = np.array([0.0, 0.0, 0.0, 8.0])
    assert expected_largest(values, 1) == 2.0
    assert expected_largest(values, 2) == pytest.approx(8 * (1 - 0.75**2))
    simulated = np.random.default_rng(1).choice(values, (20_000, 5)).max(axis=1).mean()
    assert expected_largest(values, 5) == pytest.approx(simulated, rel=0.02)


def test_equal_pauses_count_only_where_the_gpu_starves() -> None:
    pauses, durations = np.full(20, 4.0), np.full(20, 10.0)
    assert exposure(pauses, durations, None) == 1.0
    assert exposure(pauses, durations, 3.0) == 1.0
    assert exposure(pauses, durations, 0.5) == 0.0


def test_the_start_of_a_pass_is_spread_over_it(tmp_path: Path) -> None:
    def loader(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] == "iter":
            return line | {"sampler_ms": 100.0, "sampler_bytes": 3_200_000_000}
        return line | {"sampler_ms": 0.5} if line["event"] == "batch" else line

    log = log_of(tmp_path, Run(steps=40, per_epoch=20), loader=loader)
    out = signals_of(log)
    assert out.number("load.sampler_start_ms") == 100.0
    assert out.number("load.sampler_ms") == pytest.approx(0.5 + 100 / 20)
    assert out.number("load.sampler_bytes") == 3.2e9
    path = tmp_path / "host.jsonl"
    processes = [{"pid": pid, "role": "main", "rank": pid, "rss": 1} for pid in (1, 2)]
    path.write_text(
        json.dumps({"ts": START, "mem_total": 64e9, "system_cpu_percent": 5, "processes": processes}) + "\n"
    )
    whole = Signals()
    recorded_signals(log, read_host_log(path), whole)
    assert whole.number("load.sampler_memory_share") == pytest.approx(2 * 3.2 / 64)


def test_without_workers_the_first_batch_carries_the_start(tmp_path: Path) -> None:
    def loader(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] != "batch":
            return line
        return line | (
            {"sampler_ms": 100.5, "sampler_bytes": 0} if line["batch"] == 0 else {"sampler_ms": 0.5}
        )

    out = signals_of(log_of(tmp_path, Run(steps=40, per_epoch=20, workers=0), loader=loader))
    assert out.number("load.sampler_ms") == pytest.approx(0.5 + 100.5 / 20)


def test_what_fetches_read(tmp_path: Path) -> None:
    """50 reads of 40 KB for a batch of 1 MB, while 12 ms are waited."""
    log = log_of(
        tmp_path, Run(steps=40, service_ms=20, cpu_ms=8),
        worker=lambda line: line | {"rchar": 2_000_000, "syscr": 50, "read_bytes": 3_000_000, "samples": 32},
    )  # fmt: skip
    out = signals_of(log)
    assert out.number("load.read_calls") == 50
    assert out.number("load.read_size_bytes") == 40_000
    assert out.number("load.read_bytes") == 3_000_000  # mapped files are read without a call
    assert out.number("load.read_amplification") == 3
    assert out.number("load.read_mb_s") == pytest.approx(3_000_000 / 12 / 1000)
    assert out.number("load.sample_ms") == pytest.approx(20 / 32)


@pytest.mark.parametrize(("benchmark", "share"), [(True, 1.0), (False, 0.0), (None, None)])
def test_shapes_that_are_always_new(tmp_path: Path, benchmark: bool | None, share: float | None) -> None:
    log = log_of(
        tmp_path, Run(steps=40), process=lambda line: line | {"flags": {"cudnn_benchmark": benchmark}},
        loader=lambda line: line | {"bytes": 32 * (1000 + line["t0"] % 9973 + line["batch"] * 10_000)}
        if line["event"] == "batch" else line,
    )  # fmt: skip
    out = signals_of(log)
    assert out.number("load.batch_shapes") == 40
    assert out.number("load.new_shape_share") == 1.0
    assert out.number("cudnn.retuned_share") == share


def test_one_shape_and_a_smaller_last_batch(tmp_path: Path) -> None:
    def loader(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] != "batch":
            return line
        samples = 7 if line["batch"] == 19 else 32
        return line | {
            "samples": samples,
            "bytes": 3000 * samples,
            "dtypes": {"float32": 2400 * samples, "int64": 600 * samples},
        }

    out = signals_of(log_of(tmp_path, Run(steps=40, per_epoch=20), loader=loader))
    assert out.number("load.batch_shapes") == 1
    assert out.number("load.new_shape_share") == 0
    assert out.number("load.wide_share") == pytest.approx(0.8)
    assert out.number("load.double_share") == 0


@pytest.mark.parametrize(("waiting_ms", "seconds"), [(4000.0, 60.0), (20.0, 0.0)])
def test_threads_that_crowd_the_cores_before_training(
    tmp_path: Path, waiting_ms: float, seconds: float
) -> None:
    """Four processes of 16 threads on 8 cores, for a minute before the first step."""
    log = log_of(tmp_path, Run(steps=40))
    path = tmp_path / "host.jsonl"
    with path.open("w") as file:
        for second in range(-61, 60):
            processes = [
                {"pid": pid, "role": "other", "num_threads": 16, "rss": 1, "run_delay_ms": waiting_ms} for pid in range(1, 5)
            ]  # fmt: skip
            line = {
                "ts": START + second * 10**9,
                "cpu_count": 8,
                "system_cpu_percent": 90,
                "processes": processes,
            }
            file.write(json.dumps(line) + "\n")
    out = Signals()
    recorded_signals(log, read_host_log(path), out)
    assert out.number("startup.crowded_s") == pytest.approx(seconds, abs=2)
    assert out.number("startup.threads_per_core") == (8.0 if seconds else None)
