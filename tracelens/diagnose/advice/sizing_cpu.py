"""A larger batch for a job without a GPU: gained where operators are so small that calling them is what takes the time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracelens.diagnose.advice.case import Case
from tracelens.errors import InputError
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.hostwork import LONG_PYTHON_NS
from tracelens.signals.operators import parent_operators
from tracelens.trace.intervals import Intervals
from tracelens.trace.tables import Host
from tracelens.whatif.batch_memory import MemoryFit
from tracelens.whatif.batch_time import TimeFit, time_from_kernels

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# An eager operator costs 2 to 10 us whatever its size; below four times that the size hardly shows.
_SMALL_MS = 0.02


def operator_time(case: Case, batch: int, feed_ms: float) -> TimeFit | None:
    """Step time by batch size from the operators' own times in a steady step, at the speed of unprofiled steps.

    Calling operators does not grow with the batch, and neither does the optimizer; loading in the main process does,
    and so may Python that runs longer than between two calls. ``feed_ms``: what workers need for a batch.
    """
    analysis = case.analysis
    steps, activity, host = analysis.steps, analysis.activity, analysis.activity.host
    if analysis.has_gpu or not steps.count:
        return None
    rows = np.flatnonzero(host.kind == Host.OPERATOR)
    around = parent_operators(activity)[rows]
    own = (host.end - host.start).astype(float)
    inner = around >= 0
    np.subtract.at(own, around[inner], (host.end - host.start)[rows[inner]].astype(float))
    # what the loader runs in its next() is loading
    rows = rows[~activity.next.covers(host.start[rows])]
    spans = itertools.pairwise(steps.edges.tolist())
    found = [one for low, high in spans if (one := _step(analysis, rows, own, low, high)) is not None]
    if not found:
        return None
    alike = len({one.spent.size for one in found}) == 1
    typical = sorted(found, key=lambda one: one.held)[len(found) // 2]
    chosen = typical.rows
    # steps that run the same operators show what each of them takes when nothing else disturbs it
    spent = np.median([one.spent for one in found], axis=0) if alike else typical.spent
    held, long = (
        float(np.mean(values)) for values in zip(*((one.held, one.long) for one in found), strict=True)
    )
    between = max(held - float(spent.sum()) - long, 0.0)
    waiting = case.signals.number("load.saving_ms") or 0.0
    scale = max(case.step_ms - waiting, 0.0) / held
    grows = (spent * scale >= _SMALL_MS) & ~activity.optimizer.covers(host.start[chosen])
    workers = case.signals.value("load.mode") == "workers"
    pieces = np.concatenate([spent * scale, [between * scale, long * scale, 0.0 if workers else waiting]])
    try:
        fit = time_from_kernels(
            float(batch), pieces, grows=np.concatenate([grows, [False, True, True]]), small_ms=_SMALL_MS,
            feed_ms_per_sample=feed_ms / batch if workers else 0.0,
        )  # fmt: skip
    except InputError:
        return None
    # at worst half of what small operators take is their work
    return replace(fit, fixed_low_ms=(between + 0.5 * float(spent[~grows].sum())) * scale)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step: its operators and what each took itself, all time but loading, and Python in long pieces; ms."""

    rows: Ints
    spent: Floats
    held: float
    long: float


def _step(analysis: RankAnalysis, rows: Ints, own: Floats, low: int, high: int) -> _Step | None:
    host = analysis.activity.host
    chosen = rows[(host.start[rows] >= low) & (host.start[rows] < high)]
    loading = analysis.activity.next.clip(low, high)
    held = (high - low - loading.total) / 1e6
    if not chosen.size or held <= 0:
        return None
    # what an optimizer does between its operators depends on the parameters alone
    running = (
        Intervals.of(host.start[chosen], host.end[chosen]).union(loading).union(analysis.activity.optimizer)
    )
    gaps = Intervals.of(np.array([low]), np.array([high])).subtract(running)
    length = gaps.end - gaps.start
    return _Step(
        chosen, np.maximum(own[chosen], 0.0) / 1e6, held, float(length[length >= LONG_PYTHON_NS].sum()) / 1e6
    )


def main_memory(case: Case, batch: int) -> tuple[MemoryFit | None, float | None]:
    """``(fit, capacity)`` of the host's memory: at most all that the training process holds grows with the batch."""
    log = case.analysis.whole_host_log or case.analysis.host_log
    if log is None:
        return None, None
    resident = log.processes.role_is("main").rss
    resident, free = resident[np.isfinite(resident)], log.mem_available[np.isfinite(log.mem_available)]
    if not resident.size or not free.size:
        return None, None
    held = float(resident.max())
    return MemoryFit(0.0, held / batch, (float(batch),), "timeline"), held + float(free.min())
