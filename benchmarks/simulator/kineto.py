"""Kineto trace files of a simulated run: events, metadata, the end markers; today's dialect or that of 1.8."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.simulator.dialect import Event, to_old
from benchmarks.simulator.run import Run
from benchmarks.simulator.trace_writer import Window, Writer


def events(run: Run, rank: int, window: Window | None = None) -> tuple[list[Event], dict[str, Any]]:
    """The trace events of one rank in today's dialect, and the file's other keys."""
    p = run.params
    r = run.sim.ranks[rank]
    first = p.warm + p.window_at
    w = window or Window(first, first + p.traced - 1)
    base_ns = run.start_ns - (run.start_ns % 1_000_000_000) - 5_243_867 * 10**9
    out = Writer(run, r, w, base_ns, correlation=511)
    out.allocated = r.plan.fixed
    inside = [rec for rec in r.records if w.first <= rec.step <= w.last]
    opened = inside[0].begin
    if run.sim.dev and p.hide != "kernels":
        out.queued([rec for rec in r.records if rec.step < w.first], opened)
    for rec in inside:
        out.step(rec)
    closed = inside[-1].end
    if run.sim.dev:
        # stopping the profiler waits for the device
        drained = max(out.rank_drained(rec) for rec in inside)
        out.runtime("cudaDeviceSynchronize", run.pid(rank), closed + 30.0, max(drained, closed + 32.0), 0)
        closed = max(drained, closed + 32.0)
    for name, ext, stream, t0, t1 in out.annotations:
        out.device.append(
            {
                "ph": "X",
                "cat": "gpu_user_annotation",
                "name": name,
                "pid": rank,
                "tid": stream,
                "ts": out.ts(t0),
                "dur": round(t1 - t0, 3),
                "args": {"External id": ext},
            }
        )
    for e in out.memory:
        e["args"]["Ev Idx"] = len(out.host)
        out.host.append(e)
    everything = [*out.host, *out.flows, *out.device]
    if p.hide == "kernels":
        everything = [e for e in everything if not _on_gpu(e, rank)]
    elif p.hide == "host":
        everything = [e for e in everything if _on_gpu(e, rank) and e.get("cat") != "gpu_user_annotation"]
    return everything + _metadata(run, out, opened, closed), _top(run, w, base_ns)


def _on_gpu(e: Event, rank: int) -> bool:
    return str(e.get("cat")) in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation") or (
        e.get("cat") == "ac2g" and e["pid"] == rank
    )


def _metadata(run: Run, out: Writer, opened: float, closed: float) -> list[Event]:
    pid, rank = run.pid(out.rank.index), out.rank.index
    ts = out.ts(opened - 98.0)
    meta: list[Event] = []

    def process(who: int, label: str, sort: int) -> None:
        meta.append(
            {"name": "process_name", "ph": "M", "ts": ts, "pid": who, "tid": 0, "args": {"name": "python3"}}
        )
        meta.append(
            {"name": "process_labels", "ph": "M", "ts": ts, "pid": who, "tid": 0, "args": {"labels": label}}
        )
        meta.append(
            {
                "name": "process_sort_index",
                "ph": "M",
                "ts": ts,
                "pid": who,
                "tid": 0,
                "args": {"sort_index": sort},
            }
        )

    def thread(who: int, tid: int, name: str) -> None:
        meta.append(
            {"name": "thread_name", "ph": "M", "ts": ts, "pid": who, "tid": tid, "args": {"name": name}}
        )
        meta.append(
            {
                "name": "thread_sort_index",
                "ph": "M",
                "ts": ts,
                "pid": who,
                "tid": tid,
                "args": {"sort_index": tid},
            }
        )

    process(pid, "CPU", pid)
    if run.sim.dev:
        for g in range(16):
            process(g, f"GPU {g}", 5000000 + g)
        streams = sorted({e["tid"] for e in out.device if e["ph"] == "X" and e["pid"] == rank})
        for s in streams:
            thread(rank, s, f"stream {s} ")
    for tid in sorted({e["tid"] for e in (*out.host, *out.device) if e["pid"] == pid}):
        label = "pt_autograd_0" if tid == pid + 63 else "python3"
        thread(pid, tid, f"thread {tid} ({label})")
    meta.append(
        {
            "ph": "X",
            "cat": "Trace",
            "ts": ts,
            "dur": round(closed - opened + 200.0, 3),
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        }
    )
    meta.append(
        {
            "name": "process_sort_index",
            "ph": "M",
            "ts": ts,
            "pid": "Spans",
            "tid": 0,
            "args": {"sort_index": 536870912},
        }
    )
    meta.append(
        {
            "name": "Iteration Start: PyTorch Profiler",
            "ph": "i",
            "s": "g",
            "pid": "Traces",
            "tid": "Trace PyTorch Profiler",
            "ts": ts,
        }
    )
    meta.append(
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": out.ts(closed + 900.0)}
    )
    return meta


def _top(run: Run, w: Window, base_ns: int) -> dict[str, Any]:
    p = run.params
    dev = run.sim.dev
    top: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
    if dev:
        top["deviceProperties"] = [
            {
                "id": g,
                "name": dev.name,
                "totalGlobalMem": dev.memory,
                "computeMajor": dev.cc[0],
                "computeMinor": dev.cc[1],
                "maxThreadsPerBlock": 1024,
                "maxThreadsPerMultiprocessor": dev.threads_per_sm,
                "regsPerBlock": 65536,
                "warpSize": 32,
                "sharedMemPerBlock": 49152,
                "numSms": dev.sms,
                "regsPerMultiprocessor": 65536,
                "sharedMemPerBlockOptin": dev.smem_optin,
                "sharedMemPerMultiprocessor": dev.smem_per_sm,
            }
            for g in range(p.ranks)
        ]
        top |= {"cupti_version": 26, "cuda_runtime_version": 12080, "cuda_driver_version": 12080}
    if p.ranks > 1:
        ranks = list(range(p.ranks))
        top["distributedInfo"] = {
            "_RANK_": 0,
            "backend": "nccl",
            "world_size": p.ranks,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": p.ranks,
                    "ranks": ranks,
                }
            ],
            "nccl_version": "2.27.5",
        }
    if w.shapes:
        top["record_shapes"] = 1
    if w.memory:
        top["profile_memory"] = 1
    top |= {
        "trace_id": f"{p.seed * 2654435761 % 2**64:016X}" * 2,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "traceName": "./trace.json",
    }
    return top


def trace_bytes(run: Run, rank: int = 0, dialect: str = "new", window: Window | None = None) -> bytes:
    """A gzipped trace file of one rank; the same run gives the same bytes."""
    everything, top = events(run, rank, window)
    if "distributedInfo" in top:
        info = dict(top["distributedInfo"])
        info.pop("_RANK_")
        top["distributedInfo"] = {"backend": info.pop("backend"), "rank": rank, **info}
    if dialect == "old":
        everything, top = to_old(everything, top)
    text = json.dumps({**top, "traceEvents": everything}, separators=(", ", ": "))
    return gzip.compress(text.encode(), 6, mtime=0)


def write_trace_file(
    run: Run, path: Path, rank: int = 0, dialect: str = "new", window: Window | None = None
) -> None:
    """Write one rank's trace to ``path``."""
    path.write_bytes(trace_bytes(run, rank, dialect, window))
