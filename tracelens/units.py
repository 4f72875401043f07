"""The one number formatter: every number that a person reads is written here."""

from __future__ import annotations

MISSING = "unknown"


def _significant(value: float, digits: int = 3) -> str:
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    decimals = digits - 1
    scale = 10.0
    while magnitude >= scale and decimals > 0:
        decimals -= 1
        scale *= 10
    while magnitude < 1 and decimals < 6 and magnitude * 10 ** (decimals - digits + 1) < 1:
        decimals += 1
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(value: float | None) -> str:
    """A duration given in milliseconds, in us, ms or s, three significant digits."""
    if value is None:
        return MISSING
    magnitude = abs(value)
    if magnitude >= 10_000:
        return f"{_significant(value / 1000)} s"
    if magnitude < 0.1 and value != 0:
        return f"{_significant(value * 1000)} us"
    return f"{_significant(value)} ms"


def percent(share: float | None) -> str:
    """A share (0..1) in percent; shares below one percent keep a digit."""
    if share is None:
        return MISSING
    value = share * 100
    if value != 0 and abs(value) < 1:
        return f"{value:.1f} %"
    return f"{value:.0f} %"


def size(count: float | None) -> str:
    """Bytes in B, KB, MB, GB (powers of 1000)."""
    if count is None:
        return MISSING
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{_significant(value)} {unit}"
        value /= 1000
    return f"{_significant(value)} TB"


def ratio(value: float | None) -> str:
    """A speed-up, as 1.34x."""
    if value is None:
        return MISSING
    if value >= 100:
        return f"{value:,.0f}x"
    return f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def rate(value: float | None, unit: str = "samples/s") -> str:
    """A throughput with its unit."""
    return MISSING if value is None else f"{_significant(value)} {unit}"


def number(value: float | int | None) -> str:
    """A bare number, three significant digits; integers in full."""
    if value is None:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    return _significant(value)


def quantity(value: object, unit: str | None) -> str:
    """Evidence values: ``unit`` is ms, bytes, share, ratio, samples/s, GB/s, count or nothing."""
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value) if not unit else f"{value} {unit}"
    match unit:
        case "ms":
            return milliseconds(value)
        case "bytes":
            return size(value)
        case "share":
            return percent(value)
        case "ratio":
            return ratio(value)
        case None | "" | "count":
            return number(value)
        case _:
            return f"{number(value)} {unit}"
