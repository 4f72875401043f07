"""Regimes: the kinds of steps of a run, each named by what sets it apart, with its share, its verdict and its rhythm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import StepLog
from tracelens.ingest.tables import THROTTLE_BITS, GpuLog
from tracelens.model import PHASES, Bottleneck, Regime, StepRow
from tracelens.signals import kernels
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.clusters import WORTH, step_groups
from tracelens.signals.recurrence import Recurrence, recurrence
from tracelens.signals.signal import Signals
from tracelens.signals.swing import utilization_swing
from tracelens.units import milliseconds, percent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEADY = "steady"
_CLASS: Mapping[str, Bottleneck] = {
    "load": "cpu", "host": "cpu", "transfer": "h2d_copy", "communication": "communication",
}  # fmt: skip
_RARE = {
    "load": "loader stall", "host": "host stall", "transfer": "copy stall", "communication": "communication stall",
    "compute": "slow kernels", "other": "slow steps",
}  # fmt: skip
_LASTING = {
    "load": "slow loader", "host": "slow host", "transfer": "slow copies", "communication": "slow communication",
    "compute": "slow kernels", "other": "slow steps",
}  # fmt: skip
_WAIT = {
    "load": "waiting for the loader", "host": "on the host", "transfer": "copying", "communication": "communicating",
    "compute": "in kernels",
}  # fmt: skip
_CLOCK_CUT = 0.95  # clocks below this share of the common steps' are cut
_CUT_BITS = sum(THROTTLE_BITS[name] for name in (
    "sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
))  # fmt: skip


def find_regimes(
    analysis: RankAnalysis, bottleneck: Bottleneck = "inconclusive"
) -> tuple[tuple[Regime, ...], Ints]:
    """The regimes of a rank's steady steps, the most common first, and the regime (index) of each steady step.

    ``bottleneck`` is the run's verdict, which a run of one regime shares. No steps: no regimes.
    """
    steps = analysis.steps
    if not steps.steady:
        return (), np.empty(0, dtype=np.int64)
    edges = steps.edges
    parts = analysis.phases.per_step(edges)
    phases = np.column_stack([parts[name] for name in PHASES]) / 1e6
    batch, length = analysis.batch_size, analysis.settings.get("dataset_len")
    epoch = None
    if batch and isinstance(length, int) and not isinstance(length, bool) and length > 0:
        epoch = round(length / batch / max(analysis.tables.world_size or 1, 1))
    return regimes_of(
        np.diff(edges) / 1e6,
        phases,
        start_s=edges[:-1] / 1e9,
        numbers=steps.number[steps.first : steps.last + 1],
        epoch_steps=epoch,
        cut_clocks=step_clocks(analysis.gpu_log, analysis.tables.base_ns + edges),
        bottleneck=bottleneck,
        work=_kernel_class(analysis),
    )


def run_regimes(
    log: StepLog, bottleneck: Bottleneck = "inconclusive", work: Bottleneck = "gpu"
) -> tuple[tuple[Regime, ...], Ints]:
    """As ``find_regimes`` over a whole run, from the unprofiled steps of its step log; only loading is known of them."""
    rows = np.flatnonzero(log.plain & (log.duration_ms > 0))
    phases = np.zeros((rows.size, len(PHASES)))
    phases[:, PHASES.index("load")] = np.nan_to_num(log.wait_ms[rows])
    epochs = log.epoch[rows]
    return regimes_of(
        log.duration_ms[rows],
        phases,
        start_s=(log.t0[rows] - log.t0[rows[:1]]) / 1e9,
        numbers=log.step[rows],
        epochs=epochs if (epochs >= 0).all() else None,
        bottleneck=bottleneck,
        work=work,
    )


def regimes_of(
    durations_ms: Floats,
    phases_ms: Floats | None = None,
    *,
    start_s: Floats | None = None,
    numbers: Sequence[int] | Ints | None = None,
    epoch_steps: int | None = None,
    epochs: Ints | None = None,
    cut_clocks: Floats | None = None,
    bottleneck: Bottleneck = "inconclusive",
    work: Bottleneck = "gpu",
) -> tuple[tuple[Regime, ...], Ints]:
    """As ``find_regimes`` from bare numbers, for a step log as for a trace.

    ``durations_ms`` (n,), ``phases_ms`` (n, 6) in the order of ``PHASES``, NaN where unknown; ``start_s`` (n,) when each
    step began; ``numbers`` (n,) what it is called; ``cut_clocks`` (n,) SM clock relative to the highest, NaN where
    unknown; ``epoch_steps``, ``epochs`` as in ``recurrence``; ``work`` the class of the run's kernels.
    """
    durations = np.asarray(durations_ms, dtype=np.float64)
    if not durations.size:
        return (), np.empty(0, dtype=np.int64)
    known = np.zeros((durations.size, len(PHASES))) if phases_ms is None else np.nan_to_num(phases_ms)
    labels = step_groups(durations, known)
    count = int(labels.max()) + 1
    if count == 1:
        return (Regime(STEADY, 1.0, 1.0, bottleneck, float(durations.mean())),), labels
    if start_s is None:
        start_s = np.concatenate(([0.0], np.cumsum(durations)[:-1])) / 1e3
    common, usual = float(durations[labels == 0].mean()), known[labels == 0].mean(axis=0)
    rhythms = _rhythms(labels, start_s, numbers, epoch_steps, epochs)
    found = []
    for index, again in enumerate(rhythms):
        mine = labels == index
        mean, own = float(durations[mine].mean()), known[mine].mean(axis=0)
        if index == 0:
            name, verdict = STEADY, _common_verdict(own / mean, bottleneck, work)
        else:
            phase = _difference(own - usual, mean - common)
            name = _name(phase, mean - common, again, _clocks_cut(cut_clocks, labels, index))
            verdict = _rare_verdict(phase, mean - common, own / mean, work)
        share = float(durations[mine].sum() / durations.sum())
        found.append(Regime(name, float(mine.mean()), share, verdict, mean, again.text))
    return _distinct(found), labels


def _rhythms(
    labels: Ints,
    start_s: Floats,
    numbers: Sequence[int] | Ints | None,
    epoch_steps: int | None,
    epochs: Ints | None,
) -> list[Recurrence]:
    """How each group recurs. A lasting one is told with the other uncommon groups left out, which may interrupt it."""
    called = np.arange(labels.size) if numbers is None else np.asarray(numbers)
    count = int(labels.max()) + 1

    def among(index: int, others: set[int]) -> Recurrence:
        rows = np.flatnonzero(np.isin(labels, [index, *others]))
        return recurrence(labels[rows] == index, numbers=called[rows])

    lasting = {i: again for i in range(1, count) if (again := among(i, {0})).sustained}
    rhythms = [Recurrence()]
    if lasting and (again := among(0, set(lasting))).sustained:
        # the common steps recur where the others leave room: only a stretch of them is worth saying
        rhythms = [again]
    for index in range(1, count):
        again = lasting.get(index) or recurrence(labels == index, start_s, called, epoch_steps, epochs)
        rhythms.append(again)
    return rhythms


def _difference(own: Floats, slower: float) -> str:
    """The phase that grew most where steps are slower, shrank most where they are faster; "other" where none explains it."""
    change = own if slower >= 0 else -own
    at = int(np.argmax(change))
    return PHASES[at] if change[at] >= 0.5 * abs(slower) and change[at] > 0 else "other"


def _name(phase: str, slower: float, again: Recurrence, clocks_cut: bool) -> str:
    if slower < 0:
        return "fast"
    if clocks_cut and phase in ("compute", "other"):
        return "throttled"
    if again.epoch and phase in ("load", "host", "other"):
        return "epoch start"
    if again.sustained:
        return _LASTING[phase]
    if again.burst >= 1.5 and phase in ("load", "host"):
        return "stall burst" if phase == "load" else "host stall burst"
    return _RARE[phase]


def _rare_verdict(phase: str, slower: float, shares: Floats, work: Bottleneck) -> Bottleneck:
    if slower < 0:
        return _by_shares(shares, work)
    return work if phase == "compute" else _CLASS.get(phase, "inconclusive")


def _common_verdict(shares: Floats, bottleneck: Bottleneck, work: Bottleneck) -> Bottleneck:
    """The run's verdict, unless it is a waste that the common steps do not have."""
    if bottleneck not in ("cpu", "h2d_copy", "communication"):
        return bottleneck if bottleneck != "inconclusive" else _by_shares(shares, work)
    waste = _waste(shares)
    return bottleneck if waste[bottleneck] >= WORTH else _by_shares(shares, work)


