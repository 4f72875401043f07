"""Graphs made by hand, so that a replay's times can be worked out on paper. All times are ns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracelens.trace.tables import Pin
from tracelens.whatif import graph as g
from tracelens.whatif.replay import Scenario, replay
from tracelens.whatif.timing import Timing

_CALLS = {g.LAUNCH: g.DISPATCH, g.SYNC: g.DISPATCH, g.NEXT: g.LOAD, g.CALL: g.ALLOCATION}


@dataclass
class Maker:
    """Interactions in host order; ``step`` ends a step. ``again`` repeats what was made so far."""

    latency: float = 0.0
    between: float = 0.0
    queue: int = 1024
    call_ns: float = 10.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    activities: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[int, float, float]] = field(default_factory=list)
    steps: int = 0

    def row(self, kind: int, gap: dict[int, float], call: float, **more: Any) -> int:
        first = len(self.activities)
        self.rows.append({
            "kind": kind, "gap": gap, "call": call, "first": first, "count": 0, "waits_for": -1, "slack": 0.0,
            "small": False, "step": self.steps, **more,
        })  # fmt: skip
        return len(self.rows) - 1

    def launch(
        self, duration: float, gap: float = 0.0, *, work: int = g.ARITHMETIC, stream: int = 0, after: int = -1,
        hidden: float = 0.0, blocks: bool = False, slack: float = 0.0, small: bool = False, host: int = g.DISPATCH,
        call: float | None = None, size: int = -1, pin: int = int(Pin.UNKNOWN),
    ) -> int:  # fmt: skip
        """One launch of one activity; ``blocks``: its call returns ``slack`` after the activity's end. The activity's index."""
        number = len(self.activities)
        waits = {"waits_for": number, "slack": slack, "small": small} if blocks else {}
        self.row(g.LAUNCH, {host: gap}, self.call_ns if call is None else call, count=1, **waits)
        self.activities.append({
            "duration": duration, "work": work, "stream": stream, "after": after, "hidden": hidden,
            "owner": self.steps, "bytes": size, "pin": pin,
        })  # fmt: skip
        return number

    def graph_launch(self, durations: list[float], gap: float = 0.0) -> None:
        """One call that launches several activities on stream 0."""
        self.row(g.LAUNCH, {g.DISPATCH: gap}, self.call_ns, count=len(durations))
        for duration in durations:
            self.activities.append({
                "duration": duration, "work": g.ARITHMETIC, "stream": 0, "after": -1, "hidden": 0.0,
                "owner": self.steps, "bytes": -1, "pin": int(Pin.UNKNOWN),
            })  # fmt: skip

    def sync(self, target: int, gap: float = 0.0, slack: float = 0.0, call: float = 0.0) -> None:
        """A synchronisation that returns ``slack`` after an activity's end."""
        self.row(g.SYNC, {g.PYTHON: gap}, call, waits_for=target, slack=slack, small=True)

    def allocation(self, cost: float, gap: float = 0.0) -> None:
        """An allocation call."""
        self.row(g.CALL, {g.ALLOCATION: gap}, cost)

    def next(self, asked: float, there: float, own: float = 0.0, gap: float = 0.0) -> None:
        """The loader's ``next``, asked and answered at recorded times."""
        row = self.row(g.NEXT, {g.PYTHON: gap}, own)
        self.requests.append((row, asked, there))

    def work(self, kinds: dict[int, float], duration: float = 0.0, call: float = 0.0) -> None:
        """Host work of several kinds before a launch."""
        self.launch(duration, call=call)
        self.rows[-1]["gap"] = kinds

    def step(self) -> None:
        """Ends a step."""
        self.steps += 1

    def graph(
        self, *, backlog: tuple[float, ...] = (), begun: float = 0.0, recorded: float | None = None
    ) -> g.Graph:
        """The graph; ``recorded`` (default: what the replay's first pass gives) is the recorded length."""
        gap = np.zeros((len(self.rows), len(g.HOST_WORK)))
        for i, row in enumerate(self.rows):
            for kind, length in row["gap"].items():
                gap[i, kind] = length
        streams = 1 + max((a["stream"] for a in self.activities), default=0)

        def column(source: list[dict[str, Any]], name: str, kind: Any) -> Any:
            return np.array([item[name] for item in source], dtype=kind)

        rows, activities = self.rows, self.activities
        asked = np.array(self.requests, dtype=float).reshape(-1, 3)
        return g.Graph(
            kind=column(rows, "kind", np.int64), gap=gap, call=column(rows, "call", float),
            first=column(rows, "first", np.int64), count=column(rows, "count", np.int64),
            waits_for=column(rows, "waits_for", np.int64), slack=column(rows, "slack", float),
            small_wait=column(rows, "small", bool), step=column(rows, "step", np.int64),
            duration=column(activities, "duration", float), work=column(activities, "work", np.int64),
            stream=column(activities, "stream", np.int64), after=column(activities, "after", np.int64),
            owner=column(activities, "owner", np.int64), bytes=column(activities, "bytes", np.int64),
            pin=column(activities, "pin", np.int64), names=np.zeros(len(activities), dtype=np.int64),
            requests=g.Requests(asked[:, 0].astype(np.int64), asked[:, 1], asked[:, 2]),
            timing=Timing(self.call_ns, self.latency, self.between, self.queue),
            backlog=np.array(backlog or (0.0,) * streams), hidden=column(activities, "hidden", float),
            steps=self.steps, streams=streams, concurrent=0.0, recorded_ns=recorded or 1000.0 * self.steps,
            begun_ns=begun, start_ns=0, call_work=np.array([_CALLS[row["kind"]] for row in rows], dtype=np.int64),
        )  # fmt: skip


def mean(graph: g.Graph, scenario: Scenario | None = None, **loader: Any) -> float:
    """The replayed mean step of one scenario, ns."""
    return float(replay(graph, [scenario or Scenario("base")], **loader).mean_ns[0])
