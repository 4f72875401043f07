"""The loader model: torch's rules, the machine, the choice, and published measurements."""

from __future__ import annotations

import csv
import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.whatif.loader_choice import Limits, advise, candidates, choose
from tracelens.whatif.loader_inputs import (
    LoaderInputs,
    LoaderSettings,
    Machine,
    ParallelCosts,
    Scenario,
    main_slowdown,
)
from tracelens.whatif.loader_model import predict, speedup_interval, sweep
from tracelens.whatif.loader_sim import Costs, simulate

EVIDENCE = Path(__file__).resolve().parents[2] / ".." / "shared" / "evidence"
ROOMY = Machine(cores=64)


def inputs(cpu: object = 100.0, wait: object = 0.0, consume: object = 1.0, **more: object) -> LoaderInputs:
    fields: dict[str, object] = {"machine": ROOMY, "run_ahead": 0, **more}
    return LoaderInputs(np.atleast_1d(cpu), np.atleast_1d(wait), consume, **fields)  # type: ignore[arg-type]


def trace(given_inputs: LoaderInputs, settings: LoaderSettings, epochs: list[int], **costs: object):  # type: ignore[no-untyped-def]
    machine = given_inputs.machine
    fields: dict[str, object] = {
        "wait": given_inputs.service_wait_ms.tolist(),
        "cpu": given_inputs.service_cpu_ms.tolist(),
        "consume": given_inputs.consume(),
        "receive": 0.0,
        "pin": 0.0,
        "main_cpu": given_inputs.main_cpu_ms,
        "speed": machine.speed(np.arange(settings.num_workers + 4 + given_inputs.main_threads)).tolist(),
        "streams": math.inf,
        **costs,
    }
    return simulate(given_inputs, settings, Costs(**fields), epochs)  # type: ignore[arg-type]


# torch's rules


def test_no_workers_is_the_sum_of_loading_and_computing() -> None:
    got = predict(inputs(80.0, 20.0, consume=50.0, pin_ms=5.0), LoaderSettings(pin_memory=True))
    assert got.mean_ms == pytest.approx(155.0)
    assert got.wait_ms == pytest.approx(105.0)


def test_no_workers_overlaps_a_device_that_runs_behind_the_host() -> None:
    # the host loads 60 ms and launches for 10 ms while the device computes 100 ms
    got = predict(inputs(60.0, consume=100.0, main_cpu_ms=10.0, run_ahead=2), LoaderSettings())
    assert got.mean_ms == pytest.approx(100.0, rel=1e-6)
    bound = predict(inputs(95.0, consume=100.0, main_cpu_ms=10.0, run_ahead=2), LoaderSettings())
    assert bound.mean_ms == pytest.approx(105.0, rel=1e-6)


def test_priming_lets_exactly_prefetch_times_workers_batches_be_fetched_ahead() -> None:
    # the consumer takes one batch and then blocks for very long: nothing beyond the primed indices can be
    # ready
    for workers, prefetch in ((1, 1), (2, 3), (4, 2)):
        settings = LoaderSettings(num_workers=workers, prefetch_factor=prefetch)
        slow_first = inputs(10.0, consume=lambda step: 1e6 if step == 0 else 0.0, fork_ms=0.0, init_ms=0.0)
        ends = trace(slow_first, settings, [workers * prefetch + 30]).ends
        # after the long step, the batches that were ready are taken at once: priming plus the one index that
        # taking the first batch released
        at_once = sum(1 for t in ends if t <= 1e6 + 10.0 + 1e-6)
        assert at_once == workers * prefetch + 1


def test_in_order_delivery_waits_for_the_head_of_the_line() -> None:
    # worker 0 gets every other batch, 100 ms; the other worker's 10 ms batches must wait for them
    costs = inputs([100.0, 10.0], consume=0.001, fork_ms=0.0, init_ms=0.0)
    ordered = trace(costs, LoaderSettings(num_workers=2), [40])
    assert ordered.received == list(range(40))
    assert ordered.ends[-1] / 40 == pytest.approx(50.0, rel=0.03)
    free = trace(costs, LoaderSettings(num_workers=2, in_order=False), [40])
    assert sorted(free.received) == list(range(40))
    assert free.received != list(range(40))
    assert free.received[:3] == [1, 3, 0]


def test_pin_thread_is_a_station_of_its_own() -> None:
    settings = LoaderSettings(num_workers=8, pin_memory=True)
    got = predict(inputs(10.0, consume=1.0, pin_ms=30.0), settings)
    assert got.mean_ms == pytest.approx(30.0, rel=0.03)
    assert predict(inputs(10.0, consume=1.0, pin_ms=30.0), settings.replace(pin_memory=False)).mean_ms < 3.0


