"""One side of a comparison: a recording, or a folder of repeated recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.bundle import Bundle, is_bundle
from tracelens.check.speed import Sample, logged_sample, traced_sample
from tracelens.diagnose.analyse import analyse
from tracelens.errors import InputError
from tracelens.ingest.discover import discover
from tracelens.ingest.facts import FACTS, PACKAGE
from tracelens.model import Result

_PLACE = {
    "loader",
    "file",
    "line",
    "cpu_count",
    "shards",
}  # where a loader stands in the code, not what it is


@dataclass(frozen=True)
class Run:
    """One recording: its result, what is known about where it ran, its unprofiled and its profiled steps."""

    name: str
    result: Result
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    logged: Sample | None
    traced: Sample | None


@dataclass(frozen=True)
class Side:
    """What BEFORE or AFTER names; ``runs`` are repeats of one configuration."""

    name: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run whose verdict and recommendations are shown."""
        return self.runs[0]


def load_side(path: Path, rules: Sequence[Path] = ()) -> Side:
    """The recordings at ``path``: what ``report`` takes, or a folder of bundles. Raises InputError."""
    if not path.exists():
        raise InputError(f"{path} does not exist; name a bundle, a trace or a report.html")
    if path.is_dir() and not is_bundle(path):
        bundles = sorted(child for child in path.iterdir() if is_bundle(child))
        if bundles:
            return Side(path.resolve().name, tuple(_run(one, rules) for one in bundles))
    run = _run(path, rules)
    return Side(run.name, (run,))


def _run(path: Path, rules: Sequence[Path]) -> Run:
    name = path.resolve().name
    if path.suffix.lower() in (".html", ".htm") and path.is_file():
        from tracelens.render.embedded import read_embedded
        from tracelens.render.model_io import result_from_json

        result = result_from_json(read_embedded(path))
        return _of(str(result.inputs.get("title") or name), result, None)
    result = analyse(discover((path,)), rules)
    return _of(name, result, logged_sample(Bundle.open(path)) if is_bundle(path) else None)


def _of(name: str, result: Result, logged: Sample | None) -> Run:
    known = _facts(result)
    given = result.inputs.get("settings")
    settings = {k: v for k, v in given.items() if k not in _PLACE} if isinstance(given, Mapping) else {}
    if isinstance(given, Mapping) and "usable_cores" not in known and given.get("cpu_count"):
        known["usable_cores"] = float(given["cpu_count"])
    return Run(name, result, known, settings, logged, traced_sample(result))


def _facts(result: Result) -> dict[str, Any]:
    """What a result says of where and with what it was recorded, in the names of ``bundle_facts``."""
    found = {
        name: value
        for name, value in result.environment.items()
        if name in FACTS or name.startswith(("flag.", "env.", PACKAGE))
    }
    if result.gpu.name:
        found["gpu"] = result.gpu.name
    ranks = result.inputs.get("ranks")
    if isinstance(ranks, int):
        found.setdefault("ranks", ranks)
    return found
