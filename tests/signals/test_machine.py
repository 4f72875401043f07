"""How much the loader's workers work, from a host log's samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tracekit import Loop
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.tables import HostLog
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.machine import machine_signals
from tracelens.signals.signal import Signals


def log_of(folder: Path, workers: list[list[float]]) -> HostLog:
    """A sample every second; each with the CPU percent of its workers."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"ts": 10**18 + i * 10**9, "processes": [
            {"pid": 2 + w, "name": "python", "role": "worker", "cpu_percent": use} for w, use in enumerate(each)
        ]}
        for i, each in enumerate(workers)
    ]  # fmt: skip
    (folder / "host.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_host_log(folder / "host.jsonl")


def test_workers_that_fill_their_queues_are_not_what_they_usually_are(tmp_path: Path) -> None:
    """Not started, filling at 80 %, then 30 % of the time at work."""
    log = log_of(tmp_path, [[0.0, 0.0], [78.0, 82.0], *[[29.0, 31.0]] * 5])
    out = Signals()
    machine_signals(RankAnalysis(Loop().trace().tables(tmp_path), host_log=log, whole_host_log=log), out)
    assert out.number("machine.worker_cpu_usual") == pytest.approx(0.30)
    assert out.number("machine.worker_cpu_most") == pytest.approx(0.80)


@pytest.mark.parametrize("workers", [[[]], [[0.0, 0.5]], None])
def test_without_workers_at_work_nothing_is_said(tmp_path: Path, workers: list[list[float]] | None) -> None:
    log = log_of(tmp_path, workers) if workers is not None else None
    out = Signals()
    machine_signals(RankAnalysis(Loop().trace().tables(tmp_path), whole_host_log=log), out)
    assert out.value("machine.worker_cpu_usual") is None
    assert out.value("machine.worker_cpu_most") is None
