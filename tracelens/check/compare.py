"""BEFORE beside AFTER: what changed, what it did, and whether the predictions held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracelens import __version__
from tracelens.check.comparison import Change, Comparison, Group, Measured, Outcome, PhaseRow, SideSummary
from tracelens.check.confirm import confirm, setting, visible
from tracelens.check.sides import Run, Side, load_side
from tracelens.check.speed import LEAST, PROFILED, UNPROFILED, Sample, speedup, throughput
from tracelens.ingest.facts import CODE, HARDWARE, PACKAGE, VERSIONS
from tracelens.model import PHASES

_MEMORY_TOLERANCE = 0.01  # the same card reports slightly different sizes under different drivers


def compare_paths(before: Path, after: Path, rules: Sequence[Path] = ()) -> Comparison:
    """Reads both sides and compares them. Raises InputError."""
    return compare(load_side(before, rules), load_side(after, rules))


def compare(before: Side, after: Side) -> Comparison:
    """The comparison; recordings of different hardware are shown side by side and not judged."""
    changes = tuple(_changes(before.first, after.first))
    refusal = _refusal(changes)
    notes: list[str] = list(_notes(before, after, changes))
    first, second, basis = _samples(before, after)
    measured = None
    if refusal is None and basis is not None:
        ratio, interval, per_sample = speedup(first, second)
        if not per_sample:
            notes.insert(0, "the number of samples in a step is not known on both sides: steps were compared")
        measured = Measured(ratio, interval, basis)
    elif refusal is None:
        notes.insert(0, f"one side has fewer than {LEAST} comparable steps")
    confirmations = confirm(before.first, after.first, measured) if refusal is None else ()
    if any(row.measured is not None for row in confirmations):
        notes.extend(_confounders(changes, before.first))
    return Comparison(
        before=_summary(before, first),
        after=_summary(after, second),
        outcome="not comparable" if refusal else _outcome(measured),
        changes=changes,
        measured=measured,
        phases=tuple(_phases(before.first, after.first)),
        confirmations=confirmations,
        notes=tuple(dict.fromkeys(notes)),
        refusal=refusal,
        tool={"version": __version__},
    )


def _outcome(measured: Measured | None) -> Outcome:
    if measured is None:
        return "unknown"
    if measured.interval[0] > 1.0:
        return "faster"
    return "slower" if measured.interval[1] < 1.0 else "unchanged"


def _samples(before: Side, after: Side) -> tuple[list[Sample], list[Sample], str | None]:
    """Both sides' steps of the same kind: unprofiled ones where both sides have them."""
    both = (before, after)
    if all(run.logged is not None for side in both for run in side.runs):
        logged = [[run.logged for run in side.runs if run.logged is not None] for side in both]
        return logged[0], logged[1], UNPROFILED
    traced = [[run.traced for run in side.runs if run.traced is not None] for side in both]
    return traced[0], traced[1], PROFILED if all(traced) else None


def _summary(side: Side, samples: Sequence[Sample]) -> SideSummary:
    result = side.first.result
    verdict = result.verdict
    rate = throughput(samples)
    means = tuple(one.mean_ms for one in samples)
    return SideSummary(
        name=side.name, runs=len(side.runs), bottleneck=verdict.bottleneck, cause=verdict.cause,
        confidence=verdict.confidence, headline=verdict.headline, steps=sum(len(one.durations_ms) for one in samples),
        mean_ms=sum(means) / len(means) if means else result.steps.mean_ms,
        median_ms=_median(samples) if samples else result.steps.median_ms,
        samples_per_s=rate[0] if rate else result.throughput.samples_per_s, interval=rate[1] if rate else None,
        runs_ms=means,
    )  # fmt: skip


def _median(samples: Sequence[Sample]) -> float:
    ordered = sorted(float(value) for one in samples for value in one.durations_ms)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _phases(before: Run, after: Run) -> Iterable[PhaseRow]:
    for phase in PHASES:
        values = []
        for run in (before, after):
            share, step = run.result.phases.get(phase), run.result.steps.mean_ms
            values.append(None if share is None or step is None else share * step)
        yield PhaseRow(phase, values[0], values[1])


# -- what changed --------------------------------------------------------------------------------------


