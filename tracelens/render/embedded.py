"""The result inside its own HTML report: written there, and read back by ``tracelens report report.html``."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.model import SCHEMA, Result
from tracelens.render.jsonview import plain

ELEMENT_ID = "tracelens-result"
# characters: above the first the JSON is packed, above the second also thinned, to stay mailable
PLAIN_LIMIT = 100_000
PACKED_LIMIT = 90_000
_SHORT = 60  # a list this short is never thinned
_LEAST = 0.001
_PACKED = "zlib+base64"
_UNPACKED_LIMIT = 256 * 1024 * 1024  # a damaged or hostile report must not fill the memory
_OPENING = re.compile(rf'<script\b[^>]*\bid="{ELEMENT_ID}"[^>]*>')


def embedded_json(result: Result) -> str:
    """JSON text that is safe inside a script element: ``<``, ``>`` and ``&`` are escaped, all is ASCII.

    A large result is wrapped as {"schema", "encoding": "zlib+base64", "data"}. Where even that is too long,
    samples, spans and steps are thinned evenly; the key "thinned" in it says how many are kept, of how many.
    """
    data = result.to_json()
    text = _dump(data)
    if len(text) > PLAIN_LIMIT:
        packed = _pack(text)
        keep = 1.0
        while len(packed) > PACKED_LIMIT and keep > _LEAST:
            keep *= min(0.8, PACKED_LIMIT / len(packed))
            packed = _pack(_dump(_thinned(data, keep)))
        text = json.dumps({"schema": SCHEMA, "encoding": _PACKED, "data": packed}, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _dump(data: dict[str, Any]) -> str:
    return json.dumps(plain(data), separators=(",", ":"), allow_nan=False)


def _pack(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")


def _thinned(data: dict[str, Any], keep: float) -> dict[str, Any]:
    """The result with about ``keep`` of its long lists, evenly spread; short lists stay whole."""
    counts: dict[str, list[int]] = {}

    def some(name: str, items: list[Any]) -> list[Any]:
        step = 1 if len(items) <= _SHORT else max(1, round(1 / keep))
        kept = items[::step]
        if step > 1:
            before = counts.setdefault(name, [0, 0])
            counts[name] = [before[0] + len(kept), before[1] + len(items)]
        return kept

    timeline = data["timeline"]
    if timeline is not None:
        lanes = [{**lane, "spans": some("timeline", lane["spans"])} for lane in timeline["lanes"]]
        timeline = {**timeline, "lanes": lanes}
    series = [
        {**one, "t_ms": some("series", one["t_ms"]), "values": some("series", one["values"])}
        for one in data["series"]
    ]
    steps = some("step_rows", data["step_rows"])
    return {**data, "timeline": timeline, "series": series, "step_rows": steps, "thinned": counts}


def read_embedded(path: str | Path) -> dict[str, Any]:
    """The result's JSON from a report that ``html_report`` wrote. Raises InputError if there is none."""
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise InputError(f"cannot read {path}: {reason}") from error
    opening = _OPENING.search(text)
    if opening is None:
        raise InputError(f"{path} is HTML, but not a report that tracelens wrote: it holds no result")
    end = text.find("</script>", opening.end())
    if end < 0:
        raise InputError(f"{path} is cut off: the result in it is incomplete; write the report again")
    try:
        data = json.loads(text[opening.end() : end])
        if isinstance(data, dict) and data.get("encoding") == _PACKED:
            data = json.loads(_unpack(data["data"]))
    except (ValueError, KeyError, TypeError, binascii.Error, zlib.error, RecursionError) as error:
        raise InputError(
            f"{path} is damaged: the result in it cannot be read; write the report again"
        ) from error
    if not isinstance(data, dict):
        raise InputError(f"{path} is damaged: the result in it is not an object; write the report again")
    return data


def _unpack(packed: str) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(packed, validate=True), _UNPACKED_LIMIT)
    if not stream.eof:
        raise ValueError("incomplete or too large")
    return data
