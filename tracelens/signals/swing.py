"""GPU utilisation that swings between idle and busy, explained by what the training loop did at those moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.trace.intervals import Intervals
from tracelens.units import number, percent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SAMPLES = 6
_SWING = 0.4  # between the tenth and the ninetieth percentile
_DIPS = 2  # a single dip is an event, not a swing
_EXPLAINS = 0.3  # difference in share between low and high samples
_WORDS = {
    "load": "the training loop waited for the loader",
    "host": "the GPU waited for host code",
    "transfer": "copies between host and GPU ran",
    "communication": "communication ran",
    "other": "nothing was recorded",
}


@dataclass(frozen=True, slots=True)
class Swing:
    """``low``/``high``: mean utilisation of the low and high samples; ``period_s`` between dips (mean).

    ``phase`` is what the loop did in the dips more than otherwise, None where nothing recorded explains them;
    ``correlation`` of idleness with that phase (with loading where none does), -1..1.
    """

    low: float
    high: float
    dips: int
    period_s: float | None
    phase: str | None
    correlation: float | None
    sentence: str


def utilization_swing(analysis: RankAnalysis) -> Swing | None:
    """The swing of a rank's GPU during its trace; None without a log or where utilisation does not swing."""
    log = analysis.gpu_log
    if log is None or not len(log):
        return None
    known = np.isfinite(log.utilization_gpu)
    base = analysis.tables.base_ns
    low, high = (base + t for t in analysis.tables.extent)
    known &= (log.t_ns >= low) & (log.t_ns <= high)
    phases: dict[str, Intervals] = {
        name: Intervals(part.start + base, part.end + base)
        for name, part in analysis.phases.parts.items()
        if name != "compute"
    }
    window = (base + analysis.window[0], base + analysis.window[1])
    return swing_of(log.t_ns[known], log.utilization_gpu[known], phases, window)


def swing_of(
    t_ns: Ints, utilization: Floats, phases: Mapping[str, Intervals], window: tuple[int, int]
) -> Swing | None:
    """``t_ns`` (n,) when samples were taken, ``utilization`` (n,) shares; ``phases`` on the same clock, known in ``window``.

    A sample speaks of the time before it (NVML: 1/6 to 1 s), so it is laid over the span since the sample before.
    """
    if t_ns.size < _SAMPLES:
        return None
    bottom, top = np.percentile(utilization, [10, 90])
    if top - bottom < _SWING:
        return None
    middle = (bottom + top) / 2
    down = utilization < middle
    falls = np.flatnonzero(~down[:-1] & down[1:]) + 1
    if falls.size < _DIPS:
        return None
    period = float(np.diff(t_ns[falls]).mean()) / 1e9 if falls.size > 1 else None
    low, high = float(utilization[down].mean()), float(utilization[~down].mean())
    text = f"GPU utilisation swings between {percent(low)} and {percent(high)}"
    if period is not None:
        text += f" about every {number(round(period, 2))} s"
    phase, correlation, why = _explained(t_ns, utilization, down, phases, window)
    return Swing(low, high, int(falls.size), period, phase, correlation, text + why)


def _explained(
    t_ns: Ints,
    utilization: Floats,
    down: NDArray[np.bool_],
    phases: Mapping[str, Intervals],
    window: tuple[int, int],
) -> tuple[str | None, float | None, str]:
    since = np.concatenate(([t_ns[0] - int(np.median(np.diff(t_ns)))], t_ns[:-1]))
    length = t_ns - since
    inside = (since >= window[0]) & (t_ns <= window[1]) & (length > 0)
    if inside.sum() < _SAMPLES // 2 or not down[inside].any() or down[inside].all():
        return None, None, "; the trace covers too few of those samples to say why."
    shares = {
        name: part.measure(since[inside], t_ns[inside]) / length[inside] for name, part in phases.items()
    }
    dip = down[inside]
    gain = {name: float(share[dip].mean() - share[~dip].mean()) for name, share in shares.items()}
    if not gain:
        return None, None, "."
    phase = max(gain, key=lambda name: gain[name])
    if gain[phase] < _EXPLAINS:
        load = shares.get("load")
        loader = f" (the loader waits {percent(float(load[dip].mean()))} of them)" if load is not None else ""
        told = _correlation(1 - utilization[inside], load) if load is not None else None
        return None, told, f"; nothing that was recorded sets the dips apart{loader}."
    share = shares[phase]
    why = (
        f": in the dips {_WORDS.get(phase, phase)} {percent(float(share[dip].mean()))} of the time, "
        f"otherwise {percent(float(share[~dip].mean()))}."
    )
    return phase, _correlation(1 - utilization[inside], share), why


def _correlation(one: Floats, other: Floats) -> float | None:
    if one.size < 3 or one.std() == 0 or other.std() == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])
