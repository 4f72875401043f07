"""``--set``: applied while a loader is built, proven, and refused before the first batch where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.record.jobs import PYTHON, TRAIN, Recorded, notes, record

pytest.importorskip("torch")


def settings(recorded: Recorded, key: str, loader: int | None) -> dict[str, Any]:
    (found,) = [
        event for event in recorded.bundle.events_of("set") if event["key"] == key and event["loader"] == loader
        and "effective" not in event
    ]  # fmt: skip
    return found


def test_settings_reach_every_loader_and_are_proven(tmp_path: Path) -> None:
    recorded = record(
        tmp_path, PYTHON, TRAIN, "--steps", "6", "--validate",
        set=["num_workers=2", "prefetch_factor=3", "pin_memory=true", "1.num_workers=1", "batch_size=4",
             "num_threads=1", "persistent_workers=true", "multiprocessing_context=fork", "Numbers.drop_last=true"],
        env={"OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert recorded.code == 0, recorded.stderr
    event = settings(recorded, "num_workers", 0)
    assert (event["before"], event["after"], event["applied"], event["dataset"]) == (0, 2, True, "Numbers")
    assert settings(recorded, "prefetch_factor", 0)["after"] == 3
    assert settings(recorded, "drop_last", 1)["after"] is True
    assert settings(recorded, "multiprocessing_context", 0)["after"] == "fork"
    threads = settings(recorded, "num_threads", None)
    assert (threads["before"], threads["after"], threads["applied"]) == (2, 1, True)
    (rank,) = recorded.bundle.ranks
    described = {line["loader"]: line for line in rank.loader if line["event"] == "loader"}
    assert (described[0]["num_workers"], described[1]["num_workers"]) == (2, 1)
    assert described[0]["batch_size"] == 4
    workers = {line["loader"]: line["workers"] for line in rank.loader if line["event"] == "iter"}
    assert workers == {0: 2, 1: 1}
    assert {step["samples"] for step in rank.steps} == {4}
    pinned = [event for event in recorded.bundle.events_of("set") if event.get("effective") is False]
    assert {event["key"] for event in pinned} == {"pin_memory"}
    assert recorded.stderr.count("no accelerator in this process: pin_memory has no effect here") == 1
    said = notes(recorded.path)
    assert "--set num_workers=2 took effect on loader 0 (Numbers): 0 -> 2." in said
    assert "--set num_threads=1 took effect: 2 -> 1." in said


@pytest.mark.parametrize(
    ("texts", "more", "message"),
    [
        (["prefetch_factor=4"], (), "torch rejects --set prefetch_factor=4"),
        (["num_workers=2"], ("--dataset", "blind"), "shows no sharding by worker"),
        (["Blind.num_workers=2"], ("--dataset", "blind"), "shows no sharding by worker"),
        (["persistent_workers=true"], (), "torch rejects --set persistent_workers=True"),
    ],
)
def test_what_cannot_be_applied_stops_the_job(
    texts: list[str], more: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    recorded = record(tmp_path, PYTHON, TRAIN, "--steps", "6", "--digest", *more, set=texts)
    assert recorded.code == 2
    assert recorded.stdout == ""
    (line,) = [line for line in recorded.stderr.splitlines() if message in line]
    assert line.endswith("the job is stopped before its first batch")
    assert "Traceback" not in recorded.stderr
    (event,) = recorded.bundle.events_of("rejected")
    assert message in event["message"]
    assert not any(rank.steps for rank in recorded.bundle.ranks)


def test_a_loader_that_cannot_take_it_is_passed_over_where_another_can(tmp_path: Path) -> None:
    recorded = record(
        tmp_path, PYTHON, TRAIN, "--steps", "6", "--dataset", "blind", "--validate", set=["num_workers=1"]
    )
    assert recorded.code == 0
    assert settings(recorded, "num_workers", 0)["applied"] is False
    assert settings(recorded, "num_workers", 1)["applied"] is True
    assert "--set num_workers=1 is not applied to loader 0 (Blind)" in recorded.stderr


def test_a_sharded_stream_gets_its_workers(tmp_path: Path) -> None:
    recorded = record(
        tmp_path, PYTHON, TRAIN, "--steps", "6", "--dataset", "sharded", set=["Stream.num_workers=2"]
    )
    assert recorded.code == 0, recorded.stderr
    (rank,) = recorded.bundle.ranks
    (line,) = [line for line in rank.loader if line["event"] == "loader"]
    assert (line["num_workers"], line["shards"], line["dataset_kind"]) == (2, True, "iterable")


def test_a_setting_that_no_loader_took_is_said(tmp_path: Path) -> None:
    recorded = record(tmp_path, PYTHON, TRAIN, "--steps", "4", set=["ImageFolder.num_workers=2"])
    assert recorded.code == 0
    assert (
        "--set ImageFolder.num_workers=2 was not applied: no DataLoader that it names was built"
        in recorded.stderr
    )
    assert any("ImageFolder" in event["message"] for event in recorded.bundle.events_of("warning"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("non_blocking=true", "batch.to(device, non_blocking=True)"),
        ("amp=1", "torch.autocast"),
        ("num_worker=3", "can be set: batch_size"),
        ("num_workers=-1", "whole number from 0"),
        ("pin_memory=maybe", "true or false"),
        ("num_workers", "[LOADER.]KEY=VALUE"),
        ("Numbers.num_threads=2", "the process's"),
        ("multiprocessing_context=thread", "fork, forkserver, spawn"),
    ],
)
def test_a_setting_that_makes_no_sense_is_bad_usage(text: str, message: str, tmp_path: Path) -> None:
    recorded = record(tmp_path, PYTHON, TRAIN, set=[text])
    assert recorded.code == 2
    assert message in recorded.stderr
    assert len(recorded.stderr.splitlines()) == 1
    assert not recorded.path.exists()


def test_threads_stay_whatever_the_script_sets_later(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "torch.set_num_threads(2)\n"
        "loader = DataLoader(TensorDataset(torch.rand(32, 4)), batch_size=4, num_workers=1)\n"
        "for _ in range(2):\n"
        "    for (x,) in loader:\n"
        "        x.sum()\n"
        "print('threads', torch.get_num_threads())\n",
        "utf-8",
    )
    recorded = record(tmp_path, PYTHON, str(script), set=["num_threads=1"], env={"OMP_NUM_THREADS": "2"})
    assert recorded.code == 0, recorded.stderr
    assert "threads 1" in recorded.stdout
    event = settings(recorded, "num_threads", None)
    assert (event["after"], event["applied"]) == (1, True)
