"""The events of one rank's trace, step by step, as the profiler shows them.

The layout follows files of real profilers: host events first, each with its flow ends, then runtime and GPU
events with ``ac2g`` flows, then metadata, spans and the end markers. Kernels launched before the window
carry a correlation but have no launch and no external id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulator.dialect import Event
from benchmarks.simulator.engine import Rank, StepRecord
from benchmarks.simulator.ops import Kernel
from benchmarks.simulator.plan import AUTOGRAD, COMM, MAIN, OpEvent
from benchmarks.simulator.run import Run

CBID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventQuery": 138,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaGraphLaunch": 311,
}
# calls that put work on the GPU or wait for it begin a flow; the others end one where they are
FLOW_STARTS = {
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaStreamWaitEvent",
    "cudaGraphLaunch",
}
STREAM, COPY_STREAM, COMM_STREAM = 7, 20, 24


@dataclass(slots=True)
class Window:
    """Which steps a file covers and what the profiler was asked for."""

    first: int
    last: int
    shapes: bool = True
    memory: bool = True


@dataclass(slots=True)
class Writer:
    run: Run
    rank: Rank
    window: Window
    base_ns: int
    host: list[Event] = field(default_factory=list)
    flows: list[Event] = field(default_factory=list)
    memory: list[Event] = field(default_factory=list)
    device: list[Event] = field(default_factory=list)
    annotations: list[tuple[str, int, int, float, float]] = field(default_factory=list)
    external: int = 0
    correlation: int = 0
    sequence0: int = 3500
    allocated: int = 0
    reserved: int = 0
    live: dict[tuple[int, int], int] = field(default_factory=dict)
    addr: int = 139537480989696

    # times

    def ts(self, us: float) -> float:
        """Microseconds after the trace's base."""
        return round((self.run.ns(0.0) - self.base_ns) / 1e3 + us, 3)

    # events

    def cpu(
        self,
        name: str,
        tid: int,
        t0: float,
        t1: float,
        *,
        annotation: bool = False,
        dims: tuple[tuple[int, ...], ...] = (),
        dtype: str = "",
        sequence: int = -1,
        forward: int | None = None,
    ) -> int:
        """A host event; returns its external id."""
        self.external += 1
        args: dict[str, Any] = {"External id": self.external}
        shaped = self.window.shapes and not annotation and not name.startswith("autograd::engine")
        if not shaped:
            args["Record function id"] = 0
        if sequence >= 0:
            args["Sequence number"] = sequence
            args["Fwd thread id"] = forward or 0
        if shaped:
            args["Record function id"] = 0
            types = [_typed(d, dtype) for d in dims]
            args["Concrete Inputs"] = ["" if t else "1" for t in types]
            args["Input type"] = [t or "Scalar" for t in types]
            args["Input Strides"] = [_strides(d) for d in dims]
            args["Input Dims"] = [list(d) for d in dims]
        if name == "record_param_comms":
            args |= self._collective(dims, dtype)
        args["Ev Idx"] = len(self.host)
        self.host.append(
            {
                "ph": "X",
                "cat": "user_annotation" if annotation else "cpu_op",
                "name": name,
                "pid": self.run.pid(self.rank.index),
                "tid": tid,
                "ts": self.ts(t0),
                "dur": round(max(t1 - t0, 0.0), 3),
                "args": args,
            }
        )
        return self.external

    def _collective(self, dims: tuple[tuple[int, ...], ...], dtype: str) -> dict[str, Any]:
        """What ``record_param_comms`` says about an all-reduce."""
        ranks = self.run.params.ranks
        return {
            "Collective name": "allreduce",
            "Process Group Description": "default_pg",
            "dtype": {"c10::Half": "Half", "c10::BFloat16": "BFloat16"}.get(dtype, "Float"),
            "Rank": self.rank.index,
            "In msg nelems": dims[0][0],
            "Out msg nelems": dims[0][0],
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Ranks": str(list(range(ranks))),
            "Group size": ranks,
            "Global rank start": 0,
            "Global rank stride": 1,
        }

    def runtime(
        self, name: str, tid: int, t0: float, t1: float, external: int, correlation: int | None = None
    ) -> int:
        """A CUDA runtime call with its flow; returns its correlation."""
        if correlation is None:
            correlation = self.take()
        pid = self.run.pid(self.rank.index)
        args: dict[str, Any] = {"External id": external} if external else {}
        args |= {"cbid": CBID[name], "correlation": correlation}
        ts = self.ts(t0)
        self.device.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": ts,
                "dur": round(max(t1 - t0, 0.0), 3),
                "args": args,
            }
        )
        flow: Event = {
            "ph": "s",
            "id": correlation,
            "pid": pid,
            "tid": tid,
            "ts": ts,
            "cat": "ac2g",
            "name": "ac2g",
        }
        if name not in FLOW_STARTS:
            flow |= {"ph": "f", "bp": "e"}
        self.device.append(flow)
        return correlation

    def take(self) -> int:
        """The next correlation number; calls the profiler does not show take some too."""
        self.correlation += 1 + (self.correlation * 7919 >> 3) % 9
        return self.correlation

    def gpu(self, cat: str, name: str, stream: int, t0: float, us: float, args: dict[str, Any]) -> None:
        """GPU work with the end of its flow."""
        dev = self.rank.index
        ts = self.ts(t0)
        self.device.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": dev,
                "tid": stream,
                "ts": ts,
                "dur": round(us, 3),
                "args": args,
            }
        )
        self.device.append(
            {
                "ph": "f",
                "id": args["correlation"],
                "pid": dev,
                "tid": stream,
                "ts": ts,
                "cat": "ac2g",
                "name": "ac2g",
                "bp": "e",
            }
        )

    def kernel(self, k: Kernel, stream: int, t0: float, us: float, external: int, correlation: int) -> None:
        """A kernel, memset or small copy back, as its category wants it."""
        ext: dict[str, Any] = {"External id": external} if external else {}
        where = {"device": self.rank.index, "context": 1, "stream": stream, "correlation": correlation}
        if k.memset or k.dtod:
            rate = {"bytes": int(k.bytes), "memory bandwidth (GB/s)": k.bytes / max(us, 0.001) / 1e3}
            cat, name = ("gpu_memset", "Memset (Device)") if k.memset else ("gpu_memcpy", k.name)
            self.gpu(cat, name, stream, t0, us, ext | where | rate)
            return
        dev = self.run.sim.dev
        assert dev is not None
        warps = k.blocks * -(-k.threads // 32)
        occupancy = min(100, round(100 * warps / dev.sms / (dev.threads_per_sm / 32)))
        args = (
            ext
            | {"queued": 0}
            | where
            | {
                "registers per thread": k.regs,
                "shared memory": k.smem,
                "blocks per SM": round(k.blocks / dev.sms, 6),
                "warps per SM": round(warps / dev.sms, 6),
                "grid": [k.blocks, 1, 1],
                "block": [k.threads, 1, 1],
                "est. achieved occupancy %": occupancy,
            }
        )
        if k.comm_numel:
            ranks = list(range(self.run.params.ranks))
            dtype = {"fp16": "Half", "bf16": "BFloat16"}.get(self.run.params.dtype, "Float")
            args |= {
                "Collective name": "allreduce",
                "In msg nelems": k.comm_numel,
                "Out msg nelems": k.comm_numel,
                "Group size": len(ranks),
                "dtype": dtype,
                "In split size": "[]",
                "Out split size": "[]",
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": str(ranks),
            }
        self.gpu("kernel", k.name, stream, t0, us, args)

    def allocation(self, tid: int, t: float, size: int) -> None:
        """A ``[memory]`` event of the caching allocator."""
        self.allocated += size
        self.reserved = max(self.reserved, -(-int(self.allocated * 1.12) // (2 << 20)) * (2 << 20))
        if size == 0 or not self.window.memory:
            return
        self.memory.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": self.run.pid(self.rank.index),
                "tid": tid,
                "ts": self.ts(t),
                "args": {
                    "Total Reserved": self.reserved if self.run.sim.dev else 0,
                    "Total Allocated": self.allocated,
                    "Bytes": size,
                    "Device Id": self.rank.index if self.run.sim.dev else -1,
                    "Device Type": 1 if self.run.sim.dev else 0,
                    "Addr": self.addr + abs(size) * 512 % (1 << 36) // 512 * 512,
                    "finished": False,
                },
            }
        )

    # a step

    def step(self, rec: StepRecord) -> None:
        """All events of one traced step."""
        p = self.run.params
        pid = self.run.pid(self.rank.index)
        if p.hide != "steps":
            ext = self.cpu(f"ProfilerStep#{rec.step}", pid, rec.begin + 2.0, rec.end, annotation=True)
            self._annotate(f"ProfilerStep#{rec.step}", ext, rec)
        self._loading(rec, pid)
        for t0, t1, size in rec.casts:
            d = ((size // 4,),)
            self.cpu("aten::to", pid, t0, t1, dims=d, dtype=p.input_dtype)
            self.cpu("aten::_to_copy", pid, t0 + 1.5, t1 - 0.5, dims=d, dtype=p.input_dtype)
            self.cpu("aten::copy_", pid, t0 + 5.0, t1 - 1.0, dims=d, dtype=p.input_dtype)
        for c in rec.copies:
            self._copy(c, pid)
        if rec.item0 is not None:
            self._items(rec, pid)
        if rec.stall and rec.stall[0] in ("checkpoint", "validation") and self.run.sim.dev:
            _, t0, t1 = rec.stall
            drained = min(max(self.rank_drained(rec), t0 + 2.0), t1)
            self.runtime("cudaDeviceSynchronize", pid, t0 + 1.0, drained, 0)

    def rank_drained(self, rec: StepRecord) -> float:
        """When this step's last GPU work ends."""
        if rec.kernel0 is None or rec.kernel_us is None or len(rec.kernel0) == 0:
            return rec.end
        return float((rec.kernel0 + rec.kernel_us).max())

    def _annotate(
        self, name: str, ext: int, rec: StepRecord, first: int = 0, last: int | None = None
    ) -> None:
        if rec.kernel0 is None or rec.kernel_us is None or not len(rec.kernel0) or self.run.params.graph:
            return
        stop = len(rec.kernel0) if last is None else last
        main = [i for i in range(first, stop) if self.rank.plan.stream[i] == 0]
        if not main:
            return
        t0 = float(rec.kernel0[main[0]])
        if first == 0 and rec.copies and rec.copies[0].stream == STREAM:
            t0 = min(t0, rec.copies[0].start)
        t1 = float(rec.kernel0[main[-1]] + rec.kernel_us[main[-1]])
        self.annotations.append((name, ext, STREAM, t0, t1))

    def _loading(self, rec: StepRecord, pid: int) -> None:
        p = self.run.params
        if p.custom_loader:
            return
        kind = "Multi" if p.workers else "Single"
        name = (
            f"enumerate(DataLoader)#_{kind}{'Processing' if p.workers else 'Process'}DataLoaderIter.__next__"
        )
        if rec.stop1 > rec.stop0:
            self.cpu(name, pid, rec.stop0 + 3.0, rec.stop1, annotation=True)
        t0, t1 = rec.next0 + 4.0, rec.next1
        self.cpu(name, pid, t0, t1, annotation=True)
        if p.workers == 0:
            shape, typ, _ = self.rank.plan.net.inputs[0]
            sample = shape[1:] or (1,)
            n = min(p.batch, 8)
            for i in range(n):
                at = t0 + (t1 - t0) * (i + 0.5) / (n + 1)
                room = (t1 - t0) / (n + 1) * 0.3
                self.cpu("aten::to", pid, at, at + min(30.0, room), dims=(sample, ()), dtype=typ)
                self.cpu(
                    "aten::div",
                    pid,
                    at + min(30.0, room) + 0.5,
                    at + min(45.0, 1.5 * room),
                    dims=(sample, ()),
                    dtype=typ,
                )
            at = t0 + (t1 - t0) * (n + 0.1) / (n + 1)
            self.cpu("aten::stack", pid, at, t1 - 0.3 * (t1 - at), dims=(sample,), dtype=typ)
            self.cpu("aten::cat", pid, at + 0.05 * (t1 - at), t1 - 0.4 * (t1 - at), dims=(sample,), dtype=typ)
        elif p.pin and self.run.sim.dev:
            pin = 805308864 + self.rank.index
            for i in range(min(2, len(rec.copies) or 1)):
                self.runtime("cudaEventQuery", pin, rec.begin + 5.0 + 9.0 * i, rec.begin + 7.0 + 9.0 * i, 0)

    def _copy(self, c: Any, pid: int) -> None:
        p = self.run.params
        inputs = self.rank.plan.net.inputs
        shape, typ, _ = (
            inputs[c.index]
            if c.index < len(inputs) and p.pieces <= len(inputs)
            else ((c.size // 4,), "float", 0)
        )
        typ = "double" if typ == "float" and p.wide >= 2.0 else typ
        end = max(c.call1, c.sync1)
        t0 = c.call0 - 9.0 * p.dispatch * 0.9
        self.cpu("aten::to", pid, t0, end + 5.0, dims=(shape, (), (), (), ()), dtype=typ)
        self.cpu("aten::_to_copy", pid, t0 + 1.2, end + 4.0, dims=(shape, (), (), ()), dtype=typ)
        self.cpu("aten::empty_strided", pid, t0 + 2.4, t0 + 0.55 * (c.call0 - t0), dims=((), ()), dtype=typ)
        self.allocation(pid, t0 + 3.0, c.size)
        ext = self.cpu(
            "aten::copy_", pid, t0 + 0.6 * (c.call0 - t0), end + 2.5, dims=(shape, shape, ()), dtype=typ
        )
        corr = self.runtime("cudaMemcpyAsync", pid, c.call0, c.call1, ext)
        self._memcpy(c, ext, corr)
        if c.sync1 > c.sync0 > 0.0:
            self.runtime("cudaStreamSynchronize", pid, c.sync0, c.sync1, ext)

    def _memcpy(self, c: Any, ext: int, corr: int) -> None:
        name = f"Memcpy HtoD ({'Pinned' if c.pinned else 'Pageable'} -> Device)"
        us = max(c.end - c.start, 0.001)
        args: dict[str, Any] = {"External id": ext} if ext else {}
        args |= {
            "device": self.rank.index,
            "context": 1,
            "stream": c.stream,
            "correlation": corr,
            "bytes": c.size,
            "memory bandwidth (GB/s)": c.size / us / 1e3,
        }
        self.gpu("gpu_memcpy", name, c.stream, c.start, us, args)

    def _items(self, rec: StepRecord, pid: int) -> None:
        plan = self.rank.plan
        item0, item1 = rec.item0, rec.item1
        assert item0 is not None
        assert item1 is not None
        # without a GPU the backward pass runs in the calling thread
        tids = {MAIN: pid, AUTOGRAD: pid + 63 if self.run.sim.dev else pid}
        owner = [0] * len(item0)
        calls: list[tuple[OpEvent, int]] = []
        thread = [MAIN] * len(item0)
        for e in plan.events:
            tid = tids[e.thread]
            if e.runtime:
                calls.append((e, tid))
                continue
            t0, t1 = self._span(e, item0, item1)
            seq = e.sequence + self.sequence0 + 1000 * rec.step if e.sequence >= 0 else -1
            back = e.thread == AUTOGRAD
            ext = self.cpu(
                e.name,
                tid,
                t0,
                t1,
                annotation=e.annotation,
                dims=e.dims,
                dtype=e.dtype,
                sequence=seq,
                forward=1 if back else 0,
            )
            for i in range(e.first, e.last):
                owner[i], thread[i] = ext, e.thread
            if e.annotation and e.name.startswith("Optimizer.step"):
                inside = [j for j, i in enumerate(plan.launch_item) if e.first <= i < e.last]
                if inside:
                    self._annotate(e.name, ext, rec, inside[0], inside[-1] + 1)
            if e.alloc:
                self.allocation(tid, t0 + 0.4 * (float(item1[e.first]) - t0), e.alloc)
                self.live[(rec.step, e.sequence)] = self.live.get((rec.step, e.sequence), 0) + e.alloc
            if seq >= 0:
                self._link(e, seq, tid, t0, t1, rec)
        issued: list[tuple[float, float, str, int, int, int]] = []
        for e, tid in calls:
            issued.append(
                (float(item0[e.first]), float(item1[e.last - 1]), e.runtime or "", tid, owner[e.first], -1)
            )
        for what, item, t0, t1 in rec.waits:
            name = {"item": "cudaStreamSynchronize", "device": "cudaDeviceSynchronize", "free": "cudaFree"}[
                what
            ]
            begin = t0 + 0.5 if what == "item" else float(item0[item])
            issued.append((begin, t1 - 0.5, name, tids[thread[item]], owner[item], -1))
        for j, i in enumerate(plan.launch_item):
            if not self._hidden(j):
                name = _launch_call(plan.kernels[j])
                issued.append((float(item0[i]), float(item1[i]), name, tids[thread[i]], owner[i], j))
        for t0, t1, name, tid, ext, j in sorted(issued):
            corr = self.runtime(name, tid, t0, t1, ext)
            if j >= 0 and rec.kernel0 is not None and rec.kernel_us is not None:
                stream = COMM_STREAM if plan.kernel_kind[j] == COMM else STREAM
                self.kernel(
                    plan.kernels[j], stream, float(rec.kernel0[j]), float(rec.kernel_us[j]), ext, corr
                )
        left = sum(v for (step, _), v in self.live.items() if step == rec.step)
        self.live = {k: v for k, v in self.live.items() if k[0] != rec.step}
        self.allocation(pid, rec.end - 1.0, -left - sum(c.size for c in rec.copies))

    def _span(self, e: OpEvent, item0: Any, item1: Any) -> tuple[float, float]:
        """Events that share items lie inside each other, outer levels first."""
        a0, a1 = float(item0[e.first]), float(item1[e.first])
        if e.last <= e.first:
            return a0 + 0.62 * (a1 - a0), a0 + 0.95 * (a1 - a0)
        b0, b1 = float(item0[e.last - 1]), float(item1[e.last - 1])
        inset = 0.4 * e.level / max(e.levels, 1)
        return a0 + (inset + 0.05) * (a1 - a0), b1 - (inset + 0.02) * (b1 - b0)

    def _link(self, e: OpEvent, seq: int, tid: int, t0: float, t1: float, rec: StepRecord) -> None:
        """Forward to backward flow, and the backward's release of what the forward kept."""
        flow = seq
        pid = self.run.pid(self.rank.index)
        mark: Event = {
            "ph": "s",
            "id": flow,
            "pid": pid,
            "tid": tid,
            "ts": self.ts(t0),
            "cat": "fwdbwd",
            "name": "fwdbwd",
        }
        if e.thread == MAIN and e.level == 0:
            self.flows.append(mark)
        elif e.thread == AUTOGRAD and e.level == 1 and not e.name.startswith("autograd"):
            self.flows.append(mark | {"ph": "f", "bp": "e"})
            kept = self.live.pop((rec.step, e.sequence), 0)
            if kept:
                self.allocation(tid, t1 - 0.1, -kept)

    def _hidden(self, j: int) -> bool:
        """Whether launch ``j`` is inside a CUDA graph."""
        plan = self.rank.plan
        return plan.hidden and plan.base[plan.launch_item[j]] in (0.0, 14.0)

    def queued(self, before: list[StepRecord], opened: float) -> None:
        """Work launched before the window that runs, or is still to run, when it opens."""
        for rec in before:
            if rec.kernel0 is None or rec.kernel_us is None:
                continue
            for c in rec.copies:
                if c.end > opened:
                    self._memcpy(c, 0, self.take())
            for j, k in enumerate(self.rank.plan.kernels):
                t0, us = float(rec.kernel0[j]), float(rec.kernel_us[j])
                if t0 + us > opened and not self._hidden(j):
                    stream = COMM_STREAM if self.rank.plan.kernel_kind[j] == COMM else STREAM
                    self.kernel(k, stream, t0, us, 0, self.take())


def _launch_call(k: Kernel) -> str:
    """The runtime call that issues ``k``."""
    if k.memset:
        return "cudaMemsetAsync"
    if k.dtod:
        return "cudaMemcpyAsync"
    return "cudaLaunchKernelExC" if k.name.startswith(("nvjet", "ncclDev")) else "cudaLaunchKernel"


def _typed(dim: tuple[int, ...], dtype: str) -> str:
    return dtype if dim else ""


def _strides(dim: tuple[int, ...]) -> list[int]:
    out, run = [], 1
    for d in reversed(dim):
        out.append(run)
        run *= d
    return out[::-1]
