"""What a kernel's name tells: its family, the number format it computes in, which gradient it makes.

Covers cuBLAS, cuDNN, CUTLASS, nvjet, Triton and Inductor, FlashAttention, xFormers, Tensile, MIOpen and CK names.
"""

from __future__ import annotations

import re
from functools import lru_cache

# first match wins
_FAMILIES: tuple[tuple[str, str], ...] = (
    ("communication", r"^(void )?(nccl|rccl|mscclpp|nvshmem)|ncclDevKernel|ncclKernel|cross_device_reduce|all_?reduce_fusion"),
    ("attention", r"flash|fmha|attention|sdpa|_attn|attn_|\bmha_|paged_kv|fna_|mla_|FmhaFwd|FmhaBwd"),
    (
        "layout",
        r"nchwToNhwc|nhwcToNchw|nhwcAddPadding|nchwAddPadding|transpose|permute|convertTensor|tensorTransform|"
        r"im2col|col2im|vol2col|col2vol|SubTensorOpWithCastTensor",
    ),
    ("optimizer", r"multi_tensor|adam|FusedSgd|fused_sgd|\blamb|foreach|adagrad|rmsprop|_fused_optim"),
    (
        "normalisation",
        r"batch_?norm|\bbn_(fw|bw)|layer_?norm|group_?norm|rms_?norm|RowwiseMoments|GammaBeta|"
        r"instance_?norm|MIOpenBatchNorm|\blrn_|ln_(fwd|bwd)_|ComputeInternalGradients|ComputeFusedParams|"
        r"ComputeBackwardFusedParams|weight_norm",
    ),
    ("softmax", r"softmax"),
    (
        "embedding",
        r"embedding|index_?select|index_?add|gather|scatter|fbgemm|_tbe_|bounds_check|"
        r"linearize_index|recat_|index_elementwise|index_put|indexing_backward|krn_partial|sum_and_scatter",
    ),
    ("pooling", r"pool(ing)?[_A-Z0-9]|_pool|pool\b|Pool2d|Pool3d"),
    ("loss", r"nll_loss|cross_entropy|_loss\b|_loss_|ctc_"),
    (
        "convolution",
        r"(?<!gemm_)(?<!ger)conv(?!ert)|wgrad|dgrad|fprop|winograd|scudnn|cask_cudnn|fft2d|flip_filter|miopen|igemm|"
        r"implicit_gemm|cudnn_infer|cudnn_train|s884cudnn|s1688cudnn|s16816cudnn|bwd_weight|bwd_data|naive_conv",
    ),
    ("gemv", r"gemv|\bdot_kernel|gevdot"),
    (
        "gemm",
        r"gemm|nvjet|Cijk_|matmul|_mm_|xmma|s16816|h16816|s1688|h1688|s884|h884|wgmma|"
        r"tensorop|hmma|imma|bmm|triton_tem|cublas|scaled_mm|marlin|grouped_mm|moe_|splitKreduce|split_?k_?reduce",
    ),
    ("recurrent", r"rnn|lstm|\bgru|persist_"),
    ("sort", r"sort|radix|topk|bitonic|\bunique"),
    ("random", r"distribution|philox|dropout|random|curand|bernoulli|multinomial"),
    (
        "reduction",
        r"reduce|triton_(red|per)_|cub::.*(Reduce|Scan)|DeviceScan|argmax|argmin|cumsum|cumprod|scan_|"
        r"norm_kernel|LpNorm|MeanOps|WelfordOps",
    ),
    (
        "pointwise",
        r"elementwise|vectorized|unrolled|Functor|triton_poi|copy_kernel|CatArray|"
        r"scalePackedTensor|upsample|interpolate|fill|where_kernel|mul_kernel|add_kernel|clamp|"
        r"bias|relu|gelu|silu|sigmoid|swiglu|rotary|cast|convert|_act_|act_and_mul|uniform|"
        r"arange|\btril|\btriu|masked|quant|SubTensorOp|OpTensor|op_tensor|scaleTensor",
    ),
    ("fused", r"^triton_|cutlass"),
)  # fmt: skip
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _FAMILIES)
MATRIX_FAMILIES = frozenset({"gemm", "convolution", "attention", "gemv", "recurrent"})
# a fused elementwise epilogue in front of the name's matmul ("cutlass ... gemm_relu") is still a matmul
_MATRIX_CORE = re.compile(r"gemm|nvjet|Cijk_|wgrad|dgrad|fprop|wgmma|hmma|imma", re.IGNORECASE)
_DISGUISES = frozenset({"normalisation", "softmax", "embedding", "loss", "pooling"})

