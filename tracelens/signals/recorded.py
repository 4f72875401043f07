"""Signals that only a recorded bundle has: torch's switches, pauses of the garbage collector, the sampler, what fetches read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import RunLog
from tracelens.ingest.tables import HostLog
from tracelens.signals.signal import Signals
from tracelens.signals.startup import CROWDING, crowding_signals

Floats = NDArray[np.float64]

STEPS, LOADER, PROCESS = "step log (unprofiled steps)", "loader log", "process log"
_FEW = 10
_VARIED = 0.5  # coefficient of variation from which a slope over pauses means anything
_SWITCHES = {
    "torch.anomaly_mode": "anomaly", "torch.cudnn_benchmark": "cudnn_benchmark", "torch.cudnn_enabled": "cudnn_enabled",
    "torch.deterministic": "deterministic",
}  # fmt: skip
_PAUSES = ("host.gc_ms", "host.gc_worst_ms", "host.gc_saving_ms")
_SAMPLER = ("load.sampler_ms", "load.sampler_start_ms", "load.sampler_bytes", "load.sampler_memory_share")
_READING = (
    "load.read_size_bytes",
    "load.read_calls",
    "load.read_bytes",
    "load.read_amplification",
    "load.read_mb_s",
)
_BATCHES = (
    "load.sample_ms",
    "load.wide_share",
    "load.double_share",
    "load.batch_shapes",
    "load.new_shape_share",
    "cudnn.retuned_share",
)
_OTHERS = ("load.validation_start_ms", "machine.platform")
_LOADER = (
    "loader.dataset_module",
    "loader.dataset_format",
    "loader.getitems",
    "loader.file_system",
    "loader.sampler",
)


def recorded_signals(log: RunLog | None, host: HostLog | None, out: Signals) -> None:
    """``torch.*``, ``host.gc_*``, ``load.sampler_*``, ``load.read_*`` and what batches are made of; ``host`` samples are of
    the whole run."""
    every = (*_LOADER, *_SWITCHES, *_PAUSES, *_SAMPLER, *_READING, *_BATCHES, *CROWDING, *_OTHERS)
    if log is None:
        out.missing("needs a recorded bundle", *every)
        return
    for name in _LOADER:
        value = log.settings.get(name.partition(".")[2])
        if isinstance(value, int | float | str | bool):
            out.add(name, value, None, LOADER)
    _switches(log, out)
    crowding_signals(log, host, out)
    _pauses(log, out)
    _sampler(log, host, out)
    _reading(log, out)
    _batches(log, out)
    if log.other_starts_ms is not None and len(log.steps):
        out.add("load.validation_start_ms", log.other_starts_ms / len(log.steps), "ms", LOADER)
    out.missing("no second loader starts its workers anew", "load.validation_start_ms")
    out.missing("fewer than ten steps count collections", *_PAUSES)
    out.missing("fewer than ten batches time the sampler", *_SAMPLER)
    out.missing("fewer than ten fetches count what they read", *_READING)
    out.missing("fewer than ten batches were recorded", *_BATCHES)
    out.missing("the recorder did not write it", *every)


def _switches(log: RunLog, out: Signals) -> None:
    """Torch's flags as they were in the newest window, else when the process began to train."""
    flags: dict[str, Any] = {}
    for one in (log.process.get("flags"), *(window.get("flags") for window in log.windows)):
        if isinstance(one, Mapping):
            flags.update({name: value for name, value in one.items() if value is not None})
    for name, key in _SWITCHES.items():
        value = flags.get(key)
        out.add(name, value if isinstance(value, bool) else None, None, PROCESS, "needs a recorded bundle")
    platform = log.process.get("platform") if log is not None else None
    out.add(
        "machine.platform",
        platform if isinstance(platform, str) else None,
        None,
        PROCESS,
        "needs a recorded bundle",
    )


def _pauses(log: RunLog, out: Signals) -> None:
    if log.steps.gc_ms.size != len(log.steps):
        return
    rows = log.steps.plain & np.isfinite(log.steps.gc_ms)
    if int(rows.sum()) < _FEW:
        return
    pauses, durations = log.steps.gc_ms[rows], log.steps.duration_ms[rows]
    world = log.process.get("world_size")
    ranks = world if isinstance(world, int) and not isinstance(world, bool) and world > 1 else 1
    out.add("host.gc_ms", float(pauses.mean()), "ms", STEPS)
    out.add("host.gc_worst_ms", float(pauses.max()), "ms", STEPS)
    exposed = exposure(pauses, durations, out.number("host.saving_ms"))
    out.add("host.gc_saving_ms", exposed * expected_largest(pauses, ranks), "ms", STEPS)


def exposure(pauses: Floats, durations: Floats, starved: float | None) -> float:
    """Share of the pauses by which steps are longer, 0..1: a host that runs ahead of its GPU hides them.

    Where pauses vary from step to step, the slope of durations over pauses; else whether the GPU is ``starved`` (ms a
    step, None where unknown) for at least half as long.
    """
    mean = float(pauses.mean())
    if float(pauses.std()) > _VARIED * mean > 0:
        slope = float(np.cov(pauses, durations)[0, 1] / pauses.var(ddof=1))
        return min(max(slope, 0.0), 1.0)
    return 0.0 if starved is not None and starved < 0.5 * mean else 1.0


