"""What the HTML template shows, as text: verdict, changes, findings; ``sections`` has the rest."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.model import PHASES, Finding, Plan, Recommendation, Result
from tracelens.render import tables
from tracelens.render.display import Display, plan_parts, run_name, set_command, top_change
from tracelens.render.sanitize import one_line
from tracelens.render.sections import Section, sections
from tracelens.render.tables import Table

_OUTCOMES = ("fired", "could_not_be_evaluated", "not_evaluated", "passed", "not_applicable")
_OPERATORS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Change:
    """One recommendation as text."""

    parameter: str
    current: str
    suggested: str
    speedup: str | None
    interval: str | None
    then: str | None
    basis: str | None
    why: str | None
    snippet: str | None
    command: str | None
    within_plan: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class TopChange:
    """The plan at the head of the report."""

    parts: tuple[tuple[str, str | None, str | None], ...]
    speedup: str | None
    interval: str | None
    then: str | None
    snippet: str | None
    command: str | None
    is_plan: bool


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding as text."""

    title: str
    rule: str
    resource: str | None
    phase: str | None
    saving: str
    advice: str | None
    why: str | None
    evidence: Table | None
    operators: tuple[str, ...]
    more_operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stat:
    """One figure of the strip under the verdict."""

    label: str
    value: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template needs."""

    title: str
    run: str | None
    headline: str
    limited_by: str
    bottleneck: str
    cause: str | None
    confidence: float
    confidence_word: str
    confidence_text: str
    top: TopChange | None
    stats: tuple[Stat, ...]
    sections: tuple[Section, ...]
    changes: tuple[Change, ...]
    findings: tuple[FindingView, ...]
    rule_groups: tuple[tuple[str, tuple[str, ...]], ...]
    legend: tuple[tuple[str, str, str], ...]
    to_record: tuple[str, ...]
    caveats: tuple[tuple[str, str], ...]
    version: str | None


def build_page(result: Result, show: Display, title: str | None = None) -> Page:
    """The page of a result in the display's language."""
    words, verdict = show.words, result.verdict
    word = words(f"confidence.{verdict.confidence_word}")
    number = f"{verdict.confidence:.2f}"
    healthy = verdict.bottleneck in ("none", "inconclusive")
    run = run_name(result)
    version = result.tool.get("version")
    parts = sections(result, show)
    return Page(
        title=one_line(title or run or words("ui.report")),
        run=run,
        headline=one_line(verdict.headline),
        limited_by=words("ui.not_limited") if healthy else words("ui.limited_by"),
        bottleneck=words.known("bottleneck", verdict.bottleneck),
        cause=one_line(verdict.cause) if verdict.cause else None,
        confidence=min(max(verdict.confidence, 0.0), 1.0),
        confidence_word=word,
        confidence_text=words("confidence.sentence", word=word, number=number),
        top=_top(result, show),
        stats=_stats(result, show),
        sections=parts,
        changes=tuple(_change(one, show) for one in result.recommendations),
        findings=tuple(_finding(one, show) for one in result.findings),
        rule_groups=_rule_groups(result, show),
        legend=_legend(result, show),
        to_record=tuple(one_line(m.reason) for m in result.missing[:3])
        if verdict.bottleneck == "inconclusive"
        else (),
        caveats=_caveats(result, {one.ident for one in parts}, show),
        version=one_line(str(version)) if version is not None else None,
    )


def _caveats(result: Result, shown: set[str], show: Display) -> tuple[tuple[str, str], ...]:
    """(section, words) of what a reader should know beside the confidence, where the section is shown."""
    caveats = []
    if result.what_if.kind == "bound":
        caveats.append(("what-if", show.words("ui.bounds")))
    if result.quality:
        caveats.append(("quality", show.words("ui.quality_notes", count=len(result.quality))))
    if result.missing:
        caveats.append(("missing", show.words("ui.not_measured", count=len(result.missing))))
    return tuple(one for one in caveats if one[0] in shown)


