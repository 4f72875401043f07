"""Other people's timelines (nvidia-smi, host samples, training logs) as tables of numpy columns."""

from __future__ import annotations

from tracelens.ingest.align import Alignment, align
from tracelens.ingest.gpu_log import read_gpu_log
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.tables import GpuLog, HostLog, ProcessTable, TrainingLog, throttle_names
from tracelens.ingest.training_logs import read_training_log

__all__ = [
    "Alignment",
    "GpuLog",
    "HostLog",
    "ProcessTable",
    "TrainingLog",
    "align",
    "read_gpu_log",
    "read_host_log",
    "read_training_log",
    "throttle_names",
]