def test_receiving_in_the_main_process_adds_to_the_step_and_a_pin_thread_takes_it_over() -> None:
    costs = ParallelCosts.exact(main_ms=20.0)
    without = predict(inputs(10.0, consume=30.0, parallel=costs), LoaderSettings(num_workers=8))
    assert without.mean_ms == pytest.approx(50.0, rel=0.01)
    pinned = predict(
        inputs(10.0, consume=30.0, parallel=costs), LoaderSettings(num_workers=8, pin_memory=True)
    )
    assert pinned.mean_ms == pytest.approx(30.0, rel=0.01)


def test_workers_start_every_epoch_unless_persistent() -> None:
    short = inputs(10.0, consume=20.0, batches_per_epoch=10, fork_ms=50.0, init_ms=0.0, epoch_ms=100.0)
    fresh = predict(short, LoaderSettings(num_workers=4))
    # 100 ms, four forks, the first batch arriving meanwhile, ten steps
    assert fresh.mean_ms * 10 == pytest.approx(100.0 + 4 * 50.0 + 10 * 20.0, rel=0.02)
    kept = predict(short, LoaderSettings(num_workers=4, persistent_workers=True))
    assert kept.mean_ms * 10 == pytest.approx(10.0 + 10 * 20.0, rel=0.02)


def test_long_epochs_spread_the_start_over_all_batches() -> None:
    long = inputs(10.0, consume=20.0, batches_per_epoch=5000, fork_ms=50.0, init_ms=0.0, epoch_ms=10_000.0)
    assert predict(long, LoaderSettings(num_workers=4)).mean_ms == pytest.approx(
        20.0 + 10_210 / 5000, rel=0.005
    )


def test_the_first_next_of_an_epoch_counts_from_iter() -> None:
    run = trace(inputs(10.0, consume=20.0, fork_ms=50.0, init_ms=0.0), LoaderSettings(num_workers=2), [5, 5])
    assert run.waits[0] == pytest.approx(100.0)
    assert run.waits[5] == pytest.approx(100.0)
    assert run.waits[1] == pytest.approx(0.0)


def test_a_deeper_queue_bridges_bursts() -> None:
    wait = np.zeros(40)
    wait[::20] = 300.0
    bursty = inputs(30.0, wait, consume=25.0)
    shallow = predict(bursty, LoaderSettings(num_workers=2, prefetch_factor=1))
    deep = predict(bursty, LoaderSettings(num_workers=2, prefetch_factor=8))
    assert deep.mean_ms < 0.9 * shallow.mean_ms


# the machine


def test_cores_bound_what_workers_can_do() -> None:
    got = sweep(inputs(100.0, consume=0.01, machine=Machine(cores=4)), LoaderSettings(), (4, 8, 16))
    assert [p.mean_ms for p in got.points] == pytest.approx([25.0, 25.0, 25.0], rel=0.02)


def test_waiting_needs_no_core_but_storage_may_limit_it() -> None:
    one_core = Machine(cores=1)
    assert predict(
        inputs(0.0, 100.0, machine=one_core), LoaderSettings(num_workers=10)
    ).mean_ms == pytest.approx(10.0, rel=0.03)
    disk = Machine(cores=16, storage_streams=2)
    assert predict(inputs(0.0, 100.0, machine=disk), LoaderSettings(num_workers=10)).mean_ms == pytest.approx(
        50.0, rel=0.03
    )


def test_busy_neighbours_hyperthreads_and_contention_slow_everybody() -> None:
    assert float(Machine(cores=4, busy_elsewhere=4).speed(4)) == pytest.approx(0.5)
    assert float(Machine(cores=8, threads_per_core=2, smt_yield=0.3).speed(8)) == pytest.approx(5.2 / 8)
    assert float(Machine(cores=8, threads_per_core=2).speed(4)) == pytest.approx(1.0)
    assert float(Machine(cores=8).speed(5, 0.1)) == pytest.approx(1 / 1.4)
    assert float(Machine(cores=2).speed(8, sliced=False)) == pytest.approx(1.0)


