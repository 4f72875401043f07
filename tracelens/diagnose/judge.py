"""Ranks judged: each one's signals, what-ifs and rule outcomes, and what a resource made free on all of them saves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracelens.diagnose import verdict as decide
from tracelens.diagnose.engine import Evaluation, evaluate_all
from tracelens.diagnose.rules import Rule
from tracelens.model import RESOURCES, Bottleneck
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.catalog import rank_signals
from tracelens.signals.collectives import shared_rate, unevenness
from tracelens.signals.communication import straggler
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs
from tracelens.whatif.scenarios import RankReplay, what_ifs_of

NOTHING = 0.001  # of a step: what saves less is not worth a reader's time
_ENDINGS = {"_ms": "ms", "_share": "share", "_gb_s": "GB/s"}


@dataclass(frozen=True, slots=True)
class Judged:
    """One rank with its signals, what-ifs and rule outcomes."""

    analysis: RankAnalysis
    signals: Signals
    whatifs: WhatIfs
    evaluations: Mapping[str, Evaluation]
    bottleneck: Bottleneck
    reason: str | None
    replayed: RankReplay | None = None
    exposed: Mapping[str, float] = field(default_factory=dict)

    @property
    def cause(self) -> str | None:
        """The cause of the rank's own verdict."""
        return decide.cause(self.bottleneck, self.evaluations, self.exposed, self.whatifs)


def judge(
    analysis: RankAnalysis, rules: Mapping[str, Rule], extra: Mapping[str, Any] | None = None
) -> Judged:
    """Signals, what-ifs, rules and class of one rank; ``extra`` are signals that need other ranks."""
    return _judged([analysis], rules, extra or {})[0]


def _judged(
    ranks: Sequence[RankAnalysis], rules: Mapping[str, Rule], extra: Mapping[str, Any]
) -> list[Judged]:
    known = []
    for analysis in ranks:
        signals = rank_signals(analysis)
        for name, value in extra.items():
            unit = next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), None)
            signals.add(name, value, unit, "all ranks")
        known.append(signals)
    outcomes = what_ifs_of(ranks, [workers_busy(signals) for signals in known])
    return [_ruled(*rank, rules) for rank in zip(ranks, known, outcomes, strict=True)]


def _ruled(
    analysis: RankAnalysis,
    signals: Signals,
    outcome: tuple[WhatIfs, RankReplay | None],
    rules: Mapping[str, Rule],
) -> Judged:
    exposed: dict[str, float] = {}
    whatifs, replayed = outcome
    if replayed is not None:
        for signal, saving in replayed.causes.items():
            idle = signals.number(signal)
            if idle is not None:
                exposed[signal] = idle
                # ranks are freed together: what one of them never waits for is no saving of its own
                own = idle >= NOTHING * whatifs.step_ms
                signals.add(signal, saving if own else idle, "ms", "replay")
    signals.add(
        "quality.replay_error",
        abs(whatifs.error) if whatifs.error is not None else None,
        "share",
        "replay",
        "no replay was possible",
    )
    evaluations = evaluate_all(rules, signals, whatifs)
    name, reason = decide.bottleneck(whatifs, signals, evaluations)
    return Judged(analysis, signals, whatifs, evaluations, name, reason, replayed, exposed)


def workers_busy(signals: Signals) -> float | None:
    """How busy the workers are: the loader log's word, else what the host log shows, else None.

    They compute for as much time as their CPU use says, usually: a short trace may lie where they still fill their queues.
    Beside it they wait for storage, at most as much as the machine does (which others may share, and do where it is more
    than the workers have time for), and at most so much that they would compute no more when nothing stopped them than they
    were seen to.
    """
    busy = signals.get("load.worker_busy")
    if signals.value("load.mode") != "workers" or busy is None:
        return None
    if busy.source == "loader log":
        return signals.number("load.worker_busy")
    traced, usual = signals.number("machine.worker_cpu"), signals.number("machine.worker_cpu_usual")
    known = [v for v in (traced, usual) if v is not None]
    if not known:
        return None
    computing, most = min(known), signals.number("machine.worker_cpu_most")
    blocked = signals.number("load.worker_io_wait") or 0.0
    waiting = computing + (blocked if (traced or 0.0) + blocked < 1.0 else 0.0)
    stretched = computing / most if most else waiting
    return min(max(computing, min(waiting, stretched)), 1.0)


def judge_ranks(ranks: Sequence[RankAnalysis], rules: Mapping[str, Rule]) -> list[Judged]:
    """Every rank judged, with the signals that need all of them."""
    late = straggler(ranks)
    extra: dict[str, Any] = {}
    if late is not None:
        index, waiting = late
        number = ranks[index].rank
        extra = {
            "communication.late_rank": number if number is not None else index,
            "communication.waiting_ms": max(waiting, 0.0),
        }
    rate = shared_rate(ranks)
    if rate is not None:
        extra["communication.bus_gb_s"] = rate
    uneven = unevenness(ranks)
    if uneven is not None:
        extra |= {"communication.uneven_ms": uneven[0], "communication.late_share": uneven[1]}
    return _judged(ranks, rules, extra)


def together(judged: Sequence[Judged]) -> WhatIfs:
    """The run's what-ifs: a class made free on all ranks at once. Ranks that no longer wait for each other keep paces of
    their own, and the run's is the sum of them: the harmonic mean of their steps."""
    if len(judged) == 1:
        return judged[0].whatifs
    saving: dict[Bottleneck, float | None] = {}
    step = sum(j.whatifs.step_ms for j in judged) / len(judged)
    for name in RESOURCES:
        left = [1 - share for j in judged if (share := j.whatifs.share(name)) is not None]
        saving[name] = step * (1 - statistics.harmonic_mean(left)) if left else None
    kinds = {j.whatifs.kind for j in judged}
    errors = [abs(j.whatifs.error) for j in judged if j.whatifs.error is not None]
    return WhatIfs(
        step, saving, "replay" if kinds == {"replay"} else "bound", max(errors) if errors else None
    )
