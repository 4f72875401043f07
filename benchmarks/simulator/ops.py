"""Operators and kernels: what one layer launches forward and backward, its work, and its names.

``flops`` and ``bytes`` are of one kernel launch; the roofline in ``time_us`` turns them into microseconds
on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.simulator.hardware import Device

MEMORY_EFF = 0.80  # streaming kernels reach about four fifths of the DRAM rate
FLOOR_US = 1.6  # the shortest kernel


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. ``tensor``: a matrix kernel; ``eff``: share of peak it reaches when it fills the GPU."""

    name: str
    flops: float
    bytes: float
    tensor: bool = False
    blocks: int = 1
    threads: int = 256
    regs: int = 32
    smem: int = 0
    eff: float = 0.6
    memset: bool = False
    comm_numel: int = 0
    dtod: bool = False


@dataclass(slots=True)
class Op:
    """One operator as the profiler shows it: nested names, input shapes, the innermost one's kernels.

    ``grad`` is the autograd node's name (forward ops that need one), ``back`` its operators, ``params`` the
    shapes of the parameters whose gradients it accumulates, ``views`` short operators before it, ``inner`` the innermost
    name's shapes where they are others.
    """

    chain: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    dims: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float"
    out_bytes: int = 0
    grad: str | None = None
    back: tuple[Op, ...] = ()
    params: tuple[tuple[int, ...], ...] = ()
    views: tuple[str, ...] = ()
    sync: str | None = None
    module: bool = True
    saved: int = 0
    inner: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True)
class Net:
    """A model's step: forward operators in order, its parameters, sizes of one sample's input."""

    template: str
    batch: int
    dtype: str
    device: Device
    forward: list[Op] = field(default_factory=list)
    params: list[tuple[int, ...]] = field(default_factory=list)
    inputs: list[tuple[tuple[int, ...], str, int]] = field(
        default_factory=list
    )  # shape, type, bytes of the batch


def time_us(k: Kernel, dev: Device, dtype: str, clock: float = 1.0) -> tuple[float, str]:
    """Duration and kind (``compute``, ``memory``, ``small``) of a kernel by roofline.

    A grid that does not fill the SMs cannot use the whole chip: its rates fall. It is ``small`` when the
    unfilled chip or the launch's fixed cost, not arithmetic or DRAM, decides. ``clock`` scales arithmetic.
    """
    waves = k.blocks / (dev.sms * (1.0 if k.tensor else 2.0))
    fill = min(1.0, max(waves, 0.02)) ** (1.0 if k.tensor else 0.7)
    arithmetic_full = k.flops / (dev.flops(dtype, k.tensor) * k.eff) * 1e6 / clock
    # DRAM rate saturates with far fewer blocks than arithmetic does
    dram_full = k.bytes / (dev.dram_gbs * 1e3 * MEMORY_EFF)
    arithmetic, dram = arithmetic_full / fill, dram_full / min(1.0, 2.0 * fill)
    floor = FLOOR_US / clock**0.5
    t = max(arithmetic, dram) + floor
    full = max(arithmetic_full, dram_full)
    if full < 0.5 * t:
        return t, "small"
    return t, "memory" if dram >= arithmetic else "compute"


def near_ridge(k: Kernel, dev: Device, dtype: str) -> bool:
    """Whether arithmetic and DRAM time are within a factor of 1.5: no roofline tells such a kernel's limit for sure."""
    arithmetic = k.flops / (dev.flops(dtype, k.tensor) * k.eff) * 1e6
    dram = k.bytes / (dev.dram_gbs * 1e3 * MEMORY_EFF)
    return dram > 0.0 and 1 / 1.5 <= arithmetic / dram <= 1.5


def elem_bytes(dtype: str) -> int:
    """Bytes an element takes in activations of ``dtype``."""
    return 2 if dtype in ("fp16", "bf16") else 4


def type_name(dtype: str) -> str:
    """The profiler's name of the element type."""
    return {"fp16": "c10::Half", "bf16": "c10::BFloat16"}.get(dtype, "float")


def cxx(dtype: str) -> str:
    """The element type inside a kernel name."""
    return {"fp16": "c10::Half", "bf16": "c10::BFloat16"}.get(dtype, "float")


def gemm_name(dev: Device, dtype: str, large: bool, layout: str) -> str:
    """A library GEMM kernel's name on this architecture."""
    tile = "128x128" if large else "64x64"
    if dtype == "fp32":
        return f"{'volta' if dev.arch in ('volta', 'turing') else 'ampere'}_sgemm_{tile}_{layout}"
    if dev.arch == "volta":
        return f"volta_fp16_s884gemm_fp16_{tile}_ldg8_f2f_{layout}"
    if dev.arch == "turing":
        return f"turing_fp16_s1688gemm_fp16_{tile}_ldg8_f2f_{layout}"
    if dtype == "tf32":
        return (
            f"void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_{tile}_16x5_{layout}_align4>"
            f"(cutlass_80_tensorop_s1688gemm_{tile}_16x5_{layout}_align4::Params)"
        )
    if dev.arch == "hopper":
        return f"nvjet_{'hsh' if dtype == 'fp16' else 'tst'}_{tile}_64x6_2x1_v_bz_{layout.upper()}T"
    short = "fp16" if dtype == "fp16" else "bf16"
    return f"ampere_{short}_s16816gemm_{short}_{tile}_ldg8_f2f_stages_64x3_{layout}"