def _top(result: Result, show: Display) -> TopChange | None:
    plan = top_change(result)
    if plan is None:
        return None
    parts = tuple(
        (one_line(part), None, None)
        if isinstance(part, str)
        else (
            one_line(part.parameter),
            one_line(show.value(part.current)),
            one_line(show.value(part.suggested)),
        )
        for part in plan_parts(result, plan)
    )
    return TopChange(
        parts=parts,
        speedup=None if plan.predicted_speedup is None else show.ratio(plan.predicted_speedup),
        interval=show.interval(plan.interval),
        then=show.then(plan.next_bottleneck),
        snippet=plan.snippet,
        command=set_command(plan.set_flags),
        is_plan=_is_plan(result.plan),
    )


def _is_plan(plan: Plan | None) -> bool:
    return plan is not None and len(plan.parameters) > 1


def _change(one: Recommendation, show: Display) -> Change:
    within = (
        None if one.within_plan is None else show.words("ui.within_plan", ratio=show.ratio(one.within_plan))
    )
    return Change(
        parameter=one_line(one.parameter),
        current=one_line(show.value(one.current)),
        suggested=one_line(show.value(one.suggested)),
        speedup=None if one.predicted_speedup is None else show.ratio(one.predicted_speedup),
        interval=show.interval(one.interval),
        then=show.then(one.next_bottleneck),
        basis=None if one.basis is None else one_line(show.words.known("basis", one.basis)),
        why=one.why,
        snippet=one.snippet,
        command=set_command((one.set_flag,)) if one.set_flag else None,
        within_plan=within,
        rule=one_line(one.rule),
    )


def _finding(one: Finding, show: Display) -> FindingView:
    words = show.words
    saving = one.saving_ms_per_step
    title = one_line(one.title)
    names = tuple(one_line(name) for name in one.operators)
    return FindingView(
        title=title,
        rule=one_line(one.rule),
        resource=None if one.bottleneck is None else words.known("bottleneck", one.bottleneck),
        phase=None if one.phase is None else one_line(words.known("phase", one.phase)),
        saving=words("ui.saving_unknown") if saving is None else words("ui.saving", time=show.ms(saving)),
        advice=one.advice,
        why=one.why,
        evidence=tables.evidence(one.evidence, f"{words('ui.evidence')}{words('ui.colon')}{title}", show)
        if one.evidence
        else None,
        operators=names[:_OPERATORS_SHOWN],
        more_operators=names[_OPERATORS_SHOWN:],
    )


def _stats(result: Result, show: Display) -> tuple[Stat, ...]:
    words, steps = show.words, result.steps
    spread = None
    if steps.median_ms is not None or steps.p95_ms is not None:
        spread = words("stat.median_p95", median=show.ms(steps.median_ms), p95=show.ms(steps.p95_ms))
    batch = result.throughput.batch_size
    count = []
    if steps.steady is not None:
        count.append(words("stat.steady", steady=show.number(steps.steady)))
    if steps.source:
        count.append(words("stat.source", source=one_line(steps.source)))
    return (
        Stat(words("stat.step"), show.ms(steps.mean_ms), spread),
        Stat(
            words("stat.throughput"),
            show.rate(result.throughput.samples_per_s),
            None if batch is None else words("stat.batch", batch=show.value(batch)),
        ),
        Stat(words("stat.gpu_busy"), show.percent(result.gpu.busy), one_line(result.gpu.name or "") or None),
        Stat(words("stat.steps"), show.number(steps.count), words("ui.comma").join(count) or None),
    )


def _rule_groups(result: Result, show: Display) -> tuple[tuple[str, tuple[str, ...]], ...]:
    checked = {rule: outcome.strip().replace(" ", "_") for rule, outcome in result.rules_checked.items()}
    outcomes = dict.fromkeys((*_OUTCOMES, *checked.values()))
    groups = []
    for outcome in outcomes:
        rules = tuple(sorted(one_line(rule) for rule, got in checked.items() if got == outcome))
        if rules:
            groups.append((one_line(show.words.known("outcome", outcome)), rules))
    return tuple(groups)


def _legend(result: Result, show: Display) -> tuple[tuple[str, str, str], ...]:
    """(phase id, its word, its share) of the phases there are."""
    return tuple(
        (name, show.words.known("phase", name), show.percent(result.phases.get(name))) for name in PHASES
    )
