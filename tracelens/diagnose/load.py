"""From a RunInput to analysed ranks: traces read, logs read and laid over the trace's clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tracelens.errors import InputError
from tracelens.ingest.align import align
from tracelens.ingest.discover import RankInput, RunInput
from tracelens.ingest.gpu_log import read_gpu_log
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.tables import GpuLog, HostLog
from tracelens.signals.activity import Activity
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.kernels import classify, known_kernels
from tracelens.signals.other_window import KnownKernels
from tracelens.trace.reader import read_trace
from tracelens.trace.tables import TraceTables


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedRun:
    """The analysed ranks (those with a trace), and what could not be read."""

    ranks: tuple[RankAnalysis, ...]
    notes: tuple[str, ...]


def load_run(run: RunInput) -> LoadedRun:
    """Reads every rank. One unreadable trace among several is a note, and so are all of a bundle's whose step log is
    there: the logs then speak. Else, if none can be read, InputError."""
    ranks: list[RankAnalysis] = []
    notes: list[str] = list(run.notes)
    failures: list[InputError] = []
    for position, given in enumerate(run.ranks):
        found = _tables(given, notes, failures)
        if found is None:
            continue
        tables, name = found
        known: KnownKernels | None = None
        if given.run_log is not None:
            tables, known = _other_window(tables, name, given, notes)
        number = given.rank if given.rank is not None else tables.rank
        if number is None and len(run.ranks) > 1:
            number = position
        analysis = _with_logs(tables, name, given, number, notes)
        ranks.append(dataclasses.replace(analysis, known_kernels=known))
    logged = any(given.run_log is not None and len(given.run_log.steps) for given in run.ranks)
    if not ranks and failures and not logged:
        raise failures[0]
    ranks.sort(key=lambda r: r.rank if r.rank is not None else 0)
    return LoadedRun(
        tuple(_one_per_rank(ranks, notes)), tuple(dict.fromkeys([*notes, *(str(f) for f in failures)]))
    )


def _tables(given: RankInput, notes: list[str], failures: list[InputError]) -> tuple[TraceTables, str] | None:
    """The rank's timing trace and its file name: of several windows the first that can be read (lean ones come first)."""
    for path in given.traces:
        try:
            return read_trace(path), path.name
        except InputError as error:
            failures.append(error)
    return None


def _other_window(
    tables: TraceTables, name: str, given: RankInput, notes: list[str]
) -> tuple[TraceTables, KnownKernels | None]:
    """What the timing window is recorded without, from another one: the allocator's events, and by the operators' shapes
    what limits each kernel."""
    known: KnownKernels | None = None
    for path in given.traces:
        lacks_shapes = known is None and not tables.shapes and bool(len(tables.device))
        if path.name == name or not (lacks_shapes or not len(tables.memory)):
            continue
        try:
            other = read_trace(path)
        except InputError as error:
            notes.append(str(error))
            continue
        if len(other.memory) and not len(tables.memory):
            tables = dataclasses.replace(tables, memory=other.memory)
        if other.shapes and lacks_shapes and _same_gpu(tables, other):
            activity = Activity(other)
            known = known_kernels(activity, classify(activity))
    return tables, known


def _same_gpu(one: TraceTables, other: TraceTables) -> bool:
    """Whether two windows were recorded on alike GPUs."""
    names = []
    for tables in (one, other):
        listed = tables.metadata.get("deviceProperties")
        rows = listed if isinstance(listed, Sequence) else []
        names.append([row.get("name") for row in rows if isinstance(row, Mapping)])
    return names[0] == names[1]


def _with_logs(
    tables: TraceTables, name: str, given: RankInput, rank: int | None, notes: list[str]
) -> RankAnalysis:
    low, high = tables.extent
    window = (tables.base_ns + low, tables.base_ns + high)
    gpu, _ = _placed(given.gpu_logs, read_gpu_log, window, notes)
    host, whole = _placed(given.host_logs, read_host_log, window, notes)
    analysis = RankAnalysis(
        tables, given.loader, gpu, host, rank,  # type: ignore[arg-type]
        run_log=given.run_log, trace_name=name,
        whole_host_log=whole,  # type: ignore[arg-type]
    )  # fmt: skip
    if gpu is not None and isinstance(gpu, GpuLog) and len(gpu.gpus) > 1:
        analysis = dataclasses.replace(analysis, gpu_log=_own_gpu(gpu, analysis, notes))
    return analysis


_OURS = ("host.jsonl", "gpu.jsonl")  # a bundle's own, without which the rest still speaks


def _placed(
    paths: Sequence[Path], read: object, window: tuple[int, int], notes: list[str]
) -> tuple[GpuLog | HostLog | None, GpuLog | HostLog | None]:
    """The first log that overlaps the window: its part there, and the whole of it."""
    for path in paths:
        try:
            log = read(path)  # type: ignore[operator]
        except InputError as error:
            if path.name not in _OURS:
                raise  # a file that was asked for by name
            notes.append(str(error))
            continue
        placed = align(log, *window, margin_ns=_margin(log, window))
        if placed.log is None or not len(placed.log):
            notes.append(placed.message)
            continue
        if placed.ambiguous or placed.offset_ns:
            notes.append(placed.message)
        notes.extend(log.notes)
        return placed.log, log
    return None, None


def _margin(log: GpuLog | HostLog, window: tuple[int, int]) -> int:
    """How far beyond a short trace samples still speak for it: to the nearest few, never into start-up."""
    apart = np.diff(log.t_ns)
    period = int(np.median(apart[apart > 0])) if (apart > 0).any() else 0
    return 2 * period if window[1] - window[0] < 4 * period else 0


def _own_gpu(log: GpuLog, analysis: RankAnalysis, notes: list[str]) -> GpuLog:
    """The rows of the rank's own GPU: by rank where the recorder wrote it, else by the trace's device index."""
    if analysis.rank is not None and (log.rank == analysis.rank).any():
        return log.take(log.rank == analysis.rank)
    index = analysis.activity.gpu
    chosen = log.of(index) if index is not None else log
    if not len(chosen):
        notes.append(f"{log.source} has no GPU {index}; all its GPUs were taken together")
        return log
    notes.append(
        f"of the {len(log.gpus)} GPUs in {log.source}, number {index} was taken for this process (by index)"
    )
    return chosen


def _one_per_rank(ranks: list[RankAnalysis], notes: list[str]) -> list[RankAnalysis]:
    """Several traces of one rank are windows of one run: the one with most steady steps is used."""
    chosen: dict[int | None, RankAnalysis] = {}
    for rank in ranks:
        known = chosen.get(rank.rank)
        if known is None or rank.steps.steady > known.steps.steady:
            chosen[rank.rank] = rank
    if len(chosen) < len(ranks):
        notes.append(
            f"{len(ranks) - len(chosen)} more trace(s) of the same rank were read; the one with most steps was used"
        )
    return list(chosen.values())
