"""Signals and what-ifs set directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.model import RESOURCES, Bottleneck
from tracelens.signals.signal import Signals
from tracelens.whatif.bounds import WhatIfs

STEP_MS = 100.0
_UNITS = {"_ms": "ms", "_share": "share", "_bytes": "bytes", "_gb_s": "GB/s", "_count": "count"}


def signals_of(values: Mapping[str, Any], **defaults: Any) -> Signals:
    """Signals with these values; "missing" marks one as not recorded. A step takes 100 ms, ten are steady."""
    out = Signals()
    for name, value in {"steps.mean_ms": STEP_MS, "steps.steady": 10, **defaults, **values}.items():
        unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
        out.add(name, None if value == "missing" else value, unit, "test")
    return out


def whatifs_of(kind: Any = "bound", error: float | None = None, **saving_ms: float | None) -> WhatIfs:
    """What-ifs of a 100 ms step; a class that is not given saves 90 ms, so that it caps nothing."""
    saving: dict[Bottleneck, float | None] = {name: saving_ms.get(name, 90.0) for name in RESOURCES}
    return WhatIfs(STEP_MS, saving, kind, error)
