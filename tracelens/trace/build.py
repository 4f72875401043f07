"""Decoded events into columns: names, threads and shapes interned, times as integer nanoseconds, launches joined."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.trace import dialects
from tracelens.trace.tables import (
    Collective,
    Device,
    DeviceEvents,
    Host,
    HostEvents,
    MemoryEvents,
    Pin,
    ReadReport,
    TraceTables,
)
from tracelens.trace.threads import merged_threads

_UNKNOWN = -1
_LAST_TIME = 4e15  # us, the year 2096: the nanoseconds of a start and a duration still add up in 64 bits


class TableBuilder:
    """Collects events piece by piece; ``finish`` sorts, joins and returns the tables."""

    def __init__(self) -> None:
        self.events = self.skipped = self.repaired = self.zero_time = 0
        self.truncated = False
        self.old_dialect = False
        self.notes: list[str] = []
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[str, str], int] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.shapes: dict[tuple[bytes, bytes, bytes], int] = {}
        self._host: list[tuple[Any, ...]] = []
        self._device: list[tuple[Any, ...]] = []
        self._memory: list[tuple[Any, ...]] = []
        self._sizes: dict[int, int] = {}
        self._collectives: dict[int, Collective] = {}

    def add(self, events: Iterable[Any]) -> None:
        """Adds one piece's events (``reader.Event`` structs)."""
        host: list[tuple[Any, ...]] = []
        device: list[tuple[Any, ...]] = []
        memory: list[tuple[Any, ...]] = []
        names, threads = self.names, self.threads
        host_kinds: dict[tuple[str, str], int] = {}
        for event in events:
            self.events += 1
            phase = event.ph
            if phase == "X":
                category = event.cat
                name = event.name
                if category is None or event.ts is None:
                    continue
                if type(name) is not str:
                    name = str(name)
                which = dialects.DEVICE_CATEGORIES.get(category)
                if which is None:
                    key = (category, name)
                    kind = host_kinds.get(key)
                    if kind is None:
                        kind = host_kinds[key] = dialects.host_kind(category, name)
                        if kind < 0 and category in dialects.OLD_DEVICE_CATEGORIES:
                            kind = host_kinds[key] = -2
                        if category in dialects.OLD_CATEGORIES:
                            self.old_dialect = True
                    if kind >= 0:
                        thread_key = (event.pid, event.tid)
                        thread = threads.get(thread_key)
                        if thread is None:
                            thread = self._thread(event.pid, event.tid)
                        args = event.args
                        corr = ext = shape = _UNKNOWN
                        if args is not None:
                            if args.correlation is not None:
                                corr = _int(args.correlation)
                            if args.external is not None:
                                ext = _int(args.external)
                            elif args.external_old is not None:
                                ext = _int(args.external_old)
                            if kind == Host.OPERATOR and (args.dims or args.dims_old):
                                shape = self._shape(args)
                            elif args.size is not None and corr >= 0:
                                self._sizes[corr] = _int(args.size)
                        host.append(
                            (
                                kind,
                                names.setdefault(name, len(names)),
                                thread,
                                event.ts,
                                event.dur,
                                corr,
                                ext,
                                shape,
                            )
                        )
                        continue
                    if kind != -2:
                        continue
                    which = dialects.OLD_DEVICE_CATEGORIES[category]
                    self.old_dialect = True
                device.append(self._device_row(which, name, event))
            elif phase == "i" or phase == "I":
                if event.name == "[memory]" and event.args is not None and event.ts is not None:
                    args = event.args
                    on_device = _int(args.device_type) not in (0, _UNKNOWN)
                    memory.append(
                        (event.ts, _int(args.device_id) if on_device else _UNKNOWN, _int(args.memory_bytes, 0),
                         _int(args.allocated), _int(args.reserved))
                    )  # fmt: skip
            elif phase == "M" and event.name == "thread_name" and event.args is not None and event.args.name:
                self.thread_names[(str(event.pid), str(event.tid))] = str(event.args.name)
        host, device, memory = self._timed(host, 3, 4), self._timed(device, 4, 5), self._timed(memory, 0)
        if host:
            kinds, codes, on, ts, dur, corrs, exts, shapes = zip(*host, strict=True)
            start = nanoseconds(ts)
            end = start + np.maximum(nanoseconds(dur), 0)
            self._host.append((
                np.array(kinds, np.int8), np.array(codes, np.int32), np.array(on, np.int32), start, end,
                self._integers(corrs), self._integers(exts), np.array(shapes, np.int32),
            ))  # fmt: skip
        if device:
            columns = list(zip(*device, strict=True))
            start = nanoseconds(columns[4])
            end = start + np.maximum(nanoseconds(columns[5]), 0)
            dtypes = (np.int8, np.int32, np.int32, np.int64, None, None, np.int64, np.int64, np.int64, np.int8,
                      np.int64, np.int64, np.float64)  # fmt: skip
            arrays = [
                start if i == 4 else end if i == 5
                else np.array(c, dtypes[i]) if dtypes[i] is np.float64 else self._integers(c, dtypes[i])
                for i, c in enumerate(columns)
            ]  # fmt: skip
            self._device.append(tuple(arrays))
        if memory:
            ts, index, change, allocated, reserved = zip(*memory, strict=True)
            self._memory.append((
                nanoseconds(ts), self._integers(index, np.int32), self._integers(change),
                self._integers(allocated), self._integers(reserved),
            ))  # fmt: skip

    def _timed(self, rows: list[tuple[Any, ...]], *columns: int) -> list[tuple[Any, ...]]:
        """The rows whose times are times; the others are dropped and counted."""
        if all(_are_times([row[c] for row in rows]) for c in columns):
            return rows
        kept = [row for row in rows if all(_are_times([row[c]]) for c in columns)]
        self.skipped += len(rows) - len(kept)
        return kept

    def _integers(self, values: Sequence[Any], dtype: Any = np.int64) -> NDArray[Any]:
        """A column; a number too large for it is damage: unknown, and counted."""
        try:
            return np.array(values, dtype)
        except OverflowError:
            limits = np.iinfo(dtype)
            fitting = [v if limits.min <= v <= limits.max else _UNKNOWN for v in values]
            self.repaired += sum(a is not b for a, b in zip(fitting, values, strict=True))
            return np.array(fitting, dtype)

    def _device_row(self, which: int, name: str, event: Any) -> tuple[Any, ...]:
        args = event.args
        pin = Pin.UNKNOWN
        corr = ext = size = blocks = block_threads = _UNKNOWN
        warps = np.nan
        device, stream = event.pid, event.tid
        wording = ""
        if args is not None:
            corr = _int(args.correlation)
            ext = _int(args.external if args.external is not None else args.external_old)
            size = _int(args.bytes)
            device = args.device if args.device is not None else device
            stream = args.stream if args.stream is not None else stream
            wording = str(args.kind or "")
            if args.grid and args.block:
                blocks, block_threads = _product(args.grid), _product(args.block)
            if isinstance(args.warps, int | float):
                warps = float(args.warps)
        if which == 0:
            kind = Device.COMMUNICATION if dialects.is_communication(name) else Device.KERNEL
            if args is not None and args.collective is not None and corr >= 0:
                width = dialects.element_width(str(args.dtype))
                elements = max(_int(args.received), _int(args.sent))
                if width and elements >= 0:
                    self._collectives[corr] = Collective(
                        dialects.collective_kind(str(args.collective)), elements * width, _int(args.ranks)
                    )
        elif which == 1:
            copy, host_memory = dialects.copy_kind(name, wording)
            kind, pin = Device(copy), Pin(host_memory)
        else:
            kind = Device.MEMSET
        return (
            kind, self.names.setdefault(name, len(self.names)), _int(device, 0), _stream(stream), event.ts, event.dur,
            corr, ext, size, pin, blocks, block_threads, warps,
        )  # fmt: skip

    def _thread(self, pid: Any, tid: Any) -> int:
        label = (_label(pid), _label(tid))
        index = self.threads.setdefault(label, len(set(self.threads.values())))
        self.threads[(pid, tid)] = index
        return index

    def _shape(self, args: Any) -> int:
        key = (bytes(args.dims or args.dims_old), bytes(args.types), bytes(args.concrete))
        return self.shapes.setdefault(key, len(self.shapes))

    def finish(self, metadata: dict[str, Any]) -> TraceTables:
        """The tables, sorted and joined; device events without a time are dropped and counted."""
        host = HostEvents(*_columns(self._host, _HOST_DTYPES))
        host = host.take(np.lexsort((-host.end, host.start)))
        labels = {
            index: key
            for key, index in reversed(list(self.threads.items()))
            if isinstance(key[0], str) and isinstance(key[1], str)
        }
        raw = _columns(self._device, _DEVICE_DTYPES)
        present = raw[4] > 0
        if len(host):
            # incomplete CUPTI records carry times far from anything else in the file
            margin = 60_000_000_000
            present &= (raw[4] > host.start[0] - margin) & (raw[5] < host.end.max() + margin)
        self.zero_time = int((~present).sum())
        raw = [column[present] for column in raw]
        order = np.argsort(raw[4], kind="stable")
        raw = [column[order] for column in raw]
        codes, threads = merged_threads(host, [labels[i] for i in range(len(labels))], raw[6])
        host = dataclasses.replace(host, thread=codes)
        launch = join_launches(host, raw[6])
        device = DeviceEvents(*(*raw, launch))
        self._fill_sizes(device)
        shift = clock_shift(host, device)
        if shift:
            device = DeviceEvents(*(
                getattr(device, n) + shift if n in ("start", "end") else getattr(device, n) for n in device.__slots__
            ))  # fmt: skip
        base = metadata.get("baseTimeNanoseconds")
        if isinstance(base, int | float) and not abs(base) <= _LAST_TIME * 1000:
            self.notes.append("the file's baseTimeNanoseconds is not a time")
            base = None
        memory = MemoryEvents(*_columns(self._memory, _MEMORY_DTYPES))
        memory = MemoryEvents(
            *(getattr(memory, n)[np.argsort(memory.time, kind="stable")] for n in memory.__slots__)
        )
        return TraceTables(
            host=host,
            device=device,
            memory=memory,
            names=tuple(self.names),
            threads=threads,
            thread_names={i: self.thread_names[k] for i, k in enumerate(threads) if k in self.thread_names},
            shapes=tuple(_decoded(key) for key in self.shapes),
            metadata=metadata,
            base_ns=int(base) if isinstance(base, int | float) else 0,
            has_base=isinstance(base, int | float),
            report=ReadReport(
                events=self.events, skipped=self.skipped, repaired=self.repaired, truncated=self.truncated,
                zero_time=self.zero_time, clock_shift_ns=shift,
                dialect="old" if self.old_dialect else "current", notes=tuple(self.notes),
            ),
            collectives=self._collectives,
        )  # fmt: skip

    def _fill_sizes(self, device: DeviceEvents) -> None:
        """ROCm gives a copy's bytes with the call, not with the activity."""
        if not self._sizes:
            return
        for row in np.flatnonzero((device.bytes < 0) & (device.kind >= Device.H2D)):
            size = self._sizes.get(int(device.corr[row]), _UNKNOWN)
            device.bytes[row] = size if abs(size) < 1 << 63 else _UNKNOWN


