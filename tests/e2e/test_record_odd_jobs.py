"""Jobs that do unusual things: skipped optimizer steps, restarts, their own profiler, threads, no optimizer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.record.jobs import PYTHON, TRAIN, Recorded, environment, lines_in, record, torch_version
from tracelens.bundle import Bundle
from tracelens.record.session import inject_dir

pytest.importorskip("torch")


def run(tmp_path: Path, code: str, **options: object) -> Recorded:
    (tmp_path / "job.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n" + code
    )
    recorded = record(tmp_path, PYTHON, "job.py", **options)  # type: ignore[arg-type]
    assert recorded.code == 0, recorded.stderr
    return recorded


@pytest.mark.skipif(torch_version() < (2, 3), reason="this torch has no GradScaler for the CPU")
def test_a_scaler_that_skips_the_optimizer_still_ends_the_step(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
count = 0
step = optimizer.step
for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(60, 4)), batch_size=2)):
    loss = model(x).sum() * (float("inf") if number % 3 == 0 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    )
    (rank,) = recorded.bundle.ranks
    assert len(rank.steps) == 30
    assert {step["samples"] for step in rank.steps} == {2}


def test_a_job_that_is_started_again_goes_on_counting(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{PYTHON} {TRAIN} --steps 46\n{PYTHON} {TRAIN} --steps 46\n")
    recorded = record(tmp_path, "bash", "run.sh")
    assert recorded.code == 0
    (rank,) = recorded.bundle.ranks
    assert [step["step"] for step in rank.steps] == list(range(92))
    assert len(rank.process) == 2
    assert [(window["window"], window["first_step"]) for window in rank.windows] == [
        (0, 12), (1, 32), (2, 42), (3, 58), (4, 78), (5, 88),
    ]  # fmt: skip
    assert len(rank.traces) == 6
    assert {line["pid"] for line in rank.loader if line["event"] == "loader"} == {
        line["pid"] for line in rank.process
    }


def test_two_jobs_at_once_do_not_mix(tmp_path: Path) -> None:
    job = f"{PYTHON} {TRAIN} --steps 20 --work 0.05 &\n"
    (tmp_path / "run.sh").write_text(job + job + "wait\n")
    recorded = record(tmp_path, "bash", "run.sh")
    assert [len(rank.steps) for rank in recorded.bundle.ranks] == [20, 20]
    assert "kept as rank 1" in str(recorded.bundle.events_of("warning"))


def test_a_profiler_of_the_jobs_own_has_precedence(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
import json
import subprocess
import sys
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def steps(count):
    for _ in range(count):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
steps(14)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
    steps(3)
theirs.export_chrome_trace("theirs.json")
steps(40)
""",
    )
    (rank,) = recorded.bundle.ranks
    assert len(rank.steps) == 57
    (window,) = rank.windows
    assert (window["complete"], window["reason"]) == (False, "the job started its own profiler")
    assert len(rank.traces) == 1
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    assert sum(event.get("name") == "Optimizer.step#SGD.step" for event in theirs["traceEvents"]) == 3
    assert "the job uses torch.profiler itself" in str(recorded.bundle.events_of("warning"))


def test_a_profiler_that_already_runs_is_left_alone(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autograd.profiler.profile() as theirs:
    for _ in range(20):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print(sum(event.name == "Optimizer.step#SGD.step" for event in theirs.function_events))
""",
    )
    assert recorded.stdout == "20\n"
    (rank,) = recorded.bundle.ranks
    assert rank.windows == []
    assert len(rank.steps) == 20


def test_inference_without_an_optimizer(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
model = torch.nn.Linear(4, 1)
with torch.inference_mode():
    for (x,) in DataLoader(TensorDataset(torch.randn(120, 4)), batch_size=2, num_workers=1):
        model(x)
""",
    )
    (rank,) = recorded.bundle.ranks
    assert {step["source"] for step in rank.steps} == {"loader"}
    assert len(rank.steps) == 60
    assert [window["kind"] for window in rank.windows if window["complete"]] == ["lean", "shapes", "stacks"]


