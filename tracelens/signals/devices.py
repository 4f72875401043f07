"""GPUs: peak dense rates by number format, memory bandwidth, size. Vendors' data sheets, at boost clock.

GeForce and TITAN tensor rates are those with 32-bit accumulation, which torch uses; sparsity is never counted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_N, _A = "nvidia", "amd"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Peak rates in TFLOP/s (int8: TOP/s), DRAM in GB/s, memory in GB; ``basis``: ``table`` or how it was estimated.

    ``capability`` is CUDA's (major, minor); AMD's gfx version in the same form (gfx942: 9, 4).
    """

    name: str
    vendor: str
    capability: tuple[int, int]
    sms: int
    fp64: float | None
    fp32: float
    tf32: float | None
    fp16: float | None
    bf16: float | None
    fp8: float | None
    dram_gb_s: float
    memory_gb: float
    pcie_gen: int
    basis: str = "table"

    def peak(self, number_format: str | None) -> float | None:
        """FLOP/s in a format; a format that the device lacks runs at the next that it has. None: unknown format."""
        if number_format == "fp64":
            return self.fp64 * 1e12 if self.fp64 else None
        order = {
            "fp32": (self.fp32,),
            "tf32": (self.tf32, self.fp32),
            "bf16": (self.bf16, self.fp32),
            "fp16": (self.fp16, self.fp32),
            "int8": (self.fp8, self.fp16 * 2 if self.fp16 else None, self.fp32),
            "fp8": (self.fp8, self.fp16, self.fp32),
            "fp4": (self.fp8 * 2 if self.fp8 else None, self.fp16, self.fp32),
        }.get(number_format or "", ())
        return next((rate * 1e12 for rate in order if rate), None)

    @property
    def exponentials(self) -> float:
        """Exponentials a second: 16 a clock and unit, where fp32 does 128 (Pascal to A100) or 256 FLOPs (later, AMD)."""
        return self.fp32 * 1e12 / (8.0 if self.vendor == _N and self.capability <= (8, 0) else 16.0)

    @property
    def bandwidth(self) -> float:
        """DRAM bytes/s."""
        return self.dram_gb_s * 1e9


