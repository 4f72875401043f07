"""NVML and host timelines of a simulated run: what nvidia-smi and a process sampler would have written.

The job starts up for a while before the first step (GPU idle), and goes on at its steady load after the last one,
so that even short runs have samples.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.simulator.engine import Rank
from benchmarks.simulator.run import Run

INTERVAL_US = 100_000.0
MARGIN_US = 1_000_000.0


@dataclass(slots=True)
class GpuSample:
    """One NVML sample."""

    us: float
    util: float
    mem_util: float
    used: int
    power: float
    clock: int
    reasons: int


def _times(run: Run) -> np.ndarray:
    end = max(r.logs[-1].end for r in run.sim.ranks)
    return np.arange(-MARGIN_US, end + MARGIN_US, INTERVAL_US)


def _share(
    starts: np.ndarray, ends: np.ndarray, weights: np.ndarray, a: float, b: float, before: float, after: float
) -> float:
    """Weighted share of ``[a, b]`` covered by the intervals; ``before`` the first and ``after`` the last as given."""
    if len(starts) == 0 or a >= ends[-1]:
        return after
    if b <= starts[0]:
        return before
    overlap = np.clip(np.minimum(ends, b) - np.maximum(starts, a), 0.0, None)
    inside = min(b, float(ends[-1])) - max(a, float(starts[0]))
    return float((overlap * weights).sum() / inside) if inside > 0 else after


def _busy(r: Rank) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step intervals by completion and the share of each in which the GPU ran something."""
    done = np.maximum.accumulate(np.array(r.done))
    starts = np.concatenate(([min(0.0, float(done[0]))], done[:-1]))
    length = np.maximum(done - starts, 1e-3)
    busy = np.array([log.busy_us for log in r.logs])
    return starts, done, np.clip(busy / length, 0.0, 1.0)


def gpu_samples(run: Run, rank: int) -> list[GpuSample]:
    """NVML samples of the rank's GPU; empty without a GPU."""
    p, dev = run.params, run.sim.dev
    if dev is None:
        return []
    r = run.sim.ranks[rank]
    rng = np.random.default_rng([p.seed, 104729, rank])
    starts, ends, share = _busy(r)
    steady = slice(min(p.warm, len(share) - 1), None)
    mean = float(np.average(share[steady], weights=(ends - starts)[steady] + 1e-9))
    plan = r.plan
    total = max(plan.kernel_us.sum(), 1.0)
    memory = plan.memory_us / total
    used = int((plan.fixed + plan.activations) * 1.12) + (420 << 20)
    if p.shared_gpu:
        used += dev.memory // 4  # the neighbour's
    out = []
    warm = run.sim.p.throttle_from
    throttle_at = r.logs[min(warm, len(r.logs) - 1)].begin if p.clock < 1.0 else np.inf
    clock_ratio = p.clock
    if p.straggler == "throttle" and rank == 1 % p.ranks:
        throttle_at, clock_ratio = -np.inf, 1.0 / p.straggle_x
    if p.clock < 1.0 and p.throttle_from == 0:
        throttle_at = -np.inf
    for t in _times(run):
        s = _share(starts, ends, share, t - INTERVAL_US, t, 0.0, mean)
        # NVML counts any kernel at all within a sub-interval as busy: waiting collectives too
        util = min(1.0, s * 1.01 + (0.02 if s > 0.02 else 0.0))
        if p.ranks > 1:
            util = max(util, min(1.0, s + 0.02))
        if p.shared_gpu:
            util = 1.0  # the neighbour runs whenever we do not
        throttled = t >= throttle_at
        clock = int(dev.clock_mhz * (clock_ratio if throttled else 1.0) / 15) * 15
        idle = util < 0.02
        reasons = 0x1 if idle else (0x20 if throttled else 0x0)
        power = (
            dev.tdp * (0.14 + 0.78 * s * (clock_ratio if throttled else 1.0)) * float(rng.normal(1.0, 0.015))
        )
        out.append(
            GpuSample(
                float(t),
                util,
                min(1.0, s * (0.08 + 0.9 * memory)) * float(rng.normal(1, 0.02)),
                min(used, dev.memory - (90 << 20)),
                power,
                clock,
                reasons,
            )
        )
    return out


def gpu_link(run: Run) -> tuple[int, int, int, int]:
    """PCIe generation and width now, and what GPU and slot allow."""
    p, dev = run.params, run.sim.dev
    assert dev is not None
    return min(p.pcie_gen or 9, dev.pcie_gen), dev.pcie_gen, p.pcie_width, 16


