"""The bars of the steps: one a step, or one for a few steps where there are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tracelens.model import StepRow
from tracelens.render.display import Display
from tracelens.render.svg import PLANE, boxes, chart, element, percent, plane, text_at, ticks

MAX_BARS = 240
# the steady part at the bottom, what varies on top
_STACK = ("compute", "communication", "transfer", "host", "load", "other")


@dataclass(frozen=True, slots=True)
class StepBar:
    """One bar of the step chart: a step, or the mean of consecutive steps with the slowest of them."""

    first: int
    last: int
    mean_ms: float
    slowest_ms: float
    phases_ms: Mapping[str, float]
    steady: bool
    regime: str | None


def step_bars(rows: Sequence[StepRow]) -> tuple[int, list[StepBar]]:
    """(steps in a bar, bars): consecutive steps are averaged where there are more than ``MAX_BARS``."""
    group = -(-len(rows) // MAX_BARS) if rows else 1
    bars: list[StepBar] = []
    for start in range(0, len(rows), group):
        part = rows[start : start + group]
        names = {name for row in part for name in row.phases_ms}
        mean = {name: sum(row.phases_ms.get(name, 0.0) for row in part) / len(part) for name in names}
        regimes = {row.regime for row in part}
        bars.append(
            StepBar(
                part[0].step,
                part[-1].step,
                sum(row.duration_ms for row in part) / len(part),
                max(row.duration_ms for row in part),
                mean,
                all(row.steady for row in part),
                regimes.pop() if len(regimes) == 1 else None,
            )
        )
    return group, bars


def _top(bars: Sequence[StepBar]) -> float:
    """The tallest steady bar sets the height, so that one start-up step does not flatten the rest."""
    tallest = max((bar.slowest_ms for bar in bars), default=0.0)
    steady = max((bar.slowest_ms for bar in bars if bar.steady), default=tallest)
    return min(tallest, steady * 1.2) if steady > 0 else tallest


def regime_letters(rows: Sequence[StepRow]) -> dict[str, str]:
    """A letter for each regime in the order of appearance; empty where steps carry none."""
    names = dict.fromkeys(row.regime for row in rows if row.regime)
    return (
        {name: chr(ord("A") + index) for index, name in enumerate(names) if index < 26}
        if len(names) > 1
        else {}
    )


def drawn_letters(rows: Sequence[StepRow], group: int) -> dict[str, str]:
    """The letters below the bars: none where a bar stands for several steps, which mix regimes."""
    return regime_letters(rows) if group == 1 else {}


def clipped(bars: Sequence[StepBar]) -> bool:
    """Whether a bar is taller than the chart."""
    top = _top(bars)
    return any(bar.slowest_ms > top * 1.0001 for bar in bars)


def steps_chart(rows: Sequence[StepRow], show: Display) -> Markup | None:
    """Stacked bars, one a step (or a group of steps); None without steps that took time."""
    group, bars = step_bars(rows)
    top = _top(bars)
    if not bars or top <= 0:
        return None
    words = show.words
    head, body, letters = 18.0, 190.0, drawn_letters(rows, group)
    slot = PLANE / len(bars)
    gap = slot * 0.14 if len(bars) > 8 else slot * 0.3
    stacks: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in _STACK}
    whiskers: list[tuple[float, float, float, float]] = []
    overlay: list[Markup] = []
    veil: list[tuple[float, float, float, float]] = []
    labelled = -1.0
    for index, bar in enumerate(bars):
        x, y, width = index * slot + gap / 2, body, slot - gap
        for name in _STACK:
            height = min(max(bar.phases_ms.get(name, 0.0), 0.0) / top * body, y)
            if height > 0.02:
                y -= height
                stacks[name].append((x, y, width, height))
        if not bar.steady:
            veil.append((index * slot, 0, slot, body))
        if bar.slowest_ms > top * 1.0001:
            at = (index + 0.5) / len(bars)
            overlay.append(_arrow(at, head))
            if at - labelled >= 0.1:
                overlay.append(text_at(at, head - 8, show.ms(bar.slowest_ms), class_="tick"))
                labelled = at
        elif bar.slowest_ms > bar.mean_ms * 1.02:
            whiskers.append((x, body - bar.slowest_ms / top * body, width, 1.5))
    grid: list[Markup] = []
    for value in ticks(0, top, 4)[1:]:
        y = head + body - value / top * body
        grid.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        grid.append(element("text", show.ms(value), x="-6", y=y + 4, class_="tick", text_anchor="end"))
    strip = head + body + 2
    axis = strip + (16 if letters else 0) + 13
    return chart(
        "c-steps",
        words("chart.steps"),
        words("chart.steps_desc", count=len(bars), max=show.ms(max(bar.slowest_ms for bar in bars))),
        axis + 6,
        *grid,
        plane(
            head,
            body,
            *(element("path", d=boxes(stacks[name]), class_=f"ph {name}") for name in _STACK if stacks[name]),
            *([element("path", d=boxes(whiskers), class_="whisker")] if whiskers else []),
            *(element("path", d=boxes(veil), class_=name) for name in ("veil", "unsteady") if veil),
        ),
        element("line", x1="0", x2="100%", y1=head + body, y2=head + body, class_="axis"),
        *overlay,
        *_regime_strip(bars, letters, strip),
        *_step_numbers(bars, axis, show),
        class_="chart gutter",
    )


def _arrow(at: float, y: float) -> Markup:
    return element(
        "svg", element("path", d="M-4 0L0 -6L4 0z", class_="clip"), x=percent(at), y=y - 1, width=1, height=1,
        overflow="visible",
    )  # fmt: skip


def _regime_strip(bars: Sequence[StepBar], letters: Mapping[str, str], y: float) -> list[Markup]:
    """Runs of bars of one regime: a line below them, with its letter where there is room."""
    drawn: list[Markup] = []
    start = 0
    for index in range(1, len(bars) + 1):
        if index < len(bars) and bars[index].regime == bars[start].regime:
            continue
        letter = letters.get(bars[start].regime or "")
        x, width = start / len(bars), (index - start) / len(bars)
        if letter is not None:
            lane = 0 if (ord(letter) - ord("A")) % 2 == 0 else 3
            drawn.append(
                element("rect", x=percent(x), y=y + lane, width=percent(width), height=3, class_="regime")
            )
            if width >= 0.02:
                drawn.append(text_at(x + width / 2, y + 15, letter, class_="tick", anchor="middle"))
        start = index
    return drawn


def _step_numbers(bars: Sequence[StepBar], y: float, show: Display) -> list[Markup]:
    picks = sorted({0, len(bars) // 4, len(bars) // 2, 3 * len(bars) // 4, len(bars) - 1})
    labels = []
    for index in picks:
        text = str(bars[index].first)
        if index == 0:
            text = f"{show.words('chart.steps_axis')} {text}"
        anchor = "start" if index == 0 else "end" if index == len(bars) - 1 and index else "middle"
        at = 0.0 if index == 0 else 1.0 if index == len(bars) - 1 else (index + 0.5) / len(bars)
        labels.append(text_at(at, y, text, class_="tick", anchor=anchor))
    return labels
