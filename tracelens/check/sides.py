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
from tracelens.ingest.facts import bundle_facts
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
        return _of(str(result.inputs.get("title") or name), result, {}, None)
    result = analyse(discover((path,)), rules)
    if is_bundle(path):
        bundle = Bundle.open(path)
        return _of(name, result, bundle_facts(bundle), logged_sample(bundle))
    return _of(name, result, {}, None)


def _of(name: str, result: Result, facts: Mapping[str, Any], logged: Sample | None) -> Run:
    known = {**_from_result(result), **facts}
    given = result.inputs.get("settings")
    settings = {k: v for k, v in given.items() if k not in _PLACE} if isinstance(given, Mapping) else {}
    if isinstance(given, Mapping) and "usable_cores" not in known and given.get("cpu_count"):
        known["usable_cores"] = float(given["cpu_count"])
    return Run(name, result, known, settings, logged, traced_sample(result))


def _from_result(result: Result) -> dict[str, Any]:
    """What a result alone says, in the names of ``bundle_facts``."""
    found: dict[str, Any] = {}
    environment = result.environment
    for name in (
        "gpu_memory_bytes", "cpu_model", "cpu_count", "python", "torch", "cuda", "cudnn", "driver", "git_commit",
        "git_dirty", "command", "num_threads", "usable_cores", "gpus",
    ):  # fmt: skip
        if environment.get(name) is not None:
            found[name] = environment[name]
    if result.gpu.name:
        found["gpu"] = result.gpu.name
    ranks = result.inputs.get("ranks")
    if isinstance(ranks, int):
        found["ranks"] = ranks
    return found
