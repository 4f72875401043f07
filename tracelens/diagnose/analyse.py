"""One analysis: ranks in, Result out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracelens import __version__
from tracelens.diagnose import verdict as decide
from tracelens.diagnose.advice.case import WORTH, Case
from tracelens.diagnose.advice.prescribe import prescribe
from tracelens.diagnose.engine import Evaluation
from tracelens.diagnose.fromlogs import analyse_logs
from tracelens.diagnose.judge import NOTHING, Judged, judge_ranks, together
from tracelens.diagnose.load import load_run
from tracelens.diagnose.result import evidence, missing_signals, quality_notes
from tracelens.diagnose.rules import load_rules
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
from tracelens.signals.regimes import find_regimes, regime_signals, run_regimes, with_regimes
from tracelens.signals.runsteps import corrected_shares
from tracelens.signals.series import series
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs


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


def _result(run: RunInput, judged: Sequence[Judged], notes: Sequence[str], stages: Stages) -> Result:
    whatifs = together(judged)
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
        and (e.saving_ms is None or e.saving_ms >= NOTHING * step_ms or e.rule.id == cause)
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
