"""NVML: one line of gpu.jsonl a GPU and sample. What a GPU does not support is None, and is asked once only.

Cheap queries run on every sample; those that take the driver's lock for milliseconds (process list, PCIe
throughput) at most every two seconds. All of pynvml's calls release the GIL; the caller gives them a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from tracelens.record.nvml_gpm import Gpm
from tracelens.record.nvml_visibility import Gpu

_MEDIUM_NS = 1_000_000_000
_SLOW_NS = 2_000_000_000
_STATIC_NS = 60_000_000_000
# answers that will not change while the job runs: do not ask again
_NEVER = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
# the initial pid namespace (PROC_PID_INIT_INO of the kernel): only there do NVML's pids mean what /proc says
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


class GpuLost(Exception):
    """The GPU fell off the bus, or needs a reset: nothing more will come from it."""


class NvmlUnavailable(Exception):
    """No NVML here, and why (one line)."""


@dataclass(slots=True)
class Device:
    """A GPU or MIG instance that is sampled; MIG instances ask their parent for what only it knows."""

    gpu: Gpu
    handle: Any
    parent: Any
    refused: dict[str, str] = field(default_factory=dict)
    static: dict[str, object] = field(default_factory=dict)
    static_at: int = -(2**62)
    kept: dict[str, object] = field(default_factory=dict)
    medium_at: int = -(2**62)
    slow_at: int = -(2**62)
    gpm: Gpm | None = None
    own_pid_seen: bool = False


class Nvml:
    """An initialised NVML with the devices it lists. ``open`` raises NvmlUnavailable, one line."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError, OSError) as error:
            raise NvmlUnavailable(_reason(error)) from None
        self.lost: dict[str, str] = {}
        self.devices: dict[str, Device] = {}
        self._host_pids = _in_initial_namespace()
        for index in range(_count()):
            self._add(index)

    def close(self) -> None:
        """Leave NVML."""
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return  # the library is gone with its GPU; nothing to give back

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every device, MIG instances after their GPU."""
        return tuple(device.gpu for device in self.devices.values())

    def versions(self) -> dict[str, str | None]:
        """Driver and NVML version."""
        return {
            "driver": _try(pynvml.nvmlSystemGetDriverVersion),
            "nvml": _try(pynvml.nvmlSystemGetNVMLVersion),
        }

    def _add(self, index: int) -> None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            self.lost[f"index {index}"] = _reason(error)
            return
        name = _try(pynvml.nvmlDeviceGetName, handle) or ""
        pci = _try(pynvml.nvmlDeviceGetPciInfo, handle)
        bus_id = "" if pci is None else _text(pci.busId)
        mode = _try(pynvml.nvmlDeviceGetMigMode, handle)
        mig = bool(mode and mode[0])
        self.devices[uuid] = Device(Gpu(index, uuid, name, bus_id, mig), handle, handle)
        if not mig:
            return
        for number in range(_try(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            try:
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                mig_uuid = _text(pynvml.nvmlDeviceGetUUID(instance))
            except pynvml.NVMLError:
                continue  # slots without an instance
            mig_name = _try(pynvml.nvmlDeviceGetName, instance) or name
            self.devices[mig_uuid] = Device(
                Gpu(index, mig_uuid, mig_name, bus_id, True, uuid), instance, handle
            )

    def sample(
        self, uuid: str, wall_ns: int, monotonic_ns: int, own_pids: frozenset[int]
    ) -> dict[str, object]:
        """One line for a device. Raises GpuLost once, when the GPU is gone."""
        device = self.devices[uuid]
        try:
            return self._sample(device, wall_ns, monotonic_ns, own_pids)
        except GpuLost as error:
            self.lost[uuid] = str(error)
            self.devices.pop(uuid)
            raise

    def _sample(
        self, device: Device, wall_ns: int, now_ns: int, own_pids: frozenset[int]
    ) -> dict[str, object]:
        if now_ns - device.static_at >= _STATIC_NS:
            device.static_at = now_ns
            device.static = _static(device)
        if now_ns - device.medium_at >= _MEDIUM_NS:
            device.medium_at = now_ns
            device.kept |= _medium(device)
        line: dict[str, object] = {"ts": wall_ns, **device.static, **_hot(device), **device.kept}
        gpm = self._gpm(device, now_ns)
        if gpm is not None:
            line |= {name: gpm.pop(name) for name in list(gpm) if name.startswith("pcie_")}
        line["gpm"] = gpm
        if now_ns - device.slow_at >= _SLOW_NS:
            device.slow_at = now_ns
            device.kept["foreign_pids"] = self._foreign(device, own_pids)
            line["foreign_pids"] = device.kept["foreign_pids"]
            line |= _pcie_counters(device)
        return line

    def _gpm(self, device: Device, now_ns: int) -> dict[str, float | None] | None:
        if device.gpm is None:
            instance = None
            if device.gpu.parent is not None:
                instance = _ask(device, "gpu_instance", pynvml.nvmlDeviceGetGpuInstanceId, device.handle)
            device.gpm = Gpm(device.parent, instance)
        try:
            return device.gpm.sample(now_ns)
        except pynvml.NVMLError as error:
            _raise_if_lost(error)
            return None

    def _foreign(self, device: Device, own_pids: frozenset[int]) -> list[int] | None:
        """Pids of other jobs that hold a context; None where NVML's pids cannot be told from ours."""
        processes = _ask(device, "processes", pynvml.nvmlDeviceGetComputeRunningProcesses, device.handle)
        if processes is None:
            processes = _ask(
                device, "processes_v2", pynvml.nvmlDeviceGetComputeRunningProcesses_v2, device.handle
            )
        if processes is None:
            return None
        pids = sorted({int(process.pid) for process in processes})
        device.own_pid_seen = device.own_pid_seen or not own_pids.isdisjoint(pids)
        if pids and not device.own_pid_seen and not self._host_pids:
            return None  # a container: the driver may name the pids of the machine outside
        return [pid for pid in pids if pid not in own_pids]


