"""A bundle's loader.jsonl as columns: batches as the training process got them, and what it cost to start each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracelens.ingest.columns import Floats, Ints, floats, integers, is_whole

_WIDE = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of the training loader in order, NaN or -1 where unknown. ``wide_bytes``: of them in 32-bit floats or wider,
    ``double_bytes`` in 64-bit ones; ``sampler_ms`` is the sampler's time for the indices that were asked for with it."""

    epoch: Ints
    samples: Floats
    bytes: Floats
    wide_bytes: Floats
    double_bytes: Floats
    sampler_ms: Floats

    def __len__(self) -> int:
        return int(self.epoch.size)


@dataclass(frozen=True, slots=True)
class Passes:
    """One row a pass (an epoch) over the training loader: the sampler's first call, how much the process grew in it, and
    how many batches the pass had where it ran out. NaN where unknown."""

    sampler_ms: Floats
    sampler_bytes: Floats
    batches: Floats


def read_batches(lines: Sequence[Mapping[str, Any]], main: int | None) -> Batches:
    """The batches of loader ``main``."""
    rows = [r for r in lines if r.get("event") == "batch" and r.get("loader") == main]
    dtypes = [r.get("dtypes") for r in rows]
    return Batches(
        integers(rows, "epoch"),
        floats(rows, "samples"), floats(rows, "bytes"),
        np.array([_sum(d, _WIDE) for d in dtypes]), np.array([_sum(d, ("float64", "complex128")) for d in dtypes]),
        floats(rows, "sampler_ms"),
    )  # fmt: skip


def read_passes(lines: Sequence[Mapping[str, Any]], main: int | None) -> Passes:
    """The passes over loader ``main``. With workers the sampler is first asked while the iterator is made, else by ``next``."""
    mine = [r for r in lines if r.get("loader") == main]
    first: dict[int, Mapping[str, Any]] = {}
    ended: dict[int, Any] = {}
    for row in mine:
        epoch = row["epoch"] if is_whole(row.get("epoch")) else -1
        if row.get("sampler_bytes") is not None:
            first.setdefault(epoch, row)
        if row.get("event") == "iter_end":
            ended[epoch] = row.get("batches")
    rows = [{**first[e], "ended": ended.get(e)} for e in sorted(first)]
    return Passes(floats(rows, "sampler_ms"), floats(rows, "sampler_bytes"), floats(rows, "ended"))


def other_starts_ms(lines: Sequence[Mapping[str, Any]], main: int | None) -> float | None:
    """What all passes over other loaders with workers took until their first batch, in ms; None where there are none.

    Workers that are kept (``persistent_workers``) start once and are left out.
    """
    kept = {r.get("loader") for r in lines if r.get("event") == "loader" and r.get("persistent_workers")}
    started: dict[tuple[Any, Any], float] = {}
    first: dict[tuple[Any, Any], float] = {}
    for row in lines:
        key = (row.get("loader"), row.get("epoch"))
        if row.get("event") == "iter" and key[0] not in (main, None, *kept) and row.get("workers"):
            spent = row.get("start_ms")
            if isinstance(spent, int | float):
                started[key] = float(spent)
        elif row.get("event") == "batch" and key in started and key not in first:
            begin, end = row.get("t0"), row.get("t1")
            if isinstance(begin, int) and isinstance(end, int):
                first[key] = (end - begin) / 1e6
    return sum(started.values()) + sum(first.values()) if started else None


def _sum(dtypes: Any, names: Sequence[str]) -> float:
    if not isinstance(dtypes, Mapping):
        return np.nan
    sizes = [dtypes.get(name, 0) for name in names]
    return float(sum(s for s in sizes if isinstance(s, int | float)))
