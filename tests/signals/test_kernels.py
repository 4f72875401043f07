"""Classes of kernels in small traces: roofline from shapes, what lacks shapes, too small, counters, joins."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tracekit import GEMM, MAIN, POINTWISE, V100, Trace
from tracelens.ingest.tables import GPU_COLUMNS, INT_COLUMNS, TEXT_COLUMNS, gpu_log
from tracelens.signals import kernels
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.gpuwork import gpu_signals
from tracelens.signals.kernels import KernelClasses, classify
from tracelens.signals.operators import parents
from tracelens.signals.signal import Signals

A100 = {
    "id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42_298_834_944, "computeMajor": 8, "computeMinor": 0,
    "numSms": 108,
}  # fmt: skip
FPROP = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tensor16x8x8"
DGRAD = "void cutlass_cudnn::Kernel<cutlass_tensorop_f16_s16816dgrad_optimized_f16_128x128_32x4_nhwc>(P)"
WGRAD = "void cutlass_cudnn::Kernel<cutlass_tensorop_f16_s16816wgrad_optimized_f16_128x128_32x4_nhwc>(P)"
LAYOUT = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, true, true, 0>(p)"


class Shaped(Trace):
    """A trace whose operators carry shapes; kernels follow each other on one stream."""

    def __init__(self, device: dict[str, Any] | None = A100) -> None:
        super().__init__()
        self.metadata = {"schemaVersion": 1, "deviceProperties": [device] if device else []}
        self.at = 1000.0
        self.external = 0

    def run(
        self, operator: str, dims: list[Any], names: list[tuple[str, float]], types: list[str] | str = "c10::Half",
        concrete: list[str] | None = None, linked: bool = True, **kernel: Any,
    ) -> None:  # fmt: skip
        """One operator that launches some kernels (name, us)."""
        self.external += 1
        listed = (
            types
            if isinstance(types, list)
            else [types if d and not isinstance(d[0], list) else "" for d in dims]
        )
        args: dict[str, Any] = {
            "Input Dims": dims, "Input type": listed, "Concrete Inputs": concrete or [""] * len(dims),
        }  # fmt: skip
        if linked:
            args["External id"] = self.external
        begin = self.at
        launches = [begin + 2 + 6 * i for i in range(len(names))]
        self.op(operator, begin, begin + 4 + 6 * len(names), **args)
        if linked:
            kernel["External id"] = self.external
        for at, (name, length) in zip(launches, names, strict=True):
            start = max(self.at, at + 5)
            self.launch(at, name, start, start + length, **kernel)
            self.at = start + length
        self.at += 10

    def classes(self, folder: Path, **log: Any) -> KernelClasses:
        return classify(self.activity(folder), **log)


def named(classes: KernelClasses, trace: Shaped, folder: Path) -> list[str | None]:
    return [kernels.LIMITS[code] if code >= 0 else "none" for code in classes.limit.tolist()]


def test_large_matmul_is_arithmetic_and_thin_one_memory(tmp_path: Path) -> None:
    trace = Shaped()
    trace.run("aten::mm", [[4096, 4096], [4096, 4096]], [(GEMM, 700)])
    trace.run("aten::mm", [[65536, 64], [64, 16]], [(GEMM, 40)])
    found = trace.classes(tmp_path)
    assert named(found, trace, tmp_path) == ["arithmetic", "memory"]
    assert found.estimate is not None
    assert found.estimate.flops[0] == 2 * 4096**3
    assert found.estimate.bytes[1] == 2 * (65536 * 64 + 64 * 16 + 65536 * 16)
    assert found.source == "estimated from shapes"
    assert found.basis.tolist() == [kernels.SHAPES] * 2


def test_the_ridge_moves_with_the_format(tmp_path: Path) -> None:
    """The same product is limited by memory on fast tensor cores and by arithmetic in plain fp32."""
    dims = [[16384, 512], [512, 64]]
    trace = Shaped()
    trace.run("aten::mm", dims, [("ampere_sgemm_128x64_nn", 120)], "float")
    trace.run(
        "aten::mm", dims, [("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_nn>(P)", 40)], "float"
    )
    assert named(trace.classes(tmp_path), trace, tmp_path) == ["arithmetic", "memory"]


def test_gradients_share_the_work_of_their_operator(tmp_path: Path) -> None:
    """Each gradient's kernels share that gradient by time; layout kernels have no part; nameless ones take the rest."""
    dims = [[64, 64, 32, 32], [64, 64, 32, 32], [64, 64, 3, 3], [], [], [], [], [], [], [], []]
    one = 2.0 * 64 * 64 * 32 * 32 * 64 * 9
    trace = Shaped()
    trace.run("aten::convolution_backward", dims, [(LAYOUT, 20), (DGRAD, 60), (WGRAD, 30), (WGRAD, 90)])
    trace.run("aten::convolution_backward", dims, [(DGRAD, 60), ("volta_sgemm_64x64_nt", 40)])
    found = trace.classes(tmp_path).estimate
    assert found is not None
    assert np.isnan(found.flops[0])
    assert found.flops[1:4] == pytest.approx([one, one / 4, one * 3 / 4])
    assert found.flops[4:] == pytest.approx([one, one])
    assert found.exact.tolist() == [False, True, True, True, True, False]


