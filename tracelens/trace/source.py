"""Bytes of a trace file: plain or gzip, whatever its suffix; several gzip members; cut off or damaged at the end."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracelens.errors import InputError

_inflate: Any = zlib
with contextlib.suppress(
    ImportError
):  # no wheel for this platform: the standard library does the same, slower
    from isal import isal_zlib as _inflate

CHUNK = 4 << 20
_GZIP = b"\x1f\x8b"
_OTHERS = (
    (
        b"SQLite format 3\x00",
        "is an SQLite file (an Nsight Systems export?); give the torch.profiler trace (.json or .json.gz)",
    ),
    (b"PK\x03\x04", "is a zip archive; unpack it and give the trace inside"),
    (b"\x28\xb5\x2f\xfd", "is zstd-compressed; decompress it first (zstd -d)"),
    (b"BZh", "is bzip2-compressed; decompress it first (bunzip2)"),
    (b"\xfd7zXZ", "is xz-compressed; decompress it first (unxz)"),
    (b"\x7fELF", "is a program, not a trace"),
    (b"\x89PNG", "is a picture, not a trace"),
    (b"%PDF", "is a PDF, not a trace"),
)
_NSIGHT_SUFFIXES = (".nsys-rep", ".qdrep", ".ncu-rep", ".qdstrm")


class Source:
    """Iterates over a file's decompressed bytes; ``truncated`` and ``damage`` say how it ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        self.damage: str | None = None
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        """Chunks of decompressed bytes. Raises InputError for what cannot be a trace."""
        try:
            with self.path.open("rb") as file:
                head = file.read(64)
                self._refuse(head)
                file.seek(0)
                chunks = self._gunzip(file) if head.startswith(_GZIP) else iter(lambda: file.read(CHUNK), b"")
                first = True
                for chunk in chunks:
                    if first and chunk:
                        _refuse_text(self.path, chunk)
                        first = False
                    self.size += len(chunk)
                    yield chunk
                if first and self.truncated:
                    raise InputError(f"{self.path} is a damaged gzip file: nothing of it can be read")
                if first:
                    raise InputError(f"{self.path} is compressed but holds nothing")
        except IsADirectoryError:
            raise InputError(f"{self.path} is a folder, not a trace file") from None
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from None

    def _refuse(self, head: bytes) -> None:
        if not head:
            raise InputError(f"{self.path} is empty; was the profiler stopped before it exported?")
        if self.path.suffix.lower() in _NSIGHT_SUFFIXES:
            raise InputError(
                f"{self.path} is an Nsight report; give the torch.profiler trace (.json or .json.gz) instead"
            )
        for magic, what in _OTHERS:
            if head.startswith(magic):
                raise InputError(f"{self.path} {what}")

    def _gunzip(self, file: Any) -> Iterator[bytes]:
        inflater = _inflate.decompressobj(wbits=31)
        pending = b""
        begin = written = 0  # of the member that is being read: its offset, the bytes it has given
        while True:
            pending = pending or file.read(CHUNK // 4)
            if not pending:
                break
            try:
                out = inflater.decompress(pending)
            except Exception as error:
                # isal and zlib raise their own classes; either way what came before the damage is kept
                yield from _until_damage(file, begin, written)
                if self.size == 0:
                    raise InputError(
                        f"{self.path} is a damaged gzip file: nothing of it can be read"
                    ) from None
                self.truncated, self.damage = True, f"gzip stream damaged after {self.size:,} bytes ({error})"
                return
            pending = b""
            written += len(out)
            if out:
                yield out
            if inflater.eof:
                rest = inflater.unused_data.lstrip(b"\x00") or file.read(CHUNK // 4).lstrip(b"\x00")
                if not rest.startswith(_GZIP):
                    return
                inflater, pending = _inflate.decompressobj(wbits=31), rest
                begin, written = file.tell() - len(rest), 0
        if not inflater.eof:
            self.truncated = True


def _until_damage(file: Any, begin: int, skip: int) -> Iterator[bytes]:
    """What a damaged gzip member at offset ``begin`` still gives, but for its first ``skip`` bytes."""
    file.seek(begin)
    inflater = zlib.decompressobj(wbits=31)
    given = 0
    while piece := file.read(4096):
        before = inflater.copy()
        try:
            out = inflater.decompress(piece)
        except zlib.error:
            # a decompressor that fails gives nothing of the piece: go through it byte by byte
            out = b""
            with contextlib.suppress(zlib.error):
                for at in range(len(piece)):
                    out += before.decompress(piece[at : at + 1])
            piece = b""
        given += len(out)
        fresh = out[-(given - skip) :] if given > skip else b""
        if fresh:
            yield fresh
            skip = given
        if not piece:
            return


def _refuse_text(path: Path, chunk: bytes) -> None:
    text = chunk.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return
    if text[:1] == b"<":
        raise InputError(f"{path} is HTML or XML, not a trace; download the raw file")
    if text.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer; fetch the real file with `git lfs pull`")
    if not text:
        raise InputError(f"{path} holds only white space")
    if b"\x00" in chunk[:4096] or sum(byte < 9 for byte in chunk[:4096]) > 8:
        raise InputError(f"{path} is a binary file, not a torch.profiler trace")
    raise InputError(f"{path} is not JSON; give a torch.profiler trace (.json or .json.gz)")
