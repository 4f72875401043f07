"""How often the verdict is right, and by how much the promised speed-ups miss.

    python benchmarks/accuracy.py ../shared/traces                     # labelled traces: real/ and simulated/
    python benchmarks/accuracy.py --simulated 200 --seed 1             # jobs of benchmarks/simulator, the truth known
    python benchmarks/accuracy.py --generated DIR                      # jobs that benchmarks.simulator wrote before

Prints a row a file, then scores: classes and causes, the most confident miss, phases against an independent
computation, what-ifs against counterfactual speed-ups beside two trivial predictors, replay errors, and whether
confidence means what it says. The formats of labels, truths and causes.tsv are those of the traces' README.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tracelens.diagnose.analyse import analyse
from tracelens.errors import TracelensError
from tracelens.ingest.discover import discover
from tracelens.model import RESOURCES, Result

# class -> names of its counterfactual: the handed simulator's, then this repository's
COUNTERFACTUAL = {
    "cpu": ("cpu_union", "cpu"), "h2d_copy": ("transfer", "h2d_copy"), "communication": ("comm", "communication"),
    "gpu": ("gpu_compute", "gpu"), "memory_bandwidth": ("gpu_memory", "memory_bandwidth"),
}  # fmt: skip
PHASES_OF = {
    "cpu": ("load", "host"), "h2d_copy": ("transfer",), "communication": ("communication",), "gpu": ("compute",),
    "memory_bandwidth": ("compute",),
}  # fmt: skip
PHASE_TOLERANCE = 0.02
ROUNDING = 0.002  # of the label columns and of a copy call's edges
CONFIDENT_MISS = 0.6
GAIN = 0.05  # a what-if that moves the step by less than this gains nothing worth telling
SURE = 0.9


@dataclass(slots=True)
class Row:
    """One judged run. ``cause_right`` is None where no cause is expected."""

    name: str
    group: str
    expected: str
    expected_cause: str
    bottleneck: str
    cause: str | None
    confidence: float
    right: bool
    cause_right: bool | None
    seconds: float
    # class -> (predicted speed-up or None, true speed-up, the phase share's prediction)
    what_ifs: dict[str, tuple[float | None, float, float]] = field(default_factory=dict)
    kind: str | None = None
    replay_error: float | None = None


def timed(paths: Sequence[Path]) -> tuple[Result, float]:
    """The analysis and its wall time in seconds."""
    begin = time.perf_counter()
    result = analyse(discover(list(paths)))
    return result, time.perf_counter() - begin


def real_rows(folder: Path) -> list[Row]:
    """The labelled real traces."""
    rows = []
    for label in labels(folder):
        result, seconds = timed([folder / "real" / label["file"]])
        classes, causes = label["bottleneck"].split("|"), label["cause"]
        verdict = result.verdict
        rows.append(Row(
            label["file"], "real", label["bottleneck"], causes, verdict.bottleneck, verdict.cause, verdict.confidence,
            verdict.bottleneck in classes, (verdict.cause in causes.split("|")) if causes else None, seconds,
            kind=result.what_if.kind, replay_error=result.what_if.replay_error,
        ))  # fmt: skip
    return rows


def labels(folder: Path) -> list[dict[str, str]]:
    """Rows of labels.tsv."""
    with (folder / "labels.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def simulator_words(path: Path) -> dict[str, set[str]]:
    """Rule id -> the simulator's words for it."""
    with path.open(encoding="utf-8") as file:
        return {
            row["cause"]: set((row["simulator_truth"] or "").split())
            for row in csv.DictReader(file, delimiter="\t")
        }


def judged(
    name: str,
    group: str,
    result: Result,
    seconds: float,
    truth: Mapping[str, Any],
    words: Mapping[str, set[str]],
    bundle: bool = False,
) -> Row:
    """A run against its simulated truth; what a bare trace cannot show is not asked of one."""
    speedups = truth["counterfactual_speedup"]
    seen = "" if bundle or "acceptable_trace" not in truth else "_trace"
    accepted = set(truth[f"acceptable{seen}"]) | ({"none"} if truth.get("balanced") else set())
    own = (
        "acceptable_causes" in truth
    )  # this repository's simulator names rule ids and both kernel classes itself
    if not own and "gpu" in accepted and speedups["gpu_memory"] >= speedups["gpu_compute"]:
        accepted.add("memory_bandwidth")
    verdict = result.verdict
    if own:
        named = verdict.cause == truth["cause"] or verdict.cause in truth[f"acceptable_causes{seen}"]
    else:
        named = truth["cause"] in words.get(verdict.cause or "", set())
    what_ifs = {}
    for resource, names in COUNTERFACTUAL.items():
        true = next((speedups[n] for n in names if n in speedups), None)
        if true is not None:
            share = sum(result.phases.get(p) or 0.0 for p in PHASES_OF[resource])
            what_ifs[resource] = (getattr(result.what_if, resource), float(true), 1 / max(1 - share, 0.05))
    return Row(
        name, group, "|".join(sorted(accepted)), truth["cause"], verdict.bottleneck, verdict.cause, verdict.confidence,
        verdict.bottleneck in accepted, named, seconds, what_ifs, result.what_if.kind, result.what_if.replay_error,
    )  # fmt: skip