def test_cpu_time_recorded_under_contention_predicts_the_same_run_again() -> None:
    costs = ParallelCosts.exact(contention=0.1)
    alone = predict(inputs(100.0, consume=0.01, parallel=costs), LoaderSettings(num_workers=4))
    stretched = float(1 / ROOMY.speed(4, 0.1))
    recorded = inputs(100.0 * stretched, consume=0.01, parallel=costs, recorded_running=4.0)
    again = predict(recorded, LoaderSettings(num_workers=4))
    assert again.mean_ms == pytest.approx(alone.mean_ms, rel=0.01)


def test_the_main_process_slows_down_beside_computing_workers_only() -> None:
    costs = ParallelCosts.exact(host_growth=0.2)
    busy = inputs(30.0, consume=50.0, main_cpu_ms=50.0, parallel=costs)
    assert predict(busy, LoaderSettings(num_workers=2)).mean_ms == pytest.approx(60.0, rel=0.01)
    assert predict(busy, LoaderSettings()).mean_ms == pytest.approx(80.0)
    sleeping = inputs(0.0, 30.0, consume=50.0, main_cpu_ms=50.0, parallel=costs)
    assert predict(sleeping, LoaderSettings(num_workers=2)).mean_ms == pytest.approx(50.0, rel=0.01)


def test_a_host_on_the_critical_path_slows_the_step_down_beside_workers() -> None:
    costs = ParallelCosts.exact(host_growth=0.2)
    for share, step in ((0.0, 50.0), (0.5, 55.0), (1.0, 60.0)):
        bound = inputs(30.0, consume=50.0, main_cpu_ms=40.0, host_share=share, run_ahead=2, parallel=costs)
        assert predict(bound, LoaderSettings(num_workers=2)).mean_ms == pytest.approx(step, rel=0.01)
        assert predict(bound, LoaderSettings()).mean_ms < 81.0


def test_no_number_of_workers_gets_below_what_holds_them_up() -> None:
    held = inputs(40.0, consume=10.0, held_ms=30.0)
    for workers in (2, 4, 16):
        got = predict(held, LoaderSettings(num_workers=workers))
        assert got.mean_ms == got.fast_ms == 30.0
        assert got.wait_ms == pytest.approx(20.0, abs=0.5)
    assert predict(held, LoaderSettings(num_workers=1)).mean_ms == pytest.approx(40.0, rel=0.02)
    # without workers nothing is handed over
    assert predict(held, LoaderSettings()).mean_ms == pytest.approx(50.0)


def test_without_workers_the_main_process_pins_the_batches() -> None:
    pinning = inputs(40.0, consume=10.0, pin_ms=1.0, main_pin_ms=5.0)
    for pin, took in ((True, 56.0), (False, 50.0)):
        assert predict(pinning, LoaderSettings(pin_memory=pin)).mean_ms == pytest.approx(took)
    assert predict(pinning, LoaderSettings(num_workers=1, pin_memory=True)).mean_ms == pytest.approx(
        40.0, rel=0.02
    )


def test_one_slow_worker_delivers_in_its_own_time_whatever_the_others_do() -> None:
    slow = inputs(20.0, consume=1.0, slow_worker=4.0)
    for workers in (1, 2, 4):
        got = predict(slow, LoaderSettings(num_workers=workers))
        assert got.mean_ms == pytest.approx(80.0 / workers, rel=0.03)
    assert predict(slow, LoaderSettings()).mean_ms == pytest.approx(21.0)


def test_crowded_cores_lose_more_than_their_share() -> None:
    four = Machine(cores=4, crowding=0.1)
    assert float(four.speed(4)) == 1.0
    assert float(four.speed(8)) == pytest.approx(0.5 / 1.1)
    assert float(four.speed(16)) == pytest.approx(0.25 / 1.3)
    assert float(four.speed(16, sliced=False)) == 1.0


def test_a_main_process_among_fewer_workers_needs_less_time() -> None:
    """Recorded beside 15 workers on two cores, where it took sqrt(8) times as long; half of the step is its own work."""
    crowded = inputs(1.0, consume=40.0, crowd=15, host_relief=0.5, machine=Machine(cores=2), run_ahead=2)
    slow = math.sqrt(8.0)
    assert main_slowdown(15, 2.0) == pytest.approx(slow)
    assert main_slowdown(1, 2.0) == main_slowdown(0, 2.0) == 1.0
    for workers in (15, 7, 1):
        left = 40.0 * (1 - 0.5 * (slow - main_slowdown(workers, 2.0)) / (slow - 1))
        assert predict(crowded, LoaderSettings(num_workers=workers)).mean_ms == pytest.approx(left, rel=0.01)


