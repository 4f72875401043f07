"""The batch size: memory and time against it, and whether a larger one is worth advising."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.diagnose.advice.case import Case, Proposal
from tracelens.diagnose.advice.sizing_cpu import main_memory, operator_time
from tracelens.errors import InputError
from tracelens.model import Curve, Declined, Memory, Recommendation
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.kernels import SMALL
from tracelens.trace.tables import Device
from tracelens.units import percent, size
from tracelens.whatif import graph as g
from tracelens.whatif.batch_memory import MemoryFit, memory_from_timeline
from tracelens.whatif.batch_model import BatchAdvice, advise_batch
from tracelens.whatif.batch_time import TimeFit, time_from_kernels
from tracelens.whatif.replay import Scenario
from tracelens.whatif.scenarios import LOADED, merge

_ALL_WORK = tuple((work, 0.0) for work in range(len(g.DEVICE_WORK)))
_CALLED = 1.2  # a gain that only operators much too small promise; less is a matter of the model's taste
_LARGER = (1.5, 2.0)  # times today's batch
_SHORT_NS = 10_000  # a kernel that takes less takes as long for fewer samples
# of the time in kernels that were not recorded, or in waiting for another rank: beyond that step times at other sizes are
# anybody's guess
_HIDDEN = 0.05
_REASONS = {
    "starved": "the GPU waits for data: a larger batch only waits longer",
    "varying_shapes": "shapes vary from step to step, so memory does not follow the batch size",
    "memory": "nothing larger fits into memory safely",
    "feed": "loading limits at the larger size",
    "unknown_capacity": "memory was not recorded (profile_memory=True, or tracelens record)",
}


def batch_proposals(
    case: Case, starved: bool, feed_ms: float
) -> tuple[list[Proposal], list[Declined], list[Curve], Memory]:
    """A larger batch where it gains, why not where it does not, the curve, and what is known of memory."""
    batch = case.analysis.batch_size
    if not case.analysis.has_gpu:
        called = batch is not None and case.fired("host.python")
        return _without_gpu(case, batch, starved, feed_ms) if called and batch else ([], [], [], Memory())
    fit, capacity, peak = _memory(case, batch)
    time = _time(case, batch, feed_ms)
    if time is None or batch is None:
        return [], [], [], Memory(peak_bytes=peak, capacity_bytes=capacity)
    outside = _outside(case, fit, batch)
    advice = advise_batch(
        time,
        fit,
        batch,
        capacity,
        outside_bytes=outside,
        starved=starved,
        varying_shapes=_varying(case),
        noise=case.noise,
    )
    memory = Memory(
        fit.fixed_bytes if fit else None,
        fit.per_sample_bytes if fit else None,
        peak,
        capacity,
        advice.max_safe,
    )
    curves = [] if starved else [_curve(advice)]
    if advice.suggested is not None and case.cause == "host.periodic_stall":
        # they come every so many steps: larger steps hide them, and they stay as long as they are
        reason = (
            "what stops the host now and then is not a matter of the batch: it would only come less often"
        )
        return [], [Declined("batch_size", advice.suggested, reason)], curves, memory
    if advice.suggested is None:
        return (
            [],
            [
                Declined(
                    "batch_size",
                    advice.considered if advice.considered != batch else 2 * batch,
                    _reason(case, advice),
                )
            ],
            curves,
            memory,
        )
    why = (
        f"Memory: {size(fit.fixed_bytes)} fixed + {size(fit.per_sample_bytes)} a sample; batch {advice.suggested} would use "
        f"{percent(advice.memory_share)}. {advice.caveat}"
        if fit is not None
        else advice.caveat
    )
    rule = "compute.underfilled" if case.fired("compute.underfilled") else case.cause or "compute.arithmetic"
    return [_proposal(case, advice, rule, why)], [], curves, memory


def _proposal(case: Case, advice: BatchAdvice, rule: str, why: str) -> Proposal:
    stated, interval = case.stated(advice.gain, advice.interval)
    recommendation = Recommendation(
        parameter="batch_size", current=advice.current, suggested=advice.suggested, predicted_speedup=stated,
        interval=interval, next_bottleneck=None, rule=rule, snippet=f"DataLoader(..., batch_size={advice.suggested})",
        basis="model", why=why, set_flag=f"--set batch_size={advice.suggested}",
    )  # fmt: skip
    return Proposal(recommendation, in_plan=False)


def _without_gpu(
    case: Case, batch: int, starved: bool, feed_ms: float
) -> tuple[list[Proposal], list[Declined], list[Curve], Memory]:
    """Advised where calling operators is what takes the time."""
    time = operator_time(case, batch, feed_ms)
    if time is None:
        return [], [], [], Memory()
    fit, capacity = main_memory(case, batch)
    advice = advise_batch(time, fit, batch, capacity, starved=starved, noise=case.noise)
    if advice.suggested is None or advice.gain < _CALLED:
        return [], [], [], Memory()
    share = time.fixed_ms / max(time.step_ms(batch), 1e-9)
    why = (
        f"{percent(share)} of a step are Python and operators so small that calling them takes the time, whatever the batch "
        f"size. {advice.caveat}"
    )
    return [_proposal(case, advice, case.cause or "host.python", why)], [], [_curve(advice)], Memory()


def _memory(case: Case, batch: int | None) -> tuple[MemoryFit | None, float | None, float | None]:
    """``(fit, capacity, peak)`` from the allocator's events, several batch sizes in the step log, or neither."""
    analysis = case.analysis
    capacity = case.signals.number("gpu.memory_total")
    log = analysis.run_log
    peak: float | None = None
    if log is not None:
        known = np.isfinite(log.steps.mem_peak)
        peak = float(log.steps.mem_peak[known].max()) if known.any() else None
    events = analysis.tables.memory
    mine = (
        np.flatnonzero((events.device == analysis.activity.gpu) & (events.allocated >= 0))
        if analysis.has_gpu
        else np.empty(0, dtype=int)
    )
    if not mine.size:
        return None, capacity, peak
    allocated = events.allocated[mine].astype(float)
    times = events.time[mine]
    low = int(analysis.steps.begin[analysis.steps.first]) if analysis.steps.count else analysis.window[0]
    high = int(analysis.steps.end[analysis.steps.last]) if analysis.steps.count else analysis.window[1]
    steady = (times >= low) & (times <= high)
    if not steady.any():
        steady[:] = True  # of another window, which holds whole steps and nothing else
    if steady.sum() < 10:
        return None, capacity, peak
    peak = max(peak or 0.0, float(allocated[steady].max()))
    reserved = float(events.reserved[mine][steady].max())
    try:
        if batch is None:
            return None, capacity, peak
        return (
            memory_from_timeline(
                allocated[steady],
                batch,
                peak_bytes=peak,
                reserved_bytes=reserved if reserved > 0 else None,
            ),
            capacity,
            peak,
        )
    except InputError:
        return None, capacity, peak


