"""What a comparison of two recordings found; the views show it and compute nothing.

Ratios are speed-ups, the mean throughput of AFTER over that of BEFORE, and intervals hold 90 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tracelens.model import Bottleneck

Group = Literal["hardware", "settings", "versions", "code", "environment"]
Outcome = Literal["faster", "slower", "unchanged", "unknown", "not comparable"]
Status = Literal["as suggested", "another value", "not applied", "not visible"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs; ``None`` is unknown."""

    group: Group
    name: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class SideSummary:
    """One side: its runs, its verdict (of the first run) and its speed. ``runs_ms`` is the mean step of each run."""

    name: str
    runs: int
    bottleneck: Bottleneck
    cause: str | None
    confidence: float
    headline: str
    steps: int
    mean_ms: float | None
    median_ms: float | None
    samples_per_s: float | None
    interval: tuple[float, float] | None
    runs_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured speed-up and its interval; ``basis`` says which steps it was measured on."""

    ratio: float
    interval: tuple[float, float]
    basis: str


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase in ms a step on both sides."""

    phase: str
    before_ms: float | None
    after_ms: float | None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A recommendation of BEFORE beside what AFTER did.

    ``measured`` is ``None`` where the change was not made, or not made alone; ``inside`` then too. ``overlap``:
    the measured interval meets the predicted one.
    """

    parameter: str
    suggested: object
    found: object
    status: Status
    predicted: float | None
    interval: tuple[float, float] | None
    measured: float | None = None
    inside: bool | None = None
    overlap: bool | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """BEFORE beside AFTER. ``refusal`` says why they cannot be judged against each other."""

    before: SideSummary
    after: SideSummary
    outcome: Outcome
    changes: tuple[Change, ...]
    measured: Measured | None
    phases: tuple[PhaseRow, ...]
    confirmations: tuple[Confirmation, ...]
    notes: tuple[str, ...] = ()
    refusal: str | None = None
    tool: Mapping[str, str] | None = None

    @property
    def headline(self) -> str:
        """The answer in one line."""
        from tracelens.units import ratio

        if self.refusal is not None:
            return f"Not comparable: {self.refusal}."
        if self.measured is None:
            return "The speeds cannot be compared: " + (self.notes[0] if self.notes else "no steps") + "."
        value = self.measured.ratio
        low, high = (ratio(end) for end in self.measured.interval)
        if self.outcome == "unchanged":
            return f"No clear change: {ratio(value)} the throughput, between {low} and {high}."
        word = "Faster" if self.outcome == "faster" else "Slower"
        return f"{word}: {ratio(value)} the throughput, between {low} and {high}."
