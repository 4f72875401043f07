"""pin_memory, non_blocking and what else changes host-to-device copies, by the transfer model and the replay."""

from __future__ import annotations

import numpy as np

from tracelens.diagnose.advice.case import WORTH, Case, Change, Proposal, widened
from tracelens.errors import InputError
from tracelens.model import Declined, Recommendation
from tracelens.trace.tables import Device, Pin
from tracelens.units import milliseconds, percent, rate, size
from tracelens.whatif import graph as g
from tracelens.whatif import transfer_model as transfer
from tracelens.whatif.replay import Scenario

_BASES = {
    "measured": "measured in this trace",
    "link": "from the PCIe link",
    "prior": "typical, not measured",
}
_COMPANION_BYTES = 1_000_000  # pinning batches below a megabyte costs more than it gives


def copy_proposals(case: Case, with_workers: bool) -> tuple[list[Proposal], list[Declined]]:
    """Recommendations for copies. ``with_workers``: workers are recommended too, so that a pin thread costs nothing."""
    copies = _copies(case)
    if copies is None or case.replayed is None:
        return [], []
    workers = case.analysis.settings.get("num_workers")
    count = (
        max(int(workers), 1)
        if with_workers and isinstance(workers, int)
        else int(workers or 0)
        if isinstance(workers, int)
        else int(with_workers)
    )
    pageable = bool((~copies.pinned).any())
    if pageable and case.analysis.settings.get("pin_memory") is not True:
        return _pinning(case, copies, max(count, int(with_workers)))
    if case.fired("transfer.blocking"):
        return [_non_blocking(case, copies)], []
    if case.fired("transfer.serialised"):
        return [_stream(case)], []
    return [], []


def _copies(case: Case) -> transfer.Copies | None:
    analysis = case.analysis
    calls = analysis.copies
    inside = (
        (calls.kind == Device.H2D)
        & (calls.end > analysis.window[0])
        & (calls.start < analysis.window[1])
        & (calls.bytes >= 0)
    )
    if not inside.any():
        return None
    device = analysis.activity.device
    by_launch = {
        int(row): i
        for i, row in enumerate(device.launch.tolist())
        if row >= 0 and device.kind[i] == Device.H2D
    }
    rows = [by_launch[int(r)] for r in calls.row[inside] if int(r) in by_launch]
    if not rows:
        return None
    on_gpu = (device.end - device.start)[rows] / 1e6
    spent = (calls.end - calls.start)[inside] / 1e6
    explained = calls.explained[inside] / 1e6
    try:
        return transfer.Copies(
            nbytes=calls.bytes[inside].astype(float),
            gpu_ms=on_gpu,
            call_ms=spent,
            pinned=calls.pin[inside] == Pin.PINNED,
            steps=analysis.step_count,
            waited_ms=np.maximum(spent - explained, 0.0),
        )
    except InputError:
        return None  # copies without sizes: nothing to say about them


