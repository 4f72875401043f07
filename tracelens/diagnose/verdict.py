"""The verdict: the class which, made free, saves the most time (design section 5), its cause, and how sure we are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from tracelens.diagnose.engine import Evaluation
from tracelens.diagnose.reference import second_opinion
from tracelens.model import Bottleneck, RuledOut
from tracelens.signals.signal import Signals
from tracelens.units import milliseconds, percent, ratio
from tracelens.whatif.bounds import WhatIfs

WORTH = 0.08  # a class is the bottleneck where it saves at least this share of the step
BUSY = 0.85  # from here on the headline says that the GPU is healthy
WASTE: tuple[Bottleneck, ...] = ("cpu", "h2d_copy", "communication")
WORK: tuple[Bottleneck, ...] = ("gpu", "memory_bandwidth")
NAMES: Mapping[str, str] = {
    "cpu": "CPU", "h2d_copy": "Host-to-device copies", "communication": "Communication", "gpu": "GPU",
    "memory_bandwidth": "Memory bandwidth", "none": "Balanced", "inconclusive": "Inconclusive",
}  # fmt: skip
BOUND_CEILING = 0.8
_CLOSE = 0.7
_OPERATORS = ("host.cpu_compute", "load.oversubscribed_threads")  # where operators on the CPU are the limit
_OPINION = 0.5  # below, the reference model is right too seldom to count
_DISPATCH = ("host.dispatch_ms", "host.optimizer_ms")
_DOUBTS = {
    "quality.few_steps": 0.85, "quality.no_steps": 0.8, "quality.missing_kernels": 0.5, "quality.unrecorded_graphs": 0.6,
    "quality.unknown_time": 0.7, "quality.truncated": 0.9, "quality.damaged_events": 0.95, "quality.profiled_dispatch": 0.95,
    "quality.estimated_steps": 0.95,
}  # fmt: skip


def bottleneck(
    whatifs: WhatIfs, signals: Signals, evaluations: Mapping[str, Evaluation]
) -> tuple[Bottleneck, str | None]:
    """``(class, why inconclusive)``: waste is asked first, then the kernels; ``none`` where nothing saves 8 %."""
    if reason := unjudgeable(signals, evaluations):
        return "inconclusive", reason
    # who waits for a late rank, or for another process's kernels, is not helped by anything of its own
    for rule, name in (("communication.straggler", "communication"), ("compute.shared_gpu", "gpu")):
        saving = evaluations[rule].saving_ms if _fired(evaluations, rule) else None
        if saving is not None and saving >= WORTH * whatifs.step_ms:
            return cast(Bottleneck, name), None
    waste = _largest(whatifs, WASTE)
    if waste is not None:
        if waste == "cpu" and _fired(evaluations, "load.host_memory_bandwidth"):
            return "memory_bandwidth", None
        return waste, None
    work = _largest(whatifs, WORK)
    if work is not None:
        return work, None
    if signals.value("quality.cpu_only") and any(_fired(evaluations, rule) for rule in _OPERATORS):
        return "cpu", None
    few = (signals.number("steps.steady") or 0) < 3
    if few and (signals.number("phase.compute") or 0.0) >= BUSY:
        # too short for a steady state, and the profiler slowed the host: a GPU that computes all along is limited by its kernels
        memory, arithmetic = (
            signals.number("kernels.memory_ms") or 0.0,
            signals.number("kernels.arithmetic_ms") or 0.0,
        )
        return ("memory_bandwidth" if memory > arithmetic else "gpu"), None
    if _fired(evaluations, "quality.unrecorded_graphs"):
        return (
            "inconclusive",
            "kernels inside CUDA graphs were not recorded, so that nobody can tell what they are limited by",
        )
    return "none", None


def unjudgeable(signals: Signals, evaluations: Mapping[str, Evaluation]) -> str | None:
    """Why no verdict is possible, None where one is."""
    if signals.value("quality.cpu_only") and signals.value("quality.expects_gpu"):
        return "this job uses a GPU, but no kernel was recorded (CUPTI was not available, or CUDA activities were off)"
    if (signals.number("quality.other_share") or 0.0) > 0.5:
        return f"nothing was recorded for {percent(signals.number('quality.other_share'))} of the window"
    idle = 1 - (signals.number("gpu.busy") or 0.0)
    if (signals.number("quality.unlaunched_share") or 0.0) >= 1.0 and idle >= WORTH:
        return f"nothing but GPU work was recorded, and what the GPU waited for {percent(idle)} of the time is not in it"
    coverage = signals.number("quality.coverage")
    if coverage is not None and coverage < 0.5:
        return f"only {percent(coverage)} of the launched kernels were recorded"
    return None


def _largest(whatifs: WhatIfs, classes: Iterable[Bottleneck]) -> Bottleneck | None:
    worth = [
        (share, name) for name in classes if (share := whatifs.share(name)) is not None and share >= WORTH
    ]
    return max(worth)[1] if worth else None


def _fired(evaluations: Mapping[str, Evaluation], rule: str) -> bool:
    return rule in evaluations and evaluations[rule].outcome == "fired"


def cause(
    name: Bottleneck,
    evaluations: Mapping[str, Evaluation],
    exposed: Mapping[str, float] | None = None,
    whatifs: WhatIfs | None = None,
) -> str | None:
    """The fired rule of the class that saves most.

    Dispatch in a profiled window includes the profiler's own cost, and halving it also uncovers other waits. Where
    another rule saves nearly as much (``_CLOSE``) and the GPU idled longer through that (``exposed``, by saving
    signal), that rule is the cause.
    """
    if name == "none":
        return "balanced"
    if name == "inconclusive":
        return "insufficient_evidence"
    waste = whatifs.share("cpu") if whatifs is not None else None
    if name == "cpu" and _fired(evaluations, "host.cpu_compute") and waste is not None and waste < WORTH:
        return "host.cpu_compute"  # without a GPU, and with nothing to gain from loading or stalls, operators are the limit
    fired = [
        e
        for e in evaluations.values()
        if e.outcome == "fired"
        and e.rule.bottleneck == name
        and e.rule.may_be_cause
        and not e.rule.is_quality
    ]
    if not fired:
        return None
    best = max(fired, key=lambda e: (e.saving_ms or 0.0, len(e.rule.all) + len(e.rule.any)))
    if best.rule.saving_signal in _DISPATCH and exposed:
        idle = exposed.get(best.rule.saving_signal, 0.0)
        for other in sorted(fired, key=lambda e: -(e.saving_ms or 0.0)):
            signal = other.rule.saving_signal or ""
            close = (other.saving_ms or 0.0) >= _CLOSE * (best.saving_ms or 0.0)
            if signal not in _DISPATCH and close and exposed.get(signal, 0.0) > idle:
                return other.rule.id
    return best.rule.id


def confidence(
    name: Bottleneck, whatifs: WhatIfs, signals: Signals, evaluations: Mapping[str, Evaluation]
) -> float:
    """In [0, 1]: the margin to the next class, the spread over steps, the replay's error, the quality rules."""
    if name == "inconclusive":
        return 0.3
    rivals = WASTE if name in WASTE else (*WASTE, *WORK)
    own = whatifs.share(name) if name != "none" else WORTH
    others = [share for r in rivals if r != name and (share := whatifs.share(r)) is not None]
    # a kernel-bound verdict is as sure as the waste classes are below the threshold
    next_best = (
        max(others, default=0.0)
        if name in WASTE
        else max((whatifs.share(w) or 0.0 for w in WASTE), default=0.0)
    )
    lead = (own or 0.0) - next_best if name in WASTE else WORTH - next_best
    if name in WORK:
        lead = min(
            lead, (own or 0.0) - max((whatifs.share(w) or 0.0 for w in WORK if w != name), default=0.0)
        )
    scale = 0.1 if name in WASTE else 0.04
    margin = min(max(lead, 0.0) / scale, 1.0)
    if name in WASTE:
        margin = min(margin, max((own or 0.0) - WORTH, 0.0) / 0.05)
    sure = 0.55 + 0.45 * min(margin, 1.0)
    for rule, doubt in _DOUBTS.items():
        if _fired(evaluations, rule):
            sure *= doubt
    steady, error = signals.number("steps.steady") or 0, signals.number("quality.step_error")
    if error is not None and steady >= 3:
        sure *= 1 - min(error, 0.3)
    if whatifs.error is not None:
        sure *= 1 - min(abs(whatifs.error) / 0.1, 0.5)
    other, agreement = second_opinion(signals)
    if agreement >= _OPINION:
        # the labelled runs most like this one: they move confidence, never the verdict
        sure *= 1.0 if other == name or other == "inconclusive" else 1 - 0.35 * agreement
    ceiling = BOUND_CEILING if whatifs.kind == "bound" else 0.8 if steady < 3 else 1.0
    return round(min(sure, 1.0) * ceiling if whatifs.kind == "bound" else min(sure, ceiling), 3)


