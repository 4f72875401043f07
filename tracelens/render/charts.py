"""Bars: phases of the window, of each step and of each rank, what-ifs, engines, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tracelens.model import PHASES, RankRow, Result, StepRow
from tracelens.render.display import Display
from tracelens.render.svg import PLANE, boxes, chart, element, percent, plane, text_at, ticks

MAX_BARS = 240
# the steady part at the bottom, what varies on top
_STACK = ("compute", "communication", "transfer", "host", "load", "other")
_LABEL_SHARE = 0.09  # a narrower piece has no room for its number, which the legend carries


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


def pieces(shares: Mapping[str, float | None], y: float, height: float, scale: float = 1.0) -> list[Markup]:
    """The patterned pieces of one phase bar, ``scale`` of the chart's width long."""
    drawn: list[Markup] = []
    at = 0.0
    for name in PHASES:
        share = shares.get(name) or 0.0
        if share <= 0:
            continue
        width = min(share, 1.0 - at) * scale
        drawn.append(
            element(
                "rect", x=percent(at * scale), y=y, width=percent(width), height=height, class_=f"ph {name}"
            )
        )
        at = min(at + share, 1.0)
    return drawn


def _piece_labels(
    shares: Mapping[str, float | None], y: float, show: Display, scale: float = 1.0
) -> list[Markup]:
    labels: list[Markup] = []
    at = 0.0
    for name in PHASES:
        share = shares.get(name) or 0.0
        if share * scale >= _LABEL_SHARE:
            middle = (at + share / 2) * scale
            labels.append(text_at(middle, y, show.percent(share), class_="inbar", anchor="middle"))
        at += max(share, 0.0)
    return labels


def phase_bar(result: Result, show: Display) -> Markup | None:
    """The whole window in one bar; None where no phase is known."""
    shares = result.phases
    known = {name: share for name in PHASES if (share := shares.get(name)) is not None}
    if not known or sum(known.values()) <= 0:
        return None
    words = show.words
    listed = ", ".join(f"{words.known('phase', name)} {show.percent(share)}" for name, share in known.items())
    return chart(
        "c-phases",
        words("chart.phases"),
        words("chart.phases_desc", list=listed),
        44,
        *pieces(shares, 0, 44),
        *_piece_labels(shares, 27, show),
        class_="chart bar",
    )


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


def clipped(bars: Sequence[StepBar]) -> bool:
    """Whether a bar is taller than the chart."""
    top = _top(bars)
    return any(bar.slowest_ms > top * 1.0001 for bar in bars)


