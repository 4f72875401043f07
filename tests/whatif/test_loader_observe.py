"""Service times recovered from the main process's view of a loader."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.whatif.loader_inputs import LoaderInputs, LoaderSettings, Machine
from tracelens.whatif.loader_observe import service_with_workers, service_without_workers
from tracelens.whatif.loader_sim import Costs, Trace, simulate


def run(service: np.ndarray, consume: float, workers: int, steps: int = 120) -> Trace:
    inputs = LoaderInputs(service, np.zeros(1), consume, run_ahead=0, machine=Machine(cores=64))
    costs = Costs(
        wait=[0.0] * len(service),
        cpu=service.tolist(),
        consume=inputs.consume(),
        receive=0.0,
        pin=0.0,
        main_cpu=0.0,
        speed=[1.0] * (workers + 4),
        streams=math.inf,
    )
    return simulate(inputs, LoaderSettings(num_workers=workers), costs, [steps])


def test_without_workers_next_is_the_service() -> None:
    got = service_without_workers([50.0, 60.0], cpu_share=0.75)
    assert got.cpu_ms.tolist() == [37.5, 45.0]
    assert got.wait_ms.tolist() == [12.5, 15.0]
    assert not got.in_worker


@given(workers=st.integers(1, 6), mean=st.floats(20.0, 400.0), seed=st.integers(0, 50))
def test_a_limiting_loader_shows_its_service_times(workers: int, mean: float, seed: int) -> None:
    service = mean * np.random.default_rng(seed).lognormal(0.0, 0.1, 120)
    seen = run(service, consume=0.3 * mean / workers, workers=workers)
    got = service_with_workers(seen.takes, seen.waits, workers)
    assert got.known == "measured"
    assert got.in_worker
    assert float(np.mean(got.cpu_ms)) == pytest.approx(float(service.mean()), rel=0.06)


def test_a_fast_loader_only_bounds_them() -> None:
    seen = run(np.full(10, 30.0), consume=40.0, workers=4)
    got = service_with_workers(seen.takes[20:], seen.waits[20:], 4)
    assert got.known == "upper"
    assert float(got.cpu_ms[0]) == pytest.approx(0.8 * 160.0, rel=0.01)


def test_bursts_of_one_worker_stay_visible() -> None:
    service = np.where(np.arange(120) % 8 == 0, 300.0, 40.0)
    seen = run(service, consume=5.0, workers=2)
    got = service_with_workers(seen.takes, seen.waits, 2)
    assert got.cpu_ms.max() > 5 * np.median(got.cpu_ms)


def test_a_loader_that_only_just_limits_is_measured_from_waits_further_apart() -> None:
    service = 100.0 * np.random.default_rng(4).lognormal(0.0, 0.1, 200)
    seen = run(service, consume=24.5, workers=4, steps=200)
    got = service_with_workers(seen.takes[8:], seen.waits[8:], 4)
    assert got.known == "measured"
    assert float(np.mean(got.cpu_ms)) == pytest.approx(100.0, rel=0.08)


def test_epochs_are_kept_apart() -> None:
    # two epochs of six batches, two workers, 50 ms of service, and 400 ms between the epochs
    ends = np.asarray([50, 51, 100, 101, 150, 151, 601, 602, 651, 652, 701, 702], dtype=float)
    spans = np.asarray([50, 1, 49, 1, 49, 1, 450, 1, 49, 1, 49, 1], dtype=float)
    got = service_with_workers(ends, spans, 2, epoch=np.repeat([0, 1], 6))
    assert got.cpu_ms == pytest.approx(np.full(8, 50.0))


def test_bad_views_are_refused() -> None:
    with pytest.raises(InputError, match="not traced"):
        service_without_workers([])
    with pytest.raises(InputError, match="every batch"):
        service_with_workers([1.0, 2.0], [1.0], 2)
    with pytest.raises(InputError, match="two batches"):
        service_with_workers([1.0], [0.0], 1)
