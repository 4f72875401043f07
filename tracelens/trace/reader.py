"""A trace file in, TraceTables out: streamed, so that memory follows the tables and not the text.

The text is cut into pieces at event boundaries; each piece is decoded by a typed decoder, and only a piece that
fails is repaired event by event (unescaped quotes, lone backslashes, control characters, nan, a cut-off end).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tracelens.errors import InputError
from tracelens.trace.build import TableBuilder
from tracelens.trace.source import Source
from tracelens.trace.tables import TraceTables

_PIECE = 6 << 20
_HEADER_LIMIT = 64 << 20
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|id|args|dur)"\s*:)')
_NUMBER_LIMIT = 9.0e12  # above, a float no longer holds microseconds to the nanosecond

Number = int | float | str | None
_NONE = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False):
    """The arguments that we use, under the names of both dialects; the rest is skipped undecoded."""

    correlation: Number = None
    external: Number = msgspec.field(default=None, name="External id")
    external_old: Number = msgspec.field(default=None, name="external id")
    device: Number = None
    stream: Number = None
    bytes: Number = None
    size: Number = None
    kind: Number = None
    grid: list[Any] | None = None
    block: list[Any] | None = None
    warps: Number = msgspec.field(default=None, name="warps per SM")
    dims: msgspec.Raw = msgspec.field(default=_NONE, name="Input Dims")
    dims_old: msgspec.Raw = msgspec.field(default=_NONE, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=_NONE, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=_NONE, name="Concrete Inputs")
    memory_bytes: Number = msgspec.field(default=None, name="Bytes")
    allocated: Number = msgspec.field(default=None, name="Total Allocated")
    reserved: Number = msgspec.field(default=None, name="Total Reserved")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")
    name: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    received: Number = msgspec.field(default=None, name="In msg nelems")
    sent: Number = msgspec.field(default=None, name="Out msg nelems")
    ranks: Number = msgspec.field(default=None, name="Group size")
    dtype: Any = None


class Event(msgspec.Struct, gc=False):
    """One Chrome trace event."""

    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """An event whose times keep their digits, for microseconds that a float cannot hold to the nanosecond."""

    ts: Any = None
    dur: Any = None


_PLAIN = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[ExactEvent], float_hook=str)


def read_trace(path: Path | str) -> TraceTables:
    """The tables of a torch.profiler file (.json, .json.gz; old and new dialects). Raises InputError."""
    source = Source(Path(path))
    builder = TableBuilder()
    metadata = _stream(source, builder)
    if not builder.events:
        what = "a JSON file without traceEvents" if metadata is None else "a trace without a single event"
        raise InputError(f"{path} is {what}; give a torch.profiler trace")
    builder.truncated |= source.truncated
    if source.damage:
        builder.notes.append(source.damage)
    tables = builder.finish(metadata or {})
    if not len(tables.host) and not len(tables.device):
        raise InputError(
            f"{path} has no operator, runtime or kernel event; was anything run inside the profiler?"
        )
    return tables


def _stream(source: Source, builder: TableBuilder) -> dict[str, Any] | None:
    """Feeds every event to the builder; returns the file's other keys, None where there is no event array."""
    chunks = iter(source)
    buffer = b""
    header: bytes | None = None
    for chunk in chunks:
        buffer += chunk
        if header is None:
            found = _open_array(buffer)
            if found is None:
                if len(buffer) > _HEADER_LIMIT:
                    return None
                continue
            header, buffer = found
        if len(buffer) < _PIECE:
            continue
        cut = _last_boundary(buffer)
        if cut is None:
            continue
        piece, rest = buffer[: cut[0]], buffer[cut[1] :]
        tail = _feed(piece, builder)
        if tail is not None:  # the array ended inside: what follows is metadata
            rest = tail + buffer[cut[0] :] + b"".join(chunks)
            return _metadata(header, rest, builder)
        buffer = rest
    if header is None:
        return None
    tail = _feed(buffer, builder, last=True)
    return _metadata(header, tail or b"", builder)


def _open_array(buffer: bytes) -> tuple[bytes, bytes] | None:
    text = buffer.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return b"", text[1:]
    match = _ARRAY.search(text)
    return (text[: match.start()], text[match.end() :]) if match else None


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """Where to cut: (end of the last complete event, start of the next)."""
    for window in (1 << 16, 1 << 20, len(buffer)):
        low = max(0, len(buffer) - window)
        last = None
        for match in _BOUNDARY.finditer(buffer, low):
            last = match
        if last is not None and last.start() > 0:
            return last.start() + 1, last.end()
    return None


def _feed(piece: bytes, builder: TableBuilder, *, last: bool = False) -> bytes | None:
    """Decodes a piece and adds its events; returns what follows the array's end, None where it goes on."""
    if not last:
        events = _decode(b"[" + piece + b"]")
        if events is not None:
            builder.add(events)
            return None
    end = _array_end(piece)
    if end is not None:
        events = _decode(b"[" + piece[:end] + b"]")
        if events is not None:
            builder.add(events)
            return piece[end + 1 :]
    tail = piece[end + 1 :] if end is not None else None
    body = piece[:end] if end is not None else piece
    builder.add(_repair(body, builder, cut_off=last and end is None))
    return tail


