"""What the HTML template shows: each part of the result as text, chart and table, empty parts left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from tracelens.model import Finding, Plan, Recommendation, Result
from tracelens.render import charts, plots, tables
from tracelens.render.display import Display, plan_parts, run_name, set_command, top_change
from tracelens.render.sanitize import one_line
from tracelens.render.tables import Column, Table

_OUTCOMES = ("fired", "not_evaluated", "passed", "not_applicable")
_OPERATORS_SHOWN = 5


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
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One recommendation as text."""

    parameter: str
    current: str
    suggested: str
    speedup: str | None
    interval: str | None
    then: str | None
    basis: str | None
    why: str | None
    snippet: str | None
    command: str | None
    within_plan: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class TopChange:
    """The plan at the head of the report."""

    parts: tuple[tuple[str, str | None, str | None], ...]
    speedup: str | None
    interval: str | None
    then: str | None
    snippet: str | None
    command: str | None
    is_plan: bool


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding as text."""

    title: str
    rule: str
    resource: str | None
    phase: str | None
    saving: str
    advice: str | None
    why: str | None
    evidence: Table | None
    operators: tuple[str, ...]
    more_operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stat:
    """One figure of the strip under the verdict."""

    label: str
    value: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template needs."""

    title: str
    run: str | None
    headline: str
    limited_by: str
    bottleneck: str
    cause: str | None
    confidence: float
    confidence_word: str
    confidence_text: str
    top: TopChange | None
    stats: tuple[Stat, ...]
    sections: tuple[Section, ...]
    changes: tuple[Change, ...]
    findings: tuple[FindingView, ...]
    rule_groups: tuple[tuple[str, tuple[str, ...]], ...]
    legend: tuple[tuple[str, str, str], ...]
    to_record: tuple[str, ...]
    version: str | None


def build_page(result: Result, show: Display, title: str | None = None) -> Page:
    """The page of a result in the display's language."""
    words, verdict = show.words, result.verdict
    word = words(f"confidence.{verdict.confidence_word}")
    number = f"{verdict.confidence:.2f}"
    healthy = verdict.bottleneck in ("none", "inconclusive")
    run = run_name(result)
    version = result.tool.get("version")
    return Page(
        title=one_line(title or run or words("ui.report")),
        run=run,
        headline=one_line(verdict.headline),
        limited_by=words("ui.not_limited") if healthy else words("ui.limited_by"),
        bottleneck=words.known("bottleneck", verdict.bottleneck),
        cause=one_line(verdict.cause) if verdict.cause else None,
        confidence=min(max(verdict.confidence, 0.0), 1.0),
        confidence_word=word,
        confidence_text=words("confidence.sentence", word=word, number=number),
        top=_top(result, show),
        stats=_stats(result, show),
        sections=tuple(section for section in _sections(result, show) if section is not None),
        changes=tuple(_change(one, show) for one in result.recommendations),
        findings=tuple(_finding(one, show) for one in result.findings),
        rule_groups=_rule_groups(result, show),
        legend=_legend(result, show),
        to_record=tuple(one_line(m.reason) for m in result.missing[:3])
        if verdict.bottleneck == "inconclusive"
        else (),
        version=one_line(str(version)) if version is not None else None,
    )


def _top(result: Result, show: Display) -> TopChange | None:
    plan = top_change(result)
    if plan is None:
        return None
    parts = tuple(
        (one_line(part), None, None)
        if isinstance(part, str)
        else (
            one_line(part.parameter),
            one_line(show.value(part.current)),
            one_line(show.value(part.suggested)),
        )
        for part in plan_parts(result, plan)
    )
    return TopChange(
        parts=parts,
        speedup=None if plan.predicted_speedup is None else show.ratio(plan.predicted_speedup),
        interval=show.interval(plan.interval),
        then=show.then(plan.next_bottleneck),
        snippet=plan.snippet,
        command=set_command(plan.set_flags),
        is_plan=_is_plan(result.plan),
    )


def _is_plan(plan: Plan | None) -> bool:
    return plan is not None and len(plan.parameters) > 1


