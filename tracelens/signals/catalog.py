"""All signals of one rank, in one place: what rules test, findings show and the result lists as missing."""

from __future__ import annotations

import numpy as np

from tracelens.model import PHASES
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.collectives import collective_signals
from tracelens.signals.communication import communication_signals
from tracelens.signals.conversions import conversion_signals
from tracelens.signals.gpuwork import gpu_signals
from tracelens.signals.hostwork import host_signals
from tracelens.signals.leftovers import leftover_signals
from tracelens.signals.loader import loader_signals
from tracelens.signals.machine import machine_signals
from tracelens.signals.memory import memory_signals
from tracelens.signals.quality import quality_signals
from tracelens.signals.recorded import recorded_signals
from tracelens.signals.rereading import rereading_signals
from tracelens.signals.runsteps import corrected_shares, run_signals
from tracelens.signals.signal import Signals, Value
from tracelens.signals.transfer import transfer_signals

_MOSTLY = 0.3  # of a step: a loader that is waited for longer is the limit, whatever of it is
_FEW_STALL = 0.55  # of the steps: where no more of them wait, it is not for the loader's mean rate


def rank_signals(analysis: RankAnalysis) -> Signals:
    """Every signal of a rank, each with its unit and source or the reason why it is missing."""
    out = Signals()
    _steps(analysis, out)
    shares = corrected_shares(analysis)
    for phase in PHASES:
        out.add(f"phase.{phase}", shares[phase], "share", "trace")
    loader_signals(analysis, out)
    transfer_signals(analysis, out)
    host_signals(analysis, out)
    gpu_signals(analysis, out)
    machine_signals(analysis, out)
    communication_signals(analysis, out)
    collective_signals(analysis, out)
    leftover_signals(analysis, out)
    quality_signals(analysis, out)
    run_signals(analysis, out)
    conversion_signals(analysis, out)
    recorded_signals(analysis.run_log, analysis.whole_host_log, out)
    rereading_signals(analysis.run_log, analysis.whole_host_log, out)
    recorded = analysis.whole_host_log if analysis.run_log is not None else None
    memory_signals(analysis.run_log, recorded, out.number("gpu.memory_total"), out)
    _derived(analysis, out)
    out.missing(
        "needs the loader measured at several numbers of workers (tracelens tune --loader-only)",
        "load.service_growth",
    )
    return out


def _steps(analysis: RankAnalysis, out: Signals) -> None:
    steps = analysis.steps
    out.add("steps.count", steps.count, "count", "trace")
    out.add("steps.steady", steps.steady, "count", "trace")
    durations = steps.durations / 1e6
    if not durations.size:
        # without steps the whole window is one piece of work
        out.add("steps.mean_ms", analysis.length / 1e6, "ms", "trace (whole window)")
        out.missing("no steps were found", "steps.median_ms", "steps.p95_ms")
        return
    out.add("steps.mean_ms", float(durations.mean()), "ms", "trace")
    out.add("steps.median_ms", float(np.median(durations)), "ms", "trace")
    out.add("steps.p95_ms", float(np.percentile(durations, 95)), "ms", "trace")
    batch = analysis.batch_size
    out.add(
        "throughput.samples_per_s",
        batch / float(durations.mean()) * 1e3 if batch else None,
        "samples/s",
        "trace and loader settings",
        "the batch size was not recorded (--loader)",
    )


def _derived(analysis: RankAnalysis, out: Signals) -> None:
    """Signals that join two sources."""
    mode = out.value("load.mode")
    main, worker = out.number("machine.main_cpu"), out.number("machine.worker_cpu")
    out.add(
        "load.thread_cores",
        main if mode == "main_process" else None,
        "cores",
        "host log",
        "samples are not made in the training process, or no host log",
    )
    out.add(
        "load.worker_thread_cores",
        worker if mode == "workers" else None,
        "cores",
        "host log",
        "no worker process, or no host log",
    )
    _workers(mode, worker, out)
    known = [
        v for v in (out.number("load.thread_cores"), out.number("load.worker_thread_cores")) if v is not None
    ]
    out.add("load.busiest_cores", max(known) if known else None, None, "host log")
    _threads(analysis, out)
    rate, link = out.number("transfer.h2d_gb_s"), out.number("pcie.link_gb_s")
    out.add(
        "transfer.link_use",
        rate / link if rate and link else None,
        "share",
        "trace and GPU log",
        "no copy rate or no PCIe link state",
    )
    moved, wide = out.number("transfer.saving_ms"), out.number("load.wide_share")
    # half precision at least; uint8 leaves a quarter
    out.add(
        "transfer.narrow_saving_ms", 0.5 * moved * wide if moved is not None and wide is not None else None, "ms",
        "trace and loader log", "needs a trace and a recorded bundle's batches",
    )  # fmt: skip
    drop, compute = _clock_loss(analysis), out.number("phase.compute")
    length = out.number("steps.mean_ms")
    slowed = (
        drop * compute * length if drop is not None and compute is not None and length is not None else None
    )
    idle = out.number("host.queue_gap_ms")
    out.add("gpu.shared_saving_ms", idle, "ms", "trace", "no GPU work in the trace")
    used, running = out.number("gpu.utilization"), out.number("gpu.busy")
    foreign = used - running if used is not None and running is not None else None
    out.add("gpu.foreign_share", foreign, "share", "GPU log and trace", "no GPU log")
    out.add("gpu.throttle_saving_ms", slowed, "ms", "GPU log and trace", "no clocks in a GPU log")


