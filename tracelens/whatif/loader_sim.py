"""torch's DataLoader as a discrete-event simulation.

The rules are those of ``torch.utils.data``: ``prefetch_factor * num_workers`` indices are handed out round
robin at the start of an epoch, one more whenever a batch is taken; a worker fetches one batch at a time in
the order of its own queue; finished batches pass through one queue, and through the pin thread where there is
one; the main process receives them as they come and yields them in order, or as they come with
``in_order=False`` (torch 2.6).

Everything that computes (workers, main process) shares the cores: with n threads running each advances at
``Machine.speed(n)``. All running threads advance alike, so a single virtual clock orders their completions.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tracelens.whatif.loader_inputs import LoaderInputs, LoaderSettings

_READY, _WAITED, _PINNED, _MAIN, _EPOCH = 0, 1, 2, 3, 4
_RECEIVE, _STEP = -1, -2
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Costs:
    """One batch's costs, ms on an idle machine, as functions of the batch number, after all corrections."""

    wait: list[float]
    cpu: list[float]
    consume: Callable[[int], float]
    receive: float
    pin: float
    main_cpu: float
    speed: list[float]
    streams: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A run in ms: completion of every step, time in ``next`` by step, busy times, batches as taken and when."""

    ends: list[float]
    waits: list[float]
    worker_busy: float
    cpu_busy: float
    consumer_busy: float
    received: list[int]
    takes: list[float] = field(default_factory=list)


def simulate(
    inputs: LoaderInputs, settings: LoaderSettings, costs: Costs, epochs: list[int], cold: bool = True
) -> Trace:
    """Run ``epochs`` (batches in each) and return when each step ended; ``cold`` starts the workers first."""
    if settings.num_workers == 0:
        return _in_main(inputs, costs, epochs)
    return _with_workers(inputs, settings, costs, epochs, cold)


def _in_main(inputs: LoaderInputs, costs: Costs, epochs: list[int]) -> Trace:
    """No workers: fetch, collate and pin happen in the main process, between two steps."""
    pace, step_pace = 1.0 / costs.speed[1], 1.0 / costs.speed[max(inputs.main_threads, 1)]
    ahead = inputs.run_ahead
    count = len(costs.cpu)
    ends: list[float] = []
    waits: list[float] = []
    t = device = busy = computed = 0.0
    for k in range(sum(epochs)):
        spent = costs.wait[k % count] + (costs.cpu[k % count] + costs.pin) * pace
        waits.append(spent)
        t += spent
        need = costs.consume(k)
        host = t + costs.main_cpu * step_pace
        device = max(max(device, t) + need, host)
        ends.append(device)
        busy += need
        computed += (costs.cpu[k % count] + costs.pin) * pace
        computed += costs.main_cpu * step_pace * inputs.main_threads
        blocker = ends[k - ahead] if k >= ahead else 0.0
        t = max(host, blocker)
    return Trace(ends, waits, 0.0, computed, busy, list(range(sum(epochs))))


def _with_workers(
    inputs: LoaderInputs, settings: LoaderSettings, costs: Costs, epochs: list[int], cold: bool
) -> Trace:
    workers, prefetch = settings.num_workers, settings.prefetch_factor
    in_order, pin_thread = settings.in_order, settings.pin_memory
    wait, cpu, consume, speed = costs.wait, costs.cpu, costs.consume, costs.speed
    count, streams, ahead = len(cpu), costs.streams, inputs.run_ahead
    push, pop = heapq.heappush, heapq.heappop

    timed: list[tuple[float, int, int, int]] = []  # time, tie-breaker, kind, argument
    running: list[tuple[float, int, int]] = []  # virtual finish, tie-breaker, batch or _RECEIVE or _STEP
    reading: list[tuple[float, int, int]] = []  # the same for storage, where it is shared
    virtual = read_virtual = now = 0.0
    ties = 0

    queues: list[deque[int]] = [deque() for _ in range(workers)]
    idle = [False] * workers
    held = [0] * workers  # indices handed to a worker whose batches were not taken yet
    owner: dict[int, int] = {}
    arrived: deque[int] = deque()  # finished, on the way to the receiver
    pinned: deque[int] = deque()
    pin_busy = False
    stash: set[int] = set()
    sent = limit = turn = 0

    ends: list[float] = []
    waits: list[float] = []
    received: list[int] = []
    takes: list[float] = []
    worker_busy = cpu_busy = consumer_busy = device = 0.0
    began: dict[int, float] = {}

    step = epoch = 0
    asked = 0.0
    wanting = False  # main is inside next() with nothing being received
    receiving = -1
    stepping = False

    slowest = inputs.slow_worker

    def work(batch: int) -> float:
        """CPU time that the batch takes its worker: one of them may be slower than the others."""
        return cpu[batch % count] * (1.0 if owner[batch] else slowest)

    def start(w: int) -> None:
        nonlocal ties
        queue = queues[w]
        if not queue:
            idle[w] = True
            return
        idle[w] = False
        batch = queue.popleft()
        began[batch] = now
        pause = wait[batch % count] * (1.0 if w else slowest)
        ties += 1
        if pause <= 0.0:
            push(running, (virtual + work(batch), ties, batch))
        elif streams == _NEVER:
            push(timed, (now + pause, ties, _WAITED, batch))
        else:
            push(reading, (read_virtual + pause, ties, batch))

    def hand_out() -> None:
        nonlocal sent, turn
        if sent >= limit:
            return
        w = turn
        for _ in range(workers):
            w = turn
            turn = (turn + 1) % workers
            if in_order or held[w] < prefetch:
                break
        owner[sent] = w
        held[w] += 1
        queues[w].append(sent)
        sent += 1
        if idle[w]:
            start(w)

    def begin_epoch(fresh: bool) -> None:
        """``iter(loader)`` at ``now``: start or wake the workers, prime their queues, then ask for a batch.

        Nothing of the epoch before is in flight any more: its last batch was taken.
        """
        nonlocal limit, turn, ties, asked, epoch
        asked = now
        limit += epochs[epoch]
        epoch += 1
        turn = 0
        at = now
        if fresh:
            at += inputs.epoch_ms
            for w in range(workers):
                idle[w] = False
                at += inputs.fork_ms
                ties += 1
                push(timed, (at + inputs.init_ms, ties, _READY, w))
        else:
            at += inputs.resume_ms
        for _ in range(workers * prefetch):
            hand_out()
        ties += 1
        push(timed, (at, ties, _MAIN, 1))

    def pin_next() -> None:
        nonlocal pin_busy, ties
        if pin_busy or not arrived:
            return
        pin_busy = True
        ties += 1
        pace = 1.0 / speed[len(running) + 1]
        push(timed, (now + (costs.receive + costs.pin) * pace, ties, _PINNED, arrived.popleft()))

    def take(batch: int) -> None:
        """Main has batch: hand out the next index, then compute the step."""
        nonlocal ties, device, consumer_busy, stepping
        held[owner.pop(batch)] -= 1
        received.append(batch)
        waits.append(now - asked)
        takes.append(now)
        hand_out()
        need = consume(step)
        consumer_busy += need
        device = max(device, now) + need
        ties += 1
        push(running, (virtual + costs.main_cpu, ties, _STEP))
        stepping = True

    def look() -> None:
        """Main is inside next(): take what it wants, or receive what came, or wait."""
        nonlocal wanting, receiving, ties
        wanting = False
        if in_order and step in stash:
            stash.discard(step)
            take(step)
            return
        source = pinned if pin_thread else arrived
        while source:
            batch = source.popleft()
            if pin_thread or costs.receive <= 0.0:
                if not in_order or batch == step:
                    take(batch)
                    return
                stash.add(batch)
                continue
            receiving = batch
            ties += 1
            push(running, (virtual + costs.receive, ties, _RECEIVE))
            return
        wanting = True

    if not cold:
        idle = [True] * workers
    begin_epoch(cold)
    total = sum(epochs)
    fresh_epochs = not settings.persistent_workers

    more = inputs.main_threads - 1
    while step < total:
        active = len(running)
        if more and stepping:
            active += more
        pace = speed[active]
        next_cpu = now + (running[0][0] - virtual) / pace if running else _NEVER
        next_timed = timed[0][0] if timed else _NEVER
        if reading:
            read_pace = min(1.0, streams / len(reading))
            next_read = now + (reading[0][0] - read_virtual) / read_pace
        else:
            read_pace, next_read = 0.0, _NEVER
        at = min(next_cpu, next_timed, next_read)
        passed = at - now
        if passed > 0.0:
            virtual += passed * pace
            read_virtual += passed * read_pace
            cpu_busy += passed * active
            now = at
        if at == next_timed:
            _, _, kind, arg = pop(timed)
            if kind == _WAITED:
                ties += 1
                push(running, (virtual + work(arg), ties, arg))
            elif kind == _PINNED:
                pin_busy = False
                pinned.append(arg)
                pin_next()
                if wanting:
                    look()
            elif kind == _READY:
                start(arg)
            elif kind == _EPOCH:
                begin_epoch(fresh_epochs)
            else:
                if not arg:  # the first next() of an epoch counts from iter()
                    asked = now
                look()
            continue
        if at == next_read:
            _, _, batch = pop(reading)
            ties += 1
            push(running, (virtual + work(batch), ties, batch))
            continue
        finish, _, what = pop(running)
        virtual = finish
        if what >= 0:
            worker_busy += now - began.pop(what)
            arrived.append(what)
            start(owner[what])
            if pin_thread:
                pin_next()
            elif wanting:
                look()
        elif what == _RECEIVE:
            batch, receiving = receiving, -1
            if not in_order or batch == step:
                take(batch)
            else:
                stash.add(batch)
                look()
        else:
            stepping = False
            device = max(device, now)
            ends.append(device)
            step += 1
            blocker = ends[step - 1 - ahead] if step - 1 >= ahead else 0.0
            ties += 1
            if step == limit:
                push(timed, (max(now, blocker), ties, _EPOCH, 0))
            else:
                push(timed, (max(now, blocker), ties, _MAIN, 0))

    return Trace(ends, waits, worker_busy, cpu_busy, consumer_busy, received, takes)
