"""How long a batch takes to make, from a trace and the host log beside it; and whose loader the advice is about."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.diagnose.advice.cases import RULES, case_of
from tests.tracekit import GEMM, WORKERS, Loop
from tracelens.bundle import RankFiles
from tracelens.diagnose import analyse
from tracelens.diagnose.advice.case import Case
from tracelens.diagnose.advice.loader_case import loader_case
from tracelens.diagnose.advice.loader_machine import hyper_threads, is_crowded
from tracelens.diagnose.advice.loader_service import (
    batch_ms,
    batches_per_step,
    epoch_batches,
    loading_noise,
    observed_service,
    workers_seen,
)
from tracelens.diagnose.advice.loading import loader_proposals
from tracelens.diagnose.judge import judge
from tracelens.ingest.host_jsonl import read_host_log
from tracelens.ingest.runlog import read_run_log
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.machine import _pair
from tracelens.signals.signal import Signals
from tracelens.whatif.loader_inputs import LoaderSettings, Machine

KERNELS = ((GEMM, 500.0),) * 10


def log(folder: Path, end_ns: int, loads: list[list[float]], iowait: float = 0.0) -> Any:
    """Samples a tenth of a second apart up to the trace's end; ``loads``: percent of a core, by sample and worker."""
    rows = []
    for back, each in enumerate(reversed(loads)):
        processes: list[dict[str, Any]] = [{"pid": 1, "name": "main", "cpu_percent": 30.0}]
        processes += [
            {"pid": 2 + w, "name": f"worker{w}", "cpu_percent": load} for w, load in enumerate(each)
        ]
        sample = {"ts": end_ns - back * 100_000_000, "processes": processes, "cpu_count": 16}
        rows.append({**sample, "iowait_percent": iowait, "system_cpu_percent": 20.0})
    path = folder / "host.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    return read_host_log(path)


def bursts(folder: Path, loads: list[list[float]], iowait: float = 0.0) -> Case:
    """Two workers that run in step: every other 5 ms step waits 20 ms more for its batch."""
    loop = Loop(
        steps=12, load_us=100, kernels=KERNELS, wait=True, iterator=WORKERS, slow=lambda s: 20_000 * (s % 2)
    )
    tables = loop.trace().tables(folder)
    end = tables.base_ns + tables.extent[1]
    settings = {"num_workers": 2, "batch_size": 8, "prefetch_factor": 2, "persistent_workers": True}
    return case_of(RankAnalysis(tables, settings, None, log(folder, end, loads, iowait)))


SETTINGS = LoaderSettings(num_workers=2, persistent_workers=True)


def test_workers_are_seen_while_the_steps_ran(tmp_path: Path) -> None:
    # the job was idle before the trace began, which is 0.2 s long
    case = bursts(tmp_path, [[0.0, 0.0]] * 3 + [[90.0, 70.0]] * 3, iowait=1.25)
    seen = workers_seen(case)
    assert seen is not None
    assert seen.computing == pytest.approx(0.8, abs=0.01)
    # 1.25 % of 16 cores wait for storage: a tenth of each worker's time
    assert seen.reading == pytest.approx(0.1, abs=0.01)
    assert seen.busiest == pytest.approx(0.9 * (1 + 0.1 / 0.8), abs=0.01)
    assert seen.others == pytest.approx(1.8 - seen.busiest, abs=0.01)


def test_a_batch_takes_what_rounds_of_workers_take(tmp_path: Path) -> None:
    case = bursts(tmp_path, [[50.0, 50.0]] * 3)
    durations = case.analysis.steps.durations / 1e6
    assert len(durations) % 2 == 1  # the trace ends within a round
    assert batches_per_step(case) == 1
    assert batch_ms(case, SETTINGS) == pytest.approx((durations[:-1].mean() + durations[1:].mean()) / 2)
    # the waits are the loader's, and no noise of what could look like a gain of loading
    assert loading_noise(case) < 0.01 < case.noise


@pytest.mark.parametrize(("load", "held"), [(95.0, False), (40.0, True)])
def test_idle_workers_that_are_waited_for_are_held_up(tmp_path: Path, load: float, held: bool) -> None:
    case = bursts(tmp_path, [[load, load]] * 3)
    got = observed_service(case, SETTINGS)
    assert got is not None
    between = batch_ms(case, SETTINGS)
    assert got.held_ms == (between if held else 0.0)
    if held:
        assert got.cpu_ms == pytest.approx(np.full(len(got.cpu_ms), 2 * between * load / 100), rel=0.01)
    else:
        assert float(np.mean(got.cpu_ms)) == pytest.approx(2 * between, rel=0.1)


