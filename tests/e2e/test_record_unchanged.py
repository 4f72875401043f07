"""Recording changes nothing that is trained: data order, random numbers and losses are the same bit for bit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.record.jobs import PYTHON, TRAIN, environment, record

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("workers", "more"),
    [
        pytest.param(0, ("--dataset", "stream"), marks=pytest.mark.zoo),
        (0, ()),
        (1, ()),
        (3, ("--persistent", "--epochs", "2")),
    ],
)
def test_losses_are_the_same_bit_for_bit(workers: int, more: tuple[str, ...], tmp_path: Path) -> None:
    command = (PYTHON, TRAIN, "--steps", "48", "--workers", str(workers), "--digest", "--validate", *more)
    plain = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, cwd=tmp_path
    )
    recorded = record(tmp_path, *command)
    assert recorded.code == 0
    assert len(plain.stdout.split()) == 2
    assert recorded.stdout == plain.stdout
    (rank,) = recorded.bundle.ranks
    assert len(rank.steps) >= 48
    assert sum(window["complete"] for window in rank.windows) == 3
