"""The frozen dataclasses that cross layers: the Result of an analysis and its parts.

``Result`` is the one product; HTML, Markdown, text and JSON are views of it and compute nothing.
Times are milliseconds, sizes bytes, shares 0..1; unknown is ``None``, never 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Bottleneck = Literal["cpu", "memory_bandwidth", "h2d_copy", "gpu", "communication", "none", "inconclusive"]
Phase = Literal["load", "transfer", "compute", "communication", "host", "other"]

RESOURCES: tuple[Bottleneck, ...] = ("cpu", "h2d_copy", "communication", "memory_bandwidth", "gpu")
PHASES: tuple[Phase, ...] = ("load", "transfer", "compute", "communication", "host", "other")
SCHEMA = "tracelens.result/1"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bottleneck class, the cause (a rule id), how sure we are, and one line for a person."""

    bottleneck: Bottleneck
    cause: str | None
    confidence: float
    headline: str

    @property
    def confidence_word(self) -> str:
        """low below 0.5, medium below 0.8, high from there."""
        if self.confidence >= 0.8:
            return "high"
        return "medium" if self.confidence >= 0.5 else "low"


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A class that is not the bottleneck, and why."""

    bottleneck: Bottleneck
    reason: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A signal that could not be computed, and why."""

    signal: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Counts and durations of the steps; ``source`` names how steps were found."""

    count: int | None = None
    steady: int | None = None
    mean_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: number as the trace names it, start relative to the window, and its own phases in ms."""

    step: int
    start_ms: float
    duration_ms: float
    phases_ms: Mapping[str, float]
    steady: bool = True
    regime: str | None = None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Samples per second over the steady window, and the samples in a batch."""

    samples_per_s: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """Share of the steady window in which at least one GPU activity ran, and the device's name."""

    busy: float | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Speed-up (ratio of mean throughputs) with one resource free; ``kind`` says how it was found."""

    cpu: float | None = None
    h2d_copy: float | None = None
    memory_bandwidth: float | None = None
    gpu: float | None = None
    communication: float | None = None
    kind: Literal["replay", "bound"] | None = None
    replay_error: float | None = None


@dataclass(frozen=True, slots=True)
class Regime:
    """A cluster of steps that behave alike; ``period`` says how it recurs ("every 4 steps")."""

    label: str
    share_of_steps: float | None
    share_of_time: float | None
    bottleneck: Bottleneck
    mean_ms: float | None = None
    period: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number behind a finding; ``source`` names the input it was read from."""

    signal: str
    value: object
    unit: str | None
    source: str | None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that fired. ``operators`` names the events it is about, ``advice`` is the rule's filled text."""

    rule: str
    title: str
    saving_ms_per_step: float | None
    evidence: tuple[Evidence, ...] = ()
    bottleneck: Bottleneck | None = None
    phase: str | None = None
    advice: str | None = None
    why: str | None = None
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One change: today's value, the suggested one, the speed-up for that change alone, with its arithmetic.

    ``basis`` says where the number comes from: replay, model, bound or literature.
    ``set_flag`` is the ``tracelens record --set`` form where the change needs no code edit.
    """

    parameter: str
    current: object
    suggested: object
    predicted_speedup: float | None
    interval: tuple[float, float] | None
    next_bottleneck: Bottleneck | None
    rule: str
    snippet: str | None
    basis: str | None = None
    why: str | None = None
    set_flag: str | None = None
    within_plan: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The recommendations worth applying together, and their joint speed-up."""

    parameters: tuple[str, ...]
    predicted_speedup: float | None
    interval: tuple[float, float] | None
    snippet: str | None = None
    next_bottleneck: Bottleneck | None = None
    set_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declined:
    """Advice a reader would expect that is not worth it here, and why."""

    parameter: str
    value: object
    reason: str


@dataclass(frozen=True, slots=True)
class Memory:
    """GPU memory: fixed + per_sample * batch size, the peak, the capacity and the largest safe batch."""

    fixed_bytes: float | None = None
    per_sample_bytes: float | None = None
    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    max_batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class QualityNote:
    """Something about the recording that a reader must know; ``rule`` starts with ``quality.``."""

    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank's own step time, phase shares and verdict."""

    rank: int | None
    mean_ms: float | None
    phases: Mapping[str, float | None]
    bottleneck: Bottleneck | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """An interval on a timeline lane, relative to the timeline's start."""

    start_ms: float
    end_ms: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """One engine's activity: ``name`` is loader, host, copy, compute or communication."""

    name: str
    title: str
    spans: tuple[Span, ...]
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """An excerpt of the run (a few steps), spans merged to what can be drawn; ``steps`` are boundaries."""

    duration_ms: float
    lanes: tuple[Lane, ...]
    steps: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """A sampled quantity over wall time (GPU utilisation, CPU of a process ...)."""

    name: str
    title: str
    unit: str
    t_ms: tuple[float, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A predicted curve: a parameter's values against ``unit``, with a band, today's and suggested value."""

    parameter: str
    title: str
    unit: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    current: float | None = None
    suggested: float | None = None
    measured: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel (or operator) by its share of GPU time; ``limited_by`` is arithmetic, memory, small or None.

    ``basis`` says where that was read from; ``tflops_per_s`` and ``gb_per_s`` (at least) are achieved rates, where the
    operator's shapes tell its work.
    """

    name: str
    family: str | None
    calls_per_step: float
    ms_per_step: float
    share: float
    limited_by: str | None = None
    operator: str | None = None
    tflops_per_s: float | None = None
    gb_per_s: float | None = None
    basis: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Everything an analysis found. ``to_json`` is the contract of design section 9."""

    verdict: Verdict
    steps: StepSummary
    throughput: Throughput
    phases: Mapping[str, float | None]
    gpu: Gpu
    what_if: WhatIf
    ruled_out: tuple[RuledOut, ...] = ()
    missing: tuple[Missing, ...] = ()
    regimes: tuple[Regime, ...] = ()
    findings: tuple[Finding, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    plan: Plan | None = None
    declined: tuple[Declined, ...] = ()
    memory: Memory = field(default_factory=Memory)
    quality: tuple[QualityNote, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    tool: Mapping[str, Any] = field(default_factory=dict)
    # beyond the schema's required keys: what the charts and tables of the views show
    step_rows: tuple[StepRow, ...] = ()
    host_split: Mapping[str, float] = field(default_factory=dict)
    occupancy: Mapping[str, float | None] = field(default_factory=dict)
    timeline: Timeline | None = None
    series: tuple[Series, ...] = ()
    curves: tuple[Curve, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    rules_checked: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values, key order as design section 9."""
        return {"schema": SCHEMA, **{f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if value == value and abs(value) != float("inf") else None
    return value
