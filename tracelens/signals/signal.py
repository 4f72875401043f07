"""Signals: named, unit-bearing numbers with their source, or the reason they are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Value = float | int | bool | str


@dataclass(frozen=True, slots=True)
class Signal:
    """One number (or word). ``value`` is None where it could not be computed; ``reason`` then says why."""

    name: str
    value: Value | None
    unit: str | None = None
    source: str | None = None
    reason: str | None = None


class Signals(Mapping[str, Signal]):
    """The signals of one rank, in the order they were computed."""

    def __init__(self) -> None:
        self._signals: dict[str, Signal] = {}

    def add(
        self, name: str, value: Value | None, unit: str | None, source: str, reason: str = "not recorded"
    ) -> None:
        """Adds a signal; a None value is missing for ``reason``."""
        if isinstance(value, float) and value != value:
            value = None
        self._signals[name] = Signal(name, value, unit, source, None if value is not None else reason)

    def missing(self, reason: str, *names: str) -> None:
        """Marks signals as missing unless another source gave them."""
        for name in names:
            if name not in self._signals:
                self._signals[name] = Signal(name, None, reason=reason)

    def value(self, name: str) -> Value | None:
        """A signal's value, None where it is missing or unknown."""
        signal = self._signals.get(name)
        return signal.value if signal else None

    def number(self, name: str) -> float | None:
        """A signal's value as a float, None where it is missing or no number."""
        value = self.value(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def __getitem__(self, name: str) -> Signal:
        return self._signals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._signals)

    def __len__(self) -> int:
        return len(self._signals)
