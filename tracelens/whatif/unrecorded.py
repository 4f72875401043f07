"""GPU time that no recorded activity explains: kernels inside CUDA graphs, and another process's turns on the same GPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.analysis import RankAnalysis
from tracelens.whatif.timing import Timing, stream_predecessor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_HIDDEN_NS = 50_000
_FOREIGN_SHARE = (
    0.25  # of the time that the GPU works for others, by its log: as the rule compute.shared_gpu has it
)


def unrecorded(analysis: RankAnalysis, order: Ints, after: Ints, timing: Timing) -> tuple[Floats, bool]:
    """Ns before each activity in which its GPU was at work that was not recorded, and whether for another process.

    Where CUDA graphs hide kernels, or the GPU log tells of another process: the time that no dependency explains. 0
    everywhere else, so that a wait which the replay misses shows as its error.
    """
    hidden = np.zeros(order.size)
    graphs = bool(analysis.activity.graph_launches)
    foreign = not graphs and is_shared(analysis)
    if not order.size or not (graphs or foreign):
        return hidden, False
    device, host = analysis.activity.device, analysis.activity.host
    start, end = device.start[order], device.end[order]
    # work launched before these steps counts too: it is what the first ones wait for
    before = stream_predecessor(device.stream, device.end)[order]
    ready = np.maximum(host.start[device.launch[order]] + timing.latency_ns, before + timing.gap_ns)
    ready = np.maximum(ready, np.where(after >= 0, end[np.maximum(after, 0)], 0))
    late = start - ready
    hidden[late > _HIDDEN_NS] = late[late > _HIDDEN_NS]
    return hidden, foreign


def is_shared(analysis: RankAnalysis) -> bool:
    """Whether the GPU log tells of another process: by its list of processes, or by more use than the trace shows."""
    log = analysis.gpu_log
    if log is None or not len(log):
        return False
    if (log.foreign_pids >= 1).any():
        return True
    used = log.utilization_gpu[np.isfinite(log.utilization_gpu)]
    running = (analysis.phases.parts["compute"].total + analysis.phases.parts["communication"].total) / max(
        analysis.length, 1
    )
    return bool(used.size) and float(used.mean()) - running >= _FOREIGN_SHARE
