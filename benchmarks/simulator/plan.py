"""A step laid out as host items and kernel launches, ready for the vectorised engine.

An item is a stretch of host time of one kind (Python, dispatch, launch call, ...). Kernels belong to the
launch item that issues them. Segments end where the host must stop: a synchronisation, a driver allocation,
the end of the backward pass when there are other ranks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from benchmarks.simulator import models
from benchmarks.simulator.ops import Kernel, Net, Op, elem_bytes, near_ridge, pointwise, time_us, type_name
from benchmarks.simulator.optimizers import step_ops
from benchmarks.simulator.params import Params

PY, DISPATCH, CALL, OPT_DISPATCH, OPT_CALL, ALLOC, CPU = range(7)
ITEM_KINDS = (
    "python",
    "dispatch",
    "call",
    "optimizer dispatch",
    "optimizer call",
    "allocator",
    "cpu compute",
)
COMPUTE, MEMORY, SMALL, COMM, COPY = range(5)
KERNEL_KINDS = ("compute", "memory", "small", "comm", "copy")
MAIN, AUTOGRAD = 0, 1


@dataclass(slots=True)
class OpEvent:
    """One event of the host as the profiler shows it: name, items ``[first, last)``, nesting level, shapes.

    ``inset`` orders events that share items: the share of the first (last) item before (after) the event.
    """

    name: str
    thread: int
    first: int
    last: int
    level: int
    levels: int
    dims: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""
    sequence: int = -1
    annotation: bool = False
    alloc: int = 0
    runtime: str | None = None


@dataclass(slots=True)
class Segment:
    """Items ``[i0, i1)`` and launches ``[n0, n1)``; ``stop``: what the host waits for at the end."""

    i0: int
    i1: int
    n0: int
    n1: int
    stop: str | None = None
    compute: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    comm: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(slots=True)
class Plan:
    """The whole step of one rank; arrays are per item (``m``) or per launch (``n``)."""

    net: Net
    kinds: np.ndarray
    base: np.ndarray
    launch_item: np.ndarray
    launches_before: np.ndarray
    stream: np.ndarray
    kernel_us: np.ndarray
    kernel_kind: np.ndarray
    kernels: list[Kernel]
    events: list[OpEvent]
    segments: list[Segment]
    hidden: bool
    fixed: int
    activations: int
    compute_us: float
    memory_us: float
    small_us: float
    ridge_us: float


class _Builder:
    def __init__(self, p: Params, net: Net) -> None:
        self.p, self.net = p, net
        self.kinds: list[int] = []
        self.base: list[float] = []
        self.launch_item: list[int] = []
        self.stream: list[int] = []
        self.kernels: list[Kernel] = []
        self.events: list[OpEvent] = []
        self.stops: list[tuple[int, int, str | None]] = []
        self.opt = False
        self.sequence = 0
        self.on_cpu = p.device is None
        self.call_us = net.device.call_us

    def item(self, kind: int, us: float) -> int:
        self.kinds.append(kind)
        self.base.append(us)
        return len(self.kinds) - 1

    def stop(self, what: str) -> None:
        self.stops.append((len(self.kinds), len(self.kernels), what))

    def python(self, us: float) -> None:
        if us > 0:
            self.item(PY, us)

    def launch(self, k: Kernel, stream: int = 0) -> None:
        self.launch_item.append(self.item(OPT_CALL if self.opt else CALL, self.call_us))
        self.stream.append(stream)
        self.kernels.append(k)

    def op(self, op: Op, thread: int, sequence: int = -1) -> None:
        """An operator: views inside its outermost level, then the levels that share their first and last item."""
        d = OPT_DISPATCH if self.opt else DISPATCH
        depth = len(op.chain)
        # composite operators make their views inside, others get them from the caller
        outer = depth > 1 and bool(op.views)
        base = len(self.events)
        if outer:
            begin = self.item(d, 2.4 * self.p.dispatch)
            self.events.append(OpEvent(op.chain[0], thread, begin, 0, 0, 1, op.dims, op.dtype, sequence))
        for v in op.views:
            i = self.item(d, 3.2 * self.p.dispatch)
            self.events.append(OpEvent(v, thread, i, i + 1, 0, 3, op.dims[:1], op.dtype))
            if v == "aten::t":
                self.events.append(OpEvent("aten::transpose", thread, i, i + 1, 1, 3, op.dims[:1], op.dtype))
            self.events.append(OpEvent("aten::as_strided", thread, i, i + 1, 2, 3, op.dims[:1], op.dtype))
        rest = op.chain[1:] if outer else op.chain
        first = self.item(d, (2.2 + 1.7 * len(rest) + (1.5 if op.out_bytes else 0.0)) * self.p.dispatch)
        at = len(self.events)
        for level, name in enumerate(rest):
            dims = op.inner if op.inner and level == len(rest) - 1 else op.dims
            self.events.append(OpEvent(name, thread, first, 0, level, len(rest), dims, op.dtype, sequence))
        self.events[-1].alloc = op.out_bytes + (op.saved if op.saved != op.out_bytes else 0)
        if op.out_bytes:
            self.events.append(OpEvent("aten::empty", thread, first, first, depth, depth + 1, (), op.dtype))
        for i, k in enumerate(op.kernels):
            if i:
                self.item(d, 1.2 * self.p.dispatch)
            if self.on_cpu:
                self.item(CPU, time_on_cpu(k))
            else:
                self.launch(k)
        if op.sync and not self.on_cpu:
            self.stop(op.sync)
        last = self.item(d, (1.0 + 0.9 * len(rest)) * self.p.dispatch) + 1
        for e in self.events[at : at + len(rest)]:
            e.last = last
        if outer:
            self.events[base].last = self.item(d, 0.8 * self.p.dispatch) + 1


CPU_GFLOPS, CPU_GBS = 400.0, 25.0


def time_on_cpu(k: Kernel) -> float:
    """Microseconds of an operator's work on the host's cores (400 GFLOP/s, 25 GB/s)."""
    return max(k.flops / (CPU_GFLOPS * 1e3 * (0.7 if k.tensor else 0.1)), k.bytes / (CPU_GBS * 1e3)) + 1.0


def _forward(b: _Builder, p: Params) -> list[tuple[Op, int]]:
    taken: list[tuple[Op, int]] = []
    n = len(b.net.forward)
    marks = {round((i + 1) * n / (p.mid_syncs + 1)) for i in range(p.mid_syncs)} if p.mid_syncs else set()
    for i, op in enumerate(b.net.forward):
        b.python(p.python_us * (1.0 if op.module else 0.5))
        if op.grad:
            b.sequence += 1
        b.op(op, MAIN, b.sequence if op.grad else -1)
        if op.grad:
            taken.append((op, b.sequence))
        if i + 1 in marks:
            _nonzero(b, MAIN)
    return taken


def _nonzero(b: _Builder, thread: int) -> None:
    """Boolean-mask indexing: count, compact, copy the count back, wait for it."""
    n = max(4096, b.net.batch * 64)
    k = pointwise("nonzero_mask_functor", n, "fp32", 1)
    k2 = Kernel(
        "void at::native::flag_kernel<int>(long const*, int*, int)", 1.0 * n, 9.0 * n, blocks=max(1, n // 256)
    )
    b.python(b.p.python_us)
    b.op(Op(("aten::index", "aten::nonzero"), (k, k2, _back_copy(4)), ((n,),), "bool", sync="item"), thread)


def _back_copy(size: int) -> Kernel:
    return Kernel("Memcpy DtoH (Device -> Pageable)", 0.0, float(size), dtod=True)


def _item(b: _Builder, thread: int) -> None:
    """``loss.item()``."""
    b.python(4.0)
    b.op(
        Op(("aten::item", "aten::_local_scalar_dense"), (_back_copy(4),), ((),), "float", sync="item"), thread
    )


def _backward(b: _Builder, p: Params, taken: list[tuple[Op, int]]) -> None:
    b.python(45.0)
    es = elem_bytes(p.dtype)
    bucket, buckets = 0.0, 0
    limit = p.bucket_mb * 1e6 if p.ranks > 1 else float("inf")
    for index, (op, seq) in enumerate(reversed(taken)):
        d0 = b.item(DISPATCH, 3.0 * p.dispatch)
        at = len(b.events)
        node = f"autograd::engine::evaluate_function: {op.grad}"
        b.events.append(OpEvent(node, AUTOGRAD, d0, 0, 0, 2, sequence=seq))
        b.events.append(OpEvent(op.grad or "", AUTOGRAD, d0, 0, 1, 2, op.dims[:1], op.dtype, seq))
        for inner in op.back:
            b.op(inner, AUTOGRAD)
        d1 = b.item(DISPATCH, 1.6 * p.dispatch) + 1
        b.events[at].last = b.events[at + 1].last = d1
        for shape in op.params:
            i = b.item(DISPATCH, 6.0 * p.dispatch)
            acc = "torch::autograd::AccumulateGrad"
            b.events.append(OpEvent(f"autograd::engine::evaluate_function: {acc}", AUTOGRAD, i, i + 1, 0, 4))
            b.events.append(OpEvent(acc, AUTOGRAD, i, i + 1, 1, 4, (shape,), op.dtype))
            b.events.append(OpEvent("aten::detach", AUTOGRAD, i, i + 1, 2, 4, (shape,), op.dtype))
            b.events.append(OpEvent("detach", AUTOGRAD, i, i + 1, 3, 4, (shape,), op.dtype))
            size = es
            for s in shape:
                size *= s
            bucket += size
        last = index == len(taken) - 1
        if p.ranks > 1 and (bucket >= limit or (last and bucket > 0)):
            _all_reduce(b, p, bucket)
            bucket, buckets = 0.0, buckets + 1


def _all_reduce(b: _Builder, p: Params, size: float) -> None:
    t = {"fp16": "half", "bf16": "bf16"}.get(p.dtype, "f32")
    us = 25.0 + 2.0 * (p.ranks - 1) / p.ranks * size / (p.busbw_gbs * 1e3)
    name = f"ncclDevKernel_AllReduce_Sum_{t}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    # flops carries the time a collective takes once every rank has arrived
    k = Kernel(
        name,
        us,
        size,
        blocks=24,
        threads=544,
        regs=96,
        smem=103072,
        comm_numel=int(size / elem_bytes(p.dtype)),
    )
    i = b.item(DISPATCH, 8.0 * p.dispatch)
    numel = ((k.comm_numel,),)
    at = len(b.events)
    b.events.append(OpEvent("record_param_comms", AUTOGRAD, i, 0, 0, 2, numel, type_name(p.dtype)))
    b.events.append(
        OpEvent("nccl:all_reduce", AUTOGRAD, i, 0, 1, 2, numel, type_name(p.dtype), annotation=True)
    )
    b.launch(k, stream=1)
    last = b.item(DISPATCH, 4.0 * p.dispatch) + 1
    b.events[at].last = b.events[at + 1].last = last


def _optimizer(b: _Builder, p: Params) -> None:
    b.opt = True
    first = b.item(OPT_DISPATCH, 25.0 * p.dispatch)
    at = len(b.events)
    b.events.append(OpEvent(f"Optimizer.step#{p.optimizer}.step", MAIN, first, 0, 0, 1, annotation=True))
    for us, op in step_ops(b.net, p.optimizer, p.optimizer_impl):
        if us:
            b.item(OPT_DISPATCH, us * p.dispatch)
        b.op(op, MAIN)
    b.events[at].last = b.item(OPT_DISPATCH, 8.0 * p.dispatch) + 1
    b.opt = False


def _allocations(b: _Builder, p: Params) -> None:
    """``empty_cache`` and growth: driver calls that free (waiting for the device) and map memory again."""
    for _i in range(p.mallocs):
        b.item(ALLOC, p.malloc_us)
        b.stop("free")
    for _i in range(p.mallocs):
        i = b.item(ALLOC, 1.3 * p.malloc_us)
        b.events.append(OpEvent("", MAIN, i, i + 1, 0, 0, runtime="cudaMalloc"))


@lru_cache(maxsize=64)
def _net(template: str, batch: int, dtype: str, device: str, sizes: tuple[tuple[str, object], ...]) -> Net:
    return models.build(template, batch, dtype, device, dict(sizes))


def build(p: Params) -> Plan:
    """Lay one step of ``p`` out. The same parameters give the same plan."""
    net = _net(p.template, p.batch, p.dtype if p.device else "fp32", p.device or "V100", p.sizes)
    b = _Builder(p, net)
    i = b.item(OPT_DISPATCH, 12.0 + 0.3 * len(net.params))
    b.events.append(
        OpEvent(f"Optimizer.zero_grad#{p.optimizer}.zero_grad", MAIN, i, i + 1, 0, 1, annotation=True)
    )
    taken = _forward(b, p)
    _backward(b, p, taken)
    if p.ranks > 1:
        b.stop("barrier")
    b.python(15.0)
    graph_until = len(b.kernels)
    if p.graph:
        # capture hides forward and backward: one launch call, no operators
        for j in range(len(b.kinds)):
            if b.kinds[j] in (PY, DISPATCH, CALL):
                b.base[j] = 0.0
        if b.launch_item:
            b.base[b.launch_item[0]] = 14.0
        b.events = [e for e in b.events if e.annotation]
        b.events.append(
            OpEvent("", MAIN, b.launch_item[0], b.launch_item[0] + 1, 0, 0, runtime="cudaGraphLaunch")
        )
    _optimizer(b, p)
    if p.item:
        _item(b, MAIN)
    if p.device_sync and p.device:
        b.item(DISPATCH, 3.0)
        b.stop("device")
        b.item(PY, 3.0)
    if p.mallocs and p.device:
        _allocations(b, p)
    return _finish(b, p, graph_until if p.graph else 0)


def _finish(b: _Builder, p: Params, hidden: int) -> Plan:
    m, n = len(b.kinds), len(b.kernels)
    times = np.zeros(n)
    kinds = np.zeros(n, dtype=np.int64)
    sums = {"compute": 0.0, "memory": 0.0, "small": 0.0}
    ridge = 0.0
    for j, k in enumerate(b.kernels):
        if b.stream[j] == 1:
            times[j], kinds[j] = k.flops, COMM
        elif k.dtod:
            times[j], kinds[j] = 1.4, COPY
        else:
            us, what = time_us(k, b.net.device, p.dtype)
            times[j], kinds[j] = us, KERNEL_KINDS.index(what)
            sums[what] += us
            ridge += us if what != "small" and near_ridge(k, b.net.device, p.dtype) else 0.0
    launch_item = np.array(b.launch_item, dtype=np.int64)
    before = np.searchsorted(launch_item, np.arange(m))
    cuts = [(0, 0, None), *b.stops, (m, n, None)]
    segments = []
    limit = min(512, p.queue)
    for (i0, n0, _), (i1, n1, stop) in itertools.pairwise(cuts):
        if i1 == i0 and stop is None:
            continue
        while n1 - n0 > limit:
            cut = int(launch_item[n0 + limit])
            segments.append(Segment(i0, cut, n0, n0 + limit))
            i0, n0 = cut, n0 + limit
        segments.append(Segment(i0, i1, n0, n1, stop))
    stream = np.array(b.stream, dtype=np.int64)
    for s in segments:
        local = stream[s.n0 : s.n1]
        s.compute, s.comm = np.flatnonzero(local == 0), np.flatnonzero(local == 1)
    return Plan(
        b.net,
        np.array(b.kinds, dtype=np.int64),
        np.array(b.base),
        launch_item,
        before,
        stream,
        times,
        kinds,
        b.kernels,
        b.events,
        segments,
        bool(hidden),
        models.fixed_bytes(b.net, p.optimizer) + p.extra_bytes,
        models.activation_bytes(b.net),
        sums["compute"],
        sums["memory"],
        sums["small"],
        ridge,
    )
