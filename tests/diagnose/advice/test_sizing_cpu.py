"""A larger batch without a GPU: only calling operators is spared, and only where that is what takes the time."""

from pathlib import Path

import pytest

from tests.diagnose.advice.cases import case_of
from tests.tracekit import Trace
from tracelens.diagnose.advice.sizing_cpu import main_memory, operator_time
from tracelens.signals.analysis import RankAnalysis


def steps_of(
    tmp_path: Path, operator_us: float, gap_us: float, operators: int, disturbed: int | None = None
) -> RankAnalysis:
    """Ten steps of 100 us of loading and alike operators with Python between them; one step may have a slow one."""
    trace, at = Trace(metadata={"schemaVersion": 1}), 1000.0
    for number in range(10):
        begin = at
        trace.next(at, at + 100)
        at += 100
        for position in range(operators):
            length = operator_us + (900 if number == disturbed and position == 3 else 0)
            trace.op("aten::mul", at, at + length)
            at += length + gap_us
        trace.step(number, begin, at - 1)
    return RankAnalysis(trace.tables(tmp_path), {"num_workers": 0, "batch_size": 4})


def test_small_operators_and_what_is_between_them_do_not_grow(tmp_path: Path) -> None:
    fit = operator_time(case_of(steps_of(tmp_path, operator_us=5, gap_us=5, operators=200)), 4, 0.0)
    assert fit is not None
    # 2 ms of calls stay, 0.1 ms of loading doubles
    assert fit.step_ms(4) == pytest.approx(2.1, rel=0.02)
    assert fit.step_ms(8) == pytest.approx(2.2, rel=0.02)
    low, high = fit.interval(8)
    assert low < 2.2 < high < 3.2  # at worst the operators' own half grows


def test_large_operators_grow(tmp_path: Path) -> None:
    fit = operator_time(case_of(steps_of(tmp_path, operator_us=200, gap_us=1, operators=20)), 4, 0.0)
    assert fit is not None
    assert fit.step_ms(8) == pytest.approx(2 * fit.step_ms(4), rel=0.02)


def test_one_disturbed_operator_is_not_its_work(tmp_path: Path) -> None:
    calm = operator_time(case_of(steps_of(tmp_path / "a", 5, 5, 200)), 4, 0.0)
    fit = operator_time(case_of(steps_of(tmp_path / "b", 5, 5, 200, disturbed=4)), 4, 0.0)
    assert calm is not None
    assert fit is not None
    assert fit.per_sample_ms == pytest.approx(calm.per_sample_ms, rel=0.05)


def test_python_that_runs_long_may_grow_with_the_batch(tmp_path: Path) -> None:
    fit = operator_time(case_of(steps_of(tmp_path, operator_us=5, gap_us=2000, operators=3)), 4, 0.0)
    assert fit is not None
    assert fit.step_ms(8) > 1.8 * fit.step_ms(4)


def test_without_samples_of_the_host_no_size_is_safe(tmp_path: Path) -> None:
    assert main_memory(case_of(steps_of(tmp_path, 5, 5, 50)), 4) == (None, None)
