"""The scenario users name: no workers, a CPU-heavy transform, library threads that oversubscribe the cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.record.jobs import PYTHON, SCRIPTS, record
from tracelens.bundle import read_lines

pytest.importorskip("torch")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the Linux host timeline")
def test_the_host_timeline_shows_the_fight_for_cores(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    threads = 4 * cores
    recorded = record(
        tmp_path,
        PYTHON,
        str(SCRIPTS / "oversubscribed.py"),
        "150",
        str(threads),
        env={"OMP_NUM_THREADS": str(threads)},
    )
    assert recorded.code == 0, recorded.stderr
    bundle = recorded.bundle
    (rank,) = bundle.ranks
    waits = sum(step["wait_ms"] for step in rank.steps[1:])
    total = (rank.steps[-1]["t1"] - rank.steps[1]["t0"]) / 1e6
    assert waits > 0.7 * total  # loading is what the training waits for
    assert bundle.host_log is not None
    pid = rank.process[0]["pid"]
    begin, end = rank.steps[0]["t0"], rank.steps[-1]["t1"]
    mine: list[dict[str, Any]] = [
        process for sample in read_lines(bundle.host_log) if begin < sample["ts"] < end
        for process in sample["processes"] if process["pid"] == pid
    ]  # fmt: skip
    assert mine, "the host timeline has no sample of the training process"
    assert max(process["num_threads"] for process in mine) >= threads
    used = [process["cpu_percent"] for process in mine if process.get("cpu_percent") is not None]
    delays = sum(process.get("run_delay_ms") or 0 for process in mine)
    # Several hundred percent where the cores are free; where others use them, the threads queue for them instead.
    assert max(used) > 100 or delays > 0.5 * total, (max(used), delays, total)
    assert delays > 0
    (loader,) = [line for line in rank.loader if line["event"] == "loader"]
    assert loader["num_workers"] == 0
