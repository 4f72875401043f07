"""Runs the launcher on small scripts for the tests, as a user's shell would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tracelens.bundle import Bundle

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
TRAIN = str(SCRIPTS / "train.py")
# The job's interpreter: TRACELENS_JOB_PYTHON names one with another torch, to run the same tests against it.
PYTHON = os.environ.get("TRACELENS_JOB_PYTHON", sys.executable)
_LAUNCH = """
import json, sys
from pathlib import Path
from tracelens.errors import TracelensError
from tracelens.record.launcher import RecordOptions, run
options = json.loads(sys.argv[1])
options["out"] = Path(options["out"]) if options.get("out") else None
try:
    sys.exit(run(RecordOptions(tuple(sys.argv[2:]), **{k: tuple(v) if k == "set" else v for k, v in options.items()})))
except TracelensError as error:
    print(f"tracelens: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@cache
def torch_version() -> tuple[int, int]:
    """The major and minor version of the job's torch."""
    code = "import torch; print(torch.__version__)"
    text = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@dataclass(frozen=True)
class Recorded:
    """One finished recording; ``bundle`` is opened anew, as a reader would."""

    code: int
    path: Path
    stdout: str
    stderr: str

    @property
    def bundle(self) -> Bundle:
        return Bundle.open(self.path)


def launch(folder: Path, *command: str, env: dict[str, str] | None = None, **options: Any) -> list[str]:
    """The argv that records ``command`` into ``folder / "bundle"`` unless ``out`` says otherwise."""
    options.setdefault("out", str(folder / "bundle"))
    return [sys.executable, "-c", _LAUNCH, json.dumps(options), *command]


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's variables without those of a recording or a launcher around the tests."""
    dropped = ("TRACELENS_", "SLURM_", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    base = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**base, "OMP_NUM_THREADS": "1", **(extra or {})}


def record(
    folder: Path, *command: str, env: dict[str, str] | None = None, timeout: float = 120, **options: Any
) -> Recorded:
    """Record ``command`` to its end, with ``folder`` as the working folder."""
    argv = launch(folder, *command, **options)
    done = subprocess.run(
        argv, cwd=folder, env=environment(env), capture_output=True, text=True, timeout=timeout, check=False
    )
    return Recorded(done.returncode, Path(options.get("out") or folder / "bundle"), done.stdout, done.stderr)


def start(
    folder: Path, *command: str, env: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a recording in a process group of its own."""
    return subprocess.Popen(
        launch(folder, *command, **options),
        cwd=folder, env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(condition: Any, seconds: float = 60.0) -> Any:
    """Poll until ``condition()`` is true; its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def lines_in(path: Path) -> int:
    """Whole lines of a file, 0 where it is missing."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_group(process: subprocess.Popen[str]) -> None:
    """kill -9 everything that ``start`` started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def report(bundle: Path) -> dict[str, Any]:
    """What ``tracelens report BUNDLE --json -`` says of a bundle; it must succeed without a word on stderr."""
    with tempfile.TemporaryDirectory() as elsewhere:  # the bundle's own disk may be full
        done = subprocess.run(
            [sys.executable, "-m", "tracelens", "report", str(bundle), "--json", "-", "-o", f"{elsewhere}/report.html"],
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def notes(bundle: Path) -> str:
    """The report's notes on quality, one a line."""
    return "\n".join(note["message"] for note in report(bundle)["quality"])
