"""What ``tune`` prints: the table of runs, the settings to keep, and how."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import units
from tracelens.check.speed import speedup, throughput
from tracelens.ingest.points import LoaderPoints
from tracelens.tune.loop import Tuned
from tracelens.tune.search import story
from tracelens.tune.trial import Trial

_PROCESS = {"num_threads": "torch.set_num_threads({})"}  # everything else is an argument of the DataLoader
_CAVEATS = {"batch_size": "batch_size changes the training itself: check the learning rate and the results."}


def tuned_text(tuned: Tuned, command: Sequence[str]) -> str:
    """The whole answer."""
    lines = [
        *_table(
            [("run", "settings", "throughput", "against the best before", "predicted", ""), *_rows(tuned)]
        )
    ]
    lines.append("")
    best, first = tuned.best, next((trial for trial in tuned.trials if trial.ran), None)
    if best is None or first is None or best.sample is None or first.sample is None:
        lines.append(f"No setting was found: {tuned.ended}.")
    elif not best.sets:
        lines.append(f"Keep the settings as they are: {tuned.ended}.")
    else:
        ratio, interval, _ = speedup([first.sample], [best.sample])
        low, high = (units.ratio(end) for end in interval)
        lines.append(
            f"Best: run {best.number}, {units.ratio(ratio)} the first run's throughput (between {low} and {high}); {tuned.ended}."
        )
        lines += ["In code:", *(f"    {line}" for line in in_code(best.sets))]
        flags = " ".join(f"--set {text}" for text in best.sets)
        lines += ["Without editing it:", f"    tracelens record {flags} -- {_shown(command)}"]
        lines += [text for name, text in _CAVEATS.items() if any(_name(s) == name for s in best.sets)]
        lines.append(f"All of it: tracelens compare {first.bundle} {best.bundle}")
    lines.append(
        f"Every run is kept in {tuned.folder}; to go on: tracelens tune --resume {tuned.folder} -- {_shown(command)}"
    )
    return "\n".join(lines)


def _shown(command: Sequence[str]) -> str:
    import shlex

    return shlex.join(command)


def _name(text: str) -> str:
    return text.partition("=")[0].rpartition(".")[2]


def in_code(sets: Sequence[str]) -> list[str]:
    """The settings as one writes them in the training script."""
    loaders: dict[str, list[str]] = {}
    lines = []
    for text in sets:
        name, _, value = text.partition("=")
        loader, _, key = name.rpartition(".")
        if key in _PROCESS:
            lines.append(_PROCESS[key].format(value))
            continue
        literal = {"true": "True", "false": "False", "none": "None"}.get(value.lower(), value)
        literal = repr(value) if key == "multiprocessing_context" and literal != "None" else literal
        loaders.setdefault(loader, []).append(f"{key}={literal}")
    for loader, arguments in loaders.items():
        note = f"  # the loader {loader}" if loader else ""
        lines.append(f"DataLoader(..., {', '.join(arguments)}){note}")
    return lines


def _rows(tuned: Tuned) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for step in story(tuned.trials):
        trial = step.trial
        ratio, word = "", "kept" if step.kept else "not faster"
        if step.ratio is None:
            word = trial.why_failed()
        elif trial.sets and step.interval is not None:
            ratio = f"{units.ratio(step.ratio)} ({units.ratio(step.interval[0])} - {units.ratio(step.interval[1])})"
        elif not trial.sets:
            word = "as it is"
        predicted = units.ratio(trial.promised) if trial.promised is not None else ""
        rows.append((str(trial.number), " ".join(trial.sets) or "-", _rate(trial), ratio, predicted, word))
    return rows


def _rate(trial: Trial) -> str:
    if trial.sample is None:
        return units.MISSING
    found = throughput([trial.sample])
    if found is None:
        return f"{units.milliseconds(trial.sample.mean_ms)} a step"
    return units.rate(found[0])


def points_text(points: LoaderPoints) -> str:
    """The loader alone, by worker count."""
    rows = [("workers", "batch", "throughput", "batches")]
    for point in points.points:
        mark = " (today)" if point.num_workers == points.num_workers else ""
        rows.append(
            (
                f"{point.num_workers}{mark}",
                units.milliseconds(point.ms_per_batch),
                units.rate(point.samples_per_s),
                str(point.batches),
            )
        )
    lines = ["The loader alone, with nobody using its batches:", *_table(rows)]
    lines += [f"{count} workers were not tried: {reason}" for count, reason in points.skipped]
    return "\n".join(lines)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
