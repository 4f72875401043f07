"""Bundles of runs whose times are known, whole, damaged and still growing, through to the verdict."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bundlekit import Run, cpu_trace, cut_last_line, gpu_trace
from tests.tracekit import WORKERS, Loop, Trace, comparable
from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.model import Result

WINDOW = range(12, 18)
FILES = [
    "steps.jsonl",
    "loader.jsonl",
    "worker-101.jsonl",
    "worker-102.jsonl",
    "windows.jsonl",
    "process.jsonl",
]


def result_of(run: Run, folder: Path) -> Result:
    return analyse(discover([run.write(folder / "run")]))


def again(folder: Path) -> Result:
    return analyse(discover([folder / "run"]))


def waiting_gpu() -> Trace:
    """14 ms steps: 8 in ``next``, then 6 on the GPU."""
    kernels = [("ampere_sgemm_128x128_nn", 590.0)] * 10
    return Loop(steps=6, load_us=8000, kernels=kernels, wait=True, first=12, iterator=WORKERS).trace()


def on_cpu() -> Run:
    return Run(steps=40, step_ms=10, wait_ms=4, workers=2, window=WINDOW, trace=cpu_trace())


def on_gpu() -> Run:
    return Run(
        steps=40,
        step_ms=14,
        wait_ms=8,
        workers=2,
        service_ms=28,
        cpu_ms=25,
        window=WINDOW,
        trace=waiting_gpu(),
    )


def test_a_cpu_job_that_waits_for_its_workers(tmp_path: Path) -> None:
    result = result_of(on_cpu(), tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", "load.too_few_workers")
    assert result.steps.mean_ms == 10
    assert result.throughput.samples_per_s == pytest.approx(3200)
    assert result.phases["load"] == pytest.approx(0.4)
    assert result.phases["compute"] == pytest.approx(0.6, abs=0.005)
    # all waiting gone: 10 ms become 6
    assert result.what_if.cpu == pytest.approx(10 / 6, rel=0.01)
    assert result.gpu.busy is None  # no GPU is not an idle one
    (saving,) = [f.saving_ms_per_step for f in result.findings if f.rule == "load.too_few_workers"]
    assert saving == pytest.approx(4.0)
    workers = next(r for r in result.recommendations if r.parameter == "num_workers")
    assert workers.current == 2
    assert 3 <= int(str(workers.suggested)) <= 7  # 8 cores, one of them the training process's
    assert workers.set_flag == f"--set num_workers={workers.suggested}"


def test_a_gpu_job_that_waits_for_its_workers(tmp_path: Path) -> None:
    result = result_of(on_gpu(), tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", "load.too_few_workers")
    assert result.what_if.kind == "replay"
    assert abs(result.what_if.replay_error or 1) < 0.01
    assert result.steps.mean_ms == 14
    assert result.phases["load"] == pytest.approx(8 / 14, abs=0.005)
    assert result.phases["compute"] == pytest.approx(5.91 / 14, abs=0.005)
    assert result.gpu.busy == pytest.approx((5.91 + 0.06) / 14, abs=0.005)
    assert result.what_if.cpu == pytest.approx(14 / 5.97, rel=0.03)
    workers = next(r for r in result.recommendations if r.parameter == "num_workers")
    # 28 ms a batch against 6 ms a step: five workers keep up, and no more than the cores
    assert 4 <= int(str(workers.suggested)) <= 7
    assert workers.predicted_speedup is not None
    assert 1.3 < workers.predicted_speedup <= 14 / 5.97 + 0.1


def test_batches_that_take_twice_as_long_to_make_need_more_workers(tmp_path: Path) -> None:
    """A batch each 14 ms comes from one worker that takes 14 ms or from two that take 28."""

    def suggested(workers: int, folder: Path) -> int:
        run = on_gpu()
        run.workers, run.service_ms, run.cpu_ms = workers, 14.0 * workers, 14.0 * workers
        found = result_of(run, folder).recommendations
        return int(str(next(r for r in found if r.parameter == "num_workers").suggested))

    assert suggested(2, tmp_path / "a") > suggested(1, tmp_path / "b")


def test_samples_made_in_the_training_process(tmp_path: Path) -> None:
    run = Run(
        steps=40, step_ms=14, wait_ms=8, workers=0, cpu_ms=8, window=WINDOW, trace=gpu_trace(load_us=8000)
    )
    result = result_of(run, tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", "load.main_process")
    workers = next(r for r in result.recommendations if r.parameter == "num_workers")
    assert workers.current == 0
    # 8 of 14 ms go into loading; workers take it off, at most all of it
    assert workers.predicted_speedup is not None
    assert 1.5 < workers.predicted_speedup <= 14 / 5.9


def test_a_gpu_job_that_never_waits_gets_no_loading_advice(tmp_path: Path) -> None:
    trace = Loop(
        steps=6, load_us=30, kernels=[("ampere_sgemm_128x128_nn", 950.0)] * 10, wait=True, first=12, iterator=WORKERS
    ).trace()  # fmt: skip
    run = Run(
        steps=40, step_ms=9.8, wait_ms=0.03, workers=2, service_ms=4, cpu_ms=4, window=WINDOW, trace=trace
    )
    result = result_of(run, tmp_path)
    assert result.verdict.bottleneck == "gpu"
    assert not [f for f in result.findings if f.rule.startswith("load.")]
    assert not [r for r in result.recommendations if r.parameter in ("num_workers", "prefetch_factor")]
    assert [d.reason for d in result.declined if d.parameter == "num_workers"]


def test_stalls_that_only_the_step_log_shows(tmp_path: Path) -> None:
    """The window of three steps cannot judge what happens every eighth step; the log of eighty can."""
    run = on_gpu()
    run.steps, run.wait_ms, run.step_ms = 80, 0.03, 6.0
    run.slow = lambda step: 60.0 if step % 8 == 5 and step > 20 else 0.0
    kernels = [("ampere_sgemm_128x128_nn", 590.0)] * 10
    run.trace = Loop(steps=4, load_us=30, kernels=kernels, wait=True, first=12, iterator=WORKERS).trace()
    run.window = range(12, 16)
    result = result_of(run, tmp_path)
    (stall,) = [f for f in result.findings if f.rule == "host.periodic_stall"]
    # 8 of 70 undisturbed steps stall for 60 ms; the replayed window bounds what the host can save
    assert result.steps.mean_ms == pytest.approx(6 + 8 * 60 / 70, rel=0.02)
    assert stall.saving_ms_per_step is None or stall.saving_ms_per_step <= 8 * 60 / 70 + 0.2


@pytest.mark.parametrize(
    ("threads", "cause", "advised"),
    [(16, "load.oversubscribed_threads", "num_threads"), (8, "host.cpu_compute", None)],
)
def test_operators_with_more_threads_than_cores(
    threads: int, cause: str, advised: str | None, tmp_path: Path
) -> None:
    trace = cpu_trace(load_us=200)
    run = Run(steps=40, step_ms=10, wait_ms=0.2, workers=2, window=WINDOW, trace=trace, threads=threads)
    result = result_of(run, tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", cause)
    found = [(r.parameter, r.current, r.suggested) for r in result.recommendations]
    assert found == ([(advised, 16, 8)] if advised else [])


def test_a_cpu_job_has_no_healthy_gpu(tmp_path: Path) -> None:
    run = Run(steps=40, step_ms=10, wait_ms=0.5, workers=2, window=WINDOW, trace=cpu_trace(load_us=500))
    result = result_of(run, tmp_path)
    assert result.verdict.bottleneck == "cpu"
    assert "GPU" not in result.verdict.headline.replace("no GPU", "")


# --- without a trace --------------------------------------------------------------------------------------------------


def test_logs_alone_give_the_waits_and_nothing_else(tmp_path: Path) -> None:
    result = result_of(Run(steps=40, step_ms=10, wait_ms=4, workers=2), tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", "load.too_few_workers")
    assert result.verdict.confidence <= 0.6
    assert result.what_if.kind == "bound"
    assert result.what_if.cpu == pytest.approx(10 / 6)
    assert result.what_if.gpu is None
    assert result.phases["load"] == pytest.approx(0.4)
    assert [p for p, v in result.phases.items() if v is None] == [
        "transfer",
        "compute",
        "communication",
        "host",
        "other",
    ]
    assert result.steps.source == "step log"
    assert "quality.no_trace" in [q.rule for q in result.quality]
    assert len(result.step_rows) == 40


def test_logs_alone_without_waits_are_no_verdict(tmp_path: Path) -> None:
    result = result_of(Run(steps=40, wait_ms=0.05), tmp_path)
    assert result.verdict.bottleneck == "inconclusive"
    assert "trace" in result.verdict.headline
    assert not result.recommendations


def test_workers_zero_without_a_trace_names_the_training_process(tmp_path: Path) -> None:
    assert result_of(Run(workers=0, wait_ms=6), tmp_path).verdict.cause == "load.main_process"


def test_a_job_that_still_runs(tmp_path: Path) -> None:
    """No exit, an open window without a file, a step's line half written: what there is, is reported."""
    result = result_of(Run(steps=40, window=WINDOW, trace=None, finished=False), tmp_path)
    cut_last_line(tmp_path / "run" / "rank0" / "steps.jsonl")
    growing = again(tmp_path)
    assert growing.verdict.bottleneck == result.verdict.bottleneck == "cpu"
    assert growing.steps.count == (result.steps.count or 0) - 1