def _changes(before: Run, after: Run) -> Iterable[Change]:
    packages = (name for name in [*before.facts, *after.facts] if name.startswith(PACKAGE))
    groups: tuple[tuple[Group, tuple[str, ...]], ...] = (
        ("hardware", (*HARDWARE, "ranks")),
        ("settings", ("usable_cores", "num_threads")),
        ("versions", (*VERSIONS, *dict.fromkeys(packages))),
        ("code", CODE),
    )
    known = {name for _, names in groups for name in names}
    for group, names in groups:
        yield from _differences(group, names, before.facts, after.facts)
        if group == "settings":
            names = tuple(dict.fromkeys([*before.settings, *after.settings]))
            yield from _differences("settings", names, before.settings, after.settings, absent=True)
    others = dict.fromkeys([*before.facts, *after.facts])
    rest = tuple(name for name in others if name not in known and name != "set")
    # a variable that is not set is known to be so where variables were recorded at all
    recorded = all(any(name.startswith("env.") for name in run.facts) for run in (before, after))
    yield from _differences("environment", rest, before.facts, after.facts, absent=recorded)


def _differences(
    group: Group, names: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any], absent: bool = False
) -> Iterable[Change]:  # fmt: skip
    for name in names:
        old, new = before.get(name), after.get(name)
        if (old is None or new is None) and (not absent or not before or not after):
            continue  # unknown on one side: nothing can be said
        if not _equal(name, old, new):
            yield Change(group, name, old, new)


def _equal(name: str, old: object, new: object) -> bool:
    if name == "gpu_memory_bytes" and isinstance(old, int | float) and isinstance(new, int | float):
        return abs(old - new) <= _MEMORY_TOLERANCE * max(old, new)
    return bool(old == new)


def _refusal(changes: Iterable[Change]) -> str | None:
    different = [change for change in changes if change.group == "hardware"]
    if not different:
        return None
    words = {
        "gpu": "GPU", "gpu_memory_bytes": "GPU memory", "gpus": "number of GPUs", "cpu_model": "CPU",
        "cpu_count": "number of CPUs", "ranks": "number of ranks",
    }  # fmt: skip
    text = "; ".join(f"{words[c.name]} {c.before} against {c.after}" for c in different)
    return f"the hardware differs ({text}), so a ratio would say nothing about the changes"


def _notes(before: Side, after: Side, changes: Sequence[Change]) -> Iterable[str]:
    for side, word in ((before, "BEFORE"), (after, "AFTER")):
        if len(side.runs) > 1:
            settings = {_key(run.settings) for run in side.runs}
            if len(settings) > 1:
                yield f"the {len(side.runs)} runs of {word} do not all have the same settings; those of the first are shown"
    unknown = [
        word
        for side, word in ((before, "BEFORE"), (after, "AFTER"))
        if not any(name in side.first.facts for name in ("cpu_model", "gpu"))
    ]
    if unknown:
        yield f"the hardware of {' and '.join(unknown)} was not recorded; it is taken to be the same"
    if len(before.runs) == len(after.runs) == 1:
        yield "one run a side: the interval holds the spread of steps, not that between runs; put repeats into one folder"
    if any(change.group == "code" and change.name.startswith("git") for change in changes):
        yield "the code differs: what is measured includes that"
    if any(change.name in ("dataset", "dataset_len", "sampler", "collate_fn") for change in changes):
        yield "the data differ: what is measured includes that"


def _key(settings: Mapping[str, Any]) -> str:
    return repr(sorted((name, repr(value)) for name, value in settings.items()))


_FOLLOWS = {"num_workers": {"prefetch_factor", "persistent_workers"}}  # what torch fills in for other workers


def _confounders(changes: Iterable[Change], before: Run) -> Iterable[str]:
    """What changed besides the recommendations, where predicted and measured stand side by side."""
    wanted = {one.parameter for one in before.result.recommendations}
    for name in tuple(wanted):
        wanted |= _FOLLOWS.get(name, set())
    wanted |= {"cpu_count", "usable_cores"} if "cpus_per_task" in wanted else set()
    names = [
        change.name
        for change in changes
        if change.group in ("settings", "versions")
        and change.name not in wanted
        and change.name != "tracelens"
    ]
    if names:
        yield f"also changed: {', '.join(names)}; the measured speed-up includes that"


__all__ = ["compare", "compare_paths", "load_side", "setting", "visible"]
