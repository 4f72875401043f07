"""Bundles whose logs hold what no recorder writes: the report says what it can, and nothing absurd."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tracekit import comparable
from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.model import Result

RUN = Path(__file__).resolve().parents[2] / "fixtures" / "runs" / "too_few_workers"
Change = Callable[[dict[str, Any]], None]


def damaged(folder: Path, name: str, change: Change, *, only: int | None = None) -> Result:
    """The fixture with every line of its ``name`` files changed, or only that one."""
    shutil.copytree(RUN, folder / "run")
    paths = list((folder / "run").rglob(name))
    assert paths
    for path in paths:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for number, line in enumerate(lines):
            if only is None or number == only:
                change(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return analyse(discover([folder / "run"]))


def put(**values: Any) -> Change:
    """Sets fields that the line has."""
    return lambda line: line.update({key: value for key, value in values.items() if key in line})


HUGE, WIDE = 10**400, 99999999999999999999


@pytest.mark.parametrize(
    ("name", "change", "only"),
    [
        ("worker-*.jsonl", put(t0=0, t1=0), None),
        ("worker-*.jsonl", put(t0=None, t1=None), None),
        ("worker-*.jsonl", put(cpu_ms=1e308, collate_ms=1e308), None),
        ("worker-*.jsonl", put(batch=WIDE), 5),
        ("worker-*.jsonl", put(cpu_ms=HUGE, bytes=HUGE, rss=HUGE), 5),
        ("loader.jsonl", put(dataset_len=0), None),
        ("loader.jsonl", put(dataset_len=-5), None),
        ("loader.jsonl", put(batch_size="x"), None),
        ("loader.jsonl", put(batch_size=1e308), None),
        ("loader.jsonl", put(num_workers=1_000_000), None),
        ("loader.jsonl", put(num_workers=HUGE), None),
        ("loader.jsonl", put(prefetch_factor=10**9), None),
        ("loader.jsonl", put(epoch=[]), 5),
        ("loader.jsonl", put(loader=[]), 5),
        ("loader.jsonl", put(loader="x"), 0),
        ("loader.jsonl", put(bytes="x"), None),
        ("loader.jsonl", put(bytes=1e308), None),
        ("windows.jsonl", put(baseline_ms=[None, 8.0]), None),
        ("windows.jsonl", put(baseline_ms=["x"]), None),
        ("windows.jsonl", put(baseline_ms=[1e308, -5, 0]), None),
        ("steps.jsonl", put(epoch=WIDE), 5),
        ("steps.jsonl", put(wait_ms=-5000), 30),
        ("steps.jsonl", put(wait_ms=5000), 30),
        ("steps.jsonl", put(wait_ms=1e308), None),
        ("steps.jsonl", put(samples=HUGE), 5),
        ("steps.jsonl", lambda line: line.update(t1=line["t0"]), None),
        ("steps.jsonl", lambda line: line.update(t0=line["t1"], t1=line["t0"]), None),
        ("steps.jsonl", lambda line: line.update(t1=line["t0"] - 3600 * 10**9), 30),
        ("steps.jsonl", lambda line: line.update(t1=line["t0"] + 365 * 86400 * 10**9), 30),
        ("process.jsonl", put(cpu={"count": HUGE}), None),
    ],
)
def test_damage_is_unknown_and_never_a_traceback(
    name: str, change: Change, only: int | None, tmp_path: Path
) -> None:
    result = damaged(tmp_path, name, change, only=only)
    text = json.dumps(comparable(result))
    assert "NaN" not in text
    assert "Infinity" not in text
    for word in (" inf ", "inf s", "nan"):
        assert word not in result.verdict.headline
    mean = result.steps.mean_ms
    assert mean is None or 0 < mean < 1000
    assert all(value is None or 0 <= value <= 1 for value in result.phases.values())


def test_one_line_of_damage_does_not_change_the_verdict(tmp_path: Path) -> None:
    whole = analyse(discover([RUN])).verdict
    for number, (name, change) in enumerate(
        [
            ("steps.jsonl", put(wait_ms=-5000)),
            ("steps.jsonl", put(epoch=WIDE)),
            ("loader.jsonl", put(epoch=[])),
        ]
    ):
        found = damaged(tmp_path / str(number), name, change, only=30).verdict
        assert (found.bottleneck, found.cause) == (whole.bottleneck, whole.cause)


def test_a_host_log_of_garbage_leaves_the_rest(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "host.jsonl").write_text("[]\nnull\n\x00\x01", "utf-8")
    result = analyse(discover([tmp_path / "run"]))
    assert result.verdict.bottleneck == "cpu"
    assert any("host.jsonl" in note.message for note in result.quality)


def test_a_second_window_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "rank0" / "window-1.pt.trace.json.gz").write_bytes(b"no archive")
    result = analyse(discover([tmp_path / "run"]))
    whole = analyse(discover([RUN])).verdict
    assert (result.verdict.bottleneck, result.verdict.cause) == (whole.bottleneck, whole.cause)
    assert any("window-1" in note.message for note in result.quality)
