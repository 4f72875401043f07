"""The register of families: what each draws and which truth it intends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulator.drawing import Draw
from benchmarks.simulator.params import Params
from benchmarks.simulator.truth import Truth


@dataclass(frozen=True, slots=True)
class Family:
    """``make`` draws parameters; a draw counts when its truth satisfies ``intended``."""

    name: str
    make: Callable[[Draw], Params]
    intended: Callable[[Truth], bool]
    note: str
    decoy: bool = False


FAMILIES: dict[str, Family] = {}


def family_of(
    name: str, note: str, *causes: str
) -> Callable[[Callable[[Draw], Params]], Callable[[Draw], Params]]:
    wanted = set(causes or (name,))

    def register(make: Callable[[Draw], Params]) -> Callable[[Draw], Params]:
        FAMILIES[name] = Family(name, make, lambda t: t.cause in wanted, note)
        return make

    return register


def decoy(
    name: str, note: str, check: Callable[[Truth], bool]
) -> Callable[[Callable[[Draw], Params]], Callable[[Draw], Params]]:
    def register(make: Callable[[Draw], Params]) -> Callable[[Draw], Params]:
        FAMILIES[name] = Family(name, make, check, note, decoy=True)
        return make

    return register


def kernels_limit(t: Truth) -> bool:
    return t.bottleneck in ("gpu", "memory_bandwidth")
