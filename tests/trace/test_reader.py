"""Files as exporters, file systems and dying jobs leave them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tracekit import GEMM, PID, POINTWISE, Loop, Trace, write_text
from tracelens.errors import InputError
from tracelens.trace import reader
from tracelens.trace.reader import read_trace
from tracelens.trace.tables import Device, Host, Pin, TraceTables


def small() -> Trace:
    """One operator, its launch and kernel, a copy, a step."""
    trace = Trace()
    trace.step(1, 10, 200)
    trace.op("aten::mm", 20, 60)
    trace.launch(30, GEMM, 70.5, 120.25)
    trace.call("cudaMemcpyAsync", 130, 150, correlation=99)
    trace.copy(140, 160, 4096, 99)
    return trace


def rows(tables: TraceTables) -> list[tuple[Any, ...]]:
    """Every event, in a form that can be compared."""
    host, device = tables.host, tables.device
    found: list[tuple[Any, ...]] = []
    for table, columns in (
        (host, ("kind", "start", "end", "corr", "ext")),
        (device, ("kind", "start", "end", "device", "stream", "corr", "bytes", "pin")),
    ):
        for i in range(len(table)):
            found.append((tables.names[table.name[i]], *(int(getattr(table, c)[i]) for c in columns)))  # noqa: PERF401
    return sorted(found + [("thread", *tables.threads[t]) for t in host.thread])


def test_columns(tmp_path: Path) -> None:
    tables = small().tables(tmp_path)
    host, device = tables.host, tables.device
    assert host.kind.tolist() == [Host.ANNOTATION, Host.OPERATOR, Host.RUNTIME, Host.RUNTIME]
    assert [tables.names[n] for n in host.name] == [
        "ProfilerStep#1",
        "aten::mm",
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
    ]
    assert tables.threads == (("100", "100"),)
    assert device.kind.tolist() == [Device.KERNEL, Device.H2D]
    assert device.start.tolist() == [70_500, 140_000]
    assert device.end.tolist() == [120_250, 160_000]
    assert device.launch.tolist() == [2, 3]
    assert device.bytes.tolist() == [-1, 4096]
    assert device.pin.tolist() == [Pin.UNKNOWN, Pin.PAGEABLE]
    assert (device.blocks[0], device.block_threads[0]) == (640, 256)
    assert tables.report.events == 6
    assert tables.device_properties(0)["numSms"] == 80


@pytest.mark.parametrize("layout", ["pretty", "compact", "list", "tail"])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_layouts_hold_the_same(tmp_path: Path, layout: str, name: str) -> None:
    expected = rows(small().tables(tmp_path / "expected"))
    tables = read_trace(small().write(tmp_path / name, layout))
    assert rows(tables) == expected
    assert bool(tables.metadata) == (layout != "list")
    assert not tables.report.truncated


def test_gzip_is_recognised_by_content_not_by_suffix(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps(small().document()).encode())
    (tmp_path / "trace.json").write_bytes(data)
    assert len(read_trace(tmp_path / "trace.json").device) == 2
    (tmp_path / "plain.json.gz").write_text(json.dumps(small().document()))
    assert len(read_trace(tmp_path / "plain.json.gz").device) == 2


def test_gzip_of_several_members_and_padding(tmp_path: Path) -> None:
    text = json.dumps(small().document()).encode()
    pieces = [text[:50], text[50:400], b"", text[400:]]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"".join(gzip.compress(piece) for piece in pieces) + b"\x00" * 512)
    tables = read_trace(path)
    assert rows(tables) == rows(small().tables(tmp_path))
    assert not tables.report.truncated


def test_gzip_cut_off_keeps_what_came_before(tmp_path: Path) -> None:
    whole = Loop(steps=30).trace()
    data = gzip.compress(json.dumps(whole.document()).encode())
    (tmp_path / "trace.json.gz").write_bytes(data[: len(data) // 2])
    tables = read_trace(tmp_path / "trace.json.gz")
    assert tables.report.truncated
    assert 0.2 * len(whole.events) < tables.report.events < len(whole.events)


def test_gzip_damaged_in_the_middle_says_so(tmp_path: Path) -> None:
    whole = Loop(steps=200).trace()
    data = bytearray(gzip.compress(json.dumps(whole.document()).encode()))
    data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    (tmp_path / "trace.json.gz").write_bytes(bytes(data))
    tables = read_trace(tmp_path / "trace.json.gz")
    assert tables.report.truncated
    assert 0 < tables.report.events < len(whole.events)


@pytest.mark.parametrize("layout", ["pretty", "compact"])
def test_json_cut_off_anywhere_keeps_the_complete_events(tmp_path: Path, layout: str) -> None:
    text = small().write(tmp_path / "whole.json", layout).read_text("utf-8")
    expected = rows(read_trace(tmp_path / "whole.json"))
    first = text.index('"aten::mm"') + 80  # from here on there is an event to keep
    counts = []
    for cut in (*range(first, len(text) - 1, 7), text.rindex("]")):
        path = write_text(tmp_path / "cut.json", text[:cut])
        tables = read_trace(path)
        assert tables.report.truncated, cut
        assert set(rows(tables)) <= set(expected)
        counts.append(tables.report.events)
    assert counts == sorted(counts)
    assert counts[-1] == 6


def text_with(trace: Trace, old: str, new: str | bytes) -> bytes:
    data = json.dumps(trace.document(), indent=1).encode()
    assert data.count(old.encode()) >= 1
    return data.replace(old.encode(), new.encode() if isinstance(new, str) else new)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("unescaped quotes", '{"a": 1}.py(3): f'),
        ("unescaped quotes", 'm["k"].py(1): <lambda>'),
        ("lone backslashes", "C:\\users\\new\\x.py(1): run"),
        ("control character", "gen\x01erated\x0b.py(2): g"),
        ("newline", "two\nlines.py(1): h"),
        ("invalid UTF-8", b"gen\xff\xfe\xc3.py(3): k"),
    ],
)
def test_broken_names_lose_at_most_their_own_text(tmp_path: Path, name: str, written: str | bytes) -> None:
    trace = small()
    trace.add("python_function", "PLACE", 21, 59, PID, PID, **{"Python id": 4})
    trace.op("aten::after", 170, 180)
    path = write_text(tmp_path / "trace.json", text_with(trace, "PLACE", written))
    tables = read_trace(path)
    assert tables.report.skipped == 0, name
    assert tables.report.events == 8
    assert len(tables.host) == 6
    broken = tables.host.take(tables.host.kind == Host.PYTHON)
    assert (broken.start.tolist(), broken.end.tolist()) == ([21_000], [59_000])
    assert "aten::after" in tables.names


def test_an_event_beyond_repair_is_skipped_and_counted(tmp_path: Path) -> None:
    trace = small()
    trace.op("PLACE", 21, 59)
    path = write_text(tmp_path / "trace.json", text_with(trace, '"PLACE"', "][ ,, }{"))
    report = read_trace(path).report
    assert (report.skipped, report.events) == (1, 6)


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"])
def test_bare_words_for_numbers(tmp_path: Path, value: str) -> None:
    trace = small()
    trace.kernel(GEMM, 170, 180, 7, **{"warps per SM": "PLACE", "blocks per SM": "PLACE"})
    path = write_text(tmp_path / "trace.json", text_with(trace, '"PLACE"', value))
    tables = read_trace(path)
    assert tables.report.skipped == 0
    assert len(tables.device) == 3
    assert tables.device.start[-1] == 170_000


def test_comma_after_the_last_event(tmp_path: Path) -> None:
    text = json.dumps(small().document(), indent=1)
    path = write_text(tmp_path / "trace.json", text[: text.rindex("]")].rstrip() + ",\n]}")
    tables = read_trace(path)
    assert tables.report.events == 6
    assert not tables.report.truncated


def test_a_list_that_its_writer_never_closed(tmp_path: Path) -> None:
    """Chrome's own rule: the closing bracket of the list form is optional."""
    text = json.dumps(small().events)
    tables = read_trace(write_text(tmp_path / "trace.json", text[:-1]))
    assert tables.report.events == 6