# name pattern (on the cleaned name); vendor, capability, SMs or CUs; fp64, fp32, tf32, fp16, bf16, fp8; GB/s, GB, PCIe
_Row = tuple[
    str, str, str, tuple[int, int], int, float | None, float, float | None, float | None, float | None,
    float | None, float, float, int,
]  # fmt: skip
_TABLE: tuple[_Row, ...] = (
    # data centre, newest first
    ("GB300", r"\bgb300", _N, (10, 3), 148, 1.3, 80, 1250, 2500, 2500, 5000, 8000, 288, 6),
    ("B300", r"\bb300", _N, (10, 3), 148, 1.3, 77, 1100, 2250, 2250, 4500, 8000, 288, 6),
    ("GB200", r"\bgb200", _N, (10, 0), 148, 40, 80, 1250, 2500, 2500, 5000, 8000, 192, 6),
    ("B200", r"\bb200", _N, (10, 0), 148, 37, 75, 1125, 2250, 2250, 4500, 8000, 180, 5),
    ("B100", r"\bb100", _N, (10, 0), 144, 30, 60, 875, 1750, 1750, 3500, 8000, 192, 5),
    ("GH200 144GB", r"\bgh200.*144", _N, (9, 0), 132, 67, 67, 494.5, 989, 989, 1979, 4900, 144, 5),
    ("GH200", r"\bgh200", _N, (9, 0), 132, 67, 67, 494.5, 989, 989, 1979, 4000, 96, 5),
    ("H200 NVL", r"\bh200 nvl", _N, (9, 0), 132, 60, 60, 417.5, 835.5, 835.5, 1671, 4800, 141, 5),
    ("H200", r"\bh200", _N, (9, 0), 132, 67, 67, 494.5, 989, 989, 1979, 4800, 141, 5),
    ("H100 NVL", r"\bh100 nvl", _N, (9, 0), 132, 60, 60, 417.5, 835.5, 835.5, 1671, 3938, 94, 5),
    ("H100 PCIe", r"\bh100 pcie", _N, (9, 0), 114, 51, 51, 378, 756, 756, 1513, 2000, 80, 5),
    ("H100 SXM", r"\bh100", _N, (9, 0), 132, 67, 67, 494.5, 989, 989, 1979, 3350, 80, 5),
    ("H800 PCIe", r"\bh800 pcie", _N, (9, 0), 114, 0.8, 51, 378, 756, 756, 1513, 2000, 80, 5),
    ("H800", r"\bh800", _N, (9, 0), 132, 1, 67, 494.5, 989, 989, 1979, 3350, 80, 5),
    ("H20", r"\bh20\b", _N, (9, 0), 78, 1, 44, 74, 148, 148, 296, 4000, 96, 5),
    ("A100 PCIe 80GB", r"\ba100 (pcie.*80gb|80gb pcie)", _N, (8, 0), 108, 19.5, 19.5, 156, 312, 312, None, 1935, 80, 4),
    ("A100 SXM 80GB", r"\ba100.*80gb", _N, (8, 0), 108, 19.5, 19.5, 156, 312, 312, None, 2039, 80, 4),
    ("A100 40GB", r"\ba100", _N, (8, 0), 108, 19.5, 19.5, 156, 312, 312, None, 1555, 40, 4),
    ("A800 80GB", r"\ba800", _N, (8, 0), 108, 19.5, 19.5, 156, 312, 312, None, 2039, 80, 4),
    ("A30", r"\ba30\b", _N, (8, 0), 56, 10.3, 10.3, 82, 165, 165, None, 933, 24, 4),
    ("A40", r"\ba40\b", _N, (8, 6), 84, 0.58, 37.4, 74.8, 149.7, 149.7, None, 696, 48, 4),
    ("A10G", r"\ba10g\b", _N, (8, 6), 80, 0.55, 35, 35, 70, 70, None, 600, 24, 4),
    ("A10", r"\ba10\b", _N, (8, 6), 72, 0.49, 31.2, 62.5, 125, 125, None, 600, 24, 4),
    ("A16", r"\ba16\b", _N, (8, 6), 10, 0.07, 4.5, 9, 18, 18, None, 200, 16, 4),
    ("A2", r"\ba2\b", _N, (8, 6), 10, 0.07, 4.5, 9, 18, 18, None, 200, 16, 4),
    ("L40S", r"\bl40s\b", _N, (8, 9), 142, 1.4, 91.6, 183, 362, 362, 733, 864, 48, 4),
    ("L40", r"\bl40\b", _N, (8, 9), 142, 1.4, 90.5, 90.5, 181, 181, 362, 864, 48, 4),
    ("L20", r"\bl20\b", _N, (8, 9), 92, 0.93, 59.8, 59.8, 119.5, 119.5, 239, 864, 48, 4),
    ("L4", r"\bl4\b", _N, (8, 9), 58, 0.49, 30.3, 60, 121, 121, 242, 300, 24, 4),
    ("T4", r"\bt4\b", _N, (7, 5), 40, 0.25, 8.1, None, 65, None, None, 320, 16, 3),
    ("V100S PCIe", r"\bv100s", _N, (7, 0), 80, 8.2, 16.4, None, 130, None, None, 1134, 32, 3),
    ("V100 PCIe", r"\bv100 pcie", _N, (7, 0), 80, 7, 14, None, 112, None, None, 900, 16, 3),
    ("V100 FHHL", r"\bv100 fhhl", _N, (7, 0), 80, 6.5, 13, None, 105, None, None, 829, 16, 3),
    ("V100 SXM", r"\bv100", _N, (7, 0), 80, 7.8, 15.7, None, 125, None, None, 900, 32, 3),
    ("P100 PCIe", r"\bp100 pcie", _N, (6, 0), 56, 4.7, 9.3, None, 18.7, None, None, 732, 16, 3),
    ("P100 SXM", r"\bp100", _N, (6, 0), 56, 5.3, 10.6, None, 21.2, None, None, 732, 16, 3),
    ("P40", r"\bp40\b", _N, (6, 1), 30, 0.37, 11.8, None, None, None, None, 346, 24, 3),
    ("P4", r"\bp4\b", _N, (6, 1), 20, 0.17, 5.5, None, None, None, None, 192, 8, 3),
    ("M60", r"\bm60\b", _N, (5, 2), 16, 0.15, 4.8, None, None, None, None, 160, 8, 3),
    ("K80", r"\bk80\b", _N, (3, 7), 13, 1.46, 4.4, None, None, None, None, 240, 12, 3),
    # workstation
    ("RTX PRO 6000 Blackwell", r"\brtx pro 6000", _N, (12, 0), 188, 1.97, 126, 252, 504, 504, 1008, 1792, 96, 5),
    ("RTX 6000 Ada", r"\brtx 6000 ada", _N, (8, 9), 142, 1.4, 91.1, 182, 364, 364, 728, 960, 48, 4),
    ("RTX 5000 Ada", r"\brtx 5000 ada", _N, (8, 9), 100, 1, 65.3, 130.6, 261, 261, 522, 576, 32, 4),
    ("RTX 4500 Ada", r"\brtx 4500 ada", _N, (8, 9), 60, 0.62, 39.6, 79.2, 158.5, 158.5, 317, 432, 24, 4),
    ("RTX 4000 Ada", r"\brtx 4000 ada", _N, (8, 9), 48, 0.42, 26.7, 53.5, 107, 107, 214, 360, 20, 4),
    ("RTX A6000", r"\ba6000\b", _N, (8, 6), 84, 0.6, 38.7, 77.4, 154.8, 154.8, None, 768, 48, 4),
    ("RTX A5500", r"\ba5500\b", _N, (8, 6), 80, 0.53, 34.1, 68.2, 136.4, 136.4, None, 768, 24, 4),
    ("RTX A5000", r"\ba5000\b", _N, (8, 6), 64, 0.43, 27.8, 55.6, 111.1, 111.1, None, 768, 24, 4),
    ("RTX A4500", r"\ba4500\b", _N, (8, 6), 56, 0.37, 23.7, 47.3, 94.6, 94.6, None, 640, 20, 4),
    ("RTX A4000", r"\ba4000\b", _N, (8, 6), 48, 0.3, 19.2, 38.3, 76.7, 76.7, None, 448, 16, 4),
    ("RTX A2000", r"\ba2000\b", _N, (8, 6), 26, 0.12, 8, 16, 31.9, 31.9, None, 288, 6, 4),
    ("Quadro RTX 8000", r"\brtx 8000\b", _N, (7, 5), 72, 0.51, 16.3, None, 130.5, None, None, 672, 48, 3),
    ("Quadro RTX 6000", r"\brtx 6000\b", _N, (7, 5), 72, 0.51, 16.3, None, 130.5, None, None, 672, 24, 3),
    ("Quadro RTX 5000", r"\brtx 5000\b", _N, (7, 5), 48, 0.35, 11.2, None, 89.2, None, None, 448, 16, 3),
    ("Quadro RTX 4000", r"\brtx 4000\b", _N, (7, 5), 36, 0.22, 7.1, None, 57, None, None, 416, 8, 3),
    # GeForce and TITAN
    ("RTX 5090", r"\brtx 5090", _N, (12, 0), 170, 1.64, 104.8, 104.8, 209.5, 209.5, 419, 1792, 32, 5),
    ("RTX 5080", r"\brtx 5080", _N, (12, 0), 84, 0.88, 56.3, 56.3, 112.6, 112.6, 225, 960, 16, 5),
    ("RTX 5070 Ti", r"\brtx 5070 ti", _N, (12, 0), 70, 0.69, 43.9, 43.9, 87.9, 87.9, 176, 896, 16, 5),
    ("RTX 5070", r"\brtx 5070", _N, (12, 0), 48, 0.48, 30.9, 30.9, 61.7, 61.7, 123.5, 672, 12, 5),
    ("RTX 5060 Ti", r"\brtx 5060 ti", _N, (12, 0), 36, 0.37, 23.7, 23.7, 47.4, 47.4, 95, 448, 16, 5),
    ("RTX 4090", r"\brtx 4090", _N, (8, 9), 128, 1.29, 82.6, 82.6, 165.2, 165.2, 330.3, 1008, 24, 4),
    ("RTX 4080 SUPER", r"\brtx 4080 super", _N, (8, 9), 80, 0.82, 52.2, 52.2, 104.4, 104.4, 209, 736, 16, 4),
    ("RTX 4080", r"\brtx 4080", _N, (8, 9), 76, 0.76, 48.7, 48.7, 97.5, 97.5, 195, 717, 16, 4),
    ("RTX 4070 Ti SUPER", r"\brtx 4070 ti super", _N, (8, 9), 66, 0.69, 44.1, 44.1, 88.2, 88.2, 176, 672, 16, 4),
    ("RTX 4070 Ti", r"\brtx 4070 ti", _N, (8, 9), 60, 0.63, 40.1, 40.1, 80.2, 80.2, 160, 504, 12, 4),
    ("RTX 4070 SUPER", r"\brtx 4070 super", _N, (8, 9), 56, 0.55, 35.5, 35.5, 71, 71, 142, 504, 12, 4),
    ("RTX 4070", r"\brtx 4070", _N, (8, 9), 46, 0.46, 29.1, 29.1, 58.3, 58.3, 117, 504, 12, 4),
    ("RTX 4060 Ti", r"\brtx 4060 ti", _N, (8, 9), 34, 0.34, 22.1, 22.1, 44.1, 44.1, 88, 288, 8, 4),
    ("RTX 4060", r"\brtx 4060", _N, (8, 9), 24, 0.24, 15.1, 15.1, 30.2, 30.2, 60, 272, 8, 4),
    ("RTX 3090 Ti", r"\brtx 3090 ti", _N, (8, 6), 84, 0.63, 40, 40, 80, 80, None, 1008, 24, 4),
    ("RTX 3090", r"\brtx 3090", _N, (8, 6), 82, 0.56, 35.6, 35.6, 71, 71, None, 936, 24, 4),
    ("RTX 3080 Ti", r"\brtx 3080 ti", _N, (8, 6), 80, 0.53, 34.1, 34.1, 68.2, 68.2, None, 912, 12, 4),
    ("RTX 3080", r"\brtx 3080", _N, (8, 6), 68, 0.47, 29.8, 29.8, 59.5, 59.5, None, 760, 10, 4),
    ("RTX 3070 Ti", r"\brtx 3070 ti", _N, (8, 6), 48, 0.34, 21.7, 21.7, 43.5, 43.5, None, 608, 8, 4),
    ("RTX 3070", r"\brtx 3070", _N, (8, 6), 46, 0.32, 20.3, 20.3, 40.6, 40.6, None, 448, 8, 4),
    ("RTX 3060 Ti", r"\brtx 3060 ti", _N, (8, 6), 38, 0.25, 16.2, 16.2, 32.4, 32.4, None, 448, 8, 4),
    ("RTX 3060", r"\brtx 3060", _N, (8, 6), 28, 0.2, 12.7, 12.7, 25.5, 25.5, None, 360, 12, 4),
    ("RTX 3050", r"\brtx 3050", _N, (8, 6), 20, 0.14, 9.1, 9.1, 18.2, 18.2, None, 224, 8, 4),
    ("TITAN RTX", r"\btitan rtx", _N, (7, 5), 72, 0.51, 16.3, None, 130.5, None, None, 672, 24, 3),
    ("RTX 2080 Ti", r"\brtx 2080 ti", _N, (7, 5), 68, 0.42, 13.4, None, 53.8, None, None, 616, 11, 3),
    ("RTX 2080 SUPER", r"\brtx 2080 super", _N, (7, 5), 48, 0.35, 11.2, None, 44.6, None, None, 496, 8, 3),
    ("RTX 2080", r"\brtx 2080", _N, (7, 5), 46, 0.31, 10.1, None, 40.3, None, None, 448, 8, 3),
    ("RTX 2070", r"\brtx 2070", _N, (7, 5), 36, 0.23, 7.5, None, 29.9, None, None, 448, 8, 3),
    ("RTX 2060", r"\brtx 2060", _N, (7, 5), 30, 0.2, 6.5, None, 25.8, None, None, 336, 6, 3),
    ("GTX 1660 Ti", r"\bgtx 1660 ti", _N, (7, 5), 24, 0.17, 5.4, None, 10.9, None, None, 288, 6, 3),
    ("TITAN V", r"\btitan v", _N, (7, 0), 80, 7.45, 14.9, None, 119, None, None, 653, 12, 3),
    ("TITAN Xp", r"\btitan xp", _N, (6, 1), 30, 0.38, 12.1, None, None, None, None, 548, 12, 3),
    ("GTX 1080 Ti", r"\bgtx 1080 ti", _N, (6, 1), 28, 0.35, 11.3, None, None, None, None, 484, 11, 3),
    ("GTX 1080", r"\bgtx 1080", _N, (6, 1), 20, 0.28, 8.9, None, None, None, None, 320, 8, 3),
    ("GTX 1070", r"\bgtx 1070", _N, (6, 1), 15, 0.2, 6.5, None, None, None, None, 256, 8, 3),
    ("GTX 1060", r"\bgtx 1060", _N, (6, 1), 10, 0.14, 4.4, None, None, None, None, 192, 6, 3),
    # AMD; MI250 and MI250X are two devices each, rates are of one
    ("MI355X", r"\bmi355x?", _A, (9, 5), 256, 78.6, 157.3, None, 2516.6, 2516.6, 5033, 8000, 288, 5),
    ("MI350X", r"\bmi350x?", _A, (9, 5), 256, 72, 144.2, None, 2309.6, 2309.6, 4614, 8000, 288, 5),
    ("MI325X", r"\bmi325x?", _A, (9, 4), 304, 163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 6000, 256, 5),
    ("MI300A", r"\bmi300a", _A, (9, 4), 228, 122.6, 122.6, 490.3, 980.6, 980.6, 1961.2, 5300, 128, 5),
    ("MI308X", r"\bmi308x?", _A, (9, 4), 80, 43, 43, 172, 344, 344, 688, 5300, 192, 5),
    ("MI300X", r"\bmi300", _A, (9, 4), 304, 163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 5300, 192, 5),
    ("MI250X", r"\bmi250x", _A, (9, 0), 110, 47.9, 47.9, None, 191.5, 191.5, None, 1638, 64, 4),
    ("MI250", r"\bmi250", _A, (9, 0), 104, 45.3, 45.3, None, 181, 181, None, 1638, 64, 4),
    ("MI210", r"\bmi210", _A, (9, 0), 104, 45.3, 45.3, None, 181, 181, None, 1638, 64, 4),
    ("MI100", r"\bmi100", _A, (9, 0), 120, 11.5, 46.1, None, 184.6, 92.3, None, 1229, 32, 4),
    ("MI60", r"\bmi60", _A, (9, 0), 64, 7.4, 14.7, None, 29.5, None, None, 1024, 32, 4),
    ("MI50", r"\bmi50", _A, (9, 0), 60, 6.6, 13.3, None, 26.5, None, None, 1024, 16, 4),
    ("Radeon PRO W7900", r"\bw7900", _A, (11, 0), 96, 1.9, 61.3, None, 122.6, 122.6, None, 864, 48, 4),
    ("RX 7900 XTX", r"\brx 7900 xtx", _A, (11, 0), 96, 1.9, 61.4, None, 122.8, 122.8, None, 960, 24, 4),
    ("RX 7900 XT", r"\brx 7900 xt", _A, (11, 0), 84, 1.6, 51.5, None, 103, 103, None, 800, 20, 4),
)  # fmt: skip
SPECS: tuple[DeviceSpec, ...] = tuple(DeviceSpec(row[0], *row[2:]) for row in _TABLE)
_PATTERNS = tuple(re.compile(row[1]) for row in _TABLE)
_BRANDS = re.compile(
    r"\b(nvidia|tesla|geforce|quadro|amd|instinct|radeon|graphics|corporation|hbm\w*|dgxs?|oam)\b"
)


