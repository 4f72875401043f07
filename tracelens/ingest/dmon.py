"""The log of ``nvidia-smi dmon``, options -s and -o as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.ingest.nvidia_smi import parse_decimal
from tracelens.ingest.tables import THROTTLE_BITS, Clock, GpuLog, Ints, gpu_log
from tracelens.ingest.text import clock_ns, time_of_day_ns

_DMON_COLUMNS = {
    "gpu": "index", "pwr": "power_w", "gtemp": "temperature_c", "temp": "temperature_c",
    "sm": "utilization_gpu", "mem": "utilization_memory", "mclk": "mem_clock_mhz", "pclk": "sm_clock_mhz",
    "fb": "memory_used", "rxpci": "pcie_rx_bytes_per_s", "txpci": "pcie_tx_bytes_per_s",
}  # fmt: skip
_DMON_SCALE = {
    "utilization_gpu": 0.01, "utilization_memory": 0.01, "memory_used": 2.0**20,
    "pcie_rx_bytes_per_s": 1e6, "pcie_tx_bytes_per_s": 1e6,
}  # fmt: skip


def is_dmon(text: str) -> bool:
    """Whether the text looks like ``nvidia-smi dmon`` output."""
    head = text.lstrip().split("\n", 1)[0].lower().replace(",", " ")
    return head.startswith("#") and "gpu" in head.lstrip("# ").split()


def parse_dmon(text: str, source: str) -> GpuLog:
    """The table of a dmon log (options -s and -o as they come). InputError: no complete row."""
    if "pid" in text.lstrip().split("\n", 1)[0].lower().split():
        raise InputError(
            f"{source} is a pmon log, which is about processes: record nvidia-smi dmon -s pucvmt -o DT"
        )
    header: list[str] = []
    stamps: list[int] = []
    ticks: list[int] = []
    rows: list[dict[str, str]] = []
    seen_at_tick: set[str] = set()
    tick = skipped = 0
    for line in text.splitlines():
        words = line.replace(",", " ").split()
        if not words:
            continue
        if words[0].startswith("#"):
            words = [word.lower() for word in line.replace(",", " ").lstrip("# ").split()]
            if "gpu" in words:
                header = words
            continue
        if len(words) != len(header):
            skipped += 1
            continue
        row = dict(zip(header, words, strict=True))
        if row["gpu"] in seen_at_tick:
            tick += 1
            seen_at_tick = set()
        seen_at_tick.add(row["gpu"])
        day, time = row.get("date"), row.get("time")
        stamp = None
        if time is not None:
            stamp = clock_ns(day, time) if day is not None else time_of_day_ns(time)
            if stamp is None:
                skipped += 1
                continue
        stamps.append(tick * 1_000_000_000 if stamp is None else stamp)
        ticks.append(tick)
        rows.append(row)
    if not rows:
        raise InputError(f"{source} is a dmon log without a complete row: let nvidia-smi run during the job")
    notes = [f"{skipped} incomplete lines were skipped"] if skipped else []
    t_ns = np.array(stamps, np.int64)
    if "date" in header:
        clock: Clock = "local"
        t_ns = _spread(t_ns, np.array(ticks))
    elif "time" in header:
        clock = "time_of_day"
        days = np.concatenate([[0], np.cumsum(np.diff(t_ns) < -43_200_000_000_000)])  # midnight passed
        t_ns = _spread(t_ns + days * 86_400_000_000_000, np.array(ticks))
    else:
        clock = "relative"
        notes.append("the log carries no times; one sample a second is assumed (record with dmon -o DT)")
    columns: dict[str, npt.NDArray[Any]] = {"t_ns": t_ns}
    for name, ours in _DMON_COLUMNS.items():
        if name not in header:
            continue
        values = [parse_decimal(row.get(name, "-")) for row in rows]
        if ours == "index":
            columns[ours] = np.array([-1 if value is None else int(value) for value in values], np.int64)
        else:
            scale = _DMON_SCALE.get(ours, 1.0)
            columns[ours] = np.array([np.nan if value is None else value * scale for value in values])
    if not set(columns) - {"t_ns", "index"}:
        raise InputError(
            f"{source} is a dmon log without power, utilisation, clocks or memory: record it with -s pucm"
        )
    _dmon_violations(header, rows, columns)
    return gpu_log(columns, source=source, format="dmon", clock=clock, notes=tuple(notes))


def _dmon_violations(
    header: list[str], rows: list[dict[str, str]], columns: dict[str, npt.NDArray[Any]]
) -> None:
    """-s v: pviol (percent of time capped by power) and tviol (thermal flag) as the bits they stand for."""
    named = {"pviol": THROTTLE_BITS["sw_power_cap"], "tviol": THROTTLE_BITS["sw_thermal_slowdown"]}
    mask, known = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    for name, bit in named.items():
        if name in header:
            values = np.array(
                [np.nan if (v := parse_decimal(row.get(name, "-"))) is None else v for row in rows]
            )
            known |= np.isfinite(values)
            mask |= np.where(np.nan_to_num(values) > 0, bit, 0)
    if known.any():
        columns["throttle_reasons"] = np.where(known, mask, -1)


def _spread(t_ns: npt.NDArray[np.int64], ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """dmon prints whole seconds: samples taken within one second are spread evenly over it."""
    seconds, group = np.unique(t_ns, return_inverse=True)
    first = np.full(len(seconds), np.iinfo(np.int64).max)
    last = np.full(len(seconds), -1, np.int64)
    np.minimum.at(first, group, ticks)
    np.maximum.at(last, group, ticks)
    within = (ticks - first[group]) * (1_000_000_000 // (last - first + 1)[group])
    spread: Ints = t_ns + within
    return spread
