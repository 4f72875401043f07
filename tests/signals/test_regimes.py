from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracekit import Loop
from tracelens.ingest.runlog import StepLog
from tracelens.model import PHASES
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.clusters import step_groups
from tracelens.signals.regimes import find_regimes, regime_signals, regimes_of, run_regimes, sentence
from tracelens.signals.signal import Signals

LOAD, COMPUTE = PHASES.index("load"), PHASES.index("compute")


def phases(load: object, compute: object, count: int) -> np.ndarray:
    out = np.zeros((count, len(PHASES)))
    out[:, LOAD], out[:, COMPUTE] = load, compute
    return out


def normal(count: int, seed: int = 0, spread: float = 4.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, spread, count)


def test_one_noisy_regime_is_one() -> None:
    compute = normal(60, spread=8)
    regimes, labels = regimes_of(compute, phases(0, compute, 60), bottleneck="gpu")
    assert [(r.label, r.share_of_steps, r.share_of_time, r.bottleneck) for r in regimes] == [
        ("steady", 1.0, 1.0, "gpu")
    ]
    assert (labels == 0).all()


def test_every_fourth_step_waits() -> None:
    compute = normal(40)
    load = np.where(np.arange(40) % 4 == 3, 900.0, 0.0)
    parts = phases(load, compute, 40)
    regimes, labels = regimes_of(compute + load, parts, bottleneck="cpu")
    steady, stall = regimes
    assert (steady.label, steady.share_of_steps, steady.bottleneck) == ("steady", 0.75, "gpu")
    assert (stall.label, stall.period, stall.bottleneck) == ("loader stall", "every 4 steps", "cpu")
    assert stall.mean_ms == pytest.approx(1000, rel=0.01)
    assert stall.share_of_time == pytest.approx(1000 / 1300, abs=0.01)
    assert (labels == (np.arange(40) % 4 == 3)).all()
    said = sentence(regimes, labels, compute + load, parts)
    assert said is not None
    assert said.startswith("3 of 4 steps take 99.")
    assert "loader stall every 4 steps" in said
    assert "waiting for the loader" in said


def test_four_steps_are_enough_where_the_stall_is_plain() -> None:
    durations = np.array([100.0, 110.0, 92.0, 1000.0])
    regimes, _ = regimes_of(durations, phases(durations - 90, 90, 4))
    assert [r.share_of_steps for r in regimes] == [0.75, 0.25]
    assert regimes_of(durations[:3], None)[0][0].label == "steady"


def test_clocks_cut_half_way_are_throttling() -> None:
    compute = np.concatenate((normal(30), 1.25 * normal(30, 1)))
    clocks = np.repeat([1.0, 0.8], 30)
    regimes, labels = regimes_of(compute, phases(0, compute, 60), cut_clocks=clocks, bottleneck="gpu")
    assert [(r.label, r.period) for r in regimes] == [
        ("steady", "up to step 29"),
        ("throttled", "from step 30 on"),
    ]
    assert (labels == np.repeat([0, 1], 30)).all()
    # the same times without the clocks are no proof of a throttle
    assert regimes_of(compute, phases(0, compute, 60))[0][1].label == "slow kernels"


def test_stalls_within_throttled_steps_keep_both_apart() -> None:
    # step 29 is itself the start of an epoch
    compute = np.concatenate((normal(30), 1.25 * normal(30, 1)))
    load = np.where(np.arange(60) % 9 == 2, 300.0, 0.0)
    regimes, _ = regimes_of(
        compute + load, phases(load, compute, 60), cut_clocks=np.repeat([1.0, 0.8], 30), epoch_steps=9
    )
    assert {(r.label, r.period) for r in regimes} == {
        ("steady", "up to step 28"), ("throttled", "from step 30 on"), ("epoch start", "every epoch (9 steps)"),
    }  # fmt: skip


