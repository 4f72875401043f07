"""A comparison for a terminal, for a pull request, and as an HTML file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tracelens.check.comparison import Comparison
from tracelens.check.view import build
from tracelens.render.display import Display
from tracelens.render.tables import Table
from tracelens.render.words import load_words

_COLORS = {"faster": 32, "slower": 31, "unchanged": 33, "unknown": 33, "not comparable": 35}


def terminal_text(found: Comparison, *, width: int = 100, color: bool = False) -> str:
    """A few tables for a terminal; the first line is the answer."""
    page = build(found, Display(load_words()))
    head = f"\x1b[1;{_COLORS[page.outcome]}m{page.headline}\x1b[0m" if color else page.headline
    lines = [head, page.title]
    for table in (page.speed, page.changes, page.phases, page.predictions):
        if table is not None:
            lines += ["", *_aligned(table, width)]
            if table.note:
                lines += textwrap.wrap(table.note, width)
    if page.notes:
        lines.append("")
        for note in page.notes:
            lines += textwrap.wrap(note, width, initial_indent="note: ", subsequent_indent="      ")
    return "\n".join(lines)


def _aligned(table: Table, width: int) -> list[str]:
    heads = [column.title for column in table.columns]
    rows = [heads, *(list(row) for row in table.rows)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(heads))]
    spare = width - 2 * (len(heads) - 1)
    while sum(widths) > spare and max(widths) > 12:
        widest = widths.index(max(widths))
        widths[widest] -= 1
    lines = [table.caption]
    for row in rows:
        cells = [textwrap.wrap(text, size) or [""] for text, size in zip(row, widths, strict=True)]
        for part in range(max(map(len, cells))):
            texts = [
                _set(cell[part] if part < len(cell) else "", size, column.kind)
                for cell, size, column in zip(cells, widths, table.columns, strict=True)
            ]
            lines.append("  ".join(texts).rstrip())
    return lines


def _set(text: str, width: int, kind: str) -> str:
    return text.rjust(width) if kind == "num" else text.ljust(width)


def markdown_text(found: Comparison) -> str:
    """A block for a pull request; data is escaped."""
    from tracelens.render.markdown import code, escape

    page = build(found, Display(load_words()))
    lines = [f"### {escape(page.headline)}", "", escape(page.title)]
    for table in (page.predictions, page.speed, page.changes, page.phases):
        if table is None:
            continue
        lines += ["", f"**{table.caption}**", "", _row([column.title for column in table.columns])]
        lines.append(_row(["---:" if column.kind == "num" else "---" for column in table.columns]))
        for row in table.rows:
            lines.append(_row([
                code(text).replace("|", "\\|") if column.kind == "code" else escape(text)
                for text, column in zip(row, table.columns, strict=True)
            ]))  # fmt: skip
    notes = [f"- {escape(note)}" for note in page.notes]
    if notes:
        lines += ["", *notes]
    return "\n".join([*lines, "", f"<sub>tracelens {escape(page.version, 40)}</sub>", ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def html_text(found: Comparison) -> str:
    """One HTML document: no network, complete without JavaScript."""
    from markupsafe import Markup

    from tracelens.check.charts import phase_bars, prediction_bars
    from tracelens.render.html import template_environment
    from tracelens.resources import data_dir

    words = load_words()
    show = Display(words)
    style = (data_dir("reports") / "html" / "report.css").read_text("utf-8").strip()
    text = (
        template_environment()
        .get_template("compare.html.j2")
        .render(
            page=build(found, show),
            found=found,
            words=words,
            style=Markup(style),  # our own file
            phase_chart=phase_bars(found, show),
            prediction_chart=prediction_bars(found, show),
        )
    )
    return text.encode("utf-8", "replace").decode("utf-8")
