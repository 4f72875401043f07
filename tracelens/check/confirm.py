"""Predicted beside measured: which recommendations of BEFORE did AFTER follow, and did they keep their word."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tracelens.check.comparison import Confirmation, Measured, Status
from tracelens.check.sides import Run
from tracelens.model import Curve, Plan, Recommendation, Result

# parameters that a recording shows, and where
_SETTINGS = (
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size", "drop_last", "in_order",
    "multiprocessing_context",
)  # fmt: skip
_FACTS = {
    "num_threads": "num_threads",
    "cpus_per_task": "usable_cores",
    "OMP_NUM_THREADS": "env.OMP_NUM_THREADS",
    "tf32": "flag.tf32",
    "cudnn_benchmark": "flag.cudnn_benchmark",
}


def visible(parameter: str) -> bool:
    """Whether a recording says what value a parameter has."""
    return parameter in _SETTINGS or parameter in _FACTS


def setting(run: Run, parameter: str) -> Any:
    """The value of a parameter in a run; None where the recording does not say."""
    if parameter in _SETTINGS:
        return run.settings.get(parameter)
    return run.facts.get(_FACTS[parameter]) if parameter in _FACTS else None


def confirm(before: Run, after: Run, measured: Measured | None) -> tuple[Confirmation, ...]:
    """One row a recommendation of BEFORE, then one for the plan where several were applied together."""
    rows = [_row(before, after, one) for one in before.result.recommendations]
    applied = [row for row in rows if row.status in ("as suggested", "another value")]
    if len(applied) == 1:
        rows = [_judged(row, measured) if row is applied[0] else row for row in rows]
    elif applied:
        note = "made together with others; only their joint effect was measured"
        rows = [dataclasses.replace(row, note=note) if row in applied else row for row in rows]
        rows.append(_joint(before.result.plan, applied, measured))
    return tuple(rows)


def _row(before: Run, after: Run, one: Recommendation) -> Confirmation:
    found = setting(after, one.parameter)
    base = Confirmation(
        one.parameter, one.suggested, found, "not applied", one.predicted_speedup, one.interval
    )
    status = _status(one, setting(before, one.parameter), found)
    if status == "not visible":
        return dataclasses.replace(base, status=status, note="a recording does not show this one")
    if status == "another value":
        predicted, interval = _from_curve(before.result, one.parameter, found)
        note = (
            "predicted for the value that was chosen" if predicted else "no prediction for the chosen value"
        )
        return dataclasses.replace(base, status=status, predicted=predicted, interval=interval, note=note)
    return dataclasses.replace(base, status=status)


def _status(one: Recommendation, today: Any, found: Any) -> Status:
    if not visible(one.parameter) or found is None:
        return "not visible"
    if _same(found, one.suggested):
        return "as suggested"
    before = today if today is not None else one.current
    return "not applied" if _same(found, before) else "another value"


def _same(one: object, other: object) -> bool:
    try:
        return one == other or float(one) == float(other)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(one) == str(other)


def _from_curve(
    result: Result, parameter: str, value: Any
) -> tuple[float | None, tuple[float, float] | None]:
    """The speed-up that the predicted curve gives another value, with the curve's own band."""
    for curve in result.curves:
        if curve.parameter == parameter and curve.current is not None:
            today = _at(curve, curve.current)
            chosen = _at(curve, value)
            if today is None or chosen is None or not curve.y[today] > 0:
                continue
            ratio = curve.y[chosen] / curve.y[today]
            if not curve.low or not curve.high or not curve.y[chosen] > 0:
                return ratio, None
            low, high = (band[chosen] / curve.y[chosen] for band in (curve.low, curve.high))
            return ratio, (ratio * low, ratio * high)
    return None, None


def _at(curve: Curve, value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return next((index for index, x in enumerate(curve.x) if x == value), None)


def _judged(row: Confirmation, measured: Measured | None) -> Confirmation:
    if measured is None:
        return row
    if row.interval is None:
        return dataclasses.replace(row, measured=measured.ratio)
    low, high = row.interval
    return dataclasses.replace(
        row, measured=measured.ratio, inside=low <= measured.ratio <= high,
        overlap=measured.interval[0] <= high and low <= measured.interval[1],
    )  # fmt: skip


def _joint(plan: Plan | None, applied: list[Confirmation], measured: Measured | None) -> Confirmation:
    names = [row.parameter for row in applied]
    values: Mapping[str, object] = {row.parameter: row.suggested for row in applied}
    row = Confirmation(
        " + ".join(names), values, {r.parameter: r.found for r in applied}, "as suggested", None, None
    )
    whole = plan is not None and set(plan.parameters) == set(names)
    if whole and plan is not None and all(one.status == "as suggested" for one in applied):
        row = dataclasses.replace(row, predicted=plan.predicted_speedup, interval=plan.interval)
    else:
        row = dataclasses.replace(
            row, status="another value", note="not the plan as a whole: its joint prediction does not apply"
        )
    return _judged(row, measured)
