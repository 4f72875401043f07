"""Append-only JSON lines that never fail the job, and cost a step next to nothing."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Callable, List, Mapping, Optional

FLUSH_NS = 500_000_000
WORKER_FLUSH_NS = (
    100_000_000  # a job that leaves its loop ends with its workers killed, whatever they still hold
)
_FLUSH_LINES = 2000
_RETRY_NS = 5_000_000_000
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class Log:
    """One file. Lines are kept for at most ``every_ns`` of writing, then encoded and written together: a killed
    process loses no more than that. ``on_error`` is told once, when lines could not be written; they are then
    dropped and writing is tried again every 5 s (a full disk may be freed).
    """

    def __init__(self, path: str, on_error: Callable[[str, OSError], None], every_ns: int = FLUSH_NS) -> None:
        self.path = path
        self.dropped = 0
        self._on_error = on_error
        self._every_ns = every_ns
        self._told = False
        self._fd: Optional[int] = None
        self._buffer: List[Mapping[str, Any]] = []
        self._flushed = 0
        self._retry_at = 0
        self._torn = False

    def write(self, record: Mapping[str, Any], urgent: bool = False) -> None:
        """Append one object as a line; an urgent one is in the file on return. ``record`` must not change."""
        now = time.monotonic_ns()
        if now < self._retry_at:
            self.dropped += 1
            return
        self._buffer.append(record)
        if urgent or now - self._flushed > self._every_ns or len(self._buffer) >= _FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system (no fsync: a killed process loses nothing of it)."""
        if not self._buffer:
            return
        records, self._buffer = self._buffer, []
        data = "".join([_encode(record) + "\n" for record in records]).encode("utf-8", "replace")
        self._flushed = time.monotonic_ns()
        whole = 0
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if self._torn:
                data = b"\n" + data
            written = os.write(self._fd, data)
            self._torn = data[:written][-1:] != b"\n"
            whole = data[:written].count(b"\n") - (data[:1] == b"\n")
            if written < len(data):
                os.write(self._fd, data[written:])  # the disk is full: this raises and says why
                self._torn = False
        except OSError as error:
            self.dropped += len(records) - whole
            self._retry_at = self._flushed + _RETRY_NS
            if not self._told:
                self._told = True
                self._on_error(self.path, error)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self.forget()

    def forget(self) -> None:
        """Drop the file without flushing (in a forked child, whose parent writes these lines itself)."""
        self._buffer = []
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with contextlib.suppress(OSError):  # somebody closed every descriptor: nothing is left to do
                os.close(fd)
