"""The prescription: recommendations with their numbers, the plan that joins them, and what is not worth doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelens.diagnose.advice.case import Advice, Case, Proposal, widened
from tracelens.diagnose.advice.coding import code_proposals
from tracelens.diagnose.advice.copying import copy_proposals
from tracelens.diagnose.advice.loader_case import LoaderCase, loader_case
from tracelens.diagnose.advice.loading import anchored, loader_proposals, unseen
from tracelens.diagnose.advice.sizing import batch_proposals
from tracelens.model import Curve, Declined, Plan, Recommendation
from tracelens.units import milliseconds
from tracelens.whatif.replay import Scenario
from tracelens.whatif.scenarios import LOADED, merge

_START = 4  # workers, where nothing says how many
_LOADER_ARGUMENTS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size")


def prescribe(case: Case, points: Mapping[int, float] | None = None) -> Advice:
    """All advice for a case. ``points``: measured loader speeds (ms a batch by num_workers)."""
    if case.replayed is not None:
        starved = replace(case.starved, rehearsal=True) if case.starved is not None else None
        _prescribe(replace(case, rehearsal=True, starved=starved), points)
    return _prescribe(case, points)


def _prescribe(case: Case, points: Mapping[int, float] | None) -> Advice:
    declined: list[Declined] = []
    curves: list[Curve] = []
    proposals: list[Proposal] = []
    fed = case.starved or case
    loaded = loader_case(fed, points)
    if isinstance(loaded, LoaderCase):
        proposals, declined, curves = loader_proposals(fed, loaded)
        fewer = _fewer(case, loaded.settings.num_workers)
        if fewer is not None and not any(p.recommendation.parameter == "num_workers" for p in proposals):
            proposals.append(fewer)
            declined = [d for d in declined if d.parameter != "num_workers"]
    elif fed.fired_load_rule in ("load.main_process", "load.too_few_workers"):
        today = fed.analysis.settings.get("num_workers")
        if isinstance(today, int) and today >= _START:
            # a starting value below today's is no remedy
            declined = [
                Declined("num_workers", today, f"no number: {loaded}; tracelens tune finds the value")
            ]
        else:
            proposals = [_unquantified(fed, loaded)]
    elif fed.fired_load_rule == "load.worker_startup":
        proposals = [_persistent(fed)]
    if case.rehearsal:
        case.next_bottleneck(LOADED)
    more_workers = any(p.recommendation.parameter == "num_workers" for p in proposals)
    copies, no_copies = copy_proposals(case, more_workers)
    feed = loaded.feed_ms if isinstance(loaded, LoaderCase) else 0.0
    # a rank that waits for one that waits for data is starved too
    starved = case.starved is not None or (
        case.bottleneck == "cpu" and (case.cause or "").startswith("load.")
    )
    batches, no_batches, batch_curves, memory = batch_proposals(case, starved, feed)
    proposals += copies + batches + code_proposals(case)
    declined += no_copies + no_batches
    curves += batch_curves
    proposals = _once(proposals)
    plan = _plan(case, proposals, loaded if isinstance(loaded, LoaderCase) else None)
    chosen = sorted(proposals, key=lambda p: _order(case, p))
    return Advice(
        tuple(_with_snippet(p.recommendation) for p in chosen), plan, tuple(declined), memory, tuple(curves)
    )


def _order(case: Case, proposal: Proposal) -> tuple[bool, bool, float]:
    """The verdict's own remedies first, then by gain; companions without a number after those with one."""
    made_for = proposal.recommendation.rule == case.cause
    gain = proposal.recommendation.predicted_speedup
    return (not made_for, gain is None, -(gain or 0.0))


def _once(proposals: Sequence[Proposal]) -> list[Proposal]:
    """One proposal a parameter: the one that gains more."""
    best: dict[str, Proposal] = {}
    for proposal in proposals:
        name = proposal.recommendation.parameter
        known = best.get(name)
        if known is None or (proposal.recommendation.predicted_speedup or 0.0) > (
            known.recommendation.predicted_speedup or 0.0
        ):
            best[name] = proposal
    return list(best.values())


def _to_try(case: Case, workers: int, rule: str, why: str) -> Proposal:
    """A number of workers to begin with, where nothing recorded says what it gives."""
    return Proposal(
        Recommendation(
            parameter="num_workers",
            current=case.analysis.settings.get("num_workers"),
            suggested=workers,
            predicted_speedup=None,
            interval=None,
            next_bottleneck=case.next_bottleneck(LOADED),
            rule=rule,
            snippet=None,
            basis=None,
            why=f"No number: {why}, and tracelens tune finds the value.",
            set_flag=f"--set num_workers={workers}",
        )
    )


def _unquantified(case: Case, reason: str) -> Proposal:
    """Workers are the remedy, but what was recorded does not say how many."""
    rule = case.fired_load_rule or "load.too_few_workers"
    return _to_try(case, _START, rule, f"{reason}; {_START} is where to start")