def test_the_rest_of_the_job_takes_its_part_of_the_cores_from_the_workers() -> None:
    beside = inputs(40.0, consume=1.0, machine=Machine(cores=2), beside_workers=0.5)
    assert predict(beside, LoaderSettings(num_workers=4)).mean_ms == pytest.approx(40.0 / 1.5, rel=0.03)
    assert predict(beside, LoaderSettings()).mean_ms == pytest.approx(41.0)


def test_fewer_workers_than_today_may_be_more_than_the_cores() -> None:
    limits = Limits(cores=2)
    assert limits.reason_against(LoaderSettings(num_workers=3)) == "cores"
    assert limits.reason_against(LoaderSettings(num_workers=3), today=12) is None
    assert limits.reason_against(LoaderSettings(num_workers=12), today=12) == "cores"


def test_storage_is_not_asked_for_more_readers_than_twice_those_it_was_seen_to_serve() -> None:
    reading = inputs(1.0, 99.0, consume=1.0)
    limits = Limits(cores=32, readers=8)
    assert limits.reason_against(LoaderSettings(num_workers=8)) is None
    assert limits.reason_against(LoaderSettings(num_workers=12)) == "storage"
    got = advise(reading, LoaderSettings(num_workers=4), limits)
    assert got.advised.settings.num_workers == 8
    assert got.limited_by == "storage"


def test_a_known_error_of_the_service_time_takes_the_place_of_its_spread() -> None:
    bursty = np.asarray([10.0] * 9 + [400.0])
    wide = predict(inputs(bursty, consume=1.0), LoaderSettings(num_workers=4))
    narrow = predict(inputs(bursty, consume=1.0, service_error=0.03), LoaderSettings(num_workers=4))
    assert narrow.mean_ms == wide.mean_ms
    assert narrow.slow_ms < wide.slow_ms


def test_a_main_process_with_many_threads_competes_with_its_workers() -> None:
    four = {"main_cpu_ms": 40.0, "main_threads": 4, "machine": Machine(cores=4)}
    assert predict(inputs(0.0, consume=40.0, **four), LoaderSettings()).mean_ms == pytest.approx(40.0)
    # 160 ms of fetching and 4 x 40 ms of computing take 80 ms on four cores when they always overlap
    got = predict(inputs(160.0, consume=40.0, **four), LoaderSettings(num_workers=4))
    assert 60.0 < got.mean_ms < 90.0
    one = {**four, "main_threads": 1}
    assert predict(inputs(160.0, consume=40.0, **one), LoaderSettings(num_workers=4)).mean_ms < got.mean_ms


# laws that hold for every input

times = st.lists(st.floats(0.5, 200.0), min_size=1, max_size=12)


@given(cpu=st.floats(0.5, 200.0), wait=st.floats(0.0, 50.0), consume=st.floats(1.0, 100.0))
def test_more_workers_never_hurt_without_contention(cpu: float, wait: float, consume: float) -> None:
    # of equal batches; a period in the batches can make one more worker worse, in torch as in the model
    given_inputs = inputs(cpu, wait, consume=consume)
    settings = LoaderSettings(num_workers=1)
    means = [trace(given_inputs, settings.replace(num_workers=w), [60]).ends[-1] for w in (1, 2, 3, 5, 8)]
    start = 8 * given_inputs.fork_ms
    assert all(b <= a + start + 1e-6 for a, b in itertools.pairwise(means))


@given(
    cpu=times,
    wait=st.floats(0.0, 50.0),
    consume=st.floats(1.0, 100.0),
    main=st.floats(0.0, 120.0),
    ahead=st.integers(0, 3),
    workers=st.integers(0, 6),
    prefetch=st.integers(1, 4),
    in_order=st.booleans(),
    pin=st.booleans(),
)
def test_no_step_is_lost_and_none_is_faster_than_its_resources(
    cpu: list[float],
    wait: float,
    consume: float,
    main: float,
    ahead: int,
    workers: int,
    prefetch: int,
    in_order: bool,
    pin: bool,
) -> None:
    given_inputs = inputs(
        cpu, wait, consume, main_cpu_ms=main, run_ahead=ahead, machine=Machine(cores=3), fork_ms=1.0
    )
    settings = LoaderSettings(workers, prefetch, False, pin, in_order)
    steps = [17, 13]
    run = trace(given_inputs, settings, steps, receive=2.0, pin=3.0)
    total = sum(steps)
    assert len(run.ends) == len(run.waits) == total
    assert sorted(run.received) == list(range(total))
    if in_order:
        assert run.received == list(range(total))
    assert sorted(run.received[:17]) == list(range(17))  # epochs do not mix
    assert all(b >= a for a, b in zip(run.ends, run.ends[1:], strict=False))
    assert run.ends[-1] >= total * max(consume, main) - 1e-6
    service = sum(cpu[k % len(cpu)] + wait for k in range(total))
    assert run.ends[-1] >= service / max(workers, 1) - 1e-6
    assert run.ends[-1] >= sum(cpu[k % len(cpu)] for k in range(total)) / 3 - 1e-6  # three cores
    if workers:
        assert run.ends[-1] >= total * 2.0 - 1e-6  # receiving is serial
        assert run.cpu_busy >= sum(cpu[k % len(cpu)] for k in range(total)) - 1e-6


