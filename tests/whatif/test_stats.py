"""Intervals of means: coverage on series whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.whatif.stats import (
    block_error,
    block_length,
    bootstrap_mean,
    bootstrap_ratio,
    combine,
    over_rounds,
    weighted_quantile,
)


def correlated(seed: int, count: int = 300, memory: float = 0.7) -> np.ndarray:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 1.0, count)
    series = np.empty(count)
    series[0] = noise[0] / math.sqrt(1 - memory**2)
    for k in range(1, count):
        series[k] = memory * series[k - 1] + noise[k]
    return 50.0 + series


def test_intervals_of_correlated_steps_cover_the_mean() -> None:
    inside = naive = 0
    for seed in range(200):
        data = correlated(seed)
        _, low, high = bootstrap_mean(data, draws=200, seed=seed)
        inside += low <= 50.0 <= high
        half = 1.645 * data.std(ddof=1) / math.sqrt(len(data))
        naive += abs(data.mean() - 50.0) <= half
    assert inside / 200 >= 0.75  # nominal 0.9; blocks of 7 steps hold most of the memory, not all
    assert inside > naive + 20


def test_block_errors_see_correlation_that_a_plain_error_misses() -> None:
    ratios = [block_error(d) / (d.std(ddof=1) / math.sqrt(len(d))) for d in map(correlated, range(20))]
    assert np.mean(ratios) > 1.5
    white = [np.random.default_rng(seed).normal(10, 1, 300) for seed in range(20)]
    assert np.mean([block_error(d) / (d.std(ddof=1) / math.sqrt(300)) for d in white]) == pytest.approx(
        1.0, abs=0.1
    )


def test_few_values() -> None:
    assert block_error([]) == block_error([5.0]) == 0.0
    assert bootstrap_mean([5.0]) == (5.0, 5.0, 5.0)
    assert block_length(1) == 1
    with pytest.raises(ValueError, match="no steps"):
        bootstrap_mean([])
    with pytest.raises(ValueError, match="both sides"):
        bootstrap_ratio([], [1.0])


def test_a_speedup_and_its_interval() -> None:
    ratio, low, high = bootstrap_ratio(correlated(1) * 2, correlated(2))
    assert low <= ratio <= high
    assert low <= 2.0 <= high
    assert high / low < 1.05


@given(value=st.floats(0.1, 1e4), errors=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=4))
def test_independent_intervals_add_in_quadrature(value: float, errors: list[float]) -> None:
    spans = [(value * math.exp(-e), value * math.exp(e)) for e in errors]
    low, high = combine(value, spans)
    total = math.sqrt(sum(e * e for e in errors))
    assert math.log(high / value) == pytest.approx(total, abs=1e-9)
    assert math.log(value / low) == pytest.approx(total, abs=1e-9)


def test_weighted_quantiles() -> None:
    values = np.arange(1000.0)
    assert weighted_quantile(values, np.ones(1000), [0.5])[0] == pytest.approx(499.5, abs=1)
    heavy = np.where(values >= 900, 9.0, 1.0)
    assert weighted_quantile(values, heavy, [0.5])[0] == pytest.approx(900, abs=2)


def test_the_mean_of_a_periodic_series_does_not_depend_on_where_it_ends() -> None:
    bursts = [70.0, 1.0, 1.0, 1.0]
    for end in range(4, 13):
        assert over_rounds((bursts * 3)[:end], 4) == pytest.approx(73.0 / 4)
    assert np.mean((bursts * 3)[:9]) == pytest.approx(24.0)
    # less than a round, and no rounds at all
    assert over_rounds([70.0, 1.0, 1.0], 4) == pytest.approx(24.0)
    assert over_rounds([3.0, 5.0], 1) == over_rounds([3.0, 5.0], 0) == 4.0
