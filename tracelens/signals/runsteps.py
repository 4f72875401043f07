"""Signals from a bundle's step and loader logs: the whole run, without the profiler.

They replace what the profiled window gave wherever the log says it better: how fast the job is, how often it
waits or stalls, how long a batch takes to make.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import Fetches, RunLog
from tracelens.ingest.tables import TrainingLog
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.deliveries import Waits, waits
from tracelens.signals.loader import burst
from tracelens.signals.quality import mean_error
from tracelens.signals.recurrence import recurs
from tracelens.signals.signal import Signals

STEPS, LOADER = "step log (unprofiled steps)", "loader log"
_STALL = 0.1
_WAITED_MS = 0.5
_FEW = 10
_CROWDED = 0.15  # of the usable cores, busy with others' work


def run_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``steps.*``, ``load.*``, ``host.stall_*`` of the whole run and ``quality.distortion`` of its window."""
    log = analysis.run_log
    if log is None:
        out.missing("needs a recorded bundle", "quality.distortion", "host.stall_foreign", *_LOADER)
        out.add("quality.baseline", False, None, "trace")
        return
    if analysis.has_step_log:
        _speed(analysis, log, out)
        _host(analysis, out)
        _waits(analysis, log, out)
        _stalls(analysis, log, out)
        _epochs(log, out)
    _making(log, out)
    _window(analysis, out)


def corrected_shares(analysis: RankAnalysis) -> dict[str, float]:
    """Phase shares of the steady window; without a GPU the load share is the unprofiled steps' and the rest shrinks to fit.

    The profiler slows operators and not the loader's waits, so that a window understates loading.
    """
    shares = dict(analysis.phases.shares())
    waits, durations = analysis.plain_wait_ms, analysis.plain_ms
    if analysis.has_gpu or not analysis.has_step_log or not np.isfinite(waits).all():
        return shares
    load = float(min(waits.sum() / durations.sum(), 1.0))
    rest = 1 - shares["load"]
    factor = (1 - load) / rest if rest > 0 else 0.0
    return {name: load if name == "load" else value * factor for name, value in shares.items()}


def _speed(analysis: RankAnalysis, log: RunLog, out: Signals) -> None:
    durations = analysis.plain_ms
    out.add("steps.count", len(log.steps), "count", "step log")
    out.add("steps.mean_ms", float(durations.mean()), "ms", STEPS)
    out.add("steps.median_ms", float(np.median(durations)), "ms", STEPS)
    out.add("steps.p95_ms", float(np.percentile(durations, 95)), "ms", STEPS)
    out.add("quality.step_error", mean_error(durations), "ratio", STEPS)
    samples = log.steps.samples[log.steps.plain]
    known = np.isfinite(samples)
    if known.any():
        rate = float(samples[known].sum() / durations[known].sum() * 1e3)
        out.add("throughput.samples_per_s", rate, "samples/s", STEPS)


_HOST = (
    "host.python_ms",
    "host.dispatch_ms",
    "host.optimizer_ms",
    "host.cast_ms",
    "host.allocation_ms",
    "host.saving_ms",
)


def _host(analysis: RankAnalysis, out: Signals) -> None:
    """Without a GPU: host time as unprofiled steps have it; what is between operators grows under the profiler with them."""
    profiled = analysis.step_ms
    if analysis.has_gpu or not profiled:
        return
    traced = analysis.phases.shares()["host"] * profiled
    factor = corrected_shares(analysis)["host"] * float(analysis.plain_ms.mean()) / traced if traced else 1.0
    for name in _HOST:
        value = out.number(name)
        if value is not None:
            out.add(name, value * factor, "ms", "trace, scaled to unprofiled steps")


def _waits(analysis: RankAnalysis, log: RunLog, out: Signals) -> None:
    waits, durations = analysis.plain_wait_ms, analysis.plain_ms
    if not np.isfinite(waits).all():
        return
    mean = float(durations.mean())
    out.add("load.wait_ms", float(waits.mean()), "ms", STEPS)
    if not analysis.has_gpu:
        out.add("load.saving_ms", float(waits.mean()), "ms", STEPS)
    out.add("load.stalled_share", float((waits > _STALL * mean).mean()), "share", STEPS)
    out.add("load.burst", burst(waits), "ratio", STEPS, "no wait in the loader")
    out.add("load.max_wait_ms", float(waits.max()), "ms", STEPS)
    workers = log.settings.get("num_workers")
    if isinstance(workers, int):
        out.add("load.mode", "workers" if workers else "main_process", None, LOADER)


