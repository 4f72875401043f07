"""From a finished profiler to a verified .json.gz in the bundle."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import tempfile
from typing import Any, Mapping, Optional, Tuple

from .redact import Redactor

_CHUNK = 1 << 20
_KERNEL = b'"cat": "kernel"'
_HOST = re.compile(rb'("host_name": ")[^"]*(")')


class TraceError(RuntimeError):
    """The exported file is too large, or cannot be read back; ``plain`` is its size in plain text."""

    plain = 0


def export(profiler: Any, path: str, redactor: Redactor, limit: int) -> "Tuple[int, int, int]":
    """Write the profiler's trace to ``path`` (gzip); returns its size, the kernels in it, and its size in plain text.

    torch writes to a node-local temporary file first. Names are taken out line by line on the way. Raises
    TraceError where the trace is larger than ``limit`` bytes uncompressed, or does not read back whole.
    """
    handle, plain = tempfile.mkstemp(prefix="tracelens-", suffix=".json")
    os.close(handle)
    partial = path + ".partial"
    try:
        profiler.export_chrome_trace(plain)
        size = os.path.getsize(plain)
        if size > limit:
            error = TraceError("it has {} MB, more than the {} MB allowed".format(size >> 20, limit >> 20))
            error.plain = size
            raise error
        kernels = 0
        last = b""
        with open(plain, "rb") as source, gzip.open(partial, "wb", compresslevel=2) as target:
            for line in _lines(source):
                kernels += line.count(_KERNEL)
                clean = _clean(line, redactor)
                target.write(clean)
                last = clean.strip() or last
        _verify(partial, last)
        os.replace(partial, path)
        return os.path.getsize(path), kernels, size
    finally:
        for leftover in (plain, partial):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)


def _lines(source: Any) -> Any:
    """Blocks of about 1 MB that end at a line's end."""
    while True:
        block = source.read(_CHUNK)
        if not block:
            return
        if not block.endswith(b"\n"):
            block += source.readline()
        yield block


def _clean(block: bytes, redactor: Redactor) -> bytes:
    if redactor.off:
        return block
    block = _HOST.sub(b"\\1<host>\\2", block)
    for pattern, word in redactor.byte_pairs:
        block = pattern.sub(word, block)
    return block


def _verify(path: str, last: bytes) -> None:
    """Read the file back to its end (this checks gzip's CRC); its tail must be what was written, and the list of
    events must be closed there: on a full disk torch itself writes half a file without a word."""
    tail = b""
    with gzip.open(path, "rb") as file:
        while True:
            block = file.read(_CHUNK)
            if not block:
                break
            tail = (tail + block)[-8192:]
    end = tail.strip()
    closed = end.endswith((b"}", b"]")) and end.rfind(b"]") > end.rfind(b'"ph"')
    if not closed or not end.endswith(last[-64:]):
        raise TraceError("the trace file is not whole")


def missing_kernels(torch: Any, with_cuda: bool, environment: Mapping[str, str]) -> Optional[str]:
    """Why a window holds no kernels."""
    if not getattr(torch.version, "cuda", None) and not getattr(torch.version, "hip", None):
        return "no GPU: torch is built without CUDA"
    if not torch.cuda.is_initialized():
        return "no GPU: the job has not initialised CUDA in this process"
    if not with_cuda:
        if environment.get("CUDA_INJECTION64_PATH"):
            return "another profiler holds CUPTI (CUDA_INJECTION64_PATH is set), and CUPTI allows one client"
        return "this torch cannot record CUDA activity (Kineto without CUPTI)"
    with contextlib.suppress(OSError):  # not an NVIDIA driver, or hidden by a container
        with open("/proc/driver/nvidia/params", encoding="ascii", errors="replace") as file:
            restricted = "RmProfilingAdminOnly: 1" in file.read()
        if restricted and os.geteuid() != 0:
            return (
                "CUPTI delivered nothing; the driver restricts profiling to administrators "
                "(NVreg_RestrictProfilingToAdminUsers=1)"
            )
    return (
        "CUPTI delivered nothing: another client may hold it, or libcupti could not be initialised "
        "(see tracelens doctor)"
    )
