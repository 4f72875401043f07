"""``read_host_log``: per-process and machine samples, one JSON object a line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from tracelens.errors import InputError
from tracelens.ingest.jsonl import json_lines, number, time_ns
from tracelens.ingest.tables import Floats, HostLog, Ints, ProcessTable
from tracelens.ingest.text import read_text

_PLAIN = ("system_cpu_percent", "cpu_count", "iowait_percent", "load1", "mem_available", "mem_total",
          "swap_used", "dev_shm_used", "dev_shm_total", "net_read_bytes")  # fmt: skip
_CGROUP = ("quota_cores", "throttled_ms", "nr_throttled", "nr_periods", "memory_current", "memory_max")
_PROCESS = ("cpu_percent", "rss", "num_threads", "read_bytes", "run_delay_ms", "majflt", "ctx_involuntary")
_WORKER = re.compile(
    r"pt_data_worker|pt_main_thread.*worker|^(dataloader[ _-]?)?worker[ _-]?\d*$", re.IGNORECASE
)
_MAIN = re.compile(r"^(main|trainer|rank[ _-]?\d+|main[ _-]?process)$", re.IGNORECASE)


def read_host_log(path: str | Path) -> HostLog:
    """A host log as tables (format of ``--host-log`` and of a bundle's host.jsonl; also .gz).

    Raises InputError, one line, for a file that is missing, empty, binary or holds no samples.
    """
    text = read_text(path, "host log")
    lines, skipped = json_lines(text)
    samples = [
        (stamp, line)
        for line in lines
        if (stamp := time_ns(line)) is not None and ("processes" in line or "system_cpu_percent" in line)
    ]
    if not samples:
        raise InputError(f"{path} is no host log: each line needs ts and system_cpu_percent or processes")
    samples.sort(key=lambda sample: sample[0])
    t_ns = np.array([stamp for stamp, _ in samples], np.int64)
    rows = [line for _, line in samples]
    notes = [f"{skipped} lines that are no JSON were skipped"] if skipped else []
    processes, role_note = _processes(t_ns, rows)
    notes += [role_note] if role_note else []

    def column(name: str, part: str | None = None) -> Floats:
        source = rows if part is None else [_part(row, part) for row in rows]
        return np.array([number(row.get(name)) for row in source])

    plain = {name: column(name) for name in _PLAIN}
    cgroup = {name: column(name, "cgroup") for name in _CGROUP}
    disks = [_part(row, "disks") for row in rows]
    names = tuple(dict.fromkeys(name for disk in disks for name in disk))
    kinds = [info for disk in disks for info in disk.values() if isinstance(info, dict)]
    places = [place for row in rows for place in row.get("storage") or [] if isinstance(place, dict)]
    remote = [place["network"] for place in places if isinstance(place.get("network"), bool)]
    spinning = [info["rotational"] for info in kinds if isinstance(info.get("rotational"), bool)]
    return HostLog(
        t_ns=t_ns,
        node=np.array([str(row.get("node") or "") for row in rows], dtype=np.str_),
        percpu=_percpu(rows),
        mem_limit=np.fmin(plain["mem_total"], cgroup["memory_max"]),
        psi_cpu=column("cpu", "psi"),
        psi_io=column("io", "psi"),
        psi_memory=column("memory", "psi"),
        disk_read_bytes=_over_disks(disks, "read_bytes", sum),
        disk_busy_ms=_over_disks(disks, "busy_ms", max),
        processes=processes,
        disks=names,
        rotational=any(spinning) if spinning else None,
        network_storage=any(remote) if remote else None,
        source=str(path),
        notes=tuple(notes),
        **plain,
        **cgroup,
    )


def _part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _percpu(rows: Sequence[Mapping[str, Any]]) -> Floats:
    lists = [value if isinstance(value := row.get("percpu"), list) else [] for row in rows]
    out = np.full((len(rows), max(map(len, lists))), np.nan)
    for i, values in enumerate(lists):
        out[i, : len(values)] = [number(value) for value in values]
    return out


def _over_disks(
    disks: Sequence[Mapping[str, Any]], name: str, reduce: Callable[[list[float]], float]
) -> Floats:
    out = np.full(len(disks), np.nan)
    for i, disk in enumerate(disks):
        values = [number(info.get(name)) for info in disk.values() if isinstance(info, dict)]
        known = [value for value in values if value == value]
        if known:
            out[i] = reduce(known)
    return out


def _processes(t_ns: Ints, rows: Sequence[Mapping[str, Any]]) -> tuple[ProcessTable, str | None]:
    """The long table. Name, role, rank and affinity are written only on change, so carried on."""
    at: list[int] = []
    entries: list[Mapping[str, Any]] = []
    for i, row in enumerate(rows):
        listed = row.get("processes")
        for entry in listed if isinstance(listed, list) else []:
            if isinstance(entry, dict) and _is_id(entry.get("pid")):
                at.append(i)
                entries.append(entry)
    carried: dict[tuple[str, int], dict[str, Any]] = {}
    names, roles, ranks, cores = [], [], [], []
    nodes = [str(row.get("node") or "") for row in rows]
    for i, entry in zip(at, entries, strict=True):
        known = carried.setdefault((nodes[i], entry["pid"]), {})
        known.update({key: entry[key] for key in ("name", "role", "rank", "cpu_affinity") if key in entry})
        names.append(str(known.get("name") or ""))
        roles.append(str(known.get("role") or ""))
        rank = known.get("rank")
        ranks.append(rank if _is_id(rank) else -1)
        affinity = known.get("cpu_affinity")
        cores.append(len(affinity) if isinstance(affinity, list) and affinity else np.nan)
    pids = np.array([entry["pid"] for entry in entries], np.int64)
    row_index = np.array(at, np.int64)
    times = t_ns[row_index] if len(row_index) else np.zeros(0, np.int64)
    role, note = _roles(roles, names, [entry["pid"] for entry in entries])
    values = {name: np.array([_amount(entry.get(name)) for entry in entries]) for name in _PROCESS}
    keys = list(zip((nodes[i] for i in at), (int(pid) for pid in pids), strict=True))
    table = ProcessTable(
        row=row_index,
        t_ns=times,
        pid=pids,
        name=np.array(names, dtype=np.str_),
        role=np.array(role, dtype=np.str_),
        rank=np.array(ranks, np.int64),
        affinity_count=np.array(cores, np.float64),
        run_delay_share=_delay_share(keys, times, values["run_delay_ms"]),
        **values,
    )
    return table, note


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < 1 << 32


def _amount(value: Any) -> float:
    """A number; NaN where it is negative, which no use of a machine is."""
    found = number(value)
    return found if found >= 0 else np.nan


def _roles(given: Sequence[str], names: Sequence[str], pids: Sequence[int]) -> tuple[list[str], str | None]:
    """Given roles as they are; else by name; else, among processes of one name, the first started is main."""
    roles = [
        role if role in ("main", "worker", "other")
        else "worker" if _WORKER.search(name)
        else "main" if _MAIN.match(name)
        else "other"
        for role, name in zip(given, names, strict=True)
    ]  # fmt: skip
    if "main" in roles or not pids or any(given):
        return roles, None
    python = [
        (name, pid)
        for name, pid in zip(names, pids, strict=True)
        if name.lower().startswith(("python", "pt_main"))
    ]
    if not python:
        return roles, None
    name = Counter(name for name, _ in python).most_common(1)[0][0]
    first = min(pid for other, pid in python if other == name)
    guessed = [
        ("main" if pid == first else "worker") if other == name and role == "other" else role
        for role, other, pid in zip(roles, names, pids, strict=True)
    ]
    return (
        guessed,
        f"no roles in the log: pid {first} is taken as the training process, its namesakes as workers",
    )


def _delay_share(keys: Sequence[tuple[str, int]], times: Ints, delay_ms: Floats) -> Floats:
    """run_delay_ms over the time since the same process's previous value; NaN for its first."""
    share = np.full(len(keys), np.nan)
    previous: dict[tuple[str, int], int] = {}
    first_seen: dict[tuple[str, int], int] = {}
    for i, key in enumerate(keys):
        start = previous.get(key, first_seen.setdefault(key, int(times[i])))
        if np.isfinite(delay_ms[i]):
            span = int(times[i]) - start
            if span > 0:
                share[i] = delay_ms[i] * 1e6 / span
            previous[key] = int(times[i])
    return share
