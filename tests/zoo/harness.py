"""Records a zoo job as a user does, diagnoses the bundle, repairs the job, and compares."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.zoo.catalog import Job
from tracelens.bundle import iterate_lines
from tracelens.check.compare import compare
from tracelens.check.comparison import Comparison
from tracelens.check.sides import Side, load_side
from tracelens.model import Result

_DROPPED = ("TRACELENS_", "SLURM_", "OMP_", "MKL_", "RANK", "LOCAL_RANK", "WORLD_SIZE")


@dataclass(frozen=True)
class Prediction:
    """What the report promises for the settings that are tried: speed-up and interval, None where it does not."""

    speedup: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Trial:
    """A change that was made: the ``--set`` texts or the switch, what the report promised for it, and what came of it."""

    tried: tuple[str, ...]
    prediction: Prediction
    comparison: Comparison

    @property
    def measured(self) -> float | None:
        """Measured speed-up."""
        return self.comparison.measured.ratio if self.comparison.measured else None

    @property
    def inside(self) -> bool:
        """Whether what was measured lies in the promised interval."""
        interval, measured = self.prediction.interval, self.measured
        return interval is not None and measured is not None and interval[0] <= measured <= interval[1]

    @property
    def error(self) -> float | None:
        """Relative error of the predicted speed-up; None without a prediction."""
        if self.prediction.speedup is None or not self.measured:
            return None
        return abs(self.prediction.speedup / self.measured - 1)


@dataclass(frozen=True)
class Outcome:
    """A job before and after its repair.

    ``advised``: the repair is the report's own advice. ``advice``: what the report advises to ``--set`` in a job whose
    fault only its own switch repairs, tried as well.
    """

    job: Job
    before: Result
    repair: Trial
    advised: bool
    advice: Trial | None
    others: float | None

    @property
    def right_cause(self) -> bool:
        """Whether the verdict names the job's fault."""
        return self.before.verdict.cause in self.job.causes


def record(
    job: Job,
    out: Path,
    sets: Sequence[str] = (),
    *,
    repaired: bool = False,
    trace: bool = True,
    steps: int | None = None,
) -> Path:
    """Record the job into ``out``. Raises RuntimeError with the job's output where it fails."""
    argv = [sys.executable, "-m", "tracelens", "record", "--out", str(out)]
    for text in sets:
        argv += ["--set", text]
    if not trace:
        argv.append("--no-trace")
    argv += ["--", *job.command(sys.executable, repaired=repaired, steps=steps)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    environment.update(job.env)
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{job.name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return out


def advice(job: Job, result: Result) -> tuple[tuple[str, ...], Prediction] | None:
    """What the report says to set: its plan, else its first recommendation; with the job's parameter in it where the job
    has one. None where it says nothing of the kind."""
    plan = result.plan
    if plan is not None and plan.set_flags and job.parameter in (None, *plan.parameters):
        return _texts(plan.set_flags), Prediction(plan.predicted_speedup, plan.interval)
    for one in result.recommendations:
        if one.set_flag and job.parameter in (None, one.parameter):
            return _texts((one.set_flag,)), Prediction(one.predicted_speedup, one.interval)
    return None


def _texts(flags: Sequence[str]) -> tuple[str, ...]:
    return tuple(flag.removeprefix("--set").strip() for flag in flags)


def run(job: Job, folder: Path, *, steps: int | None = None, repeats: int = 1) -> Outcome:
    """The whole round for one job below ``folder``: record, diagnose, repair, record again, compare.

    More ``repeats`` record all sides so often, in turn, so that a busy moment hits each.
    """
    first = record(job, folder / "before" / "run0", steps=steps)
    result = load_side(first).first.result
    found = advice(job, result)
    sets, prediction = found or (job.sets, Prediction(None, None))
    changes: dict[str, tuple[tuple[str, ...], bool]] = {"before": ((), False)}
    changes["after"] = (sets, False) if job.sets else ((), job.switch is not None)
    if found and not job.sets:
        changes["advised"] = (sets, False)
    bundles: dict[str, list[Path]] = {name: [] for name in changes}
    for number in range(repeats):
        for name, (texts, repaired) in changes.items():
            out = folder / name / f"run{number}"
            bundles[name].append(
                first if out.exists() else record(job, out, texts, repaired=repaired, steps=steps)
            )
    sides = {name: _side(name, recorded) for name, recorded in bundles.items()}
    switch = (job.switch,) if job.switch is not None else ()
    return Outcome(
        job,
        result,
        Trial(
            sets if job.sets else switch,
            prediction if job.sets else Prediction(None, None),
            compare(sides["before"], sides["after"]),
        ),
        bool(found and job.sets),
        Trial(sets, prediction, compare(sides["before"], sides["advised"])) if "advised" in sides else None,
        others_cores([one for recorded in bundles.values() for one in recorded]),
    )


def others_cores(bundles: Sequence[Path]) -> float | None:
    """Cores that processes outside the job kept busy during the recordings, on average; None where not recorded."""
    found = []
    for bundle in bundles:
        for line in iterate_lines(bundle / "host.jsonl"):
            used, cores, processes = (
                line.get(name) for name in ("system_cpu_percent", "cpu_count", "processes")
            )
            if not isinstance(used, int | float) or not isinstance(cores, int) or not processes:
                continue
            own = [one.get("cpu_percent") for one in processes]
            if all(isinstance(value, int | float) for value in own):
                found.append(max(used * cores - sum(own), 0.0) / 100)
    return sum(found) / len(found) if found else None


def _side(name: str, bundles: Sequence[Path]) -> Side:
    return Side(name, tuple(load_side(one).first for one in bundles))