def _change(one: Recommendation, show: Display) -> Change:
    within = (
        None if one.within_plan is None else show.words("ui.within_plan", ratio=show.ratio(one.within_plan))
    )
    return Change(
        parameter=one_line(one.parameter),
        current=one_line(show.value(one.current)),
        suggested=one_line(show.value(one.suggested)),
        speedup=None if one.predicted_speedup is None else show.ratio(one.predicted_speedup),
        interval=show.interval(one.interval),
        then=show.then(one.next_bottleneck),
        basis=None if one.basis is None else one_line(show.words.known("basis", one.basis)),
        why=one.why,
        snippet=one.snippet,
        command=set_command((one.set_flag,)) if one.set_flag else None,
        within_plan=within,
        rule=one_line(one.rule),
    )


def _finding(one: Finding, show: Display) -> FindingView:
    words = show.words
    saving = one.saving_ms_per_step
    title = one_line(one.title)
    names = tuple(one_line(name) for name in one.operators)
    return FindingView(
        title=title,
        rule=one_line(one.rule),
        resource=None if one.bottleneck is None else words.known("bottleneck", one.bottleneck),
        phase=None if one.phase is None else one_line(words.known("phase", one.phase)),
        saving=words("ui.saving_unknown") if saving is None else words("ui.saving", time=show.ms(saving)),
        advice=one.advice,
        why=one.why,
        evidence=tables.evidence(one.evidence, f"{words('ui.evidence')}: {title}", show)
        if one.evidence
        else None,
        operators=names[:_OPERATORS_SHOWN],
        more_operators=names[_OPERATORS_SHOWN:],
    )


def _stats(result: Result, show: Display) -> tuple[Stat, ...]:
    words, steps = show.words, result.steps
    spread = None
    if steps.median_ms is not None or steps.p95_ms is not None:
        spread = words("stat.median_p95", median=show.ms(steps.median_ms), p95=show.ms(steps.p95_ms))
    batch = result.throughput.batch_size
    count = []
    if steps.steady is not None:
        count.append(words("stat.steady", steady=show.number(steps.steady)))
    if steps.source:
        count.append(words("stat.source", source=one_line(steps.source)))
    return (
        Stat(words("stat.step"), show.ms(steps.mean_ms), spread),
        Stat(
            words("stat.throughput"),
            show.rate(result.throughput.samples_per_s),
            None if batch is None else words("stat.batch", batch=show.value(batch)),
        ),
        Stat(words("stat.gpu_busy"), show.percent(result.gpu.busy), one_line(result.gpu.name or "") or None),
        Stat(words("stat.steps"), show.number(steps.count), ", ".join(count) or None),
    )


def _sections(result: Result, show: Display) -> tuple[Section | None, ...]:
    words = show.words

    def section(
        name: str, kind: str, *figures: Figure | None, note: str | None = None, count: int | None = None
    ) -> Section | None:
        kept = tuple(figure for figure in figures if figure is not None)
        if not kept and not count:
            return None
        return Section(name.replace("_", "-"), words(f"section.{name}"), kind, kept, note, count)

    return (
        section("change", "changes", count=len(result.recommendations)),
        section("phases", "figures", _phases(result, show)),
        section("steps", "figures", _steps(result, show)),
        section("timeline", "figures", _timeline(result, show)),
        section("findings", "findings", count=len(result.findings)),
        section("what_if", "figures", _what_if(result, show)),
        section("regimes", "table", _regimes(result, show)),
        section("curves", "grid", *(_curve(index, result, show) for index in range(len(result.curves)))),
        section("series", "grid", *(_series(index, result, show) for index in range(len(result.series)))),
        section("kernels", "table", Figure(None, tables.kernels(result, show)) if result.kernels else None),
        section("memory", "figures", _memory(result, show)),
        section("host_split", "figures", _shares("host_split", result.host_split, "col.part", show), note=words("note.host_split")),
        section("occupancy", "figures", _shares("occupancy", result.occupancy, "col.engine", show), note=words("note.occupancy")),
        section("ranks", "figures", Figure(charts.ranks_chart(result.ranks, show), tables.ranks(result.ranks, show)) if result.ranks else None),
        section("declined", "table", _declined(result, show), note=words("note.declined")),
        section("ruled_out", "table", _ruled_out(result, show)),
        section("quality", "table", _quality(result, show)),
        section("missing", "table", _missing(result, show), note=words("note.missing")),
        section("rules", "rules", count=len(result.rules_checked), note=words("note.rules")),
        section("inputs", "table", *_inputs(result, show)),
        section("tool", "tool", _tool(result, show), count=1),
    )  # fmt: skip


