"""How much simulated traces look like real ones: keys, delays, gaps, durations, nesting, work queued before the window."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulator.dialect import Event
from benchmarks.simulator.kineto import trace_bytes
from benchmarks.simulator.run import simulate

# the categories both sides have in today's dialect; python_function needs stacks, which the simulator does not make
CATEGORIES = (
    ("cpu_op", "X"), ("user_annotation", "X"), ("cuda_runtime", "X"), ("kernel", "X"), ("gpu_memcpy", "X"),
    ("gpu_memset", "X"), ("gpu_user_annotation", "X"), ("ac2g", "s"), ("ac2g", "f"), ("fwdbwd", "s"), ("fwdbwd", "f"),
    ("cpu_instant_event", "i"), ("Trace", "X"), (None, "M"), (None, "i"),
)  # fmt: skip
# keys that newer recorders add, and the id that work queued before the window lacks
OPTIONAL = {"finished", "Record function id", "Ev Idx", "External id"}
SAMPLE = (
    ("load.main_process", 1), ("load.too_few_workers", 2), ("host.launch_bound", 1), ("host.sync", 1), ("healthy", 2),
    ("memory.bandwidth", 1), ("transfer.pageable", 1), ("communication.bandwidth", 1), ("decoy.gpu_lag", 1),
)  # fmt: skip


@dataclass(slots=True)
class Look:
    """The measures of one trace."""

    name: str
    keys: dict[tuple[str | None, str], set[frozenset[str]]]
    delays: np.ndarray
    gaps: np.ndarray
    durations: np.ndarray
    calls: np.ndarray
    depth: np.ndarray
    overlap: int
    queued: float
    kinds: dict[str, float] = field(default_factory=dict)


def load(path: Path) -> list[Event]:
    """The events of a trace file."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    return data if isinstance(data, list) else data["traceEvents"]


def look(name: str, events: list[Event]) -> Look:
    """Measure a trace of either dialect."""
    keys: dict[tuple[str | None, str], set[frozenset[str]]] = defaultdict(set)
    launches: dict[int, Event] = {}
    kernels: list[Event] = []
    host: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for e in events:
        cat, ph = e.get("cat"), e["ph"]
        keys[(cat, ph)].add(frozenset(e) | {f"args.{k}" for k in e.get("args") or {}})
        if ph != "X":
            continue
        if cat in ("cuda_runtime", "cuda_driver", "Runtime"):
            launches[e["args"].get("correlation", -1)] = e
        elif cat in ("kernel", "Kernel"):
            kernels.append(e)
        elif cat in ("cpu_op", "user_annotation", "Operator"):
            host[e["tid"]].append((float(e["ts"]), -float(e["dur"])))
    delays, calls = [], []
    for k in kernels:
        launch = launches.get(k["args"].get("correlation", -2))
        if launch:
            delays.append(k["ts"] - launch["ts"])
            calls.append(launch["dur"])
    kernels.sort(key=lambda e: (str(e["pid"]), str(e["tid"]), e["ts"]))
    gaps = [
        b["ts"] - a["ts"] - a["dur"]
        for a, b in itertools.pairwise(kernels)
        if (a["pid"], a["tid"]) == (b["pid"], b["tid"])
    ]
    depth, overlap = _nesting(host)
    return Look(
        name,
        keys,
        np.array(delays),
        np.array(gaps),
        np.array([k["dur"] for k in kernels]),
        np.array(calls),
        depth,
        overlap,
        1.0 - len(delays) / len(kernels) if kernels else 0.0,
    )


def _nesting(host: dict[Any, list[tuple[float, float]]]) -> tuple[np.ndarray, int]:
    """Depth of each host event, and how many partly overlap another (which never happens on one thread)."""
    depth, overlap = [], 0
    for spans in host.values():
        stack: list[float] = []
        for t0, negative in sorted(spans):
            t1 = t0 - negative
            while stack and stack[-1] <= t0 + 0.01:
                stack.pop()
            if stack and t1 > stack[-1] + 1.01:
                overlap += 1
            depth.append(len(stack))
            stack.append(t1)
    return np.array(depth), overlap


def quantiles(values: np.ndarray) -> str:
    """5, 25, 50, 75 and 95 % as text."""
    if len(values) == 0:
        return "-"
    return " ".join(f"{v:8.1f}" for v in np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)))


def missing_keys(real: list[Look], simulated: list[Look]) -> list[str]:
    """Key sets of simulated events that no real file has, optional keys aside; one line each."""
    wanted: dict[tuple[str | None, str], set[frozenset[str]]] = defaultdict(set)
    every: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    drop = {f"args.{k}" for k in OPTIONAL}
    for r in real:
        for which, sets in r.keys.items():
            for s in sets:
                wanted[which].add(s - drop)
                every[which] |= s
    bad = []
    for look_ in simulated:
        for which, sets in look_.keys.items():
            if which not in CATEGORIES:
                bad.append(f"{look_.name}: no real file has category {which}")
                continue
            for s in sets:
                if s - drop not in wanted[which]:
                    unknown = sorted(s - drop - every[which])
                    bad.append(f"{look_.name}: {which} {sorted(s - drop)} unknown: {unknown}")
    return sorted(set(bad))


def current_dialect(path: Path) -> bool:
    """Whether a file speaks today's dialect with NVIDIA's runtime."""
    text = gzip.decompress(path.read_bytes())
    return b'"cuda_runtime"' in text and b"hipLaunchKernel" not in text


def report(folder: Path) -> int:
    """Print real against simulated; 1 when a key set differs."""
    files = sorted(folder.glob("*.json.gz")) + sorted(folder.glob("*/*.json.gz"))
    if not files:
        print(f"no traces in {folder}")
        return 2
    real = [look(f.name.removesuffix(".json.gz")[:34], load(f)) for f in files]
    simulated = [_simulated(name, seed) for name, seed in SAMPLE]
    for title, pick in (
        ("launch call to kernel start, us", "delays"),
        ("gap to the kernel before on the stream, us", "gaps"),
        ("kernel duration, us", "durations"),
        ("launch call duration, us", "calls"),
        ("nesting depth of host events", "depth"),
    ):
        print(f"\n{title:46s}       5 %     25 %     50 %     75 %     95 %")
        for side, looks in (("real", real), ("simulated", simulated)):
            for x in looks:
                print(f"  {side:10s}{x.name:36s}{quantiles(getattr(x, pick))}")
    print("\nkernels queued before the window, partly overlapping host events")
    for side, looks in (("real", real), ("simulated", simulated)):
        for x in looks:
            print(f"  {side:10s}{x.name:36s}{100 * x.queued:6.1f} %{x.overlap:8d}")
    bad = missing_keys([r for r in real if ("cuda_runtime", "X") in r.keys], simulated)
    print("\nkey sets of simulated events that no real file has: " + (str(len(bad)) if bad else "none"))
    for line in bad:
        print("  " + line)
    return 1 if bad else 0


def _simulated(name: str, seed: int) -> Look:
    run = simulate(name, seed, settings=False)
    events = json.loads(gzip.decompress(trace_bytes(run)))["traceEvents"]
    return look(f"{name} ({run.params.template}, {run.params.device})"[:35], events)