@pytest.mark.parametrize("known", ["length", "numbers", "neither"])
def test_epoch_starts_every_nine(known: str) -> None:
    compute = normal(45)
    load = np.where(np.arange(45) % 9 == 4, 400.0, 0.0)
    epochs = (np.arange(45) + 5) // 9
    regimes, _ = regimes_of(
        compute + load, phases(load, compute, 45), epoch_steps=9 if known == "length" else None,
        epochs=epochs if known == "numbers" else None,
    )  # fmt: skip
    expected = {
        "length": ("epoch start", "every epoch (9 steps)"),
        "numbers": ("epoch start", "every epoch"),
        "neither": ("loader stall", "every 9 steps"),
    }
    assert (regimes[1].label, regimes[1].period) == expected[known]
    assert regimes[1].share_of_steps == pytest.approx(5 / 45)


def test_bursts_and_lasting_slowness_have_their_names() -> None:
    compute, random = normal(60), np.random.default_rng(3)
    burst = np.where((np.arange(60) % 20 >= 10) & (np.arange(60) % 20 < 13), random.normal(300, 30, 60), 0)
    regimes, _ = regimes_of(compute + burst, phases(burst, compute, 60))
    assert (regimes[1].label, regimes[1].period) == ("stall burst", "3 steps in every 20")
    slow = np.where(np.arange(60) >= 40, 80.0, 0.0)
    regimes, _ = regimes_of(compute + slow, phases(slow, compute, 60), bottleneck="cpu")
    assert [(r.label, r.bottleneck) for r in regimes] == [("steady", "gpu"), ("slow loader", "cpu")]


def test_stalls_by_the_clock_get_their_seconds() -> None:
    random = np.random.default_rng(5)
    # steps of uneven length, a stall whenever another two seconds have gone by
    durations, load, now, due = [], [], 0.0, 2000.0
    for _ in range(200):
        length = float(random.uniform(60, 180))
        wait = 700.0 if now + length > due else 0.0
        due += 2000.0 if wait else 0.0
        durations.append(length + wait)
        load.append(wait)
        now += length + wait
    regimes, _ = regimes_of(np.array(durations), phases(load, np.array(durations) - load, 200))
    assert [r.label for r in regimes] == ["steady", "loader stall"]
    assert regimes[1].period == "every 2 s"


def test_a_rare_difference_that_sums_to_nothing_is_not_a_regime() -> None:
    durations = normal(400, spread=1)
    durations[37] = 250  # 0.4 % of the time
    assert len(regimes_of(durations, phases(0, durations, 400))[0]) == 1
    durations[37] = 2500  # 6 %
    regimes, _ = regimes_of(durations, phases(0, durations, 400))
    assert regimes[1].share_of_steps == pytest.approx(1 / 400)


def test_without_phases_a_group_has_no_verdict() -> None:
    durations = np.where(np.arange(40) % 4 == 3, 900.0, 100.0) + normal(40) - 100
    regimes, _ = regimes_of(durations)
    assert (regimes[1].label, regimes[1].bottleneck) == ("slow steps", "inconclusive")


NOISE = {
    "normal": lambda r, n: r.normal(100, 8, n),
    "lognormal": lambda r, n: 100 * r.lognormal(0, 0.3, n),
    "uniform": lambda r, n: r.uniform(50, 150, n),
    "exponential": lambda r, n: 20 + r.exponential(80, n),
    "gamma": lambda r, n: r.gamma(4, 25, n),
    "heavy tails": lambda r, n: 100 * np.exp(0.05 * r.standard_t(3, n)),
}


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("count", [6, 20, 80])
def test_noise_makes_no_regimes_in_95_of_100_seeds(kind: str, count: int) -> None:
    false = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        durations = np.maximum(NOISE[kind](random, count), 1.0)
        load = np.maximum(durations - 60, 0) * random.uniform(0.5, 1, count)
        false += bool(step_groups(durations, phases(load, durations - load, count)).any())
    assert false <= 5


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), count=st.integers(4, 60), every=st.integers(2, 7), extra=st.floats(0, 2000)
)
def test_shares_sum_to_one_and_labels_name_regimes(seed: int, count: int, every: int, extra: float) -> None:
    load = np.where(np.arange(count) % every == 0, extra, 0.0)
    compute = np.abs(normal(count, seed)) + 1
    durations = compute + load
    regimes, labels = regimes_of(durations, phases(load, compute, count))
    assert sum(r.share_of_steps or 0 for r in regimes) == pytest.approx(1)
    assert sum(r.share_of_time or 0 for r in regimes) == pytest.approx(1)
    assert set(labels.tolist()) == set(range(len(regimes)))
    assert len({r.label for r in regimes}) == len(regimes)
    for index, regime in enumerate(regimes):
        assert regime.mean_ms == pytest.approx(float(durations[labels == index].mean()))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), every=st.integers(3, 6))
