"""The live zoo: real training scripts with one known fault each, recorded, diagnosed, repaired, recorded again.

    python benchmarks/zoo_live.py [JOB...] [--repeats 2] [--sweep] [--keep DIR]

Prints a line a job and the scores: right causes, predicted against measured speed-up, measured inside the
stated interval, directions, width of the intervals; with --sweep, how good the chosen value is among all. Where
only the job's own switch repairs its fault, what the report advises to ``--set`` is tried too: its numbers are
promises as well.
Everything is measured on this machine as it is now. ``others`` is how many cores other processes kept busy
meanwhile: where that is much, a job may get the same share of the cores however many workers it has (Linux
divides them by session and by control group), and what is measured says little. So the scores of speed-ups are
given for all jobs, and for those that had the machine to themselves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.zoo.catalog import BY_NAME, ZOO, Job
from tests.zoo.harness import Outcome, Trial, record, run
from tracelens.bundle import Bundle
from tracelens.check.speed import logged_sample, throughput

_SAME = 0.05  # a change below this is none
_QUIET = 0.3  # cores that others may use


def main() -> int:
    """Run the jobs asked for, print the table and the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", metavar="JOB", choices=[[], *BY_NAME], help="default: all")
    parser.add_argument("--repeats", type=int, default=1, help="recordings of each side, taken in turn")
    parser.add_argument(
        "--sweep", action="store_true", help="also measure every other value of the parameter"
    )
    parser.add_argument("--keep", type=Path, help="keep the bundles below this folder")
    options = parser.parse_args()
    jobs = [BY_NAME[name] for name in options.jobs] or list(ZOO)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    print(
        f"{'job':<18} {'verdict: cause':<34} {'tried':<30} {'predicted':>9} {'interval':>14} "
        f"{'measured':>8} {'+-':>6} {'others':>6}  in"
    )
    outcomes, chosen = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for job in jobs:
            folder = (options.keep or Path(scratch)) / f"{job.name}-{time.time_ns()}"
            try:
                outcome = run(job, folder, repeats=options.repeats)
            except RuntimeError as error:
                print(f"{job.name:<18} FAILED: {error}", flush=True)
                continue
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
            if options.sweep and job.sweep:
                chosen.append(_sweep(outcome, folder / "sweep"))
    _scores(outcomes, len(jobs))
    if chosen:
        good = sum(loss <= 0.05 for loss, _ in chosen)
        lean = sum(smallest for _, smallest in chosen)
        print(
            f"chosen values within 5 % of the best of a sweep: {good} of {len(chosen)}; no larger than needed: {lean}"
        )
    return 0 if len(outcomes) == len(jobs) else 1


def _line(one: Outcome) -> str:
    verdict = one.before.verdict
    cause = f"{'' if one.right_cause else '! '}{verdict.bottleneck}: {verdict.cause or '-'}"
    lines = [_trial(one.repair, one, f"{one.job.name:<18} {cause:<34}")]
    if one.advice is not None:
        lines.append(_trial(one.advice, one, f"{'':<18} {'the report advises':<34}"))
    return "\n".join(lines)


def _trial(trial: Trial, one: Outcome, start: str) -> str:
    prediction, measured = trial.prediction, trial.comparison.measured
    low, high = prediction.interval or (None, None)
    interval = f"{low:.2f} - {high:.2f}" if low is not None and high is not None else "-"
    noise = (measured.interval[1] / measured.interval[0]) ** 0.5 - 1 if measured else None
    tried = " ".join(trial.tried) + (" (ours)" if one.job.sets and not one.advised else "")
    return (
        f"{start} {tried:<30} {_number(prediction.speedup):>9} {interval:>14} {_number(trial.measured):>8} "
        f"{'' if noise is None else f'{noise:.0%}':>6} {_number(one.others):>6}  "
        f"{('yes' if trial.inside else 'no') if trial in _settable(one) else ''}"
    )