def _waste(shares: Floats) -> dict[Bottleneck, float]:
    waste: dict[Bottleneck, float] = {"cpu": 0.0, "h2d_copy": 0.0, "communication": 0.0}
    for name, share in zip(PHASES, shares.tolist(), strict=True):
        if name in _CLASS:
            waste[_CLASS[name]] += share
    return waste


def _by_shares(shares: Floats, work: Bottleneck) -> Bottleneck:
    """Waste first, then the kernels, by phase shares alone: there is no replay of a few steps."""
    waste = _waste(shares)
    largest = max(waste, key=lambda name: waste[name])
    if waste[largest] >= WORTH:
        return largest
    if shares[PHASES.index("compute")] >= WORTH:
        return work
    return "inconclusive"


def _kernel_class(analysis: RankAnalysis) -> Bottleneck:
    """Which kernels take more time: limited by memory, or by arithmetic and size."""
    if not analysis.has_gpu:
        return "cpu"
    memory = analysis.kernels.share(analysis.activity, kernels.MEMORY, analysis.in_window) or 0.0
    rest = [
        analysis.kernels.share(analysis.activity, limit, analysis.in_window) or 0.0
        for limit in (kernels.ARITHMETIC, kernels.SMALL)
    ]
    return "memory_bandwidth" if memory > sum(rest) else "gpu"


