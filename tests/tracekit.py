"""Small torch.profiler traces made in code: single events, and a training loop on one GPU with an in-order stream.

Times are microseconds, as in the files. ``Trace.write`` writes any of the layouts that exporters have used.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.model import Result
from tracelens.signals.activity import Activity
from tracelens.trace.reader import read_trace
from tracelens.trace.tables import TraceTables

Event = dict[str, Any]

PID, MAIN, GPU, STREAM = 100, 100, 0, 7
V100 = {
    "id": 0,
    "name": "Tesla V100",
    "totalGlobalMem": 16_900_000_000,
    "computeMajor": 7,
    "computeMinor": 0,
    "numSms": 80,
}
GEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SINGLE, WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"


@dataclass
class Trace:
    """Events of one process in the current dialect; every method appends one and returns its dict."""

    events: list[Event] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=lambda: {"schemaVersion": 1, "deviceProperties": [V100]})
    correlation: int = 0

    def add(self, cat: str, name: str, start: float, end: float, pid: Any, tid: Any, **args: Any) -> Event:
        """One complete event."""
        event: Event = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": start,
            "dur": end - start,
        }
        if args:
            event["args"] = {
                key.replace("_id", " id") if key.endswith("_id") else key: v for key, v in args.items()
            }
        self.events.append(event)
        return event

    def op(self, name: str, start: float, end: float, tid: Any = MAIN, **args: Any) -> Event:
        """An operator."""
        return self.add("cpu_op", name, start, end, PID, tid, **args)

    def annotation(self, name: str, start: float, end: float, tid: Any = MAIN) -> Event:
        """A ``record_function`` range."""
        return self.add("user_annotation", name, start, end, PID, tid)

    def step(self, number: int, start: float, end: float) -> Event:
        """The profiler's step marker."""
        return self.annotation(f"ProfilerStep#{number}", start, end)

    def next(self, start: float, end: float, iterator: str = SINGLE) -> Event:
        """The loader's ``next``."""
        return self.annotation(f"enumerate(DataLoader)#{iterator}.__next__", start, end)

    def call(
        self, name: str, start: float, end: float, tid: Any = MAIN, correlation: int = 0, **args: Any
    ) -> Event:
        """A runtime call."""
        return self.add("cuda_runtime", name, start, end, PID, tid, correlation=correlation, **args)

    def kernel(
        self, name: str, start: float, end: float, correlation: int = 0, stream: int = STREAM, **args: Any
    ) -> Event:
        """A kernel on the GPU."""
        args = {
            "device": GPU,
            "stream": stream,
            "correlation": correlation,
            "grid": [640, 1, 1],
            "block": [256, 1, 1],
            **args,
        }
        return self.add("kernel", name, start, end, GPU, stream, **args)

    def copy(
        self, start: float, end: float, size: int, correlation: int = 0, kind: str = "HtoD (Pageable -> Device)",
        stream: int = STREAM,
    ) -> Event:  # fmt: skip
        """A copy on the GPU."""
        return self.add(
            "gpu_memcpy", f"Memcpy {kind}", start, end, GPU, stream, device=GPU, stream=stream, correlation=correlation,
            bytes=size,
        )  # fmt: skip

    def launch(
        self, at: float, name: str, start: float, end: float, tid: Any = MAIN, cost: float = 4, **args: Any
    ) -> None:
        """A launch call and its kernel."""
        self.correlation += 1
        self.call("cudaLaunchKernel", at, at + cost, tid, self.correlation)
        self.kernel(name, start, end, self.correlation, **args)

    def document(self) -> dict[str, Any]:
        """The file's JSON value in the object form, metadata first as Kineto writes it."""
        return {**self.metadata, "traceEvents": self.events}

    def write(self, path: Path, layout: str = "pretty") -> Path:
        """Writes the trace: ``pretty`` (as Kineto), ``compact``, ``list`` or ``tail`` (metadata last); .gz compresses."""
        if layout == "list":
            text = json.dumps(self.events)
        elif layout == "compact":
            text = json.dumps(self.document(), separators=(",", ":"))
        elif layout == "tail":
            text = json.dumps({"traceEvents": self.events, **self.metadata}, separators=(", ", ": "))
        else:
            text = json.dumps(self.document(), indent=2)
        return write_text(path, text)

    def tables(self, folder: Path, layout: str = "pretty") -> TraceTables:
        """The trace written and read back."""
        return read_trace(self.write(folder / "trace.json", layout))

    def activity(self, folder: Path) -> Activity:
        """The trace's events by role."""
        return Activity(self.tables(folder))

    def result(self, folder: Path, name: str = "trace.json") -> Result:
        """The analysis of the trace alone in a folder."""
        return analyse(discover([self.write(folder / name)]))


