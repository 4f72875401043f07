"""Writing a run: a folder of traces with side files, or a whole bundle in the recorder's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.simulator.kineto import write_trace_file
from benchmarks.simulator.run import Run
from benchmarks.simulator.timelines import gpu_csv, gpu_jsonl, gpu_uuid, host_rows
from benchmarks.simulator.trace_writer import Window


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, default=float) + "\n")


def loader_settings(run: Run) -> dict[str, Any]:
    """The ``--loader`` object for bare traces."""
    p = run.params
    return {
        "batch_size": p.batch,
        "num_workers": p.workers,
        "pin_memory": p.pin,
        "prefetch_factor": p.prefetch if p.workers else None,
        "persistent_workers": p.persistent and p.workers > 0,
        "dataset_len": min(p.epoch_batches, 1000) * p.batch * p.ranks,
        "cpu_count": p.machine_cores,
    }


def write_trace(run: Run, directory: Path | str, dialect: str = "new", truth: bool = True) -> Path:
    """Traces with ``loader.json gpu.csv host.jsonl`` (several ranks: in ``rank*/``) and ``truth.json``."""
    out = Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    p = run.params
    if not p.custom_loader:
        _json(out / "loader.json", loader_settings(run))
    for r in range(p.ranks):
        where = out / f"rank{r}" if p.ranks > 1 else out
        where.mkdir(exist_ok=True)
        if p.ranks > 1:
            _json(where / "loader.json", loader_settings(run))
        write_trace_file(run, where / f"rank{r}.pt.trace.json.gz", r, dialect)
        if run.sim.dev:
            (where / "gpu.csv").write_text(gpu_csv(run, r))
        _lines(where / "host.jsonl", host_rows(run, r))
    if truth:
        write_truth(run, out)
    return out


def write_truth(run: Run, directory: Path | str) -> None:
    """``truth.json`` beside the run."""
    _json(Path(directory) / "truth.json", {**run.truth.to_json(), "rejected_draws": run.rejected})


def write_bundle(run: Run, directory: Path | str, truth: bool = True) -> Path:
    """A bundle: the step and loader logs of the whole run, two profiler windows, timelines, environment."""
    out = Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    p = run.params
    start = run.ns(-1_000_000.0)
    _json(
        out / "bundle.json",
        {
            "schema": "tracelens.bundle/1",
            "id": f"simulated-{p.family}-{p.seed}",
            "created_ns": start,
            "tool": {"version": "0.1.0"},
            "command": ["python", "train.py"],
            "options": {"set": [], "stop_after": None, "trace": True, "stacks": False},
            "git": {"commit": None, "dirty": None},
            "redacted": True,
            "job": {"slurm_job_id": None, "slurm_step_id": None, "launch": None, "world_size_hint": p.ranks},
        },
    )
    events: list[dict[str, Any]] = [{"ts": start, "event": "start"}]
    host: list[dict[str, Any]] = []
    gpu: list[dict[str, Any]] = []
    for r in range(p.ranks):
        imported = {"ts": run.ns(-600_000.0), "event": "torch", "pid": run.pid(r), "python": "3.11.9"}
        events.append({**imported, "torch": "2.8.0", "script": "train.py"})
        events.append(
            {
                "ts": run.ns(-400_000.0),
                "event": "agent",
                "pid": run.pid(r),
                "rank": r,
                "python": "3.11.9",
                "torch": "2.8.0",
            }
        )
        where = out / f"rank{r}"
        where.mkdir(exist_ok=True)
        _rank(run, r, where)
        host += host_rows(run, r, bundle=True)
        if run.sim.dev:
            gpu += gpu_jsonl(run, r)
    end = run.ns(max(x.logs[-1].end for x in run.sim.ranks) + 500_000.0)
    done = {"event": "done", "steps": len(run.sim.ranks[0].logs), "windows": 2, "source": "optimizer"}
    events += [{"ts": end, **done} for _ in range(p.ranks)]
    events += [{"ts": end, "event": "exit", "code": 0, "signal": None}, {"ts": end, "event": "end"}]
    _lines(out / "events.jsonl", events)
    _lines(out / "host.jsonl", _together(host))
    if gpu:
        _lines(out / "gpu.jsonl", sorted(gpu, key=lambda row: (row["ts"], row["index"])))
    _lines(
        out / "sampler.jsonl",
        [
            {
                "ts": start,
                "event": "start",
                "node": 0,
                "pid": 4000,
                "root": run.pid(0),
                "time_ns": start,
                "monotonic_ns": start - run.start_ns + 10**12,
                "capabilities": {"psi": True, "schedstat": True, "io": True, "children": True, "cgroup": 2},
            },
            {"event": "nvml", "available": run.sim.dev is not None, "gpus": p.ranks if run.sim.dev else 0},
            {"event": "end", "reason": "the job ended"},
        ],
    )
    if truth:
        write_truth(run, out)
    return out


def _together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One sample a time for the whole node: the ranks' processes side by side."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["ts"] in merged:
            merged[row["ts"]]["processes"] += row["processes"]
        else:
            merged[row["ts"]] = row
    return [merged[ts] for ts in sorted(merged)]


def _rank(run: Run, r: int, where: Path) -> None:
    p, rank = run.params, run.sim.ranks[r]
    dev = run.sim.dev
    cores = min(p.machine_cores, p.affinity or p.machine_cores)
    _lines(
        where / "process.jsonl",
        [
            {
                "ts": run.ns(-400_000.0),
                "pid": run.pid(r),
                "rank": r,
                "local_rank": r,
                "world_size": p.ranks,
                "python": "3.11.9",
                "torch": "2.8.0+cu128" if dev else "2.8.0+cpu",
                "cuda": "12.8" if dev else None,
                "cudnn": 91002 if dev else None,
                "driver": "570.86.10" if dev else None,
                "device": {
                    "index": r,
                    "name": dev.name,
                    "uuid": gpu_uuid(run, r),
                    "total_memory": dev.memory,
                    "sms": dev.sms,
                    "capability": list(dev.cc),
                }
                if dev
                else None,
                "cpu": {"count": p.machine_cores, "affinity": cores, "quota": p.quota, "model": "simulated"},
                "threads": {
                    "intraop": p.main_threads if p.main_threads > 1 else max(1, cores // 2),
                    "interop": max(1, cores // 2),
                    "omp": None,
                    "mkl": None,
                    "opencv": None,
                },
                "dev_shm_bytes": 32 << 30,
                "env": {},
                "flags": {
                    "tf32": p.dtype == "tf32",
                    "cudnn_benchmark": False,
                    "anomaly": False,
                    "deterministic": False,
                },
                "anchor": {
                    "time_ns": run.ns(-400_000.0),
                    "monotonic_ns": run.ns(-400_000.0) - run.start_ns + 10**12,
                },
                "frameworks": {"lightning": None, "transformers": None, "accelerate": None},
                "script": "train.py",
                "executable": "python3",
                "hip": None,
                "kernel": "6.8.0",
            }
        ],
    )
    windows = _windows(run, r, where)
    traced = {s: w["window"] for w in windows for s in range(w["first_step"], w["last_step"] + 1)}
    peak = rank.plan.fixed + rank.plan.activations
    steps = []
    for k, log in enumerate(rank.logs):
        steps.append(
            {
                "step": k,
                "t0": run.ns(log.begin),
                "t1": run.ns(log.end),
                "wait_ms": round(log.wait / 1e3, 4),
                "samples": p.batch,
                "window": traced.get(k),
                "source": "optimizer",
                "mem_peak": peak if dev else None,
                "mem_reserved": int(peak * 1.12) if dev else None,
                "rss": int(3.1e9),
                "epoch": log.epoch,
            }
        )
    _lines(where / "steps.jsonl", steps)
    if not p.custom_loader:
        _loader(run, r, where)


def _windows(run: Run, r: int, where: Path) -> list[dict[str, Any]]:
    """The traced steps as two windows: lean first, then one with shapes and memory."""
    p, rank = run.params, run.sim.ranks[r]
    first = p.warm + p.window_at
    last = min(first + p.traced, len(rank.logs)) - 1
    # as the recorder does: a long lean window for timing, two steps with shapes and memory
    cut = max(first + 1, last - 1)
    spans = [("lean", first, cut - 1), ("shapes", cut, last)] if last >= cut else [("lean", first, last)]
    windows = []
    for i, (kind, a, b) in enumerate(spans):
        path = where / f"window-{i}.pt.trace.json.gz"
        write_trace_file(run, path, r, "new", Window(a, b, shapes=kind == "shapes", memory=kind == "shapes"))
        before = [
            round((rank.logs[k].end - rank.logs[k].begin) / 1e3, 4) for k in range(max(0, first - 6), first)
        ]
        after = [
            round((rank.logs[k].end - rank.logs[k].begin) / 1e3, 4)
            for k in range(last + 1, min(last + 7, len(rank.logs)))
        ]
        windows.append(
            {
                "window": i,
                "kind": kind,
                "first_step": a,
                "last_step": b,
                "t0": run.ns(rank.logs[a].begin),
                "t1": run.ns(rank.logs[b].end),
                "file": path.name,
                "bytes": path.stat().st_size,
                "kernels": len(rank.plan.kernels) * (b - a + 1) if run.sim.dev and p.hide != "kernels" else 0,
                "missing_kernels_reason": "CUPTI is not permitted" if p.hide == "kernels" else None,
                "baseline_ms": before,
                "after_ms": after,
                "export_ms": 120.0,
                "complete": True,
                "teardown_cupti": "0",
                "steps": b - a + 1,
                "cuda": run.sim.dev is not None,
                "reason": None,
            }
        )
    _lines(where / "windows.jsonl", windows)
    return windows


def _loader(run: Run, r: int, where: Path) -> None:
    p, rank = run.params, run.sim.ranks[r]
    size = rank.loader.batch_bytes
    dtypes: dict[str, int] = {}
    for _, typ, b in rank.plan.net.inputs:
        name = {"long int": "int64", "float": "float64" if p.wide >= 2.0 else "float32"}[typ]
        dtypes[name] = dtypes.get(name, 0) + b
    rows: list[dict[str, Any]] = [
        {
            "event": "loader",
            "loader": 0,
            "ts": run.ns(0.0),
            "dataset": "ImageFolder",
            "dataset_kind": "map",
            "dataset_len": min(p.epoch_batches, 1000) * p.batch * p.ranks,
            "batch_size": p.batch,
            "num_workers": p.workers,
            "pin_memory": p.pin,
            "prefetch_factor": p.prefetch if p.workers else None,
            "persistent_workers": p.persistent and p.workers > 0,
            "drop_last": True,
            "in_order": True,
            "timeout": 0,
            "multiprocessing_context": "fork" if p.workers else None,
            "sampler": "RandomSampler",
            "batch_sampler": None,
            "collate_fn": "default_collate",
            "shards": None,
            "file": "train.py",
            "line": 41,
            "class": "DataLoader",
            "start_method": "fork" if p.workers else None,
            "worker_init_fn": False,
            "pid": run.pid(r),
            "storage": {"mount": "/data", "type": "nfs4" if p.storage_mbs < 2000.0 else "ext4"},
        }
    ]
    by_batch = {f.batch: f for f in rank.loader.log}
    for k, log in enumerate(rank.logs):
        if log.batch == 0:
            rows.append(
                {
                    "event": "iter",
                    "loader": 0,
                    "epoch": log.epoch,
                    "ts": run.ns(log.begin),
                    "start_ms": round((log.next0 - log.begin) / 1e3, 3),
                    "training": True,
                    "pid": run.pid(r),
                    "workers": p.workers,
                    "pinned": p.pin and run.sim.dev is not None,
                }
            )
        row: dict[str, Any] = {
            "event": "batch",
            "loader": 0,
            "epoch": log.epoch,
            "batch": log.batch,
            "t0": run.ns(log.next0),
            "t1": run.ns(log.next1),
            "queue_depth": log.queue if p.workers else None,
            "samples": p.batch,
            "bytes": size,
            "dtypes": dtypes,
            "pinned": p.pin and run.sim.dev is not None,
            "training": True,
        }
        f = by_batch.get(k)
        if p.workers == 0 and f:
            row |= {
                "fetch_ms": round((f.end - f.begin) / 1e3, 4),
                "cpu_ms": round((f.cpu + f.moved) / 1e3, 4),
                "collate_ms": round(p.collate_ms, 4),
            }
            if (f.end - f.begin) / 1e3 / p.batch > 0.1:
                row["slowest_sample_ms"] = round(rank.loader.slowest_ms(f.batch, -1), 4)
        rows.append(row)
        if log.batch == p.epoch_batches - 1 and k + 1 < len(rank.logs):
            ended = {
                "ts": run.ns(log.end),
                "batches": p.epoch_batches,
                "steps": p.epoch_batches,
                "training": True,
            }
            rows.append({"event": "iter_end", "loader": 0, "epoch": log.epoch, **ended})
    _lines(where / "loader.jsonl", rows)
    _workers(run, r, where)


def _workers(run: Run, r: int, where: Path) -> None:
    """One file a worker process; without persistent workers each epoch has its own."""
    p, rank = run.params, run.sim.ranks[r]
    files: dict[int, list[dict[str, Any]]] = {}

    def pid_of(worker: int, epoch: int) -> int:
        return run.pid(r) + 200 + worker + (0 if p.persistent else 50 * epoch)

    for i, (at, w, took) in enumerate(rank.loader.starts):
        pid = pid_of(w, i // p.workers)
        row = {
            "event": "worker",
            "loader": 0,
            "worker": w,
            "pid": pid,
            "ts": run.ns(at),
            "start_ms": round(took / 1e3, 3),
            "affinity": min(p.machine_cores, p.affinity or p.machine_cores),
            "threads": p.worker_threads,
        }
        files.setdefault(pid, []).append(row)
    size = rank.loader.batch_bytes
    for f in sorted((f for f in rank.loader.log if f.worker >= 0), key=lambda f: f.begin):
        log = rank.logs[f.batch]
        cpu, wall = (f.cpu + f.moved) / 1e3, (f.end - f.begin) / 1e3
        fetch: dict[str, Any] = {
            "event": "fetch",
            "loader": 0,
            "worker": f.worker,
            "batch": log.batch,
            "epoch": log.epoch,
            "t0": run.ns(f.begin),
            "t1": run.ns(f.end),
            "cpu_ms": round(cpu, 4),
            "io_wait_ms": round(f.waited / 1e3, 4),
            "read_bytes": int(p.batch * p.sample_kb * 1024),
            "run_delay_ms": round(max(0.0, wall - cpu - f.waited / 1e3), 4),
            "collate_ms": round(p.collate_ms, 4),
            "samples": p.batch,
            "bytes": size,
            "majflt": 0,
            "rss": 210000000,
        }
        if wall / p.batch > 0.1:
            fetch["slowest_sample_ms"] = round(rank.loader.slowest_ms(f.batch, f.worker), 4)
        files.setdefault(pid_of(f.worker, log.epoch if not p.persistent else 0), []).append(fetch)
    for pid, rows in files.items():
        _lines(where / f"worker-{pid}.jsonl", rows)
