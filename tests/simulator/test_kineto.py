"""Traces: joins, flows, nesting, dialects, what was queued before the window."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulator import Run, simulate
from benchmarks.simulator.kineto import Window, trace_bytes
from benchmarks.simulator.params import Params
from benchmarks.simulator.realism import current_dialect, load, look, missing_keys

REAL = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces" / "real"

JOB = Params(template="mlp", sizes=(("width", 512), ("depth", 3)), device="V100", dtype="fp32", batch=256, warm=6,
             horizon=20, traced=4, sample_cpu_ms=0.002, sample_wait_ms=0.0, sample_kb=1.0)  # fmt: skip
LAG = JOB.but(batch=16384, window_at=10)


def _run(p: Params) -> Run:
    return simulate(p, settings=False)


def _trace(run: Run, rank: int = 0, dialect: str = "new") -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(trace_bytes(run, rank, dialect)))
    return data


def _of(trace: dict[str, Any], *cats: str) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e.get("cat") in cats and e["ph"] == "X"]


@pytest.mark.parametrize(
    "p", [JOB, JOB.but(mid_syncs=2, item=True, mallocs=2), JOB.but(pin=False, non_blocking=False)]
)
def test_each_launch_has_one_kernel_and_each_flow_two_ends(p: Params) -> None:
    trace = _trace(_run(p))
    calls = Counter(e["args"]["correlation"] for e in _of(trace, "cuda_runtime"))
    assert set(calls.values()) == {1}
    work = Counter(e["args"]["correlation"] for e in _of(trace, "kernel", "gpu_memcpy", "gpu_memset"))
    assert set(work.values()) == {1}
    issued = {
        e["args"]["correlation"]
        for e in _of(trace, "cuda_runtime")
        if e["args"]["cbid"] in (211, 430, 41, 51)
    }
    assert issued <= set(work)
    starts = {e["id"] for e in trace["traceEvents"] if e.get("cat") == "ac2g" and e["ph"] == "s"}
    ends = Counter(e["id"] for e in trace["traceEvents"] if e.get("cat") == "ac2g" and e["ph"] == "f")
    assert set(ends.values()) == {1}
    assert issued <= starts


def test_host_events_nest() -> None:
    for p in (JOB, JOB.but(mid_syncs=2), JOB.but(workers=0), JOB.but(cast_gbs=1.0, pieces=20)):
        assert look("x", _trace(_run(p))["traceEvents"]).overlap == 0


def test_runtime_calls_lie_inside_the_operator_they_name() -> None:
    trace = _trace(_run(JOB.but(mid_syncs=1, pin=False, non_blocking=False)))
    ops = {e["args"]["External id"]: e for e in _of(trace, "cpu_op", "user_annotation")}
    checked = 0
    for e in _of(trace, "cuda_runtime"):
        if "External id" in e["args"]:
            op = ops[e["args"]["External id"]]
            assert op["ts"] <= e["ts"] + 0.01
            assert e["ts"] + e["dur"] <= op["ts"] + op["dur"] + 0.6, (op["name"], e["name"])
            assert op["tid"] == e["tid"]
            checked += 1
    assert checked > 100


def test_kernels_queued_before_the_window_have_no_launch() -> None:
    trace = _trace(_run(LAG))
    calls = {e["args"]["correlation"] for e in _of(trace, "cuda_runtime")}
    opened = min(e["ts"] for e in _of(trace, "user_annotation"))
    early = [e for e in _of(trace, "kernel") if e["args"]["correlation"] not in calls]
    assert len(early) > 50
    assert all("External id" not in e["args"] for e in early)
    assert all(e["ts"] + e["dur"] > opened for e in early)


def test_the_old_dialect_says_the_same() -> None:
    run = _run(JOB)
    new, old = _trace(run), _trace(run, dialect="old")
    shift = new["baseTimeNanoseconds"] / 1e3
    for now, then in (("kernel", "Kernel"), ("gpu_memcpy", "Memcpy"), ("cuda_runtime", "Runtime")):
        a = sorted((e["args"]["correlation"], e["name"], e["ts"] + shift, e["dur"]) for e in _of(new, now))
        b = sorted((e["args"]["correlation"], e["name"], e["ts"], e["dur"]) for e in _of(old, then))
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert x[:2] == y[:2]
            assert abs(x[2] - y[2]) <= 1.01
            assert abs(x[3] - y[3]) <= 1.01
    assert all(isinstance(e["ts"], int) for e in old["traceEvents"])
    assert not [e for e in old["traceEvents"] if e.get("cat") in ("cpu_op", "kernel", "ac2g")]
    names = Counter(
        e["name"] for e in _of(new, "cpu_op", "user_annotation") if not e["name"].startswith("autograd")
    )
    assert names == Counter(e["name"] for e in _of(old, "Operator"))


def test_a_lean_window_has_no_shapes_and_no_memory() -> None:
    run = _run(JOB)
    first = JOB.warm + JOB.window_at
    data = json.loads(
        gzip.decompress(trace_bytes(run, window=Window(first, first + 1, shapes=False, memory=False)))
    )
    steps = [e["name"] for e in _of(data, "user_annotation") if e["name"].startswith("ProfilerStep")]
    assert steps == [f"ProfilerStep#{first}", f"ProfilerStep#{first + 1}"]
    assert not any("Input Dims" in e["args"] for e in _of(data, "cpu_op"))
    assert not [e for e in data["traceEvents"] if e["name"] == "[memory]"]


def test_the_allocators_peak_is_the_truths() -> None:
    run = _run(JOB)
    peak = max(e["args"]["Total Allocated"] for e in _trace(run)["traceEvents"] if e["name"] == "[memory]")
    assert peak == pytest.approx(run.truth.to_json()["peak_mem_bytes"], rel=0.02)


def test_hidden_evidence_is_hidden() -> None:
    assert not _of(_trace(_run(JOB.but(hide="kernels"))), "kernel", "gpu_memcpy")
    only = _trace(_run(JOB.but(hide="host")))
    assert _of(only, "kernel")
    assert not _of(only, "cpu_op", "cuda_runtime", "user_annotation")
    unmarked = _trace(_run(JOB.but(hide="steps")))
    assert not [e for e in unmarked["traceEvents"] if e["name"].startswith("ProfilerStep")]
    graph = _trace(_run(JOB.but(graph=True)))
    assert [e for e in _of(graph, "cuda_runtime") if e["name"] == "cudaGraphLaunch"]
    assert all("gemm" not in e["name"] for e in _of(graph, "kernel"))


def test_training_on_the_cpu_has_no_gpu_events() -> None:
    trace = _trace(_run(JOB.but(device=None, pin=False, non_blocking=False, batch=32)))
    assert trace["deviceProperties"] == []
    assert not _of(trace, "kernel", "cuda_runtime", "gpu_memcpy")
    assert len({e["tid"] for e in _of(trace, "cpu_op")}) == 1


def test_the_same_run_gives_the_same_bytes() -> None:
    assert trace_bytes(_run(JOB)) == trace_bytes(_run(JOB))


@pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not here")
def test_key_sets_are_those_of_real_files() -> None:
    real = [look(f.name, load(f)) for f in sorted(REAL.glob("*.json.gz")) if f.stat().st_size < 900_000]
    assert any(current_dialect(f) for f in REAL.glob("*.json.gz"))
    simulated = [
        look(name, _trace(_run(p))["traceEvents"])
        for name, p in {
            "plain": JOB, "main": JOB.but(workers=0), "sync": JOB.but(mid_syncs=2, item=True, mallocs=1),
            "pageable": JOB.but(pin=False, non_blocking=False), "ranks": JOB.but(ranks=2), "lag": LAG,
        }.items()
    ]  # fmt: skip
    assert missing_keys([r for r in real if ("cuda_runtime", "X") in r.keys], simulated) == []
