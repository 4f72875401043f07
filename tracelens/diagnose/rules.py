"""Rules: one TOML file each, data only. Loading, checking, and overriding by a user's own folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from tracelens.errors import InputError
from tracelens.model import Bottleneck
from tracelens.resources import data_dir

OPERATORS = ("==", "!=", ">", ">=", "<", "<=")
_TOP = {
    "id",
    "title",
    "class",
    "phase",
    "requires",
    "min_steps",
    "supersedes",
    "since",
    "cause",
    "override",
    "applies",
    "when",
    "saving",
    "advice",
    "doc",
}
_CONDITION = {"signal", "op", "value", "of", "times"}
_DOC = {"why", "fix", "false_positives", "sources"}


@dataclass(frozen=True, slots=True)
class Condition:
    """``signal op value``, or ``signal op times * other signal``."""

    signal: str
    op: str
    value: float | int | bool | str | None = None
    of: str | None = None
    times: float = 1.0

    def __str__(self) -> str:
        right = f"{self.times:g} * {self.of}" if self.of else f"{self.value}"
        return f"{self.signal} {self.op} {right}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. It fires when all of ``all``, one of ``any`` (if given) and none of ``unless`` hold.

    Without ``may_be_cause`` it is a finding beside the verdict, never the verdict's cause.
    """

    id: str
    title: str
    bottleneck: Bottleneck | None
    phase: str | None
    requires: tuple[str, ...]
    min_steps: int
    supersedes: tuple[str, ...]
    since: str
    applies: tuple[Condition, ...]
    all: tuple[Condition, ...]
    any: tuple[Condition, ...]
    unless: tuple[Condition, ...]
    saving_whatif: Bottleneck | None
    saving_signal: str | None
    advice: str
    doc: Mapping[str, Any]
    source: str
    may_be_cause: bool = True

    @property
    def is_quality(self) -> bool:
        """Whether it speaks of the recording and not of the job."""
        return self.id.startswith("quality.")

    @property
    def evidence(self) -> tuple[str, ...]:
        """Signals shown with a finding: those its conditions test and its saving."""
        names = [c.signal for c in (*self.all, *self.any)] + (
            [self.saving_signal] if self.saving_signal else []
        )
        return tuple(dict.fromkeys(names))


def load_rules(folders: Sequence[Path] = ()) -> dict[str, Rule]:
    """The shipped rules and those of ``folders``, by id. Raises InputError for a broken or clashing rule."""
    rules = {rule.id: rule for rule in _read(sorted(data_dir("rules").rglob("*.toml")))[0]}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"--rules {folder} is not a folder of .toml rules")
        own, overriding = _read(sorted(folder.rglob("*.toml")))
        if not own:
            raise InputError(f"--rules {folder} holds no .toml rule")
        for rule in own:
            if rule.id in rules and rule.id not in overriding:
                raise InputError(
                    f"{rule.source}: rule {rule.id} exists already; set `override = true` to replace it"
                )
            rules[rule.id] = rule
    return rules


def _read(paths: Iterable[Path]) -> tuple[list[Rule], set[str]]:
    rules: list[Rule] = []
    overriding: set[str] = set()
    for path in paths:
        try:
            table = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not valid TOML ({error})") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        rules.append(parse_rule(table, str(path)))
        if table.get("override") is True:
            overriding.add(rules[-1].id)
    return rules, overriding


def parse_rule(table: Mapping[str, Any], source: str) -> Rule:
    """A rule from its TOML table. Raises InputError naming the file and the field."""

    def bad(what: str) -> InputError:
        return InputError(f"{source}: {what}")

    unknown = set(table) - _TOP
    if unknown:
        raise bad(f"unknown field {sorted(unknown)[0]!r}")
    for key in ("id", "title", "when", "doc"):
        if key not in table:
            raise bad(f"field {key!r} is missing")
    for key in ("id", "title"):
        if not isinstance(table[key], str) or not table[key].strip():
            raise bad(f"{key} {table[key]!r} is no text")
    group = table.get("class")
    if group is not None and group not in get_args(Bottleneck):
        raise bad(f"class {group!r} is none of {', '.join(get_args(Bottleneck))}")
    when, saving, doc = table["when"], table.get("saving", {}), table["doc"]
    if (
        not isinstance(when, dict)
        or set(when) - {"all", "any", "unless"}
        or not (when.get("all") or when.get("any"))
    ):
        raise bad("[when] needs `all` or `any`, lists of {signal, op, value}")
    if not isinstance(saving, dict) or set(saving) - {"whatif", "signal"}:
        raise bad("[saving] takes `whatif` or `signal`")
    if saving.get("whatif") is not None and saving["whatif"] not in get_args(Bottleneck):
        raise bad(f"[saving] whatif {saving['whatif']!r} is no class")
    if not isinstance(doc, dict) or set(doc) - _DOC or "why" not in doc:
        raise bad("[doc] takes why (required), fix, false_positives, sources")
    lists = {name: _conditions(when.get(name, []), bad) for name in ("all", "any", "unless")}
    applies, advice = table.get("applies", {}), table.get("advice", {})
    if not isinstance(applies, dict) or set(applies) - {"all"}:
        raise bad("[applies] takes `all`, a list of {signal, op, value}")
    if not isinstance(advice, dict) or set(advice) - {"text"}:
        raise bad("[advice] takes `text`")
    min_steps = table.get("min_steps", 0)
    if type(min_steps) is not int:
        raise bad(f"min_steps {min_steps!r} is no whole number")
    if type(table.get("cause", True)) is not bool:
        raise bad(f"cause {table['cause']!r} is neither true nor false")
    for key in ("requires", "supersedes"):
        if not isinstance(table.get(key, []), list) or not all(
            isinstance(x, str) for x in table.get(key, [])
        ):
            raise bad(f"{key} is a list of names")
    return Rule(
        id=str(table["id"]), title=str(table["title"]), bottleneck=group, phase=table.get("phase"),
        requires=tuple(table.get("requires", ())), min_steps=min_steps,
        supersedes=tuple(table.get("supersedes", ())), since=str(table.get("since", "")),
        applies=_conditions(applies.get("all", []), bad), **lists,
        saving_whatif=saving.get("whatif"), saving_signal=saving.get("signal"),
        advice=" ".join(str(advice.get("text", "")).split()),
        doc=dict(doc), source=source, may_be_cause=table.get("cause", True),
    )  # fmt: skip


def _conditions(entries: Any, bad: Any) -> tuple[Condition, ...]:
    conditions = []
    if not isinstance(entries, list):
        raise bad("conditions are lists of {signal, op, value}")
    for entry in entries:
        if (
            not isinstance(entry, dict)
            or set(entry) - _CONDITION
            or "signal" not in entry
            or entry.get("op") not in OPERATORS
        ):
            raise bad(
                f"condition {entry!r} needs signal, op ({' '.join(OPERATORS)}) and value, or of and times"
            )
        if ("value" in entry) == ("of" in entry):
            raise bad(f"condition on {entry['signal']} needs exactly one of value and of")
        times = entry.get("times", 1.0)
        if type(times) not in (int, float):
            raise bad(f"condition on {entry['signal']}: times {times!r} is no number")
        conditions.append(
            Condition(
                entry["signal"],
                entry["op"],
                entry.get("value"),
                entry.get("of"),
                float(times),
            )
        )
    return tuple(conditions)
