"""Plans, declined advice and the words of a prescription, on runs whose remedy is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bundlekit import Run
from tests.diagnose.advice.cases import case_of
from tests.diagnose.advice.handed import ROOT, advised, parameters, result_of
from tests.tracekit import GEMM, POINTWISE, WORKERS, Loop, Trace
from tracelens.diagnose.advice.case import Advice
from tracelens.diagnose.advice.prescribe import prescribe
from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.model import Recommendation, Result
from tracelens.signals.analysis import RankAnalysis

FP32 = "ampere_sgemm_128x128_nn"
RUNS = ROOT / "fixtures" / "runs"


def advice_of(loop: Loop | Trace, folder: Path, **settings: Any) -> Advice:
    trace = loop if isinstance(loop, Trace) else loop.trace()
    return prescribe(case_of(RankAnalysis(trace.tables(folder), settings)))


def named(advice: Advice, parameter: str) -> Recommendation:
    return next(r for r in advice.recommendations if r.parameter == parameter)


def names(advice: Advice) -> list[str]:
    return [r.parameter for r in advice.recommendations]


PAGEABLE = Loop(
    steps=12, load_us=8000, kernels=((GEMM, 600.0),) * 10, wait=True, pinned=False, copy_bytes=4_000_000, copy_us=4000
)  # fmt: skip


def test_workers_and_pinning_come_together(tmp_path: Path) -> None:
    """18 ms: 8 of loading, 4 of a pageable copy, 6 of kernels."""
    advice = advice_of(PAGEABLE, tmp_path, num_workers=0, batch_size=32, pin_memory=False)
    assert {"num_workers", "pin_memory", "non_blocking"} <= set(names(advice))
    plan = advice.plan
    assert plan is not None
    assert {"num_workers", "pin_memory", "non_blocking"} <= set(plan.parameters)
    workers = named(advice, "num_workers")
    assert f"num_workers={workers.suggested}" in (plan.snippet or "")
    assert "pin_memory=True" in (plan.snippet or "")
    assert "non_blocking=True" in (plan.snippet or "")
    assert set(plan.set_flags) == {f"--set num_workers={workers.suggested}", "--set pin_memory=True"}
    # together more than either alone, and no more than both for nothing
    assert plan.predicted_speedup is not None
    assert workers.predicted_speedup is not None
    assert workers.predicted_speedup < plan.predicted_speedup <= 18.1 / 6.0
    assert workers.next_bottleneck == "h2d_copy"


def test_pinned_memory_is_not_recommended_again(tmp_path: Path) -> None:
    pinned = Loop(steps=12, load_us=8000, kernels=((GEMM, 600.0),) * 10, wait=True)
    advice = advice_of(pinned, tmp_path, num_workers=0, batch_size=32, pin_memory=True)
    assert "pin_memory" not in names(advice)
    assert "num_workers" in names(advice)


def test_the_verdicts_own_remedy_comes_first(tmp_path: Path) -> None:
    loop = Loop(steps=12, load_us=8000, kernels=((FP32, 600.0),) * 10, wait=True)
    advice = advice_of(loop, tmp_path, num_workers=0, batch_size=32)
    assert names(advice)[0] == "num_workers"
    gains = [r.predicted_speedup for r in advice.recommendations if r.rule != "load.main_process"]
    assert gains == sorted(gains, key=lambda v: -(v or 0))


@pytest.mark.parametrize("cores", [2, 4])
def test_never_more_workers_than_cores(tmp_path: Path, cores: int) -> None:
    kernels = [(FP32, 590.0)] * 10
    trace = Loop(steps=6, load_us=40_000, kernels=kernels, wait=True, first=12, iterator=WORKERS).trace()
    run = Run(
        steps=40, step_ms=46, wait_ms=40, workers=1, service_ms=46, cpu_ms=46, window=range(12, 18), trace=trace, cores=cores
    )  # fmt: skip
    result = analyse(discover([run.write(tmp_path / "run")]))
    workers = advised(result, "num_workers")
    suggested = int(str(workers.suggested)) if workers else 1
    assert suggested <= cores
    if cores == 4:
        assert suggested > 1  # half of what would keep up is still worth having
    reasons = " ".join(d.reason for d in result.declined if d.parameter == "num_workers")
    assert "core" in reasons


def test_launch_bound_jobs_are_told_to_launch_less(tmp_path: Path) -> None:
    loop = Loop(
        steps=12, load_us=0, iterator=None, kernels=((POINTWISE, 2.0),) * 200, host_us=20, copy_bytes=0, optimizer_launches=0
    )  # fmt: skip
    advice = advice_of(loop, tmp_path)
    compiled = named(advice, "torch.compile")
    assert compiled.suggested == "reduce-overhead"
    assert not set(names(advice)) & {"num_workers", "pin_memory", "prefetch_factor"}
    assert compiled.interval is not None
    assert compiled.predicted_speedup is not None
    low, high = compiled.interval
    # a third of the dispatch left is three times as fast at best; kernels of 2 us never limit
    assert 1.2 < low < compiled.predicted_speedup < 3.1 <= high
    # it changes the model's code: the reader decides, so it is in no plan
    assert advice.plan is None


def test_item_is_replayed_away(tmp_path: Path) -> None:
    advice = advice_of(
        Loop(steps=12, load_us=2500, kernels=((GEMM, 300.0),) * 10, wait=True), tmp_path, num_workers=0
    )
    sync = named(advice, "synchronisation")
    # 5.6 ms of host and GPU in a row become 3.1 of the GPU's
    assert sync.predicted_speedup == pytest.approx(5.6 / 3.1, rel=0.05)
    assert "detach" in (sync.snippet or "")


def test_a_saturated_gpu_is_told_why_nothing_else_helps(tmp_path: Path) -> None:
    loop = Loop(steps=12, load_us=30, kernels=((GEMM, 950.0),) * 10, iterator=WORKERS)
    advice = advice_of(loop, tmp_path, num_workers=4, batch_size=32, pin_memory=False)
    assert not set(names(advice)) & {"num_workers", "prefetch_factor", "persistent_workers"}
    batch = next(d for d in advice.declined if d.parameter == "batch_size")
    assert batch.reason


def test_settings_that_are_not_known_are_no_number(tmp_path: Path) -> None:
    """Workers cannot keep up, but nobody recorded how many there are."""
    loop = Loop(steps=12, load_us=9000, kernels=((GEMM, 300.0),) * 10, wait=True, iterator=WORKERS)
    advice = advice_of(loop, tmp_path)
    workers = named(advice, "num_workers")
    assert workers.current is None
    assert workers.predicted_speedup is workers.interval is None
    assert "--loader" in (workers.why or "")


def test_gradient_accumulation_counts_its_batches(tmp_path: Path) -> None:
    """Four batches a step of 2 ms each and 4 ms of kernels: the loader's model must not take them for one batch."""
    trace, host = Trace(), 1000.0
    for number in range(10):
        begin = host
        for _ in range(4):
            trace.next(host, host + 2000)
            trace.op("aten::addmm", host + 2000, host + 2012)
            trace.launch(host + 2007, GEMM, host + 2011, host + 3011)
            trace.call("cudaStreamSynchronize", host + 2015, host + 3015)
            host += 3020
        trace.annotation("Optimizer.step#SGD.step", host, host + 3)
        host += 5
        trace.step(number, begin, host - 1)
    advice = advice_of(trace, tmp_path, num_workers=0, batch_size=8)
    workers = named(advice, "num_workers")
    assert "4 batches" in (workers.why or "")
    assert workers.predicted_speedup is not None
    # 12 ms become 4 where workers keep up, 8 with one that makes a batch in 2
    assert 1.4 < workers.predicted_speedup <= 3.05


