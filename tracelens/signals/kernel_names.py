"""What a kernel's name tells: its family, the number format it computes in, which gradient it makes.

Covers cuBLAS, cuDNN, CUTLASS, nvjet, Triton and Inductor, FlashAttention, xFormers, Tensile, MIOpen and CK names.
"""

from __future__ import annotations

import re
from functools import lru_cache

# first match wins
_FAMILIES: tuple[tuple[str, str], ...] = (
    ("communication", r"^(void )?(nccl|rccl|mscclpp|nvshmem)|ncclDevKernel|ncclKernel|cross_device_reduce|all_?reduce_fusion"),
    ("layout", r"reshape_and_cache"),
    ("pointwise", r"quantize_with_block|per_token_quant|scaled_fp8_quant"),
    ("attention", r"flash|fmha|attention|sdpa|_attn|attn_|\bmha_|paged_kv|fna_|mla_|FmhaFwd|FmhaBwd"),
    (
        "layout",
        r"nchwToNhwc|nhwcToNchw|nhwcAddPadding|nchwAddPadding|transpose|permute|convertTensor|tensorTransform|"
        r"im2col|col2im|vol2col|col2vol|SubTensorOpWithCastTensor",
    ),
    ("embedding", r"split_embedding|embedding_bag|_tbe_"),
    ("optimizer", r"multi_tensor|adam|FusedSgd|fused_sgd|\blamb_|lamb_?stage|foreach|adagrad|rmsprop|_fused_optim"),
    (
        "normalisation",
        r"batch_?norm|\bbn_(fw|bw)|layer_?norm|group_?norm|rms_?norm|RowwiseMoments|GammaBeta|"
        r"instance_?norm|MIOpenBatchNorm|\blrn_|ln_(fwd|bwd)_|ComputeInternalGradients|ComputeFusedParams|"
        r"ComputeBackwardFusedParams|weight_norm",
    ),
    ("softmax", r"softmax"),
    (
        "embedding",
        r"(?<!rotary_)embedding|index_?select|index_?add|gather|scatter|fbgemm|_tbe_|bounds_check|"
        r"linearize_index|recat_|index_elementwise|index_put|indexing_backward|krn_partial|sum_and_scatter",
    ),
    ("pooling", r"pool(ing)?[_A-Z0-9]|_pool|pool\b|Pool2d|Pool3d"),
    ("loss", r"nll_?loss|nllcriterion|cross_entropy|_loss\b|_loss_|ctc_"),
    (
        "convolution",
        r"(?<!gemm_)(?<!ger)conv(?!ert)|wgrad|dgrad|fprop|winograd|scudnn|cask_cudnn|fft[12]d_|pointwise_mult_and_sum_complex|flip_filter|miopen|igemm|"
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
# patterns and names in lower case: matching without regard to case takes several times longer
_COMPILED = tuple((name, re.compile(pattern.lower())) for name, pattern in _FAMILIES)
# torch's own element-by-element kernels: what they apply, thousands of characters of template, may sound like anything
_ELEMENTWISE = re.compile(r"^void at::native::(vectorized_|unrolled_|legacy::)?elementwise_kernel")
# the transforms around a Winograd convolution's matmul only move data
_TRANSFORM = re.compile(r"winograd(forward|wgrad)(data|output|filter|delta)")
MATRIX_FAMILIES = frozenset({"gemm", "convolution", "attention", "gemv", "recurrent"})
# a fused elementwise epilogue in front of the name's matmul ("cutlass ... gemm_relu") is still a matmul
_MATRIX_CORE = re.compile(r"gemm|nvjet|cijk_|wgrad|dgrad|fprop|wgmma|hmma|imma")
_DISGUISES = frozenset({"layout", "optimizer", "normalisation", "softmax", "embedding", "loss", "pooling"})

# number formats, the first that matches the lower-case name; the operator's dtype completes "tensor core" without a type
_FORMATS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("fp4", r"e2m1|nvf4|mxf4|fp4"),
        ("fp8", r"e4m3|e5m2|fp8|float8|f8f8|qgmma|_f8|nvjet_qq"),
        ("int8", r"i8i8|s8s8|_int8|imma|i8816|i16832|_i8"),
        ("fp64", r"dgemm|d884|f64f64|_db_|dmma|\bdouble\b|zgemm"),
        ("tf32", r"tf32|_xf32"),
        ("bf16", r"bf16|bfloat16|_bbs_|_b_b_|nvjet_t[st]t"),
        (
            "fp16",
            r"fp16|h884|h1688|h16816|_hhs_|_hss_|_hb_|hgemm|_half|\bhalf|f16f16|::half|nvjet_h[sh]h|_f16",
        ),
    )
)
_TENSOR_CORE = re.compile(
    r"884|1688|16816|16832|tensorop|wgmma|hmma|imma|qgmma|dmma|nvjet|tf32|xmma|mma_|tensor\d+x\d+|xdl|mi16|mi32|_gtcx"
)
_AMD_CORE = re.compile(r"xdl|mi16|mi32|_gtcx|cijk")
# instructions of the ordinary cores, and those of tensor cores that contradict them
_FFMA = re.compile(r"sgemm|scudnn|simt_s|_simt|ffma|gemmsn|cijk_\w*_sb_|cijk_\w*_s_b")
_INSTRUCTION = re.compile(r"s884|h884|1688|16816|16832|tensorop|hmma|wgmma|tf32|xf32")
_SINGLE = re.compile(r"f32f32_f32f32_f32|(winograd|conv|dgrad|wgrad|fprop|fft|gemv|gemmk1)[^<]*<[^>]*\bfloat")
_DATA_GRADIENT = re.compile(r"dgrad|bwd_?data|_bwd_gtc|backward_data|BwdData|bwd_input", re.IGNORECASE)
_WEIGHT_GRADIENT = re.compile(r"wgrad|bwd_?weight|_wrw|backward_weight|BwdWeight|bwd_filter", re.IGNORECASE)


