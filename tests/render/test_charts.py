from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render import samples
from tracelens.model import Curve, Lane, Series, Span, StepRow, Timeline
from tracelens.render import charts, plots, stepchart, timeline
from tracelens.render.display import Display
from tracelens.render.svg import boxes, element, polyline, ticks
from tracelens.render.words import load_words

SHOW = Display(load_words())


def _widths(svg: str) -> list[float]:
    return [float(width) for width in re.findall(r'width="([\d.]+)%"[^>]*class="ph', svg)]


def test_the_phase_bar_is_as_long_as_its_shares() -> None:
    svg = charts.phase_bar(samples.loader_bound(), SHOW)
    assert svg is not None
    assert sum(_widths(svg)) == pytest.approx(100)
    assert "41 %" in svg
    assert "<title" in svg
    assert "<desc" in svg


def test_no_bar_of_unknown_phases() -> None:
    assert charts.phase_bar(samples.inconclusive(), SHOW) is None


def test_shares_above_one_do_not_leave_the_chart() -> None:
    result = replace(samples.healthy(), phases={"load": 0.8, "compute": 0.8})
    svg = charts.phase_bar(result, SHOW)
    assert svg is not None
    assert sum(_widths(svg)) == pytest.approx(100)


def test_few_steps_have_a_bar_each() -> None:
    group, bars = stepchart.step_bars(samples.step_rows(40))
    assert group == 1
    assert [bar.first for bar in bars] == list(range(10, 50))


@given(st.integers(1, 3000))
def test_many_steps_are_averaged_and_none_is_lost(count: int) -> None:
    rows = samples.step_rows(count)
    group, bars = stepchart.step_bars(rows)
    assert len(bars) <= stepchart.MAX_BARS
    assert bars[0].first == rows[0].step
    assert bars[-1].last == rows[-1].step
    assert max(bar.slowest_ms for bar in bars) == max(row.duration_ms for row in rows)
    assert all(a.last + 1 == b.first for a, b in pairwise(bars))
    assert len(bars) == -(-count // group)


def test_a_start_up_step_does_not_flatten_the_others() -> None:
    rows = [StepRow(0, 0, 5000, {"host": 5000.0}, steady=False)]
    rows += [StepRow(i, 5000 + i * 50, 50, {"compute": 50.0}) for i in range(1, 9)]
    svg = stepchart.steps_chart(rows, SHOW)
    assert svg is not None
    heights = [float(h) for h in re.findall(r"v([\d.]+)h-", svg.split('class="ph compute"')[0])]
    assert max(heights) > 150
    assert "5,000 ms" in svg
    assert 'class="clip"' in svg


def test_a_stall_inside_the_steady_window_is_not_cut() -> None:
    rows = [StepRow(i, i * 50, 900 if i == 5 else 50, {"load": 900.0 if i == 5 else 50.0}) for i in range(10)]
    _, bars = stepchart.step_bars(rows)
    assert not stepchart.clipped(bars)


@pytest.mark.parametrize("rows", [(), (StepRow(0, 0, 0, {}),)])
def test_no_step_chart_without_time(rows: tuple[StepRow, ...]) -> None:
    assert stepchart.steps_chart(rows, SHOW) is None


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 5)), min_size=1, max_size=900))
def test_joined_spans_cover_every_span(raw: list[tuple[float, float]]) -> None:
    spans = tuple(Span(start, start + length) for start, length in raw)
    drawn = timeline.drawn_spans(Lane("compute", "Kernels", spans), limit=50)
    assert len(drawn) <= max(50, 1)
    for span in spans:
        assert any(one.start_ms <= span.start_ms and span.end_ms <= one.end_ms for one in drawn)


def test_a_timeline_names_its_lanes_and_busy_shares() -> None:
    svg = timeline.timeline_chart(samples.timeline(communication=True), SHOW)
    assert svg is not None
    for name in ("Loader: DataLoader workers (2), busy 76 %", "Copy: Copies", "Communication: NCCL"):
        assert name in svg
    assert svg.count('class="boundary"') == 5


def test_no_timeline_of_nothing() -> None:
    assert timeline.timeline_chart(Timeline(0.0, ()), SHOW) is None
    assert timeline.timeline_chart(Timeline(10.0, (Lane("host", "Host", ()),)), SHOW) is None


def test_a_gap_in_a_series_is_a_gap() -> None:
    series = Series(
        "g", "GPU", "share", tuple(map(float, range(6))), (0.1, 0.2, None, None, float("nan"), 0.4)
    )
    svg = plots.series_chart("s", series, SHOW)
    assert svg is not None
    line = re.search(r'd="([^"]*)" class="line"', svg)
    assert line is not None
    assert line.group(1).count("M") == 2
    assert "nan" not in svg


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=2, max_size=3000))
def test_thinning_keeps_the_extremes(values: list[float | None]) -> None:
    series = Series("s", "S", "W", tuple(map(float, range(len(values)))), tuple(values))
    _, points = plots.thin(series)
    known = [value for value in values if value is not None]
    kept = [value for _, value in points if value is not None]
    assert len(points) <= plots.MAX_POINTS + 1
    if known:
        assert (min(kept), max(kept)) == (min(known), max(known))


def test_a_curve_marks_today_the_suggestion_and_what_was_measured() -> None:
    svg = plots.curve_chart("c", samples.curves()[0], SHOW)
    assert svg is not None
    for mark in (
        "marker current",
        "marker suggested",
        "marker measured",
        'class="band"',
        "today 2",
        "suggested 6",
    ):
        assert mark in svg


def test_a_curve_of_one_point_is_no_curve() -> None:
    assert plots.curve_chart("c", Curve("n", "N", "samples/s", (1.0,), (2.0,)), SHOW) is None


def test_text_in_svg_is_escaped() -> None:
    svg = element("text", '</text><script>"', aria_label='"><img>', class_="a")
    assert "<script" not in svg
    assert "<img" not in svg


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.integers(1, 8))
def test_ticks_lie_inside_and_are_few(low: float, span: float, count: int) -> None:
    values = ticks(low, low + span, count)
    assert len(values) <= 2 * count + 3
    slack = span * 1e-6 + abs(low) * 1e-6
    assert all(low - slack <= value <= low + span + slack for value in values)


def test_path_data() -> None:
    assert boxes([(1, 2, 3, 4)]) == "M1 2h3v4h-3z"
    assert polyline([(0, 0), None, (1, 1.5), (2, 2)]) == "M0 0M1 1.5L2 2"
