"""Numbers that no trace can hold, and nesting that no decoder follows: the event is lost and counted, the file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tracekit import PID
from tracelens.errors import InputError
from tracelens.trace.dialects import step_number
from tracelens.trace.reader import read_trace
from tracelens.trace.tables import TraceTables

HOST: dict[str, Any] = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": PID,
    "tid": PID,
    "ts": 10,
    "dur": 5,
}
KERNEL: dict[str, Any] = {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 12, "dur": 3, "args": {"correlation": 1},
}  # fmt: skip


def read(tmp_path: Path, *events: dict[str, Any], **keys: Any) -> TraceTables:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**keys, "traceEvents": [HOST, KERNEL, *events]}))
    return read_trace(path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("value", [10**18, 10**300, 10**400, 1e18, 1e300, "1e300", "abc", -(10**18), 10**30])
@pytest.mark.parametrize("event", [HOST, KERNEL], ids=["host", "device"])
def test_no_time(tmp_path: Path, event: dict[str, Any], key: str, value: Any) -> None:
    tables = read(tmp_path, {**event, key: value})
    assert (len(tables.host), len(tables.device)) == (1, 1)
    assert tables.report.skipped == 1
    assert tables.host.start.tolist() == [10_000]


def test_no_time_of_a_memory_event(tmp_path: Path) -> None:
    memory = {"ph": "i", "name": "[memory]", "args": {"Device Type": 1, "Device Id": 0, "Bytes": 8}}
    tables = read(tmp_path, {**memory, "ts": 10**30}, {**memory, "ts": 11})
    assert len(tables.memory.time) == 1
    assert tables.report.skipped == 1


@pytest.mark.parametrize(
    "args",
    [
        {"correlation": 10**30}, {"External id": -(10**30)}, {"device": 10**12}, {"stream": 10**30}, {"bytes": 10**30},
        {"grid": [10**10, 10**10, 10**10], "block": [1, 1, 1]},
    ],
    ids=lambda args: next(iter(args)),
)  # fmt: skip
def test_a_number_that_fits_no_column_is_unknown(tmp_path: Path, args: dict[str, Any]) -> None:
    tables = read(tmp_path, {**KERNEL, "ts": 20, "args": args})
    assert tables.device.start.tolist() == [12_000, 20_000]
    assert tables.device.corr.tolist() == [1, -1]
    assert tables.report.repaired == 1


@pytest.mark.parametrize("base", [10**40, -(10**40), 1e300])
def test_no_base_time(tmp_path: Path, base: float) -> None:
    tables = read(tmp_path, baseTimeNanoseconds=base)
    assert (tables.base_ns, tables.has_base) == (0, False)
    assert tables.report.notes


DEEP = "[" * 100_000


def test_nothing_but_brackets(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(DEEP + "]" * 100_000)
    with pytest.raises(InputError, match="without a single event"):
        read_trace(path)


def test_deep_nesting_in_an_event_or_beside(tmp_path: Path) -> None:
    path, deep = tmp_path / "t.json", DEEP + "]" * 100_000
    bad = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"args":{"deep":' + deep + "}}"
    path.write_text(f'{{"odd":{deep},"traceEvents":[{json.dumps(HOST)},{bad},{json.dumps(KERNEL)}]}}')
    tables = read_trace(path)
    assert (len(tables.host), len(tables.device)) == (1, 1)
    assert tables.report.skipped == 1
    assert tables.report.notes


def test_a_step_number_of_5000_digits_is_no_step() -> None:
    assert step_number("ProfilerStep#" + "1" * 5000) is None
    assert step_number("ProfilerStep#12") == 12
