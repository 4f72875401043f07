"""One job, step by step: host threads, copies, streams, collectives and loaders of all ranks.

A segment of the step (no host wait inside) is one pair of max-plus scans, so a step costs microseconds per
kernel only where events are written. Random factors come from small tables drawn once per run: every what-
if sees the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.simulator.hardware import DEVICES, pcie_gbs
from benchmarks.simulator.loader import Loader, Noise
from benchmarks.simulator.params import Params
from benchmarks.simulator.plan import (
    ALLOC,
    CALL,
    COMPUTE,
    CPU,
    DISPATCH,
    MEMORY,
    OPT_CALL,
    OPT_DISPATCH,
    PY,
    SMALL,
    Plan,
    Segment,
    build,
)
from benchmarks.simulator.resources import launch_scan, stream_scan

ROWS = 7
GAP_US = 1.0  # typical distance of two kernels that wait for nothing
SMALL_COPY = 64 * 1024
STARTUP_FALL = (1.0, 0.45, 0.3, 0.25)  # the first step loads most modules
SLICE_US = 2000.0  # a time slice of a GPU that processes share


@dataclass(slots=True)
class Copy:
    """One host-to-device copy: host call, GPU interval, the wait that follows a blocking one."""

    index: int
    size: int
    call0: float
    call1: float
    start: float
    end: float
    sync0: float = 0.0
    sync1: float = 0.0
    pinned: bool = True
    stream: int = 7


@dataclass(slots=True)
class StepRecord:
    """What the writer needs of one traced step of one rank; times in us."""

    step: int
    begin: float
    iter0: float = 0.0
    iter1: float = 0.0
    stop0: float = 0.0
    stop1: float = 0.0
    next0: float = 0.0
    next1: float = 0.0
    casts: list[tuple[float, float, int]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    item0: np.ndarray | None = None
    item1: np.ndarray | None = None
    kernel0: np.ndarray | None = None
    kernel_us: np.ndarray | None = None
    waits: list[tuple[str, int, float, float]] = field(default_factory=list)
    stall: tuple[str, float, float] | None = None
    end: float = 0.0


@dataclass(slots=True)
class StepLog:
    """Per step of the whole run, every rank: host span, wait for data, GPU busy time by kind."""

    begin: float
    end: float
    wait: float
    epoch: int
    batch: int
    next0: float
    next1: float
    queue: int
    busy0: float
    busy1: float
    busy_us: float


@dataclass(slots=True)
class Rank:
    """The state of one rank while it is simulated."""

    index: int
    plan: Plan
    loader: Loader
    offsets: list[np.ndarray]
    prof_offsets: list[np.ndarray]
    kernel_rows: list[np.ndarray]
    latency_rows: list[np.ndarray]
    gaps: np.ndarray
    host: float = 0.0
    stream_free: float = 0.0
    copy_free: float = 0.0
    comm_free: float = 0.0
    history: np.ndarray = field(default_factory=lambda: np.zeros(0))
    launched: int = 0
    records: list[StepRecord] = field(default_factory=list)
    logs: list[StepLog] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    pending: list[tuple[float, float, int, int]] = field(default_factory=list)
    record: StepRecord | None = None
    kernel0: np.ndarray | None = None
    durations: np.ndarray | None = None
    busy: float = 0.0
    slow: float = 1.0


FREE_ALL_HOST = frozenset({"python", "launch", "optimizer"})
CPU_UNION = frozenset({"loader", "sync", "alloc", "stall", "cast", "startup", "cores"}) | FREE_ALL_HOST


class Simulation:
    """One run of ``p``, the resources in ``free`` costing nothing. ``record`` keeps what a trace needs."""

    def __init__(self, p: Params, free: frozenset[str] = frozenset(), record: bool = False) -> None:
        self.p = p
        self.free = free
        self.recording = record
        self.dev = DEVICES[p.device] if p.device else None
        gen = min(p.pcie_gen or 9, self.dev.pcie_gen) if self.dev else 3
        self.link_gbs = pcie_gbs(gen, p.pcie_width) / p.link_share
        self.ranks = [self._rank(r) for r in range(p.ranks)]
        self.epochs: list[tuple[int, float]] = []

    # set-up

    def _rank(self, r: int) -> Rank:
        p = self.p
        rng = np.random.default_rng([p.seed, 7919, r])
        plan = build(p)
        free = self.free
        scale = np.ones(7)
        if "launch" in free:
            scale[[DISPATCH, CALL]] = 0.0
        if "optimizer" in free:
            scale[[OPT_DISPATCH, OPT_CALL]] = 0.0
        if "python" in free:
            scale[PY] = 0.0
        if "alloc" in free:
            scale[ALLOC] = 0.0
        if "cpu_compute" in free:
            scale[CPU] = 0.0
        straggling = p.straggler is not None and r == 1 % p.ranks and "straggler" not in free
        if straggling and p.straggler == "host":
            scale[[PY, DISPATCH, OPT_DISPATCH]] *= p.straggle_x
        m, n = len(plan.kinds), len(plan.kernels)
        base = plan.base * scale[plan.kinds]
        if p.device is None:
            base = base * np.where(plan.kinds == CPU, self._cpu_threads(), 1.0)
        prof = np.where(np.isin(plan.kinds, (DISPATCH, CALL, OPT_DISPATCH, OPT_CALL)), p.profiler_us, 0.0)
        # calls into the driver spread more than Python does
        sigma = p.host_sigma * np.where(np.isin(plan.kinds, (CALL, OPT_CALL)), 1.5, 1.0)
        # every item varies, and whole steps do a little
        host_noise = [
            np.exp(sigma * rng.standard_normal(m) + 0.2 * p.host_sigma * rng.standard_normal())
            for _ in range(ROWS)
        ]
        offsets = [np.concatenate(([0.0], np.cumsum(base * z))) for z in host_noise]
        prof_offsets = offsets
        if self.recording:
            prof_offsets = [np.concatenate(([0.0], np.cumsum(base * z + prof))) for z in host_noise]
        us = plan.kernel_us.copy()
        if "gpu_compute" in free:
            us[(plan.kernel_kind == COMPUTE) | (plan.kernel_kind == SMALL)] = 0.0
        if "gpu_arithmetic" in free:
            us[plan.kernel_kind == COMPUTE] = 0.0
        if "gpu_small" in free:
            us[plan.kernel_kind == SMALL] = 0.0
        if "gpu_memory" in free:
            us[plan.kernel_kind == MEMORY] = 0.0
        latency = self.dev.launch_us if self.dev else 0.0
        rows = [
            us * np.exp(p.gpu_sigma * rng.standard_normal(n) + 0.4 * p.gpu_sigma * rng.standard_normal())
            for _ in range(ROWS + 2)
        ]
        lat = [latency * (0.85 + 0.3 * rng.random(n)) for _ in range(ROWS)]
        size = int(sum(b for _, _, b in plan.net.inputs) * p.wide)
        noise = Noise.draw(p, rng)
        factor = p.straggle_x if straggling and p.straggler == "loader" else 1.0
        gaps = GAP_US * np.exp(0.3 * rng.standard_normal(n))
        if p.shared_gpu and "shared_gpu" not in free:
            gaps += _slices(np.where(plan.stream == 0, us, 0.0), p.shared_gpu)
        rank = Rank(
            r,
            plan,
            Loader(p, noise, size, self._loader_free(), factor),
            offsets,
            prof_offsets,
            rows,
            lat,
            gaps,
        )
        total = (p.warm + p.horizon + 1) * (n + p.pieces + 4)
        rank.history = np.full(total + p.queue, -np.inf)
        return rank

    def _cpu_threads(self) -> float:
        """How much longer operators take than on enough idle cores."""
        p = self.p
        if "threads" in self.free or p.main_threads <= p.cores:
            return float(min(p.main_threads, 8) ** -0.6)
        over = p.main_threads / p.cores - 1.0
        return float(min(p.cores, 8) ** -0.6 * (1.0 + p.thread_penalty * over))

    def _loader_free(self) -> frozenset[str]:
        return self.free & {
            "loader",
            "loader_cpu",
            "loader_io",
            "cores",
            "threads",
            "outliers",
            "handoff",
            "worker_start",
            "host_memory",
        }

    # running

    def run(self) -> Simulation:
        """Simulate warm-up and horizon."""
        p = self.p
        for k in range(p.warm + p.horizon):
            for rank in self.ranks:
                self._first_part(rank, k)
            if p.ranks > 1:
                self._collectives()
            for rank in self.ranks:
                self._last_part(rank, k)
        return self

    @cached_property
    def step_us(self) -> float:
        """Mean time per step over the horizon, harmonic over ranks: ratios are of throughput."""
        p = self.p
        first = p.warm - 1
        per_rank = [(r.done[-1] - r.done[first]) / p.horizon for r in self.ranks]
        rates = [1.0 / max(t, 1e-6) for t in per_rank]
        return len(rates) / sum(rates)

    def window_us(self) -> float:
        """Mean time per step over the traced window."""
        a = self.p.warm + self.p.window_at
        b = min(a + self.p.traced, self.p.warm + self.p.horizon)
        return float(np.mean([(r.done[b - 1] - r.done[a - 1]) / (b - a) for r in self.ranks]))

    def _traced(self, k: int) -> bool:
        a = self.p.warm + self.p.window_at
        return self.recording and a <= k < a + self.p.traced

    def _first_part(self, r: Rank, k: int) -> None:
        p = self.p
        # the GPU side of every step is kept: what was queued before the window runs inside it
        rec = StepRecord(k, r.host) if self.recording else None
        r.record = rec
        begin = r.host
        t = r.host
        if k % p.epoch_batches == 0:
            if k and p.workers and not p.custom_loader and "loader" not in self.free and rec:
                rec.stop0, rec.stop1 = t, t + 40.0
            start = t + (60.0 if k else 0.0)
            t = r.loader.begin_epoch(start, p.epoch_batches)
            if rec:
                rec.iter0, rec.iter1 = start, t
            self.epochs.append((k // p.epoch_batches, t))
        next0 = t
        depth = r.loader.depth_at(t) if self.recording else 0
        t, wait = r.loader.next(t)
        next1 = t
        if rec:
            rec.next0, rec.next1 = next0, next1
        r.slow = r.loader.main_slowdown() if p.workers and "loader" not in self.free else 1.0
        if "python" not in self.free:
            t += p.step_python_ms * 1e3 * r.slow
        t = self._casts(r, t, rec)
        r.host = t
        if self.dev:
            self._copies(r, rec, k)
        n, m = len(r.plan.kernels), len(r.plan.kinds)
        clock = self._clock(r, k)
        durations = r.kernel_rows[k % (ROWS + 2)]
        if p.ranks > 1:
            durations = durations.copy()
        if clock < 1.0:
            kinds = r.plan.kernel_kind
            durations = durations / np.where(
                kinds == COMPUTE, clock, np.where(kinds == MEMORY, clock**0.3, clock**0.5)
            )
        r.durations = durations
        r.kernel0 = np.zeros(n)
        if rec and self._traced(k):
            rec.item0, rec.item1 = np.zeros(m), np.zeros(m)
        r.logs.append(
            StepLog(
                begin,
                0.0,
                wait,
                k // p.epoch_batches,
                k % p.epoch_batches,
                next0,
                next1,
                depth,
                0.0,
                0.0,
                0.0,
            )
        )
        self._segments(r, k, until_barrier=True)

    def _last_part(self, r: Rank, k: int) -> None:
        p = self.p
        if p.ranks > 1:
            self._segments(r, k, until_barrier=False)
        rec = r.record
        if p.stall_every and k % p.stall_every == p.stall_every - 1 and "stall" not in self.free:
            t0 = r.host
            if self.dev and p.stall_kind in ("checkpoint", "validation"):
                r.host = max(r.host, r.stream_free - GAP_US)
            r.host += p.stall_ms * 1e3
            if rec:
                rec.stall = (p.stall_kind, t0, r.host)
        assert r.kernel0 is not None
        assert r.durations is not None
        end = r.host
        log = r.logs[-1]
        if self.dev and len(r.kernel0):
            end = float((r.kernel0 + r.durations).max())
            log.busy0, log.busy1 = float(r.kernel0[0]), end
            log.busy_us = float(r.durations.sum()) + r.busy
        r.busy = 0.0
        r.done.append(end)
        log.end = r.host
        if rec:
            rec.kernel0, rec.kernel_us = r.kernel0, r.durations
            rec.end = r.host
            r.records.append(rec)

    def _clock(self, r: Rank, k: int) -> float:
        p = self.p
        if "throttle" in self.free:
            return 1.0
        clock = p.clock if k >= p.throttle_from else 1.0
        if p.straggler == "throttle" and r.index == 1 % p.ranks and "straggler" not in self.free:
            clock = min(clock, 1.0 / p.straggle_x)
        return clock

    def _casts(self, r: Rank, t: float, rec: StepRecord | None) -> float:
        p = self.p
        if not p.cast_gbs or "cast" in self.free:
            return t
        size = r.loader.batch_bytes
        end = t + size / (p.cast_gbs * 1e3) * r.slow
        if rec:
            rec.casts.append((t, end, size))
        return end + 4.0

    def _copies(self, r: Rank, rec: StepRecord | None, k: int) -> None:
        """The batch to the device. Pageable copies are staged: the call returns when the bytes are there."""
        p = self.p
        assert self.dev is not None
        nothing = "transfer" in self.free
        pinned = p.pin
        sizes = [int(b * (p.wide if typ == "float" else 1.0)) for _, typ, b in r.plan.net.inputs]
        if p.pieces > len(sizes):
            total = sum(sizes)
            sizes = [max(4, total // p.pieces)] * p.pieces
        rate = self.link_gbs if pinned else min(p.pageable_gbs, self.link_gbs)
        lat = self.dev.launch_us
        dispatch = (18.0 * p.dispatch if "launch" not in self.free else 0.0) * r.slow
        call = self.dev.call_us + 1.5 if not nothing else 0.0
        overlap = p.copy_stream
        t = r.host
        for i, size in enumerate(sizes):
            t += dispatch * 0.6
            call0 = t
            t = max(t + call, float(r.history[r.launched]))
            free = r.copy_free if overlap else r.stream_free
            us = 0.0 if nothing else size / (rate * 1e3) + 1.3
            start = max(free, call0 + lat)
            end = start + us
            if overlap:
                r.copy_free = end
                r.stream_free = max(r.stream_free, end)
            else:
                r.stream_free = end + (GAP_US if us else 0.0)
            r.history[p.queue + r.launched] = start
            r.launched += 1
            r.busy += us
            sync0 = sync1 = 0.0
            if not nothing:
                if not pinned and size > SMALL_COPY:
                    t = max(t, end - 2.0)
                if not p.non_blocking:
                    sync0 = t + 1.0
                    sync1 = t = max(sync0 + 2.0, end + 3.0)
            if rec:
                rec.copies.append(
                    Copy(
                        i,
                        size,
                        call0,
                        max(call0 + call, sync0 - 1.0 if sync0 else t),
                        start,
                        end,
                        sync0,
                        sync1,
                        pinned,
                        20 if overlap else 7,
                    )
                )
            t += dispatch * 0.4
        r.host = t

    def _offsets(self, r: Rank, k: int) -> np.ndarray:
        p = self.p
        rows = r.prof_offsets if self._traced(k) else r.offsets
        c = rows[k % ROWS]
        if p.startup_steps and "startup" not in self.free:
            first = p.warm + p.window_at
            if k < first + p.startup_steps:
                c = c + self._startup(r, len(c)) * STARTUP_FALL[min(max(k - first, 0), len(STARTUP_FALL) - 1)]
        return c

    def _startup(self, r: Rank, size: int) -> np.ndarray:
        """First uses: modules load and algorithms are tried inside a dozen of the launch calls."""
        extra = np.zeros(size)
        calls = r.plan.launch_item
        at = calls[:: max(1, len(calls) // 12)]
        extra[at + 1] = self.p.startup_ms * 1e3 / len(at)
        return np.cumsum(extra)

    def _segments(self, r: Rank, k: int, until_barrier: bool) -> None:
        p, plan = self.p, r.plan
        c = self._offsets(r, k)
        if r.slow > 1.0:
            c = c * r.slow
        lat = r.latency_rows[k % ROWS]
        d, starts, rec = r.durations, r.kernel0, r.record
        assert d is not None
        assert starts is not None
        segments = plan.segments
        barrier = next((i for i, s in enumerate(segments) if s.stop == "barrier"), len(segments) - 1)
        part = segments[: barrier + 1] if until_barrier else segments[barrier + 1 :]
        if until_barrier:
            r.pending = []
        for s in part:
            n = s.n1 - s.n0
            delay = np.zeros(0)
            base = r.host - c[s.i0]
            if n:
                calls = base + c[plan.launch_item[s.n0 : s.n1]]
                slots = r.history[r.launched : r.launched + n]
                delay = launch_scan(calls, slots)
                ready = calls + delay + lat[s.n0 : s.n1]
                self._kernels(r, s, ready, d, starts)
                at = p.queue + r.launched
                r.history[at : at + n] = starts[s.n0 : s.n1]
                r.launched += n
                r.host = float(base + c[s.i1] + delay[-1])
            else:
                r.host = float(base + c[s.i1])
            if rec is not None and rec.item0 is not None and rec.item1 is not None:
                shift = np.concatenate(([0.0], delay))
                before = plan.launches_before[s.i0 : s.i1] - s.n0
                rec.item0[s.i0 : s.i1] = base + c[s.i0 : s.i1] + shift[before]
                after = np.append(before[1:], n) if s.i1 > s.i0 else before
                rec.item1[s.i0 : s.i1] = base + c[s.i0 + 1 : s.i1 + 1] + shift[after]
            if s.stop and s.stop != "barrier":
                self._wait(r, s.stop, s.i1 - 1, rec)

    def _kernels(self, r: Rank, s: Segment, ready: np.ndarray, d: np.ndarray, starts: np.ndarray) -> None:
        if len(s.comm) == 0:
            part, ready_c = np.arange(s.n0, s.n1), ready
        else:
            part, ready_c = s.n0 + s.compute, ready[s.compute]
        local = d[part]
        if len(local):
            step = local + np.where(local > 0.0, r.gaps[part], 0.0)
            before = np.concatenate(([0.0], np.cumsum(step)[:-1]))
            got = stream_scan(ready_c, before, r.stream_free)
            starts[part] = got
            r.stream_free = float(got[-1] + step[-1])
        for j in s.comm:
            # the collective waits for the gradients computed before it
            pos = int(np.searchsorted(s.compute, j))
            after = (
                float(starts[s.n0 + s.compute[pos - 1]] + d[s.n0 + s.compute[pos - 1]])
                if pos
                else r.stream_free
            )
            starts[s.n0 + j] = max(float(ready[j]), after)
            r.pending.append(
                (float(starts[s.n0 + j]), r.plan.kernels[s.n0 + j].flops, s.n0 + int(j), r.launched + int(j))
            )

    def _collectives(self) -> None:
        """A collective starts on a rank when that is ready and ends on all when the last one has sent."""
        p = self.p
        for i in range(len(self.ranks[0].pending)):
            at = [max(r.pending[i][0], r.comm_free) for r in self.ranks]
            us = self.ranks[0].pending[i][1]
            together = max(at) + us
            for r, start in zip(self.ranks, at, strict=True):
                _, _, n, slot = r.pending[i]
                end = start if "comm" in self.free else together
                assert r.kernel0 is not None
                assert r.durations is not None
                r.kernel0[n], r.durations[n] = start, end - start
                r.history[p.queue + slot] = start
                r.comm_free = end
        for r in self.ranks:
            # the optimizer's first kernel waits for the last bucket
            r.stream_free = max(r.stream_free, r.comm_free)

    def _wait(self, r: Rank, what: str, item: int, rec: StepRecord | None) -> None:
        t0 = r.host
        if "sync" in self.free or ("alloc" in self.free and what == "free"):
            return
        last = max(r.stream_free - GAP_US, r.comm_free if what != "item" else 0.0)
        r.host = max(t0 + 2.0, last + 3.0)
        if rec is not None:
            rec.waits.append((what, item, t0, r.host))


def _slices(us: np.ndarray, share: float) -> np.ndarray:
    """Gaps after kernels in which another process has the GPU: ``share`` of our time, in slices of about 2 ms."""
    done = np.cumsum(us)
    total = float(done[-1]) if len(done) else 0.0
    if total <= 0.0:
        return np.zeros(len(us))
    count = max(1, round(total / SLICE_US))
    ends = np.searchsorted(done, total * (np.arange(count) + 1) / count - 1e-6)
    return np.bincount(np.minimum(ends, len(us) - 1), minlength=len(us)) * (share * total / count)


def simulate_step_us(p: Params, free: frozenset[str] = frozenset()) -> float:
    """Mean step time over the horizon, nothing kept."""
    return Simulation(p, free).run().step_us
