"""Recordings that hold a little of everything, written as the recorder writes them and read back: which signals the tool
really computes, in which unit, and from what."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.bundlekit import MS, START, Run, cpu_trace, lines
from tests.tracekit import ALL_REDUCE, GEMM, MAIN, PID, POINTWISE, V100, WORKERS, Loop, Trace
from tracelens.diagnose.fromlogs import log_signals
from tracelens.diagnose.judge import judge_ranks
from tracelens.diagnose.load import load_run
from tracelens.diagnose.rules import load_rules
from tracelens.ingest.discover import discover
from tracelens.signals.signal import Signals

FLAGS = {"anomaly": False, "cudnn_benchmark": True, "cudnn_enabled": True, "deterministic": False}
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage3"
LAYOUT = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>"
_STEP_MS = 60.0
_GB = 1_000_000_000


@cache
def produced() -> dict[str, tuple[str | None, str]]:
    """``{signal: (unit, source)}`` of every signal that has a value in one of the recordings."""
    found: dict[str, tuple[str | None, str]] = {}
    rules = load_rules()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (
            _workers(folder / "a"),
            _main_process(folder / "b"),
            _cpu(folder / "c"),
            _logs(folder / "d"),
            _ranks(folder / "e"),
        ):
            run = discover([path])
            loaded = load_run(run)
            every: list[Signals] = (
                [one.signals for one in judge_ranks(loaded.ranks, rules)]
                if loaded.ranks
                else [log_signals(run)]
            )
            for signals in every:
                for signal in signals.values():
                    if signal.value is not None:
                        found.setdefault(signal.name, (signal.unit, signal.source or ""))
    return found


def busy_trace(first: int = 12, late: float = 0.0) -> Trace:
    """Steps of a job with two ranks that does everything the rules look for; ``late`` us are added before its collectives."""
    loop = Loop(
        steps=8, first=first, load_us=15_000, pinned=False, copy_us=900, copy_bytes=6_000_000, wait=True, iterator=WORKERS,
        kernels=[(GEMM, 500), (POINTWISE, 80), (CONVOLUTION, 900), (LAYOUT, 100)] * 4, python_us=4000,
        slow=lambda step: 30_000.0 if step == 6 else 0.0,
    )  # fmt: skip
    out = loop.trace()
    out.metadata |= {
        "deviceProperties": [V100, {**V100, "id": 1}], "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "baseTimeNanoseconds": START + int(first * _STEP_MS * MS),
    }  # fmt: skip
    for step in [e for e in out.events if str(e.get("name", "")).startswith("ProfilerStep")]:
        _extras(out, step["ts"] + 16_000, step["ts"] + step["dur"] - 3_000, late)
    return out


def _extras(out: Trace, early: float, end: float, late: float) -> None:
    """Of one step: before its first kernel, and near its end."""
    out.call("cudaMalloc", early, early + 90)
    out.call("cudaHostAlloc", early + 100, early + 400)
    out.op("aten::cudnn_convolution", early + 420, early + 900)
    out.call("cudaEventSynchronize", early + 500, early + 860)
    out.op("backend_compile (dynamo_timed)", early + 950, early + 1200)
    out.op("aten::to", early + 1250, early + 1500)
    out.op("autograd::engine::evaluate_function: MulBackward0", end, end + 60)
    out.op("aten::isnan", end + 2, end + 12)
    out.op("aten::item", end + 14, end + 50)
    out.call("cudaDeviceSynchronize", end + 100, end + 160)
    out.copy(end + 200, end + 900, 9_000_000, kind="DtoH (Device -> Pinned)")
    for number, elements in enumerate((2, 2_000_000, 4_000_000)):
        out.correlation += 1
        at = end + 950 + 500 * number
        out.call("cudaLaunchKernel", at - 20, at - 16, MAIN, out.correlation)
        told: dict[str, Any] = {
            "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
            "dtype": "Float",
        }  # fmt: skip
        out.kernel(ALL_REDUCE, at + late, at + 300 + elements / 40_000, out.correlation, **told)


def _workers(folder: Path) -> Path:
    """Two workers, two ranks, a GPU, host and GPU samples, and a second loader that starts its workers anew."""
    run = Run(
        steps=80, step_ms=_STEP_MS, wait_ms=15, workers=2, service_ms=40, cpu_ms=20, per_epoch=40, window=range(12, 20),
        trace=busy_trace(), slow=lambda step: 60.0 if step in (25, 35, 45, 55) else 0.0,
        loader={"dataset_module": "datasets.arrow_dataset", "dataset_format": "python", "getitems": False,
                "sampler": "RandomSampler", "storage": {"mount": "/data", "type": "nfs4"}, "persistent_workers": False},
    )  # fmt: skip
    path = run.write(folder)
    _enrich(path / "rank0")
    lines(path / "host.jsonl", [_host(i) for i in range(-90, 120)])
    lines(path / "gpu.jsonl", [_gpu(i) for i in range(-5, 200)])
    points = {
        "schema": "tracelens.loader-points/1", "ts": START, "loader": 0, "num_workers": 2, "cores": 8, "points": [
            {"num_workers": n, "ms_per_batch": ms, "batches": 50, "epochs": 1, "seconds": 5.0} for n, ms in ((0, 30.0), (2, 20.0))
        ], "skipped": [],
    }  # fmt: skip
    (path / "rank0" / "loader-points.json").write_text(json.dumps(points))
    return path


def _enrich(rank: Path) -> None:
    """What the step, loader and worker lines of the recorder hold beyond those of ``bundlekit``."""
    _change(rank / "process.jsonl", lambda line: line | {
        "world_size": 2, "flags": FLAGS, "platform": "linux", "frameworks": {"numpy": "2.1"},
        "device": {"index": 0, "name": "Tesla V100", "total_memory": 16 * _GB},
    })  # fmt: skip
    _change(rank / "steps.jsonl", lambda line: line | {
        "gc_ms": 9.0 if line["step"] % 20 == 3 else 0.2, "gc_runs": 2, "mem_peak": 4 * _GB + line["step"] * 1_000_000,
        "mem_reserved": 5 * _GB, "rss": 2 * _GB,
    })  # fmt: skip

    def loader(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] == "iter":
            return line | {"sampler_ms": 30.0, "sampler_bytes": 80_000_000}
        if line["event"] == "batch":
            return line | {
                "sampler_ms": 0.4,
                "dtypes": {"float32": 990_000, "int64": 10_000},
                "queue_depth": 1,
            }
        return line

    _change(rank / "loader.jsonl", loader)
    other = {"loader": 1, "epoch": 0, "ts": START, "training": False}
    with (rank / "loader.jsonl").open("a") as file:
        for line in (
            {"event": "loader", **other, "dataset": "Images", "num_workers": 2, "persistent_workers": False},
            {"event": "iter", **other, "start_ms": 200.0, "workers": 2},
            {
                "event": "batch",
                **other,
                "t0": START,
                "t1": START + 90 * MS,
                "samples": 32,
                "bytes": 1_000_000,
            },
        ):
            file.write(json.dumps(line) + "\n")
    for worker in rank.glob("worker-*.jsonl"):
        _change(worker, lambda line: line | {"samples": 32, "rchar": 2_000_000, "syscr": 80, "read_bytes": 1_500_000,
                                             "slowest_sample_ms": 2.0})  # fmt: skip


def _change(path: Path, change: Any) -> None:
    lines(path, [change(json.loads(line)) for line in path.read_text().splitlines()])


def _host(second: int) -> dict[str, Any]:
    """A sample each second, with a crowd of preparing processes before the first step and a leak."""
    processes = [
        {"pid": PID, "name": "python", "role": "main", "rank": 0, "cpu_percent": 90.0, "num_threads": 12,
         "rss": 2 * _GB + max(second, 0) * 9_000_000, "read_bytes": 4_000_000 * (second + 90), "run_delay_ms": 50.0,
         "cpu_affinity": list(range(8))},
    ]  # fmt: skip
    processes += [
        {"pid": PID + 1 + number, "name": "python", "role": "worker" if second >= 0 else "other", "rank": 0, "rss": _GB,
         "cpu_percent": 60.0 + 30 * number, "num_threads": 16, "read_bytes": 8_000_000 * (second + 90),
         "run_delay_ms": 80.0 if second >= 0 else 4000.0, "cpu_affinity": list(range(8)), "majflt": 0}
        for number in range(2 if second >= 0 else 8)
    ]  # fmt: skip
    return {
        "ts": START + int(second * 1e9), "system_cpu_percent": 70.0, "cpu_count": 8, "iowait_percent": 20.0, "load1": 6.0,
        "mem_available": 40 * _GB - max(second, 0) * 10_000_000, "mem_total": 64 * _GB, "swap_used": 0.0,
        "dev_shm_used": 50_000_000, "dev_shm_total": 64_000_000, "psi": {"cpu": 1.0, "io": 20.0, "memory": 1.0},
        "storage": [{"fstype": "nfs4", "network": True}],
        "cgroup": {"quota_cores": 8.0, "nr_periods": 10 * (second + 90), "nr_throttled": second + 90}, "processes": processes,
    }  # fmt: skip


def _gpu(tick: int) -> dict[str, Any]:
    return {
        "ts": START + int(tick * 5e7), "uuid": "GPU-1", "index": 0, "name": "Tesla V100", "rank": 0, "utilization_gpu": 0.9,
        "utilization_memory": 0.4, "memory_used": 9 * _GB, "memory_total": 16 * _GB, "power_w": 200.0, "power_limit_w": 250.0,
        "temperature_c": 70, "sm_clock_mhz": 1300.0 + 10 * (tick % 20), "sm_clock_max_mhz": 1530.0, "mem_clock_mhz": 877.0,
        "throttle_reasons": 4 if tick % 3 else 0x40, "pcie_gen": 3, "pcie_gen_max": 3, "pcie_width": 16, "pcie_width_max": 16,
        "gpm": {"dram_bw": 0.4}, "foreign_pids": [7],
    }  # fmt: skip


def _main_process(folder: Path) -> Path:
    """Batches made in the training process, on a GPU."""
    path = Run(
        steps=40, step_ms=_STEP_MS, wait_ms=20, workers=0, window=range(12, 20),
        trace=Loop(steps=8, first=12, load_us=20_000).trace(),
    ).write(folder)  # fmt: skip
    lines(path / "host.jsonl", [_host(i) for i in range(60)])
    return path


def _cpu(folder: Path) -> Path:
    return cpu_trace().write(folder / "trace.json")


def _logs(folder: Path) -> Path:
    """A bundle that never reached a window."""
    path = Run(steps=40, step_ms=_STEP_MS, wait_ms=15, workers=2, per_epoch=20).write(folder)
    _enrich(path / "rank0")
    return path


def _ranks(folder: Path) -> Path:
    for rank in range(2):
        trace = busy_trace(late=0.0 if rank else 200.0)
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        trace.write(folder / f"rank{rank}" / "trace.json")
    return folder
