"""One analysis: ranks in, Result out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracelens import __version__
from tracelens.diagnose import verdict as decide
from tracelens.diagnose.advice.case import WORTH, Case
from tracelens.diagnose.advice.prescribe import prescribe
from tracelens.diagnose.engine import Evaluation, evaluate_all
from tracelens.diagnose.fromlogs import analyse_logs
from tracelens.diagnose.load import load_run
from tracelens.diagnose.result import evidence, missing_signals, quality_notes
from tracelens.diagnose.rules import Rule, load_rules
from tracelens.diagnose.text import fill
from tracelens.ingest.discover import RunInput
from tracelens.ingest.facts import bundle_facts
from tracelens.model import (
    RESOURCES,
    Bottleneck,
    Finding,
    Gpu,
    RankRow,
    Result,
    StepSummary,
    Throughput,
    Verdict,
    WhatIf,
)
from tracelens.signals import details
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.catalog import rank_signals
from tracelens.signals.collectives import shared_rate, unevenness
from tracelens.signals.communication import straggler
from tracelens.signals.regimes import find_regimes, regime_signals, run_regimes, with_regimes
from tracelens.signals.runsteps import corrected_shares
from tracelens.signals.series import series
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs
from tracelens.whatif.scenarios import RankReplay, what_ifs_of


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


class Stages:
    """Wall time of each stage of an analysis, in ms."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        """Ends the stage that ran since the last call."""
        now = time.perf_counter()
        self.ms[name] = round(1000 * (now - self._last), 1)
        self._last = now


def analyse(run: RunInput, rule_folders: Sequence[Path] = ()) -> Result:
    """The Result of a run. Raises InputError where nothing can be read."""
    stages = Stages()
    rules = load_rules(rule_folders)
    stages.done("rules")
    loaded = load_run(run)
    stages.done("read")
    if not loaded.ranks:
        return _with_facts(analyse_logs(run, rules, loaded.notes, __version__), run)
    judged = judge_ranks(loaded.ranks, rules)
    stages.done("diagnose")
    return _with_facts(_result(run, judged, loaded.notes, stages), run)


def _with_facts(result: Result, run: RunInput) -> Result:
    """The result with what the recorder wrote of machine, versions and code, so that a report alone can be compared."""
    if run.bundle is None:
        return result
    return replace(result, environment={**result.environment, **bundle_facts(run.bundle)})


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
            endings = {"_ms": "ms", "_share": "share", "_gb_s": "GB/s"}
            unit = next((unit for ending, unit in endings.items() if name.endswith(ending)), None)
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
                own = idle >= _NOTHING * whatifs.step_ms
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


def _together(judged: Sequence[Judged]) -> WhatIfs:
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


def _result(run: RunInput, judged: Sequence[Judged], notes: Sequence[str], stages: Stages) -> Result:
    whatifs = _together(judged)
    # the run speaks through the rank whose evidence fits the run's class best: the one that saves most by it
    name, reason = decide.bottleneck(whatifs, judged[0].signals, judged[0].evaluations)
    lead = max(judged, key=lambda j: (j.reason is None, j.whatifs.share(name) or 0.0))
    if len(judged) > 1:
        name, reason = decide.bottleneck(whatifs, lead.signals, lead.evaluations)
    analysis, signals, evaluations = lead.analysis, lead.signals, lead.evaluations
    rule = decide.cause(name, evaluations, lead.exposed, whatifs)
    verdict = Verdict(
        name, rule, decide.confidence(name, whatifs, signals, evaluations),
        decide.headline(name, rule, reason, whatifs, signals, evaluations),
    )  # fmt: skip
    log = analysis.run_log
    measured = log.points.by_workers if log is not None and log.points is not None else None
    advice = prescribe(replace(_case(lead, name, rule), starved=_starved(judged, lead, name, rule)), measured)
    shares: dict[str, float | None] = {**corrected_shares(analysis)}
    stages.done("prescribe")
    here = find_regimes(analysis, name)
    regime_signals(analysis, signals, here)
    log = analysis.run_log
    # the step log covers the whole run, the trace a few windows of it
    longer = log is not None and int(log.steps.plain.sum()) > max(analysis.steps.steady, 20)
    regimes = run_regimes(log.steps, name)[0] if log is not None and longer else here[0]
    stages.done("regimes")
    result = Result(
        verdict=verdict,
        steps=_steps(analysis, signals),
        throughput=Throughput(_number(signals, "throughput.samples_per_s"), analysis.batch_size),
        phases=shares,
        gpu=Gpu(signals.number("gpu.busy"), _gpu_name(analysis)),
        what_if=what_if(whatifs),
        ruled_out=decide.ruled_out(name, whatifs) if name != "inconclusive" else (),
        missing=missing_signals(signals),
        regimes=regimes,
        findings=_findings(evaluations, signals, analysis, verdict.cause),
        recommendations=advice.recommendations,
        plan=advice.plan,
        declined=advice.declined,
        memory=advice.memory,
        quality=quality_notes(evaluations, signals, notes),
        ranks=tuple(_rank_row(j) for j in judged),
        inputs=_inputs(run, judged),
        environment=_environment(analysis),
        step_rows=with_regimes(details.step_rows(analysis), *here),
        host_split=details.host_split(analysis),
        occupancy=details.occupancy(analysis),
        timeline=details.timeline(analysis),
        series=series(analysis),
        curves=advice.curves,
        kernels=details.kernel_rows(analysis),
        rules_checked={e.rule.id: e.outcome.replace(" ", "_") for e in evaluations.values()},
        tool={"version": __version__, "stage_ms": stages.ms},
    )  # fmt: skip
    stages.done("assemble")
    return result


def _case(judged: Judged, name: Bottleneck, rule: str | None) -> Case:
    return Case(
        judged.analysis, judged.signals, judged.evaluations, judged.whatifs, judged.replayed, name, rule
    )


def _starved(judged: Sequence[Judged], lead: Judged, name: Bottleneck, rule: str | None) -> Case | None:
    """The rank that waits most for its data, where that is not the one that speaks for the run: the others wait for it."""
    most = max(judged, key=lambda j: j.signals.number("load.saving_ms") or 0.0)
    here, there = (j.signals.number("load.saving_ms") or 0.0 for j in (lead, most))
    return _case(most, name, rule) if there - here > WORTH * lead.whatifs.step_ms else None


def _number(signals: Signals, name: str) -> float | None:
    return signals.number(name)


def _steps(analysis: RankAnalysis, signals: Signals) -> StepSummary:
    steps = analysis.steps
    if not steps.count:
        return StepSummary(0, 0, None, None, None, None)
    return StepSummary(
        steps.count, steps.steady, signals.number("steps.mean_ms"), signals.number("steps.median_ms"),
        signals.number("steps.p95_ms"), steps.source,
    )  # fmt: skip


def what_if(whatifs: WhatIfs) -> WhatIf:
    """The schema's what-ifs: speed-ups by class."""
    return WhatIf(
        **{name: whatifs.speedup(name) for name in RESOURCES}, kind=whatifs.kind, replay_error=whatifs.error
    )


