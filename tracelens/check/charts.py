"""The two charts of a comparison: phases before and after, predicted intervals with the measured points."""

from __future__ import annotations

from markupsafe import Markup

from tracelens.check.comparison import Comparison
from tracelens.render.charts import pieces
from tracelens.render.display import Display
from tracelens.render.svg import chart, element, percent, text_at, ticks

_ROW = 46.0
_EDGE = 0.02


def phase_bars(found: Comparison, show: Display) -> Markup | None:
    """Two bars on one scale of milliseconds a step; None where a side's phases are unknown."""
    before = {row.phase: row.before_ms for row in found.phases}
    after = {row.phase: row.after_ms for row in found.phases}
    totals = [sum(value or 0.0 for value in side.values()) for side in (before, after)]
    if min(totals) <= 0:
        return None
    most = max(totals)
    drawn: list[Markup] = []
    listed = []
    for index, (word, side, total) in enumerate(
        zip(("before", "after"), (before, after), totals, strict=True)
    ):
        y = index * _ROW
        drawn.append(element("text", word, x="0", y=y + 13, class_="label"))
        drawn.append(
            element("text", show.ms(total), x="100%", y=y + 13, class_="label num", text_anchor="end")
        )
        shares = {name: (value or 0.0) / total for name, value in side.items()}
        drawn += pieces(shares, y + 19, 20, total / most)
        named = ", ".join(f"{show.words.known('phase', n)} {show.ms(v)}" for n, v in side.items() if v)
        listed.append(f"{word}: {named}")
    return chart(
        "c-compare",
        "Time by phase, before and after",
        "; ".join(listed),
        2 * _ROW,
        *drawn,
        class_="chart bar",
    )


def prediction_bars(found: Comparison, show: Display) -> Markup | None:
    """A line a judged recommendation: its interval, the prediction in it, and what was measured."""
    rows = [
        (row.parameter, row.interval, row.predicted, row.measured)
        for row in found.confirmations
        if row.interval is not None and row.predicted is not None and row.measured is not None
    ]
    if not rows:
        return None
    values = [value for _, interval, *points in rows for value in (*interval, *points)]
    low, high = min(1.0, *values), max(1.0, *values)
    span = (high - low) or 1.0

    def at(value: float) -> float:
        return _EDGE + (1 - 2 * _EDGE) * (value - low) / span

    drawn: list[Markup] = []
    bottom = len(rows) * _ROW
    for tick in ticks(low, high):
        drawn.append(
            element("line", x1=percent(at(tick)), x2=percent(at(tick)), y1=0, y2=bottom, class_="grid")
        )
        drawn.append(text_at(at(tick), bottom + 14, show.ratio(tick), class_="tick"))
    listed = []
    for index, (name, interval, predicted, measured) in enumerate(rows):
        y = index * _ROW
        left, right, middle = at(interval[0]), at(interval[1]), percent(at(predicted))
        drawn += [
            element("text", name, x="0", y=y + 13, class_="label halo"),
            element("rect", x=percent(left), y=y + 21, width=percent(right - left), height=14, class_="band"),
            element("line", x1=middle, x2=middle, y1=y + 19, y2=y + 37, class_="axis"),
            element("circle", cx=percent(at(measured)), cy=y + 28, r=5, class_="marker suggested"),
        ]
        between = show.interval(interval)
        listed.append(
            f"{name}: predicted {show.ratio(predicted)} ({between}), measured {show.ratio(measured)}"
        )
    return chart("c-predicted", "Predicted and measured speed-up", "; ".join(listed), bottom + 20, *drawn)