def _stalls(analysis: RankAnalysis, log: RunLog, out: Signals) -> None:
    """Steps that take far longer than usual for another reason than waiting for data."""
    durations, waits = analysis.plain_ms, np.nan_to_num(analysis.plain_wait_ms)
    if durations.size < _FEW:
        return
    held = durations - waits
    usual = float(np.median(held))
    stalled = np.flatnonzero(held > usual + 0.5 * float(np.median(durations)) + 3 * _spread(held))
    if stalled.size > 0.34 * held.size:
        stalled = stalled[:0]
    excess = float((held[stalled] - usual).sum())
    out.add("host.stall_ms", excess / durations.size, "ms", STEPS)
    out.add("host.stall_steps", int(stalled.size), "count", STEPS)
    out.add("host.stall_of", int(held.size), "count", STEPS)
    longest = (
        stalled[held[stalled] - usual >= 0.5 * (held[stalled] - usual).max()] if stalled.size else stalled
    )
    period = recurs(log.steps.step[log.steps.plain][longest])
    out.add("host.stall_period", period, "steps", STEPS, "stalls do not recur at one interval")
    # what comes at odd moments on a machine that others use too may as well be theirs
    others, cores = out.number("machine.foreign_cores"), out.number("machine.usable_cores")
    crowded = others >= _CROWDED * cores if others is not None and cores is not None else None
    out.add(
        "host.stall_foreign", crowded and period is None if crowded is not None else None, None, "step log and host log",
        "the host was not sampled",
    )  # fmt: skip


def _spread(values: NDArray[np.float64]) -> float:
    """Robust standard deviation: 1.4826 times the median absolute deviation (normal consistency)."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _epochs(log: RunLog, out: Signals) -> None:
    """What the first step of an epoch costs beyond an ordinary one, per step of the run."""
    steps = log.steps
    epochs = np.unique(steps.epoch[steps.epoch >= 0])
    if epochs.size < 2:
        out.missing("fewer than two epochs were recorded", "load.epoch_start_ms")
        return
    firsts = np.array([int(np.flatnonzero(steps.epoch == e)[0]) for e in epochs[1:]])
    firsts = firsts[steps.window[firsts] < 0]
    if not firsts.size:
        return
    usual = float(np.median(steps.duration_ms[steps.plain]))
    excess = np.maximum(steps.duration_ms[firsts] - usual, 0.0)
    per_epoch = float(np.mean(np.diff([int(np.flatnonzero(steps.epoch == e)[0]) for e in epochs])))
    out.add("load.epoch_start_ms", float(excess.mean()) / max(per_epoch, 1.0), "ms", STEPS)


_LOADER = (
    "load.service_ms", "load.service_cpu_share", "load.io_share", "load.slowest_ratio", "load.collate_share",
    "load.handover_share",
    "load.batch_bytes", "load.queue_depth", "load.run_delay_share", "load.wanted_cores", "load.wait_in_handover",
    "load.wait_behind_others",
)  # fmt: skip


def _making(log: RunLog, out: Signals) -> None:
    made = log.fetches
    _growth(log, out)
    out.add("load.batch_bytes", log.batch_bytes, "bytes", LOADER, "batch sizes were not recorded")
    depth = log.queue_depth[np.isfinite(log.queue_depth)]
    out.add(
        "load.queue_depth",
        float(depth.mean()) if depth.size else None,
        "count",
        LOADER,
        "no queue: samples are made in the main process",
    )
    if len(made) < 3:
        out.missing("fewer than three batches were recorded", *_LOADER)
        return
    wall = made.wall_ms
    total = max(float(wall.sum()), 1e-9)
    out.add("load.service_ms", float(wall.mean()), "ms", LOADER)
    out.add("load.service_cpu_share", _share(made.cpu_ms, total), "share", LOADER)
    known = np.isfinite(made.cpu_ms)
    out.add("load.io_share", float(made.waiting_ms.sum()) / total if known.all() else None, "share", LOADER)
    out.add("load.run_delay_share", _share(made.run_delay_ms, total), "share", LOADER)
    out.add("load.collate_share", _share(made.collate_ms, total), "share", LOADER)
    if len(made) >= _FEW:
        out.add(
            "load.slowest_ratio", float(np.percentile(wall, 98) / max(np.median(wall), 1e-9)), "ratio", LOADER
        )
    _workers(log, made, out)
    out.missing("the recorder could not read it here", *_LOADER)


def _growth(log: RunLog, out: Signals) -> None:
    """``load.service_growth``: how many times longer a batch takes to make among the most workers measured than alone."""
    if log.points is None:
        return
    measured = log.points.by_workers
    most, alone = max(measured), measured.get(1, measured.get(0))
    cores = log.points.cores
    if most >= 2 and alone and (cores is None or most <= cores):
        out.add("load.service_growth", measured[most] * most / alone, "ratio", "loader measured alone")


def _share(values: NDArray[np.float64], total: float) -> float | None:
    known = values[np.isfinite(values)]
    return min(float(known.sum()) / total, 1.0) if known.size else None


def _workers(log: RunLog, made: Fetches, out: Signals) -> None:
    """How busy the workers are, and what handing batches over costs beside making them."""
    workers = log.settings.get("num_workers")
    if not isinstance(workers, int) or workers < 1 or not (made.worker >= 0).any():
        return
    span = max(float(made.t1.max() - made.t0.min()) / 1e6, 1e-9)
    out.add("load.worker_busy", min(float(made.wall_ms.sum()) / (span * workers), 1.0), "share", LOADER)
    # what they wait for a core is wanted too; what they wait for storage is not
    wanted = float((made.wall_ms - made.waiting_ms).sum()) / span if np.isfinite(made.cpu_ms).all() else None
    if wanted is not None:
        main = out.number("machine.main_cpu") or 0.0
        out.add("load.wanted_cores", min(wanted, float(workers)) + main, "cores", LOADER)
    cpu = made.cpu_ms[np.isfinite(made.cpu_ms)]
    if cpu.size and out.value("machine.worker_cpu") is None:
        out.add("machine.worker_cpu", min(float(cpu.sum()) / (span * workers), 1.0), "cores", LOADER)
    if not out.value("machine.workers"):
        out.add("machine.workers", float(workers), "count", LOADER)
    found = _waited(log, made)
    if found is not None and found.wait.size >= _FEW:
        out.add("load.wait_in_handover", found.share(found.handover), "share", LOADER)
        out.add("load.wait_behind_others", found.share(found.held), "share", LOADER)
    waited = log.steps.wait_ms[np.isfinite(log.steps.wait_ms)]
    quick = waited[waited < np.percentile(waited, 25) + _WAITED_MS] if waited.size else waited
    collate = made.collate_ms[np.isfinite(made.collate_ms)]
    if quick.size and collate.size:
        handover = float(quick.mean()) * workers + float(collate.mean())
        making = max(float(made.wall_ms.mean()) - float(collate.mean()), 0.0)
        out.add(
            "load.handover_share",
            handover / (handover + making) if handover + making > 0 else None,
            "share",
            LOADER,
        )


def _waited(log: RunLog, made: Fetches) -> Waits | None:
    """The waits of unprofiled steps; of an epoch's first, what starting the workers takes is neither of the parts."""
    got = log.deliveries
    keep = log.unprofiled(got.t0, got.t1)
    return waits(got.take(keep), made, log.ahead) if keep.any() else None


