"""What to set on the DataLoader: the loader model's advice with its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.diagnose.advice.case import WAITS, WORTH, Case, Proposal
from tracelens.diagnose.advice.loader_case import LoaderCase
from tracelens.diagnose.advice.loader_machine import ASSUMED_CORES
from tracelens.model import Curve, Declined, Recommendation
from tracelens.units import milliseconds, percent, ratio
from tracelens.whatif import loader_model as model
from tracelens.whatif.scenarios import LOADED


def loader_proposals(case: Case, loaded: LoaderCase) -> tuple[list[Proposal], list[Declined], list[Curve]]:
    """The loader model's recommendations with their numbers, what it advises against, and its curve."""
    advice = loaded.advice
    rule = case.fired_load_rule
    changes = advice.changes if rule is not None or waits(case) or loaded.inputs.crowd else {}
    following = case.next_bottleneck(LOADED)
    proposals = []
    before = advice.current
    for name, value in changes.items():
        alone = (
            model.predict(loaded.inputs, loaded.settings.replace(**{name: value}))
            if len(changes) > 1
            else advice.advised
        )
        gain, interval = anchored(loaded.measured_ms, before, alone, case.replayed is not None)
        if name == "num_workers" or gain - 1 > WORTH:
            stated, bounds = case.stated(gain, unseen(case, loaded, interval), loaded.noise)
            current = getattr(loaded.settings, name)
            if gain <= 1 + WORTH:
                stated, bounds = None, None
            proposals.append(
                Proposal(
                    Recommendation(
                        parameter=name,
                        current=current,
                        suggested=value,
                        predicted_speedup=stated,
                        interval=bounds,
                        next_bottleneck=following,
                        rule=rule or _rule(loaded, changes),
                        snippet=None,
                        basis="model",
                        why=_why(case, loaded, name, alone),
                        set_flag=f"--set {name}={value}",
                    )
                )
            )
    declined = _declined(case, loaded, changes)
    proposals += _more_cores(case, loaded, rule)
    return proposals, declined, [_curve(loaded)]


def waits(case: Case) -> bool:
    """Whether steps wait for data although no rule says why."""
    return (case.signals.number("load.saving_ms") or 0.0) >= WAITS * case.step_ms


def unseen(case: Case, loaded: LoaderCase, interval: tuple[float, float]) -> tuple[float, float]:
    """The interval down to no gain where storage may be at its limit already, or workers that nobody waits for idle:
    nothing recorded tells."""
    if loaded.limits.readers is not None or (loaded.inputs.crowd and not waits(case)):
        return min(interval[0], 1.0), interval[1]
    return interval


def _rule(loaded: LoaderCase, changes: Mapping[str, Any]) -> str:
    fewer = changes.get("num_workers", loaded.settings.num_workers) < loaded.settings.num_workers
    return "load.too_many_workers" if fewer else "load.too_few_workers"


_FOREIGN = 0.2  # of a step: more than a model that describes this loader leaves unexplained


def anchored(
    measured_ms: float, before: model.Prediction, after: model.Prediction, replayed: bool = False
) -> tuple[float, tuple[float, float]]:
    """Speed-up and interval; ``measured_ms``: today's time of a batch.

    A little time of a measured step that the model of today's settings does not explain shrinks with the rest, a fifth
    of it and more is something else and stays; the interval reaches from its staying to its going entirely. Where the
    model is slower than the measured step, the speed-up lies between its own and the one from the measured step.
    ``replayed``: the rest of the step comes from a replay of all of it, which leaves nothing else; without workers
    loading and the rest simply alternate, and what they take together is what was measured.
    """
    gain = before.speedup_to(after)
    low, high = model.speedup_interval(before, after)
    unexplained = measured_ms - before.mean_ms
    if measured_ms <= 0:
        return gain, (low, high)
    goes = measured_ms / after.mean_ms
    if replayed and before.settings.num_workers == 0:
        return goes, (low / gain * min(gain, goes), high / gain * max(gain, goes))
    if abs(unexplained) > 0.05 * measured_ms:
        stays = measured_ms / max(after.mean_ms + unexplained, after.mean_ms / 2)
        low, high = low / gain * min(gain, stays, goes), high / gain * max(gain, stays, goes)
        if unexplained < 0:
            gain = math.sqrt(gain * goes)
        elif unexplained > _FOREIGN * measured_ms:
            gain = stays
    return gain, (low, high)


def _why(case: Case, loaded: LoaderCase, name: str, after: model.Prediction) -> str:
    inputs = loaded.inputs
    service = float(np.mean(inputs.service_cpu_ms + inputs.service_wait_ms))
    rest = float(np.mean(inputs.consume_ms)) if not callable(inputs.consume_ms) else 0.0
    today, steps = loaded.advice.current, loaded.batches
    text = (
        f"A batch takes {milliseconds(service)} to make ({milliseconds(float(np.mean(inputs.service_cpu_ms)))} of it CPU), "
        f"the rest of a step {milliseconds(rest * steps)}. Today a step waits {milliseconds(today.wait_ms * steps)} for data "
        f"(modelled step {milliseconds(today.mean_ms * steps)}, measured {milliseconds(case.step_ms)}); "
        f"with {name}={after.settings.num_workers if name == 'num_workers' else getattr(after.settings, name)} "
        f"it waits {milliseconds(after.wait_ms * steps)} (step {milliseconds(after.mean_ms * steps)})."
    )
    if steps > 1:
        text += f" A step consumes {steps} batches."
    if not loaded.cores_known:
        text += f" The number of cores was not recorded; {ASSUMED_CORES:.0f} are assumed."
    return text


