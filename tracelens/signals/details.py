"""What charts and tables show: step rows, a timeline excerpt, top kernels, names of operators and lines behind a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.model import PHASES, KernelRow, Lane, Span, StepRow, Timeline
from tracelens.signals import kernels
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.operators import parents
from tracelens.trace.intervals import Intervals
from tracelens.trace.tables import Device, Host

_EXCERPT_STEPS = 4
_SPANS = 600  # per lane: finer than a screen can show


def step_rows(analysis: RankAnalysis) -> tuple[StepRow, ...]:
    """The steady steps with their own phases."""
    steps = analysis.steps
    if not steps.count:
        return ()
    edges = steps.edges
    parts = analysis.phases.per_step(edges)
    return tuple(
        StepRow(
            step=int(steps.number[steps.first + i]),
            start_ms=float(edges[i] - edges[0]) / 1e6,
            duration_ms=float(edges[i + 1] - edges[i]) / 1e6,
            phases_ms={name: float(parts[name][i]) / 1e6 for name in PHASES},
        )
        for i in range(steps.steady)
    )


def timeline(analysis: RankAnalysis) -> Timeline | None:
    """A few consecutive steps, beginning where the longest of the steady steps is the second one."""
    low, high = analysis.window
    steps = analysis.steps
    boundaries: list[tuple[int, int]] = []
    if steps.count:
        edges = steps.edges
        first = min(max(int(np.argmax(np.diff(edges))) - 1, 0), max(steps.steady - _EXCERPT_STEPS, 0))
        last = min(first + _EXCERPT_STEPS, steps.steady)
        low, high = int(edges[first]), int(edges[last])
        boundaries = [(int(steps.number[steps.first + i]), int(edges[i])) for i in range(first, last)]
    if high <= low:
        return None
    activity = analysis.activity
    lanes = [
        ("loader", "Loader (next)", activity.next),
        ("host", "Host (operators and calls)", activity.operators),
    ]
    if analysis.has_gpu:
        lanes += [
            ("copy", "Copies", activity.busy((Device.H2D, Device.D2H))),
            ("compute", "Kernels", activity.busy((Device.KERNEL, Device.MEMSET, Device.D2D))),
            ("communication", "Communication", activity.busy((Device.COMMUNICATION, Device.P2P))),
        ]
    return Timeline(
        duration_ms=(high - low) / 1e6,
        lanes=tuple(_lane(name, title, spans.clip(low, high), low, high) for name, title, spans in lanes),
        steps=tuple((number, (at - low) / 1e6) for number, at in boundaries),
    )


def _lane(name: str, title: str, spans: Intervals, low: int, high: int) -> Lane:
    shown = spans
    grain = max((high - low) // (2 * _SPANS), 1)
    while len(shown) > _SPANS:
        # close gaps that are narrower than what can be drawn
        shown = Intervals.of(shown.start, shown.end + grain).clip(low, high)
        shown = Intervals.of(shown.start, np.maximum(shown.end - grain, shown.start + 1))
        grain *= 2
    drawn = tuple(
        Span(float(s - low) / 1e6, float(e - low) / 1e6)
        for s, e in zip(shown.start.tolist(), shown.end.tolist(), strict=True)
    )
    return Lane(name, title, drawn, busy=spans.total / (high - low))


def occupancy(analysis: RankAnalysis) -> dict[str, float | None]:
    """Each engine's raw busy share of the window; they may overlap."""
    low, high = analysis.window
    length = max(high - low, 1)

    def share(spans: Intervals) -> float:
        return spans.clip(low, high).total / length

    activity = analysis.activity
    log = analysis.host_log
    workers: float | None = None
    if log is not None:
        busy = log.processes.role_is("worker").cpu_percent
        known = busy[np.isfinite(busy)]
        workers = float(np.clip(known / 100, 0, 1).mean()) if known.size else None
    return {
        "loader_next": share(activity.next) if activity.next_events.any() else None,
        "loader_workers": workers,
        "host_thread": share(activity.operators.union(activity.next)) if len(activity.host) else None,
        "copy_engine": share(activity.busy((Device.H2D, Device.D2H))) if analysis.has_gpu else None,
        "gpu_kernels": share(activity.busy((Device.KERNEL, Device.COMMUNICATION, Device.MEMSET, Device.D2D)))
        if analysis.has_gpu
        else None,
    }


