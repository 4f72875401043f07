from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.ingest import GpuLog, align, read_gpu_log, read_host_log
from tracelens.ingest.nvidia_smi import parse_query_csv

SIMULATED = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces" / "simulated"
NOON = 1_796_083_200_000_000_000 + 12 * 3600 * 10**9  # 2026-12-01 12:00 UTC
SECOND = 10**9


def log_of(seconds: int, step: int = 1) -> GpuLog:
    rows = [
        f"2026/12/01 {12 + s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.000, {s % 100} %"
        for s in range(0, seconds, step)
    ]
    return parse_query_csv("timestamp, utilization.gpu [%]\n" + "\n".join(rows), "gpu.csv")


@settings(max_examples=40, deadline=None)
@given(zone=st.integers(-12 * 4, 14 * 4), start=st.integers(0, 400))
def test_the_zone_is_found_from_the_overlap(zone: int, start: int) -> None:
    offset = zone * 900 * SECOND
    window = (NOON - offset + start * SECOND, NOON - offset + (start + 100) * SECOND)
    placed = align(log_of(500), *window)
    assert placed.offset_ns == offset
    assert not placed.ambiguous
    assert placed.log is not None
    assert window[0] - SECOND <= placed.log.t_ns.min()
    assert placed.log.t_ns.max() <= window[1] + SECOND
    assert len(placed.log) >= 100


def test_no_overlap_says_so() -> None:
    placed = align(log_of(60), NOON + 400 * 86400 * SECOND, NOON + 400 * 86400 * SECOND + SECOND)
    assert placed.log is None
    assert placed.overlap_ns == 0
    assert placed.message.startswith("no overlap")


def test_a_long_log_that_fits_in_several_zones_prefers_utc_and_says_so() -> None:
    placed = align(log_of(3 * 3600, step=10), NOON + 5400 * SECOND, NOON + 5460 * SECOND)
    assert placed.offset_ns == 0
    assert placed.ambiguous
    assert "other zones" in placed.message


def test_whole_hours_before_quarters() -> None:
    # the log covers 12:00-13:30 local; the window lies in it for UTC+1, +0:45, +1:15 ... but not for UTC
    placed = align(log_of(5400, step=10), NOON - 1800 * SECOND, NOON - 1700 * SECOND)
    assert placed.offset_ns == 3600 * SECOND
    assert "UTC+01:00" in placed.message


def test_a_window_between_two_samples_keeps_its_neighbours() -> None:
    placed = align(log_of(61, step=30), NOON + 35 * SECOND, NOON + 36 * SECOND)
    assert placed.offset_ns == 0
    assert placed.log is not None
    assert len(placed.log) == 2


@pytest.mark.skipif(not SIMULATED.is_dir(), reason="the handed traces are not here")
def test_handed_gpu_and_host_logs_share_a_clock() -> None:
    for folder in sorted(path.parent for path in SIMULATED.glob("**/gpu.csv")):
        host = read_host_log(folder / "host.jsonl")
        placed = align(read_gpu_log(folder / "gpu.csv"), int(host.t_ns[0]), int(host.t_ns[-1]))
        assert placed.offset_ns == 0, folder
        assert placed.log is not None
        back = align(host, int(host.t_ns[2]), int(host.t_ns[4]))
        assert back.log is not None
        assert len(back.log) >= 3
        assert set(back.log.processes.row.tolist()) == set(range(len(back.log)))
        assert (back.log.processes.t_ns == back.log.t_ns[back.log.processes.row]).all()
