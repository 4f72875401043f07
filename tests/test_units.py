"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"), (0, "0 ms"), (0.004, "4 us"), (0.5, "0.5 ms"), (7.31, "7.31 ms"), (28.84, "28.8 ms"),
        (140.4, "140 ms"), (1234.5, "1,234 ms"), (12_345, "12.3 s"), (-3.2, "-3.2 ms"),
    ],
)  # fmt: skip
def test_milliseconds(value: float | None, text: str) -> None:
    assert units.milliseconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(None, "unknown"), (0.0, "0 %"), (0.004, "0.4 %"), (0.415, "42 %"), (1.0, "100 %")]
)
def test_percent(share: float | None, text: str) -> None:
    assert units.percent(share) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (12, "12 B"),
        (1500, "1.5 KB"),
        (9_600_000, "9.6 MB"),
        (8.1e10, "81 GB"),
        (3e15, "3,000 TB"),
    ],
)
def test_size(count: float | None, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (1.0, "1.00x"), (1.337, "1.34x"), (46.04, "46.0x"), (1000.0, "1,000x")],
)
def test_ratio(value: float | None, text: str) -> None:
    assert units.ratio(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ms", "unknown"), (12.0, "ms", "12 ms"), (0.25, "share", "25 %"), (3, "count", "3"), (True, None, "True"),
        ("workers", None, "workers"), (2.0, "GB/s", "2 GB/s"), (1.5, "ratio", "1.50x"), (1e6, "bytes", "1 MB"),
    ],
)  # fmt: skip
def test_quantity(value: object, unit: str | None, text: str) -> None:
    assert units.quantity(value, unit) == text


@given(st.floats(1e-6, 1e12))
def test_a_bare_number_keeps_three_digits(value: float) -> None:
    read = float(units.number(value).replace(",", ""))
    assert read == pytest.approx(value, rel=6e-3, abs=6e-7)