def _findings(
    evaluations: Mapping[str, Evaluation], signals: Signals, analysis: RankAnalysis, cause: str | None
) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            rule=e.rule.id, title=e.rule.title, saving_ms_per_step=e.saving_ms, evidence=evidence(e, signals),
            bottleneck=e.rule.bottleneck, phase=e.rule.phase, advice=fill(e.rule.advice, signals) or None,
            why=" ".join(str(e.rule.doc.get("why", "")).split()) or None,
            operators=details.operator_names(analysis, e.rule.id),
        )
        for e in worth_saying(evaluations, analysis.step_ms or 0.0, cause)
    )  # fmt: skip


def worth_saying(
    evaluations: Mapping[str, Evaluation], step_ms: float, cause: str | None
) -> list[Evaluation]:
    """The fired rules that become findings, largest saving first: what would save nothing is not worth a reader's time,
    however true."""
    fired = [
        e
        for e in evaluations.values()
        if e.outcome == "fired"
        and not e.rule.is_quality
        and (e.saving_ms is None or e.saving_ms >= _NOTHING * step_ms or e.rule.id == cause)
    ]
    return sorted(fired, key=lambda e: -(e.saving_ms or 0.0))


def _rank_row(judged: Judged) -> RankRow:
    return RankRow(
        judged.analysis.rank,
        judged.analysis.step_ms,
        {**corrected_shares(judged.analysis)},
        judged.bottleneck,
        judged.cause,
    )


def _gpu_name(analysis: RankAnalysis) -> str | None:
    gpu = analysis.activity.gpu
    name = analysis.tables.device_properties(gpu).get("name") if gpu is not None else None
    return str(name) if name else None


def _inputs(run: RunInput, judged: Sequence[Judged]) -> dict[str, Any]:
    return {
        "title": run.title,
        "paths": [p.name for p in run.paths],
        "ranks": len(judged),
        "settings": dict(judged[0].analysis.settings),
        "events": sum(j.analysis.tables.report.events for j in judged),
        "dialect": judged[0].analysis.tables.report.dialect,
    }


_NOTHING = 0.001  # of a step
_ENVIRONMENT = (
    "schemaVersion",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "with_stack",
    "record_shapes",
    "profile_memory",
)


def _environment(analysis: RankAnalysis) -> dict[str, Any]:
    metadata = analysis.tables.metadata
    found = {key: metadata[key] for key in _ENVIRONMENT if isinstance(metadata.get(key), int | float | str)}
    gpu = analysis.activity.gpu
    properties = analysis.tables.device_properties(gpu) if gpu is not None else {}
    if properties:
        found["gpu"] = str(properties.get("name") or "unknown")
        if isinstance(properties.get("numSms"), int):
            found["gpu_multiprocessors"] = properties["numSms"]
        if isinstance(properties.get("totalGlobalMem"), int):
            found["gpu_memory_bytes"] = properties["totalGlobalMem"]
    if analysis.tables.world_size:
        found["world_size"] = analysis.tables.world_size
    return found