def test_few_channels_are_padded_on_tensor_cores(tmp_path: Path) -> None:
    trace = Shaped()
    trace.run("aten::cudnn_convolution", [[64, 3, 224, 224], [64, 3, 7, 7]], [(FPROP, 300)], "float")
    trace.run(
        "aten::cudnn_convolution",
        [[64, 3, 224, 224], [64, 3, 7, 7]],
        [("volta_scudnn_128x64_relu_nn_v1", 900)],
        "float",
    )
    found = trace.classes(tmp_path).estimate
    assert found is not None
    assert found.padding.tolist() == pytest.approx([4 / 3, 1.0])


def test_convolution_output_comes_from_its_backward(tmp_path: Path) -> None:
    trace = Shaped()
    trace.run("aten::cudnn_convolution", [[8, 64, 56, 56], [128, 64, 3, 3], [], []], [(FPROP, 100)], "float")
    trace.run(
        "aten::convolution_backward",
        [[8, 128, 28, 28], [8, 64, 56, 56], [128, 64, 3, 3]],
        [(DGRAD, 100)],
        "float",
    )
    found = trace.classes(tmp_path).estimate
    assert found is not None
    assert found.flops[0] == 2.0 * 8 * 128 * 28 * 28 * 64 * 9
    assert found.exact[0]


def test_weight_gradient_of_older_torch_takes_the_weight_from_around(tmp_path: Path) -> None:
    grad, source, weight = [8, 64, 28, 28], [8, 32, 28, 28], [64, 32, 3, 3]
    trace = Shaped()
    trace.op(
        "aten::cudnn_convolution_backward",
        1000,
        1100,
        **{"Input Dims": [source, grad, weight], "Input type": ["float"] * 3},
    )
    trace.at = 1002
    trace.run(
        "aten::cudnn_convolution_backward_weight",
        [[], grad, source, []],
        [("volta_scudnn_128x64_nn_v1", 60)],
        ["", "float", "float", ""],
    )
    found = trace.classes(tmp_path).estimate
    assert found is not None
    assert found.flops[0] == 2.0 * 8 * 64 * 28 * 28 * 32 * 9


def test_bytes_of_an_operator_are_shared_by_time(tmp_path: Path) -> None:
    dims = [[64, 64, 56, 56], [64, 64, 56, 56]]
    trace = Shaped()
    trace.run(
        "aten::native_batch_norm_backward",
        dims,
        [("batch_norm_backward_reduce", 40), ("batch_norm_backward_elemt", 120)],
        "float",
    )
    found = trace.classes(tmp_path)
    assert found.estimate is not None
    total = 3 * 64 * 64 * 56 * 56 * 4
    assert found.estimate.bytes == pytest.approx([total / 4, total * 3 / 4])
    assert named(found, trace, tmp_path) == ["memory", "memory"]


def test_the_gradients_of_a_layer_norm_read_what_they_read(tmp_path: Path) -> None:
    """1024 x 4096 floats: input and output gradient are read for the input's and again for the weight's, however long each
    takes."""
    trace = Shaped()
    trace.run(
        "aten::native_layer_norm_backward",
        [[1024, 4096], [1024, 4096]],
        [("layer_norm_grad_input_kernel_vectorized", 80), ("GammaBetaBackwardCUDAKernel", 300)],
        "float",
    )
    found = trace.classes(tmp_path)
    assert found.estimate is not None
    size = 1024 * 4096 * 4
    assert found.estimate.bytes == pytest.approx([3 * size, 2 * size])


