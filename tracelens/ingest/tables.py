"""The tables that other people's timelines become: columns of equal length, NaN (or -1) where unknown."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]

# utc: Unix time. local: a date and time without a zone, read as if it were UTC.
# time_of_day: no date, ns since midnight (whole days are added where midnight is passed).
# relative: no times at all, ns since the first sample.
Clock = Literal["utc", "local", "time_of_day", "relative"]

# NVML's clocksEventReasons bits
THROTTLE_BITS: dict[str, int] = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}


def throttle_names(bits: int) -> tuple[str, ...]:
    """The names of the set bits of an NVML throttle mask, idle first; nothing for a missing (-1) mask."""
    return () if bits < 0 else tuple(name for name, bit in THROTTLE_BITS.items() if bits & bit)


class Table:
    """What the frozen column tables share."""

    def __len__(self) -> int:
        first: Any = getattr(self, dataclasses.fields(self)[0].name)  # type: ignore[arg-type]
        return len(first)

    def take(self, rows: npt.NDArray[Any]) -> Self:
        """The given rows (indices or a mask) of every column; scalars stay."""
        count = len(self)
        changes = {
            f.name: value[rows]
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
            if isinstance(value := getattr(self, f.name), np.ndarray) and len(value) == count
        }
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def shifted(self, offset_ns: int) -> Self:
        """The table with ``offset_ns`` subtracted from every known time."""
        times: Ints = self.t_ns  # type: ignore[attr-defined]
        return dataclasses.replace(self, t_ns=np.where(times >= 0, times - offset_ns, times))  # type: ignore[type-var]


@dataclass(frozen=True, slots=True, eq=False)
class GpuLog(Table):
    """GPU samples, one row a sample of one GPU, in the file's order of time.

    ``t_ns`` int64 (see ``clock``); ``index`` and ``rank`` -1, ``uuid`` and ``name`` "" where unknown.
    Shares 0..1, bytes, W, MHz, degrees C; ``pcie_*_bytes`` are cumulative counters, ``pcie_*_bytes_per_s``
    rates. ``throttle_reasons`` is NVML's mask, -1 where unknown; ``foreign_pids`` a count, -1 where unknown.
    ``utilization_memory`` is memory controller activity, not occupancy.
    """

    t_ns: Ints
    index: Ints
    uuid: Texts
    name: Texts
    rank: Ints
    utilization_gpu: Floats
    utilization_memory: Floats
    memory_used: Floats
    memory_total: Floats
    power_w: Floats
    power_limit_w: Floats
    temperature_c: Floats
    sm_clock_mhz: Floats
    sm_clock_max_mhz: Floats
    mem_clock_mhz: Floats
    throttle_reasons: Ints
    pcie_gen: Floats
    pcie_gen_max: Floats
    pcie_width: Floats
    pcie_width_max: Floats
    pcie_rx_bytes: Floats
    pcie_tx_bytes: Floats
    pcie_rx_bytes_per_s: Floats
    pcie_tx_bytes_per_s: Floats
    gpm_sm_util: Floats
    gpm_sm_occupancy: Floats
    gpm_tensor: Floats
    gpm_dram_bw: Floats
    foreign_pids: Ints
    source: str
    format: Literal["smi_csv", "dmon", "jsonl"]
    clock: Clock
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs seen: uuids, else indices as text, in order of first appearance."""
        keys = np.where(self.uuid != "", self.uuid, self.index.astype(str))
        return tuple(dict.fromkeys(str(key) for key in keys))

    def of(self, gpu: str | int) -> GpuLog:
        """The rows of one GPU, by uuid or index."""
        mask = self.index == gpu if isinstance(gpu, int) else (self.uuid == gpu)
        if isinstance(gpu, str) and not mask.any() and gpu.lstrip("-").isdigit():
            mask = self.index == int(gpu)
        return self.take(mask)


INT_COLUMNS = frozenset({"t_ns", "index", "rank", "throttle_reasons", "foreign_pids"})
TEXT_COLUMNS = frozenset({"uuid", "name"})
GPU_COLUMNS: tuple[str, ...] = tuple(
    f.name for f in dataclasses.fields(GpuLog) if f.name not in {"source", "format", "clock", "notes"}
)


def gpu_log(
    columns: dict[str, npt.NDArray[Any]],
    *,
    source: str,
    format: Literal["smi_csv", "dmon", "jsonl"],
    clock: Clock,
    notes: tuple[str, ...] = (),
) -> GpuLog:
    """A GpuLog from the columns that are known (``t_ns`` among them), sorted by time; the others missing."""
    count = len(columns["t_ns"])
    full: dict[str, Any] = {}
    for name in GPU_COLUMNS:
        if name in columns:
            full[name] = columns[name]
        elif name in INT_COLUMNS:
            full[name] = np.full(count, -1, np.int64)
        elif name in TEXT_COLUMNS:
            full[name] = np.full(count, "", dtype=np.str_)
        else:
            full[name] = np.full(count, np.nan)
    log = GpuLog(**full, source=source, format=format, clock=clock, notes=notes)
    if np.any(np.diff(log.t_ns) < 0):
        log = log.take(np.argsort(log.t_ns, kind="stable"))
    return log


