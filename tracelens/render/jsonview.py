"""The result as JSON text, the contract that scripts read (design section 9)."""

from __future__ import annotations

import json

from tracelens.model import Result


def json_text(result: Result) -> str:
    """Indented JSON, UTF-8 safe, no NaN: what is not a finite number is null."""
    text = json.dumps(plain(result.to_json()), indent=1, ensure_ascii=False, allow_nan=False)
    # a trace may hold half a surrogate pair, which no UTF-8 file can
    return text.encode("utf-8", "replace").decode("utf-8") + "\n"


def plain(value: object) -> object:
    """JSON values only: numpy scalars become numbers, paths text, non-finite numbers null."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        return plain(value.item())
    return str(value)
