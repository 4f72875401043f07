"""Families of host, kernel and communication causes, and of runs with nothing to win."""

from __future__ import annotations

import math

from benchmarks.simulator import models
from benchmarks.simulator.drawing import Draw, draw_sizes, job, plain_loader
from benchmarks.simulator.engine import CPU_UNION, simulate_step_us
from benchmarks.simulator.family_data import input_size
from benchmarks.simulator.params import Params
from benchmarks.simulator.plan import build
from benchmarks.simulator.registry import family_of

# the host


@family_of("host.launch_bound", "dispatch of many short kernels")
def _launch(d: Draw) -> Params:
    p, _g, h = job(d, "light", 0.2, 4, device=d.kind("fast"))
    return plain_loader(d, p, h, d.uniform(0.1, 0.4)).but(dispatch=d.uniform(1.0, 2.5))


@family_of("host.python", "Python between operators")
def _python(d: Draw) -> Params:
    p, _g, h = job(d, "all", 0.5, 12)
    us = d.log(40, 250)
    return plain_loader(d, p, h * 3, d.uniform(0.1, 0.3)).but(python_us=us)


@family_of("host.optimizer", "an optimizer that launches every parameter by itself")
def _optimizer(d: Draw) -> Params:
    p, g, _h = job(d, "all", 1, 12)
    p = p.but(optimizer_impl="single", optimizer="AdamW", dispatch=d.uniform(0.9, 1.6))
    return plain_loader(d, p, max(g, float(build(p).base.sum()) / 1e3), d.uniform(0.1, 0.3)).but(
        optimizer_impl="single", optimizer="AdamW", dispatch=p.dispatch
    )


@family_of("host.cast", "dtype or layout conversion on the host before the copy")
def _cast(d: Draw) -> Params:
    p, _g, _h = job(d, "images", 3, 40, ("fp16", "bf16"))
    return p.but(cast_gbs=d.log(0.3, 2.0))


@family_of("host.sync", "synchronisations inside the step idle the GPU")
def _sync(d: Draw) -> Params:
    p, _g, _h = job(d, "all", 2, 20)
    return p.but(
        mid_syncs=d.whole(2, 10),
        item=d.pick(True, False),
        device_sync=d.pick(True, False, False),
        dispatch=d.uniform(1.0, 1.6),
    )


@family_of("host.allocator", "driver allocations and frees in every step")
def _allocator(d: Draw) -> Params:
    p, _g, _h = job(d, "all", 3, 30)
    return p.but(mallocs=d.whole(3, 16), malloc_us=d.log(150, 900))


@family_of("host.periodic_stall", "checkpoint, validation, logging or collection at intervals")
def _stall(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 40)
    every = d.pick(4, 7, 8)
    return p.but(
        stall_every=every,
        stall_ms=d.uniform(0.6, 4.0) * every * max(g, h) * 0.6,
        traced=2 * every,
        stall_kind=d.pick("checkpoint", "validation", "logging", "gc"),
    )


@family_of("host.startup", "start-up, compilation or autotuning fills the window")
def _startup(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 40)
    n = d.pick(3, 4)
    return p.but(
        warm=1,
        horizon=n,
        traced=n,
        window_at=0,
        startup_steps=d.pick(n - 1, n),
        startup_ms=d.log(5, 40) * max(g, h),
        init_ms=1.0,
        fork_ms=0.1,
    )


@family_of("host.cpu_compute", "no GPU: the operators are the limit")
def cpu(d: Draw) -> Params:
    template = d.kind("all")
    p = Params(
        template=template,
        sizes=draw_sizes(d, template),
        device=None,
        dtype="fp32",
        batch=d.pick(4, 8, 16),
        pin=False,
        non_blocking=False,
    )
    ms = float(build(p).base.sum()) / 1e3 * 0.4
    cores = d.pick(4, 8, 16)
    p = plain_loader(d, p, ms, d.uniform(0.05, 0.3), d.pick(1, 2, 4))
    return p.but(machine_cores=cores, main_threads=max(1, cores - p.workers), pin=False, non_blocking=False)


# kernels


def saturated(
    d: Draw, group: str, dtypes: tuple[str, ...], low: float = 8, high: float = 60
) -> tuple[Params, float]:
    p, g, _h = job(d, group, low, high, dtypes, ratio=(1.6, math.inf))
    # some read the loss every step, others let the host run ahead
    return plain_loader(d, p, g, d.uniform(0.15, 0.5)).but(item=d.pick(True, False)), g


@family_of("compute.arithmetic", "kernels limited by arithmetic", "compute.arithmetic", "healthy")
def _arithmetic(d: Draw) -> Params:
    return saturated(d, "matmul", ("fp16", "bf16", "tf32"))[0]


@family_of("healthy", "GPU busy, kernels in their right form", "healthy", "compute.arithmetic")
def _healthy(d: Draw) -> Params:
    return saturated(d, "matmul", ("fp16", "bf16"), 10, 60)[0].but(optimizer_impl=d.pick("foreach", "fused"))


