"""The CSV of ``nvidia-smi --query-gpu ... --format=csv``: any columns in any order."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.ingest.tables import INT_COLUMNS, THROTTLE_BITS, GpuLog, gpu_log
from tracelens.ingest.text import clock_ns

# query names (units stripped) -> our column; the first of a column's names that is present wins
_CSV_COLUMNS: dict[str, tuple[str, ...]] = {
    "index": ("index",),
    "uuid": ("uuid", "gpu_uuid"),
    "name": ("name", "gpu_name"),
    "utilization_gpu": ("utilization.gpu",),
    "utilization_memory": ("utilization.memory",),
    "memory_used": ("memory.used",),
    "memory_total": ("memory.total",),
    "power_w": ("power.draw", "power.draw.instant", "power.draw.average"),
    "power_limit_w": ("enforced.power.limit", "power.limit"),
    "temperature_c": ("temperature.gpu",),
    "sm_clock_mhz": ("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr"),
    "sm_clock_max_mhz": ("clocks.max.sm", "clocks.max.graphics", "clocks.max.gr"),
    "mem_clock_mhz": ("clocks.current.memory", "clocks.mem"),
    "throttle_reasons": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    "pcie_gen": ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"),
    "pcie_gen_max": ("pcie.link.gen.max", "pcie.link.gen.gpumax"),
    "pcie_width": ("pcie.link.width.current",),
    "pcie_width_max": ("pcie.link.width.max",),
}
_SHARES = frozenset({"utilization_gpu", "utilization_memory"})
_BYTES = frozenset({"memory_used", "memory_total"})
_REASON = re.compile(r"^clocks_(?:throttle|event)_reasons\.(\w+)$")
_HEADER_UNIT = re.compile(r"\s*\[([^\]]*)\]\s*$")
_MISSING = re.compile(
    r"^\[?\s*(n/?a|not supported|unknown error|unknown|gpu is lost|insufficient permissions"
    r"|no permission|requested functionality has been deprecated|-)?\s*\]?$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"^([-+]?\d[\d.,' \u00a0]*(?:[eE][-+]?\d+)?)\s*([a-zA-Z%°/]*)$")
_BYTE_UNITS = {"b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_DATE = re.compile(r"^\d{4}[/-]\d{2}[/-]\d{2} \d{2}:\d{2}:\d{2}")
_LOCALISED = re.compile(r"(?<=\d),(?=\d)")


def parse_decimal(text: str) -> float | None:
    """A number in English or continental notation: 326.51, 326,51, 1.234,5; None where it is none."""
    plain = text.strip().replace("\u00a0", "").replace(" ", "").replace("'", "")
    if "," in plain and "." in plain:
        thousands = "," if plain.rindex(".") > plain.rindex(",") else "."
        plain = plain.replace(thousands, "").replace(",", ".")
    elif plain.count(",") == 1:
        plain = plain.replace(",", ".")
    elif "," in plain:
        plain = plain.replace(",", "")
    try:
        value = float(plain)
    except ValueError:
        return None
    # nothing that a GPU reports is near 1e15 in its own unit; what follows would overflow
    return value if abs(value) < 1e15 else None


def _value(text: str, column: str, header_unit: str) -> float:
    """One cell in our unit, NaN where nvidia-smi had no value. ValueError for a cell that is no number."""
    text = text.strip()
    if _MISSING.match(text):
        return float("nan")
    match = _NUMBER.match(text)
    number = parse_decimal(match[1]) if match else None
    if match is None or number is None:
        raise ValueError(text)
    unit = (match[2] or header_unit).lower()
    if column in _SHARES:
        return number / 100.0
    if column in _BYTES:
        return number * _BYTE_UNITS.get(unit, 2.0**20)  # nounits without a header unit: MiB, as nvidia-smi
    return number


def _mask(text: str) -> int:
    text = text.strip()
    if _MISSING.match(text):
        return -1
    try:
        return int(text, 16) if text.lower().startswith("0x") else int(text)
    except ValueError:
        raise ValueError(text) from None


def _split(text: str, delimiter: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    return [
        [cell.strip() for cell in row]
        for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    ]


def _delimiter(head: str) -> str:
    counts = {mark: head.count(mark) for mark in (",", ";", "\t")}
    return max(counts, key=lambda mark: counts[mark])


def _normalise(cell: str) -> tuple[str, str]:
    unit = _HEADER_UNIT.search(cell)
    name = _HEADER_UNIT.sub("", cell).strip().strip('"').lower()
    return name, (unit[1] if unit else "")


def is_query_csv(text: str) -> bool:
    """Whether the text looks like ``nvidia-smi --query-gpu`` output, with or without a header."""
    head = text.lstrip().split("\n", 1)[0]
    names = {_normalise(cell)[0] for cell in head.split(_delimiter(head))}
    known = {alias for aliases in _CSV_COLUMNS.values() for alias in aliases} | {"timestamp"}
    if len(names & known) >= 2 or any(_REASON.match(name) for name in names):
        return True
    cells = [cell.strip().strip('"') for cell in head.split(_delimiter(head))]
    return len(cells) >= 2 and any(_DATE.match(cell) for cell in cells)


def parse_query_csv(text: str, source: str) -> GpuLog:
    """The table of a ``--query-gpu`` CSV. InputError: no time column, no known column, no usable row."""
    first = text.lstrip().split("\n", 1)[0]
    delimiter = _delimiter(first)
    rows = _split(text, delimiter)
    notes: list[str] = []
    header_cells = [_normalise(cell) for cell in rows[0]]
    has_header = not any(_DATE.match(cell) for cell in rows[0])
    if has_header:
        body = [row for row in rows[1:] if row[:1] != rows[0][:1]]  # a restarted log repeats its header
        names, units = [name for name, _ in header_cells], [unit for _, unit in header_cells]
    else:
        body = rows
        names, guessed = _guess_columns(body)
        units = [""] * len(names)
        notes.append(guessed)
    width = len(names)
    if delimiter == "," and any(len(row) > width for row in body):
        body = [_rejoin(row, width) for row in body]
    whole = [row for row in body if len(row) == width]
    if len(whole) < len(body):
        notes.append(f"{len(body) - len(whole)} lines with another number of columns were skipped")
    if "timestamp" not in names:
        raise InputError(
            f"{source} has no timestamp column: record it with --query-gpu=timestamp,index,uuid,..."
        )
    if not whole:
        raise InputError(f"{source} has a header and no complete row: let nvidia-smi run during the job")
    columns, bad = _convert(names, units, whole)
    if not set(columns) - {"t_ns", "index", "uuid", "name"}:
        raise InputError(
            f"{source} has no GPU measurement that tracelens knows (utilization.gpu, memory.used ...)"
        )
    stamps = columns["t_ns"] >= 0
    if not stamps.any():
        raise InputError(f"{source} has no readable timestamp (such as 2026/12/01 17:40:10.702)")
    if bad or not stamps.all():
        notes.append(f"{bad + int((~stamps).sum())} cells could not be read and are missing")
    columns = {name: column[stamps] for name, column in columns.items()}
    return gpu_log(columns, source=source, format="smi_csv", clock="local", notes=tuple(notes))


def _rejoin(row: list[str], width: int) -> list[str]:
    """Undo the split of unquoted comma decimals: `326`, `51 W` -> `326,51 W`, where that gives the width."""
    extra = len(row) - width
    joined: list[str] = []
    for cell in row:
        # only a continuation can start with digits right after a bare integer cell; units end a number
        if (
            extra > 0
            and joined
            and re.fullmatch(r"\d+", joined[-1])
            and re.match(r"^\d{1,3} [a-zA-Z%]", cell)
        ):
            joined[-1] = f"{joined[-1]},{cell}"
            extra -= 1
        else:
            joined.append(cell)
    return joined


def _convert(
    names: Sequence[str], units: Sequence[str], rows: list[list[str]]
) -> tuple[dict[str, npt.NDArray[Any]], int]:
    cells = dict(zip(names, zip(*rows, strict=True), strict=True))
    unit_of = dict(zip(names, units, strict=True))
    bad = 0

    def column(
        values: Sequence[str], convert: Callable[[str], float | int], missing: float | int
    ) -> list[float | int]:
        nonlocal bad
        cache: dict[str, float | int] = {}
        out = []
        for value in values:
            known = cache.get(value)
            if known is None:
                try:
                    known = convert(value)
                except ValueError:
                    known = missing
                    bad += 1
                cache[value] = known
            out.append(known)
        return out

    found: dict[str, npt.NDArray[Any]] = {"t_ns": _timestamps(cells["timestamp"])}
    for name, aliases in _CSV_COLUMNS.items():
        alias = next((alias for alias in aliases if alias in cells), None)
        if alias is None:
            continue
        values = cells[alias]
        if name in ("uuid", "name"):
            found[name] = np.array(["" if _MISSING.match(v) else v for v in values], dtype=np.str_)
        elif name in INT_COLUMNS:
            found[name] = np.array(column(values, _mask, -1), np.int64)
        else:
            convert = functools.partial(_value, column=name, header_unit=unit_of[alias])
            found[name] = np.array(column(values, convert, float("nan")), np.float64)
    single = {
        match[1]: name for name in names if (match := _REASON.match(name)) and match[1] in THROTTLE_BITS
    }
    if single and "throttle_reasons" not in found:
        found["throttle_reasons"] = _reasons(single, cells)
    return found, bad


def _reasons(single: dict[str, str], cells: dict[str, tuple[str, ...]]) -> npt.NDArray[np.int64]:
    """The mask from one Active / Not Active column a reason; -1 where every one of them is missing."""
    count = len(next(iter(cells.values())))
    mask, known = np.zeros(count, np.int64), np.zeros(count, bool)
    for reason, name in single.items():
        states = np.array([value.strip().lower() for value in cells[name]])
        known |= np.isin(states, ("active", "not active"))
        mask |= np.where(states == "active", THROTTLE_BITS[reason], 0)
    return np.where(known, mask, -1)


def _timestamps(values: Sequence[str]) -> npt.NDArray[np.int64]:
    """ns as if the zone were UTC; -1 where unreadable."""
    out = np.empty(len(values), np.int64)
    for i, value in enumerate(values):
        day, _, time = value.strip().replace("T", " ", 1).partition(" ")
        stamp = clock_ns(day, time.strip())
        out[i] = -1 if stamp is None else stamp
    return out


def _guess_columns(rows: list[list[str]]) -> tuple[list[str], str]:
    """Column names of a log without a header, from the look of the cells; a name "" is not used."""
    width = len(rows[0])
    sample = [row for row in rows[:200] if len(row) == width]
    names = [""] * width
    by_unit: dict[str, list[int]] = {}
    for i in range(width):
        cells = [row[i] for row in sample if not _MISSING.match(row[i])]
        if not cells:
            continue
        if all(_DATE.match(cell) for cell in cells):
            names[i] = "timestamp"
        elif all(re.match(r"^(GPU|MIG)-[0-9a-fA-F]", cell) for cell in cells):
            names[i] = "uuid"
        elif all(cell.lower().startswith("0x") for cell in cells):
            names[i] = "clocks_event_reasons.active"
        elif all((match := _NUMBER.match(cell)) and match[2] for cell in cells):
            match = _NUMBER.match(cells[0])
            by_unit.setdefault(match[2].lower() if match else "", []).append(i)
        elif any(re.search(r"[a-zA-Z]{3}", cell) for cell in cells):
            names[i] = "name" if "name" not in names else ""

    def mean(i: int) -> float:
        values = [parse_decimal(m[1]) for row in sample if (m := _NUMBER.match(row[i]))]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else 0.0

    # the order in which nvidia-smi's own help lists them; where two readings are possible, none is taken
    for i, name in zip(by_unit.get("%", [])[:2], ("utilization.gpu", "utilization.memory"), strict=False):
        names[i] = name
    memory = by_unit.get("mib", [])
    if len(memory) == 1:
        names[memory[0]] = "memory.used"
    elif len(memory) == 2:
        low, high = sorted(memory, key=mean)
        names[low], names[high] = "memory.used", "memory.total"
    power = by_unit.get("w", [])
    if power:
        ordered = sorted(power, key=mean)
        names[ordered[0]] = "power.draw"
        if len(ordered) == 2:
            names[ordered[1]] = "power.limit"
    clocks = by_unit.get("mhz", [])
    if len(clocks) == 1:
        names[clocks[0]] = "clocks.sm"
    used = ", ".join(name for name in names if name)
    return names, f"no header: columns taken by their look as {used}; record without noheader to be sure"