def test_groups_of_kernels_reach_shares_of_their_own(tmp_path: Path) -> None:
    """A convolution that reaches half the peak says nothing of a product near the ridge: that one waits for memory, whose
    traffic explains its time."""
    trace = Shaped()
    # 421 GFLOP, at half of 312 TFLOP/s
    trace.run(
        "aten::cudnn_convolution",
        [[64, 2048, 28, 28], [2048, 2048, 1, 1]],
        [("sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f32_nhwckrsc_nhwc_tensor16x8x16", 2698)],
        "c10::Half",
    )
    # 13.2 GFLOP take 60 us at 0.7 of the peak and 84 at half of it; 103 MB take 83 us at 0.8 of 1555 GB/s
    trace.run("aten::mm", [[100352, 256], [256, 256]], [(GEMM, 84)], "c10::Half")
    found = trace.classes(tmp_path)
    assert found.reach is not None
    assert found.reach.arithmetic_seen
    assert named(found, trace, tmp_path) == ["arithmetic", "memory"]


def test_small_is_what_its_work_does_not_explain(tmp_path: Path) -> None:
    trace = Shaped()
    trace.run("aten::add", [[64], [64]], [(POINTWISE, 2.5)], "float")  # ramp-up and drain only
    trace.run("aten::add", [[1_000_000], [1_000_000]], [(POINTWISE, 3.8)], "c10::Half")  # short, but all DRAM
    trace.run("aten::mm", [[64, 8192], [8192, 64]], [(GEMM, 60)], grid=[4, 1, 1])  # four blocks on 108 units
    trace.run("aten::mm", [[64, 8192], [8192, 64]], [(GEMM, 60)], grid=[400, 1, 1])
    assert named(trace.classes(tmp_path), trace, tmp_path) == ["small", "memory", "small", "memory"]


def test_products_too_small_for_the_gpu_are_no_matter_of_precision(tmp_path: Path) -> None:
    """A product of 1000 us in fp32, and one of 200 whose few blocks leave the GPU idle."""
    trace = Shaped()
    trace.run("aten::mm", [[8192, 4096], [4096, 512]], [("ampere_sgemm_128x128_tn", 2500)], "float")
    trace.run("aten::mm", [[64, 512], [512, 64]], [("ampere_sgemm_64x64_tn", 200)], "float", grid=[2, 1, 1])
    signals = Signals()
    gpu_signals(RankAnalysis(trace.tables(tmp_path)), signals)
    assert signals.number("kernels.fp32_matmul_ms") == pytest.approx(2.5)


@pytest.mark.parametrize(("blocks", "expected"), [(54, "small"), (55, "arithmetic")])
def test_less_than_half_a_wave_is_too_small_however_long(tmp_path: Path, blocks: int, expected: str) -> None:
    """A recurrent network's matrix kernels: no shapes, 80 us, and 54 blocks for 108 units."""
    trace = Shaped()
    trace.run("aten::_cudnn_rnn", [], [(GEMM, 80)], grid=[blocks, 1, 1])
    assert named(trace.classes(tmp_path), trace, tmp_path) == [expected]


def test_attention_exponentials_count_as_arithmetic(tmp_path: Path) -> None:
    q = [16, 559, 16, 64]
    trace = Shaped()
    name = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>>(p)"
    trace.run("aten::_flash_attention_forward", [q, q, q], [(name, 100)], "c10::BFloat16")
    found = trace.classes(tmp_path)
    assert found.estimate is not None
    # 16 exponentials a clock and unit beside 2048 FLOPs: 1/16 against 256/2048 of a clock a score
    assert found.estimate.padding[0] == pytest.approx(1.5, rel=0.01)


def test_shapes_of_an_operator_around_count_for_its_kernels(tmp_path: Path) -> None:
    """A wrapped implementation without shapes of its own: the nearest known matrix operator around it."""
    trace = Shaped()
    trace.op(
        "aten::mm",
        1000,
        1200,
        **{"Input Dims": [[2048, 2048], [2048, 2048]], "Input type": ["float", "float"]},
    )
    trace.op("mylib::gemm", 1010, 1100)
    trace.launch(1020, "ampere_sgemm_128x64_nn", 1030, 2000)
    found = trace.classes(tmp_path)
    assert found.estimate is not None
    assert found.estimate.flops[0] == 2.0 * 2048**3


def test_join_by_nesting_where_ids_are_missing(tmp_path: Path) -> None:
    trace = Shaped()
    trace.run("aten::mm", [[2048, 2048], [2048, 2048]], [(GEMM, 90)], linked=False)
    trace.op("aten::relu", trace.at, trace.at + 20, tid=999)  # another thread's operator is not in question
    trace.launch(trace.at + 5, POINTWISE, trace.at + 10, trace.at + 30, tid=MAIN)
    found = trace.classes(tmp_path)
    assert found.estimate is not None
    assert found.estimate.flops[0] == 2.0 * 2048**3
    assert found.owner[1] == -1


