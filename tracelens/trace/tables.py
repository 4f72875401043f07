"""What a trace holds once read: columns of host events, device activities and allocator events.

Times are int64 nanoseconds on the file's own clock; ``base_ns`` turns them into Unix time where the file says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Flags = NDArray[np.int8]


class Host(IntEnum):
    """Kinds of host event."""

    OPERATOR = 0
    ANNOTATION = 1
    RUNTIME = 2
    PYTHON = 3
    OVERHEAD = 4


class Device(IntEnum):
    """Kinds of device activity."""

    KERNEL = 0
    COMMUNICATION = 1
    H2D = 2
    D2H = 3
    D2D = 4
    P2P = 5
    MEMSET = 6


class Pin(IntEnum):
    """Kind of host memory on the other end of a copy."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2


@dataclass(frozen=True, slots=True)
class HostEvents:
    """Spans on host threads, sorted by start then by longest first, so that parents precede children.

    ``name`` indexes ``TraceTables.names``, ``thread`` its threads, ``shape`` its shapes (-1: none);
    ``corr`` joins runtime calls to device activities, ``ext`` operators to calls (-1: none).
    """

    kind: Flags
    name: Codes
    thread: Codes
    start: Ints
    end: Ints
    corr: Ints
    ext: Ints
    shape: Codes

    def __len__(self) -> int:
        return int(self.start.size)

    def take(self, index: NDArray[Any]) -> HostEvents:
        """The rows that an index or a mask selects."""
        return HostEvents(*(getattr(self, name)[index] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Kernels, copies and memsets, sorted by start. ``bytes`` is -1 where unknown; ``threads`` is grid * block size.

    ``launch`` is the row in ``TraceTables.host`` of the call that launched it, -1 where it was not recorded.
    """

    kind: Flags
    name: Codes
    device: Codes
    stream: Ints
    start: Ints
    end: Ints
    corr: Ints
    ext: Ints
    bytes: Ints
    pin: Flags
    blocks: Ints
    block_threads: Ints
    warps_per_sm: NDArray[np.float64]
    launch: Ints

    def __len__(self) -> int:
        return int(self.start.size)

    def take(self, index: NDArray[Any]) -> DeviceEvents:
        """The rows that an index or a mask selects."""
        return DeviceEvents(*(getattr(self, name)[index] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Allocator events: running totals in bytes after each change; ``device`` is -1 for host memory."""

    time: Ints
    device: Codes
    bytes: Ints
    allocated: Ints
    reserved: Ints

    def __len__(self) -> int:
        return int(self.time.size)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as its kernel tells: ``kind`` ("allreduce", ...), bytes of the larger of its two messages, ranks."""

    kind: str
    bytes: int
    ranks: int


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What had to be done to read the file, for the quality notes."""

    events: int = 0
    skipped: int = 0
    repaired: int = 0
    truncated: bool = False
    zero_time: int = 0
    clock_shift_ns: int = 0
    dialect: str = "current"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceTables:
    """One rank's trace. ``threads`` are (pid, tid) labels, ``thread_names`` what the file calls them.

    ``collectives`` are what communication kernels say of their messages, by correlation id.
    """

    host: HostEvents
    device: DeviceEvents
    memory: MemoryEvents
    names: Sequence[str]
    threads: Sequence[tuple[str, str]]
    thread_names: Mapping[int, str]
    shapes: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    base_ns: int
    has_base: bool
    report: ReadReport = field(default_factory=ReadReport)
    collectives: Mapping[int, Collective] = field(default_factory=dict)

    @property
    def extent(self) -> tuple[int, int]:
        """First start and last end of anything recorded, in ns."""
        starts = [t[0] for t in (self.host.start, self.device.start) if t.size]
        ends = [t.max() for t in (self.host.end, self.device.end) if t.size]
        return (int(min(starts)), int(max(ends))) if starts else (0, 0)

    def named(self, *prefixes: str) -> NDArray[np.bool_]:
        """For each entry of ``names``, whether it starts with one of the prefixes."""
        return np.fromiter((n.startswith(prefixes) for n in self.names), dtype=bool, count=len(self.names))

    @property
    def rank(self) -> int | None:
        """The rank as the file's distributedInfo gives it."""
        info = self.metadata.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, Mapping) else None
        return int(rank) if isinstance(rank, int | str) and str(rank).lstrip("-").isdigit() else None

    @property
    def world_size(self) -> int | None:
        """The number of ranks of the job as the file's distributedInfo gives it."""
        info = self.metadata.get("distributedInfo")
        size = info.get("world_size") if isinstance(info, Mapping) else None
        return int(size) if isinstance(size, int | str) and str(size).isdigit() else None

    def device_properties(self, index: int) -> Mapping[str, Any]:
        """The properties of a device as the file lists them; empty where it does not."""
        listed = self.metadata.get("deviceProperties")
        if not isinstance(listed, Sequence):
            return {}
        rows = [row for row in listed if isinstance(row, Mapping)]
        return next((row for row in rows if row.get("id") == index), {})
