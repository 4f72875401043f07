"""``simulate``: one job with its recording and its truth, ready to be written as a trace or a bundle."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.simulator.engine import Simulation
from benchmarks.simulator.families import draw
from benchmarks.simulator.params import Params
from benchmarks.simulator.truth import Truth, add_settings, base_truth

EPOCH_NS = 1_767_225_600_000_000_000  # 2026-01-01 UTC; runs start some days later, by seed


@dataclass(slots=True)
class Run:
    """A simulated job: parameters, truth, and the recorded simulation (profiler cost included)."""

    params: Params
    truth: Truth
    sim: Simulation
    rejected: int = 0

    @property
    def start_ns(self) -> int:
        """Unix time of the simulation's zero."""
        return EPOCH_NS + (self.params.seed % 90) * 86_400_000_000_000 + 3_600_000_000_000 * 9

    def ns(self, us: float) -> int:
        """Unix nanoseconds of a simulated time."""
        return self.start_ns + round(us * 1e3)

    def pid(self, rank: int) -> int:
        """The training process of ``rank``."""
        return 10976 + 13 * (self.params.seed % 97) + 1000 * rank


def simulate(params: Params | str, seed: int = 0, split: str = "test", settings: bool = True) -> Run:
    """Simulate ``params``, or a draw of the family of that name, with its truth.

    ``settings=False`` leaves the settings' values out (about three times faster).
    """
    rejected = 0
    if isinstance(params, str):
        truth, rejected = draw(params, seed, split)
    else:
        truth = base_truth(params)
    if settings:
        add_settings(truth)
    return Run(truth.p, truth, Simulation(truth.p, record=True).run(), rejected)