def simulated_rows(folder: Path, words: Mapping[str, set[str]]) -> list[Row]:
    """The handed simulated runs."""
    rows = []
    for path in sorted(p for p in (folder / "simulated").iterdir() if (p / "truth.json").is_file()):
        result, seconds = timed([path])
        truth = json.loads((path / "truth.json").read_text("utf-8"))
        rows.append(judged(path.name, "simulated", result, seconds, truth, words))
    return rows


def _generated(job: tuple[str, int, str, bool]) -> Row | str:
    """One job of our simulator, written, read and judged; a text where it failed."""
    from benchmarks.simulator import simulate, write_bundle, write_trace

    family, seed, split, bundle = job
    try:
        run = simulate(family, seed, split, settings=False)
    except RuntimeError as error:
        return f"{family} seed {seed}: not drawn ({error})"
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch) / family
        (write_bundle if bundle else write_trace)(run, where, truth=False)
        try:
            result, seconds = timed([where])
        except TracelensError as error:
            return f"{family} seed {seed}: {error}"
        except Exception:  # one crash must not hide the other runs' scores; it is printed and counted
            return f"{family} seed {seed}: CRASHED\n{traceback.format_exc()}"
    return judged(f"{family}-{seed}", family, result, seconds, run.truth.to_json(), {}, bundle)


def _written(where: Path) -> Row | str:
    """One run that ``benchmarks.simulator generate-all`` wrote."""
    truth = json.loads((where / "truth.json").read_text("utf-8"))
    try:
        result, seconds = timed([where])
    except TracelensError as error:
        return f"{where.name}: {error}"
    except Exception:  # as for the generated ones
        return f"{where.name}: CRASHED\n{traceback.format_exc()}"
    return judged(
        where.name, truth["family"], result, seconds, truth, {}, (where / "manifest.json").is_file()
    )


def written_rows(folder: Path, jobs: int) -> tuple[list[Row], list[str]]:
    """The runs below ``folder`` with a truth.json: rows, and what failed."""
    work = sorted(path.parent for path in folder.glob("*/truth.json"))
    return _split(_written, work, jobs)


def _split(judge: Callable[[Any], Row | str], work: Sequence[Any], jobs: int) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    failures: list[str] = []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for outcome in pool.imap(judge, work, chunksize=2):
            (failures if isinstance(outcome, str) else rows).append(outcome)  # type: ignore[attr-defined]
    return rows, failures