def test_byte_order_mark(tmp_path: Path) -> None:
    path = write_text(tmp_path / "trace.json", b"\xef\xbb\xbf" + json.dumps(small().document()).encode())
    assert read_trace(path).report.events == 6


def test_metadata_on_both_sides_of_the_events(tmp_path: Path) -> None:
    trace = small()
    before = {"schemaVersion": 1, "a": [1, {"b": 2}]}
    after = {"traceName": "x[0]].json", "baseTimeNanoseconds": 5, "z": {"y": [1]}}
    text = json.dumps({**before, "traceEvents": trace.events, **after})
    tables = read_trace(write_text(tmp_path / "trace.json", text))
    assert tables.metadata == before | after
    assert tables.has_base
    assert tables.base_ns == 5


def test_the_key_of_the_array_inside_metadata_is_not_the_array(tmp_path: Path) -> None:
    trace = small()
    document = {"note": 'see "traceEvents": [ below', "traceEvents": trace.events}
    tables = read_trace(write_text(tmp_path / "trace.json", json.dumps(document)))
    assert tables.report.events == 6


def test_huge_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PIECE", 4096)
    trace = small()
    blob = {"modules": ["x" * 200] * 2000}
    for position in ("before", "after"):
        document = (
            {**blob, "traceEvents": trace.events}
            if position == "before"
            else {"traceEvents": trace.events, **blob}
        )
        tables = read_trace(write_text(tmp_path / f"{position}.json", json.dumps(document)))
        assert tables.report.events == 6
        assert tables.metadata == blob