@lru_cache(maxsize=65536)
def family(name: str) -> str | None:
    """A kernel's family, None where the name tells nothing."""
    if _ELEMENTWISE.match(name):
        return "pointwise"
    low = name.lower()
    if _TRANSFORM.search(low):
        return "layout"
    for label, pattern in _COMPILED:
        if pattern.search(low):
            if label in _DISGUISES and _MATRIX_CORE.search(low) and not name.startswith("void at::"):
                continue
            return label
    return None


@lru_cache(maxsize=65536)
def precision(name: str) -> str | None:
    """``tensor_core`` or ``fp32`` (plain single precision) for matmul-like kernels whose name says so, else None."""
    if family(name) not in ("gemm", "convolution", "attention"):
        return None
    low = name.lower()
    if _plain(low):
        return "fp32"
    if _TENSOR_CORE.search(low):
        return "tensor_core"
    return "tensor_core" if number_format(name) not in (None, "fp32", "fp64") else None


def _plain(low: str) -> bool:
    """Whether a lower-case name tells of single precision on the ordinary cores."""
    if _FFMA.search(low) is not None:
        return _INSTRUCTION.search(low) is None
    if _SINGLE.search(low) is None:
        return False
    return not (_TENSOR_CORE.search(low) or any(p.search(low) for _, p in _FORMATS))


@lru_cache(maxsize=65536)
def number_format(name: str, dtype: str | None = None) -> str | None:
    """The format that a matmul-like kernel multiplies in: fp64, fp32, tf32, bf16, fp16, fp8, fp4, int8.

    The name decides; ``dtype`` (of the operator's inputs, same words) completes it. None where neither tells.
    """
    low = name.lower()
    if _plain(low):
        # 16-bit inputs too: such kernels convert them and multiply in fp32
        return "fp32"
    for label, pattern in _FORMATS:
        if pattern.search(low):
            return label
    if (
        dtype in ("fp32", None)
        and "nvjet" not in low
        and _TENSOR_CORE.search(low)
        and not _AMD_CORE.search(low)
    ):
        # NVIDIA's tensor cores take floats as TF32; AMD's matrix cores as they are
        return "tf32"
    return dtype


@lru_cache(maxsize=65536)
def gradient(name: str) -> int:
    """Which gradient a convolution kernel makes: 1 of its input, 2 of its weight, 0 where the name does not say."""
    if _WEIGHT_GRADIENT.search(name):
        return 2
    return 1 if _DATA_GRADIENT.search(name) else 0
