"""Prescriptions on traces whose outcome is known: recorded by others, or simulated with the answer beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.diagnose.advice.handed import TRACES, advised, needs_traces, parameters, real, simulated
from tracelens.model import Result

pytestmark = needs_traces

LOADER = ("num_workers", "prefetch_factor", "persistent_workers")
STARVED = ["loader_cpu_t4", "loader_defaults", "loader_io_mainproc", "loader_bursty_1in4", "old_1_8_format"]
FED = ["gpu_compute_v100", "gpu_memory_norms", "decoy_item_gpu_bound", "throttle_half", "loader_nearly"]
SIMULATED = sorted(p.name for p in (TRACES / "simulated").iterdir()) if TRACES.is_dir() else []


def truth(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((TRACES / "simulated" / name / "truth.json").read_text())
    return value


def test_workers_for_a_resnet_that_loads_in_its_process() -> None:
    """The same job with four workers gained 1.33x by means; taking off all loading would promise 1.49x."""
    result = real("resnet50_v100_workers0")
    assert (result.verdict.bottleneck, result.verdict.cause) == ("cpu", "load.main_process")
    workers = advised(result, "num_workers")
    assert workers is not None
    assert workers.current == 0
    assert workers.interval is not None
    low, high = workers.interval
    assert low <= 1.33 <= high
    assert high < 1.49
    assert high - low <= 0.3
    # what limits then: the host, or the copies
    assert workers.next_bottleneck in ("cpu", "h2d_copy")
    assert advised(result, "pin_memory") is not None
    assert result.plan is not None
    assert {"num_workers", "pin_memory"} <= set(result.plan.parameters)


def test_the_same_job_with_workers_has_no_loader_cause() -> None:
    result = real("resnet50_v100_workers4")
    assert not (result.verdict.cause or "").startswith("load.")
    assert not [f for f in result.findings if f.rule.startswith("load.")]
    assert not set(parameters(result)) & set(LOADER)


def test_a_launch_bound_bert_is_never_told_to_load_faster() -> None:
    result = real("bert_small_h100_inference")
    assert result.verdict.cause == "host.launch_bound"
    assert "num_workers" not in parameters(result)
    compiled = advised(result, "torch.compile")
    assert compiled is not None
    assert compiled.suggested == "reduce-overhead"


@pytest.mark.parametrize("name", ["sync_wait_a100_dlrm", "ddp_a100_pinned_h2d"])
def test_waiting_inside_a_copy_call_is_no_slow_copy(name: str) -> None:
    result = real(name)
    assert result.verdict.bottleneck != "h2d_copy"
    assert not set(parameters(result)) & {"pin_memory", "non_blocking", "copy_stream"}


def test_start_up_is_among_the_findings_of_the_list_form() -> None:
    result = real("resnet50_v100_autograd_api_workers0_list")
    assert "host.startup" in [f.rule for f in result.findings]


def test_memory_at_twice_the_batch() -> None:
    """Batch 128 uses 40 %: twice the samples take about twice the activations and the same weights."""
    result = simulated("batch_128_40pct")
    memory, capacity = result.memory, result.memory.capacity_bytes
    assert memory.fixed_bytes is not None
    assert memory.per_sample_bytes is not None
    assert capacity is not None
    assert (memory.fixed_bytes + 128 * memory.per_sample_bytes) / capacity == pytest.approx(0.40, abs=0.05)
    assert (memory.fixed_bytes + 256 * memory.per_sample_bytes) / capacity == pytest.approx(0.80, abs=0.06)
    declined = next(d for d in result.declined if d.parameter == "batch_size")
    assert declined.value == 256
    assert "% of memory" in declined.reason


def test_memory_that_the_model_dominates_does_not_double() -> None:
    """The counter-example: weights and optimizer state fill the memory, samples little of it."""
    found = 0
    for name in SIMULATED:
        memory, batch = simulated(name).memory, simulated(name).throughput.batch_size
        if memory.fixed_bytes is None or memory.per_sample_bytes is None or not batch:
            continue
        if memory.fixed_bytes > 2 * batch * memory.per_sample_bytes:
            found += 1
            today = memory.fixed_bytes + batch * memory.per_sample_bytes
            assert memory.fixed_bytes + 2 * batch * memory.per_sample_bytes < 1.4 * today
            sizes = truth(name)["settings"]["batch_size"]["values"]
            peaks = {int(k): v.get("peak_memory_bytes") or v.get("peak_bytes") for k, v in sizes.items()}
            if peaks.get(2 * batch) and peaks.get(batch):
                assert peaks[2 * batch] < 1.5 * peaks[batch]
    assert found


@pytest.mark.parametrize("name", SIMULATED)
def test_nothing_is_recommended_above_the_cores(name: str) -> None:
    path = TRACES / "simulated" / name
    cores = (
        json.loads((path / "host.jsonl").open().readline())["cpu_count"]
        if (path / "host.jsonl").is_file()
        else None
    )
    workers = advised(simulated(name), "num_workers")
    if workers is not None and cores is not None:
        assert int(str(workers.suggested)) <= cores


@pytest.mark.parametrize("name", SIMULATED)
def test_every_number_has_its_arithmetic(name: str) -> None:
    result = simulated(name)
    for found in result.recommendations:
        assert found.why, found.parameter
        assert found.rule
        if found.predicted_speedup is not None:
            assert found.interval is not None
            assert found.interval[0] <= found.predicted_speedup <= found.interval[1]
            assert found.basis in ("replay", "model", "bound", "literature")
        else:
            assert found.interval is None
    assert all(d.reason for d in result.declined)
    consistent_plan(result)


def consistent_plan(result: Result) -> None:
    """A plan's parameters are recommended, its flags are theirs, its snippet sets them."""
    if result.plan is None:
        return
    named = {r.parameter: r for r in result.recommendations}
    assert set(result.plan.parameters) <= set(named)
    assert list(result.plan.set_flags) == [
        named[p].set_flag for p in result.plan.parameters if named[p].set_flag
    ]
    for parameter in result.plan.parameters:
        flag = named[parameter].set_flag
        if flag:
            assert flag == f"--set {parameter}={named[parameter].suggested}"
        if parameter in (*LOADER, "pin_memory"):
            assert f"{parameter}={named[parameter].suggested}" in (result.plan.snippet or "")


