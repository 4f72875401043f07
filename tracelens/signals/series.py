"""Sampled quantities over wall time, for the report's charts."""

from __future__ import annotations

import numpy as np

from tracelens.ingest.tables import GpuLog, HostLog
from tracelens.model import Series
from tracelens.signals.analysis import RankAnalysis

_SAMPLES = 400


def series(analysis: RankAnalysis) -> tuple[Series, ...]:
    """Sampled quantities beside the trace, from the start of its steady window on."""
    return log_series(analysis.gpu_log, analysis.host_log, analysis.tables.base_ns + analysis.window[0])


def log_series(gpu: GpuLog | None, host: HostLog | None, start: int | None = None) -> tuple[Series, ...]:
    """GPU and host samples, thinned to what can be drawn; times from ``start`` (ns), else from the first sample."""
    found: list[Series] = []
    if start is None:
        firsts = [int(log.t_ns[0]) for log in (gpu, host) if log is not None and len(log)]
        start = min(firsts, default=0)

    def add(name: str, title: str, unit: str, t: np.ndarray, values: np.ndarray) -> None:
        keep = np.isfinite(values)
        if keep.sum() < 2:
            return
        thin = slice(None, None, max(1, -(-t.size // _SAMPLES)))
        found.append(Series(
            name, title, unit, tuple(((t[thin] - start) / 1e6).round(3).tolist()),
            tuple(None if not np.isfinite(v) else round(float(v), 4) for v in values[thin]),
        ))  # fmt: skip

    if gpu is not None and len(gpu):
        add("gpu.utilization", "GPU utilisation", "share", gpu.t_ns, gpu.utilization_gpu)
        add("gpu.sm_clock", "SM clock", "MHz", gpu.t_ns, gpu.sm_clock_mhz)
        add("gpu.memory", "GPU memory used", "bytes", gpu.t_ns, gpu.memory_used)
        add("gpu.power", "Power", "W", gpu.t_ns, gpu.power_w)
    if host is not None and len(host):
        add("machine.cpu", "CPU of the machine", "share", host.t_ns, host.system_cpu_percent / 100)
        for role, title in (
            ("main", "CPU of the training process"),
            ("worker", "CPU of the workers together"),
        ):
            rows = host.processes.take(host.processes.role == role)
            if len(rows):
                known = np.isfinite(rows.cpu_percent)
                total = np.bincount(
                    rows.row[known], weights=rows.cpu_percent[known] / 100, minlength=len(host)
                )
                seen = np.bincount(rows.row[known], minlength=len(host)) > 0
                add(f"machine.{role}_cpu", title, "cores", host.t_ns, np.where(seen, total, np.nan))
    return tuple(found)
