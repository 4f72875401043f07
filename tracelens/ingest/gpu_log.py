"""``read_gpu_log``: any GPU log there is, told apart by its content, never by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.ingest.dmon import is_dmon, parse_dmon
from tracelens.ingest.jsonl import json_lines, number, time_ns
from tracelens.ingest.nvidia_smi import is_query_csv, parse_query_csv
from tracelens.ingest.tables import GPU_COLUMNS, INT_COLUMNS, TEXT_COLUMNS, GpuLog, gpu_log
from tracelens.ingest.text import read_text

_GPM = {
    "gpm_sm_util": "sm_util",
    "gpm_sm_occupancy": "sm_occupancy",
    "gpm_tensor": "tensor",
    "gpm_dram_bw": "dram_bw",
}


def read_gpu_log(path: str | Path) -> GpuLog:
    """A GPU log as a table: nvidia-smi CSV, dmon, or a bundle's gpu.jsonl (each also .gz).

    Raises InputError, one line, for a file that is missing, empty, binary or none of these.
    """
    text = read_text(path, "GPU log")
    source = str(path)
    if is_dmon(text):
        return parse_dmon(text, source)
    if text.lstrip().startswith("{"):
        return _parse_jsonl(text, source)
    if is_query_csv(text):
        return parse_query_csv(text, source)
    if "nvidia-smi" in text[:400].lower() or "<nvidia_smi_log>" in text[:400] or "NVSMI LOG" in text[:400]:
        raise InputError(
            f"{source} is one look of nvidia-smi, not a log: record --query-gpu=timestamp,index,uuid,utilization.gpu,"
            "memory.used,memory.total,power.draw,clocks.sm,clocks_event_reasons.active --format=csv -lms 200"
        )
    if text.lstrip().lower().startswith(("timestamp", "index", "utilization", "pid", "gpu_")):
        raise InputError(
            f"{source} has no columns of nvidia-smi --query-gpu: record timestamp,index,utilization.gpu ..."
        )
    raise InputError(
        f"{source} is no GPU log: expected nvidia-smi --query-gpu CSV, nvidia-smi dmon or gpu.jsonl"
    )


def _parse_jsonl(text: str, source: str) -> GpuLog:
    lines, skipped = json_lines(text)
    rows = [
        line for line in lines if time_ns(line) is not None and not line.keys().isdisjoint(GPU_COLUMNS[5:])
    ]
    if not rows:
        raise InputError(f"{source} holds no GPU samples: lines need ts and utilization_gpu, memory_used ...")
    columns: dict[str, npt.NDArray[Any]] = {"t_ns": np.array([time_ns(row) for row in rows], np.int64)}
    for name in GPU_COLUMNS[1:]:
        if name in TEXT_COLUMNS:
            columns[name] = np.array([str(row.get(name) or "") for row in rows], dtype=np.str_)
        elif name == "foreign_pids":
            counts = [len(pids) if isinstance(pids := row.get(name), list) else -1 for row in rows]
            columns[name] = np.array(counts, np.int64)
        elif name in INT_COLUMNS:
            values = [number(row.get(name)) for row in rows]
            columns[name] = np.array([-1 if value != value else int(value) for value in values], np.int64)
        elif name in _GPM:
            gpm = [row["gpm"] if isinstance(row.get("gpm"), dict) else {} for row in rows]
            columns[name] = np.array([number(item.get(_GPM[name])) for item in gpm])
        else:
            columns[name] = np.array([number(row.get(name)) for row in rows])
    notes = (f"{skipped} lines that are no JSON were skipped",) if skipped else ()
    return gpu_log(columns, source=source, format="jsonl", clock="utc", notes=notes)
