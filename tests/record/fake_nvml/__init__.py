"""Builds the fake NVML and runs the real sampler against it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml.c")


@cache
def library(*flags: str) -> Path:
    """The folder of a compiled libnvidia-ml.so.1; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake NVML with")
    folder = Path(mkdtemp(prefix="fake-nvml-"))
    target = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        *flags,
        "-Wl,-soname,libnvidia-ml.so.1",
        "-o",
        str(target),
    ]
    subprocess.run([*command, str(SOURCE)], check=True)
    return folder


def environment(script: Path, *flags: str, **variables: str) -> dict[str, str]:
    """The variables with which a process finds the fake; CUDA_VISIBLE_DEVICES only where given."""
    base = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    return {**base, "LD_LIBRARY_PATH": str(library(*flags)), "FAKE_NVML_SCRIPT": str(script), **variables}


def write_script(folder: Path, text: str) -> Path:
    """The GPUs to play, as a file."""
    path = folder / "gpus.txt"
    path.write_text(textwrap.dedent(text))
    return path


def sampler(
    bundle: Path, pid: int, *options: str, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """The real sampler, started on ``bundle``."""
    command = [sys.executable, "-m", "tracelens.record.sampler", str(bundle), "--pid", str(pid), *options]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def record(
    folder: Path, script: str, *flags: str, rows: int = 4, event: str | None = None, **variables: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """gpu.jsonl and sampler.jsonl of a sampler beside a sleeping job, which ends after ``rows`` GPU samples.

    ``rows`` counts per GPU; ``event`` is waited for in sampler.jsonl instead of, or after, the rows.
    """
    bundle = folder / "bundle"
    bundle.mkdir(exist_ok=True)
    job = subprocess.Popen(["sleep", "60"])
    process = None
    try:
        env = environment(write_script(folder, script), *flags, **variables)
        process = sampler(bundle, job.pid, env=env)
        wait_for(lambda: _enough(bundle, rows, event), process)
    finally:
        job.kill()
        job.wait()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert (out, err) == ("", "")
    return lines(bundle / "gpu.jsonl"), lines(bundle / "sampler.jsonl")


def _enough(bundle: Path, rows: int, event: str | None) -> bool:
    counts = Counter(line["uuid"] for line in lines(bundle / "gpu.jsonl"))
    if rows and max(counts.values(), default=0) < rows:
        return False
    return event is None or any(line["event"] == event for line in lines(bundle / "sampler.jsonl"))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 30.0) -> None:
    """Wait until ``condition`` holds; fail when the sampler ends before, or time is up."""
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "the sampler did not get there in time"
        time.sleep(0.05)


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file, nothing where there is no file."""
    if not path.exists():
        return []
    complete = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines()]
