"""A real training that collects garbage, hunts for NaN and samples slowly in each step is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.record.jobs import PYTHON, SCRIPTS, record
from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.model import Finding

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    recorded = record(tmp_path_factory.mktemp("run"), PYTHON, str(SCRIPTS / "leftovers.py"))
    assert recorded.code == 0, recorded.stderr
    return {one.rule: one for one in analyse(discover([Path(recorded.path)])).findings}


@pytest.mark.parametrize("rule", ["host.gc", "host.anomaly_mode", "load.sampler"])
def test_it_is_found(rule: str, findings: dict[str, Finding]) -> None:
    assert rule in findings


def test_the_numbers_are_those_of_the_job(findings: dict[str, Finding]) -> None:
    sampler = {one.signal: one.value for one in findings["load.sampler"].evidence}
    assert 8.0 <= float(sampler["load.sampler_ms"]) < 30.0  # four indices of 2 ms a step
    checks = {one.signal: one.value for one in findings["host.anomaly_mode"].evidence}
    assert float(checks["autograd.nan_checks"]) >= 12  # two outputs a layer at least
    pauses = findings["host.gc"].saving_ms_per_step
    assert pauses is not None
    assert pauses > 1.0  # a hundred thousand lists are visited in each
