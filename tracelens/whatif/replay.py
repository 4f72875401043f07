"""Replays a graph under many scenarios at once: one pass over the interactions, a vector of clocks, one a scenario.

The steps are replayed several times in a row (the end of a pass is the beginning of the next), and the last ones
are measured, so that neither an empty queue at the start nor a full one flatters a scenario.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracelens.whatif.graph import COMMUNICATION, COPY, DISPATCH, LAUNCH, LOAD, NEXT, PROFILER, UNKNOWN, Graph

Floats = NDArray[np.float64]
_NEVER = -1e18
PASSES = 3
_MOST_PASSES, _BUDGET = 8, 40_000  # of the measured passes: their number, and the interactions in all of them


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is changed: factors on host work and device work by kind (see graph), 1 where not named.

    ``sync``/``copy_wait``: whether ``.item()``-like waits and copy calls still block; ``loader``: factor on loader
    waits (0: batches always lie ready); ``latency``: factor on launch latency and gaps between kernels.
    ``copy_calls``: factor on the copy calls' own cost. ``durations``: replaces activity durations (ns).
    """

    name: str
    host: tuple[tuple[int, float], ...] = ()
    device: tuple[tuple[int, float], ...] = ()
    sync: bool = True
    copy_wait: bool = True
    loader: float = 1.0
    call: float = 1.0
    copy_calls: float = 1.0
    durations: Floats | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Mean step in ns by scenario over the measured passes, the steps' own durations in the last one (scenarios, steps),
    and those of the first pass, which begins as the recording did: that pass is compared with the recorded steps."""

    mean_ns: Floats
    steps_ns: Floats
    first_pass_ns: Floats


@dataclass(frozen=True)
class Feed:
    """A rank to replay: its graph and what shapes its loader's arrivals: workers, prefetch factor, and the share of time
    that a worker works where a host log says so.

    ``meets``: for each activity, whether it is a collective that all ranks replayed together meet in. Its duration in the
    graph is then the transfer alone. ``offset_ns`` lays the rank's clock over the others'.
    """

    graph: Graph
    workers: int | None = None
    prefetch: int = 2
    busy: float | None = None
    meets: NDArray[np.bool_] | None = None
    offset_ns: float = 0.0


def replay(
    graph: Graph,
    scenarios: Sequence[Scenario],
    workers: int | None = None,
    prefetch: int = 2,
    busy: float | None = None,
    passes: int = PASSES,
) -> Replayed:
    """Replays every scenario; ``workers`` and ``prefetch`` shape how loader arrivals follow the consumer."""
    return replay_together([Feed(graph, workers, prefetch, busy)], scenarios, passes)[0]


def replay_together(
    feeds: Sequence[Feed], scenarios: Sequence[Scenario], passes: int = PASSES
) -> list[Replayed]:
    """Replays ranks side by side: the n-th collective of each begins when that rank is ready and ends on all when the last
    one has arrived and the transfer is done. Where a scenario frees communication nobody waits for anybody.

    Every rank must meet as often as the others; raises ValueError otherwise.
    """
    counted = 1 if passes == 1 else max(_measured_passes(f.graph, f.workers or 1) for f in feeds)
    alone = np.array([dict(s.device).get(COMMUNICATION, 1.0) == 0.0 for s in scenarios])
    walks = [_walk(feed, scenarios, passes, counted, alone) for feed in feeds]
    results: list[Replayed | None] = [None] * len(walks)
    together: Floats | None = None
    while any(result is None for result in results):
        arrived = []
        for i, walk in enumerate(walks):
            try:
                arrived.append(walk.send(together))
            except StopIteration as done:
                results[i] = done.value
        if len(arrived) not in (0, len(walks)):
            raise ValueError("ranks that are replayed together must meet equally often")
        together = np.maximum.reduce(arrived) if arrived else None
    return [result for result in results if result is not None]


def _walk(
    feed: Feed, scenarios: Sequence[Scenario], passes: int, counted: int, alone: NDArray[np.bool_]
) -> Generator[Floats, Floats | None, Replayed]:
    """One rank's replay. Yields when it is ready for each collective that ranks meet in, and is sent when all were."""
    graph, count = feed.graph, len(scenarios)
    gap, call, duration = _weights(graph, scenarios)
    waits = _wait_switches(graph, scenarios)
    workers = feed.workers if feed.workers and feed.workers > 0 else 1
    ahead = workers * max(feed.prefetch, 1)
    service = fit_service(graph, workers, ahead, feed.busy)
    arrivals = _Arrivals(graph, scenarios, service, workers, ahead)
    latency, between, queue = graph.timing.latency_ns, graph.timing.gap_ns, graph.timing.queue
    host = np.zeros(count)
    stream_end = _queued_before(graph, duration, alone)
    hidden = graph.hidden.tolist()
    turns = _foreign_turns(graph, duration)
    tail = graph.tail[:, None] * turns if graph.tail is not None else None
    if tail is not None:
        waits = waits + np.where(graph.waits_for[:, None] >= 0, tail[graph.waits_for], 0.0)
    activities = graph.duration.size
    meets = (feed.meets if feed.meets is not None else np.zeros(activities, dtype=bool)).tolist()
    ended = np.zeros((activities, count))
    started_ring = np.full((max(queue, 1), count), _NEVER)
    launched = 0
    done = np.full((graph.steps, count), _NEVER)
    before = np.full(count, graph.begun_ns)
    measured = np.zeros((count, graph.steps))
    kinds, firsts, counts = graph.kind.tolist(), graph.first.tolist(), graph.count.tolist()
    targets, slack, streams = graph.waits_for.tolist(), graph.slack.tolist(), graph.stream.tolist()
    after, owner = graph.after.tolist(), graph.owner.tolist()
    maximum = np.maximum
    recorded = np.zeros((count, graph.steps))
    since = before
    for number in range(passes - 1 + counted):
        if number == passes - 1:
            since = before
        done.fill(_NEVER)
        for i, kind in enumerate(kinds):
            at = host + gap[i]
            if kind == LAUNCH:
                host = at + call[i]
                ready = at + latency
                for k in range(firsts[i], firsts[i] + counts[i]):
                    stream = streams[k]
                    begin = maximum(ready, stream_end[stream] + between)
                    if after[k] >= 0:
                        begin = maximum(begin, ended[after[k]] + between)
                    if hidden[k]:
                        begin = begin + hidden[k] * turns
                    finish = begin + duration[k]
                    if meets[k]:
                        all_there = yield begin + feed.offset_ns
                        assert all_there is not None
                        finish = np.where(alone, begin, all_there - feed.offset_ns) + duration[k]
                    ended[k] = finish
                    stream_end[stream] = finish if tail is None else finish + tail[k]
                    done[owner[k]] = maximum(done[owner[k]], finish)
                    slot = launched % queue
                    # the queue takes no more launches than it holds: this one waits for the start of an earlier one
                    host = maximum(host, started_ring[slot])
                    started_ring[slot] = begin
                    launched += 1
                if targets[i] >= 0:
                    host = maximum(host, ended[targets[i]] + slack[i] + waits[i])
            elif kind == NEXT:
                host = arrivals.take(i, at, at + call[i])
            else:
                host = at + call[i]
                if targets[i] >= 0:
                    host = maximum(host, ended[targets[i]] + slack[i] + waits[i])
        # a step that launched nothing ends with the one before it
        edges = np.maximum.accumulate(np.vstack((before[None, :], done)), axis=0)
        measured = np.diff(edges, axis=0).T
        if number == 0:
            recorded = measured
        before = done.max(axis=0)
    mean = np.maximum(before - since, 0.0) / (counted * graph.steps)
    return Replayed(mean, measured, recorded)


