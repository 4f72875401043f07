"""The loader measured alone at a few worker counts (``loader-points.json`` of a bundle's rank)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "loader-points.json"
_SCHEMA = "tracelens.loader-points/"


@dataclass(frozen=True, slots=True)
class LoaderPoint:
    """One worker count: ms a batch of the loader alone, over so many batches; ``None`` is unknown."""

    num_workers: int
    ms_per_batch: float
    batches: int
    samples_per_batch: float | None
    bytes_per_batch: float | None
    first_batch_ms: float | None

    @property
    def samples_per_s(self) -> float | None:
        """Throughput of the loader alone."""
        return None if self.samples_per_batch is None else 1000 * self.samples_per_batch / self.ms_per_batch


@dataclass(frozen=True, slots=True)
class LoaderPoints:
    """All points of one loader; ``num_workers`` is the job's own setting, ``skipped`` says what was not tried."""

    points: tuple[LoaderPoint, ...]
    num_workers: int | None = None
    cores: int | None = None
    dataset: str | None = None
    skipped: tuple[tuple[int, str], ...] = ()

    @property
    def by_workers(self) -> dict[int, float]:
        """Milliseconds a batch by worker count: what ``loader_fit.fit_parallel`` takes, as items."""
        return {point.num_workers: point.ms_per_batch for point in self.points}


def read_loader_points(folder: Path) -> LoaderPoints | None:
    """The points in a rank's folder; None where none were measured or the file is damaged."""
    try:
        data = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, Mapping) or not str(data.get("schema")).startswith(_SCHEMA):
        return None
    listed = data.get("points")
    points = [point for point in map(_point, listed if isinstance(listed, list) else []) if point is not None]
    if not points:
        return None
    skipped = tuple(
        (int(one["num_workers"]), str(one.get("reason")))
        for one in data.get("skipped") or ()
        if isinstance(one, Mapping) and isinstance(one.get("num_workers"), int)
    )
    dataset = data.get("dataset")
    return LoaderPoints(
        tuple(sorted(points, key=lambda point: point.num_workers)), _whole(data.get("num_workers")),
        _whole(data.get("cores")), str(dataset) if dataset else None, skipped,
    )  # fmt: skip


def _point(record: Any) -> LoaderPoint | None:
    if not isinstance(record, Mapping):
        return None
    workers, cost = _whole(record.get("num_workers")), _positive(record.get("ms_per_batch"))
    if workers is None or workers < 0 or cost is None:
        return None
    return LoaderPoint(
        workers, cost, _whole(record.get("batches")) or 0, _positive(record.get("samples_per_batch")),
        _positive(record.get("bytes_per_batch")), _positive(record.get("first_batch_ms")),
    )  # fmt: skip


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