def step_clocks(log: GpuLog | None, edges_ns: Ints) -> Floats | None:
    """SM clock during each step relative to the log's highest, 0 where the driver says it is cut; None without clocks."""
    if log is None:
        return None
    known = np.isfinite(log.sm_clock_mhz)
    if known.sum() < 2:
        return None
    times, clock = log.t_ns[known], log.sm_clock_mhz[known] / np.percentile(log.sm_clock_mhz[known], 95)
    reasons = log.throttle_reasons[known]
    cut = (reasons > 0) & (reasons & _CUT_BITS > 0)
    middle = (edges_ns[:-1] + edges_ns[1:]) / 2
    nearest = np.clip(np.searchsorted(times, middle), 1, times.size - 1)
    nearest = np.where(middle - times[nearest - 1] < times[nearest] - middle, nearest - 1, nearest)
    found = np.where(cut[nearest], np.minimum(clock[nearest], _CLOCK_CUT - 0.05), clock[nearest])
    # a sample further off than samples are from each other says nothing about a step
    far = np.abs(times[nearest] - middle) > 2 * float(np.median(np.diff(times)))
    return np.where(far, np.nan, found)


def _clocks_cut(clocks: Floats | None, labels: Ints, index: int) -> bool:
    if clocks is None:
        return False
    own, usual = (clocks[(labels == i) & np.isfinite(clocks)] for i in (index, 0))
    return bool(own.size and usual.size and np.median(own) < _CLOCK_CUT * np.median(usual))


def _distinct(regimes: Sequence[Regime]) -> tuple[Regime, ...]:
    """Labels are keys: those that occur twice carry their mean."""
    names = [one.label for one in regimes]
    return tuple(
        one if names.count(one.label) == 1 or one.label == STEADY
        else Regime(
            f"{one.label} ({milliseconds(one.mean_ms)})", one.share_of_steps, one.share_of_time, one.bottleneck,
            one.mean_ms, one.period,
        )
        for one in regimes
    )  # fmt: skip