def _settable(one: Outcome) -> list[Trial]:
    """The trials of what ``--set`` can change, each with a promise of the report or the lack of one."""
    own = [one.repair] if one.job.sets and one.job.gain == "faster" else []
    return own + ([one.advice] if one.advice is not None else [])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _scores(outcomes: list[Outcome], asked: int) -> None:
    if not outcomes:
        return
    wrong = [o for o in outcomes if not o.right_cause]
    print(f"\nright cause: {len(outcomes) - len(wrong)} of {asked}" + "".join(
        f"\n  {o.job.name}: {o.before.verdict.cause or 'none'} instead of {' or '.join(o.job.causes)}" for o in wrong
    ))  # fmt: skip
    quiet = [o for o in outcomes if o.others is not None and o.others <= _QUIET]
    _predictions([t for o in outcomes if o.job.sets for t in _settable(o)], "jobs that --set repairs")
    _predictions([t for o in outcomes for t in _settable(o)], "and what the report advises to set in others")
    _predictions([t for o in quiet for t in _settable(o)], "all of these on a quiet machine")
    wrong_way = [o for o in outcomes if not _direction(o)]
    print(f"direction wrong: {len(wrong_way)}" + "".join(f"\n  {o.job.name}" for o in wrong_way))


def _predictions(trials: list[Trial], which: str) -> None:
    print(f"predicted against measured speed-up, {which}: {len(trials)}")
    if not trials:
        return
    errors = [t.error if t.error is not None else float("inf") for t in trials]
    silent = sum(t.error is None for t in trials)
    widths = [t.prediction.interval[1] / t.prediction.interval[0] for t in trials if t.prediction.interval]
    print(
        f"  median absolute error {statistics.median(errors):.1%} ({silent} without a number, counted as misses)"
    )
    print(
        f"  measured inside the stated interval: {sum(t.inside for t in trials)} of {len(trials)}; "
        f"overlapping it with the repeats' own: {sum(_overlap(t) for t in trials)}"
    )
    if widths:
        print(f"  median interval high / low: {statistics.median(widths):.2f}")


def _overlap(trial: Trial) -> bool:
    stated, measured = trial.prediction.interval, trial.comparison.measured
    if stated is None or measured is None:
        return False
    return stated[0] <= measured.interval[1] and measured.interval[0] <= stated[1]


def _direction(one: Outcome) -> bool:
    """A promise of a gain is followed by one; where nothing is wrong, nothing is promised."""
    if one.job.gain == "same":
        plan = one.before.plan
        gain = plan.predicted_speedup if plan is not None else None
        return gain is None or gain <= 1 + _SAME
    if one.repair.measured is None:
        return False
    return all(
        t.prediction.speedup is None or t.prediction.speedup <= 1 + _SAME or (t.measured or 0) > 1
        for t in _settable(one)
    )


def _sweep(one: Outcome, folder: Path) -> tuple[float, bool]:
    """How far the tried value is from the best of all, and whether no smaller value is as good."""
    job, parameter = one.job, one.job.parameter
    tried = next((text for text in one.repair.tried if text.partition("=")[0] == parameter), "")
    rates: dict[float, float] = {}
    for text in dict.fromkeys([*job.sweep, tried]):
        rate = _rate(job, folder / text.replace("=", "-"), text)
        if rate is not None:
            rates[float(text.partition("=")[2])] = rate
    value, best = float(tried.partition("=")[2]), max(rates.values())
    print(
        f"{'':<18} sweep of {parameter}: " + ", ".join(f"{v:g}: {r:.0f}/s" for v, r in sorted(rates.items()))
    )
    smaller = [v for v, rate in rates.items() if v < value and rate >= 0.98 * rates.get(value, best)]
    return 1 - rates.get(value, 0.0) / best, not smaller


def _rate(job: Job, out: Path, text: str) -> float | None:
    sample = logged_sample(Bundle.open(record(job, out, (text,), trace=False)))
    found = throughput([sample]) if sample is not None else None
    return found[0] if found else None


if __name__ == "__main__":
    sys.exit(main())