# number formats, the first that matches; "tensor core" without a type is completed by the operator's dtype
_FORMATS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("fp4", r"(?i)e2m1|nvf4|mxf4|fp4"),
        ("fp8", r"(?i)e4m3|e5m2|fp8|float8|f8f8|qgmma|_F8|nvjet_qq"),
        ("int8", r"(?i)i8i8|s8s8|_int8|imma|i8816|i16832|Cijk_\w+_I8"),
        ("fp64", r"(?i)dgemm|d884|f64f64|_DB_|dmma|\bdouble\b|zgemm"),
        ("tf32", r"(?i)tf32|s1688gemm_(?!fp16|f16|bf16)|_xf32|S_B_.*_MI.*X"),
        ("bf16", r"(?i)bf16|bfloat16|_BBS_|_B_B_|nvjet_t[st]t|bfp16"),
        (
            "fp16",
            r"(?i)fp16|h884|h1688|h16816|_HHS_|_HSS_|_HB_|hgemm|_half|\bhalf|f16f16|::Half|nvjet_h[sh]h|_f16",
        ),
    )
)
_TENSOR_CORE = re.compile(
    r"884|1688|16816|16832|tensorop|wgmma|hmma|imma|qgmma|dmma|nvjet|tf32|xmma(?!.*(ffma|simt))|mma_|tensor\d+x\d+|xdl|MI16|MI32|_gtcx",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"sgemm|scudnn|simt|ffma|gemmSN|implicit_convolve_sgemm|f32f32_f32f32_f32_(?!.*(tf32|tensor\d))|"
    r"(winograd|conv|dgrad|wgrad|fprop|fft|gemv)\w*.*<?float(?!.*(half|bf16|tf32|bfloat))",
    re.IGNORECASE,
)
_FFMA = re.compile(r"sgemm|scudnn|simt_s|_simt|ffma|gemmSN", re.IGNORECASE)
_INSTRUCTION = re.compile(r"s884|h884|1688|16816|16832|tensorop|hmma|wgmma|tf32", re.IGNORECASE)
_DATA_GRADIENT = re.compile(r"dgrad|bwd_?data|_bwd_gtc|backward_data|BwdData|bwd_input", re.IGNORECASE)
_WEIGHT_GRADIENT = re.compile(r"wgrad|bwd_?weight|_wrw|backward_weight|BwdWeight|bwd_filter", re.IGNORECASE)


@lru_cache(maxsize=65536)
def family(name: str) -> str | None:
    """A kernel's family, None where the name tells nothing."""
    for label, pattern in _COMPILED:
        if pattern.search(name):
            if label in _DISGUISES and _MATRIX_CORE.search(name) and not name.startswith("void at::"):
                continue
            return label
    return None


@lru_cache(maxsize=65536)
def precision(name: str) -> str | None:
    """``tensor_core`` or ``fp32`` (plain single precision) for matmul-like kernels whose name says so, else None."""
    if family(name) not in ("gemm", "convolution", "attention"):
        return None
    if _plain(name):
        return "fp32"
    if _TENSOR_CORE.search(name):
        return "tensor_core"
    return "tensor_core" if number_format(name) not in (None, "fp32", "fp64") else None


def _plain(name: str) -> bool:
    """Whether a name tells of single precision on the ordinary cores."""
    if _FFMA.search(name) is not None:
        return _INSTRUCTION.search(name) is None
    if _PLAIN.search(name) is None:
        return False
    return not (_TENSOR_CORE.search(name) or any(p.search(name) for _, p in _FORMATS))


@lru_cache(maxsize=65536)
def number_format(name: str, dtype: str | None = None) -> str | None:
    """The format that a matmul-like kernel multiplies in: fp64, fp32, tf32, bf16, fp16, fp8, fp4, int8.

    The name decides; ``dtype`` (of the operator's inputs, same words) completes it. None where neither tells.
    """
    if _plain(name):
        # 16-bit inputs too: such kernels convert them and multiply in fp32
        return "fp32"
    for label, pattern in _FORMATS:
        if pattern.search(name):
            return label
    if _TENSOR_CORE.search(name):
        return "tf32" if dtype in ("fp32", None) and "nvjet" not in name else dtype
    return dtype


@lru_cache(maxsize=65536)
def gradient(name: str) -> int:
    """Which gradient a convolution kernel makes: 1 of its input, 2 of its weight, 0 where the name does not say."""
    if _WEIGHT_GRADIENT.search(name):
        return 2
    return 1 if _DATA_GRADIENT.search(name) else 0