def test_an_evaluation_before_training_does_not_use_up_the_windows(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    for (x,) in DataLoader(TensorDataset(torch.randn(30, 4)), batch_size=2):
        model(x)
for (x,) in DataLoader(TensorDataset(torch.randn(100, 4)), batch_size=2):
    model(x).sum().backward()
    optimizer.step()
""",
    )
    (rank,) = recorded.bundle.ranks
    sources = [step["source"] for step in rank.steps]
    assert sources == ["loader"] * 15 + ["optimizer"] * 50
    windows = [(window["kind"], window["first_step"], window["complete"]) for window in rank.windows]
    assert windows == [("lean", 12, False), ("lean", 27, True), ("shapes", 47, True), ("stacks", 57, True)]


def test_a_short_job_says_why_nothing_was_traced(tmp_path: Path) -> None:
    recorded = record(tmp_path, PYTHON, TRAIN, "--steps", "7")
    (event,) = recorded.bundle.events_of("warning")
    assert (
        event["message"]
        == "no step was traced: the job ended after 7 steps, the first window opens at step 12"
    )
    assert "7 steps of 1 rank, 0 traced windows" in recorded.stderr


def test_a_rank_on_another_machine_starts_its_own_sampler(tmp_path: Path) -> None:
    code = (
        "import socket; socket.gethostname = lambda: 'elsewhere'\n"
        "from tracelens.record import companion, launcher; companion.Sampler.start = lambda self, pid: None\n"
        "import sys; from pathlib import Path\n"
        "sys.exit(launcher.run(launcher.RecordOptions(tuple(sys.argv[1:]), out=Path('bundle'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, PYTHON, TRAIN, "--steps", "30", "--work", "0.1"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.host_log is not None
    assert lines_in(bundle.host_log) > 1


def test_a_bundle_that_this_machine_cannot_see_is_said(tmp_path: Path) -> None:
    env = environment({"PYTHONPATH": str(inject_dir()), "TRACELENS_BUNDLE": str(tmp_path / "not-here")})
    done = subprocess.run(
        [PYTHON, TRAIN, "--steps", "3", "--workers", "1"], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("cannot see the bundle") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_loader_inside_a_dataset_is_part_of_the_outer_one(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
class Nested(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.stack([x.sum() for (x,) in DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)])
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in zip(DataLoader(Nested(), batch_size=2, num_workers=1), DataLoader(Nested(), batch_size=2)):
    model(x).sum().backward()
    optimizer.step()
""",
    )
    (rank,) = recorded.bundle.ranks
    assert {line["loader"] for line in rank.loader} == {0, 1}
    assert sum(line["event"] == "batch" for line in rank.loader) == 24
    assert {step["samples"] for step in rank.steps} == {4}
    assert {line["loader"] for line in rank.workers} == {0}
    assert all(step["wait_ms"] <= (step["t1"] - step["t0"]) / 1e6 for step in rank.steps)


def test_training_in_a_thread(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
import threading
def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(100, 4)), batch_size=2, num_workers=1):
        model(x).sum().backward()
        optimizer.step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
""",
    )
    (rank,) = recorded.bundle.ranks
    assert len(rank.steps) == 50
    assert [window["kind"] for window in rank.windows if window["complete"]] == ["lean", "shapes", "stacks"]


def test_batches_are_not_pinned_down_by_us(tmp_path: Path) -> None:
    """A batch is freed as soon as the job drops it: we keep no reference."""
    recorded = run(
        tmp_path,
        """
import gc, weakref
gc.disable()
alive = []
for batch in DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=2):
    alive.append(weakref.ref(batch[0]))
    del batch
    print(sum(ref() is not None for ref in alive))
""",
    )
    assert set(recorded.stdout.split()) == {"0"}


def test_datasets_that_raise_and_exit_raise_and_exit_as_ever(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        raise IndexError("sample %d is broken" % index)
for workers in (0, 1):
    try:
        list(DataLoader(Broken(), batch_size=2, num_workers=workers))
    except IndexError as error:
        print(str(error).splitlines()[-1])
""",
    )
    assert recorded.stdout.splitlines() == ["sample 0 is broken", "IndexError: sample 0 is broken"]
    (rank,) = recorded.bundle.ranks
    errors = [line["error"] for line in rank.workers if line["event"] == "fetch"]
    assert errors  # one for certain; the second batch's may come after the job's end
    assert set(errors) == {"IndexError"}
    assert "raised IndexError" in str(recorded.bundle.events_of("warning"))
