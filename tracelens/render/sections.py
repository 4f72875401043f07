"""The report's sections: each with its charts and tables; an empty one is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from tracelens.model import Result
from tracelens.render import charts, plots, stepchart, tables, timeline
from tracelens.render.display import Display
from tracelens.render.sanitize import one_line
from tracelens.render.tables import Column, Table


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with the table behind it; ``notes`` are said under it."""

    svg: Markup | None
    table: Table
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report; ``kind`` names the template's block for it."""

    ident: str
    title: str
    kind: str
    figures: tuple[Figure, ...] = ()
    note: str | None = None


def sections(result: Result, show: Display) -> tuple[Section, ...]:
    """All sections that have something to show, in the order of the report."""
    words = show.words
    found: list[Section] = []

    def add(name: str, kind: str, *figures: Figure | None, note: str | None = None, count: int = 0) -> None:
        kept = tuple(figure for figure in figures if figure is not None)
        if kept or count:
            found.append(Section(name.replace("_", "-"), words(f"section.{name}"), kind, kept, note))

    add("change", "changes", count=len(result.recommendations))
    add("phases", "figures", _phases(result, show))
    add("steps", "figures", _steps(result, show))
    add("timeline", "figures", _timeline(result, show))
    add("findings", "findings", count=len(result.findings))
    add("what_if", "figures", _what_if(result, show))
    add("regimes", "table", _regimes(result, show))
    add("curves", "grid", *(_curve(index, result, show) for index in range(len(result.curves))))
    add("series", "grid", *(_series(index, result, show) for index in range(len(result.series))))
    add(tables.kernel_section(result), "table", _kernels(result, show))
    add("memory", "figures", _memory(result, show))
    add("host_split", "figures", _host_split(result, show), note=words("note.host_split"))
    add("occupancy", "figures", _occupancy(result, show), note=words("note.occupancy"))
    add("ranks", "figures", _ranks(result, show))
    add("declined", "table", _declined(result, show), note=words("note.declined"))
    add("ruled_out", "table", _ruled_out(result, show))
    add("quality", "table", _quality(result, show))
    add("missing", "table", _missing(result, show), note=words("note.missing"))
    add("rules", "rules", note=words("note.rules"), count=len(result.rules_checked))
    add("inputs", "table", *_inputs(result, show))
    add("tool", "tool", _tool(result, show), count=1)
    return tuple(found)


def _kernels(result: Result, show: Display) -> Figure | None:
    return Figure(None, tables.kernels(result, show)) if result.kernels else None


def _host_split(result: Result, show: Display) -> Figure | None:
    return _shares("host_split", result.host_split, "col.part", show)


def _occupancy(result: Result, show: Display) -> Figure | None:
    return _shares("occupancy", result.occupancy, "col.engine", show)


def _ranks(result: Result, show: Display) -> Figure | None:
    if not result.ranks:
        return None
    svg = charts.ranks_chart(result.ranks, show)
    notes = []
    if len(result.ranks) > charts.MAX_RANKS:
        total = f"{len(result.ranks):,}"
        notes.append(show.words("chart.ranks_capped", shown=charts.MAX_RANKS, total=total))
    return Figure(svg, tables.ranks(result.ranks, show), tuple(notes))


def _phases(result: Result, show: Display) -> Figure | None:
    svg = charts.phase_bar(result, show)
    return None if svg is None else Figure(svg, tables.phases(result, show))


def _steps(result: Result, show: Display) -> Figure | None:
    rows = result.step_rows
    svg = stepchart.steps_chart(rows, show)
    if svg is None:
        return None
    words = show.words
    group, bars = stepchart.step_bars(rows)
    notes = []
    if group > 1:
        notes.append(words("chart.steps_thinned", total=f"{len(rows):,}", group=group))
    if any(not bar.steady for bar in bars):
        notes.append(words("chart.steps_unsteady"))
    if stepchart.clipped(bars):
        notes.append(words("chart.steps_clipped"))
    letters = stepchart.drawn_letters(rows, group)
    if letters:
        listed = words("ui.comma").join(f"{letter} {one_line(name)}" for name, letter in letters.items())
        notes.append(words("chart.regimes_strip", list=listed))
    return Figure(svg, tables.steps(bars, rows, group, show), tuple(notes))


def _timeline(result: Result, show: Display) -> Figure | None:
    line = result.timeline
    svg = None if line is None else timeline.timeline_chart(line, show)
    if line is None or svg is None:
        return None
    total = sum(len(lane.spans) for lane in line.lanes)
    drawn = sum(len(timeline.drawn_spans(lane)) for lane in line.lanes)
    notes = [show.words("chart.timeline_excerpt", duration=show.ms(line.duration_ms))]
    if drawn < total:
        notes.append(show.words("chart.timeline_capped", drawn=f"{drawn:,}", total=f"{total:,}"))
    return Figure(svg, tables.timeline(line, show), tuple(notes))