def _measured_passes(graph: Graph, workers: int) -> int:
    """Passes to measure. Batches come in bursts of as many as there are workers: a pass that ends inside a burst is too
    short or too long, so whole rounds are measured where a few passes make one."""
    batches = graph.requests.row.size
    if not batches:
        return 1
    return max(1, min(workers // math.gcd(workers, batches), _MOST_PASSES, _BUDGET // len(graph)))


def _weights(graph: Graph, scenarios: Sequence[Scenario]) -> tuple[Floats, Floats, Floats]:
    """Host gaps, call costs (interactions, scenarios) and activity durations (activities, scenarios)."""
    host = np.ones((graph.gap.shape[1], len(scenarios)))
    device = np.ones((8, len(scenarios)))
    duration = np.repeat(graph.duration[:, None], len(scenarios), axis=1)
    for s, scenario in enumerate(scenarios):
        factors = dict(scenario.host)
        for kind, factor in factors.items():
            host[kind, s] = factor
        # what recording costs comes and goes with the work that was recorded
        host[PROFILER, s] = factors.get(PROFILER, factors.get(DISPATCH, 1.0))
        for work, factor in scenario.device:
            device[work, s] = factor
        if scenario.durations is not None:
            duration[:, s] = scenario.durations
    calls = np.array([scenario.call for scenario in scenarios])
    call = graph.call[:, None] * calls[None, :]
    if graph.call_work is not None:
        # what a ``next`` costs beside its wait stays where batches are merely ready earlier
        own = host.copy()
        own[LOAD] = 1.0
        own[COPY] *= [scenario.copy_calls for scenario in scenarios]
        call *= own[graph.call_work]
    return graph.gap @ host, call, duration * device[graph.work]


def _foreign_turns(graph: Graph, duration: Floats) -> Floats:
    """How much of another process's time on the GPU is left: processes take turns, so that it has as many as our kernels
    need. What a CUDA graph hides stays as it is."""
    kernels = graph.work <= UNKNOWN
    today = float(graph.duration[kernels].sum())
    if not graph.foreign or not today:
        return np.ones(duration.shape[1])
    return np.asarray(duration[kernels].sum(axis=0) / today)


def _queued_before(graph: Graph, duration: Floats, alone: NDArray[np.bool_]) -> list[Floats]:
    """When each stream is free of work queued before the replay: work like the stream's own, so it shrinks with that.

    Left as recorded, a deep queue would outlast all passes of a scenario with free kernels and hide the host's pace. What
    of it was waiting is left out where nobody waits for a collective.
    """
    ends = []
    for stream, backlog in enumerate(graph.backlog):
        mine = graph.stream == stream
        today = graph.duration[mine].sum()
        left = duration[mine].sum(axis=0) / today if today > 0 else np.ones(duration.shape[1])
        working = backlog if graph.queued is None else min(backlog, graph.queued[stream])
        until = np.where(alone, working, backlog) * left
        ends.append(np.where((backlog > 0) & (left > 0), until, _NEVER))
    return ends


def _wait_switches(graph: Graph, scenarios: Sequence[Scenario]) -> Floats:
    """0 where a wait counts, hugely negative where a scenario has removed it (interactions, scenarios)."""
    sync = np.array([0.0 if s.sync else _NEVER for s in scenarios])
    copy = np.array([0.0 if s.copy_wait else _NEVER for s in scenarios])
    return np.where(graph.small_wait[:, None], sync[None, :], copy[None, :])


class _Arrivals:
    """When batches are ready: a worker takes its next index when it is free and an in-order batch has been taken."""

    def __init__(
        self, graph: Graph, scenarios: Sequence[Scenario], service: Floats, workers: int, ahead: int
    ) -> None:
        factor = np.array([s.loader for s in scenarios])
        self.free = factor == 0
        self.index = {int(row): position for position, row in enumerate(graph.requests.row)}
        self.service = service[:, None] * factor[None, :]
        self.workers, self.ahead = workers, ahead
        self.first = graph.requests.there[:workers] - graph.start_ns - service[:workers]
        self.taken: list[Floats] = []
        self.ready: list[Floats] = []
        self.nothing = np.full(len(scenarios), _NEVER)

    def take(self, row: int, at: Floats, own: Floats) -> Floats:
        """The host's clock after the ``next`` that it begins at ``at`` and that costs until ``own``."""
        number = len(self.taken)
        service = self.service[self.index[row]]
        sent = self.taken[number - self.ahead] if number >= self.ahead else self.nothing
        if number < self.workers:
            # before the replay began the workers were as far as the first requests show
            begin = np.full(at.size, self.first[number]) if number < self.first.size else at - service
        else:
            begin = self.ready[number - self.workers]
        ready = np.where(self.free, _NEVER, np.maximum(begin, sent) + service)
        self.ready.append(ready)
        out = np.maximum(own, ready + (own - at))
        self.taken.append(out)
        return out


_LIMITING = 0.08  # of the time: what a class must save to be the bottleneck (design section 5)


def fit_service(graph: Graph, workers: int, ahead: int, busy: float | None = None) -> Floats:
    """Service time of each batch in ns, from the ends of the ``next`` calls that waited (design section 5).

    A batch that was waited for was complete when ``next`` returned: its service began when its worker was free and
    its index sent. The others were complete before they were asked for; they are given the usual service time,
    or less where that would make them late. ``busy`` (share of time that a worker works, from a host log) gives the
    usual service time where nothing was waited for; without it, 0: the loader is not seen to limit anything.
    Where waits cost 8 % of the time but no service shows, the workers are taken to be busy all the time, unless they
    delivered a whole round, or half the batches, in time afterwards.
    """
    asked, there = graph.requests.asked, graph.requests.there
    count = asked.size
    if not count:
        return np.empty(0)
    # batches are taken at the host's pace, which is not the GPU's while the launch queue fills
    step = min(graph.recorded_ns, graph.host_ns or graph.recorded_ns) / max(graph.steps, 1)
    waited = there - asked > max(0.02 * step, 200_000.0)
    # after this many batches in time, one from every worker or half of all, nothing waits for them any more
    over = count - 1 - int(np.flatnonzero(waited).max(initial=-1)) >= min(workers, count / 2)
    usual = busy * workers * step if busy is not None and (over or not waited.any()) else 0.0
    service = np.full(count, usual)
    for _ in range(3):
        ready = np.where(waited, there, np.minimum(asked, there))
        for i in range(count):
            begin = max(
                ready[i - workers] if i >= workers else _NEVER, there[i - ahead] if i >= ahead else _NEVER
            )
            if begin == _NEVER:
                service[i] = usual
                continue
            if waited[i]:
                service[i] = max(there[i] - begin, 0.0)
            else:
                service[i] = min(usual, max(asked[i] - begin, 0.0))
                ready[i] = begin + service[i]
        known = service[workers:][waited[workers:]]
        if known.size:
            usual = float(np.median(known))
        elif not usual and not over and (there - asked)[waited].sum() >= _LIMITING * graph.recorded_ns:
            # waited for, but only while it is unknown when work had begun: an empty queue means busy workers,
            # busy with reading too, which ``busy`` does not count
            usual = workers * step
        else:
            break
    if count > workers:
        # nothing shows when the first ones were begun; the ones that were waited for are the slow ones, so all count
        service[:workers] = np.median(service[workers:])
    return service