@pytest.mark.parametrize(
    ("ts", "dur", "start", "end"),
    [
        (10, 5, 10_000, 15_000),
        (10.5, 0.001, 10_500, 10_501),
        ("10.25", "3", 10_250, 13_250),
        ("1718000000000000.123", 2, 1_718_000_000_000_000_123, 1_718_000_000_000_002_123),
        (1_718_000_000_000_000, 1, 1_718_000_000_000_000_000, 1_718_000_000_000_001_000),
        (12, None, 12_000, 12_000),
        (12, -4, 12_000, 12_000),
    ],
)
def test_times(tmp_path: Path, ts: Any, dur: Any, start: int, end: int) -> None:
    trace = Trace()
    event = trace.op("aten::mm", 0, 0)
    event["ts"], event["dur"] = ts, dur
    tables = trace.tables(tmp_path)
    assert (tables.host.start.tolist(), tables.host.end.tolist()) == ([start], [end])


def test_microseconds_since_the_epoch_keep_their_nanoseconds(tmp_path: Path) -> None:
    """Floats above 2^53 / 1000 lose digits unless they are read as text."""
    text = (
        '[{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1621401187223005.123,"dur":2.001}]'
    )
    tables = read_trace(write_text(tmp_path / "trace.json", text))
    assert tables.host.start.tolist() == [1_621_401_187_223_005_123]
    assert tables.host.end.tolist() == [1_621_401_187_223_007_124]