_REASONS = {
    "cores": "more would need cores that this process may not use",
    "storage": "twice the readers that storage was seen to serve are as far as a prediction reaches; apply it and look again",
    "ram": "more workers would not fit into the free memory",
    "shm": "the batches waiting in /dev/shm would not fit",
    "shards": "the IterableDataset does not shard its samples: more workers would deliver duplicates",
}


def _held(loaded: LoaderCase) -> str:
    inputs, workers = loaded.inputs, loaded.settings.num_workers
    work = float(np.mean(inputs.service_cpu_ms + inputs.service_wait_ms))
    share = work / max(workers * inputs.held_ms, 1e-9)
    return (
        f"the workers are waited for, yet they compute and read for only {percent(share)} of the time: what holds them up "
        "(a quota, handing batches over, a remote store) was not recorded, and more of them need not help; tracelens tune "
        "finds out"
    )


def _declined(case: Case, loaded: LoaderCase, changes: Mapping[str, Any]) -> list[Declined]:
    found = []
    advice, today = loaded.advice, loaded.settings.num_workers
    if "num_workers" not in changes:
        best = advice.curve.best
        gain = advice.current.speedup_to(best)
        if loaded.inputs.held_ms:
            reason = _held(loaded)
        elif case.fired_load_rule is None and not waits(case):
            saved = milliseconds(case.signals.number("load.saving_ms"))
            reason = f"the loader limits nothing: loading free would save {saved} a step"
        elif advice.limited_by in _REASONS:
            reason = _REASONS[advice.limited_by]
        elif changes and gain > 1 + WORTH:
            reason = (
                f"{best.settings.num_workers} would gain {ratio(gain)}, less than {' and '.join(changes)}, "
                f"which gains {ratio(advice.current.speedup_to(advice.advised))} with today's number"
            )
        else:
            short = (
                "no more than its prediction may be wrong by"
                if gain > 1 + WORTH
                else f"less than {WORTH:.0%}"
            )
            reason = f"the best value ({best.settings.num_workers}) gains {ratio(gain)}, {short}"
        found.append(
            Declined(
                "num_workers",
                best.settings.num_workers if best.settings.num_workers != today else today,
                reason,
            )
        )
    else:
        limit = advice.limited_by
        starving = advice.advised.wait_ms > WORTH * advice.advised.mean_ms
        if limit is None and starving and changes["num_workers"] >= math.floor(loaded.inputs.machine.cores):
            limit = "cores"  # larger numbers were not even asked about
        if limit in _REASONS:
            found.append(Declined("num_workers", None, f"beyond {changes['num_workers']}: {_REASONS[limit]}"))
    return found


def _more_cores(case: Case, loaded: LoaderCase, rule: str | None) -> list[Proposal]:
    """Where cores are the limit: how many would be enough, and what they would give."""
    if (
        rule not in ("load.cores_exhausted", "load.too_many_workers", "load.affinity", "load.quota")
        or not loaded.cores_known
    ):
        return []
    cores = loaded.inputs.machine.cores
    best: tuple[float, int, model.Prediction] | None = None
    base = loaded.advice.current
    for factor in (1.25, 1.5, 2.0, 3.0):
        wider = math.ceil(cores * factor)
        machine = replace(loaded.inputs.machine, cores=float(wider))
        inputs = loaded.inputs.replace(machine=machine, machine_at_best=None)
        found = model.predict(inputs, loaded.settings.replace(num_workers=max(wider - 1, 1)))
        gain = base.speedup_to(found)
        if best is None or gain > best[0] * 1.05:
            best = (gain, wider, found)
    if best is None or best[0] < 1.05:
        return []
    gain, wider, found = best
    stated, interval = case.stated(gain, model.speedup_interval(base, found), loaded.noise)
    return [
        Proposal(
            Recommendation(
                parameter="cpus_per_task",
                current=int(cores),
                suggested=wider,
                predicted_speedup=stated,
                interval=interval,
                next_bottleneck=case.next_bottleneck(LOADED),
                rule=rule,
                snippet=f"#SBATCH --cpus-per-task={wider}",
                basis="model",
                why=f"All {int(cores)} cores are busy making batches; {wider} cores with {max(wider - 1, 1)} workers would give "
                f"a step of {milliseconds(found.mean_ms)}.",
            ),
            in_plan=False,
        )
    ]


def _curve(loaded: LoaderCase) -> Curve:
    points = loaded.advice.curve.points
    samples = loaded.inputs.samples_per_batch
    return Curve(
        "num_workers",
        "Predicted throughput by num_workers",
        "samples/s" if samples > 1 else "batches/s",
        tuple(float(p.settings.num_workers) for p in points),
        tuple(p.samples_per_s for p in points),
        tuple(1000 * samples / p.high_ms for p in points),
        tuple(1000 * samples / p.low_ms for p in points),
        current=float(loaded.settings.num_workers),
        suggested=float(loaded.advice.advised.settings.num_workers),
        measured=tuple((float(n), 1000 * samples / ms) for n, ms in sorted(loaded.points.items())),
    )