@family_of("compute.precision", "matmul-heavy in fp32 without TF32 or AMP")
def _precision(d: Draw) -> Params:
    return saturated(d, "matmul", ("fp32",), 10, 80)[0]


@family_of("compute.underfilled", "kernels too small to fill the GPU; a larger batch helps")
def _underfilled(d: Draw) -> Params:
    p, g, _ = job(d, "recurrent", 1.0, 15, ratio=(1.1, math.inf), underfilled=0.55)
    return plain_loader(d, p, g, d.uniform(0.1, 0.4), 4).but(
        optimizer_impl="fused", python_us=d.uniform(2, 5)
    )


@family_of("compute.throttled", "clocks cut by heat, power or a cap")
def _throttled(d: Draw) -> Params:
    p = saturated(d, "matmul", ("fp16", "bf16", "tf32", "fp32"))[0]
    return p.but(clock=d.uniform(0.4, 0.75), throttle_from=d.pick(0, 0, 25))


@family_of("compute.shared_gpu", "another process on the GPU")
def _shared(d: Draw) -> Params:
    return saturated(d, "matmul", ("fp16", "bf16", "tf32"), 6, 40)[0].but(shared_gpu=d.uniform(0.4, 1.2))


@family_of("memory.bandwidth", "kernels limited by device memory")
def _memory(d: Draw) -> Params:
    return saturated(d, "norms", ("fp32", "tf32", "fp16", "bf16"))[0]


# ranks


@family_of("communication.bandwidth", "collectives exposed, ranks arrive together")
def _bandwidth(d: Draw) -> Params:
    p, g, _h = job(d, "matmul", 4, 40)
    ranks = d.pick(2, 2, 4)
    net = build(p).net
    size = models.fixed_bytes(net, "SGD") - (96 << 20)
    us = d.uniform(0.8, 2.0) * g * 1e3
    return p.but(
        ranks=ranks,
        busbw_gbs=max(0.2, size / 4 / us / 1e3 * 2 * (ranks - 1) / ranks * 2),
        machine_cores=64 * ranks,
        bucket_mb=d.pick(5.0, 25.0),
    )


@family_of("communication.straggler", "one rank arrives late")
def _straggler(d: Draw) -> Params:
    p, g, h = job(d, "matmul", 5, 40)
    ranks = d.pick(2, 4)
    kind = d.pick("loader", "throttle", "host")
    share = d.uniform(0.4, 0.8) if kind == "loader" else 0.3
    p = plain_loader(d, p, max(g, h), share, d.pick(2, 4))
    x = {"loader": d.uniform(2.5, 5.0), "throttle": d.uniform(1.5, 2.5), "host": d.uniform(2.5, 6.0)}[kind]
    return p.but(
        ranks=ranks, straggler=kind, straggle_x=x, machine_cores=64 * ranks, busbw_gbs=d.uniform(40, 150)
    )


# nothing to win, nothing to see


@family_of(
    "balanced", "no class saves 8 %: the GPU and the host, or the GPU and the loader, keep the same pace"
)
def _balanced(d: Draw) -> Params:
    if d.pick(True, False):
        return _level_host(d)
    p, g, _ = job(d, "all", 6, 40, ("fp16", "bf16"), ratio=(1.3, math.inf))
    p = plain_loader(d, p, g, 1.0, d.pick(2, 3, 4, 6)).but(loader_sigma=0.02)
    gpu = simulate_step_us(p.but(sample_cpu_ms=0.0, sample_wait_ms=0.0, collate_ms=0.0)) / 1e3
    service = gpu * p.workers * d.uniform(0.96, 1.03)
    rest = service - p.collate_ms - p.sample_wait_ms * p.batch
    rest -= input_size(p) / 1e9 * p.ipc_us_mb + input_size(p) * 2 / 12e6
    return p.but(sample_cpu_ms=max(rest, 0.01) / p.batch)


def _level_host(d: Draw) -> Params:
    """Python between operators takes as long as the kernels: whichever is free, the other sets the pace."""
    p, _, _ = job(d, "all", 4, 25, ratio=(1.3, math.inf))
    target = simulate_step_us(p, CPU_UNION) * d.uniform(0.96, 1.02)
    kernels_free = frozenset({"gpu_compute", "gpu_memory", "transfer"})
    slow, fast = 200.0, 0.0
    at_slow, at_fast = (simulate_step_us(p.but(python_us=us), kernels_free) for us in (slow, fast))
    if at_slow <= at_fast:
        raise LookupError("Python between operators costs this job nothing")
    return p.but(python_us=max(1.0, fast + (target - at_fast) / (at_slow - at_fast) * (slow - fast)))


@family_of("insufficient_evidence", "no kernels were recorded, or nothing but kernels")
def _evidence(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 40)
    hide = d.pick("kernels", "host")
    if hide == "host":
        p = plain_loader(d, p, max(g, h), d.uniform(1.5, 3.0), 2)
    return p.but(hide=hide)