def expected_largest(values: Floats, draws: int) -> float:
    """Mean of the largest of so many independent draws from ``values``: ranks that meet at a collective wait for the one
    that pauses longest."""
    ordered = np.sort(values)
    below = np.arange(ordered.size + 1) / ordered.size
    return float((ordered * np.diff(below**draws)).sum())


def _sampler(log: RunLog, host: HostLog | None, out: Signals) -> None:
    """Time in the sampler a step, its first call of each pass spread over that pass."""
    spent, passes = log.batches.sampler_ms, log.passes
    known = np.isfinite(spent)
    if int(known.sum()) < _FEW or not len(log.steps):
        return
    starts = passes.sampler_ms[np.isfinite(passes.sampler_ms)]
    start = float(np.median(starts)) if starts.size else None
    out.add("load.sampler_start_ms", start, "ms", LOADER, "the begin of no pass was recorded")
    length = _pass_length(log)
    # without workers the first batch of a pass carries the start
    ordinary = float(np.median(spent[known]))
    each = ordinary + start / length if start is not None and length else None
    per_step = max(len(log.batches) / len(log.steps), 1.0)
    out.add(
        "load.sampler_ms",
        each * per_step if each is not None else None,
        "ms",
        LOADER,
        "the length of a pass is not known",
    )
    sizes = passes.sampler_bytes[np.isfinite(passes.sampler_bytes)]
    if not sizes.size:
        return
    out.add("load.sampler_bytes", float(np.median(sizes)), "bytes", LOADER)
    if host is not None and len(host):
        mains = np.unique(host.processes.pid[host.processes.role == "main"]).size
        total = host.mem_total[np.isfinite(host.mem_total)]
        if mains and total.size:
            share = float(np.median(sizes)) * mains / float(total.max())
            out.add("load.sampler_memory_share", share, "share", "loader log and host log")


def _pass_length(log: RunLog) -> float | None:
    """Batches in a pass: of passes that ran out, else from the data set's length."""
    ended = log.passes.batches[np.isfinite(log.passes.batches)]
    if ended.size and ended.max() > 0:
        return float(ended.max())
    length, batch = log.settings.get("dataset_len"), log.settings.get("batch_size")
    if not isinstance(length, int) or not isinstance(batch, int) or batch < 1:
        return None
    world = log.process.get("world_size")
    return max(length / batch / (world if isinstance(world, int) and world > 1 else 1), 1.0)


def _reading(log: RunLog, out: Signals) -> None:
    made = log.fetches
    rows = np.isfinite(made.rchar) & np.isfinite(made.syscr)
    if int(rows.sum()) < _FEW:
        return
    calls, asked = float(made.syscr[rows].sum()), float(made.rchar[rows].sum())
    # files that are mapped into memory are read from storage without a call
    read = float(np.maximum(made.rchar[rows], np.nan_to_num(made.read_bytes[rows])).sum())
    out.add("load.read_calls", calls / int(rows.sum()), "count", LOADER)
    out.add(
        "load.read_size_bytes",
        asked / calls if calls else None,
        "bytes",
        LOADER,
        "the fetches made no read call",
    )
    out.add("load.read_bytes", read / int(rows.sum()), "bytes", LOADER)
    held = made.bytes[rows & np.isfinite(made.bytes)]
    out.add(
        "load.read_amplification", read / int(rows.sum()) / float(held.mean()) if held.size and held.mean() else None, "ratio",
        LOADER, "batch sizes were not recorded",
    )  # fmt: skip
    waited = float(made.waiting_ms[rows].sum())
    out.add(
        "load.read_mb_s", read / waited / 1e3 if waited else None, "MB/s", LOADER, "the fetches never waited"
    )


def _batches(log: RunLog, out: Signals) -> None:
    made, got = log.fetches, log.batches
    samples = made.samples[np.isfinite(made.samples)] if len(made) else got.samples[np.isfinite(got.samples)]
    if not samples.size:
        samples = got.samples[np.isfinite(got.samples)]
    if len(made) >= 3 and samples.size and np.median(samples) > 0:
        each = float(made.wall_ms.mean()) / float(np.median(samples))
        out.add("load.sample_ms", each, "ms", LOADER)
    known = np.isfinite(got.bytes) & np.isfinite(got.wide_bytes) & (got.bytes > 0)
    if int(known.sum()) >= _FEW:
        total = float(got.bytes[known].sum())
        out.add("load.wide_share", float(got.wide_bytes[known].sum()) / total, "share", LOADER)
        out.add("load.double_share", float(got.double_bytes[known].sum()) / total, "share", LOADER)
    _shapes(got.bytes, got.samples, out)


def _shapes(size: Floats, samples: Floats, out: Signals) -> None:
    """Distinct sizes of a sample, and how many batches bring a new one after the first ten."""
    known = np.isfinite(size) & (samples > 0)
    each = np.round(size[known] / samples[known])
    if each.size < _FEW:
        return
    kinds, first = np.unique(each, return_index=True)
    out.add("load.batch_shapes", int(kinds.size), "count", LOADER)
    later = each.size - _FEW
    fresh = float((first >= _FEW).sum()) / later if later > 0 else None
    out.add("load.new_shape_share", fresh, "share", LOADER, "only ten batches were recorded")
    benchmark = out.value("torch.cudnn_benchmark")
    retuned = fresh if benchmark is True else 0.0 if benchmark is False else None
    out.add(
        "cudnn.retuned_share",
        retuned,
        "share",
        "loader log and process log",
        "torch's switches were not recorded",
    )
