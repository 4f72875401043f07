"""Does the scoreboard notice a broken analyser? Each mutation must cost right answers on runs whose truth is known.

    python benchmarks/mutations.py                    # the committed simulated fixtures
    python benchmarks/mutations.py --runs FOLDER      # runs of benchmarks.simulator generate-all

Prints, for the analyser as it is and for each mutation: classes and causes right, runs told one cause twice, and
how far predicted num_workers speed-ups are off the simulated truth.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tracelens.diagnose import engine
from tracelens.diagnose.advice import loader_case
from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.signals import analysis
from tracelens.signals.phases import Phases
from tracelens.trace import dialects
from tracelens.trace.tables import Device

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Counts over the runs. ``doubled``: runs with more than one finding of the verdict's own group; ``off``: mean
    absolute log error of predicted num_workers speed-ups."""

    runs: int
    classes: int
    causes: int
    doubled: int
    off: float

    def worse_than(self, other: Score) -> bool:
        """Whether anything that should be high is lower, or what should be low is higher."""
        return (
            self.classes < other.classes or self.causes < other.causes or self.doubled > other.doubled
            or self.off > 1.25 * other.off
        )  # fmt: skip


def runs_in(folder: Path) -> list[Path]:
    """Folders with a truth, here or one level below."""
    return sorted(p.parent for p in [*folder.glob("*/truth.json"), *folder.glob("*/*/truth.json")])


def score(runs: Sequence[Path]) -> Score:
    """The scoreboard of some runs."""
    classes = causes = doubled = 0
    off: list[float] = []
    for run in runs:
        truth = json.loads((run / "truth.json").read_text("utf-8"))
        result = analyse(discover([run]))
        accepted = set(truth["acceptable"]) | ({"none"} if truth.get("balanced") else set())
        classes += result.verdict.bottleneck in accepted
        causes += result.verdict.cause in (truth.get("acceptable_causes_trace") or [truth["cause"]])
        group = (result.verdict.cause or "").split(".")[0]
        doubled += (
            sum(f.rule.startswith(f"{group}.") for f in result.findings) > 1
            if group in ("load", "transfer")
            else 0
        )
        for recommendation in result.recommendations:
            known = (
                truth["settings"].get("num_workers", {}).get("values", {}).get(str(recommendation.suggested))
            )
            if recommendation.parameter == "num_workers" and known and recommendation.predicted_speedup:
                off.append(abs(math.log(recommendation.predicted_speedup / known["speedup"])))
    return Score(len(runs), classes, causes, doubled, sum(off) / max(len(off), 1))


def swapped_phases() -> Any:
    """Loading is taken for computing and the other way round."""
    true = analysis.partition

    def partition(*args: Any) -> Phases:
        found = true(*args)
        parts = dict(found.parts)
        parts["load"], parts["compute"] = parts["compute"], parts["load"]
        return dataclasses.replace(found, parts=parts)

    return mock.patch.object(analysis, "partition", partition)


def mislabelled_copies() -> Any:
    """Copies from the host count as copies within the device."""
    true = dialects.copy_kind

    def copy_kind(name: str, wording: str = "") -> tuple[int, int]:
        kind, pin = true(name, wording)
        return (int(Device.D2D), 0) if kind == Device.H2D else (kind, pin)

    return mock.patch.object(dialects, "copy_kind", copy_kind)


def no_suppression() -> Any:
    """No rule silences another."""
    return mock.patch.object(engine, "_superseded", return_value=set())


def halved_service() -> Any:
    """A batch takes half as long to make."""
    true = loader_case.observed_service

    def service(*args: Any) -> Any:
        found = true(*args)
        return (
            None
            if found is None
            else dataclasses.replace(found, cpu_ms=found.cpu_ms / 2, wait_ms=found.wait_ms / 2)
        )

    return mock.patch.object(loader_case, "observed_service", service)


MUTATIONS: dict[str, Callable[[], Any]] = {
    "two phases swapped": swapped_phases,
    "copies mislabelled": mislabelled_copies,
    "suppression dropped": no_suppression,
    "service time halved": halved_service,
}


def scores(runs: Sequence[Path]) -> Iterator[tuple[str, Score]]:
    """The analyser's own score first, then each mutation's."""
    for name, mutation in {"as it is": contextlib.nullcontext, **MUTATIONS}.items():
        with mutation():
            yield name, score(runs)


def main() -> int:
    """Prints the table; exit code 1 where a mutation goes unnoticed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=FIXTURES, help="a folder of simulated runs")
    runs = runs_in(parser.parse_args().runs)
    print(f"{'analyser':<22}{'classes':>9}{'causes':>8}{'doubled':>9}{'off by':>9}   of {len(runs)} runs")
    base: Score | None = None
    unnoticed = 0
    for name, found in scores(runs):
        base = base or found
        noticed = found.worse_than(base)
        unnoticed += name != "as it is" and not noticed
        note = "" if name == "as it is" else "noticed" if noticed else "NOT NOTICED"
        print(
            f"{name:<22}{found.classes:>9}{found.causes:>8}{found.doubled:>9}{math.expm1(found.off):>9.1%}   {note}"
        )
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
