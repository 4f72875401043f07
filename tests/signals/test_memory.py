"""Memory that fills up or grows, on the GPU and on the host, against runs whose course is known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.bundlekit import START, Run
from tracelens.bundle import RankFiles
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.runlog import RunLog, read_run_log
from tracelens.ingest.tables import HostLog
from tracelens.signals.memory import memory_signals, steady_rise
from tracelens.signals.signal import Signals

GB = 1e9


def run_log(folder: Path, peak: np.ndarray, reserved: np.ndarray | None = None) -> RunLog:
    log = read_run_log(RankFiles(0, Run(steps=peak.size).write(folder / "run") / "rank0"))
    steps = dataclasses.replace(log.steps, mem_peak=peak, mem_reserved=peak if reserved is None else reserved)
    return dataclasses.replace(log, steps=steps, process={"device": {"total_memory": 80 * GB}})


def host_log(folder: Path, rss: np.ndarray, available: np.ndarray, every_s: float = 2.0) -> HostLog:
    path = folder / "host.jsonl"
    with path.open("w") as out:
        for i, (used, free) in enumerate(zip(rss.tolist(), available.tolist(), strict=True)):
            out.write(json.dumps({
                "ts": START + int(i * every_s * 1e9), "mem_available": free, "mem_total": 64 * GB, "swap_used": 0,
                "dev_shm_used": 50e6, "dev_shm_total": 64e6,
                "processes": [{"pid": 1, "name": "python", "role": "main", "rank": 0, "rss": used}],
            }) + "\n")  # fmt: skip
    return read_host_log(path)


def test_a_leak_rises_evenly_and_a_warm_up_does_not() -> None:
    leak = np.linspace(1.0, 2.0, 100)
    assert steady_rise(leak) == pytest.approx(0.75, abs=0.02)
    assert steady_rise(np.minimum(leak, 1.5)) is None
    assert steady_rise(np.sqrt(np.linspace(0.0, 1.0, 100)) * 0 + 3) is None
    assert steady_rise(leak[:10]) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_of_varying_shapes_is_no_leak(seed: int) -> None:
    shapes = np.random.default_rng(seed).lognormal(size=400)
    assert steady_rise(np.maximum.accumulate(shapes)) is None


def test_gpu_memory_that_grows_is_extrapolated_to_its_end(tmp_path: Path) -> None:
    out = Signals()
    memory_signals(run_log(tmp_path, 10 * GB + 0.1 * GB * np.arange(100)), None, None, out)
    assert out.number("gpu.memory_growth_bytes") == pytest.approx(0.1 * GB, rel=0.03)
    assert out.number("gpu.memory_full_steps") == pytest.approx(601, rel=0.03)
    assert out.number("gpu.allocated_peak_share") == pytest.approx(19.9 / 80)
    assert out.number("machine.memory_full_s") is None


def test_blocks_that_no_tensor_fits_are_a_share_of_what_is_held(tmp_path: Path) -> None:
    out = Signals()
    log = run_log(tmp_path, np.full(40, 54 * GB), np.full(40, 72 * GB))
    memory_signals(log, None, None, out)
    assert out.number("gpu.reserved_share") == pytest.approx(0.9)
    assert out.number("gpu.cached_share") == pytest.approx(0.25)
    assert out.number("gpu.memory_full_steps") is None


def test_without_a_gpu_nothing_is_said_about_its_memory(tmp_path: Path) -> None:
    out = Signals()
    memory_signals(run_log(tmp_path, np.full(40, np.nan)), None, None, out)
    assert out.number("gpu.allocated_peak_share") is None
    assert out.number("gpu.reserved_share") is None


def test_the_host_fills_up_where_processes_and_available_memory_say_so(tmp_path: Path) -> None:
    grown = 1 * GB + 0.01 * GB * np.arange(100)
    out = Signals()
    memory_signals(None, host_log(tmp_path, grown, 50 * GB - grown), None, out)
    assert out.number("machine.memory_growth_bytes") == pytest.approx(0.3 * GB, rel=0.03)
    assert out.number("machine.memory_full_s") == pytest.approx(48.01 / 0.005, rel=0.03)


@pytest.mark.parametrize("available", [np.full(100, 40 * GB), 40 * GB + 0.01 * GB * np.arange(100)])
def test_mapped_files_are_no_growth(tmp_path: Path, available: np.ndarray) -> None:
    out = Signals()
    memory_signals(None, host_log(tmp_path, 1 * GB + 0.01 * GB * np.arange(100), available), None, out)
    assert out.number("machine.memory_full_s") is None
    assert out.number("machine.swap_growth_share") == 0


def test_growth_within_a_minute_is_start_up(tmp_path: Path) -> None:
    grown = 1 * GB + 0.01 * GB * np.arange(100)
    out = Signals()
    memory_signals(None, host_log(tmp_path, grown, 50 * GB - grown, every_s=0.2), None, out)
    assert out.number("machine.memory_full_s") is None


def test_room_in_shared_memory_is_counted_in_batches(tmp_path: Path) -> None:
    out = Signals()
    out.add("load.batch_bytes", 7e6, "bytes", "test")
    memory_signals(None, host_log(tmp_path, np.full(3, GB), np.full(3, GB)), None, out)
    assert out.number("load.shm_free_batches") == pytest.approx(2)
