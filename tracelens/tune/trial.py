"""One trial: a short recording with some settings, and what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tracelens.bundle import Bundle, is_bundle
from tracelens.check.speed import Sample, logged_sample
from tracelens.errors import InputError
from tracelens.model import Result

_PATIENCE = 15.0  # seconds for a job to end after it was asked to
_TAIL = 4000


@dataclass(frozen=True)
class Trial:
    """``sets`` are ``--set`` texts, ``code`` the command's exit code, ``promised`` the predicted speed-up over the
    trial that advised it; ``cut``: we ended it, for lack of time."""

    number: int
    bundle: Path
    sets: tuple[str, ...]
    code: int
    cut: bool = False
    promised: float | None = None
    seconds: float = 0.0

    @property
    def ran(self) -> bool:
        """Whether it says how fast the job is."""
        return self.sample is not None

    @cached_property
    def sample(self) -> Sample | None:
        """Its unprofiled steps; None where it did not get that far, or failed (a crash is no measurement)."""
        if (self.code and not self.cut) or not is_bundle(self.bundle):
            return None
        try:
            return logged_sample(Bundle.open(self.bundle))
        except InputError:
            return None

    @cached_property
    def result(self) -> Result | None:
        """Its diagnosis; None where nothing can be analysed."""
        from tracelens.diagnose.analyse import analyse
        from tracelens.ingest.discover import discover

        try:
            return analyse(discover((self.bundle,)))
        except InputError:
            return None

    def why_failed(self) -> str:
        """One line on why there is no measurement."""
        if self.code and not self.cut:
            return f"the command ended with {self.code}: {last_line(self.log)}"
        if self.cut:
            return "the time was up before it had made a few steps"
        return f"it ended before it had made a few training steps: {last_line(self.log)}"

    @property
    def log(self) -> Path:
        """What the job wrote to stdout and stderr."""
        return self.bundle.with_name(f"{self.bundle.name}.log")


def last_line(log: Path) -> str:
    """The last line of a log that says something; where the log is, when it is empty."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return str(log)
    said = [line.strip() for line in lines if line.strip()]
    # the job's own words say more than what the recorder made of them
    own = [line for line in said if not line.startswith("tracelens:")]
    return (own or said or [f"see {log}"])[-1][:300]


def run_trial(
    number: int, folder: Path, command: Sequence[str], sets: Sequence[str], *, stop_after: int, seconds: float,
    probe: float | None = None, trace: bool = True, promised: float | None = None,
) -> Trial:  # fmt: skip
    """Record ``command`` into ``folder/run<number>`` for at most ``seconds``; the job's output goes beside it.

    An interrupt ends the job and is raised again. Raises OSError where nothing can be written.
    """
    bundle = folder / f"run{number}"
    options = {
        "out": str(bundle),
        "set": list(sets),
        "stop_after": stop_after,
        "probe": probe,
        "trace": trace,
    }
    argv = [sys.executable, "-m", "tracelens.tune.child", json.dumps(options), *command]
    started = time.monotonic()
    with bundle.with_name(f"{bundle.name}.log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            code, cut = process.wait(max(seconds, 1.0)), False
        except subprocess.TimeoutExpired:
            code, cut = _end(process), True
        except BaseException:
            _end(process)
            raise
    return Trial(number, bundle, tuple(sets), code, cut, promised, time.monotonic() - started)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ask the job to end (the recorder passes SIGTERM on), then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_PATIENCE)
    return process.wait()
