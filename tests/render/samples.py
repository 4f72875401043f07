"""Example results, built by hand and by seeded formulas, for the tests of the views and for screenshots."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import get_args, get_type_hints

from tracelens.model import (
    PHASES,
    Curve,
    Declined,
    Evidence,
    Finding,
    Gpu,
    KernelRow,
    Lane,
    Memory,
    Missing,
    Plan,
    QualityNote,
    RankRow,
    Recommendation,
    Regime,
    Result,
    RuledOut,
    Series,
    Span,
    StepRow,
    StepSummary,
    Throughput,
    Timeline,
    Verdict,
    WhatIf,
)

GB = 1_000_000_000.0


def step_rows(count: int, *, seed: int = 1, epoch_every: int = 0) -> tuple[StepRow, ...]:
    """Loader-bound steps: every fourth waits longer, the first two are start-up."""
    rng = random.Random(seed)
    rows: list[StepRow] = []
    start = 0.0
    for number in range(count):
        compute = 32.0 + rng.uniform(-1, 1)
        host = 5.0 + rng.uniform(0, 1)
        transfer = 4.2 + rng.uniform(0, 0.4)
        other = 0.7
        if number < 2:
            load, host, regime = 12.0, 310.0 - 200 * number, "start-up"
        elif epoch_every and number % epoch_every == 0:
            load, regime = 420.0 + rng.uniform(0, 30), "epoch start"
        elif number % 4 == 3:
            load, regime = 78.0 + rng.uniform(-5, 5), "stall burst"
        else:
            load, regime = 14.0 + rng.uniform(-3, 3), "steady"
        phases = dict(zip(PHASES, (load, transfer, compute, 0.0, host, other), strict=True))
        duration = sum(phases.values())
        rows.append(StepRow(number + 10, start, duration, phases, number >= 2, regime))
        start += duration
    return tuple(rows)


def timeline(*, spans_per_lane: int = 90, communication: bool = False) -> Timeline:
    """Four steps of a loader-bound run, as spans."""
    rng = random.Random(7)
    duration, boundaries = 310.0, ((10, 0.0), (11, 62.0), (12, 118.0), (13, 180.5), (14, 310.0))

    def lane(name: str, title: str, fill: float, labels: tuple[str, ...]) -> Lane:
        spans: list[Span] = []
        slot = duration / spans_per_lane
        for index in range(spans_per_lane):
            begin = index * slot + rng.uniform(0, slot * 0.1)
            spans.append(Span(begin, begin + slot * fill * rng.uniform(0.5, 1.1), rng.choice(labels)))
        return Lane(name, title, tuple(spans), fill * 0.8)

    lanes = [
        lane("loader", "DataLoader workers (2)", 0.95, ("worker 0", "worker 1")),
        lane(
            "host",
            "Main thread",
            0.6,
            ("aten::conv2d", "aten::add_", "Optimizer.step#SGD.step", "next(DataLoader)"),
        ),
        lane("copy", "Copies", 0.12, ("Memcpy HtoD (Pageable -> Device)",)),
        lane(
            "compute",
            "Kernels",
            0.5,
            ("sm80_xmma_fprop_implicit_gemm_tf32f32", "batch_norm_backward", "elementwise_kernel"),
        ),
    ]
    if communication:
        lanes.append(lane("communication", "NCCL", 0.2, ("ncclDevKernel_AllReduce_Sum_f32_RING_LL",)))
    return Timeline(duration, tuple(lanes), boundaries)


def series() -> tuple[Series, ...]:
    """GPU utilisation with a gap, power, and the CPU of the main process above 100 %."""
    t = tuple(float(index) * 500 for index in range(120))
    gpu = tuple(None if 50 <= i < 58 else 0.45 + 0.4 * math.sin(i / 4) * (i % 7 > 1) for i in range(120))
    return (
        Series(
            "gpu.utilization",
            "GPU 0 utilisation",
            "share",
            t,
            tuple(None if v is None else max(0.0, v) for v in gpu),
        ),
        Series("gpu.power", "GPU 0 power", "W", t, tuple(140.0 + 60 * math.sin(i / 9) for i in range(120))),
        Series(
            "host.cpu.main",
            "CPU of the training process",
            "%",
            t,
            tuple(180.0 + 60 * math.cos(i / 6) for i in range(120)),
        ),
    )


def curves() -> tuple[Curve, ...]:
    """Workers with a knee, batch size with measured points."""
    workers = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0)
    y = (340.0, 470.0, 901.4, 1205.0, 1402.0, 1478.0, 1490.0, 1490.0, 1482.0)
    batch = (32.0, 64.0, 96.0, 128.0, 192.0, 256.0)
    rate = (820.0, 901.4, 915.0, 918.0, 921.0, 922.0)
    return (
        Curve(
            "num_workers",
            "Throughput by number of workers",
            "samples/s",
            workers,
            y,
            tuple(v * 0.93 for v in y),
            tuple(v * 1.05 for v in y),
            2,
            6,
            ((2.0, 901.4),),
        ),
        Curve(
            "batch_size",
            "Throughput by batch size",
            "samples/s",
            batch,
            rate,
            tuple(v * 0.97 for v in rate),
            tuple(v * 1.03 for v in rate),
            64,
            None,
            ((64.0, 901.4), (128.0, 910.0)),
        ),
    )


def kernels() -> tuple[KernelRow, ...]:
    """Real-looking names, one of them very long."""
    long = (
        "void at::native::(anonymous namespace)::batch_norm_backward_cuda_channels_last_kernel<4, float, " * 3
    )
    return (
        KernelRow(
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16",
            "matmul",
            53,
            11.2,
            0.34,
            "arithmetic",
            "aten::conv2d",
        ),
        KernelRow(long, "normalisation", 53, 6.1, 0.19, "memory", "aten::native_batch_norm_backward"),
        KernelRow(
            "void at::native::vectorized_elementwise_kernel<4, ...>",
            "elementwise",
            161,
            4.0,
            0.12,
            "memory",
            "aten::threshold_backward",
        ),
        KernelRow("void at::native::reduce_kernel<512, 1, ...>", "reduction", 2, 0.09, 0.003, "small", None),
        KernelRow("triton_poi_fused_add_relu_12", None, 16, 0.02, 0.0006, None, None),
    )


def rules_checked() -> dict[str, str]:
    """The four outcomes."""
    return {
        "load.main_process": "passed",
        "load.too_few_workers": "fired",
        "load.storage": "passed",
        "load.quota": "not_evaluated",
        "transfer.pageable": "fired",
        "transfer.many_small": "passed",
        "host.launch_bound": "passed",
        "host.cpu_compute": "not_applicable",
        "memory.bandwidth": "not_evaluated",
        "communication.straggler": "not_applicable",
    }


SNIPPET = (
    "loader = DataLoader(\n    dataset,\n    batch_size=64,\n    num_workers=6,\n"
    "    pin_memory=True,\n    persistent_workers=True,\n)"
)


def loader_bound() -> Result:
    """Two workers too few; every part of the result is filled."""
    return Result(
        verdict=Verdict(
            "cpu",
            "load.too_few_workers",
            0.93,
            "Loading limits this job: 2 busy workers, 6 idle cores; the GPU waits 41 % of the time",
        ),
        steps=StepSummary(40, 38, 73.0, 57.2, 131.4, "profiler_step"),
        throughput=Throughput(901.4, 64),
        phases={
            "load": 0.41,
            "transfer": 0.06,
            "compute": 0.45,
            "communication": 0.0,
            "host": 0.07,
            "other": 0.01,
        },
        gpu=Gpu(0.45, "NVIDIA A100-SXM4-40GB"),
        what_if=WhatIf(1.71, 1.05, 1.10, 1.12, 1.0, "replay", 0.012),
        ruled_out=(
            RuledOut("h2d_copy", "copies free would save 3.4 of 73 ms a step, under 8 %"),
            RuledOut("communication", "one rank, no communication kernels"),
            RuledOut("gpu", "the GPU idles 49 % of the time"),
        ),
        missing=(
            Missing("gpu.dram_bandwidth", "no GPM on this GPU"),
            Missing("host.quota", "no host log was given"),
        ),
        regimes=(
            Regime("steady", 0.75, 0.58, "gpu", 56.8),
            Regime("stall burst", 0.25, 0.42, "cpu", 122.9, "every 4 steps"),
        ),
        findings=(
            Finding(
                "load.too_few_workers",
                "Too few DataLoader workers",
                29.1,
                (
                    Evidence("loader.workers.busy", 0.97, "share", "worker-*.jsonl", "workers busy"),
                    Evidence("loader.fetch.mean", 104.2, "ms", "worker-*.jsonl", "one batch takes a worker"),
                    Evidence("host.cores.idle", 6, "count", "host.jsonl", "idle cores"),
                    Evidence("loader.bytes", 38_535_168, "bytes", "loader.jsonl", "bytes in a batch"),
                    Evidence("load.quota.throttled", None, "ms", None, "time throttled by the quota"),
                ),
                "cpu",
                "load",
                (
                    "Raise `num_workers` from 2 to 6: each batch takes a worker 104 ms, and the GPU needs "
                    "one every 33 ms."
                ),
                (
                    "Both workers are busy 97 % of the time while 6 of 8 cores are idle.\n\n"
                    "2 workers / 104.2 ms = 19.2 batches/s; the GPU could take 30.1."
                ),
                ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "aten::to"),
            ),
            Finding(
                "transfer.pageable",
                "Batches are copied from pageable memory",
                3.4,
                (
                    Evidence("transfer.h2d.rate", 8.9, "GB/s", "trace", "copy rate"),
                    Evidence("transfer.h2d.pageable", 1.0, "share", "trace", "copies from pageable memory"),
                ),
                "h2d_copy",
                "transfer",
                "Set `pin_memory=True` and copy with `non_blocking=True`.",
                "38.5 MB at 8.9 GB/s is 4.3 ms; pinned memory reaches 24 GB/s here.",
                tuple(f"Memcpy HtoD (Pageable -> Device) #{i}" for i in range(9)),
            ),
        ),
        recommendations=(
            Recommendation(
                "num_workers",
                2,
                6,
                1.64,
                (1.52, 1.71),
                "gpu",
                "load.too_few_workers",
                "DataLoader(..., num_workers=6)",
                "model",
                (
                    "Service time 104 ms a batch; 6 workers deliver 57.7 batches/s, 1.9 times what the GPU "
                    "takes (30.1). From 6 on the curve is flat."
                ),
                "num_workers=6",
                1.62,
            ),
            Recommendation(
                "pin_memory",
                False,
                True,
                1.05,
                (1.03, 1.06),
                "cpu",
                "transfer.pageable",
                "DataLoader(..., pin_memory=True)",
                "replay",
                "4.3 ms a step exposed at 8.9 GB/s become 0.9 ms.",
                "pin_memory=True",
                1.04,
            ),
            Recommendation(
                "persistent_workers",
                None,
                True,
                None,
                None,
                None,
                "load.worker_startup",
                "DataLoader(..., persistent_workers=True)",
                "literature",
                "Worker start-up was not measured in this window.",
                "persistent_workers=True",
            ),
        ),
        plan=Plan(
            ("num_workers", "pin_memory"),
            1.70,
            (1.60, 1.78),
            SNIPPET,
            "gpu",
            ("num_workers=6", "pin_memory=True"),
        ),
        declined=(
            Declined("batch_size", 256, "fits (80 % of memory) but gains 1 %: loading limits"),
            Declined(
                "prefetch_factor", 4, "the queue is empty because workers are slow, not because it is short"
            ),
        ),
        memory=Memory(2.1 * GB, 0.118 * GB, 9.7 * GB, 40.0 * GB, 290),
        quality=(
            QualityNote(
                "quality.profiler_overhead",
                (
                    "Host time inside the window includes the profiler's own cost: dispatch shares are upper "
                    "bounds."
                ),
            ),
        ),
        inputs={
            "paths": ["runs/resnet50/window-0.pt.trace.json.gz"],
            "gpu_logs": ["gpu.csv"],
            "bytes": 1_842_331,
        },
        environment={
            "python": "3.11.9",
            "torch": "2.6.0+cu124",
            "cuda": "12.4",
            "device": {"name": "NVIDIA A100-SXM4-40GB", "sms": 108},
            "cpu": {"count": 8, "affinity": 8, "quota": None},
            "env": {"OMP_NUM_THREADS": "1"},
        },
        tool={"version": "0.1.0", "stage_ms": {"read": 212.0, "signals": 61.5, "whatif": 88.0, "rules": 4.2}},
        step_rows=step_rows(40),
        host_split={"dispatch": 0.04, "synchronisation": 0.012, "optimizer": 0.011, "python": 0.007},
        occupancy={
            "loader workers": 0.97,
            "copy engine": 0.06,
            "SMs": 0.45,
            "host thread": 0.58,
            "NVLink": None,
        },
        timeline=timeline(),
        series=series(),
        curves=curves(),
        kernels=kernels(),
        rules_checked=rules_checked(),
    )


def healthy() -> Result:
    """A saturated GPU: nothing to change."""
    return Result(
        verdict=Verdict("gpu", "healthy", 0.88, "GPU healthy: busy 96 %; 2 % available from loading"),
        steps=StepSummary(12, 11, 212.4, 211.9, 215.0, "profiler_step"),
        throughput=Throughput(602.6, 128),
        phases={
            "load": 0.01,
            "transfer": 0.005,
            "compute": 0.96,
            "communication": 0.0,
            "host": 0.025,
            "other": 0.0,
        },
        gpu=Gpu(0.96, "NVIDIA H100 80GB HBM3"),
        what_if=WhatIf(1.02, 1.005, 1.31, 1.42, 1.0, "replay", 0.004),
        ruled_out=(
            RuledOut("cpu", "a free CPU would save 4.2 of 212.4 ms a step"),
            RuledOut("h2d_copy", "copies are hidden behind kernels"),
        ),
        declined=(
            Declined("num_workers", 16, "the GPU never waits for data: 1 % of the time"),
            Declined("batch_size", 256, "gains 1 %: kernels already fill the GPU"),
        ),
        memory=Memory(6.0 * GB, 0.31 * GB, 46.0 * GB, 80.0 * GB, 210),
        inputs={"paths": ["vit_h100.pt.trace.json.gz"]},
        environment={"torch": "2.7.1"},
        tool={"version": "0.1.0", "stage_ms": {"read": 40.0}},
        kernels=kernels()[:3],
        step_rows=tuple(
            dataclasses.replace(
                row,
                phases_ms={
                    "load": 2.1,
                    "transfer": 1.0,
                    "compute": 204.0,
                    "communication": 0.0,
                    "host": 5.3,
                    "other": 0.0,
                },
                duration_ms=212.4,
                start_ms=212.4 * i,
                regime=None,
            )
            for i, row in enumerate(step_rows(12))
        ),
        rules_checked={"load.main_process": "passed", "compute.precision": "passed", "healthy": "fired"},
    )


def inconclusive() -> Result:
    """A trace with almost nothing in it: nearly everything is unknown."""
    return Result(
        verdict=Verdict(
            "inconclusive",
            "insufficient_evidence",
            0.2,
            (
                "Not enough evidence: the trace has no GPU activity and no steps; record with "
                "activities=[CPU, CUDA]"
            ),
        ),
        steps=StepSummary(),
        throughput=Throughput(),
        phases=dict.fromkeys(PHASES),
        gpu=Gpu(),
        what_if=WhatIf(),
        missing=(
            Missing(
                "gpu.kernels",
                "no kernels in the trace although CUDA calls are there; CUPTI was not available",
            ),
            Missing("steps", "no step markers and no period found; call prof.step() once an iteration"),
        ),
        quality=(
            QualityNote("quality.missing_kernels", "GPU work was launched, but no kernel was recorded."),
            QualityNote("quality.no_steps", "No step markers."),
        ),
        inputs={"paths": ["trace.json"]},
        tool={"version": "0.1.0", "stage_ms": {}},
    )


def four_ranks() -> Result:
    """Four ranks, one of which arrives late because of its own loading."""

    def rank(number: int, load: float, comm: float, bottleneck: str, cause: str | None) -> RankRow:
        compute = 0.52
        shares = {
            "load": load,
            "transfer": 0.02,
            "compute": compute,
            "communication": comm,
            "host": 1 - load - 0.02 - compute - comm - 0.01,
            "other": 0.01,
        }
        return RankRow(number, 118.0 + number * 0.1, shares, bottleneck, cause)  # type: ignore[arg-type]

    return dataclasses.replace(
        loader_bound(),
        verdict=Verdict(
            "communication",
            "communication.straggler",
            0.71,
            (
                "Rank 2 arrives late at every all-reduce: its own loading is too slow, the other three "
                "wait 31 ms a step"
            ),
        ),
        phases={
            "load": 0.09,
            "transfer": 0.02,
            "compute": 0.52,
            "communication": 0.27,
            "host": 0.09,
            "other": 0.01,
        },
        what_if=WhatIf(1.08, 1.0, 1.1, 1.15, 1.31, "bound", None),
        ranks=(
            rank(0, 0.02, 0.33, "communication", "communication.straggler"),
            rank(1, 0.02, 0.34, "communication", "communication.straggler"),
            rank(2, 0.30, 0.04, "cpu", "load.storage"),
            RankRow(3, None, dict.fromkeys(PHASES), None, None),
        ),
        timeline=timeline(communication=True),
        plan=None,
        inputs={"paths": [f"rank{i}/window-0.pt.trace.json.gz" for i in range(4)]},
    )


def many_steps(count: int = 500) -> Result:
    """A long run with a full timeline: the size limit is measured on it."""
    return dataclasses.replace(
        loader_bound(),
        steps=StepSummary(count, count - 2, 73.0, 57.2, 131.4, "step_log"),
        step_rows=step_rows(count, epoch_every=125),
        timeline=timeline(spans_per_lane=400, communication=True),
        regimes=(
            *loader_bound().regimes,
            Regime("epoch start", 0.008, 0.05, "cpu", 480.0, "every 125 steps"),
        ),
        kernels=tuple(dataclasses.replace(k, name=f"{k.name}_{i}") for i in range(6) for k in kernels()),
    )


HOSTILE = (
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "{{7*7}}{% for x in y %}${7*7}<%= 7*7 %>",
    "javascript:window.pwned=1//",
    "`|@channel #123 <b>bold</b> [x](javascript:alert(1)) <!-- -->",
    "\u202egnirts lartneuqes\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\x1b[31mred\x1b]0;title\x07\x00\ud800",
    "very_long_kernel_name_" + "x" * 3000,
    "]]>--></style><style>*{display:none}</style>",
)


def hostile() -> Result:
    """The loader-bound result with an attack in every text that a trace, a log or a file name can carry."""
    texts = iter(range(10**9))

    def attack(value: object) -> object:
        if isinstance(value, str):
            return HOSTILE[next(texts) % len(HOSTILE)]
        if isinstance(value, tuple):
            return tuple(attack(item) for item in value)
        if isinstance(value, dict):
            return {str(attack(key)) + str(next(texts)): attack(item) for key, item in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            keep = {"bottleneck", "next_bottleneck", "kind"}
            changes = {
                f.name: attack(getattr(value, f.name))
                for f in dataclasses.fields(value)
                if f.name not in keep
            }
            return dataclasses.replace(value, **changes)
        return value

    base = many_steps(20)
    ranks = (*four_ranks().ranks,)
    attacked = attack(dataclasses.replace(base, ranks=ranks))
    assert isinstance(attacked, Result)
    return dataclasses.replace(attacked, phases=base.phases)


ALL = {
    "loader_bound": loader_bound,
    "healthy": healthy,
    "inconclusive": inconclusive,
    "four_ranks": four_ranks,
    "many_steps": many_steps,
}


def with_unknowns(result: Result, seed: int) -> Result:
    """The result with every value that may be unknown made so by chance."""
    rng = random.Random(seed)

    def visit(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(visit(item) for item in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            hints = get_type_hints(type(value))
            changes: dict[str, object] = {}
            for f in dataclasses.fields(value):
                nullable = hints[f.name] is object or type(None) in get_args(hints[f.name])
                lost = nullable and rng.random() < 0.5
                changes[f.name] = None if lost else visit(getattr(value, f.name))
            return dataclasses.replace(value, **changes)
        if isinstance(value, dict) and set(value) == set(PHASES):
            return value
        if isinstance(value, dict):
            return {
                key: None if rng.random() < 0.2 and isinstance(item, float) else item
                for key, item in value.items()
            }
        return value

    changed = visit(result)
    assert isinstance(changed, Result)
    phases = {name: None if rng.random() < 0.3 else share for name, share in result.phases.items()}
    return dataclasses.replace(changed, phases=phases, host_split=result.host_split)
