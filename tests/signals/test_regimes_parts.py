"""The parts that regimes are made of: change-points, groups of numbers, rhythms, swings of the GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tracekit import Loop
from tracelens.ingest.tables import gpu_log
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.changepoints import change_points, normal_quantile
from tracelens.signals.modes import best_cut, group_count
from tracelens.signals.recurrence import recurrence, recurs
from tracelens.signals.regimes import step_clocks
from tracelens.signals.swing import swing_of, utilization_swing
from tracelens.trace.intervals import Intervals


def test_change_points_are_placed_and_spikes_ignored() -> None:
    random = np.random.default_rng(0)
    series = np.concatenate((random.normal(100, 5, 20), random.normal(130, 5, 25), random.normal(100, 5, 20)))
    assert change_points(series).tolist() == [20, 45]
    spikes = random.normal(100, 5, 60)
    spikes[::4] = 5000
    assert change_points(spikes).size == 0
    assert change_points(np.full(30, 7.0)).size == 0
    assert change_points([1.0, 2.0]).size == 0


def test_change_points_of_a_long_run() -> None:
    random = np.random.default_rng(0)
    series = np.concatenate((random.normal(100, 5, 20_000), random.normal(110, 5, 20_000)))
    found = change_points(series)
    assert found.size == 1
    assert abs(int(found[0]) - 20_000) <= 100


def test_normal_quantile() -> None:
    assert normal_quantile(np.array([0.025, 0.5, 0.975])) == pytest.approx([-1.95996, 0.0, 1.95996], abs=2e-3)


def test_groups_of_numbers() -> None:
    random = np.random.default_rng(1)
    one = random.normal(0, 1, 60)
    assert group_count(one)[0] == 1
    assert group_count(np.concatenate((one, one[:20] + 12)))[0] == 2
    assert group_count(np.concatenate((one, one + 20, one + 40)))[0] == 3
    assert best_cut(np.array([1.0, 1.1, 5.0, 1.2, 5.2])) == 5.0
    assert group_count(np.array([1.0, 9.0]))[0] == 1
    # a broad group and a far one are two, however well the broad one could be cut again
    assert group_count(np.concatenate((random.uniform(0, 1, 90), random.normal(4, 0.1, 10))))[0] == 2


def test_rhythm_survives_a_missed_occurrence() -> None:
    member = np.zeros(60, dtype=bool)
    member[[4, 14, 24, 44, 54]] = True
    assert recurrence(member).text == "every 10 steps"
    member[:] = False
    member[[4, 11, 30]] = True
    assert recurrence(member).text is None


def test_a_stretch_is_named_by_the_steps_own_numbers() -> None:
    member = np.arange(30) >= 20
    assert recurrence(member, numbers=np.arange(100, 130)).text == "from step 120 on"
    assert recurrence(~member, numbers=np.arange(100, 130)).text == "up to step 119"
    middle = (np.arange(30) >= 10) & (np.arange(30) < 20)
    assert recurrence(middle).text == "steps 10 to 19"


SECOND = 1_000_000_000


def swinging(phase: str) -> tuple[np.ndarray, np.ndarray, dict[str, Intervals]]:
    """Ten seconds, sampled at 5 Hz: a second busy, a second idle in which ``phase`` happens."""
    t = np.arange(1, 51) * (SECOND // 5)
    down = ((t - 1) // SECOND) % 2 == 1
    starts = np.arange(1, 10, 2) * SECOND
    return t, np.where(down, 0.02, 0.95), {phase: Intervals.of(starts, starts + SECOND)}


def test_a_swing_is_explained_by_the_loader() -> None:
    t, utilization, phases = swinging("load")
    swing = swing_of(t, utilization, phases, (0, 10 * SECOND))
    assert swing is not None
    assert swing.phase == "load"
    assert swing.period_s == pytest.approx(2)
    assert swing.correlation == pytest.approx(1)
    assert swing.sentence == (
        "GPU utilisation swings between 2 % and 95 % about every 2 s: in the dips the training loop waited for the loader "
        "100 % of the time, otherwise 0 %."
    )


def test_a_swing_that_the_loader_does_not_explain_says_so() -> None:
    t, utilization, phases = swinging("host")
    swing = swing_of(t, utilization, phases, (0, 10 * SECOND))
    assert swing is not None
    assert swing.phase == "host"
    always = {"load": Intervals.single(0, 10 * SECOND)}
    swing = swing_of(t, utilization, always, (0, 10 * SECOND))
    assert swing is not None
    assert swing.phase is None
    assert "nothing that was recorded sets the dips apart" in swing.sentence
    outside = swing_of(t, utilization, phases, (20 * SECOND, 30 * SECOND))
    assert outside is not None
    assert outside.phase is None
    assert "too few" in outside.sentence


def test_even_utilisation_does_not_swing() -> None:
    t, utilization, phases = swinging("load")
    assert swing_of(t, np.full(t.size, 0.6), phases, (0, 10 * SECOND)) is None
    assert swing_of(t[:3], utilization[:3], phases, (0, 10 * SECOND)) is None
    assert swing_of(t, np.where(t > 9 * SECOND, 0.0, 0.9), phases, (0, 10 * SECOND)) is None


def test_a_swing_beside_a_trace(tmp_path: Path) -> None:
    # 30 ms of kernels, then 60 ms in the loader, sampled every 10 ms
    loop = Loop(steps=12, load_us=60_000, kernels=(("gemm", 30_000),), wait=True)
    analysis = RankAnalysis(loop.trace().tables(tmp_path))
    low, high = analysis.window
    t = np.arange(low, high, 10_000_000)
    idle = analysis.phases.parts["load"].measure(t - 10_000_000, t) / 10_000_000
    log = gpu_log(
        {"t_ns": t + analysis.tables.base_ns, "utilization_gpu": 0.97 * (1 - idle)},
        source="gpu.csv", format="smi_csv", clock="utc",
    )  # fmt: skip
    swing = utilization_swing(replace(analysis, gpu_log=log))
    assert swing is not None
    assert swing.phase == "load"
    assert swing.correlation is not None
    assert swing.correlation > 0.9


def test_clocks_of_steps() -> None:
    t = np.arange(0, 10 * SECOND, SECOND)
    log = gpu_log(
        {"t_ns": t, "sm_clock_mhz": np.repeat([1900.0, 1400.0], 5), "throttle_reasons": np.zeros(10, np.int64)},
        source="gpu.csv", format="smi_csv", clock="utc",
    )  # fmt: skip
    clocks = step_clocks(log, np.arange(0, 11 * SECOND, SECOND))
    assert clocks is not None
    assert clocks[1] == pytest.approx(1)
    assert clocks[8] == pytest.approx(1400 / 1900)
    hot = replace(log, sm_clock_mhz=np.full(10, 1900.0), throttle_reasons=np.repeat([0, 0x40], 5))
    clocks = step_clocks(hot, np.arange(0, 11 * SECOND, SECOND))
    assert clocks is not None
    assert clocks[8] < 0.95 <= clocks[1]
    far = step_clocks(log, np.arange(100, 103) * SECOND)
    assert far is not None
    assert np.isnan(far).all()
    assert step_clocks(None, t) is None


def test_one_regime_costs_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.signals.clusters import step_groups

    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)  # an import would raise
    assert not step_groups(np.random.default_rng(0).normal(100, 4, 40), np.zeros((40, 6))).any()
    few = np.array([100.0, 101.0, 99.0, 100.5, 102.0, 900.0])
    assert step_groups(few, np.zeros((6, 6))).tolist() == [0, 0, 0, 0, 0, 1]
    # nor do the groups of a short trace
    stalled = np.arange(40) % 5 == 0
    durations = np.random.default_rng(0).normal(100, 4, 40) + 300 * stalled
    assert (step_groups(durations, np.zeros((40, 6))) == stalled).all()


def test_short_and_long_runs_are_grouped_alike() -> None:
    from tracelens.signals import clusters

    stalled = np.arange(120) % 6 == 0
    durations = np.random.default_rng(0).normal(100, 4, 120) + 80 * stalled
    features = clusters.step_features(durations, np.zeros((120, 6)))
    cut = (features[:, 0] >= best_cut(features[:, 0])).astype(int)
    assert (clusters._k_means(features, cut, 2) == stalled).all()
    assert (cut == stalled).all()


def test_silhouette_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import silhouette_score

    from tracelens.signals.clusters import silhouette

    random = np.random.default_rng(0)
    features = random.normal(0, 1, (40, 3))
    labels = np.array([0] * 20 + [1] * 19 + [2])
    features[:20] += 3
    assert silhouette(features, labels) == pytest.approx(silhouette_score(features, labels))


@pytest.mark.parametrize(
    ("steps", "every"),
    [
        ([7, 15, 23, 39, 47], 8),
        ([7, 15, 16, 23], 8),
        ([3, 4, 5, 6], None),
        ([2, 9, 30], None),
        ([5], None),
        ([], None),
    ],
)
def test_steps_that_recur_by_their_numbers_some_of_them_unseen(steps: list[int], every: float | None) -> None:
    assert recurs(np.array(steps, dtype=np.int64)) == every
