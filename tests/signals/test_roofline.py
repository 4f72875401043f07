"""The split of kernel time on simulated runs beside what the simulator knows, and the signals it adds up to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tracelens.diagnose.load import load_run
from tracelens.ingest.discover import discover
from tracelens.signals import kernels
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.catalog import rank_signals
from tracelens.signals.details import kernel_rows

TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces"
SIMULATED = sorted(TRACES.glob("simulated/*/truth.json"))
# kernels of a microsecond or two: no roofline, the simulator's floor decides
TINY = {"dispatch_mlp"}
# its 1x1 convolutions move 80 % of what DRAM can and are counted as arithmetic
DISPUTED = {"gpu_memory_norms"}
# the truth is of the whole run, the trace of the throttled part
PARTIAL = {"throttle_half"}


def analysis(path: Path) -> RankAnalysis:
    return load_run(discover([path])).ranks[0]


def split(one: RankAnalysis) -> tuple[float, float]:
    """Arithmetic and memory share of the kernel time that is not too small."""
    classes, device = one.kernels, one.activity.device
    spent = np.where(one.in_window, device.end - device.start, 0)
    arithmetic, memory = (
        float(spent[classes.limit == c].sum()) for c in (kernels.ARITHMETIC, kernels.MEMORY)
    )
    total = arithmetic + memory
    return arithmetic / total, memory / total


@pytest.mark.skipif(not SIMULATED, reason="shared traces are not here")
@pytest.mark.parametrize("truth", SIMULATED, ids=lambda p: p.parent.name)
def test_split_of_simulated_runs(truth: Path) -> None:
    name = truth.parent.name
    if name in TINY | DISPUTED | PARTIAL:
        pytest.skip("no ground to compare on")
    known = json.loads(truth.read_text())["gpu_kernel_ms_per_step"]
    total = known["compute_bound"] + known["memory_bound"]
    arithmetic, memory = split(analysis(truth.parent))
    assert arithmetic == pytest.approx(known["compute_bound"] / total, rel=0.1)
    assert memory == pytest.approx(known["memory_bound"] / total, rel=0.1)


@pytest.mark.skipif(not SIMULATED, reason="shared traces are not here")
def test_signals_with_shapes() -> None:
    one = analysis(TRACES / "simulated" / "gpu_compute_v100")
    signals = rank_signals(one)
    parameters = 3 * (4 * 1024**2 + 2 * 4 * 1024**2) + 4000 * 1024  # attention, MLP; head
    # 6 FLOPs a parameter and token, and attention's 12 * layers * width * length a token; the input has no gradient
    tokens = 16 * 256
    expected = tokens * (6 * parameters + 12 * 3 * 1024 * 256)
    flops = signals.number("kernels.flops_per_step")
    assert flops is not None
    assert flops == pytest.approx(expected, rel=0.05)
    step = signals.number("steps.mean_ms")
    assert step is not None
    assert signals.number("kernels.mfu") == pytest.approx(flops / (step / 1e3) / 125e12, rel=0.02)
    assert signals.number("kernels.shapes_share") == pytest.approx(1.0, abs=0.01)
    assert signals.number("kernels.unknown_share") == 0.0
    least = signals.number("kernels.dram_least_share")
    assert least is not None
    assert 0.1 < least < 0.8
    top = kernel_rows(one)[0]
    assert (top.family, top.limited_by, top.operator) == ("gemm", "arithmetic", "aten::mm")
    assert top.tflops_per_s is not None
    assert 30 < top.tflops_per_s < 125
    assert top.basis == "estimated from shapes"
    streaming = next(row for row in kernel_rows(one) if row.family == "pointwise")
    assert streaming.tflops_per_s is None
    assert streaming.gb_per_s is not None
    assert streaming.gb_per_s < 900


@pytest.mark.skipif(not SIMULATED, reason="shared traces are not here")
def test_signals_without_shapes_say_why() -> None:
    signals = rank_signals(analysis(TRACES / "real" / "ns_resolution_v100.json.gz"))
    assert signals["kernels.mfu"].value is None
    assert "record_shapes" in (signals["kernels.mfu"].reason or "")
    assert signals.number("kernels.shapes_share") == pytest.approx(0.0, abs=0.05)


@pytest.mark.skipif(not SIMULATED, reason="shared traces are not here")
@pytest.mark.parametrize(
    ("name", "arithmetic", "memory"),
    [
        # as two people noted them by kernel family, of kernel time
        ("qwen_h100_inference", 0.36, 0.63),
        ("ns_resolution_v100", 0.62, 0.37),
        ("resnet50_v100_workers4", 0.66, 0.33),
        ("deepview_3060ti_gpubound", 0.47, 0.53),
    ],
)
def test_split_of_real_runs(name: str, arithmetic: float, memory: float) -> None:
    found = split(analysis(TRACES / "real" / f"{name}.json.gz"))
    assert found[0] == pytest.approx(arithmetic, abs=0.05)
    assert found[1] == pytest.approx(memory, abs=0.05)
