"""Settings of a DataLoader: what each can be, from a file that a user gives and from a log that may be damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.ingest.columns import is_number

# workers and batches ahead beyond what any machine runs, samples beyond what memory holds
RANGES = {
    "num_workers": (0, 4096),
    "prefetch_factor": (1, 4096),
    "batch_size": (1, 2**31),
    "dataset_len": (1, 2**53),
}
_ASKED = ("num_workers", "batch_size", "prefetch_factor")
_SWITCHES = ("pin_memory", "persistent_workers")


def read_loader_settings(path: Path) -> dict[str, Any]:
    """A JSON object of DataLoader settings (design section 8). Raises InputError."""
    try:
        settings = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f'{path} is not JSON ({error}); give an object such as {{"num_workers": 4, "batch_size": 64}}'
        ) from None
    if not isinstance(settings, dict):
        raise InputError(
            f'{path} must hold a JSON object of DataLoader settings, such as {{"num_workers": 4}}'
        )
    for key in _ASKED:
        value, (least, most) = settings.get(key), RANGES[key]
        if value is not None and not _in_range(key, value):
            raise InputError(
                f"{path}: {key} must be a whole number from {least} to {most}, not {_short(value)}"
            )
    for key in _SWITCHES:
        if not isinstance(settings.get(key), bool | None):
            raise InputError(f"{path}: {key} must be true or false, not {_short(settings[key])}")
    return settings


def plausible(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that no DataLoader can have: in a log they are damage, and unknown."""
    return {key: value for key, value in settings.items() if key not in RANGES or _in_range(key, value)}


def _in_range(key: str, value: Any) -> bool:
    least, most = RANGES[key]
    return is_number(value) and least <= value <= most and value == int(value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
