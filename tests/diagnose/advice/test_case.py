"""What a prescription may say: numbers only where replay and noise allow them, and what limits next."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bundlekit import gpu_trace
from tests.diagnose.advice.cases import case_of
from tests.tracekit import GEMM, Loop
from tracelens.diagnose.advice.case import Case, widened
from tracelens.diagnose.advice.loader_case import loader_case
from tracelens.diagnose.advice.prescribe import prescribe
from tracelens.signals.analysis import RankAnalysis
from tracelens.whatif import graph as g
from tracelens.whatif.replay import Scenario
from tracelens.whatif.scenarios import LOADED


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """14 ms steps of a GPU job: 8 of them loading in the training process."""
    folder = tmp_path_factory.mktemp("loading")
    return case_of(
        RankAnalysis(gpu_trace(steps=12, load_us=8000).tables(folder), {"num_workers": 0, "batch_size": 32})
    )


def with_error(case: Case, error: float | None) -> Case:
    return dataclasses.replace(case, whatifs=dataclasses.replace(case.whatifs, error=error))


@pytest.mark.parametrize(
    ("error", "said"), [(0.049, True), (-0.049, True), (0.051, False), (-0.051, False), (None, True)]
)
def test_numbers_are_withheld_where_the_replay_is_off(loading: Case, error: float | None, said: bool) -> None:
    stated, interval = with_error(loading, error).stated(1.5, (1.4, 1.6))
    assert (stated == 1.5) is said
    if said:
        # an interval of what steps show, and 1.645 * 2.5 % that two recordings differ by: in quadrature on the logarithm
        assert interval == pytest.approx((1.5 / 1.0838, 1.5 * 1.0795), abs=0.002)
    else:
        assert stated is interval is None


def test_the_whole_prescription_then_has_no_numbers(loading: Case) -> None:
    """Recommended all the same: the remedy is known, its gain is not."""
    advice = prescribe(with_error(loading, 0.2))
    assert "num_workers" in [r.parameter for r in advice.recommendations]
    assert [r.predicted_speedup for r in advice.recommendations] == [None] * len(advice.recommendations)
    assert [r.interval for r in advice.recommendations] == [None] * len(advice.recommendations)
    assert advice.plan is not None
    assert advice.plan.predicted_speedup is advice.plan.interval is None


def test_a_gain_that_noise_could_make_is_not_a_number(loading: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for noise, said in ((0.04, True), (0.06, False)):
        monkeypatch.setattr(Case, "noise", noise)
        assert (loading.stated(1.1, (1.0, 1.2))[0] is not None) is said


def test_noise_is_the_error_of_the_mean_step(tmp_path: Path) -> None:
    """Waits of 0 and 2 ms by turns; two steps say nothing of their spread."""

    def noise(steps: int, swing: float) -> float:
        loop = Loop(
            steps=steps, load_us=3000, kernels=((GEMM, 500.0),) * 2, wait=True, slow=lambda s: swing * (s % 2)
        )
        return case_of(RankAnalysis(loop.trace().tables(tmp_path / f"{steps}-{swing}"))).noise

    assert noise(30, 0) == pytest.approx(0, abs=1e-6)
    assert 0 < noise(30, 1000) < 0.1
    assert noise(2, 0) == 0.05


def test_the_next_limit_is_the_class_that_saves_most_after_the_change(loading: Case) -> None:
    assert loading.bottleneck == "cpu"
    assert loading.cause == "load.main_process"
    assert loading.next_bottleneck(None) == "cpu"
    assert loading.next_bottleneck(LOADED) == "gpu"
    # without kernels the host's launches are what is left
    kernels = Scenario("gone", host=LOADED.host, loader=0.0, device=((g.ARITHMETIC, 0.0), (g.MEMORY, 0.0)))
    assert loading.next_bottleneck(kernels) == "cpu"


def test_without_a_replay_nothing_is_said_to_come_next(loading: Case) -> None:
    bare = dataclasses.replace(loading, replayed=None)
    assert bare.next_bottleneck(LOADED) is None
    assert bare.speedups([LOADED]) is None


def test_speedups_are_ratios_to_the_base(loading: Case) -> None:
    alone = loading.speedups([LOADED])
    again = loading.speedups([LOADED], base=LOADED)
    assert alone is not None
    assert alone[0] == pytest.approx(14 / 6, rel=0.02)
    assert again == [1.0]


def test_consumption_is_the_step_with_every_batch_ready(loading: Case) -> None:
    assert loading.consume_ms().tolist() == pytest.approx([5.97], rel=0.01)
    without = dataclasses.replace(loading, replayed=None)
    # no replay and no step log: the step less what loading leaves idle
    assert float(np.mean(without.consume_ms())) == pytest.approx(14 - 8, rel=0.05)


@given(st.floats(1.0, 5.0), st.floats(0.5, 1.0), st.floats(1.0, 2.0), st.floats(0.0, 0.2))
def test_widening_only_widens(gain: float, down: float, up: float, noise: float) -> None:
    low, high = widened(gain * down, gain, gain * up, noise)
    assert low <= gain * down + 1e-9
    assert high >= gain * up - 1e-9
    assert low > 0
    if noise == 0:
        assert low == pytest.approx(gain * down)
        assert high == pytest.approx(gain * up)


def test_widening_adds_in_quadrature() -> None:
    low, high = widened(1.2 / math.exp(0.3), 1.2, 1.2 * math.exp(0.3), 0.4 / 1.645)
    assert low == pytest.approx(1.2 * math.exp(-0.5))
    assert high == pytest.approx(1.2 * math.exp(0.5))


@pytest.mark.parametrize(("wait", "ahead"), [(True, 0), (False, 2)])
def test_how_far_the_host_runs_ahead(tmp_path: Path, wait: bool, ahead: int) -> None:
    """``.item()`` each step keeps loading and kernels apart: today's modelled step is then their sum."""
    loop = Loop(steps=12, load_us=8000, kernels=((GEMM, 600.0),) * 10, wait=wait)
    case = case_of(RankAnalysis(loop.trace().tables(tmp_path), {"num_workers": 0, "batch_size": 32}))
    loaded = loader_case(case)
    assert not isinstance(loaded, str)
    assert loaded.inputs.run_ahead == ahead
    assert loaded.advice.current.mean_ms == pytest.approx(case.step_ms, rel=0.03)
    assert case.step_ms == pytest.approx(14.1 if wait else 8.2, rel=0.02)


def test_a_blocking_copy_keeps_the_host_one_step_ahead(tmp_path: Path) -> None:
    loop = Loop(steps=12, load_us=8000, kernels=((GEMM, 600.0),) * 10, pinned=False, copy_us=4000)
    case = case_of(RankAnalysis(loop.trace().tables(tmp_path), {"num_workers": 0, "batch_size": 32}))
    loaded = loader_case(case)
    assert not isinstance(loaded, str)
    assert loaded.inputs.run_ahead == 1


def test_a_prescription_is_rehearsed_so_that_one_replay_answers_it(
    loading: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracelens.whatif import scenarios

    assert loading.replayed is not None
    loading.replayed.known.clear()
    replays: list[int] = []
    real = scenarios.replay_together

    def counted(feeds: Any, asked: Any, *args: Any, **more: Any) -> Any:
        replays.append(len(asked))
        return real(feeds, asked, *args, **more)

    monkeypatch.setattr(scenarios, "replay_together", counted)
    prescribe(loading)
    assert len(replays) <= 3
    assert max(replays) > 8