@pytest.mark.parametrize("name", SIMULATED)
def test_workers_are_predicted_as_the_simulator_has_them(name: str) -> None:
    """The predicted speed-up of the suggested number of workers holds the simulator's own, give or take 15 %."""
    workers, values = (
        advised(simulated(name), "num_workers"),
        truth(name)["settings"].get("num_workers", {}).get("values", {}),
    )
    if workers is None or workers.interval is None or str(workers.suggested) not in values:
        pytest.skip("no number of workers with a prediction")
    actual = values[str(workers.suggested)]["speedup"]
    assert workers.interval[0] * 0.85 <= actual <= workers.interval[1] * 1.15


@pytest.mark.parametrize(
    "name", ["loader_cpu_t4", "loader_defaults", "loader_io_mainproc", "loader_bursty_1in4", "old_1_8_format"]
)
def test_starved_gpus_get_workers_and_no_larger_batch(name: str) -> None:
    result = simulated(name)
    assert (result.verdict.cause or "").startswith("load.")
    assert parameters(result)[0] == "num_workers"
    assert "batch_size" not in parameters(result)
    reason = next(d.reason for d in result.declined if d.parameter == "batch_size")
    assert "waits for data" in reason or "memory was not recorded" in reason


@pytest.mark.parametrize(
    "name", ["gpu_compute_v100", "gpu_memory_norms", "decoy_item_gpu_bound", "throttle_half", "loader_nearly"]
)
def test_loaders_that_limit_nothing_are_left_alone(name: str) -> None:
    assert not set(parameters(simulated(name))) & set(LOADER)


def test_pageable_copies_are_pinned_with_the_simulators_gain() -> None:
    result = simulated("h2d_pageable_a100")
    assert result.plan is not None
    assert result.plan.parameters == ("pin_memory", "non_blocking")
    assert "pin_memory=True" in (result.plan.snippet or "")
    assert "non_blocking=True" in (result.plan.snippet or "")
    pin = advised(result, "pin_memory")
    assert pin is not None
    assert pin.interval is not None
    actual = truth("h2d_pageable_a100")["counterfactual_speedup"]["pinned_copies"]
    assert pin.interval[0] <= actual <= pin.interval[1]


def test_workers_started_anew_each_epoch_are_kept() -> None:
    result = simulated("epoch_start")
    kept = advised(result, "persistent_workers")
    assert kept is not None
    actual = truth("epoch_start")["settings"]["persistent_workers"]["values"]["True"]["speedup"]
    assert kept.predicted_speedup == pytest.approx(actual, rel=0.1)
    assert result.plan is not None
    assert result.plan.predicted_speedup == kept.predicted_speedup


def test_an_inference_call_of_several_batches_is_fed_by_workers() -> None:
    """One step of owlv2 asks for five batches; loading them takes half of it."""
    workers = advised(real("owlv2_h100_inference"), "num_workers")
    assert workers is not None
    assert workers.predicted_speedup is not None
    assert 1.3 < workers.predicted_speedup < 2.1
    assert "5 batches" in (workers.why or "")