def test_a_job_that_died_in_its_first_steps(tmp_path: Path) -> None:
    result = result_of(Run(steps=3, finished=False), tmp_path)
    assert result.steps.count == 3
    assert result.verdict.confidence < 0.5


def test_a_job_that_never_stepped(tmp_path: Path) -> None:
    result = result_of(Run(steps=0, finished=False), tmp_path)
    assert result.verdict.bottleneck == "inconclusive"
    assert result.steps.mean_ms is None


def test_a_bundle_without_ranks_is_inconclusive(tmp_path: Path) -> None:
    folder = Run(steps=0).write(tmp_path / "run")
    shutil.rmtree(folder / "rank0")
    assert again(tmp_path).verdict.bottleneck == "inconclusive"


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("name", FILES)
def test_a_half_written_last_line_changes_no_verdict(tmp_path: Path, kind: str, name: str) -> None:
    whole = result_of(on_cpu() if kind == "cpu" else on_gpu(), tmp_path)
    cut_last_line(tmp_path / "run" / "rank0" / name)
    cut = again(tmp_path)
    assert (cut.verdict.bottleneck, cut.verdict.cause) == (whole.verdict.bottleneck, whole.verdict.cause)
    assert cut.what_if.cpu == pytest.approx(whole.what_if.cpu, rel=0.02)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_changes_no_class(tmp_path: Path, name: str) -> None:
    result_of(on_gpu(), tmp_path)
    (tmp_path / "run" / "rank0" / name).unlink()
    result = again(tmp_path)
    assert result.verdict.bottleneck == "cpu"
    assert (result.verdict.cause or "").startswith("load.")


