"""Lightning and Hugging Face, the real packages on CPU: recorded from outside, and by their callbacks."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
from pathlib import Path

import pytest

from tests.record.jobs import PYTHON, SCRIPTS, environment, record
from tracelens.bundle import Bundle

pytest.importorskip("torch")

# outside and from the callback every framework is recorded; both at once, one of them is enough to show
BOTH = [pytest.param("lightning", marks=pytest.mark.zoo), "transformers"]
CASES = {"lightning": ("lightning_fit.py", 60), "transformers": ("hf_train.py", 60)}


def _need(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def check(bundle: Bundle, name: str, steps: int, source: str) -> None:
    (rank,) = bundle.ranks
    assert len(rank.steps) == steps
    assert {step["source"] for step in rank.steps[1:]} == {source}
    # accelerate fetches one batch ahead: what a step fetched differs from what it used at the ends of an epoch
    samples = [step["samples"] for step in rank.steps]
    assert statistics.median(samples) == 4
    assert sum(samples) == 4 * steps
    assert [window["kind"] for window in rank.windows if window["complete"]] == ["lean", "shapes", "stacks"]
    assert rank.process[0]["frameworks"][name]
    assert bundle.finished


@pytest.mark.parametrize("name", CASES)
def test_recorded_from_outside(name: str, tmp_path: Path) -> None:
    _need(name)
    script, steps = CASES[name]
    recorded = record(
        tmp_path, PYTHON, str(SCRIPTS / script), str(tmp_path / "output"), env={"HF_HOME": str(tmp_path)}
    )
    assert recorded.code == 0, recorded.stderr
    assert recorded.stdout.splitlines()[-1] == f"steps {steps}"
    check(recorded.bundle, name, steps, "optimizer")


@pytest.mark.parametrize("name", CASES)
def test_recorded_by_the_callback(name: str, tmp_path: Path) -> None:
    _need(name)
    script, steps = CASES[name]
    done = subprocess.run(
        [PYTHON, str(SCRIPTS / script), str(tmp_path / "output"), "callback", str(tmp_path / "bundle")],
        env=environment({"HF_HOME": str(tmp_path)}), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"steps {steps}"
    check(Bundle.open(tmp_path / "bundle"), name, steps, "explicit")


@pytest.mark.parametrize("name", BOTH)
def test_the_callback_inside_a_recorded_job_only_marks_steps(name: str, tmp_path: Path) -> None:
    _need(name)
    script, steps = CASES[name]
    recorded = record(
        tmp_path, PYTHON, str(SCRIPTS / script), str(tmp_path / "output"), "callback", str(tmp_path / "other"),
        env={"HF_HOME": str(tmp_path)},
    )  # fmt: skip
    assert recorded.code == 0, recorded.stderr
    check(recorded.bundle, name, steps, "explicit")
    assert not (tmp_path / "other").exists()