@dataclass(frozen=True, slots=True, eq=False)
class ProcessTable(Table):
    """Per-process samples, one row a process and sample; ``row`` is the HostLog row it belongs to.

    ``cpu_percent``: 100 is one core. ``rss`` and ``read_bytes`` (cumulative) in bytes. ``run_delay_ms``,
    ``majflt``, ``ctx_involuntary`` are counts since the process's previous value, of all its threads;
    ``run_delay_share`` is run_delay_ms over that interval: the mean number of its threads that were
    runnable and had no core. ``role``: main, worker or other. ``affinity_count``: cores it may use.
    """

    row: Ints
    t_ns: Ints
    pid: Ints
    name: Texts
    role: Texts
    rank: Ints
    cpu_percent: Floats
    rss: Floats
    num_threads: Floats
    affinity_count: Floats
    read_bytes: Floats
    run_delay_ms: Floats
    run_delay_share: Floats
    majflt: Floats
    ctx_involuntary: Floats

    def role_is(self, role: Literal["main", "worker", "other"]) -> ProcessTable:
        """The rows of one role."""
        return self.take(self.role == role)


@dataclass(frozen=True, slots=True, eq=False)
class HostLog(Table):
    """Host samples, one row a sample; ``percpu`` is (samples, cores), NaN where unknown.

    Percentages 0..100 of the whole machine, ``psi_*`` percent of time in which some task waited; sizes bytes.
    ``net_read_bytes``, ``disk_*``, ``throttled_ms``, ``nr_*`` are cumulative counters. ``mem_limit`` is
    the smaller of the machine's memory and the cgroup's limit. ``node`` names the machine ("" if one).
    ``network_storage``: whether files that the job read were seen on another machine's file system.
    """

    t_ns: Ints
    node: Texts
    system_cpu_percent: Floats
    cpu_count: Floats
    iowait_percent: Floats
    percpu: Floats
    load1: Floats
    mem_available: Floats
    mem_total: Floats
    mem_limit: Floats
    swap_used: Floats
    dev_shm_used: Floats
    dev_shm_total: Floats
    psi_cpu: Floats
    psi_io: Floats
    psi_memory: Floats
    quota_cores: Floats
    throttled_ms: Floats
    nr_throttled: Floats
    nr_periods: Floats
    memory_current: Floats
    memory_max: Floats
    disk_read_bytes: Floats
    disk_busy_ms: Floats
    net_read_bytes: Floats
    processes: ProcessTable
    disks: tuple[str, ...]
    rotational: bool | None
    network_storage: bool | None
    source: str
    notes: tuple[str, ...] = ()

    def take(self, rows: npt.NDArray[Any]) -> HostLog:
        """The given samples with the processes that belong to them."""
        keep = np.arange(len(self))[rows]
        renumbered = np.full(len(self), -1, np.int64)
        renumbered[keep] = np.arange(len(keep))
        row = renumbered[self.processes.row]
        processes = dataclasses.replace(self.processes, row=row).take(row >= 0)
        return dataclasses.replace(Table.take(self, rows), processes=processes)

    def shifted(self, offset_ns: int) -> HostLog:
        """The samples, and their processes, with ``offset_ns`` subtracted from every time."""
        return dataclasses.replace(
            Table.shifted(self, offset_ns), processes=self.processes.shifted(offset_ns)
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrainingLog(Table):
    """Progress lines of a training log: seconds per iteration and per data wait, NaN where not said.

    ``step`` and ``epoch`` -1 where unknown. ``step_s`` includes ``data_s``. ``samples_per_s`` as printed.
    ``t_ns`` is Unix time (or local, see ``clock``) of the line, -1 where it carries none. ``averaged``
    says that the values are running means, so that differences between lines are smoothed.
    """

    step: Ints
    epoch: Ints
    step_s: Floats
    data_s: Floats
    samples_per_s: Floats
    t_ns: Ints
    framework: str
    averaged: bool
    clock: Clock
    source: str
    notes: tuple[str, ...] = ()

    @property
    def data_share(self) -> float | None:
        """Share of the logged time spent waiting for data; None where the log does not say."""
        both = np.isfinite(self.step_s) & np.isfinite(self.data_s) & (self.step_s > 0)
        if not both.any():
            return None
        return float(self.data_s[both].sum() / self.step_s[both].sum())

    @property
    def mean_step_s(self) -> float | None:
        """Mean seconds per iteration over the logged lines; None where the log does not say."""
        known = self.step_s[np.isfinite(self.step_s)]
        return float(known.mean()) if len(known) else None
