"""Families of loading and copying causes."""

from __future__ import annotations

import math

from benchmarks.simulator.drawing import Draw, job, plain_loader
from benchmarks.simulator.params import Params
from benchmarks.simulator.plan import build
from benchmarks.simulator.registry import family_of

# loading


@family_of("load.main_process", "num_workers=0: samples are made in the training process")
def main_process(d: Draw) -> Params:
    p, g, h = job(d, "all", 3, 60)
    pin = d.pick(True, False)
    p = plain_loader(d, p, max(g, h), d.log(0.25, 2.0), 0)
    io = d.pick(0.1, 0.1, 0.6)
    return p.but(
        pin=pin,
        non_blocking=pin,
        persistent=False,
        sample_cpu_ms=p.sample_cpu_ms * (1 - io),
        sample_wait_ms=p.sample_cpu_ms * io,
    )


@family_of("load.too_few_workers", "workers busy, cores free")
def too_few(d: Draw) -> Params:
    p, g, h = job(d, "all", 3, 60)
    return plain_loader(d, p, max(g, h), d.log(1.25, 4.0), d.pick(1, 2, 2, 3, 4))


def _cores_short(d: Draw, cores: int, over: float) -> Params:
    p, g, h = job(d, "all", 4, 60)
    w = d.pick(cores, cores + 1, 2 * cores, max(2, cores))
    p = plain_loader(d, p, max(g, h), 0.5, max(2, w))
    cpu = over * max(g, h) * max(cores - 0.6, 0.5)
    return p.but(
        sample_cpu_ms=cpu / p.batch, collate_ms=0.0, sample_wait_ms=0.0, switch_penalty=d.uniform(0.0, 0.02)
    )


@family_of("load.cores_exhausted", "workers use every core; more workers do not help")
def _cores_exhausted(d: Draw) -> Params:
    c = d.pick(2, 3, 4, 6, 8)
    return _cores_short(d, c, d.log(1.3, 3.0)).but(machine_cores=c)


@family_of("load.affinity", "an affinity mask leaves fewer cores than the machine has and the workers need")
def _affinity(d: Draw) -> Params:
    c = d.pick(1, 2, 2, 4, 6)
    return _cores_short(d, c, d.log(1.3, 3.0)).but(machine_cores=d.pick(32, 48, 64), affinity=c)


@family_of("load.quota", "a cgroup quota leaves fewer cores than the machine has and the workers need")
def _quota(d: Draw) -> Params:
    c = d.pick(2, 3, 4, 6)
    return _cores_short(d, c, d.log(1.3, 3.0)).but(machine_cores=d.pick(32, 48, 64), quota=float(c))


@family_of("load.storage", "samples wait for storage that is at its limit")
def _storage(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 60)
    p = plain_loader(d, p, max(g, h), 0.3, d.pick(4, 6, 8, 12))
    kb = d.log(50, 800)
    cap = p.batch * kb / 1024 / (d.log(1.25, 3.0) * max(g, h)) * 1e3
    return p.but(sample_kb=kb, storage_mbs=cap, stream_mbs=cap * d.pick(0.4, 0.7, 1.0))


@family_of("load.too_many_workers", "more runnable workers than cores; fewer are faster")
def _too_many(d: Draw) -> Params:
    c = d.pick(2, 3, 4)
    p, g, h = job(d, "light", 2, 20)
    p = plain_loader(d, p, max(g, h), 0.5, d.pick(12, 16, 16))
    cpu = d.log(0.9, 2.0) * max(g, h) * max(c - 0.6, 0.5)
    return p.but(
        sample_cpu_ms=cpu / p.batch,
        collate_ms=0.0,
        machine_cores=c,
        switch_penalty=d.uniform(0.05, 0.12),
        python_us=d.uniform(10, 30),
    )


@family_of("load.oversubscribed_threads", "library threads of main or of every worker outnumber the cores")
def _threads(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 50)
    if d.pick(True, False):
        p = plain_loader(d, p, max(g, h), d.uniform(0.2, 0.6), 0)
        c = d.pick(4, 8, 16)
        return p.but(machine_cores=c, main_threads=c * d.pick(4, 6, 8), persistent=False)
    w = d.pick(4, 6, 8)
    p = plain_loader(d, p, max(g, h), d.uniform(0.35, 0.8), w)
    c = w + d.pick(1, 2, 4)
    return p.but(machine_cores=c, worker_threads=d.pick(8, 12, 16))


@family_of("load.slow_samples", "a few slow samples, or one slow worker, hold back in-order delivery")
def _slow_samples(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 50)
    w = d.pick(2, 3, 4, 6)
    p = plain_loader(d, p, max(g, h), d.uniform(0.3, 0.6), w)
    if d.pick(True, False, False):
        return p.but(slow_worker=d.uniform(3.0, 6.0))
    per_batch = d.uniform(0.15, 0.5)
    seen = min(p.batch, 64)
    extra = d.uniform(1.3, 3.0) * w / per_batch
    return p.but(outlier_p=per_batch / seen, outlier_x=1.0 + extra * seen)


