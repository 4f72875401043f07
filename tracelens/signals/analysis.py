"""One rank, analysed: its tables, steps, phases and kernel classes, with what else was recorded beside the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.runlog import RunLog
from tracelens.ingest.tables import GpuLog, HostLog
from tracelens.signals.activity import Activity
from tracelens.signals.kernels import KernelClasses, classify
from tracelens.signals.other_window import KnownKernels
from tracelens.signals.phases import CopyCalls, Phases, copy_calls, partition
from tracelens.signals.steps import Steps, find_steps
from tracelens.trace.tables import Device, Host, HostEvents, TraceTables

Ints = NDArray[np.int64]
_AHEAD = 0.9  # of the GPU's own work: a step that takes less did not wait for it
_ENOUGH = 5  # unprofiled steps from which their mean says more than the profiled window's


@dataclass(frozen=True)
class RankAnalysis:
    """The trace of one rank with its side data; every derived part is computed once and on demand.

    ``settings`` are the effective DataLoader arguments (design section 8), ``gpu_log`` and ``host_log`` the
    samples that overlap the trace, ``run_log`` a bundle's step and loader logs, ``whole_host_log`` all host samples,
    also those outside the trace, ``known_kernels`` what another window of the run tells of its kernels. Lengths are ns
    unless named otherwise.
    """

    tables: TraceTables
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpu_log: GpuLog | None = None
    host_log: HostLog | None = None
    rank: int | None = None
    source: str = "trace"
    notes: tuple[str, ...] = ()
    run_log: RunLog | None = None
    trace_name: str = ""
    whole_host_log: HostLog | None = None
    known_kernels: KnownKernels | None = None

    @cached_property
    def activity(self) -> Activity:
        """The trace's events by role."""
        return Activity(self.tables)

    @cached_property
    def steps(self) -> Steps:
        """Steps and the steady window."""
        return find_steps(self.activity)

    @cached_property
    def phases(self) -> Phases:
        """Phases of the steady window."""
        return partition(self.activity, self.steps.window)

    @cached_property
    def kernels(self) -> KernelClasses:
        """What limits each kernel."""
        return classify(self.activity, self.gpu_log, self.known_kernels)

    @cached_property
    def copies(self) -> CopyCalls:
        """Host<->device copy calls."""
        return copy_calls(self.activity)

    @property
    def window(self) -> tuple[int, int]:
        """The steady window."""
        return self.steps.window

    @property
    def length(self) -> int:
        """Length of the steady window."""
        return self.window[1] - self.window[0]

    @property
    def has_gpu(self) -> bool:
        """Whether the trace shows work on a GPU."""
        return self.activity.gpu is not None

    @property
    def step_count(self) -> int:
        """Steady steps; 1 where no steps were found, so that per-step numbers are per window."""
        return max(self.steps.steady, 1)

    def per_step_ms(self, length_ns: float) -> float:
        """A length within the steady window as milliseconds a step."""
        return length_ns / self.step_count / 1e6

    @cached_property
    def in_window(self) -> NDArray[np.bool_]:
        """For each activity of the GPU, whether it ends in the steady window."""
        device = self.activity.device
        return (device.end > self.window[0]) & (device.start < self.window[1])

    @cached_property
    def step_kernels(self) -> Ints:
        """Kernels of each steady step."""
        device, steps = self.activity.device, self.steps
        kernel = (
            (device.kind <= Device.COMMUNICATION) & (steps.owner >= steps.first) & (steps.owner <= steps.last)
        )
        if not steps.count:
            return np.array([int(((device.kind <= Device.COMMUNICATION) & self.in_window).sum())])
        return np.bincount(steps.owner[kernel] - steps.first, minlength=steps.steady)

    @cached_property
    def host_operators(self) -> HostEvents:
        """Operators on launching threads within the steady window."""
        host = self.activity.host
        mask = self.activity.on_launching_thread & (host.kind == Host.OPERATOR)
        mask &= (host.end > self.window[0]) & (host.start < self.window[1])
        return host.take(mask)

    @property
    def step_ms(self) -> float | None:
        """Mean duration of the steady steps."""
        return self.length / self.steps.steady / 1e6 if self.steps.steady else None

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch, where a setting or the recorder says so."""
        value = self.settings.get("batch_size")
        return (
            int(value)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            else None
        )

    @cached_property
    def plain_ms(self) -> NDArray[np.float64]:
        """Durations of the unprofiled steady steps of the whole run, in ms; empty without a step log."""
        log = self.run_log
        return log.steps.duration_ms[log.steps.plain] if log is not None else np.empty(0)

    @cached_property
    def plain_wait_ms(self) -> NDArray[np.float64]:
        """What those steps waited for data, in ms."""
        log = self.run_log
        return log.steps.wait_ms[log.steps.plain] if log is not None else np.empty(0)

    @cached_property
    def plain_within(self) -> NDArray[np.bool_]:
        """Which of those steps are not the first of an epoch: that one also starts and ends workers."""
        if self.run_log is None:
            return np.empty(0, dtype=bool)
        epoch = self.run_log.steps.epoch
        within = np.ones(epoch.size, dtype=bool)
        within[1:] = epoch[1:] == epoch[:-1]
        return within[self.run_log.steps.plain]

    @cached_property
    def baseline_ms(self) -> float | None:
        """Mean step without the profiler: of the steps right before this window, else of the run's unprofiled ones.

        None where the kernels of a step alone take longer: the host then ran ahead and filled the launch queue.
        """
        if self.run_log is None:
            return None
        found = next(
            (r["baseline_ms"] for r in self.run_log.windows if r.get("file") == self.trace_name and r.get("baseline_ms")),
            self.plain_ms if self.plain_ms.size >= _ENOUGH else None,
        )  # fmt: skip
        if found is None:
            return None
        mean = float(np.mean(np.asarray(found, dtype=float)))
        working = self.activity.busy((Device.KERNEL, Device.MEMSET, Device.D2D)).measure(*self.window)
        return mean if mean >= _AHEAD * self.per_step_ms(float(working)) else None

    @property
    def has_step_log(self) -> bool:
        """Whether enough unprofiled steps were logged to say how fast the job is."""
        return bool(self.plain_ms.size >= _ENOUGH)
