"""The collected reports of slow jobs, each put through the diagnosis: is its cause named, and is the advice what helped?

    python benchmarks/cases.py [FOLDER]        # FOLDER holds slow_jobs.md (default: ../shared/cases)

``fixtures/cases/slow_jobs.toml`` tells each job again as what a recording of it holds. Its signals go through the rules,
their suppression, the verdict and the advice; jobs whose point is advice that must be declined are built as traces and
analysed like a user's file. Every signal must be one that the tool computes from recordings of its own format
(``tests.signalkit``), which also say where each comes from: the agent in the job, the sampler beside it, NVML, or a trace.
Only what fires is printed; a case is covered where the expected rules are among the findings and their advice holds the
change that helped, or, for what did not help, where nothing is advised.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.bundlekit import Run
from tests.signalkit import produced
from tests.tracekit import GEMM, POINTWISE, WORKERS, Loop
from tracelens.check.compare import compare_paths
from tracelens.diagnose import verdict as decide
from tracelens.diagnose.analyse import analyse, worth_saying
from tracelens.diagnose.engine import evaluate_all
from tracelens.diagnose.judge import judge_ranks
from tracelens.diagnose.load import load_run
from tracelens.diagnose.rules import Rule, load_rules
from tracelens.diagnose.text import fill
from tracelens.ingest.discover import discover
from tracelens.model import Bottleneck
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "fixtures" / "cases" / "slow_jobs.toml"
REPORTS = ROOT / ".." / "shared" / "cases"
_TITLE = re.compile(r"^## (\S+) ·.*\n(.*?)(?: \(https?://\S+\))?$", re.MULTILINE)
_STEP_MS = 100.0


@dataclass(frozen=True)
class Said:
    """What the tool said of a case. ``advice`` is the text of each finding, ``parts`` where each signal comes from."""

    bottleneck: str
    cause: str | None
    advice: Mapping[str, str]
    parts: Mapping[str, str]
    recommended: frozenset[str] = frozenset()
    declined: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Judged:
    """A case with what was said of it and what is wrong about that; ``unknown``: why the tool cannot know its cause."""

    name: str
    said: Said | None
    named: str
    advised: bool
    wrong: tuple[str, ...] = field(default=())
    unknown: str = ""

    @property
    def covered(self) -> bool:
        """Whether the cause is named and the advice fits."""
        return not self.wrong and not self.unknown


def load_cases() -> dict[str, dict[str, Any]]:
    """The fixture, by case."""
    return tomllib.loads(CASES.read_text("utf-8"))


def titles(folder: Path) -> dict[str, str]:
    """Case -> title, of the collected reports."""
    return dict(_TITLE.findall((folder / "slow_jobs.md").read_text("utf-8")))


def judge_case(name: str, case: Mapping[str, Any], rules: Mapping[str, Rule]) -> Judged:
    """One case through the tool, and what the fixture expects against what it said."""
    if "unknown" in case:
        return Judged(name, None, "-", False, unknown=str(case["unknown"]))
    if "signals" in case:
        said = _from_signals(case["signals"], rules)
    elif "trace" in case:
        said = _from_trace(case, rules)
    else:
        return _compared(name, case)
    wanted: Sequence[str] = case.get("rules", ())
    words: Sequence[str] = case.get("advice", ())
    text = " ".join(said.advice.get(rule, "") for rule in wanted).lower()
    everything = " ".join([*said.advice.values(), *said.recommended]).lower()
    lacking = [word for word in words if word.lower() not in text]
    wrong = [f"{rule} did not fire" for rule in wanted if rule not in said.advice]
    wrong += [f"the advice lacks {word!r}" for word in lacking]
    wrong += [f"{rule} fired" for rule in case.get("silent", ()) if rule in said.advice]
    never = [word for word in case.get("never", ()) if word.lower() in everything]
    wrong += [f"the advice holds {word!r}" for word in never]
    wrong += [f"{one} is recommended" for one in case.get("declined", ()) if one in said.recommended]
    wrong += [f"{one} is not declined" for one in case.get("declined", ()) if one not in said.declined]
    if case.get("verdict", said.bottleneck) != said.bottleneck:
        wrong.append(f"the class is {said.bottleneck}, not {case['verdict']}")
    kept = [one for one in case.get("declined", ()) if one in said.declined]
    named = ", ".join(rule for rule in wanted if rule in said.advice)
    if not wanted:
        named = f"declined {', '.join(kept)}" if kept else "silent"
    return Judged(name, said, named, not lacking and not never, tuple(wrong))


# -- the three kinds of case -------------------------------------------------------------------------------------------


def _from_signals(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> Said:
    known = produced()
    signals = Signals()
    for name, value in {"steps.mean_ms": _STEP_MS, "steps.steady": 10, "steps.count": 200, **values}.items():
        if name not in known:
            raise KeyError(f"no recording gives the signal {name}")
        signals.add(name, value, *known[name])
    whatifs = _bounds(signals)
    evaluations = evaluate_all(rules, signals, whatifs)
    bottleneck, _ = decide.bottleneck(whatifs, signals, evaluations)
    cause = decide.cause(bottleneck, evaluations, {}, whatifs)
    found = worth_saying(evaluations, whatifs.step_ms, cause)
    advice = {one.rule.id: fill(one.rule.advice, signals) for one in found}
    return Said(bottleneck, cause, advice, {name: origin(known[name][1]) for name in values})


def _bounds(signals: Signals) -> WhatIfs:
    """What each class saves at most, from the same phases and kernel classes as ``whatif.bounds`` takes it from a trace."""
    step = signals.number("steps.mean_ms") or _STEP_MS

    def total(*names: str) -> float:
        return min(sum(signals.number(name) or 0.0 for name in names), step)

    saving: dict[Bottleneck, float | None] = {
        "cpu": total("load.saving_ms", "host.saving_ms"),
        "h2d_copy": total("transfer.saving_ms"),
        "communication": total("communication.saving_ms"),
        "gpu": total("kernels.arithmetic_ms", "kernels.small_ms"),
        "memory_bandwidth": total("kernels.memory_ms"),
    }
    return WhatIfs(step, saving, "bound")


def _from_trace(case: Mapping[str, Any], rules: Mapping[str, Rule]) -> Said:
    made = dict(case["trace"])
    layer = ((GEMM, made.pop("gemm_us")), (POINTWISE, made.pop("pointwise_us")))
    loop = Loop(kernels=layer * made.pop("layers"), iterator=WORKERS, **made)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loop.trace().write(folder / "trace.json")
        (folder / "loader.json").write_text(json.dumps(case["settings"]))
        run = discover([folder])
        result = analyse(run)
        signals = judge_ranks(load_run(run).ranks, rules)[0].signals
    watched = {name: origin(signals[name].source or "") for name in case.get("watch", ())}
    return Said(
        result.verdict.bottleneck, result.verdict.cause, {f.rule: f.advice or "" for f in result.findings}, watched,
        frozenset(r.parameter for r in result.recommendations), frozenset(d.parameter for d in result.declined),
    )  # fmt: skip


def _compared(name: str, case: Mapping[str, Any]) -> Judged:
    """Two recordings whose difference is the point: what ``tracelens compare`` says changed."""
    wanted = case["compare"]
    with tempfile.TemporaryDirectory() as folder:
        sides = [_recorded(Path(folder) / side, wanted[side]) for side in ("before", "after")]
        found = compare_paths(*sides)
    changed = {f"{one.group} {one.name}" for one in found.changes}
    lacking = [word for word in case["advice"] if f"versions {word}" not in changed]
    wrong = [f"the change of {word} is not shown" for word in lacking]
    if found.outcome != wanted["outcome"]:
        wrong.append(f"the outcome is {found.outcome}")
    said = Said(found.after.bottleneck, None, {}, dict.fromkeys(case["advice"], "agent"))
    return Judged(name, said, f"tracelens compare: {found.outcome}", not lacking, tuple(wrong))


def _recorded(folder: Path, side: Mapping[str, Any]) -> Path:
    path = Run(steps=60, step_ms=side["step_ms"], wait_ms=0.1).write(folder)
    process = path / "rank0" / "process.jsonl"
    process.write_text(json.dumps(json.loads(process.read_text()) | {"frameworks": side["packages"]}) + "\n")
    return path


def origin(source: str) -> str:
    """Which part of the recorder a signal's source names: agent, sampler, NVML, trace."""
    words = {
        "agent": ("loader", "step log", "process log", "baseline"), "sampler": ("host log",), "NVML": ("GPU log",),
        "trace": ("trace", "kernel names", "shapes", "replay", "all ranks", "kernel"),
    }  # fmt: skip
    parts = [part for part, names in words.items() if any(word in source for word in names)]
    return "+".join(parts) or "trace"


