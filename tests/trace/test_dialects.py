"""The same work in the words of torch 1.8 and of today, of CUDA and ROCm, is the same work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tracekit import ALL_REDUCE, GEMM, POINTWISE, WORKERS, Loop, as_old, comparable
from tracelens.trace.dialects import copy_kind, host_kind, is_communication, step_number
from tracelens.trace.tables import Device, Host, Pin

LOOPS = {
    "loader": Loop(load_us=3000),
    "waits": Loop(wait=True, load_us=5, python_us=900),
    "pageable": Loop(pinned=False, copy_us=3000, copy_bytes=9_000_000),
    "launches": Loop(load_us=5, kernels=[(POINTWISE, 3)] * 60),
    "stalls": Loop(iterator=WORKERS, steps=12, slow=lambda step: 9000.0 if step % 4 == 3 else 0.0),
    "collectives": Loop(kernels=[(GEMM, 300), (ALL_REDUCE, 700)] * 3),
    "no markers": Loop(markers=False),
}


@pytest.mark.parametrize("name", LOOPS)
def test_relabelled_from_the_current_to_the_old_dialect_the_result_is_identical(
    tmp_path: Path, name: str
) -> None:
    trace = LOOPS[name].trace()
    current, old = trace.result(tmp_path / "current"), as_old(trace).result(tmp_path / "old")
    assert current.inputs["dialect"] == "current"
    assert old.inputs["dialect"] == "old"
    assert json.dumps(comparable(old), sort_keys=True) == json.dumps(comparable(current), sort_keys=True)


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", Host.OPERATOR),
        ("Operator", "aten::mm", Host.OPERATOR),
        ("Operator", "ProfilerStep#4", Host.ANNOTATION),
        ("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Host.ANNOTATION),
        ("user_annotation", "my::range", Host.OPERATOR),
        ("user_annotation", "forward", Host.ANNOTATION),
        ("cpu_op", "AddmmBackward0", Host.OPERATOR),
        ("cuda_driver", "cuLaunchKernel", Host.RUNTIME),
        ("hip_runtime", "hipLaunchKernel", Host.RUNTIME),
        ("python_function", "train.py(3): main", Host.PYTHON),
        ("gpu_user_annotation", "ProfilerStep#4", -1),
        ("ac2g", "ac2g", -1),
    ],
)
def test_host_kinds(category: str, name: str, kind: int) -> None:
    assert host_kind(category, name) == kind


@pytest.mark.parametrize(
    ("name", "wording", "kind", "pin"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "", Device.H2D, Pin.PAGEABLE),
        ("Memcpy HtoD (Pinned -> Device)", "", Device.H2D, Pin.PINNED),
        ("Memcpy DtoH (Device -> Pageable)", "", Device.D2H, Pin.PAGEABLE),
        ("Memcpy DtoD (Device -> Device)", "", Device.D2D, Pin.UNKNOWN),
        ("Memcpy PtoP (Device -> Device)", "", Device.P2P, Pin.UNKNOWN),
        ("CopyHostToDevice", "", Device.H2D, Pin.UNKNOWN),
        ("Memcpy", "DeviceToHost", Device.D2H, Pin.UNKNOWN),
        ("CopyDeviceToDevice", "HostToDevice", Device.H2D, Pin.UNKNOWN),
    ],
)
def test_copies(name: str, wording: str, kind: int, pin: int) -> None:
    assert copy_kind(name, wording) == (kind, pin)


@pytest.mark.parametrize(
    "kernel",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>",
        "multimem_all_reduce_kernel",
        "rcclGenericKernel<1, false>",
    ],
)
def test_collectives(kernel: str) -> None:
    assert is_communication(kernel)


@pytest.mark.parametrize(
    "kernel",
    [GEMM, POINTWISE, "triton_red_fused_all_reduce_like_name_0", "reduce_kernel", "vectorized_gather_kernel"],
)
def test_reductions_are_not_collectives(kernel: str) -> None:
    assert not is_communication(kernel)


def test_step_numbers() -> None:
    assert step_number("ProfilerStep#12") == 12
    assert step_number("ProfilerStep #3") == 3
    assert step_number("Optimizer.step#SGD.step") is None
