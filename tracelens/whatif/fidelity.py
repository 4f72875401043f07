"""How faithful a replay is: its error on steps that nothing was fitted on, and the profiler's own cost taken off."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.whatif import graph as g
from tracelens.whatif.replay import Feed, Replayed, Scenario, replay, replay_together
from tracelens.whatif.timing import fit_timing
from tracelens.whatif.together import meeting

Span = tuple[int, int]

_BASE = (Scenario("base"),)
# what recording one host event costs at least: 0.47 us without shapes, 0.6-0.7 us with (torch 2.13 on a server CPU,
# operators of 1 us; older versions cost more), and at most what is taken off the work around it
EVENT_NS, _AT_MOST = 500.0, 0.5
_EVENTFUL = (g.DISPATCH, g.OPTIMIZER)  # kinds of host work with many short events
_TOUCHED = (g.DISPATCH, g.OPTIMIZER, g.CAST, g.COPY)  # kinds of host work that recording lengthens


def with_profiler_apart(feed: Feed) -> Feed:
    """The feed with the profiler's own least cost a recorded event told from the host's work, where none was measured."""
    graph = feed.graph
    if graph.events is None:
        return feed
    gap, cost = graph.gap.copy(), EVENT_NS * graph.events
    work = gap[:, _EVENTFUL].sum(axis=1)
    cost = np.minimum(cost, _AT_MOST * work)
    gap[:, _EVENTFUL] *= (1 - cost / np.maximum(work, 1.0))[:, None]
    # a call is an event too
    own = np.where(graph.kind == g.LAUNCH, np.minimum(EVENT_NS, _AT_MOST * graph.call), 0.0)
    gap[:, g.PROFILER] += cost + own
    return dataclasses.replace(feed, graph=dataclasses.replace(graph, gap=gap, call=graph.call - own))


def without_profiler(analysis: RankAnalysis, feed: Feed, step_ms: float) -> tuple[Feed, float, bool]:
    """The feed with the profiler's own cost taken off dispatch, the unprofiled step, and whether anything was taken off.

    Only where a baseline was recorded. Recording lengthens operators, calls and the Python between them; it does not
    lengthen kernels, copies or loading.
    """
    baseline, graph = analysis.baseline_ms, feed.graph
    if baseline is None:
        return feed, step_ms, False
    recorded = graph.recorded_ns / graph.steps / 1e6
    if recorded <= 1.01 * baseline:
        return feed, baseline, False
    factors = np.linspace(0.2, 1.0, 17)
    trials = [Scenario(f"x{f:.2f}", host=tuple((kind, float(f)) for kind in _TOUCHED)) for f in factors]
    means = replay(graph, trials, feed.workers, feed.prefetch, feed.busy).mean_ns / 1e6
    factor = float(np.interp(baseline, np.maximum.accumulate(means), factors))
    gap = graph.gap.copy()
    gap[:, _TOUCHED] *= factor
    shorter = dataclasses.replace(graph, gap=gap, call=graph.call * factor)
    return dataclasses.replace(feed, graph=shorter), baseline, True


def held_out_errors(
    analyses: Sequence[RankAnalysis],
    spans: Sequence[Span],
    feeds: Sequence[Feed],
    results: Sequence[Replayed] | None,
) -> list[float]:
    """Relative error of each rank's mean step on steps that the constants were not fitted on: the later half of ``spans``
    (first and last steady step of each rank, as many on all).

    With fewer than four steps there is nothing to hold out: the recorded steps themselves. ``results``: what the feeds
    gave, None where they are not as recorded.
    """
    count = spans[0][1] - spans[0][0] + 1
    if count >= 4 and (results is None or feeds[0].graph.steps >= 4):
        length = feeds[0].graph.steps
        tested = [(last + 1 - (count + 1) // 2, last) for _, last in spans]
        known = [np.arange(first, middle) for (first, _), (middle, _) in zip(spans, tested, strict=True)]
        again = built(
            analyses, [(first, min(last, first + length - 1)) for first, last in tested], feeds, known
        )
        results = replay_together(again, _BASE, passes=1) if again is not None else None
    elif results is None:
        again = built(analyses, spans, feeds)
        results = replay_together(again, _BASE, passes=1) if again is not None else None
    else:
        again = list(feeds)
    if again is None or results is None:
        return [float("inf")] * len(feeds)
    return [
        float(result.first_pass_ns[0].mean() * feed.graph.steps / feed.graph.recorded_ns - 1)
        for feed, result in zip(again, results, strict=True)
    ]


def built(
    analyses: Sequence[RankAnalysis],
    spans: Sequence[Span],
    like: Sequence[Feed],
    fitted: Sequence[NDArray[np.int64]] | None = None,
) -> list[Feed] | None:
    """Feeds of the steps in ``spans``, joined where there are several; the constants fitted on the steps ``fitted``."""
    feeds = []
    for i, (analysis, (first, last), feed) in enumerate(zip(analyses, spans, like, strict=True)):
        timing = fit_timing(analysis, fitted[i]) if fitted is not None else None
        graph = g.build_graph(analysis, first, last, timing)
        if graph is None:
            return None
        feeds.append(Feed(graph, feed.workers, feed.prefetch, feed.busy))
    return meeting(analyses, feeds) if len(feeds) > 1 else feeds
