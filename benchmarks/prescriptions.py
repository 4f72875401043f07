"""How good the recommended settings are where every value's effect is known.

    python -m benchmarks.simulator generate-all --n 200 --out DIR
    python benchmarks/prescriptions.py DIR        # without DIR: 40 runs generated for this once

Judges, on runs with a ``truth.json`` that holds the ``settings`` (the throughput at each value, simulated with
everything else as it was): whether the chosen num_workers is among the best and no larger than needed, whether
nothing is recommended where nothing gains, how far the predicted speed-up is off, and whether a recommended
batch size fits into memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.model import Memory, Recommendation

WORTH = 1.02
REACHED = 0.95
CLOSE = 0.1
MEMORY = 0.03


@dataclass(slots=True)
class Chosen:
    """One run's advice on a parameter against the truth; None where no number is promised."""

    name: str
    current: float
    suggested: float | None
    promised: float | None
    interval: tuple[float, float] | None
    true: float  # speed-up of the suggested value, 1.0 where none is suggested
    best: float
    smallest_good: float
    fits: bool = True
    family: str = ""
    misjudged: float | None = None  # relative error of the memory at the suggested batch size

    @property
    def value(self) -> float:
        return self.current if self.suggested is None else self.suggested

    @property
    def gains(self) -> bool:
        """Whether the advised value truly gains, so that a number is due."""
        return self.suggested is not None and self.true > WORTH

    def misses(self) -> list[str]:
        """What is wrong with the advice, by kind; empty where nothing is."""
        found = []
        if self.suggested is not None and self.best <= WORTH:
            found.append("unneeded")
        elif self.suggested is None and self.best > WORTH:
            found.append("missed")
        elif self.true < REACHED * self.best:
            found.append("value")
        if self.best > WORTH and self.value >= 2 * max(self.smallest_good, 1):
            found.append("large")
        if self.gains and self.promised is None:
            found.append("null")
        elif self.gains and self.promised is not None and abs(self.promised / self.true - 1) > CLOSE:
            found.append("high" if self.promised > self.true else "low")
        return found


def speedups(settings: Mapping[str, Any]) -> dict[float, float]:
    """value -> true speed-up in samples/s over today's."""
    return {float(value): float(entry["speedup"]) for value, entry in settings["values"].items()}


def at(known: Mapping[float, float], value: float) -> float:
    """The speed-up at a value, between the simulated ones by interpolation."""
    xs = sorted(known)
    return float(np.interp(value, xs, [known[x] for x in xs]))


def judge(where: Path) -> dict[str, Chosen]:
    """Parameter -> what was advised of one run."""
    truth = json.loads((where / "truth.json").read_text("utf-8"))
    result = analyse(discover([where]))
    return compared(where.name, truth, result.recommendations, result.memory)


def compared(
    name: str,
    truth: Mapping[str, Any],
    recommendations: Sequence[Recommendation],
    known: Memory | None = None,
) -> dict[str, Chosen]:
    """Parameter -> what was advised beside the truth; ``known``: what the analysis says of memory."""
    advised = {one.parameter: one for one in recommendations}
    found = {}
    for parameter in ("num_workers", "batch_size"):
        settings = truth["settings"].get(parameter)
        if settings is None:
            continue
        effects, current = speedups(settings), float(settings["current"])
        effects.setdefault(current, 1.0)
        one = advised.get(parameter)
        # words instead of a value ("a DataLoader with workers") name no value that could be judged
        suggested = float(one.suggested) if one and isinstance(one.suggested, int | float) else None
        best = max(effects.values())
        good = [value for value, speedup in effects.items() if speedup * WORTH >= best]
        fits, misjudged = True, None
        if parameter == "batch_size" and suggested is not None:
            memory = truth["memory"]
            needs = memory["fixed_bytes"] + memory["per_sample_bytes"] * suggested
            fits = needs <= memory["capacity_bytes"]
            if known is not None and known.fixed_bytes is not None and known.per_sample_bytes is not None:
                misjudged = (known.fixed_bytes + known.per_sample_bytes * suggested) / needs - 1
        found[parameter] = Chosen(
            name, current, suggested, one.predicted_speedup if one else None, one.interval if one else None,
            1.0 if suggested is None else at(effects, suggested), best, min(good), fits,
            str(truth["family"]), misjudged,
        )  # fmt: skip
    return found


def share(hits: int, of: int) -> str:
    return f"{hits}/{of} ({100 * hits / of:.0f} %)" if of else "0/0"


