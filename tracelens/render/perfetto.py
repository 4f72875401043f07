"""A trace for ui.perfetto.dev: steps, lanes and sampled series as tracks, beside whatever the user opens with it."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tracelens.model import Result

_PID = 1


def perfetto_json(result: Result) -> str:
    """Chrome trace events (JSON, microseconds): one track a lane of the timeline, steps above, counters below."""
    events: list[dict[str, Any]] = [_named("process_name", 0, "tracelens")]
    if result.timeline is not None:
        edges = [*result.timeline.steps, (-1, result.timeline.duration_ms)]
        events.append(_named("thread_name", 1, "steps"))
        for (number, start), (_, end) in itertools.pairwise(edges):
            events.append(_span(f"step {number}", 1, start, end))
        for track, lane in enumerate(result.timeline.lanes, start=2):
            events.append(_named("thread_name", track, lane.title))
            events += [
                _span(span.label or lane.name, track, span.start_ms, span.end_ms) for span in lane.spans
            ]
    for series in result.series:
        events += [
            {
                "ph": "C",
                "pid": _PID,
                "name": f"{series.title} ({series.unit})",
                "ts": t * 1000,
                "args": {"value": value},
            }
            for t, value in zip(series.t_ms, series.values, strict=True)
            if value is not None
        ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PID, "tid": track, "name": kind, "args": {"name": name}}


def _span(name: str, track: int, start_ms: float, end_ms: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PID,
        "tid": track,
        "name": name,
        "ts": start_ms * 1000,
        "dur": (end_ms - start_ms) * 1000,
    }
