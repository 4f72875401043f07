"""Writes docs/rules.md from the rule files: ``make docs``. With ``--check`` it only says whether the page is up to date."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from tracelens.diagnose.rules import Rule, load_rules

PAGE = Path(__file__).resolve().parent / "rules.md"
_GROUPS = {
    "load": "Loading", "transfer": "Copies", "host": "Host", "compute": "Compute", "memory": "Memory",
    "communication": "Communication", "healthy": "Healthy", "quality": "Quality of the recording",
}  # fmt: skip


def page(rules: dict[str, Rule]) -> str:
    """The page as Markdown: a table, then one section a rule."""
    ordered = sorted(rules.values(), key=lambda r: (list(_GROUPS).index(_group(r)), r.id))
    lines = [
        "# Rules",
        "",
        "Made from `rules/` by `make docs`. `tracelens rules show ID` prints the same.",
        "",
    ]
    lines += ["| rule | class | what it says |", "|---|---|---|"]
    lines += [f"| [{r.id}](#{_anchor(r.id)}) | {r.bottleneck or ''} | {r.title} |" for r in ordered]
    for group, members in groupby(ordered, key=_group):
        lines += ["", f"## {_GROUPS[group]}"]
        for rule in members:
            lines += ["", f"### {rule.id}", "", f"{rule.title}.", "", *_conditions(rule)]
            for title, key in (("Why", "why"), ("Fix", "fix"), ("False positives", "false_positives")):
                text = " ".join(str(rule.doc.get(key, "")).split())
                lines += ["", f"{title}: {text}"] if text else []
            sources = rule.doc.get("sources") or []
            lines += ["", "Sources: " + "; ".join(map(str, sources))] if sources else []
    return "\n".join(lines) + "\n"


def _group(rule: Rule) -> str:
    return rule.id.split(".")[0]


def _anchor(name: str) -> str:
    return name.replace(".", "").lower()


def _conditions(rule: Rule) -> list[str]:
    parts = [("applies where", " and ".join(f"`{c}`" for c in rule.applies)),
             ("fires when", " and ".join(f"`{c}`" for c in rule.all)),
             ("and one of" if rule.all else "fires when one of", ", ".join(f"`{c}`" for c in rule.any)),
             ("unless", " or ".join(f"`{c}`" for c in rule.unless)),
             ("needs", ", ".join(f"`{name}`" for name in rule.requires)),
             ("silences", ", ".join(f"`{name}`" for name in rule.supersedes))]  # fmt: skip
    beside = [] if rule.may_be_cause else ["- a finding beside the verdict, never its cause"]
    return [f"- {label} {text}" for label, text in parts if text] + beside


def main() -> int:
    """Writes the page, or with ``--check`` returns 1 where it is stale."""
    text = page(load_rules())
    if "--check" in sys.argv[1:]:
        return int(not PAGE.is_file() or PAGE.read_text("utf-8") != text)
    PAGE.write_text(text, "utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