def print_workers(rows: Sequence[Chosen], misses: int) -> None:
    """The figures for num_workers, then the ``misses`` worst choices."""
    gains = [r for r in rows if r.best > WORTH]
    still = [r for r in rows if r.best <= WORTH]
    print(
        f"reaches {REACHED:.0%} of the best throughput: {share(sum(r.true >= REACHED * r.best for r in rows), len(rows))}"
    )
    print(
        f"  where a change gains more than 2 %: {share(sum(r.true >= REACHED * r.best for r in gains), len(gains))}"
    )
    needed = sum(r.value < 2 * max(r.smallest_good, 1) for r in gains)
    print(f"  there, less than twice the smallest good value: {share(needed, len(gains))}")
    print(
        f"where nothing gains, nothing recommended: {share(sum(r.suggested is None for r in still), len(still))}"
    )
    asked = [r for r in rows if r.suggested is not None and r.true > WORTH]
    missed = [r for r in gains if r.suggested is None]
    close = sum(r.promised is not None and abs(r.promised / r.true - 1) <= CLOSE for r in asked)
    print(f"promised within 10 % where the advised value truly gains: {share(close, len(asked))}")
    print(f"  with a missed gain counted too: {share(close, len(asked) + len(missed))}")
    numbered = [r for r in asked if r.interval is not None]
    inside = sum(r.interval is not None and r.interval[0] <= r.true <= r.interval[1] for r in numbered)
    wrong = sum(r.promised is not None and r.promised > 1 > r.true for r in rows)
    print(f"truth inside the stated interval: {share(inside, len(numbered))}; promised a gain, lost: {wrong}")
    for r in sorted(rows, key=lambda r: r.true / r.best)[:misses]:
        print(f"  {described(r)}")


def described(r: Chosen) -> str:
    """One line: what was advised, what it gives, what was promised, what would have been best."""
    bounds = "" if r.interval is None else f" in {r.interval[0]}..{r.interval[1]}"
    return (
        f"{r.name}: {r.current:g} -> {r.value:g} gives {r.true:.2f}x (promised {r.promised}{bounds}),"
        f" best {r.best:.2f}x at {r.smallest_good:g}"
    )


KINDS = ("missed", "value", "large", "unneeded", "null", "high", "low")


def print_misses(rows: Sequence[Chosen], listed: bool) -> None:
    """Family against kind of miss; ``listed``: each miss too."""
    families = sorted({r.family for r in rows})
    print(f"  {'misses':32s}{'runs':>6s}{'due':>5s}" + "".join(f"{kind:>10s}" for kind in KINDS))
    total = [0] * len(KINDS)
    for family in families:
        mine = [r for r in rows if r.family == family]
        counts = [sum(kind in r.misses() for r in mine) for kind in KINDS]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        if any(counts):
            due = sum(r.gains for r in mine)
            print(f"  {family:32s}{len(mine):6d}{due:5d}" + "".join(f"{n or '':>10}" for n in counts))
    print(
        f"  {'':32s}{len(rows):6d}{sum(r.gains for r in rows):5d}" + "".join(f"{n or '':>10}" for n in total)
    )
    if listed:
        for r in sorted((r for r in rows if r.misses()), key=lambda r: r.name):
            print(f"  {'+'.join(r.misses()):14s} {described(r)}")


def print_batches(rows: Sequence[Chosen]) -> None:
    """The figures for batch_size."""
    asked = [r for r in rows if r.suggested is not None]
    numbered = [r for r in asked if r.promised is not None]
    close = sum(abs((r.promised or 0) / r.true - 1) <= CLOSE for r in numbered)
    print(f"recommended: {share(len(asked), len(rows))}; all fit: {all(r.fits for r in asked)}")
    print(f"promised within 10 %: {share(close, len(numbered))}")
    known = [r.misjudged for r in asked if r.misjudged is not None]
    right = sum(abs(error) <= MEMORY for error in known)
    print(f"memory at the advised size within {MEMORY:.0%}: {share(right, len(known))}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses arguments and prints; 2 where there is nothing to judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "runs", type=Path, nargs="?", help="a folder that benchmarks.simulator generate-all wrote"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--misses", type=int, default=10, help="how many of the worst choices to print")
    parser.add_argument("--by-family", action="store_true", help="count the misses by family and kind")
    parser.add_argument("--list", action="store_true", help="and print each of them")
    options = parser.parse_args(arguments)
    if options.runs is None:
        from benchmarks.simulator.__main__ import main as simulator

        with tempfile.TemporaryDirectory() as scratch:
            with contextlib.redirect_stdout(sys.stderr):
                simulator(["generate-all", "--n", "40", "--out", scratch])
            options.runs = Path(scratch)
            return report(options)
    return report(options)


def report(options: argparse.Namespace) -> int:
    """Judges the runs below ``options.runs`` and prints."""
    work = sorted(path.parent for path in options.runs.glob("*/truth.json"))
    if not work:
        print(f"{options.runs} holds no run with a truth.json", file=sys.stderr)
        return 2
    if options.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            judged = pool.map(judge, work, chunksize=4)
    else:
        judged = [judge(where) for where in work]
    print(f"num_workers, {len(judged)} runs")
    workers = [row["num_workers"] for row in judged if "num_workers" in row]
    print_workers(workers, options.misses)
    if options.by_family or options.list:
        print_misses(workers, options.list)
    print("\nbatch_size")
    batches = [row["batch_size"] for row in judged if "batch_size" in row]
    print_batches(batches)
    if options.by_family or options.list:
        print_misses([r for r in batches if r.suggested is not None], options.list)
    return 0


if __name__ == "__main__":
    sys.exit(main())
