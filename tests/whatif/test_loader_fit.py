"""Contention and hand-over fitted to measured worker counts, and the priors where there are none."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from tracelens.errors import InputError
from tracelens.whatif.loader_fit import (
    SHARED_BEYOND_MAPPED,
    TENSOR_RATIO,
    Prior,
    busy_elsewhere,
    collate_prior,
    fit_crowding,
    fit_epoch_ms,
    fit_parallel,
    handover_prior,
)
from tracelens.whatif.loader_inputs import LoaderInputs, LoaderSettings, Machine
from tracelens.whatif.loader_model import predict

EVIDENCE = Path(__file__).resolve().parents[2] / ".." / "shared" / "evidence"
DECODED = 32 * 0.55e6  # bytes of 32 decoded ImageNet photographs, 470 x 390 pixels on average


def decode_rows() -> list[tuple[str, dict[int, float]]]:
    """(CPU, {workers: ms a batch of 32})."""
    with (EVIDENCE / "loader_decode_throughput.csv").open() as file:
        return [(r["cpu"], {w: 32e3 / float(r[f"w{w}"]) for w in (0, 2, 4, 8)}) for r in csv.DictReader(file)]


def host(cpu: str) -> Machine:
    return Machine(cores=16, threads_per_core=1 if cpu.startswith("Neoverse") else 2)


def test_without_points_the_prior_bounds_the_speed_of_many_workers() -> None:
    fit = fit_parallel((), machine=Machine(cores=32), cpu_ms=100.0, bytes_per_batch=20e6)
    assert fit.batch_ms(0) == pytest.approx((100.0, 100.0, 100.0))
    for workers in (1, 4, 16):
        middle, low, high = fit.batch_ms(workers)
        assert low < middle < high
        assert middle > 100.0 / workers
        assert high < 2.5 * 100.0 / workers + 10.0


def test_points_narrow_the_interval() -> None:
    machine = Machine(cores=32)
    blind = fit_parallel((), machine=machine, cpu_ms=100.0, bytes_per_batch=20e6)
    seen = fit_parallel([(0, 100.0), (2, 56.0), (4, 30.0)], machine=machine, bytes_per_batch=20e6)
    assert math.log(seen.batch_ms(8)[2] / seen.batch_ms(8)[1]) < 0.8 * math.log(
        blind.batch_ms(8)[2] / blind.batch_ms(8)[1]
    )


def test_a_known_ceiling_is_found() -> None:
    # the receiver needs 20 ms a batch: eight workers saturate it, sixteen change nothing
    fit = fit_parallel(
        [(0, 100.0), (8, 20.5)], machine=Machine(cores=64), bytes_per_batch=18e6, kind="object"
    )
    assert fit.batch_ms(16)[0] == pytest.approx(20.0, rel=0.06)


def test_no_ceiling_in_sight_is_not_invented() -> None:
    points = [(0, 100.0), (2, 50.5), (4, 25.3), (8, 12.7)]
    fit = fit_parallel(points, machine=Machine(cores=64), bytes_per_batch=1e5)
    assert fit.batch_ms(16)[0] == pytest.approx(6.4, rel=0.06)


def test_cores_bound_the_law() -> None:
    fit = fit_parallel((), machine=Machine(cores=4), cpu_ms=100.0, bytes_per_batch=1e5)
    assert fit.batch_ms(8)[0] >= 24.9
    waiting = fit_parallel((), machine=Machine(cores=1), cpu_ms=0.0, wait_ms=100.0, bytes_per_batch=1e5)
    assert waiting.batch_ms(8)[0] == pytest.approx(12.5, rel=0.05)


def test_service_times_recorded_in_workers_hold_the_copy_already() -> None:
    here, there = (
        fit_parallel((), machine=Machine(cores=8), cpu_ms=50.0, bytes_per_batch=40e6, in_worker=inside)
        for inside in (True, False)
    )
    # one worker needs what was recorded in one, and the main process alone is spared the copy
    assert here.batch_ms(1)[0] == pytest.approx(50.0, rel=0.03)
    assert here.batch_ms(0)[0] < 0.9 * 50.0
    assert there.batch_ms(0)[0] == pytest.approx(50.0)
    assert there.batch_ms(1)[0] > 1.1 * 50.0


def test_what_collating_in_a_worker_takes_beyond_a_plain_copy_is_shared_memorys() -> None:
    # 30 MB are copied in 6 ms; the rest of the 18 ms is writing fresh shared pages
    assert collate_prior(18.0, 30e6).main_ms == pytest.approx(TENSOR_RATIO * 12.0)
    # 40 MB are mapped anew in any process: less than half of what is beyond the copy is shared memory's
    assert collate_prior(20.0, 40e6).main_ms == pytest.approx(TENSOR_RATIO * SHARED_BEYOND_MAPPED * 12.0)
    # a costly collate function of a small batch is no hand-over
    assert collate_prior(500.0, 1e6).main_ms == pytest.approx(TENSOR_RATIO * 0.8)
    assert collate_prior(1.0, 40e6).main_ms == pytest.approx(TENSOR_RATIO * 0.05 * 40)


def test_law_and_simulation_agree() -> None:
    rng = np.random.default_rng(2)
    service = 100.0 * rng.lognormal(-0.005, 0.1, 400)
    service *= 100.0 / service.mean()
    machine = Machine(cores=32)
    fit = fit_parallel(
        [(0, 100.0), (2, 58.0), (4, 31.0)], machine=machine, bytes_per_batch=18e6, kind="object"
    )
    for workers in (1, 2, 4, 6, 8):
        costs = fit.costs(workers)
        run = LoaderInputs(service, np.zeros(1), 1e-3, parallel=costs, machine=machine, run_ahead=0)
        simulated = predict(run, LoaderSettings(num_workers=workers))
        middle, low, high = fit.batch_ms(workers)
        assert simulated.mean_ms == pytest.approx(middle, rel=0.08)
        assert simulated.low_ms == pytest.approx(low, rel=0.12)
        assert simulated.high_ms == pytest.approx(high, rel=0.12)


def test_unknown_sizes_are_believed_less() -> None:
    known = handover_prior(100.0, 18e6, "object")
    unknown = handover_prior(100.0)
    assert unknown.main_spread > known.main_spread
    assert handover_prior(100.0, 36e6, "object").main_ms == pytest.approx(2 * known.main_ms)


def test_epoch_cost_is_recovered_and_never_negative() -> None:
    base = LoaderInputs(
        np.full(1, 20.0), np.zeros(1), 10.0, batches_per_epoch=12, run_ahead=0, machine=Machine(8)
    )
    settings = LoaderSettings(num_workers=2)
    truth = predict(base.replace(epoch_ms=170.0), settings).mean_ms
    assert fit_epoch_ms(base, settings, truth) == pytest.approx(170.0, rel=0.01)
    assert fit_epoch_ms(base, settings, 0.1) == 0.0
    with pytest.raises(InputError, match="started every epoch"):
        fit_epoch_ms(base, settings.replace(persistent_workers=True), truth)


def test_waiting_for_a_core_tells_how_many_others_want_it() -> None:
    # three of ours and five others on four cores: each computes half the time
    others = busy_elsewhere(4, cpu_ms=100.0, run_delay_ms=100.0, running=3)
    assert others == pytest.approx(5.0)
    assert float(Machine(cores=4, busy_elsewhere=others).speed(3)) == pytest.approx(0.5)
    assert busy_elsewhere(4, 100.0, 0.0) == 0.0


def test_density_is_highest_where_the_fit_expects_the_measurement() -> None:
    fit = fit_parallel([(0, 100.0), (2, 56.0)], machine=Machine(cores=32), bytes_per_batch=20e6)
    expected = fit.batch_ms(4)[0]
    assert fit.log_density(4, expected) > fit.log_density(4, 1.3 * expected)
    assert fit.log_density(4, expected) > fit.log_density(4, 0.7 * expected)


def test_bad_points_are_refused() -> None:
    with pytest.raises(InputError, match="num_workers=0"):
        fit_parallel([(4, 25.0)], machine=Machine(cores=8))
    with pytest.raises(InputError, match="positive time"):
        fit_parallel([(0, 0.0)], machine=Machine(cores=8))


@pytest.mark.skipif(not EVIDENCE.is_dir(), reason="the published measurements are not here")
class TestPublishedDecodeTable:
    def test_eight_workers_from_fewer(self) -> None:
        ours, constant = [], []
        for cpu, ms in decode_rows():
            fit = fit_parallel(
                [(0, ms[0]), (2, ms[2]), (4, ms[4])],
                machine=host(cpu),
                bytes_per_batch=DECODED,
                kind="object",
            )
            ours.append(abs(ms[8] / fit.batch_ms(8)[0] - 1))
            constant.append(abs(ms[8] / ms[4] - 1))
        assert np.mean(ours) <= 0.09
        assert np.mean(ours) < np.mean(constant)

    def test_four_workers_from_none(self) -> None:
        inside, widths = [], []
        for cpu, ms in decode_rows():
            fit = fit_parallel([(0, ms[0])], machine=host(cpu), bytes_per_batch=DECODED, kind="object")
            _, low, high = fit.batch_ms(4)
            inside.append(low <= ms[4] <= high)
            widths.append(ms[0] / low - ms[0] / high)
        assert np.mean(inside) >= 0.8
        assert np.mean(widths) < 3.56 - 2.22

    def test_eight_workers_hardly_depend_on_the_priors(self) -> None:
        for main, ratio, contention in (
            (0.8, 2.0, 0.02),
            (1.0, 2.0, 0.02),
            (0.9, 1.5, 0.02),
            (0.9, 2.5, 0.01),
        ):
            errors = []
            for cpu, ms in decode_rows():
                prior = Prior(main * DECODED / 1e6, 0.2, ratio, 0.4, contention)
                points = [(0, ms[0]), (2, ms[2]), (4, ms[4])]
                fit = fit_parallel(points, machine=host(cpu), prior=prior)
                errors.append(abs(ms[8] / fit.batch_ms(8)[0] - 1))
            assert np.mean(errors) <= 0.095


@pytest.mark.parametrize("crowding", [0.0, 0.1])
def test_crowding_is_what_the_cores_alone_do_not_explain(crowding: float) -> None:
    settings = LoaderSettings(num_workers=16)
    known = LoaderInputs(
        np.full(16, 30.0), np.zeros(16), 5.0, main_cpu_ms=0.5, beside_workers=0.5, recorded_in_worker=True,
        machine=Machine(cores=2, crowding=crowding),
    )  # fmt: skip
    measured = predict(known, settings).mean_ms
    seen = known.replace(machine=Machine(cores=2), beside_workers=0.0, main_cpu_ms=0.5 * 17 / 2)
    got = fit_crowding(seen, settings, measured)
    assert got.machine.crowding == pytest.approx(crowding, abs=0.02)
    assert predict(got, settings).mean_ms == pytest.approx(measured, rel=0.03)
    if crowding:
        assert predict(got, LoaderSettings(num_workers=2)).mean_ms < 0.7 * measured
