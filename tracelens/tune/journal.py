"""The tuning folder: one bundle a run, and ``tune.jsonl``, from which a tuning is taken up again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracelens.bundle import Record, append_line, iterate_lines
from tracelens.errors import InputError, OutputError, UsageError
from tracelens.record.session import RUNS, script_name
from tracelens.tune.trial import Trial

NAME = "tune.jsonl"
SCHEMA = "tracelens.tune/1"


@dataclass(frozen=True)
class Journal:
    """An opened tuning folder."""

    folder: Path

    def add(self, trial: Trial) -> None:
        """Remember a finished trial. Raises OutputError."""
        self._append({
            "event": "run", "ts": time.time_ns(), "run": trial.number, "set": list(trial.sets), "code": trial.code,
            "cut": trial.cut, "promised": trial.promised, "seconds": round(trial.seconds, 1),
        })  # fmt: skip

    def trials(self) -> list[Trial]:
        """The trials that ended, in order."""
        lines = [line for line in iterate_lines(self.folder / NAME) if line.get("event") == "run"]
        return [self._trial(line) for line in lines if isinstance(line.get("run"), int)]

    def _trial(self, line: Record) -> Trial:
        return Trial(
            line["run"], self.folder / f"run{line['run']}", tuple(line.get("set") or ()), int(line.get("code") or 0),
            bool(line.get("cut")), line.get("promised"), float(line.get("seconds") or 0.0),
        )  # fmt: skip

    def next_number(self) -> int:
        """A number that no bundle has, that of an interrupted run included."""
        number = 0
        while (self.folder / f"run{number}").exists() or (self.folder / f"run{number}.log").exists():
            number += 1
        return number

    def _append(self, record: Record) -> None:
        try:
            append_line(self.folder / NAME, record)
        except OSError as error:
            raise OutputError(f"cannot write {self.folder / NAME}: {error.strerror or error}") from None


def open_journal(command: Sequence[str], resume: Path | None, kind: str = "tune") -> Journal:
    """A new tuning folder below ``tracelens-runs``, or the one to go on with.

    UsageError where that one belongs to another command; InputError where it is none; OutputError.
    """
    digest = hashlib.sha256("\0".join(command).encode("utf-8", "replace")).hexdigest()[:16]
    if resume is not None:
        first = next(iter(iterate_lines(resume / NAME)), None)
        if first is None or not str(first.get("schema")).startswith("tracelens.tune/"):
            raise InputError(
                f"{resume} is no tuning folder: it has no {NAME}; name the one that tune printed"
            )
        if first.get("command") != digest:
            raise UsageError(
                f"{resume} was tuned with another command; give the same one, or leave --resume out"
            )
        if first.get("kind") != kind:
            raise UsageError(
                f"{resume} was begun {'with' if kind == 'tune' else 'without'} --loader-only; do the same again"
            )
        return Journal(resume)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    base = Path(RUNS) / f"{stamp}-{script_name(tuple(command))}-{kind}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f"cannot write {folder}: {error.strerror or error}; start tune in another folder"
        ) from None
    journal = Journal(folder)
    journal._append(
        {"schema": SCHEMA, "event": "start", "ts": time.time_ns(), "command": digest, "kind": kind}
    )
    return journal
