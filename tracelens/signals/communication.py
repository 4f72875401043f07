"""Signals about communication: exposed collectives of one rank, and who arrives late where all ranks are given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.signal import Signals
from tracelens.trace.tables import Device

TRACE = "trace"


def communication_signals(analysis: RankAnalysis, out: Signals) -> None:
    """``communication.saving_ms`` (exposed, a step), ``.total_ms`` (kernels, overlapped or not) and ``.world_size``."""
    if not analysis.has_gpu:
        out.missing("no GPU work in the trace", "communication.saving_ms", "communication.total_ms")
    else:
        device = analysis.activity.device
        mine = analysis.in_window & (device.kind == Device.COMMUNICATION)
        out.add(
            "communication.saving_ms",
            analysis.per_step_ms(analysis.phases.parts["communication"].total),
            "ms",
            TRACE,
        )
        out.add(
            "communication.total_ms",
            analysis.per_step_ms(float((device.end - device.start)[mine].sum())),
            "ms",
            TRACE,
        )
    out.add(
        "communication.world_size",
        analysis.tables.world_size,
        "count",
        TRACE,
        "the trace does not say how many ranks there are",
    )


def straggler(ranks: Sequence[RankAnalysis]) -> tuple[int, float] | None:
    """``(index of the late rank, ms a step the others wait for it)`` from communication time; None for one rank.

    A collective ends on all ranks together and starts when each arrives: the rank with the least time in
    communication kernels arrived last. The others' excess over it is waiting, not bandwidth.
    """
    totals = [_communication_ms(rank) for rank in ranks]
    if len(totals) < 2 or any(t is None for t in totals):
        return None
    spent = np.array(totals, dtype=float)
    late = int(np.argmin(spent))
    return late, float(np.median(np.delete(spent, late)) - spent[late])


def _communication_ms(rank: RankAnalysis) -> float | None:
    signals = Signals()
    communication_signals(rank, signals)
    return signals.number("communication.total_ms")
