"""A GitHub-flavoured block for a pull request."""

from __future__ import annotations

import re

from tracelens.model import PHASES, Recommendation, Result
from tracelens.render.display import Display, run_name, set_command, top_change
from tracelens.render.sanitize import clean, one_line, shorten
from tracelens.render.words import load_words
from tracelens.resources import data_dir

_ROWS = 8
_NOTES = 8
_TEXT = 400  # characters of one text: the block stays a few dozen lines
_SNIPPET_LINES = 25
_MARKUP = re.compile(r"(^[-+#>]|[\\`*_{}\[\]|~$])")
_ZERO_WIDTH = "\u200b"
# what GitHub turns into a link or a notification even without markup: @name, #12, GH-12, addresses
_AUTOLINK = re.compile(r"@(?=\w)|(?<=[#])(?=\d)|(?<=\bGH)-(?=\d)|(?<=\bwww)(?=\.)|:(?=//)", re.IGNORECASE)


def markdown_block(result: Result) -> str:
    """The verdict, what to change and what to expect, in a few dozen lines; data is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(data_dir("reports") / "markdown"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is Markdown; every value below went through escape() or code()
    )
    show = Display(load_words())
    plan = top_change(result)
    snippet = clean(plan.snippet).strip("\n") if plan is not None and plan.snippet else ""
    lines = snippet.splitlines()
    if len(lines) > _SNIPPET_LINES:
        snippet = "\n".join([*lines[:_SNIPPET_LINES], "# ... the report has the rest"])
    command = set_command(plan.set_flags) if plan is not None else None
    text = environment.get_template("block.md.j2").render(
        headline=escape(result.verdict.headline),
        about=_about(result, show),
        rows=_rows(result, show),
        phases=_phases(result, show),
        snippet=snippet,
        fence="`" * max(3, _longest_run(snippet) + 1),
        command=code(command) if command else "",
        notes=_notes(result, show),
        footer=_footer(result, show),
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def escape(text: str, limit: int = _TEXT) -> str:
    """Data as plain text on one line: no markup, no HTML, no table cell, no mention, reference or link."""
    text = _AUTOLINK.sub(lambda match: match.group() + _ZERO_WIDTH, shorten(one_line(text), limit))
    text = _MARKUP.sub(r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: str, limit: int = _TEXT) -> str:
    """Data as inline code, also inside a table cell."""
    text = shorten(one_line(text), limit)
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    # inside a table GitHub ends the cell at a bar even in code; outside one the backslash would show
    return f"{fence}{pad}{text}{pad}{fence}"


def _cell(text: str) -> str:
    return code(text, 80).replace("|", "\\|")


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


def _about(result: Result, show: Display) -> str:
    verdict = result.verdict
    parts = [f"**{show.words.known('bottleneck', verdict.bottleneck)}**"]
    if verdict.cause:
        parts[0] += f" ({code(verdict.cause, 80)})"
    parts.append(f"confidence {verdict.confidence_word} ({verdict.confidence:.2f})")
    parts.append(f"step {show.ms(result.steps.mean_ms)} mean, {show.ms(result.steps.median_ms)} median")
    if result.throughput.samples_per_s is not None:
        parts.append(show.rate(result.throughput.samples_per_s))
    parts.append(f"GPU busy {show.percent(result.gpu.busy)}")
    return " · ".join(parts)


def _predicted(speedup: float | None, interval: tuple[float, float] | None, show: Display) -> str:
    if speedup is None:
        return show.words("unknown")
    between = show.interval(interval)
    return f"**{show.ratio(speedup)}**" + (f" ({between})" if between else "")


def _limit(bottleneck: str | None, show: Display) -> str:
    return show.words.known("bottleneck", bottleneck)


def _rows(result: Result, show: Display) -> list[tuple[str, ...]]:
    rows = [_recommendation(one, show) for one in result.recommendations[:_ROWS]]
    if len(result.recommendations) > _ROWS:
        rows.append((f"{len(result.recommendations) - _ROWS} more in the report", "", "", "", ""))
    plan = result.plan
    if plan is not None and len(plan.parameters) > 1:
        names = " + ".join(_cell(name) for name in plan.parameters)
        predicted = _predicted(plan.predicted_speedup, plan.interval, show)
        rows.append((f"together: {names}", "", "", predicted, _limit(plan.next_bottleneck, show)))
    return rows


def _recommendation(one: Recommendation, show: Display) -> tuple[str, ...]:
    predicted = _predicted(one.predicted_speedup, one.interval, show)
    if one.basis in ("bound", "literature") and one.predicted_speedup is not None:
        predicted += f", {show.words.known('basis', one.basis)}"
    values = [
        show.words("unknown") if v is None else _cell(show.value(v)) for v in (one.current, one.suggested)
    ]
    return (_cell(one.parameter), *values, predicted, _limit(one.next_bottleneck, show))


def _phases(result: Result, show: Display) -> str:
    known = [(name, share) for name in PHASES if (share := result.phases.get(name)) is not None]
    if not known:
        return ""
    shares = ", ".join(f"{show.words.known('phase', name)} {show.percent(share)}" for name, share in known)
    return f"Time by phase: {shares}"


def _notes(result: Result, show: Display) -> list[str]:
    notes = [escape(one.message) for one in result.quality]
    if result.what_if.kind == "bound":
        notes.append(f"Speed-ups with one resource free: {show.words('kind.bound')}")
    if result.missing:
        names = ", ".join(code(one.signal, 60) for one in result.missing[:6])
        notes.append(f"Not measured: {names}" + (" and more" if len(result.missing) > 6 else ""))
    for one in result.declined:
        value = "" if one.value is None else f" {code(show.value(one.value), 60)}"
        notes.append(f"Not worth doing: {code(one.parameter, 80)}{value}: {escape(one.reason)}")
    if len(notes) > _NOTES:
        notes = [*notes[: _NOTES - 1], f"{len(notes) - _NOTES + 1} more notes in the report"]
    return notes


def _footer(result: Result, show: Display) -> str:
    parts = [f"tracelens {escape(str(result.tool.get('version', '')), 40)}".strip()]
    name = run_name(result)
    if name:
        parts.append(escape(name, 80))
    if result.gpu.name:
        parts.append(escape(result.gpu.name, 80))
    steps = result.steps
    if steps.count is not None:
        steady = f" ({show.number(steps.steady)} steady)" if steps.steady is not None else ""
        parts.append(f"{show.number(steps.count)} steps{steady}")
    return " · ".join(parts)