def _phases(result: Result, show: Display) -> Figure | None:
    svg = charts.phase_bar(result, show)
    return None if svg is None else Figure(svg, tables.phases(result, show))


def _steps(result: Result, show: Display) -> Figure | None:
    rows = result.step_rows
    svg = charts.steps_chart(rows, show)
    if svg is None:
        return None
    words = show.words
    group, bars = charts.step_bars(rows)
    notes = []
    if group > 1:
        notes.append(words("chart.steps_thinned", total=f"{len(rows):,}", group=group))
    if any(not bar.steady for bar in bars):
        notes.append(words("chart.steps_unsteady"))
    if charts.clipped(bars):
        notes.append(words("chart.steps_clipped"))
    letters = charts.regime_letters(rows)
    if letters:
        listed = ", ".join(f"{letter} {one_line(name)}" for name, letter in letters.items())
        notes.append(words("chart.regimes_strip", list=listed))
    return Figure(svg, tables.steps(bars, rows, group, show), tuple(notes))


def _timeline(result: Result, show: Display) -> Figure | None:
    line = result.timeline
    svg = None if line is None else plots.timeline_chart(line, show)
    if line is None or svg is None:
        return None
    total = sum(len(lane.spans) for lane in line.lanes)
    drawn = sum(len(plots.drawn_spans(lane)) for lane in line.lanes)
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
    notes = [show.words(f"kind.{kind or 'unknown'}")]
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
    return Figure(None, tables.pairs(show.words("section.declined"), columns, rows)) if rows else None


def _ruled_out(result: Result, show: Display) -> Figure | None:
    columns = [Column(show.words("col.bottleneck")), Column(show.words("col.reason"))]
    rows = [
        (show.words.known("bottleneck", one.bottleneck), one_line(one.reason)) for one in result.ruled_out
    ]
    return Figure(None, tables.pairs(show.words("section.ruled_out"), columns, rows)) if rows else None


def _quality(result: Result, show: Display) -> Figure | None:
    columns = [Column(show.words("col.rule"), "code"), Column(show.words("col.message"))]
    rows = [(one_line(one.rule), one_line(one.message)) for one in result.quality]
    return Figure(None, tables.pairs(show.words("section.quality"), columns, rows)) if rows else None


def _missing(result: Result, show: Display) -> Figure | None:
    columns = [Column(show.words("col.signal"), "code"), Column(show.words("col.reason"))]
    rows = [(one_line(one.signal), one_line(one.reason)) for one in result.missing]
    return Figure(None, tables.capped(show.words("section.missing"), columns, rows, show)) if rows else None


def _rule_groups(result: Result, show: Display) -> tuple[tuple[str, tuple[str, ...]], ...]:
    outcomes = dict.fromkeys((*_OUTCOMES, *result.rules_checked.values()))
    groups = []
    for outcome in outcomes:
        rules = tuple(sorted(one_line(rule) for rule, got in result.rules_checked.items() if got == outcome))
        if rules:
            groups.append((one_line(show.words.known("outcome", outcome)), rules))
    return tuple(groups)


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
    return Figure(None, tables.pairs(show.words("table.stages"), columns, rows))


def _legend(result: Result, show: Display) -> tuple[tuple[str, str, str], ...]:
    """(phase id, its word, its share) of the phases there are."""
    from tracelens.model import PHASES

    return tuple(
        (name, show.words.known("phase", name), show.percent(result.phases.get(name))) for name in PHASES
    )