def test_events_without_arguments_or_fields(tmp_path: Path) -> None:
    trace = small()
    trace.events += [
        {"ph": "X", "cat": "kernel", "name": GEMM, "pid": 0, "tid": 7, "ts": 300, "dur": 10},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": PID, "tid": PID, "ts": 310},
        {"ph": "X", "name": "no category", "ts": 1, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "no time"},
        {"ph": "i", "name": "instant", "s": "g", "ts": 3},
        {"name": "no phase"},
        {"ph": "X", "cat": "cpu_op", "name": None, "pid": PID, "tid": PID, "ts": 320, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": 17, "pid": PID, "tid": PID, "ts": 330, "dur": 1},
    ]
    tables = trace.tables(tmp_path)
    assert len(tables.device) == 3
    assert tables.device.launch[-1] == -1
    assert len(tables.host) == 4 + 3


def test_arguments_of_unexpected_types_do_not_cost_the_event(tmp_path: Path) -> None:
    trace = small()
    trace.kernel(GEMM, 300, 310, 5, grid={"x": 1}, **{"warps per SM": {}})
    trace.op("aten::mul", 300, 310, **{"Input Dims": "[[1]]", "External id": {"a": 1}})
    tables = trace.tables(tmp_path)
    assert len(tables.device) == 3
    assert tables.report.skipped == 0
    assert "aten::mul" in tables.names


@pytest.mark.parametrize("layout", ["pretty", "compact"])
def test_memory_events(tmp_path: Path, layout: str) -> None:
    trace = small()
    args = {
        "Total Reserved": 500,
        "Total Allocated": 300,
        "Bytes": -100,
        "Addr": 1,
        "Device Id": 0,
        "Device Type": 1,
    }
    event = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": 50.5,
    }
    on_host = {**args, "Device Type": 0, "Device Id": -1, "Bytes": 8}
    trace.events += [{**event, "args": args}, {**event, "ts": 20, "args": on_host}]
    memory = trace.tables(tmp_path, layout).memory
    assert memory.time.tolist() == [20_000, 50_500]
    assert memory.device.tolist() == [-1, 0]
    assert memory.bytes.tolist() == [8, -100]
    assert memory.allocated.tolist() == [300, 300]


def test_rocm_wording(tmp_path: Path) -> None:
    trace = Trace(metadata={"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X", "numSms": 304}]})
    trace.add(
        "cuda_runtime",
        "hipMemcpyWithStream",
        10,
        30,
        PID,
        PID,
        correlation=4,
        kind="HostToDevice",
        size="65536",
    )
    trace.add(
        "gpu_memcpy", "CopyHostToDevice", 15, 25, 2, 0, device=2, stream=0, correlation=4, kind="HostToDevice"
    )
    trace.add(
        "hip_runtime", "hipExtModuleLaunchKernel", 40, 45, PID, PID, correlation=5, **{"External id": 9}
    )
    trace.add("kernel", "Cijk_Ailk_Bljk_BBS_BH_MT128x128", 50, 60, 2, 0, device=2, stream=0, correlation=5)
    trace.add("gpu_memcpy", "CopyDeviceToDevice", 70, 75, 2, 0, device=2, stream=0, correlation=6)
    trace.add("gpu_memcpy", "Memcpy", 80, 85, 2, 0, device=2, stream=0, correlation=7, kind="DeviceToHost")
    tables = trace.tables(tmp_path)
    assert tables.device.kind.tolist() == [Device.H2D, Device.KERNEL, Device.D2D, Device.D2H]
    assert tables.device.bytes.tolist() == [65536, -1, -1, -1]
    calls = [tables.names[tables.host.name[row]] for row in tables.device.launch[:2]]
    assert calls == ["hipMemcpyWithStream", "hipExtModuleLaunchKernel"]


def test_one_graph_launch_owns_many_kernels(tmp_path: Path) -> None:
    trace = Trace()
    trace.call("cudaGraphLaunch", 10, 20, correlation=3)
    for start in range(30, 80, 10):
        trace.kernel(GEMM, start, start + 9, 3)
    device = trace.tables(tmp_path).device
    assert device.launch.tolist() == [0] * 5


def test_correlations_are_never_joined_through_order(tmp_path: Path) -> None:
    trace = Trace()
    trace.call("cudaLaunchKernel", 10, 12, correlation=2)
    trace.call("cudaLaunchKernel", 14, 16, correlation=1)
    trace.kernel("first", 20, 21, 1)
    trace.kernel("second", 22, 23, 2)
    trace.kernel("launched before the capture", 24, 25, 77)
    trace.kernel("no correlation", 26, 27, 0)
    tables = trace.tables(tmp_path)
    assert tables.device.launch.tolist() == [1, 0, -1, -1]


