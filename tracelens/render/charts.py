"""Bars of shares: phases of the window and of the ranks, what-ifs, engines, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from tracelens.model import PHASES, RankRow, Result
from tracelens.render.display import Display
from tracelens.render.svg import chart, element, percent, text_at

MAX_RANKS = 64  # drawn
_LABEL_SHARE = 0.09  # a narrower piece has no room for its number, which the legend carries


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
    listed = words("ui.comma").join(
        f"{words.known('phase', name)} {show.percent(share)}" for name, share in known.items()
    )
    return chart(
        "c-phases",
        words("chart.phases"),
        words("chart.phases_desc", list=listed),
        44,
        *pieces(shares, 0, 44),
        *_piece_labels(shares, 27, show),
        class_="chart bar",
    )


def what_if_chart(values: Sequence[tuple[str, float | None]], show: Display) -> Markup | None:
    """A bar a resource from 1x on; the unknown ones are said to be unknown."""
    known = [value for _, value in values if value is not None]
    if not known:
        return None
    words = show.words
    high = max(*known, 1.1)
    names = [words.known("bottleneck", name) for name, _ in values]
    listed = words("ui.comma").join(
        f"{name} {show.ratio(value)}" for name, (_, value) in zip(names, values, strict=True)
    )
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
    listed = show.words("ui.comma").join(f"{name} {show.percent(share)}" for name, share in rows)
    return chart(ident, title, show.words("chart.bars_desc", list=listed), row * len(rows), *drawn)


def ranks_chart(ranks: Sequence[RankRow], show: Display) -> Markup | None:
    """Phase bars of the first ``MAX_RANKS`` ranks, as long as their mean steps."""
    longest = max((rank.mean_ms or 0.0 for rank in ranks), default=0.0)
    words = show.words
    drawn: list[Markup] = []
    row, count = 42.0, 0
    for rank in ranks[:MAX_RANKS]:
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
    """The peak against the capacity; None where either is unknown."""
    memory = result.memory
    peak, capacity = memory.peak_bytes, memory.capacity_bytes
    if peak is None or not capacity or capacity <= 0:
        return None
    words = show.words
    used = min(peak / capacity, 1.0)
    drawn = [
        element("text", f"{words('memory.peak')} {show.size(peak)}", x="0", y=13, class_="label"),
        element(
            "text",
            f"{words('memory.capacity')} {show.size(capacity)}",
            x="100%",
            y=13,
            class_="label num",
            text_anchor="end",
        ),
        element("rect", x="0", y=19, width="100%", height=18, class_="track"),
        element("rect", x="0", y=19, width=percent(used), height=18, class_="fill"),
    ]
    desc = words("chart.memory_desc", peak=show.size(peak), capacity=show.size(capacity))
    return chart("c-memory", words("chart.memory"), desc, 40, *drawn)
