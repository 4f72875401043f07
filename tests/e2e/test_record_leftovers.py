"""A real training that collects garbage, hunts for NaN and samples slowly in each step is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.record.jobs import PYTHON, SCRIPTS, record
from tracelens.diagnose.analyse import analyse
from tracelens.diagnose.judge import judge_ranks
from tracelens.diagnose.load import load_run
from tracelens.diagnose.rules import load_rules
from tracelens.ingest.discover import discover

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded = record(tmp_path_factory.mktemp("run"), PYTHON, str(SCRIPTS / "leftovers.py"))
    assert recorded.code == 0, recorded.stderr
    return Path(recorded.path)


def test_all_of_it_is_found(bundle: Path) -> None:
    outcomes = analyse(discover([bundle])).rules_checked
    assert {outcomes[rule] for rule in ("host.gc", "host.anomaly_mode", "load.sampler")} == {"fired"}


def test_the_numbers_are_those_of_the_job(bundle: Path) -> None:
    (rank,) = judge_ranks(load_run(discover([bundle])).ranks, load_rules())
    sampler, checks = rank.signals.number("load.sampler_ms"), rank.signals.number("autograd.nan_checks")
    assert sampler is not None
    assert sampler >= 20.0  # four indices of 5 ms a step
    assert checks is not None
    assert checks >= 12  # two outputs a layer at least
    pauses, worst = rank.signals.number("host.gc_ms"), rank.signals.number("host.gc_worst_ms")
    assert pauses is not None
    assert worst is not None
    assert 1.0 < pauses <= worst  # every object of the process is visited in each step