# -- the table ---------------------------------------------------------------------------------------------------------


def row(judged: Judged) -> str:
    """One line of the table."""
    if judged.said is None:
        return f"{judged.name:<5} {'-':<36} {'-':<44} {'-':<6} no       cannot be known: {judged.unknown}"
    said = judged.said
    parts: dict[str, list[str]] = {}
    for name, part in said.parts.items():
        parts.setdefault(part, []).append(name)
    signals = "; ".join(f"{part}: {' '.join(sorted(names))}" for part, names in sorted(parts.items()))
    verdict = f"{said.bottleneck}: {said.cause or 'none'}"
    problems = f" [{'; '.join(judged.wrong)}]" if judged.wrong else ""
    return (
        f"{judged.name:<5} {verdict:<36} {judged.named:<44} {'yes' if judged.advised else 'no':<6} "
        f"{'yes' if judged.covered else 'no':<8} {signals}{problems}"
    )


def main() -> int:
    """Print the table and how many cases are covered; 1 where a case is not what the fixture says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=REPORTS, metavar="FOLDER", help="holds slow_jobs.md"
    )
    folder = parser.parse_args().folder
    cases, rules = load_cases(), load_rules()
    known = titles(folder) if (folder / "slow_jobs.md").is_file() else {}
    if not known:
        print(f"no slow_jobs.md in {folder}: titles are left out")
    for name in sorted(set(known) - set(cases)):
        print(f"{name} has no entry in {CASES.name}")
    print(
        f"{'case':<5} {'class: cause':<36} {'named by':<44} {'advice':<6} {'covered':<8} signals, and who records them"
    )
    judged = [judge_case(name, case, rules) for name, case in cases.items()]
    for one in judged:
        print(row(one))
        print(f"      {known.get(one.name) or cases[one.name]['job']}")
    covered, total = sum(one.covered for one in judged), len(set(known) | set(cases))
    negative = [one for one in judged if cases[one.name].get("negative")]
    print(f"\ncovered {covered}/{total} ({covered / total:.0%}); of the {len(negative)} reports of what did not help "
          f"{sum(one.covered for one in negative)} get silence or declined advice")  # fmt: skip
    return int(any(one.wrong for one in judged))


if __name__ == "__main__":
    sys.exit(main())