def _what_if(result: Result, show: Display) -> Figure | None:
    values = tables.what_if_values(result)
    svg = charts.what_if_chart(values, show)
    if svg is None:
        return None
    kind = result.what_if.kind
    notes = [show.words("chart.what_if_scale"), show.words(f"kind.{kind or 'unknown'}")]
    if result.what_if.replay_error is not None:
        notes.append(show.words("kind.replay_error", error=show.percent(abs(result.what_if.replay_error))))
    return Figure(svg, tables.what_if(result, show), tuple(notes))


def _regimes(result: Result, show: Display) -> Figure | None:
    return Figure(None, tables.regimes(result, show)) if result.regimes else None


def _curve(index: int, result: Result, show: Display) -> Figure | None:
    curve = result.curves[index]
    svg = plots.curve_chart(f"c-curve{index}", curve, show)
    return None if svg is None else Figure(svg, tables.curve(curve, show))


def _series(index: int, result: Result, show: Display) -> Figure | None:
    series = result.series[index]
    svg = plots.series_chart(f"c-series{index}", series, show)
    return None if svg is None else Figure(svg, tables.series(series, show))


def _memory(result: Result, show: Display) -> Figure | None:
    table = tables.memory(result, show)
    return None if table is None else Figure(charts.memory_chart(result, show), table)


def _shares(name: str, values: Mapping[str, float | None], head: str, show: Display) -> Figure | None:
    if not values:
        return None
    title = show.words(f"chart.{name}")
    rows = [(one_line(key), value) for key, value in values.items()]
    svg = charts.share_bars(f"c-{name}", title, rows, show)
    return Figure(svg, tables.shares(title, values, show.words(head), show))


def _declined(result: Result, show: Display) -> Figure | None:
    columns = [
        Column(show.words("col.parameter"), "code"),
        Column(show.words("col.value")),
        Column(show.words("col.reason")),
    ]
    rows = [
        (
            one_line(one.parameter),
            "" if one.value is None else one_line(show.value(one.value)),
            one_line(one.reason),
        )
        for one in result.declined
    ]
    return Figure(None, tables.capped(show.words("section.declined"), columns, rows, show)) if rows else None


def _ruled_out(result: Result, show: Display) -> Figure | None:
    columns = [Column(show.words("col.resource_class")), Column(show.words("col.reason"))]
    rows = [
        (show.words.known("bottleneck", one.bottleneck), one_line(one.reason)) for one in result.ruled_out
    ]
    return Figure(None, tables.capped(show.words("section.ruled_out"), columns, rows, show)) if rows else None


def _quality(result: Result, show: Display) -> Figure | None:
    columns = [Column(show.words("col.rule"), "code"), Column(show.words("col.message"))]
    rows = [(one_line(one.rule), one_line(one.message)) for one in result.quality]
    return Figure(None, tables.capped(show.words("section.quality"), columns, rows, show)) if rows else None


def _missing(result: Result, show: Display) -> Figure | None:
    """The reasons, those that cost most signals first: a reader can do something about a reason."""
    columns = [Column(show.words("col.reason")), Column(show.words("col.signal"))]
    signals: dict[str, list[str]] = {}
    for one in result.missing:
        signals.setdefault(one_line(one.reason), []).append(one_line(one.signal))
    rows = [
        (reason, ", ".join(names))
        for reason, names in sorted(signals.items(), key=lambda item: -len(item[1]))
    ]
    return Figure(None, tables.capped(show.words("section.missing"), columns, rows, show)) if rows else None


def _inputs(result: Result, show: Display) -> tuple[Figure | None, ...]:
    columns = [Column(show.words("col.key"), "code"), Column(show.words("col.value"))]
    figures: list[Figure | None] = []
    for name, values in (("inputs", result.inputs), ("environment", result.environment)):
        rows = list(tables.flat(values, show))
        caption = show.words(f"table.{name}")
        figures.append(Figure(None, tables.capped(caption, columns, rows, show)) if rows else None)
    return tuple(figures)


def _tool(result: Result, show: Display) -> Figure | None:
    stages = result.tool.get("stage_ms")
    if not isinstance(stages, Mapping) or not stages:
        return None
    columns = [Column(show.words("col.stage")), Column(show.words("col.time"), "num")]
    rows = [
        (one_line(str(name)), show.ms(value) if isinstance(value, int | float) else show.value(value))
        for name, value in stages.items()
    ]
    return Figure(None, tables.capped(show.words("table.stages"), columns, rows, show))