def conv_name(dev: Device, dtype: str, way: str) -> str:
    """A cuDNN convolution kernel's name; ``way`` is fprop, dgrad or wgrad."""
    if dtype == "fp32":
        if dev.arch in ("volta", "turing"):
            return (
                f"volta_scudnn_128x64_relu_{way}_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize128x128x16_"
                "stage4_warpsize2x2x1_g1_execute_kernel__5x_cudnn"
                if way == "fprop"
                else f"volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1_{way}"
            )
        return f"ampere_scudnn_128x64_relu_medium_nn_v1_{way}"
    if dev.arch == "volta":
        return f"volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1_{way}"
    if dev.arch == "turing":
        return f"turing_fp16_s1688cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1_{way}"
    if dtype == "tf32":
        return (
            f"sm80_xmma_{way}_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_"
            "g1_tensor16x8x8_execute_kernel__5x_cudnn"
        )
    if dev.arch == "hopper":
        t = "f16f16" if dtype == "fp16" else "bf16bf16"
        return (
            f"sm90_xmma_{way}_implicit_gemm_{t}_{t}_f32_nhwckrsc_nhwc_tilesize128x128x64_cgasize1x1x1_stage4_"
            "gmmastage2_g1_tensor16x8x16_kernel_execute_kernel__5x_cudnn"
        )
    t = "f16" if dtype == "fp16" else "bf16"
    return (
        "void cutlass__5x_cudnn::Kernel"
        f"<cutlass_tensorop_{t}_s16816{way}_optimized_{t}_128x128_32x4_nhwc_align8>"
        f"(cutlass_tensorop_{t}_s16816{way}_optimized_{t}_128x128_32x4_nhwc_align8::Params)"
    )


def pointwise_name(functor: str, dtype: str, inputs: int) -> str:
    """An elementwise kernel's name with ``inputs`` input tensors."""
    f = f"at::native::{functor}<{cxx(dtype)}>"
    arr = f"std::array<char*, {inputs + 1}ul>"
    return f"void at::native::vectorized_elementwise_kernel<4, {f}, {arr} >(int, {f}, {arr})"


def pointwise(functor: str, n: int, dtype: str, inputs: int = 1, flops: float = 1.0) -> Kernel:
    """An elementwise kernel over ``n`` elements reading ``inputs`` tensors and writing one."""
    return Kernel(
        pointwise_name(functor, dtype, inputs),
        flops * n,
        n * elem_bytes(dtype) * (inputs + 1),
        blocks=max(1, -(-n // 512)),
        threads=128,
        regs=24,
        eff=0.4,
    )


def gemm(dev: Device, dtype: str, m: int, n: int, k: int, layout: str = "tn", batch: int = 1) -> Kernel:
    """A (batched) matrix product of ``m x k`` by ``k x n``; small results are cut in smaller tiles."""
    large = batch * -(-m // 128) * -(-n // 128) >= dev.sms
    tile = 128 if large else 64
    tiles = batch * -(-m // tile) * -(-n // tile)
    splits = min(8, max(1, k // 2048)) if tiles < dev.sms else 1
    blocks = tiles * splits
    moved = batch * (m * k + k * n + m * n) * elem_bytes(dtype)
    return Kernel(
        gemm_name(dev, dtype, large, layout),
        2.0 * batch * m * n * k,
        float(moved),
        tensor=True,
        blocks=blocks,
        threads=256,
        regs=128,
        smem=49152,
        eff=0.75 if dtype == "fp32" else 0.62,
    )


def conv(dev: Device, dtype: str, b: int, cin: int, cout: int, ho: int, wo: int, r: int, way: str) -> Kernel:
    """A convolution with an ``r x r`` filter and ``ho x wo`` output."""
    rows = b * ho * wo
    m, n = (rows, cout) if way == "fprop" else (rows, cin) if way == "dgrad" else (cin * r * r, cout)
    tile = 128 if -(-m // 128) * -(-n // 128) >= dev.sms else 64
    tiles = -(-m // tile) * -(-n // tile)
    splits = max(1, min(rows // 256, 2 * dev.sms // max(tiles, 1))) if way == "wgrad" else 1
    es = elem_bytes(dtype)
    return Kernel(
        conv_name(dev, dtype, way),
        2.0 * rows * cin * cout * r * r,
        float((rows * cin + rows * cout + cin * cout * r * r) * es),
        tensor=True,
        blocks=tiles * splits,
        threads=256,
        regs=200,
        smem=81920,
        eff=0.65 if dtype == "fp32" else 0.5,
    )
