"""The batch-size model: memory, time, the largest safe size, and when a larger batch is advised."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.whatif.batch_memory import (
    MemoryFit,
    advisable_batch,
    fit_memory,
    max_safe_batch,
    memory_from_timeline,
)
from tracelens.whatif.batch_model import advise_batch
from tracelens.whatif.batch_time import curve, fit_time, time_from_kernels

EVIDENCE = Path(__file__).resolve().parents[2] / ".." / "shared" / "evidence"
GIB = 2.0**30
CAPACITY = 16 * GIB


def timeline(fixed: float, transient: float, steps: int = 4) -> tuple[np.ndarray, list[int]]:
    """A step that rises from ``fixed`` by ``transient`` and falls back, and where steps end."""
    up = np.linspace(0, 1, 9)
    step = fixed + transient * np.concatenate([up, up[::-1][1:]])
    return np.tile(step, steps), [len(step) * (k + 1) - 1 for k in range(steps)]


# memory


def test_the_missions_example_doubles_from_40_to_about_80_percent() -> None:
    state = 0.01 * CAPACITY  # a ResNet-50 with momentum: 0.2 GB of state under 6.4 GB of activations
    line, ends = timeline(state, 0.40 * CAPACITY - state)
    fit = memory_from_timeline(line, 128, boundaries=ends)
    assert fit.allocated(128) / CAPACITY == pytest.approx(0.40)
    assert fit.allocated(256) / CAPACITY == pytest.approx(0.80, abs=0.02)
    low, high = (b / CAPACITY for b in fit.interval(256))
    assert low <= 0.79 <= high
    assert max_safe_batch(fit, CAPACITY) >= 256
    assert advisable_batch(fit, CAPACITY, 128) == 256


def test_a_model_that_fills_the_memory_itself_does_not_double() -> None:
    line, ends = timeline(0.35 * CAPACITY, 0.05 * CAPACITY)
    fit = memory_from_timeline(line, 128, boundaries=ends)
    assert fit.allocated(256) / CAPACITY == pytest.approx(0.45)
    assert fit.interval(256)[1] / CAPACITY < 0.5


def test_two_sizes_fit_directly_and_the_gap_is_kept() -> None:
    fit = fit_memory([(32, 3 * GIB), (32, 2.9 * GIB), (64, 5 * GIB)], gap_bytes=0.5 * GIB)
    assert fit.fixed_bytes == pytest.approx(1 * GIB)
    assert fit.allocated(128) == pytest.approx(9 * GIB)
    assert fit.reserved(128) == pytest.approx(9.5 * GIB)


def test_the_last_eight_percent_the_margin_and_the_gap_stay_free() -> None:
    fit = MemoryFit(2 * GIB, 0.05 * GIB, (64.0,), "sizes", gap_bytes=0.4 * GIB)
    safe = max_safe_batch(fit, CAPACITY, outside_bytes=0.3 * GIB)
    assert 1.05 * fit.allocated(safe) + 0.4 * GIB + 0.3 * GIB <= 0.92 * CAPACITY
    assert 1.05 * fit.allocated(safe + 1) + 0.4 * GIB + 0.3 * GIB > 0.92 * CAPACITY
    assert max_safe_batch(fit, CAPACITY, multiple=8) % 8 == 0
    assert max_safe_batch(fit, 1 * GIB) == 0


def test_nothing_beyond_twice_what_was_seen() -> None:
    small = MemoryFit(0.1 * GIB, 0.001 * GIB, (32.0,), "timeline")
    assert max_safe_batch(small, CAPACITY) > 1000
    assert advisable_batch(small, CAPACITY, 32) == 64


def test_advice_moves_in_steps_people_use_and_never_shrinks() -> None:
    fit = MemoryFit(2 * GIB, 0.05 * GIB, (128.0,), "sizes")
    assert advisable_batch(fit, CAPACITY, 128) % 16 == 0
    full = MemoryFit(15 * GIB, 0.005 * GIB, (128.0,), "sizes")
    assert advisable_batch(full, CAPACITY, 128) == 128
    odd = MemoryFit(2 * GIB, 1.0 * GIB, (3.0,), "sizes")
    assert advisable_batch(odd, CAPACITY, 3) == 6


def test_kept_gradients_and_a_known_state_raise_the_floor() -> None:
    line, ends = timeline(1 * GIB, 4 * GIB)
    fit = memory_from_timeline(line, 64, boundaries=ends, state_bytes=2 * GIB, reserved_bytes=6 * GIB)
    assert fit.fixed_bytes == 2 * GIB
    assert fit.gap_bytes == 1 * GIB
    with_gradients = memory_from_timeline(line, 64, boundaries=ends, gradient_bytes=1 * GIB)
    plain = memory_from_timeline(line, 64, boundaries=ends)
    assert with_gradients.interval(128)[0] < plain.interval(128)[0]
    assert with_gradients.interval(128)[1] == pytest.approx(plain.interval(128)[1])


def test_gradients_at_the_end_of_a_step_are_not_part_of_the_floor() -> None:
    # 3 GiB of parameters and state; 1 GiB of gradients lives from the backward pass until the next step drops it
    step = np.asarray([3.0, 5.0, 7.0, 6.0, 5.0, 4.0, 4.0]) * GIB
    fit = memory_from_timeline(np.tile(step, 3), 32, boundaries=[6, 13, 20])
    assert fit.fixed_bytes == 3 * GIB
    assert fit.allocated(64) == pytest.approx(11 * GIB)


def test_what_came_before_the_first_step_does_not_lower_the_floor() -> None:
    line, ends = timeline(2 * GIB, 4 * GIB)
    early = np.concatenate([np.linspace(0, 2 * GIB, 50), line])
    fit = memory_from_timeline(early, 64, boundaries=[50 + end for end in ends])
    assert fit.fixed_bytes == pytest.approx(2 * GIB)


def test_a_peak_outside_the_timeline_counts() -> None:
    line, ends = timeline(1 * GIB, 4 * GIB)
    assert memory_from_timeline(line, 64, boundaries=ends, peak_bytes=7 * GIB).allocated(64) == 7 * GIB


@given(
    fixed=st.floats(0.0, 8e9),
    per_sample=st.floats(1e5, 1e8),
    sizes=st.lists(st.integers(1, 512), min_size=2, max_size=5, unique=True),
    batch=st.integers(1, 1024),
)
def test_exact_points_give_the_law_back(
    fixed: float, per_sample: float, sizes: list[int], batch: int
) -> None:
    fit = fit_memory([(s, fixed + per_sample * s) for s in sizes])
    assert fit.allocated(batch) == pytest.approx(fixed + per_sample * batch, rel=1e-4, abs=1e4)
    low, high = fit.interval(batch)
    assert low <= fit.allocated(batch) <= high
    assert fit.allocated(batch + 1) >= fit.allocated(batch)


def test_memory_inputs_are_checked() -> None:
    with pytest.raises(InputError, match="two batch sizes"):
        fit_memory([(32, 1e9), (32, 1.1e9)])
    with pytest.raises(InputError, match="above 0"):
        fit_memory([(0, 1e9), (32, 1.1e9)])
    with pytest.raises(InputError, match="timeline is empty"):
        memory_from_timeline([], 32)


def test_impossible_slopes_are_clamped() -> None:
    falling = fit_memory([(32, 2e9), (64, 1.9e9)])
    assert falling.per_sample_bytes == 0.0
    assert falling.allocated(64) >= 2e9
    through_zero = fit_memory([(32, 1e9), (64, 3e9)])
    assert through_zero.fixed_bytes == 0.0


# time


def test_a_hinge_is_found_from_its_points() -> None:
    law = lambda b: max(10.0, 2.0 + 0.25 * b)  # noqa: E731
    fit = fit_time([(b, law(b)) for b in (4, 8, 16, 64, 128)])
    for batch in (4, 16, 64, 256):
        assert fit.step_ms(batch) == pytest.approx(law(batch), rel=0.02)


def test_two_sizes_beyond_the_knee_give_a_line() -> None:
    fit = fit_time([(64, 18.0), (40, 12.0)])
    assert fit.step_ms(128) == pytest.approx(34.0)
    low, high = fit.interval(128)
    assert low <= 34.0 <= high <= 36.0 * 1.03


def test_the_launch_floor_of_the_trace_bounds_small_batches() -> None:
    fit = time_from_kernels(32, np.full(100, 0.05), launch_floor_ms=12.0)
    assert fit.step_ms(32) == 12.0
    assert fit.step_ms(64) == 12.0
    assert fit.step_ms(128) == pytest.approx(20.0)
    assert fit.samples_per_s(64) == pytest.approx(2 * fit.samples_per_s(32))


def test_small_kernels_and_the_optimizer_do_not_grow() -> None:
    kernels = np.concatenate([np.full(50, 0.004), np.full(10, 1.0)])
    by_size = time_from_kernels(16, kernels)
    assert by_size.fixed_ms == pytest.approx(0.2)
    assert by_size.step_ms(32) == pytest.approx(20.2)
    grows = np.concatenate([np.ones(50), np.ones(7), np.zeros(3)])
    marked = time_from_kernels(16, kernels, grows=grows)
    assert marked.fixed_ms == pytest.approx(3.0)
    low, high = marked.interval(32)
    assert low <= marked.step_ms(32) <= high
    assert high >= 2 * kernels.sum() * 0.99


def test_replayed_sizes_take_the_place_of_the_law_and_scale_it_beyond() -> None:
    """Host and device alternate (10 + 10 ms): a hinge would promise the whole of either."""
    law = time_from_kernels(32, [10.0], launch_floor_ms=10.0)
    fit = dataclasses.replace(law, points=((32.0, 20.0), (48.0, 25.0), (64.0, 30.0)))
    assert [fit.step_ms(b) for b in (32, 40, 48, 64)] == pytest.approx([20.0, 22.5, 25.0, 30.0])
    assert law.gain(32, 64)[0] == pytest.approx(1.0)
    gain, low, high = fit.gain(32, 64)
    assert gain == pytest.approx(2 * 20 / 30)
    assert low < gain < high
    # beyond them the law goes on from the nearest: twice the floor below, 1.5 times the device's line above
    assert fit.step_ms(16) == pytest.approx(20.0)
    assert fit.step_ms(128) == pytest.approx(40.0 * 30.0 / 20.0)
    fed = dataclasses.replace(fit, feed_ms_per_sample=0.5)
    assert fed.step_ms(64) == pytest.approx(32.0)


def test_loading_caps_the_gain() -> None:
    fit = time_from_kernels(32, [4.0, 4.0], launch_floor_ms=16.0, feed_ms_per_sample=0.5)
    assert fit.gain(32, 64)[0] == pytest.approx(1.0)


@given(
    floor=st.floats(0.1, 50.0),
    fixed=st.floats(0.0, 50.0),
    slope=st.floats(0.001, 2.0),
    batch=st.integers(1, 4096),
)
def test_more_samples_take_more_time_but_less_each(
    floor: float, fixed: float, slope: float, batch: int
) -> None:
    kernels = [fixed, slope * 64]
    fit = time_from_kernels(64, kernels, grows=[False, True], launch_floor_ms=floor)
    assert fit.step_ms(batch + 1) >= fit.step_ms(batch)
    assert fit.step_ms(batch + 1) / (batch + 1) <= fit.step_ms(batch) / batch * (1 + 1e-9)
    low, high = fit.interval(batch)
    assert low <= fit.step_ms(batch) <= high
    edge = fit.diminishing_from
    if 1e-2 < edge < 1e8:
        assert 2 * fit.step_ms(edge * 0.99) / fit.step_ms(edge * 1.98) >= 1.05 - 1e-6
        assert 2 * fit.step_ms(edge * 1.01) / fit.step_ms(edge * 2.02) <= 1.05 + 1e-6


def test_time_inputs_are_checked() -> None:
    with pytest.raises(InputError, match="two batch sizes"):
        fit_time([(32, 10.0)])
    with pytest.raises(InputError, match="kernels"):
        time_from_kernels(32, [])
    with pytest.raises(InputError, match="above 0"):
        fit_time([(32, 10.0), (64, math.nan)])


@pytest.mark.skipif(not EVIDENCE.is_dir(), reason="the published measurements are not here")
def test_published_throughput_at_twice_the_batch() -> None:
    with (EVIDENCE / "throughput_vs_batch.csv").open() as file:
        rows = list(csv.reader(file))
    sizes = [int(size) for size in rows[0][1:]]
    errors, inside = [], []
    for row in rows[1:]:
        speed = [float(value) for value in row[1:]]
        ms = [1000 * size / value for size, value in zip(sizes, speed, strict=True)]
        for k in range(2, len(sizes)):
            fit = fit_time(list(zip(sizes[:k], ms[:k], strict=True)))
            errors.append(abs(fit.samples_per_s(sizes[k]) / speed[k] - 1))
            low, high = fit.interval(sizes[k])
            inside.append(low <= ms[k] <= high)
    assert np.mean(errors) <= 0.10
    assert np.mean(inside) >= 0.8


# advice

ROOMY = MemoryFit(0.5 * GIB, 0.03 * GIB, (128.0,), "timeline")


def test_an_underfilled_gpu_gets_the_smallest_batch_within_two_percent_of_the_best() -> None:
    time = time_from_kernels(128, [6.0], launch_floor_ms=8.0)  # the knee is at 171
    got = advise_batch(time, ROOMY, 128, CAPACITY)
    assert got.suggested == 176
    assert got.reason is None
    assert got.gain == pytest.approx(8.0 / 128 / (8.25 / 176), rel=0.01)
    assert got.interval[0] <= got.gain <= got.interval[1]
    assert "learning rate" in got.caveat


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("starved", {"starved": True}),
        ("varying_shapes", {"varying_shapes": True}),
        ("unknown_capacity", {"capacity_bytes": None}),
        ("memory", {"memory": MemoryFit(13 * GIB, 0.01 * GIB, (128.0,), "timeline")}),
        ("no_gain", {"time": time_from_kernels(128, [80.0])}),
        ("feed", {"time": time_from_kernels(128, [6.0], launch_floor_ms=8.0, feed_ms_per_sample=0.0625)}),
        ("no_gain", {"noise": 0.4}),
    ],
)
def test_no_advice_has_its_reason(reason: str, arguments: dict[str, object]) -> None:
    given_arguments: dict[str, object] = {
        "time": time_from_kernels(128, [6.0], launch_floor_ms=8.0),
        "memory": ROOMY,
        "current": 128,
        "capacity_bytes": CAPACITY,
        **arguments,
    }
    got = advise_batch(**given_arguments)  # type: ignore[arg-type]
    assert got.suggested is None
    assert got.reason == reason


def test_a_declined_batch_still_has_its_numbers() -> None:
    memory = MemoryFit(0.0, 0.05 * GIB, (128.0,), "timeline")
    got = advise_batch(time_from_kernels(128, [80.0, 0.8], grows=[True, False]), memory, 128, CAPACITY)
    assert got.suggested is None
    assert got.considered == 256
    assert got.memory_share == pytest.approx(0.8)
    assert 1.0 < got.gain < 1.02
    sizes = [point.batch for point in got.curve]
    assert sizes == sorted(set(sizes))
    assert {128, 256} <= set(sizes)


def test_the_curve_carries_its_band() -> None:
    for point in curve(time_from_kernels(64, [5.0, 0.004], launch_floor_ms=2.0), [16, 32, 64, 128]):
        assert point.low <= point.samples_per_s <= point.high
