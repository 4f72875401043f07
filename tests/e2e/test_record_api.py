"""``with tracelens.record()`` in the script itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.record.jobs import PYTHON, environment, record
from tracelens.bundle import Bundle

pytest.importorskip("torch")

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import tracelens

def train(steps, rec=None, fail=None):
    loader = DataLoader(TensorDataset(torch.randn(steps * 2, 4)), batch_size=2)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x,) in enumerate(loader):
        if number == fail:
            raise KeyError("broken")
        model(x).sum().backward()
        optimizer.step()
        if rec is not None:
            rec.step()
    return loader.num_workers

if __name__ == "__main__":
    train(3)
    before = dict(os.environ)
    tracelens.step()
    with tracelens.record(out=sys.argv[1] + "-a", set=["num_workers=1"]) as rec:
        print(train(46, rec))
    print(train(5))
    try:
        with tracelens.record(sys.argv[1] + "-b", trace=False):
            train(9, fail=7)
    except KeyError:
        pass
    after = dict(os.environ)
    print({name for name in {*before, *after} if before.get(name) != after.get(name)}, rec.bundle.name)
"""


def test_a_block_of_the_script_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    done = subprocess.run(
        [PYTHON, "job.py", str(tmp_path / "run")],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1", "0", "set() run-a"]
    first = Bundle.open(tmp_path / "run-a")
    (rank,) = first.ranks
    assert len(rank.steps) == 46
    assert rank.steps[-1]["source"] == "explicit"
    assert [window["kind"] for window in rank.windows if window["complete"]] == ["lean", "shapes", "stacks"]
    assert first.finished
    assert first.manifest["command"][1] == "job.py"
    second = Bundle.open(tmp_path / "run-b")
    assert len(second.ranks[0].steps) == 7
    assert second.ranks[0].windows == []
    assert [event["type"] for event in second.events_of("exception")] == ["KeyError"]
    assert second.exit is not None
    assert second.exit["code"] == 1


def test_inside_a_recorded_job_the_block_joins_it(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    recorded = record(tmp_path, PYTHON, "job.py", str(tmp_path / "run"))
    assert recorded.code == 0, recorded.stderr
    assert not (tmp_path / "run-a").exists()
    assert recorded.stdout.splitlines()[0] == "0"
    assert len(recorded.bundle.ranks[0].steps) == 3 + 46


def test_every_rank_of_torchrun_writes_into_one_bundle(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import os, time, torch, tracelens\n"
        "with tracelens.record(trace=False) as rec:\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(5):\n"
        "        model(torch.ones(1, 2)).sum().backward()\n"
        "        optimizer.step()\n"
        "    time.sleep(1)\n"
    )
    torchrun = str(Path(sys.executable).parent / "torchrun")
    done = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node", "2", "job.py"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "tracelens-runs").iterdir()
    assert [(rank.rank, len(rank.steps)) for rank in Bundle.open(folder).ranks] == [(0, 5), (1, 5)]
