"""The what-ifs of a report: each resource free, pairs, and single causes removed; all replayed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracelens.model import RESOURCES, Bottleneck
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.hostwork import first_use_time
from tracelens.whatif import graph as g
from tracelens.whatif.bounds import WhatIfs, bounds
from tracelens.whatif.fidelity import Span, held_out_errors, with_profiler_apart, without_profiler
from tracelens.whatif.replay import PASSES, Feed, Replayed, Scenario, replay_together
from tracelens.whatif.together import common_steps, meeting

Floats = NDArray[np.float64]

WARN_ERROR, MAX_ERROR = (
    0.03,
    0.05,
)  # above the first it is said, above the second numbers are withheld (design section 5)
MAX_CONCURRENT = (
    0.1  # share of time with two launching threads at work, beyond which one host is no model of it
)
_FEW = 3  # steady steps
_STARTUP = 0.25  # of them in first uses: as the rule host.startup has it
MAX_TASKS = 60_000  # interactions and activities replayed at most; longer windows are sampled

# what is left of recorded dispatch when the profiler's own share and what can be saved at best are taken off: profiling
# about doubles dispatch (facebookresearch/dlrm#197: 23 ms a step without, 43 ms with), so of a bare trace half is no saving
_PROFILED = 0.5

_HOST = tuple((kind, 0.0) for kind in range(len(g.HOST_WORK)))
_NO_COPIES = ((g.H2D, 0.0), (g.D2H_BULK, 0.0))
UNPROFILED = Scenario("unprofiled", host=((g.PROFILER, 0.0),))
LOADED = Scenario("loaded", host=((g.LOAD, 0.0),), loader=0.0)  # every batch is ready
CLASSES: dict[str, Scenario] = {
    "cpu": Scenario("cpu", host=_HOST, sync=False, loader=0.0, call=0.0),
    # the operators around the copies are still dispatched: fewer copies, not faster ones, would save that
    "h2d_copy": Scenario("h2d_copy", device=_NO_COPIES, copy_wait=False, copy_calls=0.0),
    "communication": Scenario("communication", device=((g.COMMUNICATION, 0.0),)),
    "memory_bandwidth": Scenario("memory_bandwidth", device=((g.MEMORY, 0.0),)),
    "gpu": Scenario("gpu", device=((g.ARITHMETIC, 0.0), (g.SMALL, 0.0))),
}
# what a rule's cause would save: the signal that carries it, and the scenario
CAUSES: Mapping[str, Scenario] = {
    "load.saving_ms": Scenario("load", host=((g.LOAD, 0.0),), loader=0.0),
    "sync.saving_ms": Scenario("sync", sync=False),
    "host.dispatch_ms": Scenario("dispatch", host=((g.DISPATCH, _PROFILED),)),
    "host.python_ms": Scenario("python", host=((g.PYTHON, 0.0),)),
    "host.optimizer_ms": Scenario("optimizer", host=((g.OPTIMIZER, _PROFILED),)),
    "host.cast_ms": Scenario("cast", host=((g.CAST, 0.0),)),
    "host.allocation_ms": Scenario("allocation", host=((g.ALLOCATION, 0.0),)),
    "transfer.saving_ms": Scenario("copies", host=((g.COPY, 0.0),), device=_NO_COPIES, copy_wait=False),
    "communication.saving_ms": Scenario("collectives", device=((g.COMMUNICATION, 0.0),)),
}
_KERNELS: tuple[Bottleneck, ...] = ("gpu", "memory_bandwidth")
PAIRS: tuple[tuple[Bottleneck, Bottleneck], ...] = (
    ("cpu", "h2d_copy"), ("cpu", "communication"), ("h2d_copy", "communication"), ("cpu", "gpu"), ("cpu", "memory_bandwidth"),
    ("gpu", "memory_bandwidth"),
)  # fmt: skip


@dataclass(frozen=True)
class RankReplay:
    """A rank's graph with how its loader is fed, and what the standard scenarios gave (ms a step).

    ``feeds``: of all ranks replayed together, this one's at ``index``.
    """

    feeds: tuple[Feed, ...]
    index: int
    base_ns: float
    whatifs: WhatIfs
    causes: Mapping[str, float]
    pairs: Mapping[tuple[Bottleneck, Bottleneck], float]
    sampled: bool

    few: bool

    known: dict[str, float] = field(default_factory=dict, compare=False)
    wanted: dict[str, Scenario] = field(default_factory=dict, compare=False)

    @property
    def graph(self) -> g.Graph:
        """The rank's steps as a graph; of ranks replayed together, collectives last as long as their transfer."""
        return self.feeds[self.index].graph

    @property
    def busy(self) -> float | None:
        """Share of time that the loader's workers work, where a log says so."""
        return self.feeds[self.index].busy

    def means(self, scenarios: Sequence[Scenario], *, later: bool = False) -> list[float] | None:
        """Mean step in ns under further scenarios (told apart by name) on the same graph.

        One pass over the graph costs much the same for one scenario as for fifty: with ``later`` scenarios that are
        not known yet are only noted, and the answer is None; the next call without it replays them all together.
        """
        missing = {s.name: s for s in scenarios if s.name not in self.known}
        if later and missing:
            self.wanted.update(missing)
            return None
        if missing:
            batch = list({**self.wanted, **missing}.values())
            self.wanted.clear()
            values = _means(
                replay_together(self.feeds, batch, 1 if self.few else PASSES)[self.index], self.few
            )
            self.known.update({s.name: float(v) for s, v in zip(batch, values, strict=True)})
        return [self.known[s.name] for s in scenarios]

    @property
    def host_ms(self) -> float:
        """Host work of a step outside loading, in ms."""
        graph = self.graph
        return float(graph.gap[:, 1:].sum() + graph.call[graph.kind != g.NEXT].sum()) / graph.steps / 1e6