def _window(analysis: RankAnalysis, out: Signals) -> None:
    baseline, profiled = analysis.baseline_ms, analysis.step_ms
    known = baseline is not None and profiled is not None and baseline > 0
    out.add("quality.baseline", known, None, "step log")
    out.add(
        "quality.distortion",
        (profiled or 0.0) / (baseline or 1.0) - 1 if known else None, "share", "step log and trace",
        "no unprofiled steps before the window",
    )  # fmt: skip


def log_only_signals(
    log: RunLog | None, training: TrainingLog | None, settings: Mapping[str, object], out: Signals
) -> None:
    """The signals of a run without a trace: from the step log, else from a training log's printed times."""
    if log is not None and len(log.steps):
        plain = log.steps.plain if log.steps.plain.any() else np.ones(len(log.steps), dtype=bool)
        durations, waits, samples = (
            log.steps.duration_ms[plain],
            log.steps.wait_ms[plain],
            log.steps.samples[plain],
        )
        source = "step log"
        _making(log, out)
        if log.steps.plain.sum() >= _FEW:
            _epochs(log, out)
    elif training is not None and len(training):
        durations, waits = training.step_s * 1e3, training.data_s * 1e3
        known = np.isfinite(durations)
        durations, waits, samples = durations[known], waits[known], np.full(int(known.sum()), np.nan)
        source = "training log"
    else:
        out.missing(
            "neither a step log nor a training log with step times",
            "steps.mean_ms",
            "load.saving_ms",
            "phase.load",
        )
        out.add("steps.steady", 0, "count", "logs")
        return
    out.add("steps.source", source, None, source)
    out.add("steps.count", int(durations.size), "count", source)
    out.add("steps.steady", int(durations.size), "count", source)
    if not durations.size:
        return
    mean = float(durations.mean())
    out.add("steps.mean_ms", mean, "ms", source)
    out.add("steps.median_ms", float(np.median(durations)), "ms", source)
    out.add("steps.p95_ms", float(np.percentile(durations, 95)), "ms", source)
    out.add("quality.step_error", mean_error(durations) if mean else None, "ratio", source)
    waited = np.isfinite(waits)
    if waited.any():
        out.add("load.saving_ms", float(waits[waited].mean()), "ms", source)
        out.add("phase.load", float(min(waits[waited].sum() / durations[waited].sum(), 1.0)), "share", source)
        out.add("load.stalled_share", float((waits[waited] > _STALL * mean).mean()), "share", source)
        out.add("load.burst", burst(waits[waited]), "ratio", source, "no wait in the loader")
    out.missing("the log does not say how long steps wait for data", "load.saving_ms", "phase.load")
    workers = settings.get("num_workers")
    if isinstance(workers, int) and not isinstance(workers, bool):
        out.add("load.mode", "workers" if workers else "main_process", None, "loader settings")
    known_samples = np.isfinite(samples)
    batch = settings.get("batch_size")
    if known_samples.any():
        out.add(
            "throughput.samples_per_s",
            float(samples[known_samples].sum() / durations[known_samples].sum() * 1e3),
            "samples/s",
            source,
        )
    elif isinstance(batch, int) and mean:
        out.add("throughput.samples_per_s", batch / mean * 1e3, "samples/s", source)