def _hot(device: Device) -> dict[str, object]:
    # MIG instances have memory of their own; clocks, power and throttling belong to the whole GPU
    use = _ask(device, "utilization", pynvml.nvmlDeviceGetUtilizationRates, device.handle)
    memory = _ask(device, "memory", pynvml.nvmlDeviceGetMemoryInfo, device.handle)
    power = _ask(device, "power", pynvml.nvmlDeviceGetPowerUsage, device.parent)
    clock = _ask(device, "sm_clock", pynvml.nvmlDeviceGetClockInfo, device.parent, pynvml.NVML_CLOCK_SM)
    reasons = _ask(device, "throttle_reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons, device.parent)
    if reasons is None:  # drivers before 535
        reasons = _ask(
            device, "throttle_reasons_old", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, device.parent
        )
    return {
        "utilization_gpu": None if use is None else use.gpu / 100,
        "utilization_memory": None if use is None else use.memory / 100,
        "memory_used": None if memory is None else memory.used,
        "memory_total": None if memory is None else memory.total,
        "power_w": None if power is None else power / 1000,
        "sm_clock_mhz": clock,
        "throttle_reasons": reasons,
    }


def _medium(device: Device) -> dict[str, object]:
    parent = device.parent
    return {
        "temperature_c": _ask(
            device, "temperature", pynvml.nvmlDeviceGetTemperature, parent, pynvml.NVML_TEMPERATURE_GPU
        ),
        "mem_clock_mhz": _ask(
            device, "mem_clock", pynvml.nvmlDeviceGetClockInfo, parent, pynvml.NVML_CLOCK_MEM
        ),
        "pcie_gen": _ask(device, "pcie_gen", pynvml.nvmlDeviceGetCurrPcieLinkGeneration, parent),
        "pcie_width": _ask(device, "pcie_width", pynvml.nvmlDeviceGetCurrPcieLinkWidth, parent),
    }


def _static(device: Device) -> dict[str, object]:
    parent = device.parent
    limit = _ask(device, "power_limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, parent)
    return {
        "uuid": device.gpu.uuid,
        "index": device.gpu.index,
        "name": device.gpu.name or None,
        "power_limit_w": None if limit is None else limit / 1000,
        "sm_clock_max_mhz": _ask(
            device, "sm_clock_max", pynvml.nvmlDeviceGetMaxClockInfo, parent, pynvml.NVML_CLOCK_SM
        ),
        "pcie_gen_max": _ask(device, "pcie_gen_max", pynvml.nvmlDeviceGetMaxPcieLinkGeneration, parent),
        "pcie_width_max": _ask(device, "pcie_width_max", pynvml.nvmlDeviceGetMaxPcieLinkWidth, parent),
    }


def _pcie_counters(device: Device) -> dict[str, object]:
    """Cumulative bytes where the driver counts them, else the rate over NVML's own 20 ms window."""
    fields = [pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES]
    values = _ask(device, "pcie_bytes", pynvml.nvmlDeviceGetFieldValues, device.parent, fields)
    counts = [None, None] if values is None else [_field(value) for value in values]
    if counts != [None, None]:
        return {"pcie_rx_bytes": counts[0], "pcie_tx_bytes": counts[1]}
    if values is not None:
        device.refused["pcie_bytes"] = "Not Supported"
    if device.gpm is not None and device.gpm.supported:
        return {}  # GPM says it without blocking
    rates = {}
    for name, counter in (("rx", pynvml.NVML_PCIE_UTIL_RX_BYTES), ("tx", pynvml.NVML_PCIE_UTIL_TX_BYTES)):
        rate = _ask(device, f"pcie_{name}_rate", pynvml.nvmlDeviceGetPcieThroughput, device.parent, counter)
        rates[f"pcie_{name}_bytes_per_s"] = None if rate is None else rate * 1000  # NVML: KB/s
    return rates


def _field(value: Any) -> int | None:
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    kinds = {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    }
    name = kinds.get(value.valueType)
    return None if name is None else int(getattr(value.value, name))


def _ask(device: Device, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None; refused for good: not asked again. Raises GpuLost."""
    if what in device.refused:
        return None
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        _raise_if_lost(error)
        if error.value in _NEVER:
            device.refused[what] = _reason(error)
        return None


def _raise_if_lost(error: Any) -> None:
    if error.value in (
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    ):
        raise GpuLost(_reason(error)) from None


def _try(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        value = call(*arguments)
    except pynvml.NVMLError:
        return None  # optional knowledge
    return _text(value) if isinstance(value, bytes) else value


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _count() -> int:
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _in_initial_namespace() -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def capabilities(devices: Iterable[Device]) -> dict[str, dict[str, str]]:
    """uuid -> query -> why it was refused, for sampler.jsonl."""
    return {device.gpu.uuid: dict(device.refused) for device in devices}
