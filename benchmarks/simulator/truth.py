"""The right answers: re-simulation with one resource free at a time and with each setting changed.

The class follows the design's order: ``cpu``, ``h2d_copy`` and ``communication`` are asked first and win
from 8 % of the step; else the kernels, ``gpu`` or ``memory_bandwidth``, win from 8 %; else ``none``. The
cause inside the class is chosen by narrower what-ifs (no slow samples, unlimited cores, persistent workers,
pinned memory ...), never by the name of the family the run came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulator import models
from benchmarks.simulator.causes import SECTIONS, THRESHOLD, WITHOUT_BUNDLE, WORKERS, cause_of, share
from benchmarks.simulator.engine import CPU_UNION, Simulation, simulate_step_us
from benchmarks.simulator.hardware import DEVICES
from benchmarks.simulator.params import Params

WASTE = {"cpu": CPU_UNION, "h2d_copy": frozenset({"transfer"}), "communication": frozenset({"comm"})}
KERNELS = {"gpu": frozenset({"gpu_compute"}), "memory_bandwidth": frozenset({"gpu_memory"})}


@dataclass(slots=True)
class Truth:
    """Counterfactual step times (us), the class and cause they imply, and the settings' values."""

    p: Params
    base_us: float
    step_us: dict[str, float]
    bottleneck: str
    acceptable: tuple[str, ...]
    cause: str
    acceptable_causes: tuple[str, ...]
    balanced: bool
    busy: float
    settings: dict[str, Any] = field(default_factory=dict)
    window_us: float = 0.0

    def saving(self, name: str) -> float:
        """Share of the step saved by the what-if ``name``."""
        return 1.0 - self.step_us[name] / self.base_us

    def _as_seen_in_a_trace(self) -> tuple[str, ...]:
        """Without worker logs nothing tells how near a hidden loader is: the kernels are then as good an answer."""
        if self.bottleneck == "none" and self.busy >= 0.85:
            return tuple(dict.fromkeys((*self.acceptable, *KERNELS)))
        return self.acceptable

    def to_json(self) -> dict[str, Any]:
        """The truth file's content."""
        p = self.p
        net = models.build(
            p.template, p.batch, p.dtype if p.device else "fp32", p.device or "V100", dict(p.sizes)
        )
        peak = peak_bytes(p) if p.device else None
        return {
            "schema": "tracelens.simulated-truth/1",
            "name": f"{p.family}-{p.split}-{p.seed}",
            "family": p.family,
            "split": p.split,
            "seed": p.seed,
            "bottleneck": self.bottleneck,
            "acceptable": list(self.acceptable),
            "acceptable_trace": list(self._as_seen_in_a_trace()),
            "cause": self.cause,
            "acceptable_causes": list(self.acceptable_causes),
            "acceptable_causes_trace": [*self.acceptable_causes, *WITHOUT_BUNDLE.get(self.cause, ())],
            "balanced": self.balanced,
            "step_ms": round(self.base_us / 1e3, 4),
            "samples_per_s": round(p.batch * p.ranks / self.base_us * 1e6, 1),
            "gpu_busy": round(self.busy, 4),
            "class_reduction": {c: round(self.saving(c), 4) for c in (*WASTE, *KERNELS) if c in self.step_us},
            "counterfactual_step_ms": {k: round(v / 1e3, 4) for k, v in self.step_us.items()},
            "counterfactual_speedup": {
                k: round(self.base_us / max(v, 1e-3), 4) for k, v in self.step_us.items()
            },
            "settings": self.settings,
            "peak_mem_bytes": peak,
            "memory": memory(p) if p.device else None,
            "kernels_per_step": len([k for op in net.forward for k in op.kernels]),
            "horizon_steps": p.horizon,
            "warm_steps": p.warm,
            "trace_window_step_ms": round(self.window_us / 1e3, 4),
            "straggler_ranks": [1 % p.ranks] if p.straggler else [],
            "params": p.to_json(),
        }


def memory(p: Params) -> dict[str, float]:
    """Device memory as fixed bytes and bytes a sample."""
    net = models.build(p.template, p.batch, p.dtype, p.device or "V100", dict(p.sizes))
    return {
        "fixed_bytes": models.fixed_bytes(net, p.optimizer) + p.extra_bytes,
        "per_sample_bytes": models.activation_bytes(net) / p.batch,
        "capacity_bytes": net.device.memory,
    }


