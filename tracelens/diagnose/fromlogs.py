"""A verdict without a trace: a bundle that never reached a window, a GPU log, a host log, a training log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from tracelens.diagnose import verdict as decide
from tracelens.diagnose.engine import Evaluation, evaluate_all
from tracelens.diagnose.result import evidence, missing_signals, quality_notes
from tracelens.diagnose.rules import Rule
from tracelens.diagnose.text import fill
from tracelens.ingest.discover import RunInput
from tracelens.ingest.gpu_log import read_gpu_log
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.runlog import RunLog
from tracelens.ingest.tables import GpuLog, HostLog, TrainingLog
from tracelens.ingest.training_logs import read_training_log
from tracelens.model import (
    PHASES,
    RESOURCES,
    Bottleneck,
    Finding,
    Gpu,
    QualityNote,
    Result,
    StepRow,
    StepSummary,
    Throughput,
    Verdict,
    WhatIf,
)
from tracelens.signals.gpuwork import log_signals as gpu_log_signals
from tracelens.signals.machine import host_log_signals
from tracelens.signals.memory import memory_signals
from tracelens.signals.recorded import recorded_signals
from tracelens.signals.regimes import run_regimes
from tracelens.signals.rereading import rereading_signals
from tracelens.signals.runsteps import log_only_signals
from tracelens.signals.series import log_series
from tracelens.signals.signal import Signals
from tracelens.units import percent
from tracelens.whatif.bounds import WhatIfs

T = TypeVar("T")

CEILING = 0.6  # waits and utilisation alone say where to look, not what a change gives
_BUSY = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class Logs:
    """What there is instead of a trace."""

    run_log: RunLog | None
    gpu: GpuLog | None
    host: HostLog | None
    training: TrainingLog | None


def read_logs(run: RunInput) -> Logs:
    """The logs of a run's first rank. Raises InputError for one that cannot be read."""
    rank = run.ranks[0] if run.ranks else None
    return Logs(
        rank.run_log if rank else None,
        _first(read_gpu_log, rank.gpu_logs if rank else ()),
        _first(read_host_log, rank.host_logs if rank else ()),
        _first(read_training_log, run.training_logs),
    )


def _first(read: Callable[[Path], T], paths: Sequence[Path]) -> T | None:
    return read(paths[0]) if paths else None


def analyse_logs(run: RunInput, rules: Mapping[str, Rule], notes: Sequence[str], version: str) -> Result:
    """The Result of a run without any trace; what only a trace can show is missing, never zero."""
    logs = read_logs(run)
    settings = dict(run.ranks[0].loader) if run.ranks else {}
    signals = log_signals(run, logs)
    whatifs = _what_ifs(signals)
    evaluations = evaluate_all(rules, signals, whatifs)
    name, reason = _judge(signals, whatifs)
    cause = decide.cause(name, evaluations)
    verdict = Verdict(
        name,
        cause,
        _confidence(name, signals, whatifs),
        _headline(name, cause, reason, whatifs, signals, evaluations),
    )
    load = signals.number("phase.load")
    return Result(
        verdict=verdict,
        steps=StepSummary(
            _count(signals, "steps.count"),
            _count(signals, "steps.steady"),
            signals.number("steps.mean_ms"),
            signals.number("steps.median_ms"),
            signals.number("steps.p95_ms"),
            str(signals.value("steps.source") or "") or None,
        ),
        throughput=Throughput(signals.number("throughput.samples_per_s"), settings.get("batch_size")),
        phases={phase: load if phase == "load" else None for phase in PHASES},
        gpu=Gpu(signals.number("gpu.utilization"), _gpu_name(logs)),
        what_if=WhatIf(
            **{r: whatifs.speedup(r) for r in RESOURCES},
            kind="bound" if any(v is not None for v in whatifs.saving_ms.values()) else None,
        ),
        ruled_out=(),
        missing=missing_signals(signals),
        regimes=run_regimes(logs.run_log.steps, name)[0] if logs.run_log is not None else (),
        findings=_findings(evaluations, signals),
        quality=(QualityNote("quality.no_trace", _WHY), *quality_notes(evaluations, signals, notes)),
        inputs={
            "title": run.title,
            "paths": [p.name for p in run.paths],
            "ranks": len(run.ranks),
            "settings": settings,
            "events": 0,
        },
        environment=_environment(logs),
        step_rows=_step_rows(logs.run_log),
        series=log_series(logs.gpu, logs.host),
        rules_checked={e.rule.id: e.outcome.replace(" ", "_") for e in evaluations.values()},
        tool={"version": version, "stage_ms": {}},
    )


