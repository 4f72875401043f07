"""From the profiler to a verified file: whole, without names, or not at all."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracelens.agent import trace_file
from tracelens.agent.redact import Redactor
from tracelens.agent.trace_file import TraceError, export, missing_kernels

REDACTOR = Redactor("/home/ada", "node17", "ada")


def trace(kernels: int) -> str:
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "kernel", "name": f"k{number}", "args": {"file": "/home/ada/code/train.py"}}
        for number in range(kernels)
    ]
    events.append({"ph": "M", "name": "process_name", "args": {"name": "python"}})
    body = json.dumps(events, indent=2)
    return f'{{\n"host_name": "v7",\n"traceEvents": {body},\n"traceName": "/tmp/x.json"\n}}\n'


class Profiler:
    def __init__(self, text: str) -> None:
        self.text = text

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(self.text)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(trace_file.tempfile, "tempdir", str(folder))
    return folder


def test_a_trace_is_kept_whole_and_without_names(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "window-0.pt.trace.json.gz"
    size, kernels, plain = export(Profiler(trace(30_000)), str(path), REDACTOR, 1 << 30)
    assert (size, kernels) == (path.stat().st_size, 30_000)
    assert plain > 1 << 20  # several blocks
    with gzip.open(path, "rt") as file:
        text = file.read()
    read = json.loads(text)
    assert len(read["traceEvents"]) == 30_001
    assert read["host_name"] == "<host>"
    assert read["traceEvents"][0]["args"]["file"] == "~/code/train.py"
    assert "/home/ada" not in text
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tmp", path.name]
    assert list(temporary.iterdir()) == []


def test_with_sensitive_values_the_trace_is_untouched(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    export(Profiler(trace(3)), str(path), Redactor("/home/ada", off=True), 1 << 30)
    assert gzip.decompress(path.read_bytes()).decode() == trace(3)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.999])
def test_half_a_trace_is_no_trace(left: float, tmp_path: Path, temporary: Path) -> None:
    text = trace(200)
    with pytest.raises(TraceError, match="not whole"):
        export(Profiler(text[: int(len(text) * left)]), str(tmp_path / "t.gz"), REDACTOR, 1 << 30)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tmp"]
    assert list(temporary.iterdir()) == []


def test_a_trace_that_ends_after_an_event_is_no_trace(tmp_path: Path) -> None:
    text = trace(200)
    with pytest.raises(TraceError, match="not whole"):
        export(Profiler(text[: text.rindex("},") + 1]), str(tmp_path / "t.gz"), REDACTOR, 1 << 30)


def test_too_large_a_trace_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="more than the 0 MB allowed"):
        export(Profiler(trace(10)), str(tmp_path / "t.gz"), REDACTOR, 100)


def test_a_folder_that_cannot_be_written(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(OSError):
        export(Profiler(trace(10)), str(tmp_path / "none" / "t.gz"), REDACTOR, 1 << 30)
    assert list(temporary.iterdir()) == []


def torch_like(cuda: str | None, initialized: bool) -> Any:
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=None), cuda=SimpleNamespace(is_initialized=lambda: initialized)
    )


@pytest.mark.parametrize(
    ("cuda", "initialized", "with_cuda", "variables", "reason"),
    [
        (None, False, False, {}, "no GPU: torch is built without CUDA"),
        ("12.4", False, False, {}, "no GPU: the job has not initialised CUDA"),
        ("12.4", True, False, {"CUDA_INJECTION64_PATH": "/x"}, "another profiler holds CUPTI"),
        ("12.4", True, False, {}, "Kineto without CUPTI"),
        ("12.4", True, True, {}, "CUPTI delivered nothing"),
    ],
)
def test_why_kernels_are_missing(
    cuda: str | None, initialized: bool, with_cuda: bool, variables: dict[str, str], reason: str
) -> None:
    found = missing_kernels(
        torch_like(cuda, initialized), with_cuda, {**variables, "PATH": os.environ["PATH"]}
    )
    assert found is not None
    assert reason in found
