"""The truth: the class by the design's order, causes by narrower what-ifs, settings by re-simulation."""

from __future__ import annotations

import pytest

from benchmarks.simulator import families, simulate
from benchmarks.simulator.drawing import SPLITS
from benchmarks.simulator.families import draw, family
from benchmarks.simulator.params import Params
from benchmarks.simulator.truth import add_settings, base_truth, classify, peak_bytes

NOTHING = {"cpu": 0.0, "h2d_copy": 0.0, "communication": 0.0, "gpu": 0.0, "memory_bandwidth": 0.0}


@pytest.mark.parametrize(
    ("saving", "bottleneck"),
    [
        ({"cpu": 0.30, "gpu": 0.60}, "cpu"),  # waste is asked before work
        ({"cpu": 0.09, "h2d_copy": 0.20, "gpu": 0.5}, "h2d_copy"),
        ({"communication": 0.08, "gpu": 0.7}, "communication"),
        ({"cpu": 0.07, "gpu": 0.5, "memory_bandwidth": 0.3}, "gpu"),
        ({"cpu": 0.07, "gpu": 0.2, "memory_bandwidth": 0.3}, "memory_bandwidth"),
        ({"cpu": 0.05, "gpu": 0.05}, "none"),
    ],
)
def test_the_class_follows_the_order_of_the_design(saving: dict[str, float], bottleneck: str) -> None:
    got, acceptable, balanced = classify(NOTHING | saving, gpu=True)
    assert got == bottleneck
    assert got in acceptable
    assert balanced == (bottleneck == "none")


def test_answers_as_good_as_the_best_are_accepted() -> None:
    assert set(classify(NOTHING | {"cpu": 0.30, "h2d_copy": 0.29}, True)[1]) == {"cpu", "h2d_copy"}
    assert "cpu" in classify(NOTHING | {"cpu": 0.075, "gpu": 0.4}, True)[1]
    assert classify(NOTHING, gpu=False)[0] == "cpu"


def test_settings_are_what_re_simulation_says() -> None:
    p = Params(template="mlp", sizes=(("width", 512), ("depth", 3)), device="V100", dtype="fp32", batch=64, workers=1,
               sample_cpu_ms=0.3, sample_wait_ms=0.0, horizon=60)  # fmt: skip
    t = add_settings(base_truth(p))
    workers = t.settings["num_workers"]
    assert workers["current"] == "1"
    assert workers["values"]["1"]["speedup"] == pytest.approx(1.0)
    assert workers["values"]["4"]["speedup"] == pytest.approx(
        t.base_us / base_truth(p.but(workers=4)).base_us, rel=1e-3
    )
    assert workers["best"] in workers["within_2pct"]
    batch = t.settings["batch_size"]["values"]
    assert batch["128"]["peak_mem_bytes"] == peak_bytes(p.but(batch=128))
    assert not batch["128"]["oom"]
    assert set(t.settings["pin_memory"]["values"]) == {
        f"pin={a},non_blocking={b}" for a in (False, True) for b in (False, True)
    }


def test_a_stock_of_early_batches_is_no_faster_loader() -> None:
    """One pin thread takes 30 ms a batch: sixteen workers make more before the first step, none makes more a second."""
    p = Params(template="mlp", sizes=(("width", 512), ("depth", 3)), device="V100", dtype="fp32", batch=64, workers=4,
               sample_cpu_ms=0.3, sample_wait_ms=0.0, handoff_ms=30.0)  # fmt: skip
    values = add_settings(base_truth(p)).settings["num_workers"]["values"]
    assert values["16"]["speedup"] == pytest.approx(1.0, abs=0.005)
    assert values["4"]["speedup"] == pytest.approx(1.0, abs=1e-6)


def test_a_batch_that_does_not_fit_is_never_the_best() -> None:
    p = Params(template="resnet", device="V100", dtype="fp32", batch=64, horizon=24, extra_bytes=31 << 30)
    sizes = add_settings(base_truth(p)).settings["batch_size"]
    assert sizes["values"]["256"]["oom"]
    assert sizes["best"] != "256"
    assert "256" not in sizes["within_2pct"]


def test_every_cause_has_a_family() -> None:
    have = {n for n in families("test") if not n.startswith("decoy.")}
    causes = [
        "load.main_process",
        "load.too_few_workers",
        "load.cores_exhausted",
        "load.storage",
        "load.too_many_workers",
        "load.oversubscribed_threads",
        "load.affinity",
        "load.quota",
        "load.slow_samples",
        "load.shallow_prefetch",
        "load.worker_startup",
        "load.collate_ipc",
        "load.host_memory_bandwidth",
        "load.custom",
        "transfer.pageable",
        "transfer.blocking",
        "transfer.link",
        "transfer.many_small",
        "transfer.serialised",
        "host.launch_bound",
        "host.python",
        "host.optimizer",
        "host.cast",
        "host.sync",
        "host.allocator",
        "host.periodic_stall",
        "host.startup",
        "host.cpu_compute",
        "compute.arithmetic",
        "compute.precision",
        "compute.underfilled",
        "compute.throttled",
        "compute.shared_gpu",
        "memory.bandwidth",
        "communication.bandwidth",
        "communication.straggler",
        "balanced",
        "healthy",
        "insufficient_evidence",
    ]
    assert have == set(causes)


@pytest.mark.parametrize("name", families("train"))
def test_a_family_keeps_what_its_counterfactuals_confirm(name: str) -> None:
    t, _ = draw(name, 1, "train")
    assert family(name).intended(t)
    assert t.bottleneck in t.acceptable
    assert t.cause in t.acceptable_causes
    assert t.p.template in SPLITS["train"]["all"]
    if t.p.device:
        assert t.p.device in (*SPLITS["train"]["devices"], *SPLITS["train"]["fast"])


def test_train_and_test_share_neither_models_nor_gpus() -> None:
    for key in ("all", "devices", "images", "matmul", "light", "norms", "tables"):
        assert not set(SPLITS["train"][key]) & set(SPLITS["test"][key])
    assert not set(SPLITS["train"]["fast"]) & set(SPLITS["test"]["fast"])


def test_a_seed_gives_the_same_truth() -> None:
    a, b = (simulate("host.sync", 3, "train").truth.to_json() for _ in range(2))
    assert a == b
    assert a != simulate("host.sync", 4, "train").truth.to_json()


def test_unknown_names_are_told() -> None:
    with pytest.raises(ValueError, match="unknown family"):
        simulate("load.nothing", 0)
    with pytest.raises(ValueError, match="unknown split"):
        families("validation")
