"""Lines of JSON, with what a killed writer leaves: a last line cut in half, and foreign lines."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tracelens.ingest.text import epoch_ns

_decode = msgspec.json.Decoder().decode
_TIME_KEYS = ("ts", "t_ns", "timestamp", "time", "_timestamp")


def json_lines(text: str) -> tuple[list[dict[str, Any]], int]:
    """The objects of a JSONL text, and how many lines were no object (a cut last line is not counted)."""
    objects: list[dict[str, Any]] = []
    skipped = 0
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            value = _decode(line)
        except msgspec.DecodeError:
            skipped += i < len(lines) - 1
            continue
        if isinstance(value, dict):
            objects.append(value)
        else:
            skipped += 1
    return objects, skipped


def number(value: object) -> float:
    """A JSON number as float, NaN for anything else (null, text, true)."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return float("nan")


def time_ns(line: Mapping[str, Any]) -> int | None:
    """Unix ns of a line: ``ts`` (or a common other name) in s, ms, us, ns, or ISO 8601 (UTC if no zone)."""
    for key in _TIME_KEYS:
        value = line.get(key)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and value == value
            and abs(value) < 9e18
        ):
            return epoch_ns(value)
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                continue
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            whole = moment.replace(microsecond=0)
            return int(whole.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    return None
