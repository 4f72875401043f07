"""Results of the fixture traces, as committed: after a change that is meant to alter them, ``make golden``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.data.golden import FIXTURES, GOLDEN, ROOT, TRACES, golden_of
from tests.tracekit import Trace
from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.trace.reader import read_trace

SHARED = ROOT / ".." / "shared"
SCHEMA = json.loads((ROOT / "fixtures" / "result.schema.json").read_text("utf-8"))
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """Paths at which two JSON values differ; floats may differ in the last digits, by platform."""
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            d for key in {*left, *right} for d in differences(left.get(key), right.get(key), f"{where}.{key}")
        ]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [
            d
            for i, (a, b) in enumerate(zip(left, right, strict=True))
            for d in differences(a, b, f"{where}[{i}]")
        ]
    if isinstance(left, float) and isinstance(right, int | float):
        return (
            [] if math.isclose(left, right, rel_tol=1e-5, abs_tol=2e-6) else [f"{where}: {left} != {right}"]
        )
    return [] if left == right else [f"{where}: {left!r} != {right!r}"]


@pytest.mark.parametrize("name", FIXTURES)
def test_golden(name: str) -> None:
    expected = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    made = json.loads(json.dumps(golden_of(TRACES / f"{name}.json.gz")))
    found = differences(expected, made)
    assert not found, "\n".join(["if this is meant: make golden", *sorted(found)[:20]])


@pytest.mark.parametrize("name", FIXTURES)
def test_the_committed_trace_is_what_the_builder_makes(name: str, tmp_path: Path) -> None:
    made: Trace = FIXTURES[name]()
    committed, fresh = read_trace(TRACES / f"{name}.json.gz"), made.tables(tmp_path)
    assert (committed.host.start == fresh.host.start).all()
    assert (committed.device.end == fresh.device.end).all()
    assert committed.names == fresh.names


VERDICTS = {
    "loader_main_process": ("cpu", "load.main_process"), "loader_stalls": ("cpu", None), "gpu_healthy": ("gpu", "healthy"),
    "launch_bound": ("cpu", "host.launch_bound"), "item_each_step": ("cpu", "host.sync"),
    "pageable_copies": ("h2d_copy", "transfer.pageable"), "memory_bound": ("memory_bandwidth", "memory.bandwidth"),
    "all_reduce": ("communication", "communication.bandwidth"), "cpu_only": ("cpu", "host.cpu_compute"),
    "old_dialect": ("cpu", "load.main_process"), "no_markers": ("gpu", "healthy"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXTURES)
def test_the_golden_verdicts_are_the_right_ones(name: str) -> None:
    """``make golden`` cannot make a wrong verdict right."""
    verdict = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))["verdict"]
    bottleneck, cause = VERDICTS[name]
    assert verdict["bottleneck"] == bottleneck
    assert cause is None or verdict["cause"] == cause


def runs() -> list[Path]:
    """Every fixture and every handed trace."""
    found = sorted(p for p in TRACES.iterdir() if p.is_dir() or p.name.endswith(".json.gz"))
    real, simulated = SHARED / "traces" / "real", SHARED / "traces" / "simulated"
    return [*found, *(sorted([*real.iterdir(), *simulated.iterdir()]) if real.is_dir() else [])]


@pytest.mark.parametrize("path", runs(), ids=lambda p: p.name)
def test_results_are_valid_against_the_schema(path: Path) -> None:
    result = json.loads(json.dumps(analyse(discover([path])).to_json(), allow_nan=False))
    errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in CHECK.iter_errors(result)]
    assert not errors
    assert sum(result["phases"].values()) == pytest.approx(1, abs=1e-5)
    assert {row["bottleneck"] for row in result["ruled_out"]}.isdisjoint({result["verdict"]["bottleneck"]})


def test_our_schema_is_the_contract() -> None:
    contract = SHARED / "result.schema.json"
    if not contract.is_file():
        pytest.skip("the contract is not on this machine")
    assert json.loads(contract.read_text("utf-8")) == SCHEMA