def write_text(path: Path, text: str | bytes) -> Path:
    """Writes text, gzipped (without a time in the header) where the name ends in .gz."""
    data = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


@dataclass
class Loop:
    """A training loop: each step loads, copies a batch, launches kernels, runs an optimizer.

    ``kernels`` are (name, us) of a step; ``host_us`` is the host's cost of launching one. ``slow`` maps a step to
    extra loading time. ``wait`` calls ``.item()`` after each step. ``ahead`` shifts all host work so many steps before
    its GPU work, as an asynchronous host does.
    """

    steps: int = 8
    load_us: float = 200
    copy_bytes: int = 600_000
    copy_us: float = 60
    pinned: bool = True
    kernels: Sequence[tuple[str, float]] = ((GEMM, 300), (POINTWISE, 60)) * 6
    host_us: float = 12
    optimizer_launches: int = 2
    python_us: float = 0
    slow: Callable[[int], float] = lambda step: 0.0
    wait: bool = False
    markers: bool = True
    iterator: str | None = SINGLE
    first: int = 3
    startup_us: float = 0

    def trace(self) -> Trace:
        """The loop's trace; the profiler's own synchronisation ends it."""
        out = Trace()
        host = free = 1000.0
        for index in range(self.steps):
            begin = host
            pause = self.load_us + self.slow(index) + (self.startup_us if index == 0 else 0)
            if pause and self.iterator:
                out.next(host, host + pause, self.iterator)
            host += pause + self.python_us
            host, free = self._copy(out, host, free)
            for name, length in self.kernels:
                host, free = self._launch(
                    out, "aten::addmm" if name == GEMM else "aten::add", name, length, host, free
                )
            start = host
            for _ in range(self.optimizer_launches):
                host, free = self._launch(out, "aten::_foreach_add_", POINTWISE, 5, host + 2, free)
            if self.optimizer_launches:
                out.annotation("Optimizer.step#SGD.step", start, host + 3)
                host += 3
            if self.wait:
                out.correlation += 1
                start = host
                end = max(free, host) + 8
                out.op("aten::item", start, end)
                out.call("cudaMemcpyAsync", start + 2, end - 1, correlation=out.correlation)
                out.copy(end - 4, end - 3, 4, out.correlation, "DtoH (Device -> Pageable)")
                host, free = end, end - 3
            host += 5
            if self.markers:
                out.step(self.first + index, begin, host - 1)
        out.correlation += 1
        out.call("cudaDeviceSynchronize", host, max(free, host) + 5, correlation=out.correlation)
        return out

    def _copy(self, out: Trace, host: float, free: float) -> tuple[float, float]:
        if not self.copy_bytes:
            return host, free
        out.correlation += 1
        start = max(host + 8, free)
        end = start + self.copy_us
        blocked = host + 10 if self.pinned else end
        out.op("aten::to", host, blocked + 3)
        out.call("cudaMemcpyAsync", host + 4, blocked, correlation=out.correlation)
        out.copy(
            start,
            end,
            self.copy_bytes,
            out.correlation,
            f"HtoD ({'Pinned' if self.pinned else 'Pageable'} -> Device)",
        )
        return blocked + 5, end

    def _launch(
        self, out: Trace, operator: str, name: str, length: float, host: float, free: float
    ) -> tuple[float, float]:
        out.op(operator, host, host + self.host_us)
        at = host + self.host_us - 5
        start = max(at + 4, free)
        out.launch(at, name, start, start + length)
        return host + self.host_us + 1, start + length


def as_old(trace: Trace) -> Trace:
    """The same trace in the dialect of torch 1.8-1.11: old category names, ``external id``, ``Input dims``."""
    categories = {
        "cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel",
        "gpu_memcpy": "Memcpy", "gpu_memset": "Memset",
    }  # fmt: skip
    arguments = {"External id": "external id", "Input Dims": "Input dims"}
    old = Trace(metadata=dict(trace.metadata))
    for event in trace.events:
        changed = {**event, "cat": categories.get(event.get("cat", ""), event.get("cat"))}
        if "args" in event:
            changed["args"] = {arguments.get(key, key): value for key, value in event["args"].items()}
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            changed["tid"] = f"stream {event['tid']}"
        old.events.append(changed)
    return old


def comparable(result: Result) -> dict[str, Any]:
    """A result's JSON without what differs between two runs of the tool on the same data."""
    value = result.to_json()
    value.pop("tool")
    value["inputs"] = {k: v for k, v in value["inputs"].items() if k not in ("dialect", "paths", "title")}
    return value
