"""Times what a fetcher does for one batch: samples, collate, CPU, and waiting; in a worker or in the job itself."""

from __future__ import annotations

import functools
import os
import resource
import threading
import time
from typing import Any, Dict, Optional, Union

_SMALL_NS = 300_000  # below this a fetch is cheaper than reading /proc twice
_READS_EVERY = 4  # in the training thread reads are counted at every fourth fetch: it costs 6 us
_SAMPLE_NS = 100_000  # from this mean sample time on, single samples are timed
_TICK_MS = 1000.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Reader:
    """Reads open files of /proc, and knows by how much that itself makes the kernel's counts of reads grow."""

    def __init__(self) -> None:
        self._calls = 0
        self._bytes = 0

    def text(self, fd: Optional[int]) -> Optional[bytes]:
        """What the file says now, None where it cannot be read."""
        if fd is None:
            return None
        try:
            data = os.pread(fd, 4096, 0)
        except OSError:
            return None
        self._calls += 1
        self._bytes += len(data)
        return data

    def reads(self, fd: Optional[int]) -> Dict[str, Optional[float]]:
        """Of /proc/<pid>/io: bytes from storage (``read_bytes``), bytes and calls of read (``rchar``, ``syscr``), less
        this reader's own."""
        own = {b"rchar": self._bytes, b"syscr": self._calls, b"read_bytes": 0}
        found: Dict[str, Optional[float]] = dict.fromkeys(("rchar", "syscr", "read_bytes"))
        for line in (self.text(fd) or b"").splitlines():
            name, _, value = line.partition(b":")
            if name in own:
                found[name.decode()] = float(value) - own[name]
        return found


class ProcFiles:
    """The kernel's accounts of this thread and process, kept open; what cannot be read is None."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._delay = _open("/proc/thread-self/schedstat")
        self._io = _open("/proc/self/io")
        self._stat = _open("/proc/thread-self/stat") if _has_delay_accounting() else None
        self._statm = _open("/proc/self/statm")

    def read(self, turn: int = 0) -> Dict[str, Optional[float]]:
        """Run delay and block-I/O wait (ms), and what ``Reader.reads`` says, all since the start."""
        delay = self._reader.text(self._delay)
        stat = self._reader.text(self._stat)
        return {
            "run_delay_ms": None if delay is None else int(delay.split()[1]) / 1e6,
            "io_wait_ms": None if stat is None else int(stat.rsplit(b")", 1)[1].split()[39]) * _TICK_MS,
            **self._reader.reads(self._io),
        }

    def rss(self) -> Optional[int]:
        """Resident memory of the process."""
        text = self._reader.text(self._statm)
        return None if text is None else int(text.split()[1]) * _PAGE


class DelayFile:
    """How long this thread waited for a core, and what it read: of the training thread, where it makes batches itself."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._delay = _open("/proc/thread-self/schedstat")
        self._io = _open("/proc/thread-self/io")
        self.owner = (os.getpid(), threading.get_native_id())

    def read(self, turn: int = 0) -> Dict[str, Optional[float]]:
        """Run delay (ms) and, every fourth ``turn``, what ``Reader.reads`` says, since the start of the thread."""
        delay = self._reader.text(self._delay)
        found = {"run_delay_ms": None if delay is None else int(delay.split()[1]) / 1e6}
        return found if turn % _READS_EVERY else {**found, **self._reader.reads(self._io)}

    def rss(self) -> Optional[int]:
        """Not asked for here: the step log has it."""
        return None

    def close(self) -> None:
        """Let the files go."""
        for fd in (self._delay, self._io):
            if fd is not None:
                os.close(fd)
        self._delay = self._io = None


_delay_file: Optional[DelayFile] = None


def delay_file() -> DelayFile:
    """The one of this thread, opened once; a forked process or another thread that takes over gets its own."""
    global _delay_file
    if _delay_file is None or _delay_file.owner != (os.getpid(), threading.get_native_id()):
        if _delay_file is not None:
            _delay_file.close()
        _delay_file = DelayFile()
    return _delay_file


def _open(path: str) -> Optional[int]:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _has_delay_accounting() -> bool:
    """Since Linux 5.14 block-I/O delays are counted only where the administrator switched that on."""
    try:
        with open("/proc/sys/kernel/task_delayacct", "rb") as file:
            return file.read(1) == b"1"
    except OSError:
        return True  # older kernels always count


