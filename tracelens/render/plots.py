"""What runs over time or over a parameter: the timeline's lanes, sampled series, predicted curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from tracelens import units
from tracelens.model import Curve, Lane, Series, Span, Timeline
from tracelens.render.display import Display
from tracelens.render.sanitize import one_line, shorten
from tracelens.render.svg import PLANE, boxes, chart, element, percent, plane, polyline, text_at, ticks

MAX_SPANS = 400  # drawn in a lane
TITLED = 40  # the longest spans of a lane also carry their name, to hover over
MAX_POINTS = 300
_SPAN_LABEL = 0.12  # of the width: enough for a short name
_HEIGHT = 150.0


def drawn_spans(lane: Lane, limit: int = MAX_SPANS) -> list[Span]:
    """At most ``limit`` spans in order of time: neighbours with the smallest gaps between them are joined."""
    spans = sorted(lane.spans, key=lambda span: span.start_ms)
    if len(spans) <= limit:
        return spans
    gaps = sorted(range(1, len(spans)), key=lambda i: spans[i].start_ms - spans[i - 1].end_ms, reverse=True)
    cuts = [0, *sorted(gaps[: limit - 1]), len(spans)]
    joined = []
    for first, end in zip(cuts, cuts[1:], strict=False):
        part = spans[first:end]
        longest = max(part, key=lambda span: span.end_ms - span.start_ms)
        joined.append(Span(part[0].start_ms, max(span.end_ms for span in part), longest.label))
    return joined


def timeline_chart(timeline: Timeline, show: Display) -> Markup | None:
    """One lane an engine, step boundaries across all of them; None where nothing lasts any time."""
    total = timeline.duration_ms
    lanes = [lane for lane in timeline.lanes if lane.spans]
    if not lanes or not total > 0:
        return None
    words = show.words
    head, row, bar = 18.0, 50.0, 24.0
    bottom = head + row * len(lanes)
    drawn: list[Markup] = []
    for step, at in timeline.steps:
        x = at / total
        if 0 <= x <= 1:
            drawn.append(
                element("line", x1=percent(x), x2=percent(x), y1=head - 4, y2=bottom, class_="boundary")
            )
    drawn += _step_labels(timeline, head)
    for index, lane in enumerate(lanes):
        drawn += _lane(lane, total, head + index * row, bar, show)
    for value in ticks(0, total, 5):
        drawn.append(text_at(value / total, bottom + 15, show.ms(value), class_="tick"))
    names = ", ".join(_lane_name(lane, show) for lane in lanes)
    return chart(
        "c-timeline",
        words("chart.timeline", duration=show.ms(total)),
        words("chart.timeline_desc", count=len(lanes), list=names),
        bottom + 22,
        *drawn,
    )


def _step_labels(timeline: Timeline, head: float) -> list[Markup]:
    """Step numbers at the boundaries, as many as fit without touching."""
    labels: list[Markup] = []
    last = -1.0
    for step, at in timeline.steps:
        x = at / timeline.duration_ms
        if 0 <= x <= 1 and (not labels or x - last >= 0.07):
            labels.append(text_at(x, head - 7, str(step), class_="tick"))
            last = x
    return labels


def _lane_name(lane: Lane, show: Display) -> str:
    name = show.words.known("lane", lane.name)
    title = one_line(lane.title)
    text = name if not title or title.lower() == name.lower() else f"{name}: {shorten(title, 60)}"
    return (
        text
        if lane.busy is None
        else show.words("chart.timeline_busy", lane=text, share=show.percent(lane.busy))
    )


def _lane(lane: Lane, total: float, y: float, bar: float, show: Display) -> list[Markup]:
    spans = [span for span in drawn_spans(lane) if span.end_ms > 0 and span.start_ms < total]
    rectangles = []
    for span in spans:
        start, end = max(span.start_ms, 0.0), min(span.end_ms, total)
        x = start / total * PLANE
        rectangles.append((x, 0.0, max((end - start) / total * PLANE, 0.4), bar))
    kind = lane.name if lane.name in ("loader", "host", "copy", "compute", "communication") else "other"
    top = y + 19
    drawn = [
        element("text", _lane_name(lane, show), x="0", y=y + 14, class_="label halo"),
        element("rect", x="0", y=top, width="100%", height=bar, class_="track"),
        plane(top, bar, element("path", d=boxes(rectangles), class_=f"span lane-{kind}")),
    ]
    longest = sorted(spans, key=lambda span: span.end_ms - span.start_ms, reverse=True)[:TITLED]
    for span in longest:
        start, end = max(span.start_ms, 0.0), min(span.end_ms, total)
        label = one_line(span.label or "") or show.words.known("lane", lane.name)
        drawn.append(
            element(
                "rect",
                element("title", f"{shorten(label, 160)}, {show.ms(span.end_ms - span.start_ms)}"),
                x=percent(start / total),
                y=top,
                width=percent((end - start) / total),
                height=bar,
                class_="hit",
            )
        )
        if span.label and (end - start) / total >= _SPAN_LABEL:
            room = int((end - start) / total * 90)
            text = shorten(label, max(room, 8))
            drawn.append(text_at((start + end) / 2 / total, top + 16, text, class_="inbar", anchor="middle"))
    return drawn


def thin(series: Series, limit: int = MAX_POINTS) -> tuple[int, list[tuple[float, float | None]]]:
    """(samples in a point pair, points): of each bucket its lowest and highest, so that no peak is lost."""
    points = list(zip(series.t_ms, series.values, strict=False))
    if len(points) <= limit:
        return 1, points
    group = -(-len(points) * 2 // limit)
    kept: list[tuple[float, float | None]] = []
    for start in range(0, len(points), group):
        part = points[start : start + group]
        known = [point for point in part if point[1] is not None]
        if not known:
            kept.append(part[0])
            continue
        low = min(known, key=lambda point: point[1] or 0.0)
        high = max(known, key=lambda point: point[1] or 0.0)
        kept += sorted({low, high})
    return group, kept


def axis_text(unit: str, show: Display) -> Callable[[float], str]:
    """How values of a unit are written on an axis."""
    return lambda value: show.quantity(value, unit)


def series_chart(ident: str, series: Series, show: Display) -> Markup | None:
    """A line over wall time with gaps where nothing was sampled; None with fewer than two samples."""
    _, points = thin(series)
    known = [value for _, value in points if value is not None]
    if len(known) < 2 or points[-1][0] <= points[0][0]:
        return None
    start, end = points[0][0], points[-1][0]
    low = min(0.0, *known)
    high = max(known)
    if series.unit == "share":
        high = max(high, 1.0)
    if high <= low:
        high = low + 1.0
    head, body = 16.0, _HEIGHT - 20

    def place(t: float, value: float) -> tuple[float, float]:
        return (t - start) / (end - start) * PLANE, body - (value - low) / (high - low) * body

    line = polyline([None if value is None else place(t, value) for t, value in points])
    write = axis_text(series.unit, show)
    title = one_line(series.title)
    desc = show.words(
        "chart.series_desc",
        title=title,
        low=write(min(known)),
        high=write(max(known)),
        duration=show.ms(end - start),
    )
    times = [
        text_at(value / (end - start), head + body + 15, show.ms(value), class_="tick")
        for value in ticks(0, end - start, 4)
    ]
    return chart(
        ident,
        title,
        desc,
        head + body + 22,
        *_grid(low, high, head, body, write),
        plane(head, body, element("path", d=line, class_="line")),
        *times,
    )


def _grid(low: float, high: float, head: float, body: float, write: Callable[[float], str]) -> list[Markup]:
    drawn: list[Markup] = []
    for value in ticks(low, high, 3):
        y = head + body - (value - low) / (high - low) * body
        drawn.append(
            element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid" if value != low else "axis")
        )
        if value != low or low != 0:
            drawn.append(text_at(0, y - 3, write(value), class_="tick halo", anchor="start"))
    return drawn


def curve_chart(ident: str, curve: Curve, show: Display) -> Markup | None:
    """The predicted curve with its band; today's value a ring, the suggested one a diamond, measured ones crosses."""
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=False)]
    if len(points) < 2:
        return None
    lows, highs = _band(curve, len(points))
    xs = [x for x, _ in points] + [x for x, _ in curve.measured]
    ys = [*(y for _, y in points), *(y for _, y in curve.measured), *lows, *highs]
    left, right, top = min(xs), max(xs), max(ys)
    bottom = min(0.0, min(ys))
    if right <= left or top <= bottom:
        return None
    head, body = 18.0, _HEIGHT + 20

    def across(x: float) -> float:
        return 0.02 + 0.96 * (x - left) / (right - left)

    def up(y: float) -> float:
        return body - (y - bottom) / (top - bottom) * body

    shapes: list[Markup] = []
    if lows:
        edge = [(across(x) * PLANE, up(y)) for (x, _), y in zip(points, highs, strict=True)]
        edge += [(across(x) * PLANE, up(y)) for (x, _), y in reversed(list(zip(points, lows, strict=True)))]
        shapes.append(element("path", d=polyline(edge) + "z", class_="band"))
    shapes.append(element("path", d=polyline([(across(x) * PLANE, up(y)) for x, y in points]), class_="line"))
    write = axis_text(curve.unit, show)
    labels = [
        text_at(across(x), head + body + 15, units.number(x), class_="tick")
        for x in _x_ticks(curve, left, right)
    ]
    desc = show.words(
        "chart.curve_desc", title=one_line(curve.title), parameter=one_line(curve.parameter),
        low=write(min(y for _, y in points)), high=write(max(y for _, y in points)),
    )  # fmt: skip
    return chart(
        ident,
        one_line(curve.title),
        desc,
        head + body + 22,
        *_grid(bottom, top, head, body, write),
        plane(head, body, *shapes),
        *_markers(curve, points, head, across, up, show),
        *labels,
    )


