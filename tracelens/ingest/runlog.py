"""One rank's step log and loader log, from a bundle, as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.bundle import RankFiles
from tracelens.ingest.batches import Batches, Passes, other_starts_ms, read_batches, read_passes
from tracelens.ingest.columns import Floats, Ints, floats, integers, is_number, is_whole
from tracelens.ingest.loader_settings import plausible
from tracelens.ingest.points import LoaderPoints, read_loader_points


@dataclass(frozen=True, slots=True)
class StepLog:
    """Steps of the whole run. ``window`` -1: not profiled. Times Unix ns, NaN or -1 where unknown.

    ``plain``: steps that are neither profiled, nor start-up, nor right after a window, nor live on the batches that
    workers made during one: they say how fast the job is. ``gc_ms``: pauses of Python's garbage collector in the step.
    """

    step: Ints
    t0: Ints
    t1: Ints
    wait_ms: Floats
    samples: Floats
    window: Ints
    mem_peak: Floats
    mem_reserved: Floats
    epoch: Ints
    plain: NDArray[np.bool_]
    gc_ms: Floats = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return int(self.step.size)

    @property
    def duration_ms(self) -> Floats:
        """Host spans of the steps."""
        return (self.t1 - self.t0) / 1e6


@dataclass(frozen=True, slots=True)
class Fetches:
    """Batches as they were made, one row each, in order: in workers (``worker`` >= 0) or in the main process (-1).

    ``read_bytes`` came from storage; ``rchar`` and ``syscr`` are the bytes and the number of read calls.
    """

    loader: Ints
    worker: Ints
    batch: Ints
    epoch: Ints
    t0: Ints
    t1: Ints
    cpu_ms: Floats
    io_wait_ms: Floats
    run_delay_ms: Floats
    collate_ms: Floats
    bytes: Floats
    rss: Floats
    slowest_ms: Floats
    samples: Floats
    read_bytes: Floats
    rchar: Floats
    syscr: Floats

    def __len__(self) -> int:
        return int(self.batch.size)

    @property
    def wall_ms(self) -> Floats:
        """Wall time of making each batch."""
        return (self.t1 - self.t0) / 1e6

    @property
    def waiting_ms(self) -> Floats:
        """Wall time in which the fetch neither computed nor was kept from a core: storage, locks, sleep."""
        return np.maximum(self.wall_ms - np.nan_to_num(self.cpu_ms) - np.nan_to_num(self.run_delay_ms), 0.0)


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Batches as training got them, in order: ``t0`` to ``t1`` is the ``next`` that gave each; Unix ns, -1 where unknown."""

    batch: Ints
    epoch: Ints
    t0: Ints
    t1: Ints

    def __len__(self) -> int:
        return int(self.batch.size)

    def take(self, rows: NDArray[np.bool_]) -> Deliveries:
        """The chosen rows."""
        return Deliveries(self.batch[rows], self.epoch[rows], self.t0[rows], self.t1[rows])


@dataclass(frozen=True, slots=True)
class RunLog:
    """What one rank recorded beside its traces. ``settings`` are the training loader's effective arguments.

    ``pair_speeds``: as ``Bundle.pair_speeds``. ``other_starts_ms``: what starting other
    loaders' workers took over the whole run.
    """

    steps: StepLog
    settings: Mapping[str, Any]
    loaders: tuple[Mapping[str, Any], ...]
    fetches: Fetches
    starts_ms: Floats
    queue_depth: Floats
    batch_bytes: float | None
    windows: tuple[Mapping[str, Any], ...]
    process: Mapping[str, Any]
    points: LoaderPoints | None
    deliveries: Deliveries
    pair_speeds: tuple[float, ...] = ()
    batches: Batches = field(default_factory=lambda: read_batches((), None))
    passes: Passes = field(default_factory=lambda: read_passes((), None))
    other_starts_ms: float | None = None

    @property
    def ahead(self) -> int:
        """Batches that the workers hold ready when training comes back from a pause: num_workers * prefetch_factor."""
        return _ahead(self.settings)

    @property
    def intraop_threads(self) -> int | None:
        """Threads that an operator of the training process uses on the CPU, where it was recorded."""
        given = self.process.get("threads")
        threads = given.get("intraop") if isinstance(given, Mapping) else None
        return threads if is_whole(threads) and threads > 0 else None

    def unprofiled(self, t0: Ints, t1: Ints) -> NDArray[np.bool_]:
        """Which of the spans from ``t0`` to ``t1`` lie outside all profiled windows; Unix ns."""
        keep = np.ones(t0.size, dtype=bool)
        for window in self.windows:
            if is_whole(window.get("t0")) and is_whole(window.get("t1")):
                keep &= (t1 < window["t0"]) | (t0 > window["t1"])
        return keep