class SampleTimer:
    """Stands for the dataset inside the fetcher and notes the slowest sample."""

    def __init__(self, dataset: Any, meter: "Meter") -> None:
        self._dataset = dataset
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # not there yet while being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __getitem__(self, index: Any) -> Any:
        start = time.perf_counter_ns()
        sample = self._dataset[index]
        spent = time.perf_counter_ns() - start
        if spent > self._meter.slowest:
            self._meter.slowest = spent
        return sample


class Meter:
    """The account of one fetcher; ``last`` is the newest batch's."""

    def __init__(self, proc: "Union[ProcFiles, DelayFile, None]") -> None:
        self.last: Optional[Dict[str, Any]] = None
        self.slowest = 0
        self.collate = 0
        self._proc = proc
        self._small = False
        self._count = 0
        self._before: Optional[Dict[str, Optional[float]]] = None

    def attach(self, fetcher: Any) -> None:
        """Time ``fetcher``'s collate function."""
        collate = fetcher.collate_fn

        def timed(samples: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return collate(samples)
            finally:
                self.collate += time.perf_counter_ns() - start

        fetcher.collate_fn = timed
        fetcher.__dict__["_tracelens"] = self

    def begin(self) -> "tuple[int, int, int]":
        """Just before the fetch."""
        self.collate = 0
        self.slowest = 0
        self.last = None
        proc = self._proc
        self._before = (
            proc.read(self._count) if proc is not None and (not self._small or not self._count % 16) else None
        )
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt if proc is not None else 0
        return time.time_ns(), time.thread_time_ns(), faults

    def end(self, fetcher: Any, begun: "tuple[int, int, int]", samples: Optional[int]) -> Dict[str, Any]:
        """Just after it; ``samples`` is the number of indices asked for, where they were a list."""
        cpu = time.thread_time_ns()
        now = time.time_ns()
        start, cpu_start, faults = begun
        wall = now - start
        found: Dict[str, Any] = {
            "t0": start, "t1": now, "cpu_ms": round((cpu - cpu_start) / 1e6, 4), "collate_ms": round(self.collate / 1e6, 4),
        }  # fmt: skip
        proc = self._proc
        if proc is not None:
            if self._before is not None:
                for name, value in proc.read(self._count).items():
                    before = self._before[name]
                    found[name] = None if value is None or before is None else round(value - before, 3)
            found["majflt"] = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
            found["rss"] = proc.rss()
        if self.slowest:
            found["slowest_sample_ms"] = round(self.slowest / 1e6, 4)
        self._small = wall < _SMALL_NS
        self._count += 1
        if samples and not self.slowest and (wall - self.collate) / samples > _SAMPLE_NS:
            self._time_samples(fetcher)
        self.last = found
        return found

    def _time_samples(self, fetcher: Any) -> None:
        dataset = getattr(fetcher, "dataset", None)
        whole = getattr(dataset, "__getitems__", None)
        plain = not whole and hasattr(type(dataset), "__getitem__") and not hasattr(fetcher, "dataset_iter")
        if plain and not isinstance(dataset, SampleTimer):
            fetcher.dataset = SampleTimer(dataset, self)


def wrap(original: Any, done: Any, failed: Any) -> Any:
    """``fetch`` of a fetcher class with its meter, if it has one, around it.

    ``done(record, data, error)`` is told of every fetch, ``failed(error)`` of anything of ours that breaks.
    """

    @functools.wraps(original)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        meter = self.__dict__.get("_tracelens")
        if meter is None:
            return original(self, possibly_batched_index)
        begun = None
        try:
            begun = meter.begin()
        except Exception as error:
            failed(error)
        problem: Optional[BaseException] = None
        data = None
        try:
            data = original(self, possibly_batched_index)
            return data
        except BaseException as error:
            problem = error
            raise
        finally:
            if begun is not None and not isinstance(problem, StopIteration):
                try:
                    indices = possibly_batched_index
                    count = len(indices) if isinstance(indices, (list, tuple)) else None
                    done(meter.end(self, begun, None if problem else count), data, problem)
                except Exception as error:
                    failed(error)
            problem = data = None

    return fetch