def gpu_uuid(run: Run, rank: int) -> str:
    """A stable made-up UUID."""
    tail = rank + 16 * (run.params.seed % 4096)
    return f"GPU-{run.params.seed * 48271 % 2**32:08x}-7f1c-4b2e-9a35-{tail:012x}"


def gpu_csv(run: Run, rank: int) -> str:
    """The samples as ``nvidia-smi --query-gpu=... --format=csv`` prints them."""
    dev = run.sim.dev
    assert dev is not None
    gen, gmax, width, wmax = gpu_link(run)
    lines = [
        "timestamp, index, uuid, utilization.gpu [%], utilization.memory [%], memory.used [MiB], "
        "memory.total [MiB], "
        "power.draw [W], clocks.sm [MHz], pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, "
        "pcie.link.width.max, clocks_event_reasons.active"
    ]
    for s in gpu_samples(run, rank):
        when = datetime.datetime.fromtimestamp(run.ns(s.us) // 1_000_000 / 1e3, datetime.UTC)
        lines.append(
            f"{when:%Y/%m/%d %H:%M:%S}.{when.microsecond // 1000:03d}, {rank}, {gpu_uuid(run, rank)}, "
            f"{s.util * 100:.0f} %, "
            f"{s.mem_util * 100:.0f} %, {s.used >> 20} MiB, {dev.memory >> 20} MiB, {s.power:.2f} W, "
            f"{s.clock} MHz, "
            f"{gen}, {gmax}, {width}, {wmax}, 0x{s.reasons:016x}"
        )
    return "\n".join(lines) + "\n"


def gpu_jsonl(run: Run, rank: int) -> list[dict[str, Any]]:
    """The samples in the bundle's form."""
    p, dev = run.params, run.sim.dev
    gen, gmax, width, wmax = gpu_link(run)
    assert dev is not None
    rng = np.random.default_rng([p.seed, 15485863, rank])
    rows = []
    plan = run.sim.ranks[rank].plan
    total = max(plan.kernel_us.sum(), 1.0)
    size = run.sim.ranks[rank].loader.batch_bytes
    step_s = run.sim.step_us / 1e6
    rx = 0
    for s in gpu_samples(run, rank):
        rx += int(size / step_s * INTERVAL_US / 1e6)
        gpm = None
        if dev.cc >= (9, 0):
            gpm = {
                "sm_util": round(s.util * float(rng.uniform(0.9, 1.0)), 3),
                "sm_occupancy": round(0.4 * s.util, 3),
                "tensor": round(0.5 * s.util * plan.compute_us / total, 3),
                "dram_bw": round(s.util * (0.1 + 0.75 * plan.memory_us / total), 3),
            }
        rows.append(
            {
                "ts": run.ns(s.us),
                "uuid": gpu_uuid(run, rank),
                "index": rank,
                "name": dev.name,
                "rank": rank,
                "utilization_gpu": round(s.util, 2),
                "utilization_memory": round(max(s.mem_util, 0.0), 2),
                "memory_used": s.used,
                "memory_total": dev.memory,
                "power_w": round(s.power, 2),
                "power_limit_w": float(dev.tdp),
                "temperature_c": 84 if s.reasons & 0x20 else 62,
                "sm_clock_mhz": s.clock,
                "sm_clock_max_mhz": dev.clock_mhz,
                "mem_clock_mhz": 1593,
                "throttle_reasons": s.reasons,
                "pcie_gen": gen,
                "pcie_gen_max": gmax,
                "pcie_width": width,
                "pcie_width_max": wmax,
                "pcie_rx_bytes": rx,
                "pcie_tx_bytes": rx // 50,
                "gpm": gpm,
                "foreign_pids": [4242] if p.shared_gpu else [],
            }
        )
    return rows


def host_rows(run: Run, rank: int, bundle: bool = False) -> list[dict[str, Any]]:
    """Host samples: the training process and its workers; ``bundle`` adds the recorder's extra fields."""
    p = run.params
    r = run.sim.ranks[rank]
    rng = np.random.default_rng([p.seed, 32452843, rank])
    pid = run.pid(rank)
    log = [f for f in r.loader.log if f.end > f.begin]
    begins, ends = np.array([f.begin for f in log]), np.array([f.end for f in log])
    workers = np.array([f.worker for f in log])
    rate = np.array([min(1.0, (f.cpu + f.moved) / max(f.end - f.begin, 1e-3)) for f in log])
    starts, step_ends = np.array([x.begin for x in r.logs]), np.array([x.end for x in r.logs])
    waiting = np.array([x.wait for x in r.logs]) if p.workers else np.zeros(len(r.logs))
    drained = np.array([max(0.0, x.end - x.begin) for x in r.logs])
    host_busy = np.clip(1.0 - waiting / np.maximum(drained, 1.0), 0.05, 1.0)
    mean_main = float(host_busy.mean())
    cores = list(range(min(p.machine_cores, p.affinity or p.machine_cores)))
    main_threads = p.main_threads if p.workers == 0 or p.device is None else 1
    rows: list[dict[str, Any]] = []
    read = 524288
    worker_read = np.zeros(p.workers)
    span = max(float(step_ends[-1] - starts[0]), 1.0)
    per_batch = p.batch * p.sample_kb * 1024.0
    throttled = 0
    for t in _times(run):
        a = t - INTERVAL_US
        main = _share(starts, step_ends, host_busy, a, t, 1.0, mean_main)
        if main_threads > 1:
            main *= min(main_threads, p.cores)
        busy = []
        for w in range(p.workers):
            mine = workers == w
            if not mine.any():
                busy.append(0.0)
                continue
            mean = float(((ends - begins) * rate)[mine].sum() / span)
            share = _share(begins[mine], ends[mine], rate[mine], a, t, 0.0, min(mean, 1.0))
            busy.append(
                min(share, 1.0)
                * (min(p.worker_threads, p.cores / max(p.workers, 1)) if p.worker_threads > 1 else 1.0)
            )
            worker_read[w] += per_batch * INTERVAL_US / max(run.sim.step_us * p.workers, 1.0)
        waited = sum(f.waited for f in log) / span
        total = (main + sum(busy)) * p.ranks
        demand = sum(1 for b in busy if b > 0.05) * p.worker_threads + main_threads
        delay = max(0.0, 1.0 - p.cores / max(demand, 1.0)) * INTERVAL_US / 1e3
        noise = rng.normal(1.0, 0.015, p.workers + 2)
        processes = [_process(pid, "main", main * noise[0], int(3.1e9), 38 + main_threads, cores, read)]
        for w, b in enumerate(busy):
            processes.append(
                _process(
                    pid + 200 + w,
                    f"worker{w}",
                    b * noise[w + 2],
                    int(6.97e8),
                    p.worker_threads + 1,
                    cores,
                    int(worker_read[w]),
                )
            )
        row: dict[str, Any] = {
            "ts": run.ns(float(t)),
            "system_cpu_percent": round(min(100.0, 100.0 * total / p.machine_cores + 0.6), 1),
            "cpu_count": p.machine_cores,
            "iowait_percent": round(min(60.0, 100.0 * waited / p.machine_cores * float(noise[1])), 1),
            "processes": processes,
        }
        if bundle:
            if p.quota and demand > p.quota:
                throttled += int(min(INTERVAL_US / 1e3, (demand - p.quota) / p.quota * 20.0))
            for proc, role in zip(processes, ["main"] + ["worker"] * p.workers, strict=True):
                proc |= {
                    "role": role,
                    "rank": rank,
                    "run_delay_ms": round(delay, 2),
                    "majflt": 0,
                    "ctx_involuntary": int(delay * 3),
                }
            row |= {
                "load1": round(total + (demand - p.cores if demand > p.cores else 0.0), 2),
                "mem_available": 48 << 30,
                "mem_total": 64 << 30,
                "swap_used": 0,
                "dev_shm_used": p.workers * (96 << 20),
                "dev_shm_total": 32 << 30,
                "psi": {
                    "cpu": round(min(99.0, delay), 1),
                    "io": round(min(99.0, 100 * min(waited, 1.0)), 1),
                    "memory": 0.0,
                },
                "cgroup": {
                    "quota_cores": p.quota,
                    "throttled_ms": throttled,
                    "nr_throttled": throttled // 20,
                    "nr_periods": len(rows),
                    "memory_current": 12 << 30,
                    "memory_max": None,
                },
            }
        rows.append(row)
    return rows


def _process(
    pid: int, name: str, load: float, rss: int, threads: int, cores: list[int], read: int
) -> dict[str, Any]:
    return {
        "pid": pid,
        "name": name,
        "cpu_percent": round(max(load, 0.0) * 100, 1),
        "rss": rss,
        "num_threads": threads,
        "cpu_affinity": cores,
        "read_bytes": read,
    }
