"""One process as the kernel accounts for it: hot fields from an open /proc/<pid>/stat, the rest now and then.

Field numbers: proc(5). A fresh reader has no rates: the first value is None, not 0. An open stat file stays
bound to its process, so that a recycled pid is never mistaken for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/<pid>/stat that we use. ``start_ticks``: since boot; ``cpu_s``: user and system."""

    name: str
    state: str
    ppid: int
    cpu_s: float
    majflt: int
    num_threads: int
    start_ticks: int
    rss: int


def parse_stat(data: bytes) -> Stat | None:
    """The fields; None for a cut or empty read. The name may hold spaces and brackets."""
    left, right = data.find(b"("), data.rfind(b")")
    fields = data[right + 2 :].split(None, 22)
    if left < 0 or right < left or len(fields) < 22:
        return None
    # fields[0] is field 3 of proc(5)
    return Stat(
        name=data[left + 1 : right].decode("utf-8", "replace"),
        state=chr(fields[0][0]),
        ppid=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        majflt=int(fields[9]),
        num_threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss=int(fields[21]) * _PAGE,
    )


def read_stat(pid: int) -> Stat | None:
    """The stat of a process; None when it is gone."""
    data = read_bytes(f"/proc/{pid}/stat")
    return parse_stat(data) if data else None


def read_bytes(path: str, size: int = 4096) -> bytes | None:
    """The start of a small /proc file; None when the process is gone or the file may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, size)
    except OSError:
        return None
    finally:
        os.close(fd)


def children(pid: int) -> list[int] | None:
    """The direct children of every thread; None where the kernel has no such file or the process is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    found: list[int] = []
    known = False
    for thread in threads:
        data = read_bytes(f"/proc/{pid}/task/{thread}/children", 65536)
        if data is not None:
            known = True
            found.extend(int(word) for word in data.split())
    return found if known else None


def all_parents() -> dict[int, int]:
    """pid -> parent of every visible process: the slow way to find children."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            parents[int(name)] = stat.ppid
    return parents


def command_line(pid: int) -> list[str]:
    """The arguments of a process; nothing when it is gone or a zombie."""
    data = read_bytes(f"/proc/{pid}/cmdline", 65536) or b""
    return [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]


class Process:
    """A followed process. ``hot`` is cheap and for every tick; ``threads`` costs a few calls a thread."""

    __slots__ = ("_fd", "_last_cpu", "_last_ctx", "_last_delay", "_last_fault", "_last_seen", "pid", "stat")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        stat = self._read()
        if stat is None:
            os.close(self._fd)
            raise ProcessLookupError(pid)
        self.stat = stat
        self._last_cpu: float | None = None
        self._last_seen = 0
        self._last_fault: int | None = None
        self._last_delay: dict[str, int] | None = None
        self._last_ctx: dict[str, int] | None = None

    def close(self) -> None:
        """Give the open file back."""
        os.close(self._fd)

    def _read(self) -> Stat | None:
        try:
            return parse_stat(os.pread(self._fd, 2048, 0))
        except OSError:
            return None  # ESRCH: the process is gone

    def hot(self, now_ns: int) -> dict[str, object] | None:
        """cpu_percent (100 = one core), rss, num_threads, majflt since the last call; None when it is gone.

        ``now_ns``: a monotonic clock.
        """
        stat = self._read()
        if stat is None or stat.state in "ZX":
            return None
        cpu_percent: float | None = None
        majflt: int | None = None
        if self._last_cpu is not None and now_ns > self._last_seen:
            cpu_percent = round(max(0.0, stat.cpu_s - self._last_cpu) * 1e11 / (now_ns - self._last_seen), 1)
        if self._last_fault is not None:
            majflt = max(0, stat.majflt - self._last_fault)
        self.stat, self._last_cpu, self._last_fault, self._last_seen = stat, stat.cpu_s, stat.majflt, now_ns
        return {
            "cpu_percent": cpu_percent,
            "rss": stat.rss,
            "num_threads": stat.num_threads,
            "majflt": majflt,
        }

    def read_bytes(self) -> int | None:
        """Bytes that the process made the storage read, cumulative; None where it may not be asked."""
        data = read_bytes(f"/proc/{self.pid}/io")
        for line in (data or b"").splitlines():
            if line.startswith(b"read_bytes:"):
                return int(line[11:])
        return None

    def run_delay_ms(self) -> float | None:
        """Time that its threads were runnable without a core since the last call; None at first or unknown.

        /proc/<pid>/schedstat is about the first thread only, so every thread is asked. A thread that ended
        in between takes its last wait with it.
        """
        now = self._per_thread("schedstat", lambda data: int(data.split()[1]))
        before, self._last_delay = self._last_delay, now
        if now is None or before is None:
            return None
        return round(sum(max(0, value - before.get(thread, 0)) for thread, value in now.items()) / 1e6, 3)

    def ctx_involuntary(self) -> int | None:
        """Times that its threads lost their core while runnable since the last call; None at first."""
        now = self._per_thread("status", _nonvoluntary)
        before, self._last_ctx = self._last_ctx, now
        if now is None or before is None:
            return None
        return sum(max(0, value - before.get(thread, 0)) for thread, value in now.items())

    def affinity(self) -> list[int] | None:
        """The cores that the process may use; None where it may not be asked."""
        try:
            return sorted(os.sched_getaffinity(self.pid))
        except OSError:
            return None

    def _per_thread(self, name: str, parse: object) -> dict[str, int] | None:
        assert callable(parse)
        try:
            threads = os.listdir(f"/proc/{self.pid}/task")
        except OSError:
            return None
        found: dict[str, int] = {}
        for thread in threads:
            data = read_bytes(f"/proc/{self.pid}/task/{thread}/{name}")
            if data:
                try:
                    found[thread] = parse(data)
                except (ValueError, IndexError):
                    return None  # another kernel's format: unknown, not zero
        return found or None


def _nonvoluntary(data: bytes) -> int:
    at = data.rindex(b"nonvoluntary_ctxt_switches:")
    return int(data[at + 27 :].split(None, 1)[0])
