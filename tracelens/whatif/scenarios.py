"""The what-ifs of a report: each resource free, pairs, and single causes removed; all replayed together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracelens.model import RESOURCES, Bottleneck
from tracelens.signals.analysis import RankAnalysis
from tracelens.whatif import graph as g
from tracelens.whatif.bounds import WhatIfs, bounds
from tracelens.whatif.replay import PASSES, Replayed, Scenario, replay
from tracelens.whatif.timing import fit_timing

WARN_ERROR, MAX_ERROR = (
    0.03,
    0.05,
)  # above the first it is said, above the second numbers are withheld (design section 5)
MAX_CONCURRENT = (
    0.1  # share of time with two launching threads at work, beyond which one host is no model of it
)
MAX_TASKS = 60_000  # interactions and activities replayed at most; longer windows are sampled

# what is left of recorded dispatch when the profiler's own share and what can be saved at best are taken off: profiling
# about doubles dispatch (facebookresearch/dlrm#197: 23 ms a step without, 43 ms with), so of a bare trace half is no saving
_PROFILED = 0.5

_HOST = tuple((kind, 0.0) for kind in range(len(g.HOST_WORK)))
_NO_COPIES = ((g.H2D, 0.0), (g.D2H_BULK, 0.0))
LOADED = Scenario("loaded", host=((g.LOAD, 0.0),), loader=0.0)  # every batch is ready
CLASSES: dict[str, Scenario] = {
    "cpu": Scenario("cpu", host=_HOST, sync=False, loader=0.0, call=0.0),
    "h2d_copy": Scenario("h2d_copy", host=((g.COPY, 0.0),), device=_NO_COPIES, copy_wait=False),
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
PAIRS: tuple[tuple[Bottleneck, Bottleneck], ...] = (
    ("cpu", "h2d_copy"), ("cpu", "communication"), ("h2d_copy", "communication"), ("cpu", "gpu"), ("cpu", "memory_bandwidth"),
    ("gpu", "memory_bandwidth"),
)  # fmt: skip


@dataclass(frozen=True)
class RankReplay:
    """A rank's graph with how its loader is fed, and what the standard scenarios gave (ms a step)."""

    graph: g.Graph
    workers: int | None
    prefetch: int
    busy: float | None
    base_ns: float
    whatifs: WhatIfs
    causes: Mapping[str, float]
    pairs: Mapping[tuple[Bottleneck, Bottleneck], float]
    sampled: bool

    few: bool

    known: dict[str, float] = field(default_factory=dict, compare=False)
    wanted: dict[str, Scenario] = field(default_factory=dict, compare=False)

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
            passes = 1 if self.few else PASSES
            result = replay(self.graph, batch, self.workers, self.prefetch, self.busy, passes=passes)
            values = result.first_pass_ns.mean(axis=1) if self.few else result.mean_ns
            self.known.update({s.name: float(v) for s, v in zip(batch, values, strict=True)})
        return [self.known[s.name] for s in scenarios]

    @property
    def host_ms(self) -> float:
        """Host work of a step outside loading, in ms."""
        graph = self.graph
        return float(graph.gap[:, 1:].sum() + graph.call[graph.kind != g.NEXT].sum()) / graph.steps / 1e6


