"""The tables of the report: every chart has one behind it, and some parts are tables alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracelens.model import (
    PHASES,
    RESOURCES,
    Curve,
    Evidence,
    RankRow,
    Result,
    Series,
    StepRow,
    Timeline,
)
from tracelens.render.display import Display
from tracelens.render.plots import thin
from tracelens.render.sanitize import one_line, shorten
from tracelens.render.stepchart import StepBar, regime_letters

MAX_ROWS = 500
MAX_SPAN_ROWS = 200
PRINTED_ROWS = 25  # of a long table; report.css has the same number
_VALUE_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and how its cells are set: text, num (right, tabular figures) or code."""

    title: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """A table ready to be written; ``bulk`` ones are cut after some rows when printed."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
    bulk: bool = False


def capped(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[str, ...]],
    show: Display,
    *,
    limit: int = MAX_ROWS,
    note: str | None = None,
) -> Table:
    """A table of at most ``limit`` rows, which says so where there are more; else ``note`` is said."""
    kept = tuple(rows[:limit])
    if len(kept) < len(rows):
        note = show.words("ui.rows_capped", shown=f"{len(kept):,}", total=f"{len(rows):,}")
    return Table(caption, tuple(columns), kept, note, bulk=len(kept) > PRINTED_ROWS)


def phases(result: Result, show: Display) -> Table:
    """Each phase's share, its part of the mean step, and what it means."""
    words = show.words
    columns = (
        Column(words("col.phase")),
        Column(words("col.share"), "num"),
        Column(words("col.per_step"), "num"),
        Column(words("col.meaning")),
    )
    rows = []
    for name in PHASES:
        share = result.phases.get(name)
        mean = result.steps.mean_ms
        per_step = None if share is None or mean is None else share * mean
        rows.append(
            (words.known("phase", name), show.percent(share), show.ms(per_step), words(f"phase_note.{name}"))
        )
    return Table(words("section.phases"), columns, tuple(rows))


def steps(bars: Sequence[StepBar], rows: Sequence[StepRow], group: int, show: Display) -> Table:
    """The bars of the step chart in numbers."""
    words = show.words
    letters = regime_letters(rows)
    columns = [Column(words("col.step"), "num"), Column(words("col.duration"), "num")]
    columns += [Column(words.known("phase", name), "num") for name in PHASES]
    columns += [Column(words("col.steady")), Column(words("col.regime"))]
    lines = []
    for bar in bars:
        number = str(bar.first) if bar.first == bar.last else f"{bar.first}-{bar.last}"
        shares = [show.ms(bar.phases_ms.get(name)) for name in PHASES]
        letter = letters.get(bar.regime or "")
        regime = (
            ""
            if bar.regime is None
            else f"{letter}: {one_line(bar.regime)}"
            if letter
            else one_line(bar.regime)
        )
        steady = words("ui.yes") if bar.steady else words("ui.no")
        lines.append((number, show.ms(bar.mean_ms), *shares, steady, regime))
    note = words("chart.steps_thinned", total=f"{len(rows):,}", group=group) if group > 1 else None
    return capped(words("chart.steps"), columns, lines, show, note=note)


def timeline(line: Timeline, show: Display) -> Table:
    """The spans by lane and time; the longest ones where there are too many."""
    words = show.words
    columns = (
        Column(words("col.lane")),
        Column(words("col.start"), "num"),
        Column(words("col.end"), "num"),
        Column(words("col.duration"), "num"),
        Column(words("col.label"), "code"),
    )
    spans = [(index, span) for index, lane in enumerate(line.lanes) for span in lane.spans]
    longest = sorted(spans, key=lambda item: item[1].start_ms - item[1].end_ms)[:MAX_SPAN_ROWS]
    rows = [
        (
            words.known("lane", line.lanes[index].name),
            show.ms(span.start_ms),
            show.ms(span.end_ms),
            show.ms(span.end_ms - span.start_ms),
            shorten(one_line(span.label or ""), 80),
        )
        for index, span in sorted(longest, key=lambda item: (item[0], item[1].start_ms))
    ]
    note = None
    if len(rows) < len(spans):
        note = words("chart.timeline_longest", shown=f"{len(rows):,}", total=f"{len(spans):,}")
    return capped(words("section.timeline"), columns, rows, show, note=note)


def what_if(result: Result, show: Display) -> Table:
    """The speed-up with each resource free."""
    words = show.words
    columns = (
        Column(words("col.resource")),
        Column(words("col.speedup"), "num"),
        Column(words("col.meaning")),
    )
    rows = tuple(
        (words.known("bottleneck", name), show.ratio(value), words(f"bottleneck_note.{name}"))
        for name, value in what_if_values(result)
    )
    return Table(words("section.what_if"), columns, rows)


def what_if_values(result: Result) -> list[tuple[str, float | None]]:
    """Resource and speed-up, in the order in which the verdict asks."""
    return [(name, getattr(result.what_if, name)) for name in RESOURCES]


def regimes(result: Result, show: Display) -> Table:
    """The clusters of steps."""
    words = show.words
    letters = regime_letters(result.step_rows)
    columns = (
        Column(words("col.regime")),
        Column(words("col.steps_share"), "num"),
        Column(words("col.time_share"), "num"),
        Column(words("col.mean"), "num"),
        Column(words("col.bottleneck")),
        Column(words("col.recurs")),
    )
    rows = []
    for one in result.regimes:
        letter = letters.get(one.label)
        label = one_line(one.label)
        rows.append(
            (
                f"{letter}: {label}" if letter else label,
                show.percent(one.share_of_steps),
                show.percent(one.share_of_time),
                show.ms(one.mean_ms),
                words.known("bottleneck", one.bottleneck),
                one_line(one.period or ""),
            )
        )
    return Table(words("section.regimes"), columns, tuple(rows))


