"""The run folder: written once at the start, appended to while the job runs, read with nothing but this module.

The format is docs/bundle.md. Reading is tolerant: a bundle may still be written, may end in half a line, or
may lack any file but ``bundle.json``.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tracelens.errors import InputError

SCHEMA = "tracelens.bundle/1"
MANIFEST = "bundle.json"
UNSHARED = (
    0.8  # two hyper-threads of one core reach 0.75 at most: CPUs that are this fast together share none
)
_MAJOR = 1
_RANK = re.compile(r"rank(\d+)")

Record = dict[str, Any]


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a folder that ``tracelens record`` wrote."""
    return (Path(path) / MANIFEST).is_file()


def read_lines(path: Path) -> list[Record]:
    """The objects of a JSONL file; [] where it is missing. Torn or foreign lines are skipped."""
    return list(iterate_lines(path))


def iterate_lines(path: Path) -> Iterator[Record]:
    """Like ``read_lines``, one at a time."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    with file:
        for line in file:
            try:
                record = json.loads(line, parse_int=_whole, parse_float=_real, parse_constant=_nothing)
            except (ValueError, RecursionError):  # cut by a kill or a full disk
                continue
            if isinstance(record, dict):
                yield record


# beyond this nothing that is recorded lies, Unix nanoseconds included: such a number is damage, and unknown
_LARGEST = 2**62


def _whole(text: str) -> int | None:
    value = int(text) if len(text) < 21 else _LARGEST
    return value if -_LARGEST < value < _LARGEST else None


def _real(text: str) -> float | None:
    value = float(text)
    return value if -_LARGEST < value < _LARGEST else None


def _nothing(text: str) -> None:
    """NaN and infinities."""


def _is_key(value: Any) -> bool:
    """Whether lines can be merged by it; a line with a list or an object there is foreign."""
    return not isinstance(value, dict | list)


def _number(value: Any) -> float:
    """What lines are sorted by: 0 for a time that is none."""
    return value if isinstance(value, int | float) else 0


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write bundle.json in one piece: a reader never sees half of it. Raises OSError."""
    partial = folder / f".{MANIFEST}.{os.getpid()}"
    partial.write_text(json.dumps({"schema": SCHEMA, **manifest}, indent=1) + "\n", "utf-8")
    os.replace(partial, folder / MANIFEST)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one object as one line with one write. Raises OSError, also where only a part of it could be written."""
    data = (json.dumps(record, separators=(",", ":"), default=str) + "\n").encode("utf-8", "replace")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        if os.write(fd, data) < len(data):  # a full disk takes what fits
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


@dataclass(frozen=True)
class RankFiles:
    """What one rank wrote; every list is read when it is first asked for."""

    rank: int
    folder: Path

    @cached_property
    def process(self) -> list[Record]:
        """One record a process that was this rank (a restart adds one); lines of the same pid are merged."""
        merged: dict[Any, Record] = {}
        for line in read_lines(self.folder / "process.jsonl"):
            if _is_key(line.get("pid")):
                merged.setdefault(line.get("pid"), {}).update(line)
        return list(merged.values())

    @cached_property
    def steps(self) -> list[Record]:
        """steps.jsonl, in order."""
        return read_lines(self.folder / "steps.jsonl")

    @cached_property
    def loader(self) -> list[Record]:
        """loader.jsonl: ``loader``, ``iter``, ``batch`` and ``iter_end`` lines, in order."""
        return read_lines(self.folder / "loader.jsonl")

    @cached_property
    def workers(self) -> list[Record]:
        """The lines of all worker files, by time; each has the worker process's ``pid``."""
        found: list[Record] = []
        for path in sorted(self.folder.glob("worker-*.jsonl")):
            pid = path.stem.removeprefix("worker-")
            found += [{"pid": int(pid) if pid.isdigit() else None, **line} for line in iterate_lines(path)]
        return sorted(found, key=lambda line: _number(line.get("t0")) or _number(line.get("ts")))

    @cached_property
    def windows(self) -> list[Record]:
        """One record a profiler window; its lines (opened, closed, the steps after it) are merged."""
        merged: dict[Any, Record] = {}
        for line in read_lines(self.folder / "windows.jsonl"):
            if _is_key(line.get("window")):
                merged.setdefault(line.get("window"), {}).update(line)
        return list(merged.values())

    @property
    def traces(self) -> list[Path]:
        """Trace files that exist, in the order of their windows; files that no line names come last."""
        named = [self.folder / str(window["file"]) for window in self.windows if window.get("file")]
        others = sorted(
            path for path in self.folder.glob("*.pt.trace.json*") if path.suffix in (".json", ".gz")
        )
        return [path for path in dict.fromkeys([*named, *others]) if path.is_file()]


@dataclass(frozen=True)
class Bundle:
    """An opened run folder."""

    path: Path
    manifest: Record = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Open the bundle at ``path``; InputError where it is none, or one of a newer tracelens."""
        folder = Path(path)
        try:
            manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"{folder} is not a bundle: it has no {MANIFEST}; name the folder that record wrote"
            ) from None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {folder / MANIFEST}: {error}") from error
        schema = manifest.get("schema") if isinstance(manifest, dict) else None
        name, _, major = str(schema).partition("/")
        if name != "tracelens.bundle" or not major.split(".")[0].isdigit():
            raise InputError(f"{folder / MANIFEST} is not a manifest of tracelens (schema {schema!r})")
        if int(major.split(".")[0]) > _MAJOR:
            raise InputError(f"{folder} was written by a newer tracelens ({schema}); upgrade to read it")
        return cls(folder, manifest)

    @property
    def id(self) -> str:
        """The run's name."""
        return str(self.manifest.get("id") or self.path.name)

    @cached_property
    def events(self) -> list[Record]:
        """events.jsonl, by time."""
        return sorted(read_lines(self.path / "events.jsonl"), key=lambda event: _number(event.get("ts")))

    def events_of(self, kind: str) -> list[Record]:
        """The events of one kind."""
        return [event for event in self.events if event.get("event") == kind]

    @cached_property
    def ranks(self) -> list[RankFiles]:
        """The ranks that left something, by number."""
        found = []
        for folder in self.path.iterdir():
            match = _RANK.fullmatch(folder.name)
            if match and folder.is_dir():
                found.append(RankFiles(int(match.group(1)), folder))
        return sorted(found, key=lambda rank: rank.rank)

    @property
    def pair_speeds(self) -> tuple[float, ...]:
        """Speed of each of two busy CPUs against one alone, 0..1: before the job and, where it was asked again, after."""
        looks = [self.manifest.get("host"), *self.events_of("machine")]
        found = [one.get("pair_speed") for one in looks if isinstance(one, dict)]
        return tuple(
            float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v <= 1
        )

    @property
    def host_log(self) -> Path | None:
        """host.jsonl, if there is one."""
        return self._file("host.jsonl")

    @property
    def gpu_log(self) -> Path | None:
        """gpu.jsonl, if there is one."""
        return self._file("gpu.jsonl")

    @property
    def sampler_log(self) -> Path | None:
        """sampler.jsonl, if there is one."""
        return self._file("sampler.jsonl")

    def _file(self, name: str) -> Path | None:
        path = self.path / name
        return path if path.is_file() else None

    @property
    def exit(self) -> Record | None:
        """The last ``exit`` event: the command's own code and signal; None while it runs or where we were killed."""
        found = self.events_of("exit")
        return found[-1] if found else None

    @property
    def finished(self) -> bool:
        """Whether recording came to its end."""
        return bool(self.events_of("end"))