def test_kernels_without_a_time_are_dropped_and_counted(tmp_path: Path) -> None:
    trace = Loop(steps=4).trace()
    kernels = [e for e in trace.events if e["cat"] == "kernel"]
    for event in kernels[:3]:
        event["ts"], event["dur"] = 0, 0
    kernels[3]["ts"] += 3_600_000_000  # an incomplete record, an hour away
    tables = trace.tables(tmp_path)
    assert tables.report.zero_time == 4
    assert tables.extent[0] == 1_000_000
    assert tables.extent[1] < 100_000_000


def test_two_clocks_are_laid_over_each_other(tmp_path: Path) -> None:
    trace = Loop(steps=6).trace()
    for event in trace.events:
        event["ts"] += 1_000_000
    straight = trace.tables(tmp_path / "straight")
    for event in trace.events:
        if event["cat"] in ("kernel", "gpu_memcpy"):
            event["ts"] -= 5000
    shifted = trace.tables(tmp_path / "shifted")
    assert straight.report.clock_shift_ns == 0
    assert 4_900_000 < shifted.report.clock_shift_ns < 5_100_000
    lag = shifted.device.start - shifted.host.start[shifted.device.launch]
    assert np.percentile(lag, 1) >= 0


def test_thread_ids_as_numbers_and_texts_are_one_thread(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::a", 1, 2, tid=7)
    trace.op("aten::b", 3, 4, tid="7")
    trace.op("aten::c", 5, 6, tid=7.0)
    trace.op("aten::d", 7, 8, tid=8)
    tables = trace.tables(tmp_path)
    assert tables.host.thread.tolist() == [0, 0, 0, 1]
    assert len(tables.threads) == 2


def test_shapes_are_interned(tmp_path: Path) -> None:
    trace = Trace()
    for start in (1, 3):
        trace.op(
            "aten::mm", start, start + 1, **{"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"]}
        )
    trace.op("aten::mm", 5, 6)
    tables = trace.tables(tmp_path)
    assert tables.host.shape.tolist() == [0, 0, -1]
    assert tables.shapes[0]["dims"] == [[4, 8], [8, 2]]
    assert tables.shapes[0]["types"] == ["float", "float"]


# runtime calls under a thread id of their own (kineto before it stored the system's): the same thread


def test_calls_under_another_thread_id_join_their_operators(tmp_path: Path) -> None:
    trace = Loop(steps=4).trace()
    straight = trace.tables(tmp_path / "straight")
    for event in trace.events:
        if event["cat"] == "cuda_runtime":
            event["tid"] = -1431655766
    tables = trace.tables(tmp_path / "merged")
    assert len(tables.threads) == 1
    assert rows(tables) == rows(straight)