def test_kernels_from_before_the_recording_take_the_class_of_the_same_kernel(tmp_path: Path) -> None:
    trace = Shaped()
    trace.kernel(GEMM, 900, 940, grid=[77, 1, 1])  # no launch, no operator
    trace.kernel(GEMM, 945, 985, grid=[500, 1, 1])
    trace.run("aten::mm", [[65536, 64], [64, 16]], [(GEMM, 40)], grid=[77, 1, 1])
    found = trace.classes(tmp_path)
    # the same kernel with another grid falls back to its family
    assert named(found, trace, tmp_path) == ["memory", "arithmetic", "memory"]
    assert found.basis.tolist() == [kernels.SAME_KERNEL, kernels.FAMILY, kernels.SHAPES]
    assert "same kernel and grid" in found.source
    assert "kernel family (33% of kernel time)" in found.source


def test_a_window_without_shapes_takes_the_classes_of_one_with_them(tmp_path: Path) -> None:
    shaped = Shaped()
    shaped.run("aten::mm", [[65536, 64], [64, 16]], [(GEMM, 40)], grid=[77, 1, 1])
    window = shaped.activity(tmp_path / "shapes")
    known = kernels.known_kernels(window, classify(window))
    lean = Trace()
    for index, blocks in enumerate((77, 500)):
        lean.launch(1000 + 10 * index, GEMM, 2000 + 100 * index, 2080 + 100 * index, grid=[blocks, 1, 1])
    activity = lean.activity(tmp_path / "lean")
    found = classify(activity, known=known)
    assert [kernels.LIMITS[c] for c in found.limit.tolist()] == ["memory", "arithmetic"]
    assert found.basis.tolist() == [kernels.SAME_KERNEL, kernels.FAMILY]
    assert classify(activity).basis.tolist() == [kernels.FAMILY] * 2


def test_a_window_without_shapes_takes_the_work_of_launches_that_all_did_the_same(tmp_path: Path) -> None:
    shaped = Shaped()
    for _ in range(2):
        shaped.run("aten::mm", [[65536, 64], [64, 16]], [(GEMM, 40)], grid=[77, 1, 1])
    # with one grid, once four times as much as before
    for depth in (1024, 4096):
        shaped.run("aten::mm", [[4096, depth], [depth, 4096]], [(GEMM, 400)], grid=[500, 1, 1])
    window = shaped.activity(tmp_path / "shapes")
    classes = classify(window)
    assert classes.estimate is not None
    known = kernels.known_kernels(window, classes)
    lean = Trace()
    for index, blocks in enumerate((77, 500)):
        lean.launch(1000 + 10 * index, GEMM, 2000 + 500 * index, 2400 + 500 * index, grid=[blocks, 1, 1])
    found = classify(lean.activity(tmp_path / "lean"), known=known)
    assert found.estimate is not None
    assert found.estimate.flops[0] == classes.estimate.flops[0]
    assert found.estimate.bytes[0] == classes.estimate.bytes[0]
    assert found.estimate.known.tolist() == [True, False]
    assert [kernels.LIMITS[c] for c in found.limit.tolist()] == ["memory", "arithmetic"]
    assert found.basis.tolist() == [kernels.SAME_KERNEL] * 2


def test_without_shapes_families_and_unknown(tmp_path: Path) -> None:
    trace = Trace()
    for index, name in enumerate((GEMM, POINTWISE, "my_own_kernel_v3")):
        trace.launch(1000 + 10 * index, name, 2000 + 100 * index, 2080 + 100 * index)
    activity = trace.activity(tmp_path)
    found = classify(activity)
    assert [kernels.LIMITS[c] for c in found.limit.tolist()] == ["arithmetic", "memory", None]
    assert found.basis.tolist() == [kernels.FAMILY, kernels.FAMILY, kernels.NOTHING]
    everything = np.ones(3, dtype=bool)
    assert found.share(activity, kernels.UNKNOWN, everything) == pytest.approx(1 / 3)
    assert found.basis_share(activity, kernels.FAMILY, everything) == pytest.approx(2 / 3)
    assert "unknown (33% of kernel time)" in found.source


