"""Which steps are traced, and how: a function of the options alone, so that all ranks agree without talking."""

from __future__ import annotations

import sys
from typing import Any, List, NamedTuple, Optional

RANKS = 8  # traced by default, spread evenly over the job


class Planned(NamedTuple):
    """A window to come: the step it opens at, its kind, the steps it takes at least and at most."""

    start: int
    kind: str
    least: int
    most: int


def plan(stop_after: Optional[int], stacks: bool) -> List[Planned]:
    """The schedule, a function of the options alone: every rank opens its windows at the same global step.

    Steps 0-3 warm up, the next eight are the unprofiled baseline. Later lean windows catch what changes in a
    long run. A short ``stop_after`` moves everything forward.
    """
    if stop_after is None or stop_after >= 50:
        found = [Planned(12, "lean", 6, 12), Planned(32, "shapes", 2, 2), Planned(42, "stacks", 1, 1)]
        found += [Planned(start, "lean", 6, 12) for start in (250, 1500, 10_000, 50_000)]
    else:
        first = max(1, min(12, stop_after // 3))
        lean = max(2, min(6, stop_after // 4))
        gap = max(1, (stop_after - first - lean) // 4)
        shapes = first + lean + gap
        found = [Planned(first, "lean", lean, lean), Planned(shapes, "shapes", 1, 1)]
        found.append(Planned(shapes + 1 + gap, "stacks", 1, 1))
    if stop_after is not None:
        found = [window for window in found if window.start + window.least < stop_after]
    return [window for window in found if stacks or window.kind != "stacks"]


def stacks_reason(torch: Any) -> Optional[str]:
    """Why Python stacks are not recorded here: known crashes and lost events of certain versions."""
    version = sys.version_info[:3]
    if (3, 12, 0) <= version <= (3, 12, 4):
        return "Python 3.12.0 to 3.12.4 lose call events (fixed in 3.12.5)"
    torch_version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    if version >= (3, 13, 0) and torch_version < (2, 7):
        return "torch before 2.7 can crash with stacks on Python 3.13"
    return None


def is_traced(rank: int, world: int) -> bool:
    """Whether this rank is among the at most eight that are traced."""
    return world <= RANKS or rank % -(-world // RANKS) == 0
