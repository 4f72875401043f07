"""What a PATH is: a bundle, a trace file, or a folder of traces with its side files; sorted by rank."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelens.bundle import Bundle, RankFiles, is_bundle, iterate_lines
from tracelens.errors import InputError
from tracelens.ingest.account import account
from tracelens.ingest.loader_settings import read_loader_settings
from tracelens.ingest.runlog import RunLog, read_run_log

RUNS = Path("tracelens-runs")
_SIDE_FILES = {"loader.json", "truth.json", "bundle.json", "package.json"}
_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_EVENTS = re.compile(rb'"traceEvents"\s*:|^\s*\[\s*\{')
_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class RankInput:
    """One rank's files: traces (a bundle's windows, or one file), DataLoader settings, logs."""

    rank: int | None
    traces: tuple[Path, ...]
    loader: Mapping[str, Any] = field(default_factory=dict)
    gpu_logs: tuple[Path, ...] = ()
    host_logs: tuple[Path, ...] = ()
    run_log: RunLog | None = None


@dataclass(frozen=True, slots=True)
class RunInput:
    """Everything given about one run. ``home`` is the folder where its report goes by default."""

    title: str
    home: Path
    ranks: tuple[RankInput, ...]
    paths: tuple[Path, ...]
    bundle: Bundle | None = None
    training_logs: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    report_name: str = "report.html"


@dataclass(frozen=True, slots=True)
class Extras:
    """Side files given on the command line; they apply to every rank."""

    gpu_logs: tuple[Path, ...] = ()
    host_logs: tuple[Path, ...] = ()
    training_logs: tuple[Path, ...] = ()
    loader: Path | None = None


def newest_run(below: Path = RUNS) -> Path:
    """The newest bundle below ``./tracelens-runs``. Raises InputError where there is none."""
    runs = [p for p in below.iterdir() if is_bundle(p)] if below.is_dir() else []
    if not runs:
        raise InputError(
            f"no PATH given and no run below ./{below}; give a trace, or record one: tracelens record -- python train.py"
        )
    return max(runs, key=lambda p: (p / "bundle.json").stat().st_mtime)


def discover(paths: Sequence[Path], extras: Extras = Extras()) -> RunInput:
    """The run that these paths hold; several traces of different ranks make one run. Raises InputError."""
    for path in (*paths, *extras.gpu_logs, *extras.host_logs, *extras.training_logs):
        if not path.exists():
            raise InputError(f"{path} does not exist")
    loader = read_loader_settings(extras.loader) if extras.loader else {}
    if len(paths) == 1 and is_bundle(paths[0]):
        return _bundle(paths[0], extras, loader)
    ranks: list[RankInput] = []
    for path in paths:
        if is_bundle(path):
            raise InputError(
                f"{path} is a bundle; report one bundle at a time, or use tracelens fleet for many"
            )
        ranks.extend(_folder(path) if path.is_dir() else [_file(path)])
    if not paths:
        ranks = [RankInput(None, ())]
    completed = tuple(
        RankInput(
            r.rank,
            r.traces,
            {**r.loader, **loader},
            (*extras.gpu_logs, *r.gpu_logs),
            (*extras.host_logs, *r.host_logs),
        )
        for r in ranks
    )
    given = paths or (*extras.gpu_logs, *extras.host_logs, *extras.training_logs)
    first = given[0]
    single = first.is_file()
    name = _stem(first) if single else first.resolve().name
    return RunInput(
        title=name, home=first.parent if single else first, ranks=completed, paths=tuple(given),
        training_logs=extras.training_logs, report_name=f"{name}.report.html" if single and len(given) == 1 else "report.html",
    )  # fmt: skip


def _bundle(path: Path, extras: Extras, loader: Mapping[str, Any]) -> RunInput:
    bundle = Bundle.open(path)
    gpu = tuple(p for p in (path / "gpu.jsonl",) if p.is_file() and p.stat().st_size)
    host = tuple(p for p in (path / "host.jsonl",) if p.is_file() and p.stat().st_size)
    ranks = tuple(
        _bundle_rank(files, bundle.pair_speeds, loader, (*extras.gpu_logs, *gpu), (*extras.host_logs, *host))
        for files in bundle.ranks
    )
    return RunInput(
        title=path.resolve().name,
        home=path,
        ranks=ranks,
        paths=(path,),
        bundle=bundle,
        training_logs=extras.training_logs,
        notes=(*account(bundle), *_foreign(bundle)),
    )


def _foreign(bundle: Bundle) -> Iterator[str]:
    """What was left out because its key is a list or an object, so that no line can be merged with it."""
    for files in bundle.ranks:
        for name, key in (("windows.jsonl", "window"), ("process.jsonl", "pid")):
            count = sum(isinstance(line.get(key), dict | list) for line in iterate_lines(files.folder / name))
            if count:
                yield f"Lines with a damaged {key} were left out: {files.folder.name}/{name} ({count})."


def _bundle_rank(
    files: RankFiles,
    pair_speeds: tuple[float, ...],
    loader: Mapping[str, Any],
    gpu: tuple[Path, ...],
    host: tuple[Path, ...],
) -> RankInput:
    """A rank of a bundle; its complete lean windows come first: they time the steps."""
    log = dataclasses.replace(read_run_log(files), pair_speeds=pair_speeds)
    order = {"lean": 0, "shapes": 1, "stacks": 2}
    kinds = {
        str(w.get("file")): (not w.get("complete"), order.get(str(w.get("kind")), 3)) for w in log.windows
    }
    traces = sorted(files.traces, key=lambda p: kinds.get(p.name, (True, 3)))
    return RankInput(files.rank, tuple(traces), {**log.settings, **loader}, gpu, host, log)


def _file(path: Path) -> RankInput:
    return _with_side_files(None, (path,), path.parent, only_beside_single=True)


def _folder(path: Path) -> list[RankInput]:
    """Ranks of a folder: its ``rank*`` folders, else its trace files."""
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    ranks: list[RankInput] = []
    for child in inside:
        match = _RANK.fullmatch(child.name)
        if child.is_dir() and match:
            traces = _traces(child.iterdir())
            if traces:
                ranks.append(_with_side_files(int(match.group(1)), traces, child))
    if ranks:
        return sorted(ranks, key=lambda r: r.rank or 0)
    traces = _traces(inside)
    if not traces:
        raise InputError(
            f"{path} holds no trace (.json or .json.gz with traceEvents); give the folder that the profiler wrote to"
        )
    if len(traces) == 1:
        return [_with_side_files(None, traces, path)]
    numbered = [(_rank_of(t), t) for t in traces]
    return [_with_side_files(rank, (t,), path) for rank, t in numbered]


def _traces(files: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(sorted(f for f in files if f.is_file() and _looks_like_trace(f)))


def _looks_like_trace(path: Path) -> bool:
    name = path.name.lower()
    if name in _SIDE_FILES or not name.endswith((".json", ".json.gz", ".gz", ".pt.trace")):
        return False
    if name.endswith((".trace.json", ".trace.json.gz")):
        return True
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if head.startswith(b"\x1f\x8b"):
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD)
    except (OSError, zlib.error):
        return False
    return _EVENTS.search(head) is not None


def _with_side_files(
    rank: int | None, traces: tuple[Path, ...], folder: Path, *, only_beside_single: bool = False
) -> RankInput:
    """Side files of a folder; beside a single file they are taken only where no other trace could own them."""
    if only_beside_single and len(_traces(folder.iterdir())) > 1:
        return RankInput(rank, traces)
    loader = folder / "loader.json"
    gpu, host = folder / "gpu.csv", folder / "host.jsonl"
    return RankInput(
        rank, traces, read_loader_settings(loader) if loader.is_file() else {},
        (gpu,) if gpu.is_file() else (), (host,) if host.is_file() else (),
    )  # fmt: skip


def _rank_of(path: Path) -> int | None:
    match = _RANK.search(path.name)
    return int(match.group(1)) if match else None


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or path.name
