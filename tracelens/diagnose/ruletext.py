"""A rule as a page of text: the same file serves findings, ``rules show`` and the documentation."""

from __future__ import annotations

import textwrap

from tracelens.diagnose.rules import Rule


def rule_text(rule: Rule, width: int = 100) -> str:
    """The rule in plain text, sections separated by blank lines."""
    facts = [f"{rule.id}: {rule.title}", ""]
    facts.append(
        f"class: {rule.bottleneck or 'none (recording quality)'}    phase: {rule.phase or '-'}    since: {rule.since or '-'}"
    )
    conditions = [f"  {c}" for c in rule.all]
    if rule.any:
        conditions.append("  and one of")
        conditions += [f"    {c}" for c in rule.any]
    if rule.unless:
        conditions.append("  unless")
        conditions += [f"    {c}" for c in rule.unless]
    blocks = ["\n".join(facts)]
    if rule.applies:
        blocks.append("applies where\n" + "\n".join(f"  {c}" for c in rule.applies))
    blocks.append("fires when\n" + "\n".join(conditions))
    if rule.requires:
        blocks.append(
            "needs: "
            + ", ".join(rule.requires)
            + (f"; at least {rule.min_steps} steady steps" if rule.min_steps else "")
        )
    saving = rule.saving_signal or (f"the what-if of {rule.saving_whatif}" if rule.saving_whatif else None)
    if saving:
        blocks.append(f"saving: {saving}")
    if not rule.may_be_cause:
        blocks.append("a finding beside the verdict, never its cause")
    if rule.supersedes:
        blocks.append("silences: " + ", ".join(rule.supersedes))
    for title, key in (("why", "why"), ("fix", "fix"), ("false positives", "false_positives")):
        text = " ".join(str(rule.doc.get(key, "")).split())
        if text:
            blocks.append(f"{title}\n" + textwrap.indent(textwrap.fill(text, width - 2), "  "))
    if rule.advice:
        blocks.append("says\n" + textwrap.indent(textwrap.fill(rule.advice, width - 2), "  "))
    sources = rule.doc.get("sources") or []
    if sources:
        blocks.append("sources: " + "; ".join(str(s) for s in sources))
    return "\n\n".join(blocks)
