"""Named slots in rule texts: ``{signal.name}`` becomes the signal's value with its unit."""

from __future__ import annotations

import re

from tracelens.signals.signal import Signals
from tracelens.units import MISSING, quantity

_SLOT = re.compile(r"\{([a-z_]+\.[a-z0-9_]+)\}")


def fill(text: str, signals: Signals) -> str:
    """The text with its slots filled; a missing value reads "unknown"."""

    def value(match: re.Match[str]) -> str:
        signal = signals.get(match.group(1))
        if signal is None or signal.value is None:
            return MISSING
        number = signal.value
        if isinstance(number, float) and signal.unit in ("count", None, "cores"):
            number = round(number, 1) if abs(number) < 100 else round(number)
        unit = None if signal.unit in ("us", "cores", "steps") else signal.unit
        return quantity(number, unit)

    return _SLOT.sub(value, text)


def slots(text: str) -> tuple[str, ...]:
    """The signals that a text names."""
    return tuple(dict.fromkeys(_SLOT.findall(text)))
