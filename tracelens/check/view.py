"""The text of a comparison, once for every view: tables of strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracelens.check.comparison import Comparison, Confirmation, SideSummary
from tracelens.render.display import Display
from tracelens.render.sanitize import one_line, shorten
from tracelens.render.tables import Column, Table

_TEXT = 160
_NAMES = {
    "gpu": "GPU", "gpu_memory_bytes": "GPU memory", "gpus": "GPUs", "ranks": "ranks", "cpu_model": "CPU", "cpu_count": "CPUs",
    "usable_cores": "cores this job may use", "git_commit": "git commit", "git_dirty": "uncommitted changes",
}  # fmt: skip
_INSIDE = {True: "inside", False: "outside"}


@dataclass(frozen=True, slots=True)
class Page:
    """A comparison as text. ``changes`` and ``predictions`` are ``None`` where there is nothing to list."""

    headline: str
    outcome: str
    title: str
    speed: Table
    changes: Table | None
    phases: Table | None
    predictions: Table | None
    notes: tuple[str, ...]
    version: str


def build(found: Comparison, show: Display) -> Page:
    """The page of a comparison."""
    return Page(
        headline=found.headline,
        outcome=found.outcome,
        title=f"{_text(found.before.name)} → {_text(found.after.name)}",
        speed=_speed(found, show),
        changes=_changes(found, show),
        phases=_phases(found, show),
        predictions=_predictions(found.confirmations, show),
        notes=tuple(_sentence(note) for note in found.notes),
        version=(found.tool or {}).get("version", ""),
    )


def _text(value: str) -> str:
    return shorten(one_line(value), _TEXT)


def _sentence(text: str) -> str:
    text = one_line(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _value(value: object, show: Display, name: str = "") -> str:
    if value is None:
        return "not set" if name.startswith("env.") else "none"
    if name == "gpu_memory_bytes" and isinstance(value, int | float):
        return show.size(value)
    return _text(show.value(value))


def _speed(found: Comparison, show: Display) -> Table:
    sides = (found.before, found.after)
    rows = [
        ("verdict", *(_verdict(side, show) for side in sides), ""),
        ("throughput", *(_rate(side, show) for side in sides), show.ratio(found.measured.ratio) if found.measured else ""),
        ("mean step", *(show.ms(side.mean_ms) for side in sides), ""),
        ("median step", *(show.ms(side.median_ms) for side in sides), ""),
        ("steps measured", *(show.number(side.steps) for side in sides), ""),
    ]  # fmt: skip
    if any(side.runs > 1 for side in sides):
        rows.append(("runs", *(_runs(side, show) for side in sides), ""))
    columns = (Column(""), Column("before"), Column("after"), Column("ratio", "num"))
    basis = found.measured.basis if found.measured else None
    note = f"Measured on {basis}; ± is the 90 % interval." if basis else None
    return Table("Speed", columns, tuple(rows), note)


def _verdict(side: SideSummary, show: Display) -> str:
    kind = show.words.known("bottleneck", side.bottleneck)
    cause = f" ({_text(side.cause)})" if side.cause else ""
    return f"{kind}{cause}, confidence {side.confidence:.2f}"


def _rate(side: SideSummary, show: Display) -> str:
    text = show.rate(side.samples_per_s)
    if side.samples_per_s is None or side.interval is None or side.samples_per_s <= 0:
        return text
    width = (side.interval[1] - side.interval[0]) / 2 / side.samples_per_s
    return f"{text} ± {show.percent(width)}"


def _runs(side: SideSummary, show: Display) -> str:
    listed = ", ".join(show.ms(mean) for mean in side.runs_ms)
    return f"{side.runs}" + (f" ({listed})" if listed else "")


def _changes(found: Comparison, show: Display) -> Table | None:
    rows = tuple(
        (change.group, _NAMES.get(change.name, _text(change.name)), _value(change.before, show, change.name),
         _value(change.after, show, change.name))
        for change in found.changes
    )  # fmt: skip
    columns = (Column("kind"), Column("what", "code"), Column("before", "code"), Column("after", "code"))
    return Table("What changed", columns, rows) if rows else None


def _phases(found: Comparison, show: Display) -> Table | None:
    rows = []
    for row in found.phases:
        if not row.before_ms and not row.after_ms:
            continue
        change = ""
        if row.before_ms is not None and row.after_ms is not None:
            less = row.after_ms - row.before_ms
            change = ("+" if less > 0 else "") + show.ms(less)
        name = show.words.known("phase", row.phase)
        rows.append((name, show.ms(row.before_ms), show.ms(row.after_ms), change))
    columns = (Column("phase"), Column("before", "num"), Column("after", "num"), Column("change", "num"))
    return Table("Time by phase, a step", columns, tuple(rows)) if rows else None


def _predictions(rows: tuple[Confirmation, ...], show: Display) -> Table | None:
    if not rows:
        return None
    columns = (
        Column("recommended", "code"), Column("after has", "code"), Column("predicted"), Column("measured", "num"),
        Column("in the interval"),
    )  # fmt: skip
    return Table("Predicted and measured", columns, tuple(_prediction(row, show) for row in rows))


def _prediction(row: Confirmation, show: Display) -> tuple[str, ...]:
    wanted = (
        row.parameter
        if isinstance(row.suggested, Mapping)
        else f"{row.parameter}={_value(row.suggested, show)}"
    )
    predicted = show.ratio(row.predicted) if row.predicted is not None else "no prediction"
    if row.interval is not None:
        predicted += f" ({show.interval(row.interval)})"
    if row.inside is None:
        held = row.note or {"not applied": "not applied", "not visible": "not visible"}.get(row.status, "")
    else:
        held = _INSIDE[row.inside]
        if not row.inside and row.overlap:
            held += ", though the measured interval meets it"
        if row.note:
            held += f"; {row.note}"
    found = _value(row.found, show)
    return (
        _text(wanted), "" if row.status == "not visible" else found, predicted,
        show.ratio(row.measured) if row.measured is not None else "", held,
    )  # fmt: skip
