from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace.intervals import EMPTY, Intervals, overlaps

SIZE = 40
pairs = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12)


def bitmap(spans: list[tuple[int, int]]) -> np.ndarray:
    """The set as one flag an instant."""
    bits = np.zeros(SIZE, dtype=bool)
    for start, end in spans:
        bits[start:end] = True
    return bits


def of(spans: list[tuple[int, int]]) -> Intervals:
    return Intervals.of([s for s, _ in spans], [e for _, e in spans])


def bits_of(intervals: Intervals) -> np.ndarray:
    return bitmap(list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True)))


def assert_normal(intervals: Intervals) -> None:
    """Sorted, non-empty, disjoint and not touching."""
    assert (intervals.end > intervals.start).all()
    assert (intervals.start[1:] > intervals.end[:-1]).all()
    assert intervals.start.dtype == intervals.end.dtype == np.int64


@given(pairs)
def test_of_is_the_union_of_its_spans(spans: list[tuple[int, int]]) -> None:
    made = of(spans)
    assert_normal(made)
    assert (bits_of(made) == bitmap(spans)).all()
    assert made.total == bitmap(spans).sum()


@given(pairs, pairs)
def test_set_operations_agree_with_a_bitmap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = of(a), of(b)
    for made, bits in (
        (left.union(right), bitmap(a) | bitmap(b)),
        (left.intersect(right), bitmap(a) & bitmap(b)),
        (left.subtract(right), bitmap(a) & ~bitmap(b)),
    ):
        assert_normal(made)
        assert (bits_of(made) == bits).all()
        assert made.total == bits.sum()


@given(pairs, st.integers(0, SIZE), st.integers(0, SIZE))
def test_complement_and_clip(a: list[tuple[int, int]], low: int, high: int) -> None:
    window = bitmap([(low, high)])
    assert (bits_of(of(a).complement(low, high)) == (window & ~bitmap(a))).all()
    assert (bits_of(of(a).clip(low, high)) == (window & bitmap(a))).all()
    assert_normal(of(a).complement(low, high))
    assert_normal(of(a).clip(low, high))


@given(pairs, st.lists(st.integers(-3, SIZE + 3), min_size=1))
def test_covers(a: list[tuple[int, int]], instants: list[int]) -> None:
    bits = bitmap(a)
    expected = [0 <= i < SIZE and bool(bits[i]) for i in instants]
    assert of(a).covers(instants).tolist() == expected


@given(pairs, pairs)
def test_measure_is_the_length_within_each_window(
    a: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    bits = bitmap(a)
    measured = of(a).measure([low for low, _ in windows], [high for _, high in windows])
    assert measured.tolist() == [int(bits[low:high].sum()) if high > low else 0 for low, high in windows]


@given(pairs, pairs)
def test_overlaps_name_the_two_parents(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = of(a), of(b)
    start, end, in_left, in_right = overlaps(left, right)
    assert int((end - start).sum()) == int((bitmap(a) & bitmap(b)).sum())
    for s, e, i, j in zip(start, end, in_left, in_right, strict=True):
        assert left.start[i] <= s < e <= left.end[i]
        assert right.start[j] <= s < e <= right.end[j]


def test_touching_spans_become_one() -> None:
    assert of([(0, 5), (5, 9)]).start.tolist() == [0]


def test_the_empty_set_is_neutral() -> None:
    some = of([(3, 7)])
    assert some.union(EMPTY) is some
    assert some.subtract(EMPTY) is some
    assert len(some.intersect(EMPTY)) == len(EMPTY.union(EMPTY)) == 0
    assert EMPTY.complement(2, 4).total == 2
    assert EMPTY.measure([0], [9]).tolist() == [0]


def test_nanoseconds_of_this_century_do_not_lose_a_digit() -> None:
    now = 1_767_225_600_000_000_001
    assert Intervals.single(now, now + 1).total == 1
    assert Intervals.single(now, now + 10).subtract(Intervals.single(now + 3, now + 4)).total == 9
