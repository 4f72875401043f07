"""Display strings: ``tracelens.units`` writes the numbers, this adds the language and cleans the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tracelens import units
from tracelens.model import Plan, Recommendation, Result
from tracelens.render.sanitize import clean, one_line
from tracelens.render.words import Words


@dataclass(frozen=True)
class Display:
    """Formats the values of one report; ``None`` is always the language's word for unknown."""

    words: Words

    def ms(self, value: float | None) -> str:
        """A duration given in milliseconds."""
        return self._or_unknown(value, units.milliseconds)

    def percent(self, value: float | None) -> str:
        """A share, 0..1."""
        return self._or_unknown(value, units.percent)

    def ratio(self, value: float | None) -> str:
        """A speed-up."""
        return self._or_unknown(value, units.ratio)

    def size(self, value: float | None) -> str:
        """Bytes."""
        return self._or_unknown(value, units.size)

    def number(self, value: float | None) -> str:
        """A bare number."""
        return self._or_unknown(value, units.number)

    def rate(self, value: float | None) -> str:
        """Samples per second."""
        return self._or_unknown(value, units.rate)

    def quantity(self, value: object, unit: str | None) -> str:
        """An evidence value with its unit."""
        if value is None:
            return self.words("unknown")
        return (
            self.value(value)
            if isinstance(value, list | tuple | Mapping)
            else clean(units.quantity(value, unit))
        )

    def value(self, value: object) -> str:
        """Any JSON value as a person writes it; True and False as in Python, since they are arguments."""
        if value is None:
            return self.words("unknown")
        if isinstance(value, bool):
            return str(value)
        if isinstance(value, int | float):
            # an argument (a batch size, a port, a seed) is written as in code, without separators
            return str(value) if isinstance(value, int) else f"{value:g}"
        if isinstance(value, Mapping):
            return ", ".join(f"{clean(str(key))}={self.value(item)}" for key, item in value.items())
        if isinstance(value, list | tuple):
            return ", ".join(self.value(item) for item in value)
        return clean(str(value))

    def interval(self, pair: tuple[float, float] | None) -> str | None:
        """``between 1.52x and 1.71x``, or None."""
        if pair is None:
            return None
        return self.words("ui.between", low=units.ratio(pair[0]), high=units.ratio(pair[1]))

    def then(self, bottleneck: str | None) -> str | None:
        """What limits after the change, as a phrase; None where it is unknown."""
        if bottleneck is None or bottleneck == "inconclusive":
            return None
        if bottleneck == "none":
            return self.words("ui.then_balanced")
        return self.words("ui.then_limited", what=self.words.known("bottleneck", bottleneck))

    def _or_unknown(self, value: float | None, write: Callable[[float], str]) -> str:
        return self.words("unknown") if value is None else write(value)


def top_change(result: Result) -> Plan | None:
    """The plan; where there is none, the best single recommendation put as one."""
    if result.plan is not None and result.plan.parameters:
        return result.plan
    if not result.recommendations:
        return None
    best = max(result.recommendations, key=lambda one: one.predicted_speedup or 0.0)
    return Plan(
        parameters=(best.parameter,),
        predicted_speedup=best.predicted_speedup,
        interval=best.interval,
        snippet=best.snippet,
        next_bottleneck=best.next_bottleneck,
        set_flags=(best.set_flag,) if best.set_flag else (),
    )


def plan_parts(result: Result, plan: Plan) -> tuple[Recommendation | str, ...]:
    """The recommendations a plan names, in its order; a bare name where there is no such one."""
    by_name = {one.parameter: one for one in reversed(result.recommendations)}
    return tuple(by_name.get(name, name) for name in plan.parameters)


def run_name(result: Result) -> str | None:
    """A short name of what was analysed: the last path part of the first input that looks like one."""
    for key in ("name", "bundle", "path", "trace", "paths", "traces", "files"):
        value = result.inputs.get(key)
        if isinstance(value, Mapping):
            value = next(iter(value.values()), None)
        if isinstance(value, list | tuple) and value:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return one_line(value.rstrip("/").rsplit("/", 1)[-1]) or None
    return None


def set_command(flags: tuple[str, ...]) -> str | None:
    """The command that tries settings without a code edit; a flag may come with or without ``--set``."""
    if not flags:
        return None
    parts = [f"--set {one_line(flag).removeprefix('--set').lstrip(' =')}" for flag in flags]
    return f"tracelens record {' '.join(parts)} -- CMD"