@family_of("load.shallow_prefetch", "bursts: the mean rate suffices, the queue is too short for them")
def _shallow(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 40)
    w, f = d.pick(2, 3, 4), d.pick(1, 2)
    step = max(g, h)
    p = plain_loader(d, p, step, d.uniform(0.2, 0.4), w)
    every = d.pick(7, 8, 14)
    return p.but(
        prefetch=f,
        burst_every=every,
        burst_ms=(w * f + d.uniform(2.0, 0.45 * every)) * step,
        traced=2 * every if every <= 8 else every,
    )


@family_of("load.worker_startup", "workers are started anew each epoch")
def _startup_workers(d: Draw) -> Params:
    p, g, h = job(d, "all", 6, 50)
    p = plain_loader(d, p, max(g, h), d.uniform(0.15, 0.5), d.pick(4, 6, 8))
    n = d.pick(7, 8, 14)
    return p.but(
        persistent=False,
        epoch_batches=n,
        fork_ms=d.uniform(8, 40),
        init_ms=d.log(0.8, 4) * n * max(g, h),
        traced=2 * n if n <= 8 else n,
        window_at=3,
    )


@family_of("load.collate_ipc", "handing batches to the main process, or the pin thread, is the limit")
def _collate(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 40)
    p = plain_loader(d, p, max(g, h), d.uniform(0.15, 0.4), d.pick(4, 8, 12))
    return p.but(handoff_ms=d.log(1.3, 3.0) * max(g, h))


@family_of("load.host_memory_bandwidth", "loading is limited by the host's memory bandwidth")
def _host_memory(d: Draw) -> Params:
    p, g, h = job(d, "images", 4, 40, ("fp16", "bf16"))
    p = plain_loader(d, p, max(g, h), d.uniform(0.1, 0.3), d.pick(4, 8, 12))
    size = sum(b for _, _, b in build(p).net.inputs)
    gbs = d.uniform(3, 10)
    return p.but(host_gbs=gbs, touch=d.log(1.3, 2.5) * max(g, h) * gbs * 1e6 / size)


@family_of(
    "load.custom",
    "a generator of our own feeds the loop: host time before the first kernel, no loader events",
)
def _custom(d: Draw) -> Params:
    p, g, h = job(d, "all", 4, 60)
    p = plain_loader(d, p, max(g, h), d.log(0.3, 2.0), 0)
    return p.but(custom_loader=True, pin=False, non_blocking=False)


# copies


def input_size(p: Params) -> int:
    return sum(b for _, _, b in build(p).net.inputs)


@family_of("transfer.pageable", "copies from pageable memory, in line with the kernels")
def _pageable(d: Draw) -> Params:
    p, g, _h = job(d, "images", 3, 40, ("fp16", "bf16"), ratio=(1.2, math.inf))
    wide = d.pick(1.0, 1.0, 2.0)
    target = d.uniform(0.15, 0.5) * g
    rate = min(6.0, max(0.8, input_size(p) * wide / 1e6 / target))
    return p.but(pin=False, non_blocking=d.pick(False, False, True), pageable_gbs=rate, wide=wide)


@family_of("transfer.blocking", "pinned copies that block the host")
def _blocking(d: Draw) -> Params:
    # the host is about as slow as the GPU: stopping it at the copy costs its head start
    p, g, _ = job(d, "all", 2, 20, ratio=(0.85, 1.6))
    width = d.pick(4, 8, 16)
    ms = max(0.2, d.uniform(0.03, 0.15) * g)
    wide = max(1.0, ms * 1e6 * 8 * width / 16 / max(input_size(p), 1)) if input_size(p) > 1e6 else 1.0
    return p.but(non_blocking=False, pcie_width=width, wide=min(wide, 4.0))


@family_of("transfer.link", "bytes against a narrow or slow link")
def _link(d: Draw) -> Params:
    p, _g, _h = job(d, "images", 2, 30, ("fp16", "bf16"), ratio=(1.0, math.inf))
    return p.but(
        pcie_gen=d.pick(1, 2, 3),
        pcie_width=d.pick(1, 2, 4, 4),
        link_share=d.pick(1, 1, 2),
        wide=d.pick(1.0, 2.0),
        pin_gbs=14.0,
        copy_stream=d.pick(False, True),
    )


@family_of("transfer.many_small", "many small copies each step")
def _many(d: Draw) -> Params:
    p, _g, _h = job(d, "all", 3, 30)
    return p.but(
        pieces=d.whole(60, 300), pin=d.pick(True, False), non_blocking=False, pageable_gbs=d.uniform(3, 6)
    )


@family_of("transfer.serialised", "pinned, asynchronous, still in line with the kernels")
def _serialised(d: Draw) -> Params:
    p, _g, _h = job(d, "images", 3, 40, ("fp16", "bf16"), ratio=(1.2, math.inf))
    return p.but(wide=d.pick(1.0, 2.0, 2.0, 4.0), pin_gbs=14.0)