Outcome = tuple[WhatIfs, RankReplay | None]


def what_ifs(analysis: RankAnalysis, busy: float | None = None) -> Outcome:
    """The rank's what-ifs by replay, or bounds where a replay is not possible or not faithful.

    ``busy``: share of their time that the loader's workers work, where a host log says so.
    """
    return what_ifs_of([analysis], [busy])[0]


def what_ifs_of(analyses: Sequence[RankAnalysis], busy: Sequence[float | None]) -> list[Outcome]:
    """The what-ifs of a run's ranks: a resource made free on all at once, where their collectives tie them together; each
    by itself where they do not."""
    spans = common_steps(analyses) if len(analyses) > 1 else None
    if spans is not None:
        together = _outcomes(analyses, spans, busy)
        if together is not None:
            return together
    alone: list[Outcome] = []
    for analysis, share in zip(analyses, busy, strict=True):
        outcome = _outcomes([analysis], [_span(analysis)], [share]) if analysis.steps.count else None
        alone += outcome if outcome is not None else [(bounds(analysis), None)]
    return alone


def _outcomes(
    analyses: Sequence[RankAnalysis], spans: Sequence[Span], busy: Sequence[float | None]
) -> list[Outcome] | None:
    """The ranks replayed as one; None where they cannot be: no graph, or collectives that do not match."""
    chosen = _sample(analyses, spans)
    feeds, steps_ms, corrected = [], [], False
    fallbacks = [bounds(analysis) for analysis in analyses]
    for analysis, (first, last), share, fallback in zip(analyses, chosen, busy, fallbacks, strict=True):
        graph = g.build_graph(analysis, first, last)
        if graph is None or graph.concurrent > MAX_CONCURRENT:
            return None
        feed, step_ms, taken_off = without_profiler(
            analysis, Feed(graph, *_loader(analysis), share), fallback.step_ms
        )
        feeds.append(feed)
        steps_ms.append(step_ms)
        corrected = corrected or taken_off
    if len(feeds) > 1:
        joined = meeting(analyses, feeds)
        if joined is None:
            return None
        feeds = joined
    feeds = [with_profiler_apart(feed) for feed in feeds] if not corrected else feeds
    classes = {name: merge(UNPROFILED, scenario) for name, scenario in CLASSES.items()}
    pairs = {f"{a}+{b}": merge(classes[a], classes[b]) for a, b in PAIRS}
    scenarios = {"base": Scenario("base"), "unprofiled": UNPROFILED, **CAUSES, **classes, **pairs}
    few = spans[0][1] - spans[0][0] + 1 < 3 or spans[0][0] < analyses[0].steps.first
    results = replay_together(feeds, list(scenarios.values()), 1 if few else PASSES)
    errors = held_out_errors(analyses, spans, feeds, None if corrected else results)
    # one or two steps say nothing about a steady state: they are compared as recorded, with the backlog they began with
    means = [_means(result, few) for result in results]
    worst = max(errors, key=abs)
    if abs(worst) > MAX_ERROR or any(values[0] <= 0 for values in means):
        return [
            (WhatIfs(fallback.step_ms, fallback.saving_ms, "bound", worst), None) for fallback in fallbacks
        ]
    outcomes: list[Outcome] = []
    for i, (feed, step_ms, fallback) in enumerate(zip(feeds, steps_ms, fallbacks, strict=True)):
        base, unprofiled = float(means[i][0]), float(means[i][1])
        # where the loader is free nothing of its model is left: compared with the steps as they were recorded, not with
        # its steady state, whose waits are estimated
        recorded = base if corrected or few else feed.graph.recorded_ns / feed.graph.steps
        savings = {}
        for (name, scenario), mean in zip(scenarios.items(), means[i], strict=True):
            today = recorded if scenario.loader == 0 else base
            if name not in CAUSES:
                today *= unprofiled / base
            savings[name] = step_ms * max(1 - float(mean) / today, 0.0)
        by_class: dict[Bottleneck, float | None] = {name: savings[name] for name in RESOURCES}
        for kernels in _KERNELS:
            if fallback.saving_ms.get(kernels) is None:
                by_class[kernels] = None
        whatifs = WhatIfs(step_ms, by_class, "replay", errors[i])
        causes = {name: savings[name] for name in CAUSES}
        both = {pair: savings[f"{pair[0]}+{pair[1]}"] for pair in PAIRS}
        sampled = chosen[i] != spans[i]
        outcomes.append((whatifs, RankReplay(tuple(feeds), i, base, whatifs, causes, both, sampled, few)))
    return outcomes