def test_groups_do_not_depend_on_the_order_of_steps(seed: int, every: int) -> None:
    random = np.random.default_rng(seed)
    compute = normal(48, seed)
    load = np.where(np.arange(48) % every == 0, random.normal(500, 20, 48), 0.0)
    parts = phases(load, compute, 48)
    order = random.permutation(48)
    whole, shuffled = step_groups(compute + load, parts), step_groups((compute + load)[order], parts[order])
    assert (whole[order] == shuffled).all()
    assert whole.max() == 1


def test_a_trace_with_stalls(tmp_path: Path) -> None:
    loop = Loop(steps=26, slow=lambda step: 40_000.0 if step % 4 == 3 else 0.0)
    analysis = RankAnalysis(loop.trace().tables(tmp_path))
    regimes, labels = find_regimes(analysis, "cpu")
    assert labels.size == analysis.steps.steady
    assert regimes[1].period == "every 4 steps"
    assert (regimes[1].label, regimes[1].bottleneck) == ("loader stall", "cpu")
    out = Signals()
    regime_signals(analysis, out)
    assert out.value("regimes.count") == 2
    share = out.number("regimes.slow_share")
    assert share is not None
    assert 0.5 < share < 0.95
    assert out["regimes.utilization_swing"].value is None


def test_a_trace_without_steps_has_no_regimes(tmp_path: Path) -> None:
    loop = Loop(steps=1, markers=False, optimizer_launches=0, iterator=None)
    analysis = RankAnalysis(loop.trace().tables(tmp_path))
    assert find_regimes(analysis)[0] == ()


def test_the_step_log_of_a_whole_run() -> None:
    count = 90
    wait = np.where(np.arange(count) % 30 == 0, 800.0, 1.0)
    length = (normal(count) + wait) * 1e6
    t1 = np.cumsum(length).astype(np.int64) + 10**18
    unknown = np.full(count, np.nan)
    log = StepLog(
        step=np.arange(count), t0=t1 - length.astype(np.int64), t1=t1, wait_ms=wait, samples=unknown,
        window=np.full(count, -1), mem_peak=unknown, mem_reserved=unknown, epoch=np.arange(count) // 30,
        plain=np.arange(count) != 45,
    )  # fmt: skip
    regimes, labels = run_regimes(log, "cpu")
    assert labels.size == count - 1
    assert [(r.label, r.period, r.bottleneck) for r in regimes[1:]] == [("epoch start", "every epoch", "cpu")]


def test_the_result_names_the_regime_of_each_step(tmp_path: Path) -> None:
    loop = Loop(steps=26, slow=lambda step: 40_000.0 if step % 4 == 3 else 0.0)
    result = loop.trace().result(tmp_path)
    assert [r.label for r in result.regimes] == ["steady", "loader stall"]
    assert {row.regime for row in result.step_rows} == {"steady", "loader stall"}
    even = Loop(steps=8).trace().result(tmp_path, "even.json")
    assert [r.label for r in even.regimes] == ["steady"]
    assert {row.regime for row in even.step_rows} == {None}
