"""Loader evidence for every kind of DataLoader, joined between the job and its workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.record.jobs import PYTHON, SCRIPTS, Recorded, record, torch_version
from tracelens.bundle import RankFiles

pytest.importorskip("torch")

KINDS = ["spawn", "forkserver", "persistent", "batch_sampler", "unordered", "stream", "stream0", "unbatched", "subclass",
         "getitems"]  # fmt: skip
if torch_version() < (2, 6):  # in_order came with 2.6
    KINDS.remove("unordered")
BATCHES = {"batch_sampler": 8, "unbatched": 24, "unordered": 6}
WORKERS = {
    "spawn": 2,
    "forkserver": 1,
    "persistent": 2,
    "batch_sampler": 1,
    "unordered": 2,
    "stream": 2,
    "getitems": 1,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("loaders")
    return record(folder, PYTHON, str(SCRIPTS / "loaders.py"), *KINDS, timeout=240)


@pytest.fixture(scope="module")
def rank(recorded: Recorded) -> RankFiles:
    assert recorded.code == 0, recorded.stderr
    (only,) = recorded.bundle.ranks
    return only


def lines(rank: RankFiles, event: str, kind: str) -> list[dict[str, Any]]:
    source = rank.workers if event in ("fetch", "worker") else rank.loader
    return [line for line in source if line["event"] == event and line["loader"] == KINDS.index(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_is_seen(kind: str, rank: RankFiles) -> None:
    count = BATCHES.get(kind, 6)
    batches = lines(rank, "batch", kind)
    assert [line["epoch"] for line in batches] == [0] * count + [1] * count
    assert len({(line["epoch"], line["batch"]) for line in batches}) == 2 * count
    fetches = {(line["epoch"], line["batch"]): line for line in lines(rank, "fetch", kind)}
    workers = WORKERS.get(kind, 0)
    if not workers:
        assert not fetches
        assert all(line["fetch_ms"] > 0 for line in batches)
        return
    for line in batches:
        fetch = fetches[line["epoch"], line["batch"]]
        assert fetch["t0"] < fetch["t1"] <= line["t1"]
        assert fetch["bytes"] == line["bytes"]
        assert fetch["collate_ms"] > 0
        assert (fetch.get("run_delay_ms") or 0) >= 0
    started = lines(rank, "worker", kind)
    assert len(started) == (workers if kind == "persistent" else 2 * workers)
    assert {line["worker"] for line in started} == set(range(workers))
    assert all(0 < line["start_ms"] < 120_000 for line in started)


def test_what_a_loader_is(rank: RankFiles) -> None:
    described = {line["loader"]: line for line in rank.loader if line["event"] == "loader"}
    by_kind = {kind: described[index] for index, kind in enumerate(KINDS)}
    assert by_kind["spawn"]["multiprocessing_context"] == "spawn"
    assert by_kind["forkserver"]["multiprocessing_context"] == "forkserver"
    assert by_kind["persistent"]["persistent_workers"] is True
    assert by_kind["batch_sampler"]["batch_sampler"] == "Pages"
    assert by_kind["batch_sampler"]["collate_fn"] == "collate"
    if "unordered" in KINDS:
        assert by_kind["unordered"]["in_order"] is False
    assert (by_kind["stream"]["dataset_kind"], by_kind["stream"]["shards"]) == ("iterable", True)
    assert by_kind["stream"]["dataset_len"] is None
    assert by_kind["unbatched"]["batch_size"] is None
    assert (by_kind["subclass"]["class"], by_kind["subclass"]["sampler"]) == ("Custom", "RandomSampler")


def test_samples_and_bytes(rank: RankFiles) -> None:
    assert {line["samples"] for line in lines(rank, "batch", "batch_sampler")} == {3}
    assert {line["bytes"] for line in lines(rank, "batch", "batch_sampler")} == {3 * 16}
    assert {line["samples"] for line in lines(rank, "batch", "spawn")} == {4}
    assert {line["bytes"] for line in lines(rank, "batch", "stream0")} == {4 * 16}


def test_spawned_workers_are_no_ranks_of_their_own(recorded: Recorded) -> None:
    bundle = recorded.bundle
    assert len(bundle.events_of("agent")) == 1
    assert len(bundle.events_of("torch")) == 1
    assert "Traceback" not in recorded.stderr


def test_steps_are_counted_by_the_loader_where_nothing_else_steps(rank: RankFiles) -> None:
    assert {step["source"] for step in rank.steps} == {"loader"}
    total = 2 * sum(BATCHES.get(kind, 6) for kind in KINDS)
    assert total - 3 <= len(rank.steps) <= total


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_workers_do_not_inherit_a_running_profiler(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        """
import resource, sys, torch
from torch.utils.data import DataLoader, Dataset

class Busy(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        for _ in range(3000):
            x = torch.ones(4) + 1
        return torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler = torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) if sys.argv[1] == "own" else None
for _ in range(14):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
if profiler:
    profiler.start()
sizes = [int(batch.max()) for batch in DataLoader(Busy(), batch_size=2, num_workers=1)]
print(sizes[-1] - sizes[1])
for _ in range(3):
    optimizer.step()
if profiler:
    profiler.stop()
"""
    )
    for whose in ("ours", "own"):
        recorded = record(tmp_path, PYTHON, str(script), whose, out=str(tmp_path / whose))
        assert recorded.code == 0, recorded.stderr
        growth_kb = int(recorded.stdout.split()[-1])
        assert growth_kb < 20_000, whose
        (rank,) = recorded.bundle.ranks
        if whose == "ours":
            (window,) = rank.windows
            assert window["first_step"] == 12
        else:
            assert "torch.profiler itself" in str(recorded.bundle.events_of("warning"))