def test_loading_without_a_rule_of_its_own_is_advised_on_where_it_waits(tmp_path: Path) -> None:
    """No rule fires where workers are idle and yet waited for; a slow one among them still wants more beside it."""
    case = bursts(tmp_path, [[22.0, 88.0]] * 3)
    silent = dataclasses.replace(
        case, evaluations={k: v for k, v in case.evaluations.items() if not k.startswith("load.")}
    )
    assert silent.fired_load_rule is None
    loaded = loader_case(silent)
    assert not isinstance(loaded, str)
    assert loaded.inputs.slow_worker == pytest.approx(4.0, rel=0.01)
    (workers,) = (
        p.recommendation for p in loader_proposals(silent, loaded)[0] if p.recommendation.parameter == "num_workers"
    )  # fmt: skip
    assert workers.rule == "load.too_few_workers"
    # 30 ms a batch of the slow one, which makes every n-th, and 5 ms of computing: six of them
    assert workers.suggested == 6
    assert workers.predicted_speedup == pytest.approx(15.2 / 5.2, rel=0.05)


def test_held_up_workers_are_not_advised_on_and_the_reason_says_so(tmp_path: Path) -> None:
    case = bursts(tmp_path, [[40.0, 40.0]] * 3)
    loaded = loader_case(case)
    assert not isinstance(loaded, str)
    proposals, declined, _ = loader_proposals(case, loaded)
    assert "num_workers" not in [p.recommendation.parameter for p in proposals]
    (reason,) = (d.reason for d in declined if d.parameter == "num_workers")
    assert "only 40 % of the time" in reason


@pytest.mark.parametrize(("load", "crowd"), [(20.0, False), (95.0, True)])
def test_workers_crowd_the_training_out_where_they_keep_few_cores_busy(
    tmp_path: Path, load: float, crowd: bool
) -> None:
    case = bursts(tmp_path, [[load, load]] * 3)
    cores = 1.5
    assert is_crowded(case, cores, SETTINGS, 2 * load / 100) is crowd
    assert not is_crowded(case, 16.0, SETTINGS, 2 * load / 100)


def test_the_rank_that_waits_for_its_data_gets_the_loaders_advice(tmp_path: Path) -> None:
    def judged(name: str, slow: float) -> Any:
        loop = Loop(steps=12, load_us=100 + slow, kernels=KERNELS, wait=True)
        settings = {"num_workers": 0, "batch_size": 8}
        return judge(RankAnalysis(loop.trace().tables(tmp_path / name), settings), RULES)

    fed, starved = judged("fed", 0.0), judged("starved", 20_000.0)
    found = analyse._starved([fed, starved], fed, "communication", None)
    assert found is not None
    assert found.analysis is starved.analysis
    assert analyse._starved([fed, starved], starved, "cpu", None) is None
    assert analyse._starved([fed, fed], fed, "gpu", None) is None


@pytest.mark.parametrize(
    ("looks", "paired", "sure"),
    [((), False, True), ((0.95,), False, True), ((0.6, 0.9), False, True), ((0.7,), True, False), ((0.69, 0.7), True, True),
     ((0.7, 0.62), True, False)],
)  # fmt: skip
def test_two_cpus_that_slow_each_other_down_share_a_core(
    looks: tuple[float, ...], paired: bool, sure: bool
) -> None:
    signals, plain = Signals(), Machine(cores=2)
    _pair(looks, signals)
    likely, at_best = hyper_threads(plain, signals)
    assert likely == (Machine(cores=2, threads_per_core=2, smt_yield=pytest.approx(0.4)) if paired else plain)
    assert at_best == (None if sure else plain)


@pytest.mark.parametrize(("epochs", "batches"), [([0, 0, 0], None), ([0, 0, 1], 10), ([], 10)])
def test_an_epoch_that_no_second_one_followed_is_no_reason_to_keep_workers(
    epochs: list[int], batches: int | None, tmp_path: Path
) -> None:
    steps = [{"step": k, "t0": 10**7 * k, "t1": 10**7 * (k + 1), "epoch": e} for k, e in enumerate(epochs)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    analysis = SimpleNamespace(
        run_log=read_run_log(RankFiles(0, tmp_path)), settings={"dataset_len": 96}, batch_size=10
    )
    assert epoch_batches(SimpleNamespace(analysis=analysis)) == batches  # type: ignore[arg-type]