# --- the committed runs -----------------------------------------------------------------------------------------------


def run(name: str) -> Result:
    return result_of(RUNS / name)


@pytest.mark.parametrize(
    ("name", "cause", "first"),
    [
        ("too_few_workers", "load.too_few_workers", "num_workers"),
        ("worker_startup", "load.worker_startup", "persistent_workers"),
        ("periodic_stall", "host.periodic_stall", None),
        ("cpu_training", "host.python", "batch_size"),
    ],
)
def test_committed_runs(name: str, cause: str, first: str | None) -> None:
    result = run(name)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", cause)
    assert (parameters(result) or [None])[0] == first
    if cause.startswith("load."):
        recommendation = advised(result, first or "")
        assert recommendation is not None
        assert recommendation.predicted_speedup is not None
        assert result.plan is not None
        assert first in result.plan.parameters
        assert f"--set {first}={recommendation.suggested}" in result.plan.set_flags
    else:
        assert not set(parameters(result)) & {"num_workers", "persistent_workers", "prefetch_factor"}
        assert [d for d in result.declined if d.parameter == "num_workers"]


def test_the_runs_own_answer_for_more_workers() -> None:
    """The simulator that made the run has its speed with every number of workers."""
    import json

    answer = json.loads((RUNS / "too_few_workers" / "truth.json").read_text())["settings"]["num_workers"][
        "values"
    ]
    workers = advised(run("too_few_workers"), "num_workers")
    assert workers is not None
    assert workers.interval is not None
    actual = answer[str(workers.suggested)]["speedup"]
    assert workers.interval[0] * 0.85 <= actual <= workers.interval[1] * 1.15


@pytest.mark.parametrize(("today", "suggested"), [(2, 4), (4, None), (12, None)])
def test_a_starting_value_is_never_below_todays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, today: int, suggested: int | None
) -> None:
    monkeypatch.setattr(
        "tracelens.diagnose.advice.prescribe.loader_case", lambda case, points: "not recorded"
    )
    loop = Loop(steps=10, load_us=9000, iterator=WORKERS)
    found = advice_of(loop, tmp_path, num_workers=today)
    recommended = [one.suggested for one in found.recommendations if one.parameter == "num_workers"]
    assert recommended == ([] if suggested is None else [suggested])
    if suggested is None:
        assert [d.value for d in found.declined if d.parameter == "num_workers"] == [today]
