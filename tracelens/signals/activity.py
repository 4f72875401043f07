"""One rank's trace, sorted by role: its GPU, its launching threads, the loader's next, calls that copy, wait or allocate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracelens.trace import dialects
from tracelens.trace.intervals import EMPTY, Intervals
from tracelens.trace.tables import Device, DeviceEvents, Host, HostEvents, TraceTables

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]

LOADER_NEXT = re.compile(
    r"^enumerate\((DataLoader|DataPipe)\)#|^\[pl\]\[profile\]\[.*\]\.(train_dataloader|train)_next"
)
_LOADER_FRAME = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$")
_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
_CAST = re.compile(r"^aten::(to|_to_copy|copy_|contiguous)$")


@dataclass(frozen=True)
class Activity:
    """The tables with what the analysis asks of them, computed once and on demand."""

    tables: TraceTables

    @cached_property
    def gpu(self) -> int | None:
        """Index of the rank's GPU: the device that is busy longest; None without device work."""
        device = self.tables.device
        if not len(device):
            return None
        indices, inverse = np.unique(device.device, return_inverse=True)
        busy = np.bincount(inverse, weights=(device.end - device.start).astype(float))
        return int(indices[int(np.argmax(busy))])

    @cached_property
    def device(self) -> DeviceEvents:
        """Activities on the rank's GPU, sorted by start."""
        device = self.tables.device
        return device.take(device.device == (self.gpu if self.gpu is not None else -1))

    @cached_property
    def other_gpus(self) -> int:
        """How many other GPUs this process used."""
        return max(0, np.unique(self.tables.device.device).size - 1)

    @property
    def host(self) -> HostEvents:
        """All host events."""
        return self.tables.host

    def matching(self, pattern: re.Pattern[str]) -> Mask:
        """For each host event, whether its name matches."""
        hits = np.fromiter(
            (pattern.search(n) is not None for n in self.tables.names),
            dtype=bool,
            count=len(self.tables.names),
        )
        return np.asarray(hits[self.host.name], dtype=bool)

    def device_matching(self, pattern: re.Pattern[str]) -> Mask:
        """For each activity of the rank's GPU, whether its name matches."""
        hits = np.fromiter(
            (pattern.search(n) is not None for n in self.tables.names),
            dtype=bool,
            count=len(self.tables.names),
        )
        return np.asarray(hits[self.device.name], dtype=bool)

    @cached_property
    def launching_threads(self) -> tuple[int, ...]:
        """Threads that launch kernels, and the main thread; never the pin thread, which launches nothing."""
        launched = self.device.launch[(self.device.launch >= 0) & (self.device.kind <= Device.COMMUNICATION)]
        threads = set(np.unique(self.host.thread[launched]).tolist())
        threads.add(self.main_thread)
        if self.gpu is None:
            threads |= set(np.unique(self.host.thread[self.host.kind == Host.OPERATOR]).tolist())
        return tuple(sorted(t for t in threads if t >= 0))

    @cached_property
    def main_thread(self) -> int:
        """The thread of the training loop: step markers, else optimizer steps, else the loader, else most launches."""
        host = self.host
        for mask in (self.markers, self.optimizer_steps, self.next_events):
            if mask.any():
                return int(np.bincount(host.thread[mask]).argmax())
        launched = self.device.launch[self.device.launch >= 0]
        rows = host.thread[launched] if launched.size else host.thread[host.kind == Host.OPERATOR]
        return int(np.bincount(rows).argmax()) if rows.size else -1

    @cached_property
    def on_launching_thread(self) -> Mask:
        """For each host event, whether it is on a launching thread."""
        return np.asarray(np.isin(self.host.thread, self.launching_threads), dtype=bool)

    @cached_property
    def markers(self) -> Mask:
        """ProfilerStep# ranges on the host."""
        markers = self.tables.named("ProfilerStep")[self.host.name]
        return np.asarray((self.host.kind == Host.ANNOTATION) & markers, dtype=bool)

    @cached_property
    def optimizer_steps(self) -> Mask:
        """Optimizer.step# ranges."""
        return np.asarray(self.tables.named("Optimizer.step#")[self.host.name], dtype=bool)

    @cached_property
    def optimizer(self) -> Intervals:
        """Time in Optimizer.step and zero_grad."""
        mask = self.matching(_OPTIMIZER)
        return Intervals.of(self.host.start[mask], self.host.end[mask])

    @cached_property
    def next_events(self) -> Mask:
        """The loader's ``next`` on the host: the profiler's range, else the Python frame."""
        ranged = self.matching(LOADER_NEXT)
        if ranged.any():
            return ranged
        return np.asarray((self.host.kind == Host.PYTHON) & self.matching(_LOADER_FRAME), dtype=bool)

    @cached_property
    def next(self) -> Intervals:
        """Time inside the loader's ``next`` on the main thread."""
        mask = self.next_events & (self.host.thread == self.main_thread)
        return Intervals.of(self.host.start[mask], self.host.end[mask])

    @cached_property
    def operators(self) -> Intervals:
        """Time in which a launching thread is inside an operator or a runtime call."""
        mask = self.on_launching_thread & np.isin(self.host.kind, (Host.OPERATOR, Host.RUNTIME))
        return Intervals.of(self.host.start[mask], self.host.end[mask])

    def calls(self, pattern: re.Pattern[str]) -> Ints:
        """Rows of runtime calls on launching threads whose name matches, sorted by start."""
        mask = (self.host.kind == Host.RUNTIME) & self.on_launching_thread
        return np.flatnonzero(mask & self.matching(pattern))

    @cached_property
    def sync_calls(self) -> Ints:
        """Rows of explicit synchronisations."""
        return self.calls(dialects.SYNC_CALLS)

    @cached_property
    def allocation_calls(self) -> Ints:
        """Rows of device allocations and frees."""
        return self.calls(dialects.ALLOC_CALLS)

    @cached_property
    def copy_calls(self) -> Ints:
        """Rows of copy calls."""
        return self.calls(dialects.COPY_CALLS)

    @cached_property
    def graph_launches(self) -> int:
        """CUDA graph launches."""
        return int(self.calls(dialects.GRAPH_CALLS).size)

    @cached_property
    def casts(self) -> Intervals:
        """Host-side conversions: ``aten::to`` and the like that launch nothing and copy nothing to the device."""
        mask = self.on_launching_thread & (self.host.kind == Host.OPERATOR) & self.matching(_CAST)
        rows = np.flatnonzero(mask)
        if not rows.size:
            return EMPTY
        runtime = np.flatnonzero((self.host.kind == Host.RUNTIME) & self.on_launching_thread)
        starts = self.host.start[runtime]
        first = np.searchsorted(starts, self.host.start[rows], side="left")
        last = np.searchsorted(starts, self.host.end[rows], side="left")
        rows = rows[first == last]
        return Intervals.of(self.host.start[rows], self.host.end[rows])

    def rows_to_intervals(self, rows: Ints) -> Intervals:
        """The union of some host events."""
        return Intervals.of(self.host.start[rows], self.host.end[rows])

    def busy(self, kinds: Sequence[int] | None = None) -> Intervals:
        """Time in which an activity (of some kinds) runs on the rank's GPU."""
        device = self.device
        mask = np.isin(device.kind, kinds) if kinds is not None else np.ones(len(device), dtype=bool)
        return Intervals.of(device.start[mask], device.end[mask])