def steps_chart(rows: Sequence[StepRow], show: Display) -> Markup | None:
    """Stacked bars, one a step (or a group of steps); None without steps that took time."""
    _, bars = step_bars(rows)
    top = _top(bars)
    if not bars or top <= 0:
        return None
    words = show.words
    head, body, letters = 18.0, 190.0, regime_letters(rows)
    slot = PLANE / len(bars)
    gap = slot * 0.14 if len(bars) > 8 else slot * 0.3
    stacks: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in _STACK}
    whiskers: list[tuple[float, float, float, float]] = []
    overlay: list[Markup] = []
    ground: list[tuple[float, float, float, float]] = []
    for index, bar in enumerate(bars):
        x, y, width = index * slot + gap / 2, body, slot - gap
        for name in _STACK:
            height = min(max(bar.phases_ms.get(name, 0.0), 0.0) / top * body, y)
            if height > 0.02:
                y -= height
                stacks[name].append((x, y, width, height))
        if not bar.steady:
            ground.append((index * slot, 0, slot, body))
        if bar.slowest_ms > top * 1.0001:
            at = (index + 0.5) / len(bars)
            overlay.append(_arrow(at, head))
            if len(overlay) < 8:
                overlay.append(text_at(at, head - 8, show.ms(bar.slowest_ms), class_="tick"))
        elif bar.slowest_ms > bar.mean_ms * 1.02:
            whiskers.append((x, body - bar.slowest_ms / top * body, width, 1.5))
    grid: list[Markup] = []
    for value in ticks(0, top, 4)[1:]:
        y = head + body - value / top * body
        grid.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        grid.append(text_at(0, y - 3, show.ms(value), class_="tick halo", anchor="start"))
    strip = head + body + 2
    axis = strip + (16 if letters else 0) + 13
    return chart(
        "c-steps",
        words("chart.steps"),
        words("chart.steps_desc", count=len(bars), max=show.ms(max(bar.slowest_ms for bar in bars))),
        axis + 6,
        plane(
            head,
            body,
            element("path", d=boxes(ground), class_="unsteady") if ground else Markup(""),
            *(element("path", d=boxes(stacks[name]), class_=f"ph {name}") for name in _STACK if stacks[name]),
            element("path", d=boxes(whiskers), class_="whisker") if whiskers else Markup(""),
        ),
        *grid,
        element("line", x1="0", x2="100%", y1=head + body, y2=head + body, class_="axis"),
        *overlay,
        *_regime_strip(bars, letters, strip),
        *_step_numbers(bars, axis, show),
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


def what_if_chart(values: Sequence[tuple[str, float | None]], show: Display) -> Markup | None:
    """A bar a resource from 1x on; the unknown ones are said to be unknown."""
    known = [value for _, value in values if value is not None]
    if not known:
        return None
    words = show.words
    high = max(*known, 1.1)
    names = [words.known("bottleneck", name) for name, _ in values]
    listed = ", ".join(f"{name} {show.ratio(value)}" for name, (_, value) in zip(names, values, strict=True))
    row = 40.0
    drawn: list[Markup] = []
    for index, (name, (_, value)) in enumerate(zip(names, values, strict=True)):
        y = index * row
        drawn.append(element("text", name, x="0", y=y + 13, class_="label"))
        drawn.append(
            element("text", show.ratio(value), x="100%", y=y + 13, class_="label num", text_anchor="end")
        )
        drawn.append(element("rect", x="0", y=y + 19, width="100%", height=10, class_="track"))
        if value is not None and value > 1:
            width = (value - 1) / (high - 1)
            drawn.append(element("rect", x="0", y=y + 19, width=percent(width), height=10, class_="fill"))
    return chart(
        "c-whatif",
        words("chart.what_if"),
        words("chart.what_if_desc", list=listed),
        row * len(values),
        *drawn,
    )


def share_bars(ident: str, title: str, rows: Sequence[tuple[str, float | None]], show: Display) -> Markup:
    """A labelled bar a row, each a share of 1."""
    row = 36.0
    drawn: list[Markup] = []
    for index, (name, share) in enumerate(rows):
        y = index * row
        drawn.append(element("text", name, x="0", y=y + 13, class_="label"))
        drawn.append(
            element("text", show.percent(share), x="100%", y=y + 13, class_="label num", text_anchor="end")
        )
        drawn.append(element("rect", x="0", y=y + 18, width="100%", height=8, class_="track"))
        if share is not None:
            width = percent(min(max(share, 0.0), 1.0))
            drawn.append(element("rect", x="0", y=y + 18, width=width, height=8, class_="fill"))
    listed = ", ".join(f"{name} {show.percent(share)}" for name, share in rows)
    return chart(ident, title, show.words("chart.bars_desc", list=listed), row * len(rows), *drawn)


def ranks_chart(ranks: Sequence[RankRow], show: Display) -> Markup | None:
    """Phase bars of the ranks, as long as their mean steps."""
    longest = max((rank.mean_ms or 0.0 for rank in ranks), default=0.0)
    words = show.words
    drawn: list[Markup] = []
    row, count = 42.0, 0
    for rank in ranks:
        if not any(rank.phases.get(name) for name in PHASES):
            continue
        y = count * row
        count += 1
        scale = rank.mean_ms / longest if longest and rank.mean_ms is not None else 1.0
        drawn.append(
            element("text", f"{words('col.rank')} {show.value(rank.rank)}", x="0", y=y + 13, class_="label")
        )
        drawn.append(
            element("text", show.ms(rank.mean_ms), x="100%", y=y + 13, class_="label num", text_anchor="end")
        )
        drawn += pieces(rank.phases, y + 18, 17, scale)
    if not count:
        return None
    return chart("c-ranks", words("chart.ranks"), words("chart.ranks_desc", count=count), row * count, *drawn)


def memory_chart(result: Result, show: Display) -> Markup | None:
    """Fixed part, part that grows with the batch, and what is left; None where peak or capacity is unknown."""
    memory = result.memory
    peak, capacity = memory.peak_bytes, memory.capacity_bytes
    if peak is None or not capacity or capacity <= 0:
        return None
    words = show.words
    used = min(peak / capacity, 1.0)
    drawn = [
        element("text", f"{words('memory.peak')} {show.size(peak)}", x="0", y=13, class_="label"),
        element("text", f"{words('memory.capacity')} {show.size(capacity)}", x="100%", y=13, class_="label num",
                text_anchor="end"),
        element("rect", x="0", y=19, width="100%", height=18, class_="track"),
        element("rect", x="0", y=19, width=percent(used), height=18, class_="fill"),
    ]  # fmt: skip
    desc = words("chart.memory_desc", peak=show.size(peak), capacity=show.size(capacity))
    return chart("c-memory", words("chart.memory"), desc, 40, *drawn)