def test_calls_join_by_external_id_even_outside_operators(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(30):
        at, own = 100 * number, {"External id": number + 1}
        trace.op("aten::mm", at, at + 40, **own)
        trace.call("cudaLaunchKernel", at + 50, at + 60, tid=-5, correlation=number + 1, **own)
        trace.kernel(GEMM, at + 70, at + 80, number + 1)
    tables = trace.tables(tmp_path)
    assert len(set(tables.host.thread.tolist())) == 1


def test_a_thread_with_operators_of_its_own_stays_itself(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(30):
        trace.op("aten::mm", 100 * number, 100 * number + 90)
        trace.op("aten::copy_", 100 * number + 10, 100 * number + 80, tid=9)
        trace.call("cudaMemcpyAsync", 100 * number + 20, 100 * number + 40, tid=9, correlation=number + 1)
    tables = trace.tables(tmp_path)
    calls = tables.host.take(tables.host.kind == Host.RUNTIME)
    assert {tables.threads[t] for t in calls.thread} == {(str(PID), "9")}


def test_a_thread_that_launches_nothing_stays_itself(tmp_path: Path) -> None:
    """The pin thread and a communicator's watchdog query events, now and then inside somebody's operator."""
    trace = Loop(steps=4).trace()
    for event in [e for e in trace.events if e["name"] == "aten::addmm"]:
        trace.call("cudaEventQuery", event["ts"] + 1, event["ts"] + 2, tid=-3)
    tables = trace.tables(tmp_path)
    assert len(tables.threads) == 2


def test_two_threads_that_call_at_once_are_two(tmp_path: Path) -> None:
    """A second launching thread without operators (a C++ extension) that runs while the first one does."""
    trace = Loop(steps=4).trace()
    for number, event in enumerate([e for e in trace.events if e["name"] == "cudaLaunchKernel"]):
        trace.call("cudaLaunchKernel", event["ts"] + 1, event["ts"] + 2, tid=-3, correlation=9000 + number)
        trace.kernel(POINTWISE, event["ts"] + 3, event["ts"] + 4, 9000 + number, stream=9)
    tables = trace.tables(tmp_path)
    assert len(tables.threads) == 2


# any events, any layout, any piece size

numbers = st.one_of(st.integers(1, 10**9), st.floats(1, 1e9, allow_nan=False).map(lambda v: round(v, 3)))
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda s: not s.startswith("ProfilerStep")
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    trace = Trace(metadata={"schemaVersion": 1, "deviceProperties": [], "traceName": draw(names)})
    for _ in range(draw(st.integers(1, 12))):
        start, length = draw(numbers), draw(st.integers(0, 10**6))
        match draw(st.integers(0, 3)):
            case 0:
                trace.op("aten::" + draw(names), start, start + length, draw(st.sampled_from([1, 2, "x"])))
            case 1:
                trace.annotation(draw(names), start, start + length)
            case 2:
                trace.call("cudaLaunchKernel", start, start + length, correlation=draw(st.integers(1, 9)))
            case _:
                trace.kernel(
                    draw(names),
                    start,
                    start + length,
                    draw(st.integers(1, 9)),
                    stream=draw(st.integers(0, 9)),
                )
    return trace


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.sampled_from(["pretty", "compact", "list", "tail"]), st.integers(1, 400))
def test_any_events_survive_any_layout_and_piece_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: Trace, layout: str, piece: int
) -> None:
    whole = read_trace(trace.write(tmp_path / "whole.json", "pretty"))
    assert whole.report.events == len(trace.events)
    assert len(whole.host) + len(whole.device) + whole.report.zero_time == len(trace.events)
    # kernels a minute away from every host event are dropped as incomplete, in any layout alike
    path = trace.write(tmp_path / "trace.json.gz", layout)
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_PIECE", piece)
        patch.setattr("tracelens.trace.source.CHUNK", max(piece // 3, 4))
        pieces = read_trace(path)
    assert rows(pieces) == rows(whole)
    assert pieces.report.truncated is False
    if layout != "list":
        assert pieces.metadata == trace.metadata


# what is not a trace


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.json", b"", "is empty"),
        ("blank.json", b" \n\t ", "white space"),
        ("page.json", b"<!DOCTYPE html><html></html>", "HTML"),
        ("run.nsys-rep", b"\x01\x02nsys", "Nsight report"),
        ("run.sqlite", b"SQLite format 3\x00....", "SQLite"),
        ("a.json", b"\x00\x01\x02\x03" * 40, "binary"),
        ("a.json", b"hello, world", "not JSON"),
        ("a.json", b'{"traceEvents": []}', "without a single event"),
        ("a.json", b"[]", "without a single event"),
        ("a.json", b'{"a": 1}', "without traceEvents"),
        ("a.json.gz", gzip.compress(b"", mtime=0), "holds nothing"),
        ("a.json.gz", b"\x1f\x8b\x08\x00rubbish rubbish", "damaged gzip"),
        (
            "a.json",
            b'[{"ph": "M", "name": "process_name", "pid": 1}]',
            "no operator, runtime or kernel event",
        ),
        ("a.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS"),
        ("a.zip", b"PK\x03\x04....", "zip"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_trace(tmp_path / name)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
