"""Kernel families by name, and what limits a kernel: arithmetic, device memory, or too little work to fill the GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.activity import Activity
from tracelens.trace.tables import Device

ARITHMETIC, MEMORY, SMALL, UNKNOWN = 0, 1, 2, 3
LIMITS = ("arithmetic", "memory", "small", None)

# first match wins; across cuBLAS, cuDNN, CUTLASS, nvjet, Triton/Inductor, FlashAttention, MIOpen and Tensile names
_FAMILIES: tuple[tuple[str, str], ...] = (
    ("attention", r"flash|fmha|attention|sdpa|_attn|attn_|\bmha_|paged_kv|fna_|mla_"),
    (
        "layout",
        r"nchwToNhwc|nhwcToNchw|nhwcAddPadding|transpose|permute|convertTensor|tensorTransform|"
        r"im2col|col2im|Im2Col",
    ),
    ("optimizer", r"multi_tensor|adam|FusedSgd|fused_sgd|lamb_|foreach|adagrad"),
    (
        "normalisation",
        r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm|rms_?norm|RowwiseMoments|GammaBeta|"
        r"instance_?norm|MIOpenBatchNorm|lrn_",
    ),
    ("softmax", r"softmax"),
    (
        "embedding",
        r"embedding|index_?select|gather|scatter|split_embedding|fbgemm|_tbe_|bounds_check|"
        r"linearize_index|recat_|index_elementwise|index_put|indexing_backward",
    ),
    ("pooling", r"pool(ing)?[_A-Z0-9]|_pool|pool\b|Pool2d|Pool3d"),
    ("loss", r"nll_loss|cross_entropy|_loss"),
    (
        "convolution",
        r"conv|wgrad|dgrad|fprop|winograd|scudnn|cask_cudnn|fft2d|flip_filter|miopen|igemm|"
        r"implicit_gemm|cudnn_infer|cudnn_train",
    ),
    ("gemv", r"gemv|gemvx|gemv2|dot_kernel|splitKreduce"),
    (
        "gemm",
        r"gemm|cutlass|nvjet|Cijk_|matmul|_mm_|xmma|s16816|h16816|s1688|h1688|s884|h884|wgmma|"
        r"tensorop|hmma|imma|bmm|triton_tem|cublas|_(nn|nt|tn|tt)_?(n|align|stages|\d)|sgemm|"
        r"scaled_mm|marlin|grouped_mm|moe_",
    ),
    ("sort", r"sort|radix|topk|topK|unique|bitonic"),
    ("random", r"distribution|philox|dropout|random|curand|bernoulli"),
    (
        "reduction",
        r"reduce|triton_red|triton_per|cub::.*(Reduce|Scan)|DeviceScan|argmax|cumsum|scan_|"
        r"norm_kernel|LpNorm",
    ),
    (
        "pointwise",
        r"elementwise|vectorized|unrolled|Functor|triton_poi|copy_kernel|CatArray|"
        r"scalePackedTensor|upsample|interpolate|fill|where_kernel|mul_kernel|add_kernel|clamp|"
        r"bias|relu|gelu|silu|sigmoid|swiglu|rotary|cast|convert|_act_|act_and_mul|uniform|"
        r"arange|tril|triu|masked|quant",
    ),
    ("triton", r"^triton_"),
)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _FAMILIES)
_BOUND = {"attention": ARITHMETIC, "convolution": ARITHMETIC, "gemm": ARITHMETIC}

_TENSOR_CORE = re.compile(
    r"884|1688|16816|16832|tensorop|wgmma|hmma|imma|qgmma|nvjet|tf32|bf16|fp16|f16|half|__nv_bfloat16|e4m3|e5m2|fp8|xmma|mma_|Bfloat16|_BBS_|_HHS_|_HSS_|_BSS_",
    re.IGNORECASE,
)
_SINGLE = re.compile(
    r"sgemm|scudnn|simt_s|_simt_|gemmSN|implicit_convolve_sgemm|f32f32_f32f32_f32_(?!.*tf32)|_SB_|Cijk_\w+_S_B|"
    r"(winograd|conv|dgrad|wgrad|fprop|fft)\w*.*<?float(?!.*(half|bf16|tf32))",
    re.IGNORECASE,
)
_SMALL_NS = 4_000  # below, a kernel's own ramp-up and drain are most of its time


@lru_cache(maxsize=65536)
def family(name: str) -> str | None:
    """A kernel's family, None where the name tells nothing."""
    for label, pattern in _COMPILED:
        if pattern.search(name):
            return label
    return None


@lru_cache(maxsize=65536)
def precision(name: str) -> str | None:
    """``tensor_core`` or ``fp32`` (plain single precision) for matmul-like kernels whose name says so, else None."""
    if family(name) not in ("gemm", "convolution", "attention"):
        return None
    if _TENSOR_CORE.search(name):
        return "tensor_core"
    return "fp32" if _SINGLE.search(name) else None


@dataclass(frozen=True, slots=True)
class KernelClasses:
    """For each activity of the rank's GPU: limit code (-1 for what is not a kernel), and where it was read from."""

    limit: NDArray[np.int8]
    source: str

    def share(self, activity: Activity, limit: int, mask: NDArray[np.bool_]) -> float | None:
        """Share of kernel time (within ``mask``) with that limit."""
        duration = (activity.device.end - activity.device.start).astype(float)
        kernels = mask & (self.limit >= 0)
        total = float(duration[kernels].sum())
        return float(duration[kernels & (self.limit == limit)].sum()) / total if total else None


def classify(activity: Activity) -> KernelClasses:
    """Classes by kernel family, grid against the GPU's size, and duration."""
    device = activity.device
    names = activity.tables.names
    by_name = np.full(len(names), UNKNOWN, dtype=np.int8)
    for code in np.unique(device.name[device.kind == Device.KERNEL]):
        label = family(names[code])
        by_name[code] = UNKNOWN if label is None else _BOUND.get(label, MEMORY)
    limit = np.where(device.kind == Device.KERNEL, by_name[device.name], -1).astype(np.int8)
    limit[np.isin(device.kind, (Device.MEMSET, Device.D2D))] = MEMORY
    properties = activity.tables.device_properties(activity.gpu if activity.gpu is not None else 0)
    units = properties.get("numSms")
    duration = device.end - device.start
    small = (limit >= 0) & (duration < _SMALL_NS)
    if isinstance(units, int) and units > 0:
        # less than half a wave of blocks leaves most of the GPU idle, whatever the kernel does
        small |= (
            (limit >= 0) & (device.blocks > 0) & (device.blocks * 2 <= units) & (duration < 10 * _SMALL_NS)
        )
    limit[small] = SMALL
    return KernelClasses(limit, "kernel family, grid and duration")
