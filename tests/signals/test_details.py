"""The rows behind the report's tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracekit import Trace
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.details import kernel_rows


def test_operators_of_a_job_without_gpu_count_their_own_time_alone(tmp_path: Path) -> None:
    trace = Trace(metadata={"schemaVersion": 1})
    for number in range(6):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        trace.op("aten::linear", at + 100, at + 900)
        trace.op("aten::addmm", at + 200, at + 800)
        trace.op("aten::copy_", at + 300, at + 400)
        trace.op("aten::copy_", at + 500, at + 600)
    rows = {row.name: row for row in kernel_rows(RankAnalysis(trace.tables(tmp_path)))}
    assert {name: round(row.ms_per_step, 6) for name, row in rows.items()} == {
        "aten::linear": 0.2,
        "aten::addmm": 0.4,
        "aten::copy_": 0.2,
    }
    assert sum(row.share for row in rows.values()) == pytest.approx(0.8)
    assert {row.family for row in rows.values()} == {"operator"}
