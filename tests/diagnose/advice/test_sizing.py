"""Step times at other batch sizes: what grows, what stays, and what overlaps with what."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.diagnose.advice.cases import case_of
from tests.tracekit import GEMM, Loop
from tracelens.diagnose.advice.case import Case
from tracelens.diagnose.advice.sizing import _time, grows
from tracelens.signals.analysis import RankAnalysis


def job(folder: Path, *, wait: bool, load_us: float = 100, kernel_us: float = 1000.0, count: int = 8) -> Case:
    loop = Loop(
        steps=12,
        load_us=load_us,
        kernels=((GEMM, kernel_us),) * count,
        wait=wait,
        host_us=300,
        optimizer_launches=2,
    )
    return case_of(RankAnalysis(loop.trace().tables(folder), {"num_workers": 0, "batch_size": 32}))


def test_kernels_grow_and_host_work_between_synchronisations_does_not(tmp_path: Path) -> None:
    """Each step loads for 4 ms, computes for 8 ms and reads the loss: twice the batch takes twice both, nothing overlaps."""
    case = job(tmp_path, wait=True, load_us=4000)
    fit = _time(case, 32, 0.0)
    assert fit is not None
    assert fit.step_ms(32) == pytest.approx(case.step_ms)
    optimizer_ms = case.step_ms - 4.0 - 8.0
    assert fit.step_ms(64) == pytest.approx(case.step_ms + 4.0 + 8.0, abs=optimizer_ms)
    assert fit.gain(32, 64)[0] < 1.1


def test_a_host_that_launches_too_slowly_gains_from_a_larger_batch(tmp_path: Path) -> None:
    case = job(tmp_path, wait=False, kernel_us=100.0)
    fit = _time(case, 32, 0.0)
    assert fit is not None
    # 0.3 ms a launch against 0.1 ms kernels: 0.2 ms ones still fit in between
    assert fit.gain(32, 64)[0] == pytest.approx(2.0, abs=0.1)


def test_only_work_on_samples_grows(tmp_path: Path) -> None:
    case = job(tmp_path, wait=True)
    device, names = case.analysis.activity.device, case.analysis.tables.names
    growing = grows(case.analysis, np.arange(len(device)))
    kinds = {
        names[code]: bool(growing[device.name == code].all()) for code in np.unique(device.name).tolist()
    }
    assert kinds[GEMM]
    assert not all(kinds.values())


def test_kernels_that_were_not_recorded_leave_other_sizes_unknown(tmp_path: Path) -> None:
    case = job(tmp_path, wait=True)
    assert case.replayed is not None
    graph = case.replayed.graph
    hidden = np.full(graph.duration.size, 0.1 * graph.recorded_ns / graph.duration.size)
    (feed,) = case.replayed.feeds
    unseen = dataclasses.replace(feed, graph=dataclasses.replace(graph, hidden=hidden))
    dark = dataclasses.replace(case, replayed=dataclasses.replace(case.replayed, feeds=(unseen,)))
    assert _time(dark, 32, 0.0) is None
    assert _time(case, 32, 0.0) is not None


@pytest.mark.parametrize(("waiting", "known"), [(0.1, True), (2.0, False)])
def test_a_rank_that_waits_for_a_late_one_says_nothing_of_other_sizes(
    tmp_path: Path, waiting: float, known: bool
) -> None:
    case = job(tmp_path, wait=True)
    case.signals.add("communication.waiting_ms", waiting, "ms", "all ranks")
    assert case.step_ms > 5.0
    assert (_time(case, 32, 0.0) is not None) is known