def host_split(analysis: RankAnalysis) -> dict[str, float]:
    """The host phase by what the launching thread did, shares of the window; empty parts left out."""
    parts = analysis.phases.host_parts
    return {name: part.total / max(analysis.length, 1) for name, part in parts.items() if part.total}


def kernel_rows(analysis: RankAnalysis, limit: int = 15) -> tuple[KernelRow, ...]:
    """The kernels that take most GPU time in the window; on a CPU-only trace the operators by self time."""
    if not analysis.has_gpu:
        return _operator_rows(analysis, limit)
    device, names = analysis.activity.device, analysis.tables.names
    spent = np.where(analysis.in_window, device.end - device.start, 0).astype(float)
    total = float(spent.sum())
    if not total:
        return ()
    by_name = np.bincount(device.name, weights=spent, minlength=len(names))
    calls = np.bincount(device.name[analysis.in_window], minlength=len(names))
    operators = kernel_operators(analysis)
    rows = []
    for code in np.argsort(-by_name)[:limit].tolist():
        if not by_name[code]:
            break
        mine = np.flatnonzero((device.name == code) & analysis.in_window)
        limited = mine[analysis.kernels.limit[mine] >= 0]
        limits = np.bincount(analysis.kernels.limit[limited], weights=spent[limited], minlength=4)
        rows.append(KernelRow(
            name=names[code],
            family=_kind_name(int(device.kind[mine[0]])) or kernels.family(names[code]),
            calls_per_step=float(calls[code]) / analysis.step_count,
            ms_per_step=analysis.per_step_ms(float(by_name[code])),
            share=float(by_name[code]) / total,
            limited_by=kernels.LIMITS[int(np.argmax(limits))] if limits.sum() else None,
            operator=operators.get(code),
            **_rates(analysis, mine),
        ))  # fmt: skip
    return tuple(rows)


def _rates(analysis: RankAnalysis, rows: np.ndarray) -> dict[str, Any]:
    """Achieved TFLOP/s and least GB/s of the activities whose work is known, and what their class was read from."""
    classes, device = analysis.kernels, analysis.activity.device
    basis = classes.basis[rows][classes.basis[rows] >= 0]
    found: dict[str, Any] = {
        "basis": kernels.BASES[int(np.argmax(np.bincount(basis)))] if basis.size else None
    }
    if classes.estimate is not None:
        seconds = (device.end - device.start)[rows] / 1e9
        for key, amounts, unit in (
            ("tflops_per_s", classes.estimate.flops[rows], 1e12),
            ("gb_per_s", classes.estimate.bytes[rows], 1e9),
        ):
            known = np.isfinite(amounts) & (amounts > 0) & (seconds > 0)
            found[key] = float(amounts[known].sum() / seconds[known].sum()) / unit if known.any() else None
    return found


def _kind_name(kind: int) -> str | None:
    return {
        Device.H2D: "copy",
        Device.D2H: "copy",
        Device.D2D: "copy",
        Device.P2P: "copy",
        Device.MEMSET: "memset",
    }.get(Device(kind))


def _operator_rows(analysis: RankAnalysis, limit: int) -> tuple[KernelRow, ...]:
    """Operators by self time: what they call counts for itself."""
    host, names = analysis.host_operators, analysis.tables.names
    if not len(host):
        return ()
    begin, end = np.maximum(host.start, analysis.window[0]), np.minimum(host.end, analysis.window[1])
    spent = (end - begin).astype(float)
    own = spent.copy()
    for code in np.unique(host.thread).tolist():
        rows = np.flatnonzero(host.thread == code)
        around = parents(host.start[rows], host.end[rows])
        inner = around >= 0
        np.subtract.at(own, rows[around[inner]], spent[rows[inner]])
    spent = np.maximum(own, 0.0)
    by_name = np.bincount(host.name, weights=spent, minlength=len(names))
    calls = np.bincount(host.name, minlength=len(names))
    total = float(max(analysis.length, 1))
    return tuple(
        KernelRow(
            names[code], "operator", float(calls[code]) / analysis.step_count,
            analysis.per_step_ms(float(by_name[code])), min(float(by_name[code]) / total, 1.0),
        )
        for code in np.argsort(-by_name)[:limit].tolist() if by_name[code]
    )  # fmt: skip