def headline(
    name: Bottleneck,
    rule: str | None,
    why: str | None,
    whatifs: WhatIfs,
    signals: Signals,
    evaluations: Mapping[str, Evaluation],
) -> str:
    """One line: the class, the cause in words, what it costs, how busy the GPU is."""
    if name == "inconclusive":
        return f"Inconclusive: {why}"
    busy = signals.number("gpu.busy")
    gpu = f" GPU busy {percent(busy)}." if busy is not None else ""
    if name == "none":
        step = milliseconds(whatifs.step_ms)
        return (
            f"Balanced: no single resource, made free, would save {percent(WORTH)} of the {step} step.{gpu}"
        )
    words = evaluations[rule].rule.title if rule and rule in evaluations else "no single rule names the cause"
    words = words[0].lower() + words[1:] if words[:2] != words[:2].upper() else words
    share, gain = whatifs.share(name), whatifs.speedup(name)
    upto = "up to " if whatifs.kind == "bound" else ""
    if (
        name in WASTE
        and busy is not None
        and (signals.number("phase.compute") or 0.0) >= BUSY
        and share is not None
    ):
        source = {"cpu": "the host", "h2d_copy": "copies", "communication": "communication"}[name]
        if rule and rule.startswith("load."):
            source = "loading"
        return f"GPU healthy ({percent(busy)} busy); {upto}{percent(share)} available from {source}: {words}."
    if name in WORK:
        return f"{NAMES[name]}: {words}.{gpu}"
    if share is None:
        return f"{NAMES[name]}: {words}.{gpu}"
    cost = f"{milliseconds(whatifs.saving_ms[name])} of each {milliseconds(whatifs.step_ms)} step, {upto}{ratio(gain)}"
    return f"{NAMES[name]}: {words} ({cost}).{gpu}"


def ruled_out(name: Bottleneck, whatifs: WhatIfs) -> tuple[RuledOut, ...]:
    """For each class that is not the verdict, what it would save."""
    found = []
    for other in (*WASTE, *WORK):
        if other == name:
            continue
        saving = whatifs.saving_ms.get(other)
        if saving is None:
            found.append(RuledOut(other, "could not be judged: the recording does not show it"))
            continue
        step = milliseconds(whatifs.step_ms)
        verb = "at most" if whatifs.kind == "bound" else ""
        text = f"{_free(other)} would save {verb} {milliseconds(saving)} of {step} a step".replace("  ", " ")
        share = whatifs.share(other) or 0.0
        if other in WORK and name in WASTE and share >= WORTH:
            text += "; kernels are the work itself, and what is wasted comes first"
        elif share >= WORTH:
            text += f"; {NAMES[name].lower() if name != 'gpu' else 'the GPU'} saves more"
        found.append(RuledOut(other, text))
    return tuple(found)


def _free(name: Bottleneck) -> str:
    return {
        "cpu": "a host that costs nothing", "h2d_copy": "copies free", "communication": "communication free",
        "gpu": "arithmetic free", "memory_bandwidth": "memory-bound kernels free",
    }[name]  # fmt: skip
