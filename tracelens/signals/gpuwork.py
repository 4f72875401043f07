"""Signals about the GPU: busy share, what limits its kernels, precision, clocks, memory, other users."""

from __future__ import annotations

import numpy as np

from tracelens.ingest.tables import THROTTLE_BITS, GpuLog
from tracelens.signals import kernels
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace.tables import Device

TRACE, LOG = "trace", "GPU log"
_SLOWING = (
    THROTTLE_BITS["sw_power_cap"] | THROTTLE_BITS["hw_slowdown"] | THROTTLE_BITS["sw_thermal_slowdown"]
    | THROTTLE_BITS["hw_thermal_slowdown"] | THROTTLE_BITS["hw_power_brake_slowdown"]
)  # fmt: skip


def gpu_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``gpu.*``, ``kernels.*`` from the trace; clocks, memory, link and other users from the GPU log."""
    if analysis.has_gpu:
        _kernels(analysis, out)
    else:
        out.missing("no GPU work in the trace", "gpu.busy", *_KERNELS)
    _device(analysis, out)
    log_signals(analysis.gpu_log, out)


_KERNELS = (
    "kernels.arithmetic_ms", "kernels.memory_ms", "kernels.small_ms", "kernels.unknown_ms", "kernels.small_share",
    "kernels.fp32_matmul_ms", "kernels.tensor_core_ms", "kernels.layout_ms", "kernels.shapes_share", "kernels.unknown_share",
    "kernels.flops_per_step", "kernels.mfu", "kernels.dram_least_share",
)  # fmt: skip


def _kernels(analysis: RankAnalysis, out: Signals) -> None:
    device, limits = analysis.activity.device, analysis.kernels.limit
    low, high = analysis.window
    inside = np.maximum(np.minimum(device.end, high) - np.maximum(device.start, low), 0).astype(float)
    phases = analysis.phases
    running = phases.parts["compute"].total + phases.parts["communication"].total
    out.add("gpu.busy", running / max(analysis.length, 1), "share", TRACE)
    # kernels may overlap: scale their sum to the time that the compute phase really takes
    total = float(inside[limits >= 0].sum())
    scale = analysis.phases.parts["compute"].total / total if total else 0.0
    source = analysis.kernels.source
    for code, name in (
        (kernels.ARITHMETIC, "arithmetic"),
        (kernels.MEMORY, "memory"),
        (kernels.SMALL, "small"),
        (kernels.UNKNOWN, "unknown"),
    ):
        out.add(
            f"kernels.{name}_ms",
            analysis.per_step_ms(scale * float(inside[limits == code].sum())),
            "ms",
            source,
        )
    out.add(
        "kernels.small_share",
        float(inside[limits == kernels.SMALL].sum()) / total if total else None,
        "share",
        source,
    )
    names = analysis.tables.names
    precision = {
        int(c): kernels.precision(names[c]) for c in np.unique(device.name[device.kind == Device.KERNEL])
    }
    layout = {c for c in precision if kernels.family(names[c]) == "layout"}
    sums = {"fp32": 0.0, "tensor_core": 0.0, "layout": 0.0}
    filled = limits != kernels.SMALL
    for code, kind in precision.items():
        mine = device.name == code
        spent = float(inside[mine].sum())
        if kind is not None:
            # a product too small for the GPU is no faster in another format
            sums[kind] += float(inside[mine & filled].sum()) if kind == "fp32" else spent
        if code in layout:
            sums["layout"] += spent
    out.add("kernels.fp32_matmul_ms", analysis.per_step_ms(scale * sums["fp32"]), "ms", "kernel names")
    out.add("kernels.tensor_core_ms", analysis.per_step_ms(scale * sums["tensor_core"]), "ms", "kernel names")
    out.add("kernels.layout_ms", analysis.per_step_ms(scale * sums["layout"]), "ms", "kernel names")
    _roofline(analysis, inside, out)


# least shares of kernel time with known work for a sum to mean anything: with that of the same kernels launched
# elsewhere with the same grid, and without
_FLOPS_COVERAGE, _FLOPS_KNOWN = 0.9, 0.5


def _roofline(analysis: RankAnalysis, inside: np.ndarray, out: Signals) -> None:
    """Where the classes come from, and what the FLOPs and bytes that shapes tell add up to."""
    classes, device, names = analysis.kernels, analysis.activity.device, analysis.tables.names
    limits, found, spec = classes.limit, classes.estimate, classes.spec
    total = float(inside[limits >= 0].sum())
    by_shapes = float(inside[np.isin(classes.basis, (kernels.SHAPES, kernels.SAME_KERNEL))].sum())
    out.add("kernels.shapes_share", by_shapes / total if total else None, "share", classes.source)
    unknown = float(inside[limits == kernels.UNKNOWN].sum())
    out.add("kernels.unknown_share", unknown / total if total else None, "share", classes.source)
    flops = ("kernels.flops_per_step", "kernels.mfu", "kernels.dram_least_share")
    if found is None or spec is None:
        out.missing("unknown device, or no kernels", *flops)
        return
    source = "operator shapes"
    if spec.basis != "table":
        source += f"; peak rates {spec.basis}"
    # a kernel that is cut by the window counts by the part inside
    part = inside / np.maximum(device.end - device.start, 1)
    matrix_names = np.zeros(len(names), dtype=bool)
    codes = np.unique(device.name[device.kind == Device.KERNEL])
    matrix_names[codes] = [kernels.family(names[c]) in kernels.MATRIX_FAMILIES for c in codes.tolist()]
    matrix = matrix_names[device.name] & (device.kind == Device.KERNEL)
    known = matrix & found.exact & np.isfinite(found.flops)
    spent = float(inside[matrix].sum())
    covered = float(inside[known].sum()) / spent if spent else 0.0
    alike = classes.basis == kernels.SAME_KERNEL
    if covered >= _FLOPS_KNOWN and float(inside[known | (matrix & alike)].sum()) >= _FLOPS_COVERAGE * spent:
        # the others are taken to be as fast
        done = float((found.flops * part)[known].sum()) / covered
        ideal = known & np.isfinite(found.peak)
        least = float(np.sum(found.flops[ideal] * part[ideal] / found.peak[ideal])) / covered
        out.add("kernels.flops_per_step", done / analysis.step_count, "FLOP", source)
        rated = spec.basis != "assumed from kernel names"
        out.add(
            "kernels.mfu", least * 1e9 / max(analysis.length, 1) if rated else None, "share", source,
            "the device is not named, so its peak is unknown",
        )  # fmt: skip
    elif not spent:
        out.missing("no matrix kernels in the window", *flops[:2])
    else:
        out.missing(
            f"operator shapes tell the FLOPs of {covered:.0%} of the time in matrix kernels (record_shapes)",
            *flops[:2],
        )
    moved = np.isfinite(found.bytes) & (inside > 0)
    covered = float(inside[moved].sum()) / total if total else 0.0
    enough = covered >= _FLOPS_KNOWN and float(inside[moved | alike].sum()) >= _FLOPS_COVERAGE * total
    share = float((found.bytes * part)[moved].sum()) / spec.bandwidth * 1e9 / max(analysis.length, 1)
    out.add(
        "kernels.dram_least_share", share / covered if enough else None, "share", source,
        f"operator shapes tell the bytes of {covered:.0%} of kernel time (record_shapes)",
    )  # fmt: skip


def _device(analysis: RankAnalysis, out: Signals) -> None:
    gpu = analysis.activity.gpu
    properties = analysis.tables.device_properties(gpu) if gpu is not None else {}
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    name = str(properties.get("name") or "")
    amd = "amd" in name.lower() or "instinct" in name.lower() or "radeon" in name.lower()
    capability = (
        float(f"{major}.{minor}") if isinstance(major, int) and isinstance(minor, int) and not amd else None
    )
    out.add("gpu.capability", capability, None, TRACE, "no CUDA device properties in the trace")
    memory = properties.get("totalGlobalMem")
    out.add(
        "gpu.memory_total",
        memory if isinstance(memory, int) else None,
        "bytes",
        TRACE,
        "no device properties in the trace",
    )


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def log_signals(log: GpuLog | None, out: Signals) -> None:
    """What a GPU log says: clocks, throttling, memory, the PCIe link, other users."""
    names = (
        "gpu.throttled_share", "gpu.thermal_share", "gpu.clock_ratio", "gpu.clock_drop", "gpu.utilization",
        "gpu.memory_used_share", "gpu.power_ratio",
        "gpu.foreign_processes", "pcie.width_ratio", "pcie.gen_ratio", "pcie.link_gb_s", "gpu.dram_bandwidth",
    )  # fmt: skip
    if log is None or not len(log):
        out.missing("no GPU log (nvidia-smi or a recorded bundle)", *names)
        return
    masks = log.throttle_reasons[log.throttle_reasons >= 0]
    out.add(
        "gpu.throttled_share",
        float(((masks & _SLOWING) != 0).mean()) if masks.size else None,
        "share",
        LOG,
        "no throttle reasons in the log",
    )
    hot = _SLOWING & ~THROTTLE_BITS["sw_power_cap"]
    thermal = float(((masks & hot) != 0).mean()) if masks.size else None
    out.add("gpu.thermal_share", thermal, "share", LOG, "no throttle reasons in the log")
    clock, limit = log.sm_clock_mhz, log.sm_clock_max_mhz
    out.add("gpu.clock_ratio", _mean(clock / limit), "share", LOG, "no clock limits in the log")
    known = clock[np.isfinite(clock)]
    out.add(
        "gpu.clock_drop",
        1 - float(np.percentile(known, 10) / np.percentile(known, 90)) if known.size >= 4 else None,
        "share",
        LOG,
        "too few clock samples",
    )
    out.add("gpu.utilization", _mean(log.utilization_gpu), "share", LOG, "not supported by this GPU")
    out.add(
        "gpu.memory_used_share",
        _mean(log.memory_used / log.memory_total),
        "share",
        LOG,
        "no memory columns in the log",
    )
    out.add(
        "gpu.power_ratio", _mean(log.power_w / log.power_limit_w), "share", LOG, "no power limit in the log"
    )
    foreign = log.foreign_pids[log.foreign_pids >= 0]
    out.add(
        "gpu.foreign_processes",
        int(foreign.max()) if foreign.size else None,
        "count",
        LOG,
        "no process list in the log",
    )
    # an idle link slows down to save power: only the best state seen under load says what it can do
    width, gen = log.pcie_width, log.pcie_gen
    out.add(
        "pcie.width_ratio", _best(width / log.pcie_width_max), "share", LOG, "no PCIe link columns in the log"
    )
    out.add("pcie.gen_ratio", _best(gen / log.pcie_gen_max), "share", LOG, "no PCIe link columns in the log")
    lanes, speed = _best(width), _best(gen)
    out.add("pcie.gen", speed, None, LOG, "no PCIe link columns in the log")
    out.add("pcie.width", lanes, None, LOG, "no PCIe link columns in the log")
    out.add("pcie.link_gb_s", _link(speed, lanes), "GB/s", LOG, "no PCIe link columns in the log")
    out.add("gpu.dram_bandwidth", _mean(log.gpm_dram_bw), "share", LOG, "no GPM counters in the log")


def _best(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.max()) if known.size else None


def _link(gen: float | None, lanes: float | None) -> float | None:
    """One-way GB/s on paper: 15.75, 31.5, 63 GB/s for 16 lanes of generation 3, 4, 5 (PCI-SIG)."""
    if not gen or not lanes or gen > 16:  # no such generation: a damaged log
        return None
    return float(15.75 / 16 * lanes * 2 ** (gen - 3))