def lookup(name: str) -> DeviceSpec | None:
    """The table's entry for a device name as torch, nvidia-smi or rocm-smi writes it; None where it is not listed."""
    return _lookup(name)


@lru_cache(maxsize=256)
def _lookup(name: str) -> DeviceSpec | None:
    # SXM2-16GB and "80GB HBM3" alike: words only, the memory size kept for those that differ by it
    cleaned = re.sub(r"[^a-z0-9]+", " ", name.lower())
    cleaned = re.sub(r"\s+", " ", _BRANDS.sub(" ", cleaned)).strip()
    for spec, pattern in zip(SPECS, _PATTERNS, strict=True):
        if pattern.search(cleaned):
            return spec
    return None


def describe(properties: Mapping[str, Any]) -> DeviceSpec | None:
    """The device that a trace's ``deviceProperties`` entry is about; None where it says too little.

    A part of a listed device (MIG slice, laptop variant: fewer SMs) is scaled by its SMs; one that is not listed is
    scaled from the listed device of the same architecture that is nearest in size. ``basis`` says so.
    """
    name = properties.get("name")
    sms = _positive(properties.get("numSms"))
    memory = _positive(properties.get("totalGlobalMem"))
    found = lookup(name) if isinstance(name, str) else None
    if found is not None:
        if sms is not None and sms < 0.95 * found.sms:
            return _scaled(
                found, sms, memory, name, f"scaled from {found.name} by its {sms} of {found.sms} units"
            )
        return found
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    if sms is None or not isinstance(major, int) or not isinstance(minor, int):
        return None
    # wavefronts of 64 are AMD's data-centre parts; the others write amd or radeon in the name
    amd = properties.get("warpSize") == 64 or bool(re.search(r"(?i)amd|radeon|instinct|gfx", str(name or "")))
    alike = [s for s in SPECS if (s.vendor == _A) == amd]
    older = [s.capability for s in alike if s.capability <= (major, minor)]
    if not older:
        return None
    nearest = max(older)
    peers = [s for s in alike if s.capability == nearest]
    gigabytes = memory / 1e9 if memory is not None else None

    def distance(spec: DeviceSpec) -> float:
        by_memory = abs(gigabytes / spec.memory_gb - 1) if gigabytes is not None else 0.0
        return abs(sms / spec.sms - 1) + by_memory

    peer = min(peers, key=distance)
    return _scaled(
        peer, sms, None, str(name or f"capability {major}.{minor}"),
        f"estimated from its {sms} units of capability {major}.{minor}, like {peer.name}",
    )  # fmt: skip