def read_run_log(files: RankFiles) -> RunLog:
    """The run log of a rank; parts that were not written are empty."""
    lines = [
        r for r in files.loader if is_whole(r.get("loader")) and not isinstance(r.get("epoch"), list | dict)
    ]
    loaders = {r["loader"]: r for r in lines if r.get("event") == "loader"}
    main = _training_loader(lines, loaders)
    batches = [r for r in lines if r.get("event") == "batch" and r.get("loader") == main]
    process = files.process[-1] if files.process else {}
    settings = _settings(loaders.get(main) if main is not None else None, batches, process)
    fetched = [r for r in files.workers if r.get("event") == "fetch" and r.get("loader") == main]
    made = _fetches(fetched) if fetched else _fetches([r for r in batches if r.get("fetch_ms") is not None])
    starts = [
        r.get("start_ms")
        for r in lines
        if r.get("event") == "iter" and r.get("loader") == main and r.get("training", True)
    ]
    sizes = floats(batches, "bytes")
    sizes = sizes[sizes > 0]
    return RunLog(
        _steps(files.steps, _ahead(settings)), settings, tuple(loaders.values()), made, floats([{"v": s} for s in starts], "v"),
        floats(batches, "queue_depth"), float(np.median(sizes)) if sizes.size else None,
        tuple(map(_window, files.windows)), process,
        read_loader_points(files.folder), _deliveries(batches), batches=read_batches(lines, main),
        passes=read_passes(lines, main), other_starts_ms=other_starts_ms(lines, main),
    )  # fmt: skip