_HOST_DTYPES = (np.int8, np.int32, np.int32, np.int64, np.int64, np.int64, np.int64, np.int32)
_DEVICE_DTYPES = (np.int8, np.int32, np.int32, np.int64, np.int64, np.int64, np.int64, np.int64, np.int64, np.int8,
                  np.int64, np.int64, np.float64)  # fmt: skip
_MEMORY_DTYPES = (np.int64, np.int32, np.int64, np.int64, np.int64)


def _columns(pieces: Sequence[tuple[Any, ...]], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    if not pieces:
        return [np.empty(0, dtype) for dtype in dtypes]
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def _are_times(values: Sequence[Any]) -> bool:
    try:
        floats = np.array([0.0 if v is None else v for v in values], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return False
    return floats.ndim == 1 and bool((np.abs(floats) <= _LAST_TIME).all())


def nanoseconds(values: Sequence[Any]) -> NDArray[np.int64]:
    """Microseconds as int, float or decimal text, to integer nanoseconds; None is 0."""
    if any(type(v) is str for v in values):
        return np.array([_exact(v) for v in values], dtype=np.int64)
    if all(type(v) is int for v in values):
        return np.array(values, dtype=np.int64) * 1000
    # below 9e12 us (the reader's limit) a float holds nanoseconds after the multiplication
    floats = np.array([0.0 if v is None else v for v in values], dtype=np.float64)
    return np.rint(np.nan_to_num(floats) * 1000).astype(np.int64)


def _exact(value: Any) -> int:
    if value is None:
        return 0
    try:
        return int((Decimal(str(value)) * 1000).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return 0


def join_launches(host: HostEvents, corr: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each device activity, the host row of the runtime call with its correlation id (-1: not recorded)."""
    rows = np.flatnonzero((host.corr > 0) & (host.kind == Host.RUNTIME))
    if rows.size == 0 or corr.size == 0:
        return np.full(corr.size, -1, dtype=np.int64)
    keys = host.corr[rows]
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    at = np.minimum(np.searchsorted(keys, corr), keys.size - 1)
    return np.where((corr > 0) & (keys[at] == corr), rows[at], -1).astype(np.int64)


def clock_shift(host: HostEvents, device: DeviceEvents) -> int:
    """Nanoseconds to add to device times where activities start before their launch (two clocks), else 0."""
    joined = device.launch >= 0
    if joined.sum() < 20:
        return 0
    lag = device.start[joined] - host.start[device.launch[joined]]
    if np.mean(lag < -2000) < 0.01:
        return 0
    return int(-np.percentile(lag, 0.5))


def _int(value: Any, default: int = _UNKNOWN) -> int:
    if type(value) is int:
        return value
    if value is None:
        return default
    try:
        number = int(float(value)) if isinstance(value, float) else int(str(value), 0)
    except (ValueError, OverflowError):
        return default
    return number


def _stream(value: Any) -> int:
    return _int(value.removeprefix("stream ") if isinstance(value, str) else value, 0)


def _label(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _product(values: Sequence[Any]) -> int:
    product = 1
    for value in values:
        product *= value if isinstance(value, int) else 1
    return product


def _decoded(key: tuple[bytes, bytes, bytes]) -> dict[str, Any]:
    decoded: dict[str, Any] = {}
    for name, part in zip(("dims", "types", "concrete"), key, strict=True):
        try:
            decoded[name] = json.loads(part.decode("utf-8", "replace"), strict=False) if part else []
        except (ValueError, RecursionError):
            decoded[name] = []
    return decoded
