"""Batches and passes of loader.jsonl: what they hold, and bundles that were written before they held it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.bundlekit import MS, START, Run
from tracelens.bundle import RankFiles
from tracelens.ingest.batches import other_starts_ms, read_batches, read_passes
from tracelens.ingest.runlog import read_run_log


def batch(number: int, **more: Any) -> dict[str, Any]:
    return {
        "event": "batch",
        "loader": 0,
        "epoch": 0,
        "batch": number,
        "t0": START,
        "t1": START + MS,
        "samples": 4,
        "bytes": 400,
        **more,
    }


def test_wide_and_narrow_bytes() -> None:
    found = read_batches([batch(0, dtypes={"float32": 300, "float64": 60, "int64": 40}), batch(1)], 0)
    assert found.wide_bytes[0] == 360
    assert found.double_bytes[0] == 60
    assert np.isnan(found.wide_bytes[1])  # not written is unknown
    assert np.isnan(found.sampler_ms).all()


def test_a_pass_begins_where_the_sampler_was_first_asked() -> None:
    lines = [
        {
            "event": "iter",
            "loader": 0,
            "epoch": 0,
            "start_ms": 30.0,
            "sampler_ms": 12.0,
            "sampler_bytes": 4096,
        },
        batch(0, sampler_ms=0.1),
        {"event": "iter_end", "loader": 0, "epoch": 0, "batches": 98},
        {"event": "iter", "loader": 0, "epoch": 1, "start_ms": 30.0},
        batch(0, epoch=1, sampler_ms=11.0, sampler_bytes=0),
        {"event": "iter", "loader": 1, "epoch": 0, "sampler_ms": 99.0, "sampler_bytes": 1},
    ]
    found = read_passes(lines, 0)
    assert found.sampler_ms.tolist() == [12.0, 11.0]
    assert found.sampler_bytes.tolist() == [4096, 0]
    assert found.batches[0] == 98
    assert np.isnan(found.batches[1])


def test_only_other_loaders_whose_workers_are_not_kept_start_again() -> None:
    def started(loader: int, workers: int = 2) -> dict[str, Any]:
        return {"event": "iter", "loader": loader, "epoch": 0, "start_ms": 50.0, "workers": workers}

    def first(loader: int) -> dict[str, Any]:
        return {"event": "batch", "loader": loader, "epoch": 0, "t0": START, "t1": START + 8 * MS}

    lines: list[dict[str, Any]] = [
        {"event": "loader", "loader": 2, "persistent_workers": True},
        started(0), started(1), first(1), first(1), started(2), first(2), started(3, workers=0),
    ]  # fmt: skip
    assert other_starts_ms(lines, 0) == 58.0
    assert other_starts_ms([started(0), first(0)], 0) is None


def test_a_bundle_from_before_is_still_read(tmp_path: Path) -> None:
    log = read_run_log(RankFiles(0, Run(steps=12).write(tmp_path / "run") / "rank0"))
    assert np.isnan(log.steps.gc_ms).all()
    assert log.steps.gc_ms.size == 12
    assert np.isnan(log.fetches.syscr).all()
    assert not log.passes.batches.size
    assert log.other_starts_ms is None
    assert "dataset_module" not in log.settings


def test_collections_are_columns(tmp_path: Path) -> None:
    path = Run(steps=12).write(tmp_path / "run") / "rank0"
    steps = [json.loads(line) | {"gc_ms": 0.5} for line in (path / "steps.jsonl").read_text().splitlines()]
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    assert read_run_log(RankFiles(0, path)).steps.gc_ms.tolist() == [0.5] * 12