def _x_ticks(curve: Curve, left: float, right: float) -> list[float]:
    values = sorted(set(curve.x))
    return values if len(values) <= 9 else ticks(left, right, 6)


def _band(curve: Curve, count: int) -> tuple[list[float], list[float]]:
    if len(curve.low) != count or len(curve.high) != count:
        return [], []
    return list(curve.low), list(curve.high)


def at_value(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The drawn line's height at ``x``; None outside it."""
    ordered = sorted(points)
    for (x0, y0), (x1, y1) in zip(ordered, ordered[1:], strict=False):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None


def _markers(
    curve: Curve,
    points: Sequence[tuple[float, float]],
    head: float,
    across: Callable[[float], float],
    up: Callable[[float], float],
    show: Display,
) -> list[Markup]:
    drawn: list[Markup] = []
    for x, y in curve.measured:
        drawn.append(_marker(across(x), head + up(y), "M-4 -4L4 4M-4 4L4 -4", "measured"))
    named = (
        (curve.current, "current", "M0 -5A5 5 0 1 1 0 5A5 5 0 1 1 0 -5z"),
        (curve.suggested, "suggested", "M0 -7L7 0L0 7L-7 0z"),
    )
    for value, name, shape in named:
        y = None if value is None else at_value(points, value)
        if value is None or y is None:
            continue
        at, height = across(value), head + up(y)
        drawn.append(_marker(at, height, shape, name))
        below = name == "current"
        label = f"{show.words('ui.' + name)} {units.number(value)}"
        drawn.append(text_at(at, height + (20 if below else -11), label, class_="label halo"))
    return drawn


def _marker(at: float, y: float, shape: str, name: str) -> Markup:
    return element(
        "svg", element("path", d=shape, class_=f"marker {name}"), x=percent(at), y=y, width=1, height=1,
        overflow="visible",
    )  # fmt: skip
