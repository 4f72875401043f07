"""Families: one parameterised job for every cause, and decoys that look like one cause and are another.

A family draws parameters and says which causes it intends; ``draw`` keeps a draw only when the
counterfactuals agree. Train and test families are apart by construction: other model templates, other GPUs,
other random streams.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from benchmarks.simulator import family_compute, family_data, family_decoys
from benchmarks.simulator.drawing import SPLITS, Draw
from benchmarks.simulator.params import Params
from benchmarks.simulator.registry import FAMILIES, Family
from benchmarks.simulator.truth import Truth, base_truth

__all__ = ["draw", "families", "family", "family_compute", "family_data", "family_decoys"]


def families(split: str = "test") -> tuple[str, ...]:
    """The names of all families (each exists in both splits, with other models, GPUs and seeds)."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use {' or '.join(SPLITS)}")
    return tuple(FAMILIES)


def family(name: str) -> Family:
    """One family."""
    if name not in FAMILIES:
        raise ValueError(f"unknown family {name!r}; families: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def draw(name: str, seed: int, split: str = "test", attempts: int = 60) -> tuple[Truth, int]:
    """Parameters of ``name`` whose truth is the intended one, with the number of draws that were not."""
    f = family(name)
    families(split)
    for attempt in range(attempts):
        key = zlib.crc32(f"{split}/{name}/{seed}/{attempt}".encode())
        try:
            p = f.make(Draw(np.random.default_rng(key), split))
        except LookupError:
            continue
        p = p.but(family=name, split=split, seed=seed)
        p = _whole_periods(p)
        t = base_truth(p)
        if f.intended(t) and _representative(t):
            return t, attempt
    raise RuntimeError(f"{name}: no draw of {attempts} had the intended truth (split {split}, seed {seed})")


def _representative(t: Truth) -> bool:
    """Whether the traced steps are like the horizon's: a trace can only show what happens inside it."""
    allowed = 0.3 if t.p.throttle_from else 0.1
    return abs(t.window_us / t.base_us - 1.0) <= allowed


def _whole_periods(p: Params) -> Params:
    """A horizon of whole epochs, stalls and bursts, at least 100 steps (start-up runs keep their window)."""
    if p.startup_steps:
        return p
    period = 1
    for n in (p.stall_every, p.burst_every, p.epoch_batches if p.epoch_batches < 1000 else 0):
        if n:
            period = math.lcm(period, n)
    if p.family.startswith("load."):
        # workers tend to run in step: the window holds a batch of each
        p = p.but(traced=max(p.traced, p.workers + 2))
    return p.but(horizon=max(112, -(-104 // period) * period) if period == 1 else -(-104 // period) * period)