def generated_rows(count: int, seed: int, split: str, bundle: bool, jobs: int) -> tuple[list[Row], list[str]]:
    """``count`` jobs over the simulator's families in turn: rows, and what failed."""
    from benchmarks.simulator import families

    names = families(split)
    work = [(names[i % len(names)], seed * 100_003 + i // len(names), split, bundle) for i in range(count)]
    return _split(_generated, work, jobs)


# phases


def phase_rows(folder: Path) -> list[tuple[str, float, float, dict[str, tuple[float, str, bool]]]]:
    """For each real trace: name, our wall ms, the label's, and per phase (ours, expected, agrees)."""
    from tracelens.signals.activity import Activity
    from tracelens.signals.phases import partition
    from tracelens.trace.reader import read_trace

    rows = []
    for label in labels(folder):
        if not label["wall_ms"]:
            continue  # its phases were not computed
        path = folder / "real" / label["file"]
        tables = read_trace(path / "rank0.json.gz" if path.is_dir() else path)
        activity = Activity(tables)
        window = label_window(label["file"], activity)
        shares = partition(activity, window).shares()
        compared = {}
        for name in ("compute", "communication", "load"):
            known = label[name] != ""
            agrees = not known or abs(shares[name] - float(label[name])) <= PHASE_TOLERANCE
            compared[name] = (shares[name], label[name] if known else "?", agrees)
        low = float(label["transfer_gpu"] or 0)
        high = low + float(label["transfer_host"]) if label["transfer_host"] else 1.0
        agrees = low - ROUNDING <= shares["transfer"] <= high + ROUNDING
        compared["transfer"] = (shares["transfer"], f"{low:.3f}..{high:.3f}", agrees)
        rows.append((label["file"], (window[1] - window[0]) / 1e6, float(label["wall_ms"]), compared))
    return rows


def label_window(file: str, activity: Any) -> tuple[int, int]:
    """The window of the label columns, as the traces' README defines it."""
    from tracelens.signals.steps import find_steps

    steps = find_steps(activity)
    if not steps.count:
        return activity.tables.extent  # type: ignore[no-any-return]
    if "mi300" in file:
        return int(steps.done[-3]) if steps.count >= 3 else int(steps.begin[0]), int(steps.done[-1])
    if steps.source == "profiler_step":
        return int(steps.begin[1 if steps.count >= 3 else 0]), int(steps.end[-1])
    return int(steps.begin[2 if "linear" in file else 1]), int(steps.end[-1])


# printing


def table(rows: Iterable[Row]) -> None:
    """A line a run."""
    print(f"{'':4}{'file':42} {'expected':28} {'verdict':17} {'cause':26} {'conf.':>5} {'s':>5}")
    for row in rows:
        mark = "   " if row.right and row.cause_right is not False else " c " if row.right else "***"
        print(
            f"{mark} {row.name[:42]:42} {row.expected[:28]:28} {row.bottleneck:17} {row.cause or '-':26} "
            f"{row.confidence:5.2f} {row.seconds:5.2f}"
        )
        if row.cause_right is False:
            print(f"{'':46} cause: {row.expected_cause}")


def scores(rows: Sequence[Row], classes_needed: float, causes_needed: float | None = None) -> None:
    """Classes, causes and the most confident miss."""
    right = sum(row.right for row in rows)
    asked = [row for row in rows if row.cause_right is not None]
    causes = sum(bool(row.cause_right) for row in asked)
    needed = math.ceil(classes_needed * len(rows) - 1e-9)
    print(f"classes {right} of {len(rows)} (needed: {needed})", end="")
    print(f"; causes {causes} of {len(asked)}", end="")
    print(f" (needed: {math.ceil(causes_needed * len(asked))})" if causes_needed else "")
    misses = sorted((r for r in rows if not r.right), key=lambda r: -r.confidence)
    if misses:
        worst = misses[0]
        flag = f", ABOVE {CONFIDENT_MISS}" if worst.confidence > CONFIDENT_MISS else ""
        print(f"most confident miss: {worst.name} at {worst.confidence:.2f}{flag}")
    else:
        print("no miss")


def print_phases(folder: Path) -> None:
    """Phases of the real traces beside the label columns."""
    rows = phase_rows(folder)
    print(
        f"{'':4}{'file':36} {'wall ms':>17}  "
        + "".join(f"{n:>21}" for n in ("compute", "communication", "load", "transfer"))
    )
    off = 0
    for name, ours, theirs, compared in rows:
        bad = not all(agrees for _, _, agrees in compared.values())
        off += bad
        cells = "".join(f"{f'{value:.3f} / {expected}':>21}" for value, expected, _ in compared.values())
        print(f"{'***' if bad else '   '} {name[:36]:36} {f'{ours:.1f} / {theirs:.1f}':>17}  {cells}")
    print(f"phases agree on {len(rows) - off} of {len(rows)} traces")


def print_what_ifs(rows: Sequence[Row]) -> None:
    """Relative errors of the predicted speed-ups; null is an unbounded error."""
    predictors: dict[str, Callable[[tuple[float | None, float, float]], float | None]] = {
        "tracelens": lambda w: w[0], "always 1.0": lambda w: 1.0, "phase share": lambda w: w[2],
    }  # fmt: skip
    print(
        f"{'what-if':18}{'n':>5}{'null':>6}" + "".join(f"{f'{p}: median p90 in 10%':>34}" for p in predictors)
    )
    groups = {name: [r.what_ifs[name] for r in rows if name in r.what_ifs] for name in RESOURCES}
    groups["all"] = [w for group in list(groups.values()) for w in group]
    for name, found in groups.items():
        if not found:
            continue
        cells = ""
        for predict in predictors.values():
            errors = [math.inf if (p := predict(w)) is None else abs(p / w[1] - 1) for w in found]
            inside = sum(e <= 0.1 for e in errors) / len(errors)
            cells += f"{f'{_percent(quantile(errors, 0.5))} {_percent(quantile(errors, 0.9))} {_percent(inside)}':>34}"
        print(f"{name:18}{len(found):>5}{sum(w[0] is None for w in found):>6}{cells}")
    moved = [w for w in groups["all"] if w[1] >= 1 + GAIN or w[1] <= 1 - GAIN]
    still = [w for w in groups["all"] if abs(w[1] - 1) < GAIN]
    for name, predict in predictors.items():
        within = sum((p := predict(w)) is not None and abs(p / w[1] - 1) <= 0.1 for w in moved)
        promised = sum((predict(w) or 1.0) > 1 + GAIN for w in still)
        print(
            f"{name:14} truth moves by {GAIN:.0%}: {within}/{len(moved)} within 10 %;"
            f" no gain in truth: {promised}/{len(still)} promise more than {GAIN:.0%}"
        )


def missed(predicted: float | None, true: float) -> str | None:
    """How a what-if missed: ``null``, ``low`` or ``high`` by more than 10 %, ``promise`` where nothing was to be gained; None
    where it did not."""
    if abs(true - 1) < GAIN:
        return "promise" if (predicted or 1.0) > 1 + GAIN else None
    if predicted is None:
        return "null"
    off = predicted / true - 1
    return None if abs(off) <= 0.1 else "high" if off > 0 else "low"


def print_missed(rows: Sequence[Row]) -> None:
    """The what-ifs that missed: counts by family and resource, most first, then each with prediction and truth."""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    lines = []
    for row in rows:
        parts = []
        for name, (predicted, true, _) in row.what_ifs.items():
            if how := missed(predicted, true):
                counts[row.group, name][how] += 1
                said = "null" if predicted is None else f"{predicted:.2f}"
                parts.append(f"{name} {said} for {true:.2f} ({how})")
        if parts:
            lines.append(f"    {row.name[:46]:46} {row.kind or 'none':7}{'; '.join(parts)}")
    print(f"{'family':34}{'resource':18}{'null':>6}{'low':>6}{'high':>6}{'promise':>9}")
    for (group, name), found in sorted(counts.items(), key=lambda item: -sum(item[1].values())):
        cells = "".join(
            f"{found[how] or '':>{width}}"
            for how, width in (("null", 6), ("low", 6), ("high", 6), ("promise", 9))
        )
        print(f"{group:34}{name:18}{cells}")
    print("\n".join(lines))


def print_replay(rows: Sequence[Row]) -> None:
    """How well unchanged replays land."""
    kinds: dict[str, int] = defaultdict(int)
    for row in rows:
        kinds[row.kind or "none"] += 1
    print("what-if kinds: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    errors = [abs(r.replay_error) for r in rows if r.kind == "replay" and r.replay_error is not None]
    if errors:
        middle, high = quantile(errors, 0.5), quantile(errors, 0.9)
        print(f"replay of the unchanged run: error median {100 * middle:.2f} %, p90 {100 * high:.2f} %")


def print_reliability(rows: Sequence[Row]) -> None:
    """Confidence against how often the class was right."""
    edges = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.001)
    print(f"{'confidence':14}{'n':>5}{'mean':>8}{'right':>8}")
    gap = 0.0
    for low, high in pairwise(edges):
        inside = [r for r in rows if low <= r.confidence < high]
        if not inside:
            continue
        mean = sum(r.confidence for r in inside) / len(inside)
        right = sum(r.right for r in inside) / len(inside)
        gap += abs(mean - right) * len(inside) / len(rows)
        print(f"{low:.1f} to {min(high, 1):.1f}{'':4}{len(inside):>5}{mean:8.2f}{right:8.2f}")
    print(f"mean distance between confidence and how often it is right: {gap:.3f}")
    sure, right = [r for r in rows if r.confidence >= SURE], [r for r in rows if r.right]
    print(
        f"confidence {SURE} and more: {sum(r.right for r in sure)}/{len(sure)} right;"
        f" {sum(r.confidence >= SURE for r in right)}/{len(right)} of the right ones reach it"
    )


def print_families(rows: Sequence[Row]) -> None:
    """Classes and causes by simulator family."""
    print(f"{'family':34}{'runs':>6}{'class':>7}{'cause':>7}  verdicts that missed")
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    for name, members in sorted(groups.items()):
        missed: dict[str, int] = defaultdict(int)
        for row in members:
            if not row.right:
                missed[f"{row.expected} -> {row.bottleneck}"] += 1
        text = "; ".join(f"{m} x{n}" if n > 1 else m for m, n in missed.items())
        print(
            f"{name:34}{len(members):>6}{sum(r.right for r in members):>7}{sum(bool(r.cause_right) for r in members):>7}  {text}"
        )


def print_confusion(rows: Sequence[Row]) -> None:
    """True class (as labelled, several joined) by verdict."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        counts[row.expected][row.bottleneck] += 1
    verdicts = sorted({row.bottleneck for row in rows})
    print(f"{'accepted':44}" + "".join(f"{name[:16]:>17}" for name in verdicts))
    for expected, found in sorted(counts.items()):
        print(f"{expected:44}" + "".join(f"{found[name] or '':>17}" for name in verdicts))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _percent(value: float) -> str:
    return "null" if math.isinf(value) else f"{100 * value:.1f} %"


def _heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses arguments and prints; 2 where there is nothing to judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("traces", nargs="?", type=Path, help="a folder with real/, simulated/ and labels.tsv")
    parser.add_argument("--causes", type=Path, help="causes.tsv (default: beside the traces folder)")
    parser.add_argument("--simulated", type=int, default=0, metavar="N", help="also judge N generated jobs")
    parser.add_argument("--generated", type=Path, metavar="DIR", help="judge generated jobs already written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=("train", "test"), default="test")
    parser.add_argument(
        "--bundle", action="store_true", help="generated jobs as whole bundles, not as traces"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes for the generated jobs")
    parser.add_argument(
        "--all-rows", action="store_true", help="a line for each generated job, not only for misses"
    )
    parser.add_argument(
        "--misses", action="store_true", help="list the what-ifs that missed, by family and resource"
    )
    options = parser.parse_args(arguments)
    if options.traces is None and not options.simulated and options.generated is None:
        print(
            "nothing to judge: give a folder of labelled traces, --simulated N or --generated DIR",
            file=sys.stderr,
        )
        return 2
    if options.generated is not None and not any(options.generated.glob("*/truth.json")):
        print(f"{options.generated} holds no run with a truth.json", file=sys.stderr)
        return 2
    if options.traces is not None:
        folder: Path = options.traces
        if not (folder / "labels.tsv").is_file():
            print(f"{folder} has no labels.tsv; give a folder as its README describes", file=sys.stderr)
            return 2
        words = simulator_words(options.causes or folder.resolve().parent / "causes.tsv")
        real, simulated = real_rows(folder), simulated_rows(folder, words)
        _heading("Real traces (*** class missed, c cause missed)")
        table(real)
        scores(real, 1 - 2 / len(real), 0.7)
        _heading("Phases against the label columns (ours / theirs)")
        print_phases(folder)
        _heading("Simulated traces")
        table(simulated)
        scores(simulated, 14 / 18)
        _heading("What-ifs of the simulated traces: relative error of the speed-up")
        print_what_ifs(simulated)
        if options.misses:
            print_missed(simulated)
        print_replay([*real, *simulated])
        _heading("Confidence, real and simulated")
        print_reliability([*real, *simulated])
    status = 0
    if options.simulated or options.generated is not None:
        if options.generated is not None:
            rows, failures = written_rows(options.generated, options.jobs)
            _heading(f"{len(rows)} generated jobs of {options.generated.name}")
        else:
            rows, failures = generated_rows(
                options.simulated, options.seed, options.split, options.bundle, options.jobs
            )
            _heading(f"{options.simulated} generated jobs, split {options.split}, seed {options.seed}")
        table(rows if options.all_rows else [r for r in rows if not r.right])
        print_families(rows)
        _heading("Confusion")
        print_confusion(rows)
        scores(rows, 0.9)
        print(f"{len(failures)} runs failed" + "".join(f"\n  {failure}" for failure in failures))
        _heading("What-ifs of the generated jobs: relative error of the speed-up")
        print_what_ifs(rows)
        if options.misses:
            print_missed(rows)
        print_replay(rows)
        _heading("Confidence")
        print_reliability(rows)
        status = 1 if failures else 0
    return status


if __name__ == "__main__":
    sys.exit(main())