def log_signals(run: RunInput, logs: Logs | None = None) -> Signals:
    """The signals of a run without any trace."""
    logs = logs or read_logs(run)
    settings = dict(run.ranks[0].loader) if run.ranks else {}
    signals = Signals()
    for name, value in settings.items():
        if isinstance(value, int | float | str | bool):
            signals.add(f"loader.{name}", value, None, "loader settings")
    log_only_signals(logs.run_log, logs.training, settings, signals)
    gpu_log_signals(logs.gpu, signals)
    host_log_signals(logs.host, settings.get("cpu_count"), None, signals)
    whole = logs.host if logs.run_log is not None else None
    recorded_signals(logs.run_log, whole, signals)
    rereading_signals(logs.run_log, whole, signals)
    memory_signals(logs.run_log, whole, None, signals)
    for phase in ("transfer", "compute", "communication", "host", "other"):
        signals.missing("needs a trace", f"phase.{phase}")
    return signals


_WHY = "There is no trace: phases, copies and kernels cannot be told apart. Record one: tracelens record -- python train.py"


def _what_ifs(signals: Signals) -> WhatIfs:
    saving: dict[Bottleneck, float | None] = dict.fromkeys(RESOURCES)
    step, wait = signals.number("steps.mean_ms"), signals.number("load.saving_ms")
    saving["cpu"] = wait
    return WhatIfs(step or 0.0, saving, "bound")


def _judge(signals: Signals, whatifs: WhatIfs) -> tuple[Bottleneck, str | None]:
    """``cpu`` where steps wait for data, ``gpu`` where they do not and the GPU is busy; else the logs do not say."""
    share, busy = whatifs.share("cpu"), signals.number("gpu.utilization")
    if share is not None and share >= decide.WORTH:
        return "cpu", None
    if busy is not None and busy >= _BUSY and (share is not None or busy >= 0.97):
        return "gpu", None
    if share is None and busy is None:
        return "inconclusive", "neither step times with waits nor GPU utilisation were recorded"
    if share is None:
        return (
            "inconclusive",
            f"the GPU was busy {percent(busy)} of the time, and the log does not say what it waited for; record a trace",
        )
    waited = f"steps wait {percent(share)} of the time for data"
    where = (
        "nothing shows how busy the GPU was"
        if busy is None
        else f"the GPU was busy {percent(busy)} of the time"
    )
    return "inconclusive", f"{waited}, {where}: the rest needs a trace"


def _confidence(name: Bottleneck, signals: Signals, whatifs: WhatIfs) -> float:
    if name == "inconclusive":
        return 0.3
    share = whatifs.share("cpu") or 0.0
    steps = signals.number("steps.steady") or 0.0
    margin = min(abs(share - decide.WORTH) / 0.1, 1.0)
    return round(CEILING * (0.6 + 0.4 * margin) * (1.0 if steps >= 20 else 0.8), 3)


def _headline(
    name: Bottleneck,
    cause: str | None,
    reason: str | None,
    whatifs: WhatIfs,
    signals: Signals,
    evaluations: Mapping[str, Evaluation],
) -> str:
    if name == "gpu":
        busy = percent(signals.number("gpu.utilization"))
        return f"GPU: busy {busy} of the time, and steps do not wait for data; a trace would say what its kernels do."
    return decide.headline(name, cause, reason, whatifs, signals, evaluations)


def _findings(evaluations: Mapping[str, Evaluation], signals: Signals) -> tuple[Finding, ...]:
    fired = [e for e in evaluations.values() if e.outcome == "fired" and not e.rule.is_quality]
    fired.sort(key=lambda e: -(e.saving_ms or 0.0))
    return tuple(
        Finding(
            e.rule.id,
            e.rule.title,
            e.saving_ms,
            evidence(e, signals),
            e.rule.bottleneck,
            e.rule.phase,
            fill(e.rule.advice, signals) or None,
        )
        for e in fired
    )


def _count(signals: Signals, name: str) -> int | None:
    value = signals.number(name)
    return int(value) if value is not None else None


def _gpu_name(logs: Logs) -> str | None:
    if logs.run_log is not None and isinstance(logs.run_log.process.get("device"), dict):
        name = logs.run_log.process["device"].get("name")
        return str(name) if name else None
    if logs.gpu is not None and len(logs.gpu) and str(logs.gpu.name[0]):
        return str(logs.gpu.name[0])
    return None


def _environment(logs: Logs) -> dict[str, object]:
    process = logs.run_log.process if logs.run_log is not None else {}
    return {key: process[key] for key in ("python", "torch", "cuda", "cudnn", "driver") if process.get(key)}


def _step_rows(log: RunLog | None) -> tuple[StepRow, ...]:
    if log is None or not len(log.steps):
        return ()
    steps = log.steps
    start = int(steps.t0[0])
    return tuple(
        StepRow(
            int(steps.step[i]),
            float(steps.t0[i] - start) / 1e6,
            float(steps.duration_ms[i]),
            {"load": float(steps.wait_ms[i])} if np.isfinite(steps.wait_ms[i]) else {},
            bool(steps.plain[i]),
        )
        for i in range(len(steps))
    )
