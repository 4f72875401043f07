"""What the loader's model promises where it does not explain the measured step."""

from __future__ import annotations

import pytest

from tracelens.diagnose.advice.loading import anchored
from tracelens.whatif.loader_model import LoaderSettings, Prediction, Utilisation


def modelled(mean: float, workers: int) -> Prediction:
    return Prediction(
        LoaderSettings(num_workers=workers), mean, mean, mean, 0.0, 1.0, Utilisation(1, 1, 1), mean, mean, 0.0
    )


def promised(
    measured: float, before: float, after: float, workers: int = 1, replayed: bool = False
) -> tuple[float, float, float]:
    gain, (low, high) = anchored(measured, modelled(before, workers), modelled(after, 2), replayed)
    return low, gain, high


def test_where_the_model_explains_the_step_its_gain_stands() -> None:
    assert promised(101, 100, 50) == pytest.approx((2, 2, 2))


def test_unexplained_time_is_never_promised_away() -> None:
    # the model sees 1.02x; three quarters of the step are something else
    low, gain, high = promised(400, 102, 100)
    assert (low, gain) == pytest.approx((400 / 398, 400 / 398))
    assert high == pytest.approx(4.0)


def test_a_model_slower_than_the_measured_step_lowers_the_interval() -> None:
    low, gain, high = promised(80, 100, 50)
    assert (low, gain) == pytest.approx((1.6, (2.0 * 1.6) ** 0.5))
    assert high == pytest.approx(80 / 30)


def test_loading_that_alternates_with_a_replayed_rest_is_measured_and_not_modelled() -> None:
    """No workers: the measured step is the sum of both, and what the model makes of their overlap does not matter."""
    assert promised(120, 100, 60, workers=0, replayed=True) == pytest.approx((100 / 60, 2.0, 2.0))
    assert promised(80, 100, 60, workers=0, replayed=True) == pytest.approx((80 / 60, 80 / 60, 100 / 60))
    # with workers, or where nothing was replayed, the usual rule holds
    assert promised(120, 100, 60, workers=0)[1] == pytest.approx(100 / 60)
    assert promised(120, 100, 60, replayed=True)[1] == pytest.approx(100 / 60)


def test_a_step_of_no_length_is_no_division_by_zero() -> None:
    assert promised(0, 100, 50) == pytest.approx((2, 2, 2))