# the bracket after the last event (some writers leave a comma there), before another key or the end of the file
_ARRAY_END = re.compile(rb'\}\s*,?\s*(\])\s*(?:,\s*"[^"\n]*"\s*:|\}\s*\Z|\Z)')
_EMPTY_ARRAY = re.compile(rb"\s*(\])")


def _array_end(piece: bytes) -> int | None:
    """Offset of the ``]`` that closes the event array."""
    match = _EMPTY_ARRAY.match(piece) or _ARRAY_END.search(piece)
    return match.start(1) if match else None


def _decode(text: bytes) -> Sequence[Event] | None:
    try:
        events = _PLAIN.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    except UnicodeDecodeError:
        return _decode(text.decode("utf-8", "replace").encode())
    if any(type(e.ts) is float and e.ts > _NUMBER_LIMIT for e in events):
        return _EXACT.decode(text)
    return events


_SPLIT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|id|args|dur)"\s*:)')
_BARE = re.compile(rb"(?<=[:\[,\s])-?(?:nan|NaN|inf|Infinity)(?=\s*[,}\]])")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_LONE_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrtu])|\\u(?![0-9a-fA-F]{4})')
_NAME = re.compile(
    rb'("(?:name|Call stack|Python module id|Module Hierarchy)"\s*:\s*")(.*?)("\s*(?:,\s*"|\}))', re.DOTALL
)


def _repair(body: bytes, builder: TableBuilder, *, cut_off: bool) -> list[Event]:
    """Decodes event by event; a broken one is repaired, or skipped and counted."""
    events: list[Event] = []
    parts = _events_of(body)
    for position, part in enumerate(parts):
        decoded = _decode(b"[" + part + b"]")
        if decoded is None:
            decoded = _mended(part)
            if decoded is not None:
                builder.repaired += 1
            elif cut_off and position == len(parts) - 1:
                events.extend(_whole_part(part))
                continue
            else:
                builder.skipped += 1
                continue
        events.extend(decoded)
    if cut_off:
        builder.truncated = True
    return events


def _whole_part(part: bytes) -> Sequence[Event]:
    """The event before the few bytes of the next one with which a file may end."""
    try:
        # latin-1 keeps byte offsets
        _, end = json.JSONDecoder(strict=False).raw_decode(part.decode("latin-1"))
    except (ValueError, RecursionError):
        return ()
    return _decode(b"[" + part[:end] + b"]") or ()


def _events_of(body: bytes) -> list[bytes]:
    text = body.strip().rstrip(b",")
    if not text:
        return []
    cuts = [m.start() + 1 for m in _SPLIT.finditer(text)]
    starts = [0, *[m.end() for m in _SPLIT.finditer(text)]]
    return [text[s:e] for s, e in zip(starts, [*cuts, len(text)], strict=True)]


def _mended(part: bytes) -> Sequence[Event] | None:
    text = _CONTROL.sub(b" ", _BARE.sub(b"null", part))
    for attempt in (
        text,
        _LONE_BACKSLASH.sub(rb"\\\\", text),
        _escape_quotes(_LONE_BACKSLASH.sub(rb"\\\\", text)),
    ):
        decoded = _decode(b"[" + attempt + b"]")
        if decoded is not None:
            return decoded
        try:
            loose = json.loads(attempt.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        try:
            return [msgspec.convert(_tamed(loose), Event, strict=False)]
        except msgspec.ValidationError:
            continue
    return None


def _escape_quotes(text: bytes) -> bytes:
    def fix(match: re.Match[bytes]) -> bytes:
        inner = re.sub(rb'(?<!\\)"', rb'\\"', match.group(2))
        return match.group(1) + inner + match.group(3)

    return _NAME.sub(fix, text)


_UNDECODED = ("Input Dims", "Input dims", "Input type", "Concrete Inputs")


def _tamed(value: Any) -> Any:
    """An event whose arguments have unexpected types keeps its times and loses those arguments."""
    if not isinstance(value, dict):
        raise msgspec.ValidationError("not an event")
    args = value.get("args")
    kept = {
        key: item
        for key, item in (args.items() if isinstance(args, dict) else ())
        if isinstance(item, list if key in ("grid", "block") else int | float | str) and key not in _UNDECODED
    }
    scalar = {k: v for k, v in value.items() if isinstance(v, int | float | str)}
    return {**scalar, "args": kept or None}


def _metadata(header: bytes, tail: bytes, builder: TableBuilder) -> dict[str, Any]:
    """The file's keys beside traceEvents, from whichever of head and tail can be read."""
    if not header and not tail.strip(b" \r\n\t,]}"):
        return {}
    front = header.rstrip().rstrip(b",")
    back = tail.strip()
    both = front + (b"," if front not in (b"", b"{") else b"") + b'"traceEvents":[]' + back
    found: dict[str, Any] = {}
    for text in _candidates(front, back, both):
        try:
            value = json.loads(_BARE.sub(b"null", text).decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found |= value
            if text is both:
                break
    else:
        if header or back.strip(b"]}, \n"):
            builder.notes.append("the file's metadata is incomplete")
    found.pop("traceEvents", None)
    return found


def _candidates(front: bytes, back: bytes, both: bytes) -> Iterator[bytes]:
    yield both
    if len(front) > 1:
        yield front + b"}"
    if len(back.strip(b"},")) > 1:
        yield b"{" + back.lstrip(b",").rstrip(b"}") + b"}"
