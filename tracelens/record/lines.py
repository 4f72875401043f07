"""Append-only JSON lines of a process that may be killed, on a disk that may fill up."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tracelens.errors import OutputError

_encode = msgspec.json.Encoder().encode


class LineFile:
    """One file; a line is one write, so that lines of several writers never mix. Not for use after ``close``.

    A line that does not fit on the disk is dropped and counted, and never damages the next one.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
        self._cut = False
        self.dropped = 0

    def write(self, line: object) -> int:
        """Append one object; the bytes written (0: dropped)."""
        data = _encode(line) + b"\n"
        if self._cut:
            data = b"\n" + data
        try:
            written = os.write(self._fd, data)
        except OSError:
            self.dropped += 1  # a full disk may have room again later
            return 0
        self._cut = written < len(data)
        if self._cut:
            self.dropped += 1
        return written

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
