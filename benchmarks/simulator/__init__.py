"""A discrete-event simulator of CUDA (and CPU) training jobs whose bottleneck is known.

``simulate(params or family, seed, split)`` gives a ``Run`` with its truth; ``write_trace`` and
``write_bundle`` put it on disk; ``families(split)`` lists the families. It shares no code with the product
it judges.
"""

from __future__ import annotations

from benchmarks.simulator.families import families
from benchmarks.simulator.output import write_bundle, write_trace
from benchmarks.simulator.params import Params
from benchmarks.simulator.run import Run, simulate

__all__ = ["Params", "Run", "families", "simulate", "write_bundle", "write_trace"]
