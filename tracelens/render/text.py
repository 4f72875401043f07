"""The terminal summary: the verdict on one line, then the few lines that say what to do."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass

from tracelens import units
from tracelens.model import PHASES, Result
from tracelens.render.display import Display, plan_parts, set_command, top_change
from tracelens.render.sanitize import clean, one_line, shorten
from tracelens.render.words import load_words

_LETTERS = {"load": "L", "transfer": "T", "compute": "C", "communication": "N", "host": "H", "other": "."}
_BLOCKS = {"load": "▒", "transfer": "░", "compute": "█", "communication": "▚", "host": "▄", "other": "·"}
_COLORS = {"load": 33, "transfer": 36, "compute": 32, "communication": 35, "host": 31, "other": 90}
_GLUE = "\u00a0"
_MARGIN = 10  # columns of the label
_SNIPPET_LINES = 3
_REASONS = 3  # why signals are missing, the commonest first


@dataclass(frozen=True)
class _Ink:
    on: bool

    def __call__(self, text: str, *codes: int) -> str:
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.on else text


def terminal_summary(result: Result, *, width: int = 100, color: bool = False, unicode: bool = True) -> str:
    """A few lines for a terminal, no trailing line end; ``unicode=False`` for a terminal that has ASCII only.

    The first line is the verdict. Colour is the caller's choice (a terminal, no ``NO_COLOR``).
    """
    width = max(width, 40)
    show = Display(load_words())
    ink = _Ink(color)
    lines = [*_verdict(result, show, ink, width)]
    lines += _phases(result, ink, width, unicode)
    lines += _row("steps", _steps(result, show), ink, width)
    lines += _change(result, show, ink, width)
    lines += _notes(result, ink, width)
    text = "\n".join(lines)
    return text if unicode else text.replace("…", "...").encode("ascii", "replace").decode("ascii")


def _verdict(result: Result, show: Display, ink: _Ink, width: int) -> list[str]:
    verdict = result.verdict
    kind = show.words.known("bottleneck", verdict.bottleneck)
    sure = f"{verdict.confidence_word} confidence ({verdict.confidence:.2f})"
    cause = f"cause {one_line(verdict.cause)}, {sure}" if verdict.cause else sure
    if result.what_if.kind == "bound":
        cause += "; speed-ups are upper bounds from phase shares"
    headline = one_line(verdict.headline)
    # most headlines begin with the class; said once is enough
    tag = (
        ""
        if headline.lower().startswith(kind.lower())
        else f"{ink(f' {kind} ', 1, 7) if ink.on else f'[{kind}]'} "
    )
    return [
        f"{tag}{ink(headline, 1)}",
        *(ink(line, 2) for line in textwrap.wrap(cause, width)),
    ]


def _row(label: str, text: str, ink: _Ink, width: int) -> list[str]:
    lines = [line.replace(_GLUE, " ") for line in textwrap.wrap(text, width - _MARGIN)] or [""]
    head = ink(label.ljust(_MARGIN), 2)
    return [head + lines[0], *(" " * _MARGIN + line for line in lines[1:])]


def _phases(result: Result, ink: _Ink, width: int, unicode: bool) -> list[str]:
    known: dict[str, float] = {
        name: share for name in PHASES if (share := result.phases.get(name)) is not None
    }
    if not known:
        return _row("phases", units.MISSING, ink, width)
    glyphs = _BLOCKS if unicode else _LETTERS
    cells = _cells(known, min(width - _MARGIN, 60))
    bar = "".join(ink(glyphs[name] * count, _COLORS[name]) for name, count in cells.items())
    named = [
        f"{glyphs[name]} {name} {units.percent(share)}".replace(" ", _GLUE)
        for name, share in known.items()
        if share > 0
    ]
    return [ink("phases".ljust(_MARGIN), 2) + bar, *_row("", "   ".join(named), ink, width)]


def _cells(shares: dict[str, float], width: int) -> dict[str, int]:
    """Whole cells by largest remainder, so that the bar always has the same length for a sum of 1."""
    exact = {name: max(share, 0.0) * width for name, share in shares.items()}
    cells = {name: int(value) for name, value in exact.items()}
    left = min(round(sum(exact.values())), width) - sum(cells.values())
    for name in sorted(exact, key=lambda name: exact[name] - cells[name], reverse=True)[: max(left, 0)]:
        cells[name] += 1
    return cells


def _steps(result: Result, show: Display) -> str:
    steps = result.steps
    if steps.count is None and steps.mean_ms is None:
        text = f"steps {units.MISSING}"
    else:
        steady = f" ({show.number(steps.steady)} steady)" if steps.steady is not None else ""
        times = f"mean {show.ms(steps.mean_ms)}, median {show.ms(steps.median_ms)}"
        text = f"{show.number(steps.count)}{steady}, {times}"
    if result.throughput.samples_per_s is not None:
        text += f", {show.rate(result.throughput.samples_per_s)}"
    return f"{text}; GPU busy {show.percent(result.gpu.busy)}"


def _change(result: Result, show: Display, ink: _Ink, width: int) -> list[str]:
    plan = top_change(result)
    if plan is None:
        return []
    parts = []
    for part in plan_parts(result, plan):
        if isinstance(part, str):
            parts.append(one_line(part))
        else:
            today, new = (shorten(one_line(show.value(v)), 40) for v in (part.current, part.suggested))
            parts.append(f"{one_line(part.parameter)} {today} -> {new}")
    text = ", ".join(parts)
    if plan.predicted_speedup is not None:
        between = show.interval(plan.interval)
        text += f": {show.ratio(plan.predicted_speedup)} predicted" + (f" ({between})" if between else "")
        then = show.then(plan.next_bottleneck)
        text += f", {then}" if then else ""
    else:
        text += f": {show.words('ui.no_prediction')}"
    lines = _row("change", text, ink, width)
    if plan.snippet:
        code = clean(plan.snippet).strip("\n").splitlines()
        if (
            len(code) <= _SNIPPET_LINES
        ):  # a longer one is in the report, and would push the rest off the screen
            lines += [" " * _MARGIN + ink(line, 1) for line in code]
    command = set_command(plan.set_flags)
    return lines + (_row("try", command, ink, width) if command else [])


def _notes(result: Result, ink: _Ink, width: int) -> list[str]:
    lines: list[str] = []
    if result.quality:
        others = len(result.quality) - 1
        more = f" (and {others} more {'notes' if others > 1 else 'note'})" if others else ""
        lines += _row("note", shorten(one_line(result.quality[0].message), 3 * width) + more, ink, width)
    if result.missing:
        # what to record is worth a line; the names of dozens of signals are for the report
        reasons = Counter(one.reason for one in result.missing).most_common(_REASONS)
        count = len(result.missing)
        text = "; ".join(shorten(one_line(reason), 70) for reason, _ in reasons)
        lines += _row("missing", f"{count} {'signals' if count > 1 else 'signal'}: {text}", ink, width)
    return lines
