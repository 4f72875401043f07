"""The timeline: one lane an engine, step boundaries across all of them."""

from __future__ import annotations

from itertools import pairwise

from markupsafe import Markup

from tracelens.model import Lane, Span, Timeline
from tracelens.render.display import Display
from tracelens.render.sanitize import one_line, shorten
from tracelens.render.svg import PLANE, boxes, chart, element, percent, plane, text_at, ticks

MAX_SPANS = 320  # drawn in a lane
TITLED = 25  # the longest spans of a lane also carry their name, to hover over
_SPAN_LABEL = 0.12  # of the width: enough for a short name


def drawn_spans(lane: Lane, limit: int = MAX_SPANS) -> list[Span]:
    """At most ``limit`` spans in order of time: neighbours with the smallest gaps between them are joined."""
    spans = sorted(lane.spans, key=lambda span: span.start_ms)
    if len(spans) <= limit:
        return spans
    gaps = sorted(range(1, len(spans)), key=lambda i: spans[i].start_ms - spans[i - 1].end_ms, reverse=True)
    cuts = [0, *sorted(gaps[: limit - 1]), len(spans)]
    joined = []
    for first, end in pairwise(cuts):
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
    for _, at in timeline.steps:
        x = at / total
        if 0 <= x <= 1:
            drawn.append(
                element("line", x1=percent(x), x2=percent(x), y1=head - 4, y2=bottom, class_="boundary")
            )
    drawn += _step_labels(timeline, head, show)
    for index, lane in enumerate(lanes):
        drawn += _lane(lane, total, head + index * row, bar, show)
    for value in ticks(0, total, 5):
        drawn.append(text_at(value / total, bottom + 15, show.ms(value), class_="tick"))
    names = words("ui.comma").join(_lane_name(lane, show) for lane in lanes)
    return chart(
        "c-timeline",
        words("chart.timeline", duration=show.ms(total)),
        words("chart.timeline_desc", count=len(lanes), list=names),
        bottom + 22,
        *drawn,
    )


def _step_labels(timeline: Timeline, head: float, show: Display) -> list[Markup]:
    """Step numbers at the boundaries, as many as fit without touching."""
    labels: list[Markup] = []
    last = -1.0
    for step, at in timeline.steps:
        x = at / timeline.duration_ms
        if 0 <= x <= 1 and (not labels or x - last >= 0.07):
            text = str(step) if labels else f"{show.words('chart.steps_axis')} {step}"
            labels.append(text_at(x, head - 7, text, class_="tick"))
            last = x
    return labels


def _lane_name(lane: Lane, show: Display) -> str:
    name = show.words.known("lane", lane.name)
    title = one_line(lane.title)
    same = not title or title.lower() == name.lower()
    text = name if same else f"{name}{show.words('ui.colon')}{shorten(title, 60)}"
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
                element("title", f"{shorten(label, 100)}, {show.ms(span.end_ms - span.start_ms)}"),
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
