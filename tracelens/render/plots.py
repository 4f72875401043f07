"""Lines: sampled series over wall time, predicted curves over a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from markupsafe import Markup

from tracelens import units
from tracelens.model import Curve, Series
from tracelens.render.display import Display
from tracelens.render.sanitize import one_line, shorten
from tracelens.render.svg import PLANE, chart, element, percent, plane, polyline, text_at, ticks

MAX_POINTS = 300
_HEIGHT = 150.0


def finite(value: float | None) -> float | None:
    """None for what cannot be drawn."""
    return value if value is not None and math.isfinite(value) else None


def thin(series: Series, limit: int = MAX_POINTS) -> tuple[int, list[tuple[float, float | None]]]:
    """(samples in a point pair, points): of each bucket its lowest and highest, so that no peak is lost."""
    points = [(t, finite(value)) for t, value in zip(series.t_ms, series.values, strict=False)]
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


def axis_text(unit: str, show: Display) -> tuple[Callable[[float], str], str]:
    """How values of a unit are written at an axis, and the unit to name above it where they lack one."""
    if unit in ("ms", "bytes", "share", "ratio"):
        return lambda value: show.quantity(value, unit), ""
    return show.number, "" if unit == "count" else one_line(unit)


def series_chart(ident: str, series: Series, show: Display) -> Markup | None:
    """A line over wall time with gaps where nothing was sampled; None with fewer than two samples."""
    _, points = thin(series)
    known = [value for _, value in points if value is not None]
    if len(known) < 2 or points[-1][0] <= points[0][0]:
        return None
    start, end = points[0][0], points[-1][0]
    low = min(0.0, *known)
    high = 1.0 if series.unit == "share" and max(known) <= 1 else max(known) * 1.05
    if high <= low:
        high = low + 1.0
    head, body = 24.0, _HEIGHT - 20

    def place(t: float, value: float) -> tuple[float, float]:
        return (t - start) / (end - start) * PLANE, body - (value - low) / (high - low) * body

    line = polyline([None if value is None else place(t, value) for t, value in points])
    title = one_line(series.title)
    desc = show.words(
        "chart.series_desc",
        title=title,
        low=show.quantity(min(known), series.unit),
        high=show.quantity(max(known), series.unit),
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
        *_grid(low, high, head, body, series.unit, show),
        plane(head, body, element("path", d=line, class_="line")),
        *times,
        class_="chart gutter",
    )


def _grid(low: float, high: float, head: float, body: float, unit: str, show: Display) -> list[Markup]:
    write, above = axis_text(unit, show)
    drawn: list[Markup] = []
    if above:
        drawn.append(element("text", shorten(above, 24), x="-60", y="10", class_="tick"))
    for value in ticks(low, high, 3):
        y = head + body - (value - low) / (high - low) * body
        drawn.append(
            element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid" if value != low else "axis")
        )
        drawn.append(element("text", write(value), x="-6", y=y + 4, class_="tick", text_anchor="end"))
    return drawn


def curve_chart(ident: str, curve: Curve, show: Display) -> Markup | None:
    """The predicted curve with its band; today a ring, suggested a diamond, measured points crosses."""
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
    head, body = 26.0, _HEIGHT + 20

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
    labels = [
        text_at(across(x), head + body + 15, units.number(x), class_="tick")
        for x in _x_ticks(curve, left, right)
    ]
    desc = show.words(
        "chart.curve_desc", title=one_line(curve.title), parameter=one_line(curve.parameter),
        low=show.quantity(min(y for _, y in points), curve.unit),
        high=show.quantity(max(y for _, y in points), curve.unit),
    )  # fmt: skip
    return chart(
        ident,
        one_line(curve.title),
        desc,
        head + body + 22,
        *_grid(bottom, top, head, body, curve.unit, show),
        plane(head, body, *shapes),
        *_markers(curve, points, head, across, up, show),
        *labels,
        class_="chart gutter",
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
    for (x0, y0), (x1, y1) in pairwise(ordered):
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
    for x, measured in curve.measured:
        drawn.append(_marker(across(x), head + up(measured), "M-4 -4L4 4M-4 4L4 -4", "measured"))
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