def test_a_damaged_window_leaves_the_logs(tmp_path: Path) -> None:
    result_of(on_gpu(), tmp_path)
    path = tmp_path / "run" / "rank0" / "window-0.pt.trace.json.gz"
    path.write_bytes(b"\x1f\x8b not gzip at all")
    result = again(tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", "load.too_few_workers")
    assert any("window-0" in q.message for q in result.quality)


def test_a_window_cut_in_half_is_still_read(tmp_path: Path) -> None:
    result_of(on_gpu(), tmp_path)
    path = tmp_path / "run" / "rank0" / "window-0.pt.trace.json.gz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    result = again(tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", "load.too_few_workers")
    assert result.steps.mean_ms == pytest.approx(14)


def test_an_analysis_repeats_to_the_last_digit(tmp_path: Path) -> None:
    assert comparable(result_of(on_gpu(), tmp_path)) == comparable(again(tmp_path))


def test_memory_comes_from_the_window_that_recorded_it(tmp_path: Path) -> None:
    """The timing window is lean; another holds the allocator's events: 2 GB that stay, 3 GB of batch 32 that come and go."""
    run = on_gpu()
    bundle = run.write(tmp_path / "run")
    second = gpu_trace(steps=2)
    for k, allocated in enumerate([2.0, 3.0, 4.0, 5.0, 4.0, 3.0] * 3):
        change = {"Device Type": 1, "Device Id": 0, "Addr": k, "Bytes": 1}
        totals = {"Total Allocated": int(allocated * 1e9), "Total Reserved": int(6e9)}
        event = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1500.0 + 400 * k}
        second.events.append({**event, "cat": "cpu_instant_event", "args": change | totals})
    second.write(bundle / "rank0" / "window-1.pt.trace.json.gz")
    memory = analyse(discover([bundle])).memory
    assert memory.fixed_bytes == pytest.approx(2e9)
    assert memory.per_sample_bytes == pytest.approx(3e9 / 32)
    assert memory.peak_bytes == pytest.approx(5e9)