# a representative of each architecture that kernel names tell, newest first
_ARCHITECTURES: tuple[tuple[str, str], ...] = (
    (r"gfx95", "MI355X"),
    (r"gfx94", "MI300X"),
    (r"gfx90a", "MI250X"),
    (r"gfx908", "MI100"),
    (r"\bsm10\d|cutlass3x_sm100|_sm100", "B200"),
    (r"\bsm90|_sm90", "H100 SXM"),
    (r"\bsm8[69]|_sm8[69]", "A10"),
    (r"\bsm80|\bampere_|cutlass_80", "A100 40GB"),
    (r"\bturing_|cutlass_75", "T4"),
    (r"\bvolta_|\bsm70", "V100 SXM"),
)


def assumed(kernel_names: Iterable[str]) -> DeviceSpec | None:
    """A device of the newest architecture that kernel names tell, for traces without device properties; said so."""
    text = "\n".join(kernel_names)
    for pattern, name in _ARCHITECTURES:
        if re.search(pattern, text):
            spec = next(s for s in SPECS if s.name == name)
            return dataclasses.replace(
                spec, name=f"an unnamed device of {name}'s architecture", basis="assumed from kernel names"
            )
    return None


def _scaled(spec: DeviceSpec, sms: int, memory: int | None, name: str | None, basis: str) -> DeviceSpec:
    """``spec`` at another number of units. Bandwidth goes with the memory where that is smaller too (a slice)."""
    share = sms / spec.sms

    def part(rate: float | None) -> float | None:
        return rate * share if rate is not None else None

    of_memory = min(memory / (spec.memory_gb * 1e9), 1.0) if memory is not None else share
    return dataclasses.replace(
        spec, name=name or spec.name, sms=sms, fp64=part(spec.fp64), fp32=spec.fp32 * share, tf32=part(spec.tf32),
        fp16=part(spec.fp16), bf16=part(spec.bf16), fp8=part(spec.fp8), dram_gb_s=spec.dram_gb_s * of_memory,
        memory_gb=spec.memory_gb * of_memory, basis=basis,
    )  # fmt: skip


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