@pytest.mark.parametrize(
    ("dram", "tensor", "expected"), [(0.8, 0.1, "memory"), (0.1, 0.7, "arithmetic"), (0.3, 0.3, None)]
)
def test_counters_settle_what_nothing_else_tells(
    tmp_path: Path, dram: float, tensor: float, expected: str | None
) -> None:
    trace = Trace()
    trace.launch(1000, "my_own_kernel_v3", 2000, 2080)
    columns = {
        name: np.full(2, -1, dtype=np.int64) if name in INT_COLUMNS
        else np.array(["", ""]) if name in TEXT_COLUMNS else np.full(2, np.nan)
        for name in GPU_COLUMNS
    }  # fmt: skip
    columns |= {"gpm_dram_bw": np.full(2, dram), "gpm_tensor": np.full(2, tensor)}
    log = gpu_log(columns, source="log", format="jsonl", clock="unix")
    found = classify(trace.activity(tmp_path), log)
    assert kernels.LIMITS[found.limit[0]] == expected
    assert ("DRAM counters" in found.source) == (expected is not None)


def test_unknown_device_is_estimated_and_said(tmp_path: Path) -> None:
    trace = Shaped({**V100, "name": "NVIDIA Future X"})
    trace.run(
        "aten::mm", [[4096, 4096], [4096, 4096]], [("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", 1600)]
    )
    found = trace.classes(tmp_path)
    assert found.basis[0] == kernels.SHAPES
    assert "estimated from its 80 units of capability 7.0" in found.source


def test_throttled_device_is_judged_by_what_it_reaches(tmp_path: Path) -> None:
    """Clocks at a third: products near the ridge become limited by arithmetic, as large ones show."""
    near = [[8192, 8192], [8192, 80]]

    def trace(slow: float) -> Shaped:
        out = Shaped()
        out.run("aten::mm", [[8192, 8192], [8192, 8192]], [(GEMM, 4400 * slow)])
        out.run("aten::add", [[64_000_000], [64_000_000]], [(POINTWISE, 300)])
        out.run("aten::mm", near, [(GEMM, 110 if slow == 1 else 170)])
        return out

    assert named(trace(1).classes(tmp_path), trace(1), tmp_path)[2] == "memory"
    assert named(trace(3).classes(tmp_path), trace(3), tmp_path)[2] == "arithmetic"


def test_copies_and_fills_on_the_device_move_memory(tmp_path: Path) -> None:
    trace = Shaped()
    trace.copy(1000, 1400, 200_000_000, kind="DtoD (Device -> Device)")
    found = trace.classes(tmp_path)
    assert named(found, trace, tmp_path) == ["memory"]
    assert found.estimate is not None
    assert found.estimate.bytes[0] == 400_000_000


def test_empty_trace(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 1000, 1100)
    found = classify(trace.activity(tmp_path))
    assert found.limit.size == 0
    assert found.share(trace.activity(tmp_path), kernels.MEMORY, np.zeros(0, dtype=bool)) is None


@pytest.mark.parametrize("seed", range(20))
def test_parents_as_a_stack_finds_them(seed: int) -> None:
    """Random nested spans: the pointer jumping agrees with the plain stack."""
    rng = np.random.default_rng(seed)
    spans: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while at < high - 2 and depth:
            start = at + int(rng.integers(0, 5))
            end = start + int(rng.integers(1, max((high - start) // 2, 2)))
            if end > high:
                break
            spans.append((start, end))
            fill(start, end, depth - 1)
            at = end + int(rng.integers(0, 3))

    fill(0, 400, 4)
    spans.sort(key=lambda s: (s[0], -s[1]))
    start, end = (np.array([s[i] for s in spans], dtype=np.int64) for i in range(2))
    stack: list[int] = []
    expected = []
    for i in range(len(spans)):
        while stack and end[stack[-1]] < end[i]:
            stack.pop()
        expected.append(stack[-1] if stack else -1)
        stack.append(i)
    assert parents(start, end).tolist() == expected


def test_work_grows_with_distinct_shapes_not_with_kernels(tmp_path: Path) -> None:
    """Ten times the launches of the same operators: the formulas run no more often."""
    from tracelens.signals import operator_work

    def count(repeats: int) -> int:
        trace = Shaped()
        for _ in range(repeats):
            trace.run("aten::mm", [[512, 512], [512, 512]], [(GEMM, 20)])
            trace.run("aten::add", [[512, 512], [512, 512]], [(POINTWISE, 8)])
        activity = trace.activity(tmp_path)
        calls = 0
        original = operator_work.parse

        def counted(recorded: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(recorded)

        operator_work.parse = counted
        try:
            classify(activity)
        finally:
            operator_work.parse = original
        return calls

    assert count(40) == count(4)


def test_classes_are_frozen(tmp_path: Path) -> None:
    trace = Shaped()
    trace.run("aten::mm", [[512, 512], [512, 512]], [(GEMM, 20)])
    found = trace.classes(tmp_path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.source = "x"  # type: ignore[misc]
