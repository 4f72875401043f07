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
PLAIN_LIMIT = 100_000  # characters; above it the same JSON is packed, to keep a report mailable
_PACKED = "zlib+base64"
_UNPACKED_LIMIT = 256 * 1024 * 1024  # a damaged or hostile report must not fill the memory
_OPENING = re.compile(rf'<script\b[^>]*\bid="{ELEMENT_ID}"[^>]*>')


def embedded_json(result: Result) -> str:
    """JSON text that is safe inside a script element: ``<``, ``>`` and ``&`` are escaped, all is ASCII.

    A large result is wrapped as {"schema", "encoding": "zlib+base64", "data"}; nothing is left out.
    """
    data = plain(result.to_json())
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    if len(text) > PLAIN_LIMIT:
        packed = base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
        text = json.dumps({"schema": SCHEMA, "encoding": _PACKED, "data": packed}, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


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
