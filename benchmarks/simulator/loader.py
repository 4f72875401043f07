"""torch's DataLoader as a discrete-event simulation, in microseconds.

Index queues are fed round robin, ``prefetch_factor * num_workers`` batches are primed at the start of an
epoch, one more is handed out each time a batch is taken, and batches are delivered in order. A worker
fetches one batch at a time: it waits for storage latency, reads through shared storage, computes on shared
cores, and copies the batch into shared memory through the host's memory. A pin thread moves batches one by
one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.simulator.params import Params
from benchmarks.simulator.resources import Shared, capped, cores

READ, COMPUTE, COPY = 0, 1, 2


@dataclass(slots=True)
class Fetch:
    """One batch on its way: when its worker began and ended, its CPU time, waits and copying."""

    batch: int
    worker: int
    begin: float = 0.0
    end: float = 0.0
    ready: float = 0.0
    cpu: float = 0.0
    waited: float = 0.0
    moved: float = 0.0
    phase_at: float = 0.0


@dataclass(slots=True)
class Noise:
    """Random factors of every batch, drawn once so that all what-ifs of a run see the same batches."""

    cpu: list[float]
    wait: list[float]
    outliers: np.ndarray

    @staticmethod
    def draw(p: Params, rng: np.random.Generator, n: int = 512) -> Noise:
        """``n`` batches' worth; longer runs repeat them."""
        s = p.loader_sigma
        outliers = rng.random((n, 64)).astype(np.float64)
        return Noise(
            np.exp(s * rng.standard_normal(n)).tolist(),
            np.exp(2 * s * rng.standard_normal(n)).tolist(),
            outliers,
        )


