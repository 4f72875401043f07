"""Decoys: runs that look like one cause and are another."""

from __future__ import annotations

import math

from benchmarks.simulator.drawing import Draw, cost_ms, draw_sizes, job, plain_loader
from benchmarks.simulator.family_compute import cpu, saturated
from benchmarks.simulator.family_data import main_process, too_few
from benchmarks.simulator.hardware import DEVICES
from benchmarks.simulator.params import Params
from benchmarks.simulator.plan import build
from benchmarks.simulator.registry import decoy, kernels_limit

# decoys


@decoy("decoy.item_saturated", ".item() every step on a saturated GPU", kernels_limit)
def _d_item(d: Draw) -> Params:
    return saturated(d, "matmul", ("fp16", "bf16", "tf32"), 15, 60)[0].but(item=True)


@decoy("decoy.pageable_waits", "a pageable copy waits for queued kernels, its bytes are few", kernels_limit)
def _d_pageable(d: Draw) -> Params:
    return saturated(d, "matmul", ("fp16", "bf16", "tf32"), 15, 60)[0].but(pin=False, non_blocking=False)


@decoy(
    "decoy.nccl_wait",
    "collectives that wait for a slow loader show a GPU at 100 %",
    lambda t: t.bottleneck in ("communication", "cpu"),
)
def _d_nccl(d: Draw) -> Params:
    p, g, h = job(d, "matmul", 5, 30)
    p = plain_loader(d, p, max(g, h), d.uniform(0.5, 0.8), 2)
    return p.but(ranks=2, straggler="loader", straggle_x=d.uniform(3, 6), machine_cores=128)


@decoy(
    "decoy.full_memory",
    "low utilisation with a full device memory: loading limits, not the batch",
    lambda t: t.cause == "load.too_few_workers",
)
def _d_memory(d: Draw) -> Params:
    p = too_few(d)
    plan = build(p)
    return p.but(
        extra_bytes=max(0, int(plan.net.device.memory * d.uniform(0.9, 0.96)) - plan.fixed - plan.activations)
    )


@decoy(
    "decoy.cuda_graph", "kernels inside a CUDA graph are not recorded: idle that is not idle", kernels_limit
)
def _d_graph(d: Draw) -> Params:
    p = saturated(d, "matmul", ("fp16", "bf16", "tf32"), 6, 40)[0]
    return p.but(graph=True, item=d.pick(True, False))


@decoy("decoy.hidden_loader", "a slow loader hidden behind a saturated GPU", kernels_limit)
def _d_hidden(d: Draw) -> Params:
    p, g = saturated(d, "all", ("fp16", "bf16", "tf32", "fp32"), 12, 60)
    return plain_loader(d, p, g, d.uniform(0.8, 0.92), d.pick(2, 4)).but(loader_sigma=0.04)


@decoy("decoy.gpu_lag", "the GPU runs ten steps and more behind the host", kernels_limit)
def _d_lag(d: Draw) -> Params:
    p, g, _h = job(d, "tables", 6, 40, ratio=(4.0, math.inf))
    return plain_loader(d, p, g, d.uniform(0.1, 0.3), 8).but(prefetch=4, optimizer_impl="fused")


@decoy(
    "decoy.tiny_batches",
    "batches of one to four: the GPU is idle because nothing is launched in time",
    lambda t: t.cause in ("host.launch_bound", "host.python", "host.optimizer"),
)
def _d_tiny(d: Draw) -> Params:
    dev = d.kind("fast")
    dtype = d.pick("fp16", "bf16", "fp32")
    dtype = dtype if DEVICES[dev].supports(dtype) else "fp32"
    template = d.kind("all")
    p = Params(
        template=template, sizes=draw_sizes(d, template), device=dev, dtype=dtype, batch=d.pick(1, 2, 4)
    )
    h = cost_ms(p.template, p.batch, p.dtype, dev, p.sizes)[1]
    return plain_loader(d, p, h, d.uniform(0.1, 0.4))


@decoy("decoy.rare_stall", "a checkpoint so rare that it costs little", kernels_limit)
def _d_stall(d: Draw) -> Params:
    p, g = saturated(d, "matmul", ("fp16", "bf16", "tf32"), 10, 50)
    return p.but(stall_every=28, stall_ms=d.uniform(0.4, 1.6) * g, stall_kind="checkpoint", window_at=14)


@decoy("decoy.busy_workers", "more threads than cores in workers that nobody waits for", kernels_limit)
def _d_threads(d: Draw) -> Params:
    p, g = saturated(d, "matmul", ("fp16", "bf16", "tf32"), 15, 60)
    p = plain_loader(d, p, g, 0.15, 8)
    return p.but(machine_cores=16, worker_threads=d.pick(4, 6))


@decoy("decoy.single_tensor", "a single-tensor optimizer behind a saturated GPU", kernels_limit)
def _d_single(d: Draw) -> Params:
    return saturated(d, "matmul", ("fp16", "bf16", "tf32"), 25, 80)[0].but(optimizer_impl="single")


@decoy(
    "decoy.no_markers",
    "a loader-bound run without step markers",
    lambda t: t.cause in ("load.too_few_workers", "load.main_process"),
)
def _d_markers(d: Draw) -> Params:
    return (too_few(d) if d.pick(True, False) else main_process(d)).but(hide="steps")


@decoy(
    "decoy.cpu_loader",
    "training on the CPU with a loader that is the limit",
    lambda t: t.p.device is None and t.cause.startswith("load."),
)
def _d_cpu(d: Draw) -> Params:
    p = cpu(d)
    ms = float(build(p).base.sum()) / 1e3 * 0.4
    return p.but(workers=0, sample_cpu_ms=d.uniform(0.4, 2.0) * ms / p.batch, persistent=False)