# One process of a loader with more cores than this computes with several threads; this many threads wait for each core.
_CORES_OF_MAIN, _CORES_OF_WORKER, _THREADS_OF_CORE = 2.0, 1.5, 4.0
_THREADS_OF_OPERATOR = 2.0  # for each usable core


def _threads(analysis: RankAnalysis, out: Signals) -> None:
    """``load.crowded``, ``load.crowded_ms``: library threads while a GPU waits for batches; ``host.crowded``: torch's own
    threads where the operators run on the CPU."""
    saving, step = out.number("load.saving_ms"), out.number("steps.mean_ms")
    seen = (
        (out.number("load.thread_cores"), _CORES_OF_MAIN),
        (out.number("load.worker_thread_cores"), _CORES_OF_WORKER),
        (out.number("load.threads_per_core"), _THREADS_OF_CORE),
    )
    known = any(value is not None for value, _ in seen)
    many = any(value is not None and value >= least for value, least in seen)
    crowded: bool | None = None
    if saving is not None and step:
        waits = saving >= 0.03 * step and not out.value("quality.cpu_only")
        crowded = many if waits and known else None if waits else False
    out.add("load.crowded", crowded, None, "host log", "no process of the loader was sampled")
    out.add(
        "load.crowded_ms",
        saving if crowded else None,
        "ms",
        "host log and trace",
        "the loader's threads do not crowd",
    )
    log, usable = analysis.run_log, out.number("machine.usable_cores")
    threads = log.intraop_threads if log is not None else None
    operators = out.number("host.cpu_compute_share")
    busy = operators is not None and operators >= 0.5
    many_threads = threads >= _THREADS_OF_OPERATOR * usable if threads and usable else None
    out.add(
        "host.crowded",
        many_threads if busy else False,
        None,
        "process and host log",
        "torch's threads were not recorded",
    )


def _clock_loss(analysis: RankAnalysis) -> float | None:
    """Mean loss of SM clock against the highest seen (or the device's maximum) while the trace ran."""
    log = analysis.gpu_log
    if log is None:
        return None
    clock = log.sm_clock_mhz[np.isfinite(log.sm_clock_mhz)]
    if not clock.size:
        return None
    return 1 - float(clock.mean() / np.percentile(clock, 95))


def _workers(mode: Value | None, worker: float | None, out: Signals) -> None:
    """How busy each worker is: computing, and blocked on storage (cores in iowait, spread over the workers)."""
    count, cores, iowait = (
        out.number("machine.workers"),
        out.number("machine.cores"),
        out.number("machine.iowait"),
    )
    blocked = (
        min(iowait * cores / count, 1.0 - min(worker or 0.0, 1.0))
        if mode == "workers" and count and cores and iowait is not None
        else None
    )
    out.add("load.worker_io_wait", blocked, "share", "host log", "no worker process, or no host log")
    if out.value("load.worker_busy") is None:
        busy = min(worker + (blocked or 0.0), 1.0) if mode == "workers" and worker is not None else None
        out.add("load.worker_busy", busy, "share", "host log", "no worker process, or no host log")
    threads, usable = out.number("machine.worker_threads"), out.number("machine.usable_cores")
    crowd = (
        threads * count / usable
        if mode == "workers" and threads and count and usable and threads >= 4
        else None
    )
    out.add("load.threads_per_core", crowd, "count", "host log", "workers run few threads, or no host log")
    # workers that neither compute nor wait for storage while every step waits for them wait to hand over
    busy_share, stalled = out.number("load.worker_busy"), out.number("load.stalled_share")
    idle = busy_share < 0.5 and stalled >= 0.6 if busy_share is not None and stalled is not None else None
    behind = out.number("load.wait_behind_others")
    few = stalled <= _FEW_STALL if stalled is not None else None
    out.add(
        "load.held_back",
        few if behind is None else behind >= 0.5,
        None,
        "trace" if behind is None else "loader log",
        "neither the loader log nor two steps show it",
    )
    late, waiting, step = (
        out.number("load.wait_in_handover"),
        out.number("load.saving_ms"),
        out.number("steps.mean_ms"),
    )
    in_time: bool | None = None
    if late is not None and waiting is not None and step is not None:
        in_time = late >= 0.5 and waiting < _MOSTLY * step
    out.add("load.made_in_time", in_time, None, "loader log", "the loader log does not show it")
    recorded = out.value("load.handover_share") is not None
    out.add(
        "load.handover_limited",
        None if recorded else idle,
        None,
        "host log and trace",
        "the loader log says it better, or no host log",
    )