def _window(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A window's line; of the baseline only durations that a step can have."""
    given = record.get("baseline_ms")
    steps = given if isinstance(given, list) else []
    steps = [v for v in steps if is_number(v) and 0 < v < _LONGEST_MS]
    return {**record, "baseline_ms": steps}


def _deliveries(batches: Sequence[Mapping[str, Any]]) -> Deliveries:
    rows = [r for r in batches if isinstance(r.get("t0"), int) and isinstance(r.get("t1"), int)]
    return Deliveries(*(integers(rows, name) for name in ("batch", "epoch", "t0", "t1")))


def _ahead(settings: Mapping[str, Any]) -> int:
    workers, ahead = settings.get("num_workers"), settings.get("prefetch_factor")
    return workers * (ahead if isinstance(ahead, int) else 2) if isinstance(workers, int) else 0


def _waits_within(step: Mapping[str, Any]) -> bool:
    wait = step.get("wait_ms")
    return not is_number(wait) or 0 <= wait <= 1.01 * (step["t1"] - step["t0"]) / 1e6


def _steps(rows: Sequence[Mapping[str, Any]], queued: int) -> StepLog:
    rows = [r for r in rows if isinstance(r.get("t0"), int) and isinstance(r.get("t1"), int)]
    # a step that ends before it begins, lasts for days, or waits longer than it lasts had its clock set meanwhile
    rows = [r for r in rows if 0 < r["t1"] - r["t0"] < _LONGEST_MS * 1e6 and _waits_within(r)]
    window = integers(rows, "window")
    t0, t1 = integers(rows, "t0"), integers(rows, "t1")
    plain = _plain(window, (t1 - t0) / 1e6, queued)
    return StepLog(
        integers(rows, "step"), t0, t1, floats(rows, "wait_ms"), floats(rows, "samples"), window,
        floats(rows, "mem_peak"), floats(rows, "mem_reserved"), integers(rows, "epoch"), plain, floats(rows, "gc_ms"),
    )  # fmt: skip


_LONGEST_MS = 2 * 86_400_000.0  # two days
_ENOUGH = 10  # undisturbed steps that are worth dropping others for


def _plain(window: Ints, duration: Floats, queued: int) -> NDArray[np.bool_]:
    plain = window < 0
    # the export of a window ends inside the step after it
    plain[1:] &= window[:-1] < 0
    if queued:
        # a window stops the training but not the workers: steps that live on what these made meanwhile are faster
        # than the loader is
        calm = plain.copy()
        for last in np.flatnonzero((window[:-1] >= 0) & (window[1:] < 0)):
            calm[last + 1 : last + 2 + queued] = False
        plain = calm if calm.sum() >= _ENOUGH else plain
    size = window.size
    if size >= 8:
        # start-up: leading steps far slower than any later one; a stall that recurs is no start-up
        rest = duration[plain]
        for i in range(min(5, size // 4)):
            later = rest[i + 1 :]
            if (
                later.size < 4
                or duration[i] <= 2 * np.median(later)
                or duration[i] <= 1.5 * np.percentile(later, 98)
            ):
                break
            plain[i] = False
        plain[0] = False
    return np.asarray(plain, dtype=bool)


def _training_loader(lines: Sequence[Mapping[str, Any]], loaders: Mapping[int, Any]) -> int | None:
    """The loader that delivered most training batches."""
    training = Counter(
        r.get("loader") for r in lines if r.get("event") == "batch" and r.get("training", True)
    )
    counts = training or Counter(r.get("loader") for r in lines if r.get("event") == "batch")
    for loader, _ in counts.most_common():
        if loader in loaders:
            return int(loader)  # type: ignore[arg-type]
    return min(loaders) if loaders else None


_ARGUMENTS = (
    "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "dataset_len", "in_order", "dataset", "dataset_kind",
    "shards", "loader", "file", "line", "drop_last", "multiprocessing_context", "sampler", "collate_fn", "dataset_module",
    "dataset_format", "getitems",
)  # fmt: skip


def _settings(
    loader: Mapping[str, Any] | None, batches: Sequence[Mapping[str, Any]], process: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if loader is not None:
        found = {key: loader[key] for key in _ARGUMENTS if loader.get(key) is not None}
        storage = loader.get("storage")
        if isinstance(storage, Mapping) and storage.get("type"):
            found["file_system"] = str(storage["type"])
        batch = loader.get("batch_size")
        if batch is None:
            samples = floats(batches, "samples")
            samples = samples[samples > 0]
            batch = int(np.median(samples)) if samples.size else None
        if batch:
            found["batch_size"] = batch
        found = plausible(found)
    cpu = process.get("cpu") if isinstance(process.get("cpu"), Mapping) else {}
    counts = [cpu.get(key) for key in ("affinity", "quota", "count")] if isinstance(cpu, Mapping) else []
    usable = [c for c in counts if isinstance(c, int | float) and c > 0]
    if usable:
        found["cpu_count"] = max(int(min(usable)), 1)
    return found


def _fetches(rows: Sequence[Mapping[str, Any]]) -> Fetches:
    in_main = bool(rows) and "fetch_ms" in rows[0]
    t1 = integers(rows, "t1")
    t0 = integers(rows, "t0")
    if in_main:
        # in the main process next() is the fetch, collation included
        t0 = np.where(
            np.isfinite(floats(rows, "fetch_ms")),
            t1 - (floats(rows, "fetch_ms", 0.0) * 1e6).astype(np.int64),
            t0,
        )
    return Fetches(
        integers(rows, "loader"), integers(rows, "worker"), integers(rows, "batch"), integers(rows, "epoch"), t0, t1,
        floats(rows, "cpu_ms"), floats(rows, "io_wait_ms"), floats(rows, "run_delay_ms"), floats(rows, "collate_ms"),
        floats(rows, "bytes"), floats(rows, "rss"), floats(rows, "slowest_sample_ms"), floats(rows, "samples"),
        floats(rows, "read_bytes"), floats(rows, "rchar"), floats(rows, "syscr"),
    )  # fmt: skip