def with_regimes(rows: Sequence[StepRow], regimes: Sequence[Regime], labels: Ints) -> tuple[StepRow, ...]:
    """The rows of the steady steps with the names of their regimes; unnamed where all are of one."""
    if len(regimes) < 2 or len(rows) != labels.size:
        return tuple(rows)
    return tuple(
        replace(row, regime=regimes[label].label) for row, label in zip(rows, labels.tolist(), strict=True)
    )


def sentence(
    regimes: Sequence[Regime], labels: Ints, durations_ms: Floats, phases_ms: Floats | None = None
) -> str | None:
    """The regimes in words: "3 of 4 steps take 100 ms; loader stall every 4 steps: ..."; None where there is one."""
    if len(regimes) < 2:
        return None
    durations = np.asarray(durations_ms, dtype=np.float64)
    common = float(durations[labels == 0].mean())
    count = int((labels == 0).sum())
    said = [f"{_fraction(count, durations.size)} steps take {milliseconds(common)}"]
    for index, one in enumerate(regimes):
        if index == 0 or one.mean_ms is None:
            continue
        mine = labels == index
        extra = one.mean_ms - common
        where = ""
        if phases_ms is not None and extra > 0:
            own = np.nan_to_num(phases_ms)
            phase = _difference(own[mine].mean(axis=0) - own[labels == 0].mean(axis=0), extra)
            where = f" {_WAIT[phase]}" if phase in _WAIT else ""
        when = one.period or f"in {int(mine.sum())} of {durations.size} steps"
        change = f"{milliseconds(abs(extra))} {'more' if extra >= 0 else 'less'}{where}"
        said.append(
            f"{one.label} {when}: {milliseconds(one.mean_ms)} ({change}), {percent(one.share_of_time)} of the time"
        )
    return "; ".join(said) + "."


def _fraction(part: int, whole: int) -> str:
    """``3 of 4`` where that is what it is (nearly, among many steps), else the counts."""
    best = f"{part} of {whole}"
    nearest = 0.5 / whole
    for small in range(2, min(10, whole) + 1):
        top = round(part * small / whole)
        error = abs(top / small - part / whole)
        if 0 < top < small and (error == 0 or whole >= 5 * small) and error < nearest:
            best, nearest = f"{top} of {small}", error
    return best


def regime_signals(
    analysis: RankAnalysis, out: Signals, found: tuple[tuple[Regime, ...], Ints] | None = None
) -> None:
    """``regimes.*``: how many, the time that the uncommon slower steps take, what is said about them, the swing of the GPU."""
    regimes, labels = found or find_regimes(analysis)
    out.add("regimes.count", len(regimes) or None, "count", "trace", "no steps were found")
    steps = analysis.steps
    durations = steps.durations / 1e6
    if len(regimes) > 1:
        common = float(durations[labels == 0].mean())
        means = np.array([one.mean_ms or 0.0 for one in regimes])
        excess = float(np.maximum(means - common, 0.0)[labels].sum())
        parts = analysis.phases.per_step(steps.edges)
        phases = np.column_stack([parts[name] for name in PHASES]) / 1e6
        out.add("regimes.slow_share", excess / float(durations.sum()), "share", "trace")
        out.add("regimes.summary", sentence(regimes, labels, durations, phases), None, "trace")
    else:
        reason = "all steps behave alike" if regimes else "no steps were found"
        out.missing(reason, "regimes.slow_share", "regimes.summary")
    swing = utilization_swing(analysis)
    if swing is None:
        reason = "no GPU log beside the trace, or its utilisation does not swing"
        out.missing(reason, "regimes.utilization_swing", "regimes.swing_period_s", "regimes.swing_explained")
        return
    out.add("regimes.utilization_swing", swing.sentence, None, "GPU log and trace")
    out.add("regimes.swing_period_s", swing.period_s, "s", "GPU log")
    out.add("regimes.swing_explained", swing.correlation, "ratio", "GPU log and trace")
