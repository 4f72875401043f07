"""GPUs and links as the vendors publish them: dense peaks in TFLOPS, DRAM in GB/s, PCIe generation.

Sources: vendor data sheets (dense figures, no sparsity). ``launch_us`` is the delay from the start of a
launch call to the start of its kernel on an idle GPU, ``call_us`` the length of the call; both are of the
size seen in public traces of that generation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. ``tf32`` and ``half`` are tensor-core rates; ``None`` where the chip has none."""

    key: str
    name: str
    arch: str
    fp32: float
    tf32: float | None
    fp16: float | None
    bf16: float | None
    dram_gbs: float
    memory: int
    sms: int
    cc: tuple[int, int]
    pcie_gen: int
    tdp: int
    clock_mhz: int
    launch_us: float
    call_us: float
    threads_per_sm: int = 2048
    smem_per_sm: int = 167936
    smem_optin: int = 166912

    def flops(self, dtype: str, tensor: bool) -> float:
        """Peak FLOP/s of a matrix kernel (``tensor``) or of plain arithmetic in ``dtype``."""
        rate = self.fp32
        if tensor and dtype != "fp32":
            rate = {"tf32": self.tf32, "fp16": self.fp16, "bf16": self.bf16}[dtype] or self.fp32
        return rate * 1e12

    def supports(self, dtype: str) -> bool:
        """Whether matrix kernels of ``dtype`` exist on this chip."""
        return dtype == "fp32" or {"tf32": self.tf32, "fp16": self.fp16, "bf16": self.bf16}[dtype] is not None


GIB = 1 << 30

DEVICES: dict[str, Device] = {
    d.key: d
    for d in (
        Device(
            "T4",
            "Tesla T4",
            "turing",
            8.1,
            None,
            65,
            None,
            320,
            15637086208,
            40,
            (7, 5),
            3,
            70,
            1590,
            9.0,
            5.0,
            1024,
            65536,
            65536,
        ),
        Device(
            "V100",
            "Tesla V100-SXM2-32GB",
            "volta",
            15.7,
            None,
            125,
            None,
            900,
            34089730048,
            80,
            (7, 0),
            3,
            300,
            1530,
            10.0,
            6.0,
            2048,
            98304,
            98304,
        ),
        Device(
            "2080Ti",
            "NVIDIA GeForce RTX 2080 Ti",
            "turing",
            13.4,
            None,
            53,
            None,
            616,
            11554586624,
            68,
            (7, 5),
            3,
            250,
            1545,
            10.0,
            6.5,
            1024,
            65536,
            65536,
        ),
        Device(
            "A100-40",
            "NVIDIA A100-SXM4-40GB",
            "ampere",
            19.5,
            156,
            312,
            312,
            1555,
            42505273344,
            108,
            (8, 0),
            4,
            400,
            1410,
            8.0,
            5.0,
        ),
        Device(
            "A100-80",
            "NVIDIA A100-SXM4-80GB",
            "ampere",
            19.5,
            156,
            312,
            312,
            2039,
            84990623744,
            108,
            (8, 0),
            4,
            400,
            1410,
            8.0,
            5.0,
        ),
        Device(
            "A10",
            "NVIDIA A10",
            "ampere",
            31.2,
            62.5,
            125,
            125,
            600,
            23600000000,
            72,
            (8, 6),
            4,
            150,
            1695,
            8.0,
            4.5,
            1536,
            102400,
            101376,
        ),
        Device(
            "RTX3090",
            "NVIDIA GeForce RTX 3090",
            "ampere",
            35.6,
            35.6,
            71,
            71,
            936,
            25438126080,
            82,
            (8, 6),
            4,
            350,
            1695,
            8.0,
            4.5,
            1536,
            102400,
            101376,
        ),
        Device(
            "L4",
            "NVIDIA L4",
            "ada",
            30.3,
            60,
            121,
            121,
            300,
            23800000000,
            58,
            (8, 9),
            4,
            72,
            2040,
            7.0,
            4.0,
            1536,
            102400,
            101376,
        ),
        Device(
            "RTX4090",
            "NVIDIA GeForce RTX 4090",
            "ada",
            82.6,
            82.6,
            165.2,
            165.2,
            1008,
            25386352640,
            128,
            (8, 9),
            4,
            450,
            2520,
            6.5,
            3.8,
            1536,
            102400,
            101376,
        ),
        Device(
            "H100",
            "NVIDIA H100 80GB HBM3",
            "hopper",
            67,
            494.5,
            989,
            989,
            3350,
            85045018624,
            132,
            (9, 0),
            5,
            700,
            1980,
            6.5,
            4.0,
            2048,
            233472,
            232448,
        ),
        Device(
            "H200",
            "NVIDIA H200",
            "hopper",
            67,
            494.5,
            989,
            989,
            4800,
            150754820096,
            132,
            (9, 0),
            5,
            700,
            1980,
            6.5,
            4.0,
            2048,
            233472,
            232448,
        ),
    )
}


def pcie_gbs(gen: int, width: int) -> float:
    """One-way rate in GB/s of a PCIe link, 85 % of the line rate (what pinned copies reach)."""
    return {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938}[gen] * width * 0.85
