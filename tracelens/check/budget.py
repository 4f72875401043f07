"""``tracelens check``: a recording against limits kept in a file, and against earlier recordings.

A budget is TOML:

    [[limit]]
    value = "steps.mean_ms"        # a number or word of the result, as `report --json` writes it
    max = 80                       # or min, equals, not_in
    [[limit]]
    value = "verdict.cause"
    not_in = ["load.main_process", "load.too_few_workers"]
    [baseline]
    max_slowdown = 0.05            # against the recordings given with --baseline

What was not measured has not passed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.check.compare import compare
from tracelens.check.sides import Side
from tracelens.errors import InputError
from tracelens.units import percent, ratio

_TESTS = ("max", "min", "equals", "not_in")


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of a budget: the path of a value in the result, and what it must be."""

    value: str
    test: str
    bound: Any


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits, and by which share the run may be slower than its baseline; ``None``: no baseline is wanted."""

    limits: tuple[Limit, ...]
    max_slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one limit."""

    name: str
    passed: bool
    message: str


def read_budget(path: Path) -> Budget:
    """Raises InputError, naming the line that makes no sense."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    unknown = set(data) - {"limit", "baseline"}
    if unknown:
        raise InputError(
            f"{path}: unknown table {sorted(unknown)[0]!r}; a budget has [[limit]] and [baseline]"
        )
    listed = data.get("limit", [])
    if not isinstance(listed, list):
        raise InputError(f"{path}: write [[limit]], with two brackets")
    limits = tuple(limit for entry in listed for limit in _limits(path, entry))
    slowdown = _slowdown(path, data.get("baseline"))
    if not limits and slowdown is None:
        raise InputError(f"{path} sets no limit; write a [[limit]] with value and max, or a [baseline]")
    return Budget(limits, slowdown)


def _limits(path: Path, entry: Any) -> list[Limit]:
    value = entry.get("value") if isinstance(entry, Mapping) else None
    if not isinstance(value, str):
        raise InputError(f'{path}: a [[limit]] needs value = "...", for example "steps.mean_ms"')
    tests = {name: bound for name, bound in entry.items() if name != "value"}
    for name, bound in tests.items():
        number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if (
            name not in _TESTS
            or (name in ("max", "min") and not number)
            or (name == "not_in" and not isinstance(bound, list))
        ):
            raise InputError(
                f"{path}: {value}: {name} = {bound!r} makes no sense; give max or min a number, equals a value, not_in a list"
            )
    if not tests:
        raise InputError(f"{path}: {value} has no limit; give max, min, equals or not_in")
    return [Limit(value, name, bound) for name, bound in tests.items()]


def _slowdown(path: Path, table: Any) -> float | None:
    if table is None:
        return None
    value = table.get("max_slowdown") if isinstance(table, Mapping) else None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value < 0
        or set(table) != {"max_slowdown"}
    ):
        raise InputError(f"{path}: [baseline] holds max_slowdown, a share such as 0.05")
    return float(value)


def check(side: Side, budget: Budget, baselines: Sequence[Side] = ()) -> tuple[Check, ...]:
    """One outcome a limit, and one for the baseline. InputError where the budget wants one and none was given."""
    result = side.first.result.to_json()
    found = [_check(limit, result) for limit in budget.limits]
    if budget.max_slowdown is not None:
        if not baselines:
            raise InputError("the budget has a [baseline], but no recording was given; add --baseline PATH")
        runs = tuple(run for baseline in baselines for run in baseline.runs)
        found.append(_against(Side("baseline", runs), side, budget.max_slowdown))
    return tuple(found)


def _check(limit: Limit, result: Mapping[str, Any]) -> Check:
    name = f"{limit.value} {limit.test} {limit.bound}"
    known, value = _lookup(result, limit.value)
    if not known:
        return Check(name, False, f"the result has no {limit.value}; `report --json` shows the names")
    if value is None:
        return Check(name, False, f"{limit.value} was not measured")
    try:
        passed = _holds(limit, value)
    except TypeError:
        return Check(name, False, f"{limit.value} is {value!r}, which has no order")
    return Check(name, passed, f"{limit.value} is {value}")


def _holds(limit: Limit, value: Any) -> bool:
    if limit.test == "max":
        return bool(value <= limit.bound)
    if limit.test == "min":
        return bool(value >= limit.bound)
    return bool(value == limit.bound) if limit.test == "equals" else value not in limit.bound


def _lookup(result: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    at: Any = result
    for part in path.split("."):
        if isinstance(at, Mapping) and part in at:
            at = at[part]
        elif isinstance(at, list) and part.isdigit() and int(part) < len(at):
            at = at[int(part)]
        else:
            return at is None, None  # below something unknown everything is unknown
    return True, at


def _against(baseline: Side, side: Side, tolerance: float) -> Check:
    """Slower than allowed, and more surely than by the noise of the steps."""
    name = f"at most {percent(tolerance)} slower than the baseline"
    found = compare(baseline, side)
    if found.measured is None:
        return Check(name, False, found.headline.rstrip("."))
    value, (low, high) = found.measured.ratio, found.measured.interval
    said = f"{ratio(value)} the baseline's throughput, between {ratio(low)} and {ratio(high)}"
    return Check(name, value * (1 + tolerance) >= 1.0 or high >= 1.0, said)


def checks_text(checks: Sequence[Check]) -> str:
    """One line an outcome."""
    return "\n".join(f"{'pass' if one.passed else 'FAIL'}  {one.name}: {one.message}" for one in checks)


def junit_xml(checks: Sequence[Check], name: str) -> str:
    """The outcomes as a JUnit test suite, which CI systems show."""
    from xml.etree import ElementTree

    from tracelens.render.sanitize import clean

    suite = ElementTree.Element("testsuite", {
        "name": clean(f"tracelens check {name}"), "tests": str(len(checks)),
        "failures": str(sum(not one.passed for one in checks)), "errors": "0",
    })  # fmt: skip
    for one in checks:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "tracelens.check", "name": clean(one.name)}
        )
        if not one.passed:
            ElementTree.SubElement(case, "failure", {"message": clean(one.message)})
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, "unicode") + "\n"
