"""Reading a run folder in whatever state it was left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.bundle import Bundle, append_line, is_bundle, read_lines, write_manifest
from tracelens.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_manifest(tmp_path, {"id": "run", "created_ns": 1})
    return tmp_path


def test_an_empty_bundle(folder: Path) -> None:
    assert is_bundle(folder)
    bundle = Bundle.open(folder)
    assert (bundle.id, bundle.ranks, bundle.events, bundle.exit, bundle.finished) == (
        "run",
        [],
        [],
        None,
        False,
    )
    assert (bundle.host_log, bundle.gpu_log, bundle.sampler_log) == (None, None, None)


def test_ranks_are_sorted_by_number(folder: Path) -> None:
    for number in (10, 2, 0):
        (folder / f"rank{number}").mkdir()
    (folder / "rankless").mkdir()
    (folder / "rank7").touch()
    assert [rank.rank for rank in Bundle.open(folder).ranks] == [0, 2, 10]


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"step":0}\n{"st\n[1]\n\n\xff\xfe\n{"step":1}\n{"step":')
    assert read_lines(path) == [{"step": 0}, {"step": 1}]


def test_windows_are_merged(folder: Path) -> None:
    rank = folder / "rank0"
    rank.mkdir()
    for line in (
        {"window": 0, "complete": False},
        {"window": 0, "complete": True, "file": "window-0.pt.trace.json.gz"},
        {"window": 0, "after_ms": [1.0]},
        {"window": 1, "complete": False},
    ):
        append_line(rank / "windows.jsonl", line)
    (rank / "window-0.pt.trace.json.gz").touch()
    (rank / "window-1.pt.trace.json.gz.partial").touch()
    (files,) = Bundle.open(folder).ranks
    assert files.windows == [
        {"window": 0, "complete": True, "file": "window-0.pt.trace.json.gz", "after_ms": [1.0]},
        {"window": 1, "complete": False},
    ]
    assert [path.name for path in files.traces] == ["window-0.pt.trace.json.gz"]


def test_process_lines_of_one_pid_are_merged(folder: Path) -> None:
    rank = folder / "rank0"
    rank.mkdir()
    for line in ({"pid": 1, "device": None}, {"pid": 1, "device": {"name": "X"}}, {"pid": 2, "device": None}):
        append_line(rank / "process.jsonl", line)
    (files,) = Bundle.open(folder).ranks
    assert files.process == [{"pid": 1, "device": {"name": "X"}}, {"pid": 2, "device": None}]


def test_workers_know_their_process(folder: Path) -> None:
    rank = folder / "rank0"
    rank.mkdir()
    append_line(rank / "worker-12.jsonl", {"event": "fetch", "t0": 5})
    append_line(rank / "worker-3.jsonl", {"event": "fetch", "t0": 2})
    (files,) = Bundle.open(folder).ranks
    assert [(line["pid"], line["t0"]) for line in files.workers] == [(3, 2), (12, 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a bundle"),
        ("{", "cannot read"),
        ("[]", "not a manifest"),
        ('{"schema": "other/1"}', "not a manifest"),
        ('{"schema": "tracelens.bundle/2"}', "newer tracelens"),
    ],
)
def test_what_is_no_bundle_of_ours(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(InputError, match=message):
        Bundle.open(tmp_path)


def test_a_minor_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text('{"schema": "tracelens.bundle/1.4", "id": "x"}')
    assert Bundle.open(tmp_path).id == "x"


@settings(max_examples=60)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.integers(1 - 2**62, 2**62 - 1) | st.text(max_size=8)),
        max_size=6,
    ),
    st.integers(0, 200),
)
def test_a_file_cut_anywhere_loses_its_last_line_only(records: list[dict[str, object]], cut: int) -> None:
    import tempfile

    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    kept = data[: max(0, len(data) - cut)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(kept)
        found = read_lines(path)
    whole = kept.count(b"\n")
    assert found[:whole] == records[:whole]
    assert len(found) - whole in (0, 1)


def test_lines_with_the_wrong_types_are_left_out_or_come_first(folder: Path) -> None:
    rank = folder / "rank0"
    rank.mkdir()
    (rank / "windows.jsonl").write_text('{"window": {"a": 1}}\n{"window": [0]}\n{"window": 0, "file": "f"}\n')
    (rank / "process.jsonl").write_text('{"pid": {}}\n{"pid": 7}\n')
    (rank / "worker-7.jsonl").write_text('{"t0": 5}\n{"t0": "late"}\n{"ts": [1]}\n')
    (folder / "events.jsonl").write_text(
        '{"event": "b", "ts": 2}\n{"event": "a", "ts": "x"}\n' + '{"event":' + "[" * 100_000 + "\n"
    )
    bundle = Bundle.open(folder)
    files = bundle.ranks[0]
    assert files.windows == [{"window": 0, "file": "f"}]
    assert files.process == [{"pid": 7}]
    assert [line.get("t0") for line in files.workers] == ["late", None, 5]
    assert [event["event"] for event in bundle.events] == ["a", "b"]


def test_numbers_that_nothing_recorded_can_be_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"a": 4611686018427387904, "b": 1e308, "c": NaN, "d": -Infinity, "e": 1796112437526827799, "f": 1.5}\n'
    )
    assert read_lines(path) == [
        {"a": None, "b": None, "c": None, "d": None, "e": 1796112437526827799, "f": 1.5}
    ]