def kernel_operators(analysis: RankAnalysis) -> dict[int, str]:
    """For each kernel name (code), the operator that launches it most often."""
    device, host = analysis.activity.device, analysis.activity.host
    owner = analysis.kernels.owner
    known = owner >= 0
    counts = Counter(zip(device.name[known].tolist(), host.name[owner[known]].tolist(), strict=True))
    best: dict[int, str] = {}
    for (kernel, operator), _ in counts.most_common():
        best.setdefault(kernel, analysis.tables.names[operator])
    return best


def operator_names(analysis: RankAnalysis, rule: str, limit: int = 5) -> tuple[str, ...]:
    """The events that a finding is about, most time first."""
    activity, names = analysis.activity, analysis.tables.names
    host = activity.host
    inside = (host.end > analysis.window[0]) & (host.start < analysis.window[1])
    group = rule.partition(".")[0]
    if rule == "load.custom" or rule == "host.python":
        return python_lines(analysis, limit)
    if group == "load":
        return _most(
            names,
            host.name[activity.next_events & inside],
            host.end[activity.next_events & inside] - host.start[activity.next_events & inside],
            limit,
        )
    if group == "transfer":
        copies = analysis.in_window & np.isin(activity.device.kind, (Device.H2D, Device.D2H))
        return _most(
            names, activity.device.name[copies], (activity.device.end - activity.device.start)[copies], limit
        )
    if group == "communication":
        mine = analysis.in_window & (activity.device.kind == Device.COMMUNICATION)
        return _most(
            names, activity.device.name[mine], (activity.device.end - activity.device.start)[mine], limit
        )
    if rule == "host.sync":
        rows = np.union1d(activity.sync_calls, analysis.copies.row)
        rows = rows[inside[rows]]
        return _most(names, host.name[rows], (host.end - host.start)[rows], limit)
    if rule == "host.allocator":
        rows = activity.allocation_calls[inside[activity.allocation_calls]]
        return _most(names, host.name[rows], (host.end - host.start)[rows], limit)
    if group == "host":
        top = activity.on_launching_thread & inside & (host.kind == Host.OPERATOR)
        return _most(names, host.name[top], (host.end - host.start)[top], limit)
    if group in ("compute", "memory", "healthy"):
        operators = kernel_operators(analysis)
        wanted = {"memory": kernels.MEMORY}.get(
            group, kernels.SMALL if rule == "compute.underfilled" else kernels.ARITHMETIC
        )
        mine = analysis.in_window & (analysis.kernels.limit == wanted)
        codes = activity.device.name[mine]
        spent = np.bincount(
            codes,
            weights=(activity.device.end - activity.device.start)[mine].astype(float),
            minlength=len(names),
        )
        found = [
            operators.get(code, names[code])
            for code in np.argsort(-spent)[: 3 * limit].tolist()
            if spent[code]
        ]
        return tuple(dict.fromkeys(found))[:limit]
    return ()


def _most(names: Sequence[str], codes: np.ndarray, spent: np.ndarray, limit: int) -> tuple[str, ...]:
    if not codes.size:
        return ()
    total = np.bincount(codes, weights=spent.astype(float))
    return tuple(names[code] for code in np.argsort(-total)[:limit].tolist() if total[code] > 0)


def python_lines(analysis: RankAnalysis, limit: int = 5) -> tuple[str, ...]:
    """Python frames (file, line, function) under which the GPU starves longest; needs a trace with stacks."""
    activity, host = analysis.activity, analysis.activity.host
    frames = np.flatnonzero((host.kind == Host.PYTHON) & (host.thread == activity.main_thread))
    idle = analysis.phases.parts["host"].intersect(analysis.phases.starved)
    if not frames.size or not len(idle):
        return ()
    long = np.argsort(-(idle.end - idle.start))[:64]
    spent: Counter[str] = Counter()
    for gap in long.tolist():
        middle = (int(idle.start[gap]) + int(idle.end[gap])) // 2
        covering = frames[(host.start[frames] <= middle) & (host.end[frames] > middle)]
        if covering.size:
            # rows are sorted by start, longest first: the last one that covers the instant is the innermost
            spent[analysis.tables.names[int(host.name[covering[-1]])]] += int(idle.end[gap] - idle.start[gap])
    return tuple(name for name, _ in spent.most_common(limit))
