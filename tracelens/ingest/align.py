"""Lay a log without a zone (or without a date) over the window of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tracelens.ingest.tables import GpuLog, HostLog, TrainingLog
from tracelens.units import milliseconds

_QUARTER = 900_000_000_000
_HOUR = 4 * _QUARTER
_DAY = 24 * _HOUR
# the offsets in use run from UTC-12:00 to UTC+14:00
_ZONES = range(-12 * 4, 14 * 4 + 1)

Log = TypeVar("Log", GpuLog, HostLog, TrainingLog)


@dataclass(frozen=True, slots=True)
class Alignment(Generic[Log]):
    """``log``: the samples that belong to the window, on Unix time; None where they do not overlap it.

    ``offset_ns`` was subtracted from the log's times (the zone's offset from UTC, and for logs without a
    date also minus the days). ``ambiguous``: another zone fits as well. ``message``: for a person.
    """

    log: Log | None
    offset_ns: int | None
    overlap_ns: int
    ambiguous: bool
    message: str


def align(log: Log, t0_ns: int, t1_ns: int, *, margin_ns: int = 0) -> Alignment[Log]:
    """The part of ``log`` inside [t0, t1] (Unix ns), after finding the zone that makes it overlap most.

    A log on Unix time is only cut. A log without times cannot be placed: it comes back whole, overlap 0.
    ``margin_ns`` widens the window when cutting, so that a window shorter than the sampling interval
    still gets its neighbours.
    """
    times = log.t_ns
    stamped = times[times >= 0]
    if len(stamped) == 0 or getattr(log, "clock", "utc") == "relative":
        return Alignment(
            log, None, 0, False, f"{log.source} carries no times: taken as a whole, as if it covered the run"
        )
    first, last = int(stamped.min()), int(stamped.max())
    period = int(np.median(np.diff(np.unique(stamped)))) if len(np.unique(stamped)) > 1 else 0
    candidates = _offsets(log, t0_ns)
    # a sample stands for the interval before it: a window between two samples still overlaps the log
    overlap = {
        offset: min(t1_ns, last - offset) - max(t0_ns, first - period - offset) for offset in candidates
    }
    best = max(overlap.values())
    if best < 0:
        gap = milliseconds(
            min(_gap(first - offset, last - offset, t0_ns, t1_ns) for offset in candidates) / 1e6
        )
        return Alignment(
            None, None, 0, False, f"no overlap: {log.source} and the trace are {gap} apart in every zone"
        )
    equal = [offset for offset, value in overlap.items() if value == best]
    offset = min(equal, key=_unlikely)
    low, high = t0_ns - max(margin_ns, period), t1_ns + max(margin_ns, period)
    shifted = log.shifted(offset)
    inside = shifted.take((shifted.t_ns >= low) & (shifted.t_ns <= high))
    return Alignment(inside, offset, best, len(equal) > 1, _message(log, offset, len(equal) > 1))


def _offsets(log: GpuLog | HostLog | TrainingLog, t0_ns: int) -> list[int]:
    clock = getattr(log, "clock", "utc")
    if clock == "utc":
        return [0]
    zones = [zone * _QUARTER for zone in _ZONES]
    if clock == "local":
        return zones
    today = t0_ns // _DAY * _DAY
    return [zone - today - days * _DAY for zone in zones for days in (-1, 0, 1)]


def _unlikely(offset: int) -> tuple[int, int, int]:
    """Preference among zones that fit equally: UTC, whole hours, half hours, the rest; near first."""
    zone = (offset + 12 * _HOUR) % _DAY - 12 * _HOUR
    rarity = 0 if zone == 0 else 1 if zone % _HOUR == 0 else 2 if zone % (2 * _QUARTER) == 0 else 3
    return rarity, abs(zone), abs(offset)


def _gap(first: int, last: int, t0_ns: int, t1_ns: int) -> int:
    return max(t0_ns - last, first - t1_ns, 0)


def _message(log: GpuLog | HostLog | TrainingLog, offset: int, ambiguous: bool) -> str:
    clock = getattr(log, "clock", "utc")
    if clock == "utc":
        return f"{log.source} is on the trace's clock"
    zone = (offset + 12 * _HOUR) % _DAY - 12 * _HOUR if clock == "time_of_day" else offset
    minutes = abs(zone) // 60_000_000_000
    name = "UTC" if zone == 0 else f"UTC{'-' if zone < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    text = f"{log.source} has local times without a zone; {name} makes it overlap the trace"
    return f"{text} (other zones would too, so single samples may be wrong)" if ambiguous else text