def _span(analysis: RankAnalysis) -> Span:
    """The steady steps; all of a few that start-up fills, which have no steady state to begin after the first."""
    steps = analysis.steps
    starting = first_use_time(analysis).clip(*analysis.window).total
    filled = steps.steady <= _FEW and starting >= _STARTUP * analysis.length
    return (0 if filled else steps.first), steps.last


def _means(result: Replayed, few: bool) -> Floats:
    """Mean step by scenario: of the steady state, of the first pass where there are too few steps to have one."""
    return result.first_pass_ns.mean(axis=1) if few else result.mean_ns


def _sample(analyses: Sequence[RankAnalysis], spans: Sequence[Span]) -> list[Span]:
    """The steady steps to replay: all, or as many from the middle as fit the budget, which the ranks share."""
    count = spans[0][1] - spans[0][0] + 1
    per_step = sum(2 * float(np.mean(a.step_kernels)) + 10 for a in analyses)
    fit = max(int(MAX_TASKS / per_step), 4)
    if count <= fit:
        return list(spans)
    skipped = (count - fit) // 2
    return [(first + skipped, first + skipped + fit - 1) for first, _ in spans]


def _loader(analysis: RankAnalysis) -> tuple[int | None, int]:
    workers, prefetch = analysis.settings.get("num_workers"), analysis.settings.get("prefetch_factor")
    return (
        workers if isinstance(workers, int) and not isinstance(workers, bool) and workers > 0 else None,
        prefetch if isinstance(prefetch, int) and not isinstance(prefetch, bool) and prefetch > 0 else 2,
    )


def merge(one: Scenario, other: Scenario) -> Scenario:
    """Both changes at once; where both touch the same work the stronger one holds."""
    host, device = dict(one.host), dict(one.device)
    for kind, factor in other.host:
        host[kind] = min(factor, host.get(kind, factor))
    for work, factor in other.device:
        device[work] = min(factor, device.get(work, factor))
    durations = one.durations if other.durations is None else other.durations
    if one.durations is not None and other.durations is not None:
        durations = np.minimum(one.durations, other.durations)
    return Scenario(
        f"{one.name}+{other.name}", tuple(host.items()), tuple(device.items()), one.sync and other.sync,
        one.copy_wait and other.copy_wait, min(one.loader, other.loader), min(one.call, other.call),
        min(one.copy_calls, other.copy_calls), durations,
    )  # fmt: skip