def test_a_fast_loader_leaves_the_consumer_alone() -> None:
    got = predict(inputs(10.0, consume=50.0), LoaderSettings(num_workers=2))
    assert got.mean_ms == pytest.approx(50.0)
    assert got.wait_ms == pytest.approx(0.0, abs=0.2)
    assert got.utilisation.consumer == pytest.approx(1.0, abs=0.02)


def test_intervals_contain_the_prediction_and_widen_with_what_is_unknown() -> None:
    rng = np.random.default_rng(3)
    few, many = rng.lognormal(4.0, 0.5, 8), rng.lognormal(4.0, 0.5, 800)
    narrow = predict(inputs(many, consume=1.0), LoaderSettings(num_workers=2))
    wide = predict(inputs(few, consume=1.0), LoaderSettings(num_workers=2))
    assert narrow.low_ms <= narrow.mean_ms <= narrow.high_ms
    assert wide.high_ms / wide.low_ms > narrow.high_ms / narrow.low_ms
    costs = ParallelCosts(Scenario(5.0, 2.0, 0.02), Scenario(0.0, 0.0, 0.0), Scenario(30.0, 10.0, 0.1))
    unsure = predict(inputs(many, consume=1.0, parallel=costs), LoaderSettings(num_workers=2))
    assert unsure.high_ms / unsure.low_ms > 1.3 * narrow.high_ms / narrow.low_ms


def test_a_speedup_interval_cancels_what_both_sides_share() -> None:
    rng = np.random.default_rng(5)
    some = inputs(rng.lognormal(4.0, 0.6, 10), consume=1.0)
    before, after = predict(some, LoaderSettings()), predict(some, LoaderSettings(num_workers=4))
    low, high = speedup_interval(before, after)
    assert low <= before.mean_ms / after.mean_ms <= high
    assert high / low < (after.high_ms / after.low_ms) * (before.high_ms / before.low_ms)
    assert speedup_interval(before, before) == (1.0, 1.0)


def test_a_sweep_is_quick() -> None:
    rng = np.random.default_rng(1)
    many = inputs(rng.lognormal(4.0, 0.3, 200), consume=20.0, main_cpu_ms=8.0, run_ahead=2)
    began = time.process_time()
    sweep(many, LoaderSettings(pin_memory=True), range(17))
    assert time.process_time() - began < 2.0  # 0.06 s here; a guard against another order of magnitude


# the choice


def test_the_smallest_value_within_two_percent_of_the_best_is_chosen() -> None:
    curve = sweep(inputs(100.0, consume=25.0), LoaderSettings(), range(13))
    choice = choose(curve, 0)
    assert choice.changed
    assert choice.chosen.settings.num_workers == 4
    assert choice.speedup == pytest.approx(5.0, rel=0.02)
    assert choose(curve, 4).chosen.settings.num_workers == 4
    assert not choose(curve, 12).changed  # nothing to gain: today's value stays, though fewer would do


def test_fewer_workers_where_more_hurt() -> None:
    crowded = inputs(
        100.0,
        consume=20.0,
        main_cpu_ms=20.0,
        machine=Machine(cores=2),
        parallel=ParallelCosts.exact(contention=0.3),
    )
    curve = sweep(crowded, LoaderSettings(), range(17))
    choice = choose(curve, 16, Limits(cores=16))
    if choice.changed:
        assert choice.chosen.settings.num_workers < 16
    assert curve.at(16).mean_ms >= curve.best.mean_ms