def _pinning(case: Case, copies: transfer.Copies, workers: int) -> tuple[list[Proposal], list[Declined]]:
    link = {"pcie_gen": case.signals.number("pcie.gen"), "pcie_width": case.signals.number("pcie.width")}
    known = {k: int(v) for k, v in link.items() if v}
    rates, basis = transfer.pinned_rate(copies, **known)
    effect = transfer.pin_memory(copies, non_blocking=True, num_workers=workers, **known)
    change = Change(
        _pinned_scenario(case, rates.value),
        _pinned_scenario(case, rates.low),
        _pinned_scenario(case, rates.high),
        basis,
    )
    nbytes = float(copies.nbytes[~copies.pinned].sum()) / copies.steps
    # one thread copies every batch into pinned memory first: no step is faster than that
    staging = transfer.pin_copy_ms(nbytes)
    replayed = case.speedups([change.likely, change.low, change.high]) or [1.0, 1.0, 1.0]
    ends = (staging.value, staging.high, staging.low)
    gains = [min(g, case.step_ms / max(t, 1e-6)) for g, t in zip(replayed, ends, strict=True)]
    gain = gains[0]
    nbytes = float(copies.nbytes[~copies.pinned].sum()) / copies.steps
    fired = case.fired("transfer.pageable")
    today = case.signals.number("transfer.h2d_gb_s")
    why = (
        f"{size(nbytes)} a step come from pageable memory at {rate(today, 'GB/s')}; pinned they would move at about "
        f"{rate(rates.value, 'GB/s')} ({_BASES[basis]}) while kernels run: {milliseconds(effect.gpu_before_ms)} of copying "
        f"and {milliseconds(effect.host_before_ms)} of blocked host a step today."
    )
    faster = today is None or rates.value > today * (1 + WORTH)
    companion = faster and workers > 0 and nbytes >= _COMPANION_BYTES and case.fired_load_rule is not None
    if gain - 1 <= WORTH and not (companion or fired):
        spent = f"{milliseconds(effect.host_before_ms)} of {milliseconds(case.step_ms)} a step go into copies"
        reason = f"gains {percent(max(gain - 1, 0.0))}: {spent}"
        return [], [Declined("pin_memory", True, reason)]
    stated, interval = case.stated(gain, widened(min(gains), gain, max(gains), case.noise))
    rule = "transfer.pageable" if fired else case.fired_load_rule or "transfer.pageable"
    following = case.next_bottleneck(change.likely)
    pin = Recommendation(
        parameter="pin_memory",
        current=False,
        suggested=True,
        predicted_speedup=stated,
        interval=interval,
        next_bottleneck=following,
        rule=rule,
        snippet=None,
        basis="replay",
        why=why,
        set_flag="--set pin_memory=True",
    )
    block = Recommendation(
        parameter="non_blocking",
        current=False,
        suggested=True,
        predicted_speedup=None,
        interval=None,
        next_bottleneck=following,
        rule=rule,
        snippet="x = x.to(device, non_blocking=True)",
        basis=None,
        why="Pinned copies still block the host unless .to() is told not to wait; its gain is counted with pin_memory.",
    )
    return [Proposal(pin, change), Proposal(block, None)], []


def _pinned_scenario(case: Case, gbs: float) -> Scenario:
    """Pageable copies at a pinned rate, and no call waits for them."""
    assert case.replayed is not None
    graph = case.replayed.graph
    durations = graph.duration.copy()
    rows = np.flatnonzero((graph.work == g.H2D) & (graph.pin != Pin.PINNED) & (graph.bytes > 0))
    durations[rows] = np.minimum(durations[rows], graph.bytes[rows] / gbs + 2_000)
    return Scenario("pinned", copy_wait=False, durations=durations)


def _non_blocking(case: Case, copies: transfer.Copies) -> Proposal:
    effect = transfer.non_blocking(copies)
    # a blocking pinned copy waits in a synchronisation of its own right after the copy
    change = Change(
        Scenario("non_blocking", sync=False, copy_wait=False),
        Scenario("base"),
        Scenario("free", sync=False, copy_wait=False),
        "replay",
    )
    gains = case.speedups([change.likely]) or [1.0]
    stated, interval = case.stated(gains[0], widened(1.0, gains[0], gains[0], case.noise))
    return Proposal(
        Recommendation(
            parameter="non_blocking",
            current=False,
            suggested=True,
            predicted_speedup=stated,
            interval=interval,
            next_bottleneck=case.next_bottleneck(change.likely),
            rule="transfer.blocking",
            snippet="x = x.to(device, non_blocking=True)",
            basis="replay",
            why=f"The host waits {milliseconds(effect.host_before_ms)} a step inside copies from memory that is pinned already.",
        ),
        change,
    )


def _stream(case: Case) -> Proposal:
    likely = Scenario("stream", device=((g.H2D, 0.0),))
    low = Scenario("stream", device=((g.H2D, 0.5),))
    gains = case.speedups([likely, low]) or [1.0, 1.0]
    stated, interval = case.stated(gains[0], widened(gains[1], gains[0], gains[0], case.noise))
    return Proposal(
        Recommendation(
            parameter="copy_stream",
            current=False,
            suggested=True,
            predicted_speedup=stated,
            interval=interval,
            next_bottleneck=case.next_bottleneck(likely),
            rule="transfer.serialised",
            basis="replay",
            snippet="with torch.cuda.stream(copy_stream):\n    batch = batch.to(device, non_blocking=True)  # the next one\n"
            "torch.cuda.current_stream().wait_stream(copy_stream)",
            why="Copies of the next batch on a stream of their own run beside this batch's kernels.",
        ),
        Change(likely, low, likely, "replay"),
    )
