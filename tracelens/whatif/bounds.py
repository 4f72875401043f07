"""What-ifs where no replay is possible: a class saves at most its own phase's share of the step.

Waits overlap and re-appear elsewhere, so these are upper bounds, marked ``bound``, and confidence stays at 0.8 or less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracelens.model import RESOURCES, Bottleneck
from tracelens.signals import kernels
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.quality import expects_gpu
from tracelens.signals.runsteps import corrected_shares

_HIDDEN = 0.1  # of the time queued behind CUDA graphs without a kernel: as the rule quality.unrecorded_graphs has it


@dataclass(frozen=True, slots=True)
class WhatIfs:
    """Milliseconds a step that each class would save if it were free; None where that is unknown.

    ``step_ms`` is today's mean step; ``error`` the relative error of the unchanged replay.
    """

    step_ms: float
    saving_ms: Mapping[Bottleneck, float | None]
    kind: Literal["replay", "bound"]
    error: float | None = None

    def share(self, resource: Bottleneck) -> float | None:
        """Saving as a share of the step."""
        saving = self.saving_ms.get(resource)
        return saving / self.step_ms if saving is not None and self.step_ms > 0 else None

    def speedup(self, resource: Bottleneck) -> float | None:
        """Ratio of throughputs with the class free; None where unknown, capped where nothing would remain."""
        share = self.share(resource)
        return None if share is None else 1 / max(1 - share, 1e-3)


def bounds(analysis: RankAnalysis) -> WhatIfs:
    """Bounds from phase shares; queued gaps are never recovered by freeing ``cpu``."""
    phases = analysis.phases
    step_ms = analysis.length / analysis.step_count / 1e6
    shares = corrected_shares(analysis)

    def ms(length: float) -> float:
        return analysis.per_step_ms(length)

    saving: dict[Bottleneck, float | None] = dict.fromkeys(RESOURCES)
    if not analysis.has_gpu:
        # without a GPU, freeing cpu frees loading and stalls while operators stay (design section 5)
        step_ms = float(analysis.plain_ms.mean()) if analysis.has_step_log else step_ms
        waiting = shares["load"] + shares["host"]
        if not expects_gpu(analysis):
            saving |= {"h2d_copy": 0.0, "communication": 0.0, "gpu": 0.0}
        elif (used := _utilization(analysis)) is not None:
            # of the GPU's own work only its log tells: that remains
            waiting = min(waiting, 1 - used)
        saving["cpu"] = step_ms * waiting
        return WhatIfs(step_ms, saving, "bound")
    if not (analysis.activity.device.launch >= 0).any():
        # nothing but GPU work was recorded: what it waits for may all be the host, and whether anything waits for it
        # nobody can tell
        saving["cpu"] = ms(analysis.length - phases.busy.total)
        saving["h2d_copy"] = ms(phases.parts["transfer"].total)
        saving["communication"] = ms(phases.parts["communication"].total)
        return WhatIfs(step_ms, saving, "bound")
    host = phases.parts["load"].union(phases.parts["host"]).intersect(phases.starved)
    saving["cpu"] = ms(host.total)
    saving["h2d_copy"] = ms(phases.parts["transfer"].total)
    saving["communication"] = ms(phases.parts["communication"].total)
    compute = ms(phases.parts["compute"].total)
    limits = {
        limit: analysis.kernels.share(analysis.activity, limit, analysis.in_window) for limit in range(4)
    }
    hidden = bool(analysis.activity.graph_launches) and phases.queued.total >= _HIDDEN * analysis.length
    if limits[kernels.MEMORY] is None or hidden:
        # what runs unrecorded inside CUDA graphs is work of unknown kinds
        saving["gpu"] = saving["memory_bandwidth"] = None if compute or hidden else 0.0
    else:
        saving["memory_bandwidth"] = compute * (limits[kernels.MEMORY] or 0.0)
        saving["gpu"] = compute * ((limits[kernels.ARITHMETIC] or 0.0) + (limits[kernels.SMALL] or 0.0))
    return WhatIfs(step_ms, saving, "bound")


def _utilization(analysis: RankAnalysis) -> float | None:
    """Share of the time that the GPU worked, by the usual sample of its log: the first ones may lie before the work."""
    log = analysis.gpu_log
    used = log.utilization_gpu[np.isfinite(log.utilization_gpu)] if log is not None else np.empty(0)
    return float(np.clip(np.median(used), 0, 1)) if used.size else None