def peak_bytes(p: Params) -> int:
    """Peak of allocated device memory."""
    m = memory(p)
    return int(m["fixed_bytes"] + m["per_sample_bytes"] * p.batch)


def base_truth(p: Params) -> Truth:
    """Class and cause of ``p``; ``Truth.settings`` stays empty until ``add_settings``."""
    sim = Simulation(p).run()
    base = sim.step_us
    us: dict[str, float] = {}

    def ask(name: str, free: frozenset[str] = frozenset(), **changes: Any) -> float:
        if name not in us:
            us[name] = simulate_step_us(p.but(**changes) if changes else p, free)
        return 1.0 - us[name] / base

    for name, free in WASTE.items():
        if p.device or name == "cpu":
            ask(name, free)
    if p.device is None:
        del us["cpu"]
        ask("cpu", CPU_UNION)
        ask("cpu_compute", frozenset({"cpu_compute"}))
    else:
        for name, free in KERNELS.items():
            ask(name, free)
        ask("gpu_small", frozenset({"gpu_small"}))
    for name in SECTIONS:
        if _can_matter(p, name):
            ask(name, frozenset({name}))
        else:
            us[name] = base
    window = sim.window_us()
    busy = _busy(sim)
    ridge = sim.ranks[0].plan.ridge_us / base
    savings = {c: 1.0 - us[c] / base for c in us}
    bottleneck, acceptable, balanced = classify(savings, p.device is not None, ridge)
    loading = 1.0 - us["loader"] / base
    if bottleneck == "cpu" and loading >= 0.5 * (1.0 - us["cpu"] / base):
        memory_share = share(ask, "host_memory", frozenset({"host_memory"}), loading)
        # loading that waits for the host's memory counts as memory bandwidth
        bottleneck = "memory_bandwidth" if memory_share >= 0.5 else bottleneck
    if (
        p.straggler
        and min(ask("straggler", frozenset({"straggler"})), 1.0 - us["communication"] / base) >= THRESHOLD
    ):
        # a late rank is named as such: its own cause stands beside it
        bottleneck = "communication"
    acceptable = tuple(dict.fromkeys((bottleneck, *acceptable)))
    t = Truth(p, base, us, bottleneck, acceptable, "", (), balanced, busy, window_us=window)
    t.cause, t.acceptable_causes = cause_of(t, ask)
    if p.graph:
        # what runs inside a graph cannot be read from the trace: not knowing is right, waste is wrong
        t.acceptable = tuple(dict.fromkeys((*acceptable, "gpu", "memory_bandwidth", "inconclusive")))
        t.acceptable_causes = tuple(dict.fromkeys((*t.acceptable_causes, "insufficient_evidence", "healthy")))
    if p.hide == "kernels":
        t.bottleneck, t.acceptable = "inconclusive", ("inconclusive",)
        t.cause, t.acceptable_causes = "insufficient_evidence", ("insufficient_evidence",)
    elif p.hide == "host":
        t.acceptable = tuple(dict.fromkeys(("inconclusive", *t.acceptable)))
        t.acceptable_causes = tuple(dict.fromkeys(("insufficient_evidence", *t.acceptable_causes)))
        t.bottleneck, t.cause = "inconclusive", "insufficient_evidence"
    return t


def _can_matter(p: Params, section: str) -> bool:
    return {
        "stall": p.stall_every > 0,
        "cast": p.cast_gbs > 0,
        "startup": p.startup_steps > 0,
        "alloc": p.mallocs > 0,
        "sync": bool(p.item or p.mid_syncs or p.device_sync or p.mallocs),
    }.get(section, True)


def _busy(sim: Simulation) -> float:
    r = sim.ranks[0]
    if sim.dev is None:
        return 0.0
    a = sim.p.warm
    span = r.done[-1] - r.done[a - 1]
    return min(1.0, sum(log.busy_us for log in r.logs[a:]) / span) if span > 0 else 0.0