@dataclass(slots=True)
class Loader:
    """One rank's loader. ``begin_epoch``, then ``next`` once a batch; times never go back."""

    p: Params
    noise: Noise
    batch_bytes: int
    free: frozenset[str] = frozenset()
    factor: float = 1.0
    log: list[Fetch] = field(default_factory=list)
    starts: list[tuple[float, int, float]] = field(default_factory=list)
    _heap: list[tuple[float, int, str, Any]] = field(default_factory=list)
    _shared: list[Shared] = field(default_factory=list)
    _queues: list[list[int]] = field(default_factory=list)
    _busy: list[bool] = field(default_factory=list)
    _done: dict[int, Fetch] = field(default_factory=dict)
    _pin_free: float = 0.0
    _sent: int = 0
    _taken: int = 0
    _next_worker: int = 0
    _limit: int = 0
    _clock: float = 0.0
    _tick: int = 0
    _alive: bool = False
    _work: dict[int, tuple[float, float, float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        p = self.p
        work = max(p.cores - 0.6, 0.4 * p.cores) if "cores" not in self.free else 1e6
        penalty = p.thread_penalty if p.worker_threads > 1 else p.switch_penalty
        threads = 1 if "threads" in self.free else p.worker_threads
        gbs = 1e6 if "host_memory" in self.free else p.host_gbs
        self._shared = [
            Shared(capped(p.storage_mbs, p.stream_mbs)),  # bytes a us == MB/s
            Shared(cores(work, threads, penalty)),
            Shared(capped(gbs * 1e3, 12e3)),
        ]

    # what one batch costs, us of an otherwise idle machine

    def work(self, batch: int) -> tuple[float, float, float, float]:
        """Storage latency (us), bytes read, CPU (us), bytes moved through host memory, for one batch."""
        if batch in self._work:
            return self._work[batch]
        p = self.p
        i = batch % len(self.noise.cpu)
        slow = 1.0
        if p.outlier_p and "outliers" not in self.free:
            # the share of slow samples, from uniforms that no setting changes
            seen = self.noise.outliers[i][: min(p.batch, 64)]
            slow += float(np.count_nonzero(seen < p.outlier_p)) / len(seen) * (p.outlier_x - 1.0)
        cpu = p.batch * p.sample_cpu_ms * 1e3 * self.noise.cpu[i] * slow + p.collate_ms * 1e3
        cpu += self.batch_bytes / 1e6 * p.ipc_us_mb if p.workers else 0.0
        wait = p.batch * p.sample_wait_ms * 1e3 * self.noise.wait[i]
        if p.burst_every and batch % p.burst_every == p.burst_every - 1 and "outliers" not in self.free:
            wait += p.burst_ms * 1e3
        read = p.batch * p.sample_kb * 1024.0
        if "loader_cpu" in self.free:
            cpu = 0.0
        if "loader_io" in self.free:
            wait, read = 0.0, 0.0
        self._work[batch] = (wait * self.factor, read, cpu * self.factor, self.batch_bytes * p.touch)
        return self._work[batch]

    def slowest_ms(self, batch: int, worker: int) -> float:
        """The slowest sample of a batch, as the fetching process would time it."""
        p = self.p
        i = batch % len(self.noise.cpu)
        one = p.sample_cpu_ms * self.noise.cpu[i] * self.factor
        if p.outlier_p and "outliers" not in self.free:
            seen = self.noise.outliers[i][: min(p.batch, 64)]
            one *= p.outlier_x if (seen < p.outlier_p).any() else 1.0
        wait = p.sample_wait_ms * self.noise.wait[i]
        if p.burst_every and batch % p.burst_every == p.burst_every - 1:
            wait += p.burst_ms
        return (
            (one * self._slow(worker) if worker >= 0 else one)
            + wait
            + p.sample_kb / 1.024e3 / p.stream_mbs * 1e3
        )

    @property
    def depth(self) -> int:
        """Batches that are ready and not yet taken."""
        return sum(1 for f in self._done.values() if f.ready <= self._clock)

    def depth_at(self, t: float) -> int:
        """``depth`` when the trainer asks at ``t``."""
        if self.p.workers and "loader" not in self.free:
            self._advance(t)
        return self.depth

    @property
    def active(self) -> int:
        """Workers that want a core now."""
        return len(self._shared[COMPUTE])

    def main_slowdown(self) -> float:
        """How much slower the main thread runs because workers want its core."""
        if "cores" in self.free:
            return 1.0
        threads = 1 if "threads" in self.free else self.p.worker_threads
        return float(max(1.0, (self.active * threads + 1.0) / self.p.cores) ** 0.7)

    def begin_epoch(self, t: float, batches: int) -> float:
        """``iter(loader)`` at ``t``: start or wake the workers, prime their queues; returns when done."""
        p = self.p
        self._limit = self._taken + batches
        if p.workers == 0 or "loader" in self.free:
            return t
        fresh = not self._alive or not p.persistent
        begin, ready = t, t
        self._queues = [[] for _ in range(p.workers)]
        self._busy = [fresh] * p.workers
        self._next_worker = 0
        self._advance(t)
        if fresh:
            started = "worker_start" not in self.free
            for w in range(p.workers):
                t += p.fork_ms * 1e3 if started else 0.0
                ready = t + (p.init_ms * 1e3 if started else 0.0)
                self._push(ready, "ready", w)
                self.starts.append((ready, w, ready - begin))
        self._alive = True
        self._advance(t)
        for _ in range(p.prefetch * p.workers):
            self._put_index(t)
        return t

    def next(self, t: float) -> tuple[float, float]:
        """Take the next batch at ``t``: (when it is handed over, of which waiting)."""
        batch = self._taken
        self._taken += 1
        p = self.p
        if "loader" in self.free:
            return t, 0.0
        if p.workers == 0:
            return self._in_main(t, batch)
        self._advance(t)
        while batch not in self._done or self._done[batch].ready > self._clock:
            target = self._done[batch].ready if batch in self._done else float("inf")
            at = self._peek()
            if at == float("inf") and target == at:
                raise RuntimeError(f"batch {batch} was never handed to a worker")
            if at > target:
                self._clock = target
                break
            self._step(at)
        got = max(t, self._clock)
        fetch = self._done.pop(batch)
        self.log.append(fetch)
        self._clock = got
        self._put_index(got)
        main = 70.0 + (0.0 if p.pin or "handoff" in self.free else p.handoff_ms * 1e3)
        return got + main, got - t

    # internals

    def _in_main(self, t: float, batch: int) -> tuple[float, float]:
        p = self.p
        wait, read, cpu, moved = self.work(batch)
        over = 1.0
        if p.main_threads > 1 and "threads" not in self.free:
            over = 1.0 / cores(p.cores, p.main_threads, p.thread_penalty)(1)
        busy = cpu * over + moved / (min(p.host_gbs, 12.0) * 1e3)
        stored = wait + read / min(p.stream_mbs, p.storage_mbs)
        pinned = self.batch_bytes / (p.pin_gbs * 1e3) if p.pin else 0.0
        end = t + busy + stored + pinned
        self.log.append(Fetch(batch, -1, t, end, end, cpu, stored, busy - cpu * over))
        return end, end - t

    def _push(self, t: float, what: str, arg: Any) -> None:
        self._tick += 1
        heapq.heappush(self._heap, (t, self._tick, what, arg))

    def _put_index(self, t: float) -> None:
        if self._sent >= self._limit:
            return
        w = self._next_worker
        self._next_worker = (w + 1) % self.p.workers
        self._queues[w].append(self._sent)
        self._sent += 1
        if not self._busy[w]:
            self._start(t, w)

    def _start(self, t: float, w: int) -> None:
        if not self._queues[w]:
            self._busy[w] = False
            return
        self._busy[w] = True
        f = Fetch(self._queues[w].pop(0), w, begin=t, phase_at=t)
        self._push(t + self.work(f.batch)[0] * self._slow(w), "waited", f)

    def _slow(self, w: int) -> float:
        return self.p.slow_worker if w == 0 and "outliers" not in self.free else 1.0

    def _peek(self) -> float:
        a, b, c = self._shared
        first = min(a.due, b.due, c.due)
        return min(first, self._heap[0][0]) if self._heap else first

    def _advance(self, t: float) -> None:
        while (at := self._peek()) <= t:
            self._step(at)
        self._clock = max(self._clock, t)

    def _step(self, at: float) -> None:
        self._clock = max(self._clock, at)
        at = self._clock
        if self._heap and self._heap[0][0] <= at:
            _, _, what, arg = heapq.heappop(self._heap)
            if what == "ready":
                self._start(at, arg)
            else:
                self._shared[READ].add(at, self.work(arg.batch)[1], arg)
            return
        read, compute, copy = (s.due for s in self._shared)
        which = READ if read <= compute and read <= copy else COMPUTE if compute <= copy else COPY
        f: Fetch = self._shared[which].pop(at)  # type: ignore[assignment]
        if which == READ:
            f.waited = at - f.phase_at
            f.cpu = self.work(f.batch)[2] * self._slow(f.worker)
            self._shared[COMPUTE].add(at, f.cpu, f)
        elif which == COMPUTE:
            f.phase_at = at
            self._shared[COPY].add(at, self.work(f.batch)[3], f)
        else:
            self._finish(at, f)

    def _finish(self, at: float, f: Fetch) -> None:
        p = self.p
        # a thread that copies through slow memory looks busy to the scheduler
        f.moved = at - f.phase_at
        f.end = at
        f.ready = at
        if p.pin:
            moved = self.batch_bytes / (p.pin_gbs * 1e3) + p.handoff_ms * 1e3
            # the pin thread takes batches as they arrive, whatever their order
            self._pin_free = max(self._pin_free, at) + (0.0 if "handoff" in self.free else moved)
            f.ready = self._pin_free
        self._done[f.batch] = f
        self._start(at, f.worker)
