"""A few of the zoo's jobs, recorded, diagnosed, repaired, recorded again. ``benchmarks/zoo_live.py`` runs them all.

These wait (sleep, disk, checkpoint) or differ by much, so that a busy machine does not decide the outcome.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.catalog import BY_NAME
from tests.zoo.harness import run


@pytest.mark.parametrize("name", ["sleepy_main", pytest.param("remote_storage", marks=pytest.mark.zoo)])
def test_waiting_for_samples_is_found_and_repaired_as_advised(name: str, tmp_path: Path) -> None:
    outcome = run(BY_NAME[name], tmp_path, steps=60)
    assert outcome.before.verdict.bottleneck == "cpu"
    assert outcome.right_cause, outcome.before.verdict
    assert outcome.advised, outcome.before.recommendations
    assert outcome.repair.measured is not None
    assert outcome.repair.measured > 1.2
    assert outcome.repair.prediction.speedup is None or outcome.repair.prediction.speedup > 1.1


@pytest.mark.zoo
def test_a_stall_for_checkpoints_is_found(tmp_path: Path) -> None:
    outcome = run(BY_NAME["checkpoint_stall"], tmp_path, steps=100)
    assert outcome.right_cause, outcome.before.verdict
    assert outcome.repair.measured is not None
    assert outcome.repair.measured > 1.1


@pytest.mark.zoo
def test_a_harmless_item_is_not_blamed(tmp_path: Path) -> None:
    outcome = run(BY_NAME["item_harmless"], tmp_path, steps=60)
    assert outcome.right_cause, outcome.before.verdict
    assert "host.sync" not in {finding.rule for finding in outcome.before.findings}
