from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tracelens.agent.probe import _steady, worker_counts
from tracelens.bundle import Bundle
from tracelens.ingest.points import FILE, read_loader_points
from tracelens.tune.loader_only import loader_only
from tracelens.tune.loop import CommandError, TuneOptions
from tracelens.tune.report import points_text

SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.rand(4), 0

torch.manual_seed(0)
loader = DataLoader(Slow(), batch_size=4, shuffle=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for x, y in loader:
    seen.append(round(x.sum().item(), 5))
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print("sums", seen[:8], torch.rand(1).item())
"""


@pytest.mark.parametrize(("cores", "counts"), [(1, [0, 1]), (2, [0, 1, 2]), (8, [0, 2, 8]), (96, [0, 4, 16])])
def test_about_three_worker_counts(cores: int, counts: list[int]) -> None:
    assert worker_counts(cores) == counts


def test_the_start_of_the_workers_is_left_out() -> None:
    # two workers: both need a second to start, then 100 ms a batch each
    arrivals = [1.1, 1.1, 1.2, 1.2, 1.3, 1.3]
    batches, seconds = _steady(0.0, arrivals, 2)
    assert batches == 4
    assert seconds == pytest.approx(0.2)
    assert _steady(0.0, arrivals[:2], 2) == (0, 0.0)
    assert _steady(0.0, [0.1, 0.2], 0) == (2, 0.2)


def test_points_are_read_back_and_damaged_ones_are_none(tmp_path: Path) -> None:
    assert read_loader_points(tmp_path) is None
    (tmp_path / FILE).write_text("{")
    assert read_loader_points(tmp_path) is None
    points = [
        {"num_workers": 2, "ms_per_batch": 5.0, "batches": 9, "samples_per_batch": 8.0},
        {"num_workers": 0, "ms_per_batch": 9.0},
        {"num_workers": 1, "ms_per_batch": -1.0},
    ]
    skipped = [{"num_workers": 8, "reason": "no time left"}]
    data = {"schema": "tracelens.loader-points/1", "num_workers": 0, "points": points, "skipped": skipped}
    (tmp_path / FILE).write_text(json.dumps(data))
    found = read_loader_points(tmp_path)
    assert found is not None
    assert found.by_workers == {0: 9.0, 2: 5.0}
    assert found.points[1].samples_per_s == pytest.approx(1600.0)
    text = points_text(found)
    assert "0 (today)" in text
    assert "8 workers were not tried: no time left" in text


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tracelens.tune.loader_only.SECONDS", 4.0)
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    return script


def test_the_loader_is_measured_and_the_job_sees_the_same_data(short: Path) -> None:
    import subprocess

    command = (sys.executable, str(short))
    bundle, points = loader_only(TuneOptions(command), lambda line: None)
    one, two = points.by_workers[0], points.by_workers[max(points.by_workers)]
    assert one == pytest.approx(40.0, rel=0.5)  # four samples of 10 ms, and what a busy machine adds
    assert two < one
    assert Bundle.open(bundle).ranks[0].steps  # the training went on
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert plain.strip() in bundle.with_name("run0.log").read_text()
    again, _ = loader_only(TuneOptions(command, resume=bundle.parent), lambda line: pytest.fail(line))
    assert again == bundle


def test_a_job_without_a_loader_is_exit_4(short: Path) -> None:
    short.write_text("import torch; torch.rand(1)")
    with pytest.raises(CommandError, match="no DataLoader") as caught:
        loader_only(TuneOptions((sys.executable, str(short))), lambda line: None)
    assert caught.value.exit_code == 4