def _outside(case: Case, fit: MemoryFit | None, batch: int) -> float:
    """Memory in use that the allocator does not know: what the GPU log shows beyond what is reserved."""
    share, total = case.signals.number("gpu.memory_used_share"), case.signals.number("gpu.memory_total")
    if share is None or total is None or fit is None:
        return 0.0
    return max(share * total - fit.reserved(batch), 0.0)


def _time(case: Case, batch: int | None, feed_ms: float) -> TimeFit | None:
    """``feed_ms``: what the loader alone needs for a batch, 0 where that is unknown."""
    if batch is None or not case.analysis.has_gpu or case.replayed is None or not case.analysis.steps.count:
        return None
    if case.replayed.graph.hidden.sum() > _HIDDEN * case.replayed.graph.recorded_ns:
        return None  # kernels of CUDA graphs that were not recorded: nobody knows how they grow
    if (case.signals.number("communication.waiting_ms") or 0.0) > _HIDDEN * case.step_ms:
        return None  # another rank sets the pace, and this trace does not show by what
    analysis = case.analysis
    device, steps = analysis.activity.device, analysis.steps
    kernels = np.flatnonzero(
        (device.kind <= Device.MEMSET)
        & (steps.owner >= steps.first)
        & (steps.owner <= steps.last)
        & (device.kind != Device.H2D)
    )
    if not kernels.size:
        return None
    duration = (device.end - device.start)[kernels] / 1e6
    one = np.flatnonzero(steps.owner[kernels] == steps.first + steps.steady // 2)
    sample = duration[one] if one.size else duration / steps.steady
    growing = grows(analysis, kernels)
    floor = case.speedups([merge(Scenario("launch", device=_ALL_WORK, copy_wait=False), LOADED)])
    floor_ms = case.step_ms / floor[0] if floor else 0.0
    try:
        fit = time_from_kernels(
            float(batch),
            sample,
            grows=growing[one] if one.size else growing,
            launch_floor_ms=floor_ms,
            feed_ms_per_sample=feed_ms / batch,
        )
    except InputError:
        return None
    if case.replayed.few:
        return fit  # one or two steps are replayed as recorded, and hold what was queued before them
    gains = case.speedups([_larger(case, kernels, growing, ratio) for ratio in _LARGER])
    if gains is None:
        return fit
    points = [(batch * ratio, case.step_ms / gain) for ratio, gain in zip(_LARGER, gains, strict=True)]
    return replace(fit, points=((float(batch), case.step_ms), *points))


def grows(analysis: RankAnalysis, kernels: np.ndarray) -> np.ndarray:
    """Which of these device activities have work that grows with the batch.

    Not an optimizer's; not those that leave most of the GPU idle, which have room for twice the samples; not those so
    short that launching them is what they take.
    """
    device = analysis.activity.device
    started = analysis.activity.host.start[np.maximum(device.launch[kernels], 0)]
    optimizer = analysis.activity.optimizer.covers(started)
    small = analysis.kernels.limit[kernels] == SMALL
    long = (device.end - device.start)[kernels] >= _SHORT_NS
    return np.asarray(~optimizer & ~small & long, dtype=bool)


def _larger(case: Case, kernels: np.ndarray, growing: np.ndarray, ratio: float) -> Scenario:
    """A batch ``ratio`` times as large: its kernels, its copies, its conversion on the host and its loading grow."""
    assert case.replayed is not None
    graph, device = case.replayed.graph, case.analysis.activity.device
    names = case.analysis.tables.names
    spent = (device.end - device.start)[kernels].astype(np.float64)
    total = np.bincount(device.name[kernels], weights=spent, minlength=len(names))
    grown = np.bincount(device.name[kernels], weights=spent * growing, minlength=len(names))
    # the same kernel may belong to the model here and to the optimizer there
    share = np.divide(grown, total, out=np.zeros_like(total), where=total > 0)[graph.names]
    share[np.isin(graph.work, (g.H2D, g.D2H_BULK))] = 1.0
    share[np.isin(graph.work, (g.COMMUNICATION, g.D2H_SMALL))] = 0.0
    return Scenario(
        f"batch x {ratio}",
        host=((g.LOAD, ratio), (g.CAST, ratio)),
        loader=ratio,
        durations=graph.duration * (1.0 + (ratio - 1.0) * share),
    )


def _varying(case: Case) -> bool:
    """Whether steps launch different numbers of kernels or the log shows different batch sizes: shapes change."""
    counts = case.analysis.step_kernels
    return bool(counts.size >= 4 and counts.std() > 0.05 * counts.mean())


def _reason(case: Case, advice: BatchAdvice) -> str:
    share = (
        f"batch {advice.considered} would use {percent(advice.memory_share)} of memory"
        if advice.memory_share
        else ""
    )
    if advice.reason == "no_gain":
        gain = max(advice.gain - 1, 0.0)
        return f"{share + ' but' if share else 'it'} gains {percent(gain)}: the kernels fill the GPU already"
    reason = _REASONS.get(advice.reason or "", "it gains nothing here")
    return f"{reason} ({share})" if share and advice.reason != "memory" else reason


def _curve(advice: BatchAdvice) -> Curve:
    points = advice.curve
    return Curve(
        "batch_size", "Predicted throughput by batch size", "samples/s", tuple(float(p.batch) for p in points),
        tuple(p.samples_per_s for p in points), tuple(p.low for p in points), tuple(p.high for p in points),
        current=float(advice.current), suggested=float(advice.suggested) if advice.suggested else None,
    )  # fmt: skip