def _fewer(case: Case, today: int) -> Proposal | None:
    """As many workers as cores, where more get in each other's way: how much that costs no model of theirs tells."""
    usable = case.signals.number("machine.usable_cores")
    if case.fired_load_rule != "load.too_many_workers" or not usable or today <= usable:
        return None
    workers = max(int(usable), 1)
    why = "what locks, caches and memory cost among so many workers shows only with fewer of them; "
    return _to_try(case, workers, "load.too_many_workers", f"{why}{workers}, one a core, is where to start")


def _persistent(case: Case) -> Proposal:
    """Workers that outlive an epoch, where only the epochs' first steps are known: they then cost what others do."""
    epoch = case.signals.number("load.epoch_start_ms") or 0.0
    step = case.step_ms
    gain = step / max(step - epoch, 0.01 * step)
    free = (case.speedups([LOADED]) or [gain])[0]
    # at worst half of it was the first batches' own making; at best no batch is waited for at all
    low = step / (step - epoch / 2)
    stated, interval = case.stated(gain, widened(low, gain, max(free, gain), case.noise))
    return Proposal(
        Recommendation(
            parameter="persistent_workers",
            current=False,
            suggested=True,
            predicted_speedup=stated,
            interval=interval,
            next_bottleneck=case.next_bottleneck(LOADED),
            rule="load.worker_startup",
            snippet=None,
            basis="bound",
            why=f"Starting workers anew costs {milliseconds(epoch)} of each {milliseconds(step)} step, spread over the epoch. "
            "Kept alive they fetch the next epoch's first batches at once; half of the cost kept is the lower end, loading "
            "free the upper.",
            set_flag="--set persistent_workers=True",
        )
    )


def _with_snippet(recommendation: Recommendation) -> Recommendation:
    if recommendation.snippet is not None or recommendation.parameter not in _LOADER_ARGUMENTS:
        return recommendation
    return replace(
        recommendation, snippet=f"DataLoader(..., {recommendation.parameter}={recommendation.suggested})"
    )


def _plan(case: Case, proposals: Sequence[Proposal], loaded: LoaderCase | None) -> Plan | None:
    """The changes that need no judgement of the model, applied together: the loader's model over a replay of the rest."""
    members = sorted(
        (p for p in proposals if p.in_plan), key=lambda p: -(p.recommendation.predicted_speedup or 0.0)
    )
    if not members:
        return None
    changes = [p.change for p in members if p.change is not None]
    likely = _joined([c.likely for c in changes])
    loading = [
        p
        for p in members
        if p.recommendation.parameter in ("num_workers", "prefetch_factor", "persistent_workers")
    ]
    gain, interval, noise = 1.0, (1.0, 1.0), None
    if loading and loaded is not None:
        joint = (
            loaded.with_consumption(case.consume_ms(likely))
            if likely is not None and case.starved is None
            else loaded.advice.advised
        )
        gain, interval = anchored(loaded.measured_ms, loaded.advice.current, joint, case.replayed is not None)
        interval, noise = unseen(case, loaded, interval), loaded.noise
        following = case.next_bottleneck(merge(LOADED, likely) if likely is not None else LOADED)
    elif likely is not None:
        low, high = _joined([c.low for c in changes]), _joined([c.high for c in changes])
        assert low is not None
        assert high is not None
        gains = case.speedups([likely, low, high]) or [1.0, 1.0, 1.0]
        gain = gains[0]
        interval = widened(min(gains), gain, max(gains), case.noise)
        following = case.next_bottleneck(likely)
    else:
        following = case.next_bottleneck(None)
    stated, bounds = case.stated(gain, interval, noise)
    numbered = [p.recommendation for p in members if p.recommendation.predicted_speedup is not None]
    if loading and loaded is None and likely is None and len(numbered) == 1:
        # nothing to join: the one number there is, is the plan's
        only = numbered[0]
        stated, bounds, following = only.predicted_speedup, only.interval, only.next_bottleneck
    arguments = {
        p.recommendation.parameter: p.recommendation.suggested
        for p in members
        if p.recommendation.parameter in _LOADER_ARGUMENTS
    }
    lines = []
    if arguments:
        lines.append(
            "DataLoader(..., " + ", ".join(f"{name}={value}" for name, value in arguments.items()) + ")"
        )
    lines += [
        p.recommendation.snippet
        for p in members
        if p.recommendation.snippet and p.recommendation.parameter not in _LOADER_ARGUMENTS
    ]
    flags = tuple(p.recommendation.set_flag for p in members if p.recommendation.set_flag)
    return Plan(
        tuple(p.recommendation.parameter for p in members),
        stated,
        bounds,
        "\n".join(lines) or None,
        following,
        flags,
    )


def _joined(scenarios: Sequence[Scenario]) -> Scenario | None:
    joined: Scenario | None = None
    for scenario in scenarios:
        joined = scenario if joined is None else merge(joined, scenario)
    return joined
