"""Metric histories: JSON lines (mmengine, detectron2, wandb history) and exported CSV tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens.ingest.jsonl import json_lines, number, time_ns

# metric names (last path component, lower case, - and space as _) -> what they are, in which unit of a second
_STEP_TIME = re.compile(
    r"^(?:time|(?:iter|iteration|step|batch|train_step|training_step|train_batch)_time|time_per_(?:step|iter|batch)"
    r"|run_training_batch|sec_per_(?:step|iter))(?:_(?P<unit>ms|s|sec|seconds))?$"
)
_DATA_TIME = re.compile(
    r"^(?:data(?:_time|_load|_loading|_wait|_load_time|_loading_time|_fetch)?|dataload(?:er)?_(?:time|wait)|load_time|fetch_time"
    r"|batch_generator|wait_time|get_train_batch|train_dataloader_next)(?:_(?P<unit>ms|s|sec|seconds))?$"
)
_RATE = re.compile(
    r"^(?:samples|images|imgs|examples)_per_s(?:ec|econd)?$|^(?:samples|img|imgs|images|examples)/s(?:ec)?$"
)
_STEP = ("_step", "global_step", "trainer/global_step", "step", "iteration", "iter")
_SCALE = {None: 1.0, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3}


@dataclass(frozen=True, slots=True)
class Row:
    """One logged line: seconds, samples a second; ``absolute`` says that ``t_ns`` is Unix time."""

    step: int | None
    epoch: int | None
    step_s: float | None
    data_s: float | None
    samples_per_s: float | None
    t_ns: int | None
    absolute: bool = False


def history_rows(text: str) -> tuple[list[Row], str, bool, list[str]]:
    """Rows, framework, averaged, notes of a history in JSON lines or CSV; no rows where it is neither."""
    records, framework = _records(text)
    if not records:
        return [], "", False, []
    rows, notes = _rows(records)
    return rows, framework, framework in ("mmengine", "detectron2"), notes


def _records(text: str) -> tuple[list[Mapping[str, Any]], str]:
    stripped = text.lstrip()
    if stripped.startswith("{"):
        lines, _ = json_lines(text)
        keys = {key for line in lines[:50] for key in line}
        if "_step" in keys or "_runtime" in keys:
            return list(lines), "wandb"
        if "total_loss" in keys and "iteration" in keys:
            return list(lines), "detectron2"
        # mmengine marks validation lines by mode, or by having no time
        return [
            line for line in lines if line.get("mode", "train") == "train"
        ], "mmengine" if "data_time" in keys else "json"
    head = stripped.split("\n", 1)[0]
    names = [name.strip().strip('"') for name in head.split(",")]
    if len(names) >= 2 and not any(re.fullmatch(r"[-\d.]+", name) for name in names):
        lowered = {name.lower() for name in names}
        timed = any(_kind(name)[0] in ("step", "data") for name in names)
        if timed or {"_step", "_runtime"} <= lowered or ({"step", "_runtime"} <= lowered):
            table = csv.DictReader(stripped.splitlines())
            return [{key: _cell(value) for key, value in row.items() if key} for row in table], (
                "wandb" if lowered & {"_step", "_runtime", "_timestamp"} else "csv"
            )
    return [], ""


def _cell(value: str | Sequence[str] | None) -> object:
    if not isinstance(value, str):
        return None
    try:
        return float(value)
    except ValueError:
        return value or None


def _leaf(key: str) -> str:
    # a wandb export prefixes the run's name: "happy-sun-7 - train/data_time"
    name = key.rsplit(" - ", 1)[-1]
    if name.lower().rsplit("/", 1)[-1] in ("s", "sec"):
        return name.lower()
    return name.rsplit("/", 1)[-1].rsplit(".", 1)[-1].strip().lower().replace("-", "_").replace(" ", "_")


def _kind(key: str) -> tuple[str | None, float]:
    if re.search(r"(?:^|[/ ])(?:val|valid|validation|eval|test)\b", key, re.IGNORECASE) or key.endswith(
        ("__MIN", "__MAX")
    ):
        return None, 1.0
    leaf = _leaf(key)
    if match := _STEP_TIME.match(leaf):
        return "step", _SCALE[match["unit"]]
    if match := _DATA_TIME.match(leaf):
        return "data", _SCALE[match["unit"]]
    return ("rate", 1.0) if _RATE.match(leaf) else (None, 1.0)


def _first(record: Mapping[str, Any], kinds: Iterable[tuple[str, float]]) -> float | None:
    for key, scale in kinds:
        value = number(record.get(key))
        if value == value and value >= 0:
            return value * scale
    return None


def _rows(records: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[str]]:
    keys = list(dict.fromkeys(key for record in records for key in record))
    named: dict[str, list[tuple[str, float]]] = {"step": [], "data": [], "rate": []}
    for key in keys:
        kind, scale = _kind(key)
        if kind is not None:
            named[kind].append((key, scale))
    step_key = next((key for wanted in _STEP for key in keys if key.lower() == wanted), None)
    notes: list[str] = []
    rows: list[Row] = []
    for record in records:
        step = number(record.get(step_key)) if step_key else float("nan")
        epoch = number(record.get("epoch"))
        step_s, data_s = _first(record, named["step"]), _first(record, named["data"])
        rows.append(
            Row(
                step=int(step) if step == step else None,
                epoch=int(epoch) if epoch == epoch else None,
                step_s=step_s,
                data_s=data_s,
                samples_per_s=_first(record, named["rate"]),
                t_ns=time_ns(record) if any(k in record for k in ("_timestamp", "timestamp", "ts")) else None,
                absolute=True,
            )
        )
    if not any(row.step_s is not None for row in rows):
        rows = _from_runtime(records, rows)
        notes = (
            ["no step time in the history: spacing of its rows over the steps between them"] if rows else []
        )
    return [row for row in rows if row.step_s is not None or row.data_s is not None], notes


def _from_runtime(records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[Row]:
    """Seconds a step from wandb's ``_runtime`` and step columns, where no step time was logged."""
    out: list[Row] = []
    before: tuple[float, int] | None = None
    for record, row in zip(records, rows, strict=True):
        runtime = number(record.get("_runtime"))
        if runtime != runtime or row.step is None:
            continue
        if before is not None and row.step > before[1] and runtime > before[0]:
            spacing = (runtime - before[0]) / (row.step - before[1])
            out.append(
                Row(row.step, row.epoch, spacing, row.data_s, row.samples_per_s, row.t_ns, row.absolute)
            )
        before = (runtime, row.step)
    return out