def classify(saving: Mapping[str, float], gpu: bool, ridge: float = 0.0) -> tuple[str, tuple[str, ...], bool]:
    """The class by the design's order, the other answers as good, and whether the run is balanced.

    ``ridge`` is the share of the step in kernels whose limit is a matter of opinion.
    """
    if not gpu:
        return "cpu", ("cpu",), False
    waste = {c: saving[c] for c in WASTE}
    kernels = {c: saving[c] for c in KERNELS}
    first = max(waste, key=lambda c: waste[c])
    kernel = max(kernels, key=lambda c: kernels[c])
    close = kernels[kernel] - min(kernels.values()) <= 2.0 * ridge
    also = [c for c in kernels if close or (kernels[c] >= max(0.85 * kernels[kernel], THRESHOLD))]
    if waste[first] >= THRESHOLD:
        good = [c for c in waste if waste[c] >= 0.9 * waste[first]]
        if waste[first] < THRESHOLD + 0.025:
            good += also
            if max(kernels.values()) < THRESHOLD + 0.025:
                good.append("none")
        return first, tuple(dict.fromkeys((first, *good))), False
    near = [c for c in waste if waste[c] >= THRESHOLD - 0.02]
    if kernels[kernel] >= THRESHOLD:
        return kernel, tuple(dict.fromkeys((kernel, *also, *near))), kernels[kernel] < THRESHOLD + 0.025
    return "none", tuple(dict.fromkeys(("none", *near))), True


def _settled(p: Params) -> Params:
    """``p`` with a warm-up in which all batches are used up that its workers make before the first step.

    A larger stock from the start would look like a faster loader. Runs whose first steps are what they show keep theirs.
    """
    return p if p.startup_steps or p.throttle_from else p.but(warm=max(p.warm, 2 * p.prefetch * p.workers))


def add_settings(t: Truth) -> Truth:
    """Every setting's values by re-simulation, with the ones within 2 % of the best."""
    p = t.p
    done: dict[str, float] = {}
    settled = _settled(p)
    base_us = t.base_us if settled == p else simulate_step_us(settled)

    def value(**changes: Any) -> dict[str, Any]:
        q = _settled(p.but(**changes))
        key = repr(sorted(changes.items()))
        if q == settled:
            us = base_us
        else:
            us = done.setdefault(key, simulate_step_us(q)) if key not in done else done[key]
        rate = q.batch / us * 1e6
        return {
            "step_ms": round(us / 1e3, 4),
            "speedup": round(rate / (p.batch / base_us * 1e6), 4),
            "samples_per_s": round(rate * p.ranks, 1),
        }

    def table(current: str, values: dict[str, dict[str, Any]]) -> dict[str, Any]:
        best = max(values, key=lambda k: values[k]["speedup"] if not values[k].get("oom") else -1.0)
        top = values[best]["speedup"]
        near = [k for k, v in values.items() if v["speedup"] >= 0.98 * top and not v.get("oom")]
        return {"current": current, "best": best, "within_2pct": near, "values": values}

    if not p.custom_loader:
        counts = sorted({*WORKERS, p.workers})
        t.settings["num_workers"] = table(str(p.workers), {str(w): value(workers=w) for w in counts})
        t.settings["persistent_workers"] = (
            table(str(p.persistent), {str(b): value(persistent=b) for b in (False, True)})
            if p.workers
            else {}
        )
        t.settings["prefetch_factor"] = (
            table(str(p.prefetch), {str(f): value(prefetch=f) for f in sorted({1, 2, 4, 8, p.prefetch})})
            if p.workers
            else {}
        )
    if p.device:
        combos = [(a, b) for a in (False, True) for b in (False, True)]
        t.settings["pin_memory"] = table(
            f"pin={p.pin},non_blocking={p.non_blocking}",
            {f"pin={a},non_blocking={b}": value(pin=a, non_blocking=b) for a, b in combos},
        )
        sizes = sorted({max(1, p.batch // 2), p.batch, 2 * p.batch, 4 * p.batch})
        values = {}
        capacity = DEVICES[p.device].memory
        for b in sizes:
            q = p.but(batch=b, epoch_batches=max(1, p.epoch_batches * p.batch // b))
            peak = peak_bytes(q)
            row = value(batch=b, epoch_batches=q.epoch_batches) if b != p.batch else value()
            values[str(b)] = {
                **row,
                "peak_mem_bytes": peak,
                "peak_mem_frac": round(peak / capacity, 4),
                "oom": peak > 0.98 * capacity,
            }
        t.settings["batch_size"] = table(str(p.batch), values)
    return t
