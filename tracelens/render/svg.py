"""Inline SVG: elements whose text and attributes are escaped, and the fluid frame every chart stands in.

A chart is as wide as its column: positions are percentages, shapes live in nested planes that stretch, and
text does not. So one file reads well at 360 pixels, on a wide screen and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from tracelens.render.sanitize import clean

PLANE = 1000.0  # width of a stretched plane, in its own units


def element(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """One element; ``class_`` is class, an underscore a hyphen, ``None`` leaves the attribute out."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None:
            continue
        text = value if isinstance(value, str) else compact(value)
        parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(_safe(text))}"')
    inner = "".join(str(escape(_safe(child))) for child in children)
    parts.append(f">{inner}</{name}>" if inner else "/>")
    return Markup("".join(parts))


def _safe(text: str) -> str:
    return text if isinstance(text, Markup) else clean(text)


def compact(value: float) -> str:
    """A coordinate with no more digits than can be seen."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


def percent(value: float) -> str:
    """A position across the chart, from a fraction of its width."""
    return f"{compact(value * 100)}%"


def chart(
    ident: str, title: str, desc: str, height: float, *children: Markup, class_: str = "chart"
) -> Markup:
    """A whole chart with its title and description; ``ident`` is unique in the document."""
    return element(
        "svg",
        element("title", title, id=f"{ident}-t"),
        element("desc", desc, id=f"{ident}-d"),
        *children,
        class_=class_,
        role="img",
        aria_labelledby=f"{ident}-t",
        aria_describedby=f"{ident}-d",
        width="100%",
        height=height,
    )


def plane(y: float, height: float, *children: Markup) -> Markup:
    """A strip of the chart in which 0..PLANE is its whole width, and heights are pixels."""
    return element(
        "svg",
        *children,
        x="0",
        y=y,
        width="100%",
        height=height,
        viewBox=f"0 0 {compact(PLANE)} {compact(height)}",
        preserveAspectRatio="none",
    )


def boxes(rectangles: Iterable[tuple[float, float, float, float]]) -> str:
    """Path data of many rectangles (x, y, width, height), a fifth of what as many elements would need."""
    return "".join(
        f"M{compact(x)} {compact(y)}h{compact(w)}v{compact(h)}h{compact(-w)}z" for x, y, w, h in rectangles
    )


def polyline(points: Sequence[tuple[float, float] | None]) -> str:
    """Path data of a line; ``None`` interrupts it."""
    parts: list[str] = []
    pen = "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        parts.append(f"{pen}{compact(point[0])} {compact(point[1])}")
        pen = "L"
    return "".join(parts)


def text_at(x: float, y: float, text: str, *, class_: str = "", anchor: str | None = None) -> Markup:
    """Text at a fraction of the width; near an edge it is anchored so that it stays inside."""
    if anchor is None:
        anchor = "start" if x < 0.06 else "end" if x > 0.94 else "middle"
    return element("text", text, x=percent(x), y=y, class_=class_ or None, text_anchor=anchor)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from ``low`` to ``high``, about ``count`` of them."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low] if math.isfinite(low) else []
    raw = span / max(count, 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * m for m in (1, 2, 2.5, 5, 10) if magnitude * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]