def test_limits_bind_and_are_named() -> None:
    curve = sweep(inputs(100.0, consume=5.0), LoaderSettings(), range(17))
    assert choose(curve, 0, Limits(cores=6)).chosen.settings.num_workers == 6
    assert choose(curve, 0, Limits(cores=6)).limited_by == "cores"
    shm = Limits(cores=16, shm_bytes=64e6, bytes_per_batch=10e6)
    assert choose(curve, 0, shm).chosen.settings.num_workers == 1
    assert choose(curve, 0, shm).limited_by == "shm"
    ram = Limits(cores=16, ram_free=10e9, worker_rss=2e9)
    assert choose(curve, 0, ram).chosen.settings.num_workers == 4
    assert choose(curve, 0, ram).limited_by == "ram"
    assert choose(curve, 0, Limits(cores=16, shards=False)).chosen.settings.num_workers == 1
    assert choose(curve, 0, Limits(cores=32)).limited_by is None


def test_persistent_workers_are_advised_for_short_epochs_only() -> None:
    short = inputs(30.0, consume=20.0, batches_per_epoch=8, fork_ms=20.0, init_ms=100.0)
    got = advise(short, LoaderSettings(num_workers=4), Limits(cores=8))
    assert got.changes.get("persistent_workers") is True
    assert got.gains["persistent_workers"] > 1.5
    long = inputs(30.0, consume=20.0, batches_per_epoch=20_000, fork_ms=20.0, init_ms=100.0)
    assert advise(long, LoaderSettings(num_workers=4), Limits(cores=8)).changes == {}


def test_prefetch_is_advised_where_waits_are_bursty_and_cores_are_short() -> None:
    wait = np.zeros(40)
    wait[::20] = 400.0
    got = advise(inputs(40.0, wait, consume=30.0), LoaderSettings(num_workers=2), Limits(cores=2))
    assert got.changes["prefetch_factor"] > 2
    steady = advise(inputs(40.0, consume=10.0), LoaderSettings(num_workers=2), Limits(cores=2))
    assert "prefetch_factor" not in steady.changes


def test_nothing_is_advised_for_a_healthy_loader() -> None:
    got = advise(inputs(10.0, consume=50.0), LoaderSettings(num_workers=2), Limits(cores=8))
    assert got.changes == {}
    assert got.advised == got.current


def test_candidates_stay_within_the_cores_and_hold_todays_value() -> None:
    assert candidates(4, 0) == (0, 1, 2, 3, 4)
    # twelve on two cores: three or four may do as well as two and are still fewer
    assert candidates(2.5, 12) == (0, 1, 2, 3, 4, 12)
    assert candidates(2.5, 3) == (0, 1, 2, 3)
    assert max(candidates(None, 0)) == 32


def test_bad_inputs_are_refused_with_one_line() -> None:
    for make in (
        lambda: inputs([1.0, math.nan]),
        lambda: inputs([-1.0]),
        lambda: LoaderInputs(np.zeros(2), np.zeros(3), 1.0),
        lambda: inputs(1.0, consume=[]),
        lambda: inputs(1.0, batches_per_epoch=0),
        lambda: LoaderSettings(num_workers=-1),
        lambda: Machine(cores=0),
    ):
        with pytest.raises(InputError) as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.skipif(not EVIDENCE.is_dir(), reason="the published measurements are not here")
def test_published_sleep_table_within_three_percent_of_the_epoch() -> None:
    from tracelens.whatif.loader_fit import fit_epoch_ms

    with (EVIDENCE / "loader_sleep_overhead.csv").open() as file:
        overhead = {
            int(row["num_workers"]): float(row["overhead_s_per_epoch"]) for row in csv.DictReader(file)
        }
    base = inputs(0.0, overhead[0] * 100.0, consume=200.0, batches_per_epoch=10)
    start = fit_epoch_ms(base, LoaderSettings(num_workers=1), (2.0 + overhead[1]) * 100.0)
    fitted = base.replace(epoch_ms=start)
    for workers in (2, 3, 4):
        predicted = predict(fitted, LoaderSettings(num_workers=workers)).mean_ms / 100.0
        assert predicted == pytest.approx(2.0 + overhead[workers], rel=0.03)


def test_a_core_that_may_not_be_shared_widens_the_interval_upwards_only() -> None:
    paired, apart = Machine(cores=2, threads_per_core=2, smt_yield=0.4), Machine(cores=2)
    one, two = LoaderSettings(num_workers=1), LoaderSettings(num_workers=2)
    sure, unsure = [
        speedup_interval(predict(given, one), predict(given, two))
        for given in (inputs(machine=paired), inputs(machine=paired, machine_at_best=apart))
    ]
    assert unsure[0] == pytest.approx(sure[0])
    assert sure[1] < 1.7
    assert unsure[1] > 1.9