def what_ifs(analysis: RankAnalysis, busy: float | None = None) -> tuple[WhatIfs, RankReplay | None]:
    """The rank's what-ifs by replay, or bounds where a replay is not possible or not faithful.

    ``busy``: share of their time that the loader's workers work, where a host log says so.
    """
    fallback = bounds(analysis)
    first, last, sampled = _sample(analysis)
    graph = g.build_graph(analysis, first, last)
    if graph is None or graph.concurrent > MAX_CONCURRENT:
        return fallback, None
    workers, prefetch = _loader(analysis)
    named: dict[str, Scenario] = {"base": Scenario("base"), **CLASSES, **CAUSES}
    pairs = {f"{a}+{b}": merge(CLASSES[a], CLASSES[b]) for a, b in PAIRS}
    scenarios = [*named.values(), *pairs.values()]
    few = analysis.steps.steady < 3
    graph, step_ms, corrected = _without_profiler(analysis, graph, fallback.step_ms, workers, prefetch, busy)
    result = replay(graph, scenarios, workers, prefetch, busy, passes=1 if few else PASSES)
    error = held_out_error(analysis, graph, result if not corrected else None, workers, prefetch, busy)
    # one or two steps say nothing about a steady state: they are compared as recorded, with the backlog they began with
    means = result.first_pass_ns.mean(axis=1) if few else result.mean_ns
    base = float(means[0])
    if abs(error) > MAX_ERROR or base <= 0:
        return WhatIfs(fallback.step_ms, fallback.saving_ms, "bound", error), None

    # where the loader is free nothing of its model is left: compared with the steps as they were recorded, not with its
    # steady state, whose waits are estimated
    recorded = base if corrected or few else graph.recorded_ns / graph.steps

    def saved(index: int) -> float:
        against = recorded if scenarios[index].loader == 0 else base
        return step_ms * max(1 - float(means[index]) / against, 0.0)

    savings = {name: saved(i) for i, name in enumerate([*named, *pairs])}
    by_class: dict[Bottleneck, float | None] = {name: savings[name] for name in RESOURCES}
    for name in ("gpu", "memory_bandwidth"):
        if fallback.saving_ms.get(name) is None:
            by_class[name] = None
    whatifs = WhatIfs(step_ms, by_class, "replay", error)
    causes = {name: savings[name] for name in CAUSES}
    both = {pair: savings[f"{pair[0]}+{pair[1]}"] for pair in PAIRS}
    return whatifs, RankReplay(graph, workers, prefetch, busy, base, whatifs, causes, both, sampled, few)


def _without_profiler(
    analysis: RankAnalysis,
    graph: g.Graph,
    step_ms: float,
    workers: int | None,
    prefetch: int,
    busy: float | None,
) -> tuple[g.Graph, float, bool]:
    """The graph with the profiler's own cost taken off dispatch, and the unprofiled step, where a baseline was recorded.

    Recording lengthens operators, calls and the Python between them; it does not lengthen kernels, copies or loading.
    """
    baseline = analysis.baseline_ms
    if baseline is None:
        return graph, step_ms, False
    recorded = graph.recorded_ns / graph.steps / 1e6
    if recorded <= 1.01 * baseline:
        return graph, baseline, False
    factors = np.linspace(0.2, 1.0, 17)
    touched = (g.DISPATCH, g.OPTIMIZER, g.CAST, g.COPY)
    trials = [Scenario(f"x{f:.2f}", host=tuple((kind, float(f)) for kind in touched)) for f in factors]
    means = replay(graph, trials, workers, prefetch, busy).mean_ns / 1e6
    factor = float(np.interp(baseline, np.maximum.accumulate(means), factors))
    gap = graph.gap.copy()
    gap[:, touched] *= factor
    return dataclasses.replace(graph, gap=gap, call=graph.call * factor), baseline, True


def held_out_error(
    analysis: RankAnalysis,
    graph: g.Graph,
    result: Replayed | None,
    workers: int | None,
    prefetch: int,
    busy: float | None,
) -> float:
    """Relative error of the mean step on steps that the constants were not fitted on: the later half.

    With fewer than four steps there is nothing to hold out: the recorded steps themselves.
    """
    steps = analysis.steps
    if result is None and steps.steady < 4:
        plain = g.build_graph(analysis)
        if plain is None:
            return float("inf")
        graph, result = plain, replay(plain, [Scenario("base")], workers, prefetch, busy, passes=1)
    if result is not None and (steps.steady < 4 or graph.steps < 4):
        return float(result.first_pass_ns[0].mean() * graph.steps / graph.recorded_ns - 1)
    middle = steps.first + steps.steady // 2
    timing = fit_timing(analysis, np.arange(steps.first, middle))
    held = g.build_graph(analysis, middle, min(steps.last, middle + graph.steps - 1), timing)
    if held is None:
        return float("inf")
    again = replay(held, [Scenario("base")], workers, prefetch, busy, passes=1)
    return float(again.first_pass_ns[0].mean() * held.steps / held.recorded_ns - 1)


def _sample(analysis: RankAnalysis) -> tuple[int, int, bool]:
    """The steady steps to replay: all, or as many from the middle as fit the budget."""
    steps = analysis.steps
    if not steps.count:
        return 0, -1, False
    per_step = 2 * float(np.mean(analysis.step_kernels)) + 10
    fit = max(int(MAX_TASKS / per_step), 4)
    if steps.steady <= fit:
        return steps.first, steps.last, False
    first = steps.first + (steps.steady - fit) // 2
    return first, first + fit - 1, True


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
        one.copy_wait and other.copy_wait, min(one.loader, other.loader), min(one.call, other.call), durations,
    )  # fmt: skip