def curve(one: Curve, show: Display) -> Table:
    """The curve's points with their band, then what was measured."""
    words = show.words
    columns = (
        Column(one_line(one.parameter), "num"),
        Column(words("ui.predicted"), "num"),
        Column(words("col.low"), "num"),
        Column(words("col.high"), "num"),
        Column(words("col.kind")),
    )
    rows = []
    for index, (x, y) in enumerate(zip(one.x, one.y, strict=False)):
        band = [
            show.quantity(side[index], one.unit) if index < len(side) else "" for side in (one.low, one.high)
        ]
        kind = [words(f"ui.{name}") for name in ("current", "suggested") if getattr(one, name) == x]
        rows.append((show.number(x), show.quantity(y, one.unit), *band, words("ui.comma").join(kind)))
    rows += [
        (show.number(x), show.quantity(y, one.unit), "", "", words("ui.measured")) for x, y in one.measured
    ]
    return capped(one_line(one.title), columns, rows, show)


def series(one: Series, show: Display) -> Table:
    """The samples that are drawn."""
    words = show.words
    group, points = thin(one)
    columns = (Column(words("col.time"), "num"), Column(words("col.value"), "num"))
    step = max(1, -(-len(points) // 40))
    start = points[0][0] if points else 0.0
    rows = [(show.ms(t - start), show.quantity(value, one.unit)) for t, value in points[::step]]
    note = None
    if group > 1 or step > 1:
        note = words("chart.series_thinned", total=f"{len(one.t_ms):,}", shown=f"{len(rows):,}")
    return capped(one_line(one.title), columns, rows, show, note=note)


def kernel_section(result: Result) -> str:
    """Whether the rows are kernels or, of a job without a GPU, operators."""
    return "operators" if all(one.family == "operator" for one in result.kernels) else "kernels"


def kernels(result: Result, show: Display) -> Table:
    """The kernels by share of GPU time, or the operators by share of the window."""
    words = show.words
    section = kernel_section(result)
    on_gpu = section == "kernels"
    columns = (
        Column(words("col.kernel" if on_gpu else "col.operator"), "code"),
        Column(words("col.gpu_share" if on_gpu else "col.self_share"), "num"),
        Column(words("col.per_step"), "num"),
        Column(words("col.calls"), "num"),
        Column(words("col.limited_by")),
        Column(words("col.family")),
        Column(words("col.operator"), "code"),
    )
    rows = [
        (
            one_line(one.name),
            show.percent(one.share),
            show.ms(one.ms_per_step),
            show.number(one.calls_per_step),
            words.known("limited", one.limited_by),
            one_line(one.family or ""),
            one_line(one.operator or ""),
        )
        for one in result.kernels
    ]
    # an operator is its own family, and what limits it is not known
    kept = None if on_gpu else 4
    return capped(words(f"section.{section}"), columns[:kept], [row[:kept] for row in rows], show, limit=60)


def memory(result: Result, show: Display) -> Table | None:
    """The memory model; None where nothing of it is known."""
    words, m = show.words, result.memory
    if all(
        v is None
        for v in (m.fixed_bytes, m.per_sample_bytes, m.peak_bytes, m.capacity_bytes, m.max_batch_size)
    ):
        return None
    rows = (
        (words("memory.fixed"), show.size(m.fixed_bytes)),
        (words("memory.per_sample"), show.size(m.per_sample_bytes)),
        (words("memory.peak"), show.size(m.peak_bytes)),
        (words("memory.capacity"), show.size(m.capacity_bytes)),
        (words("memory.max_batch"), show.value(m.max_batch_size)),
    )
    return Table(
        words("section.memory"), (Column(words("col.part")), Column(words("col.value"), "num")), rows
    )


def shares(caption: str, values: Mapping[str, float | None], head: str, show: Display) -> Table:
    """Names and shares."""
    rows = tuple((one_line(name), show.percent(value)) for name, value in values.items())
    return Table(caption, (Column(head), Column(show.words("col.share"), "num")), rows)


def ranks(rows: Sequence[RankRow], show: Display) -> Table:
    """One line a rank."""
    words = show.words
    columns = [Column(words("col.rank"), "num"), Column(words("col.mean"), "num")]
    columns += [Column(words.known("phase", name), "num") for name in PHASES]
    columns += [Column(words("col.bottleneck")), Column(words("col.cause"), "code")]
    lines = [
        (
            show.value(one.rank),
            show.ms(one.mean_ms),
            *(show.percent(one.phases.get(name)) for name in PHASES),
            words.known("bottleneck", one.bottleneck),
            one_line(one.cause or words("unknown")),
        )
        for one in rows
    ]
    return capped(words("section.ranks"), columns, lines, show)


def evidence(rows: Sequence[Evidence], caption: str, show: Display) -> Table:
    """The numbers behind a finding."""
    words = show.words
    columns = (
        Column(words("col.label")),
        Column(words("col.value"), "num"),
        Column(words("col.signal"), "code"),
        Column(words("col.source")),
    )
    lines = tuple(
        (
            one_line(one.title or one.signal),
            show.quantity(one.value, one.unit),
            one_line(one.signal),
            one_line(one.source or words("unknown")),
        )
        for one in rows
    )
    return Table(caption, columns, lines)


def flat(values: Mapping[str, object], show: Display, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested inputs or environment as dotted keys and text."""
    for key, value in values.items():
        name = f"{prefix}{one_line(str(key))}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, show, f"{name}.")
        else:
            yield name, show.value(value)[:_VALUE_TEXT]
