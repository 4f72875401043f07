"""GPM counters (Hopper and later): what the SMs, tensor cores and device memory did between two samples."""

from __future__ import annotations

import math
from typing import Any

import pynvml

# NVML wants two samples at least 100 ms apart
_APART_NS = 100_000_000
# metric -> our name; percentages of the peak
_METRICS = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm_util",
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: "sm_occupancy",
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram_bw",
}
_MIB_RATES = {
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "pcie_rx_bytes_per_s",
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "pcie_tx_bytes_per_s",
}


class Gpm:
    """One GPU's (or MIG instance's) counters; ``supported`` is settled by the first call of ``sample``."""

    def __init__(self, handle: Any, gpu_instance: int | None) -> None:
        self._handle = handle
        self._instance = gpu_instance
        self._before: Any = None
        self._before_ns = 0
        self._spare: Any = None
        self.supported: bool | None = None

    def sample(self, now_ns: int) -> dict[str, float | None] | None:
        """Shares 0..1 since the sample before; None where there is no GPM, or not yet. Raises NVMLError."""
        if self.supported is None:
            self.supported = self._query()
        if not self.supported:
            return None
        if self._before is not None and now_ns - self._before_ns < _APART_NS:
            return None
        now = self._spare or pynvml.nvmlGpmSampleAlloc()
        self._spare = None
        try:
            if self._instance is None:
                pynvml.nvmlGpmSampleGet(self._handle, now)
            else:
                pynvml.nvmlGpmMigSampleGet(self._handle, self._instance, now)
        except pynvml.NVMLError as error:
            self._spare = now
            if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                self.supported = False  # another profiler holds the counters, or MIG without GPM
                return None
            raise
        before, self._spare = self._before, self._before
        self._before, self._before_ns = now, now_ns
        return None if before is None else _metrics(before, now)

    def _query(self) -> bool:
        try:
            return bool(pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return False  # an older driver or GPU


def _metrics(before: Any, now: Any) -> dict[str, float | None] | None:
    wanted = [*_METRICS, *_MIB_RATES]
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(wanted)
    request.sample1, request.sample2 = before, now
    for position, metric in enumerate(wanted):
        request.metrics[position].metricId = metric
    pynvml.nvmlGpmMetricsGet(request)
    out: dict[str, float | None] = {}
    for position, metric in enumerate(wanted):
        answer = request.metrics[position]
        known = answer.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(answer.value)
        if metric in _METRICS:
            out[_METRICS[metric]] = round(answer.value / 100, 4) if known else None
        elif known:
            out[_MIB_RATES[metric]] = round(answer.value * 2**20)
    return out
