"""Looking devices up by the names that torch and nvidia-smi write; parts and unknown ones estimated and said so."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from tracelens.signals.devices import SPECS, assumed, describe, lookup

SPEC_FILE = Path(__file__).resolve().parents[2] / ".." / "shared" / "evidence" / "gpu_specs.csv"

NAMES = [
    ("Tesla V100-SXM2-32GB", "V100 SXM"),
    ("Tesla V100-SXM2-16GB", "V100 SXM"),
    ("Tesla V100-DGXS-32GB", "V100 SXM"),
    ("Tesla V100-PCIE-16GB", "V100 PCIe"),
    ("Tesla V100S-PCIE-32GB", "V100S PCIe"),
    ("Tesla T4", "T4"),
    ("Tesla P100-PCIE-16GB", "P100 PCIe"),
    ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
    ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
    ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
    ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
    ("NVIDIA A10", "A10"),
    ("NVIDIA A10G", "A10G"),
    ("NVIDIA A30", "A30"),
    ("NVIDIA A40", "A40"),
    ("NVIDIA L4", "L4"),
    ("NVIDIA L40S", "L40S"),
    ("NVIDIA L40", "L40"),
    ("NVIDIA H100 80GB HBM3", "H100 SXM"),
    ("NVIDIA H100 PCIe", "H100 PCIe"),
    ("NVIDIA H100 NVL", "H100 NVL"),
    ("NVIDIA H200", "H200"),
    ("NVIDIA H20", "H20"),
    ("NVIDIA GH200 480GB", "GH200"),
    ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
    ("NVIDIA B200", "B200"),
    ("NVIDIA GB200", "GB200"),
    ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
    ("GeForce RTX 2080 Ti", "RTX 2080 Ti"),
    ("NVIDIA GeForce RTX 3060 Ti", "RTX 3060 Ti"),
    ("NVIDIA GeForce RTX 3060", "RTX 3060"),
    ("NVIDIA GeForce RTX 3090", "RTX 3090"),
    ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
    ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ("NVIDIA GeForce RTX 5090", "RTX 5090"),
    ("NVIDIA RTX A5000", "RTX A5000"),
    ("NVIDIA RTX A6000", "RTX A6000"),
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
    ("Quadro RTX 6000", "Quadro RTX 6000"),
    ("AMD Instinct MI300X", "MI300X"),
    ("AMD Instinct MI300X OAM", "MI300X"),
    ("AMD Instinct MI250X/MI250", "MI250X"),
    ("AMD Instinct MI250", "MI250"),
    ("AMD Instinct MI210", "MI210"),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_names(name: str, expected: str) -> None:
    found = lookup(name)
    assert found is not None
    assert found.name == expected


def test_unknown_names_are_not_guessed() -> None:
    assert lookup("NVIDIA A9999") is None
    assert lookup("Some GPU") is None
    assert describe({}) is None
    assert describe({"name": "Some GPU"}) is None


def test_rates_are_plausible() -> None:
    for spec in SPECS:
        assert 0.1 < spec.fp32 < 200, spec.name
        # no device multiplies wider formats faster than narrower ones
        rates = [r for r in (spec.fp64, spec.fp32, spec.tf32, spec.fp16, spec.fp8) if r is not None]
        assert rates == sorted(rates), spec.name
        # the balance of half precision to DRAM lies in a decade and a half for all of them
        assert 10 < (spec.fp16 or spec.fp32) * 1e3 / spec.dram_gb_s < 520, spec.name
    assert len({s.name for s in SPECS}) == len(SPECS)


def test_peaks_fall_back_to_what_the_device_has() -> None:
    v100, a100, h100 = lookup("Tesla V100"), lookup("NVIDIA A100"), lookup("NVIDIA H100")
    assert v100 is not None
    assert a100 is not None
    assert h100 is not None
    assert v100.peak("tf32") == v100.peak("fp32") == 15.7e12
    assert a100.peak("tf32") == 156e12
    assert a100.peak("fp8") == a100.peak("fp16")
    assert h100.peak("fp8") == 1979e12
    assert h100.peak(None) is None


def test_slices_are_scaled_by_units_and_memory() -> None:
    slice_ = describe(
        {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "numSms": 14, "totalGlobalMem": 5_000_000_000,
         "computeMajor": 8, "computeMinor": 0}
    )  # fmt: skip
    assert slice_ is not None
    assert slice_.fp16 == pytest.approx(312 * 14 / 108)
    assert slice_.dram_gb_s == pytest.approx(1555 / 8)
    assert "scaled" in slice_.basis


def test_unlisted_devices_are_estimated_from_their_size() -> None:
    found = describe(
        {
            "name": "NVIDIA A9999",
            "numSms": 60,
            "computeMajor": 8,
            "computeMinor": 9,
            "totalGlobalMem": 12 * 10**9,
        }
    )
    assert found is not None
    assert "estimated" in found.basis
    assert found.fp16 is not None
    assert 60 < found.fp16 < 170
    assert 300 < found.dram_gb_s < 700
    newer = describe({"name": "GPU of 2030", "numSms": 200, "computeMajor": 14, "computeMinor": 0})
    assert newer is not None
    assert newer.capability == (12, 0)
    assert describe({"name": "museum piece", "numSms": 2, "computeMajor": 1, "computeMinor": 3}) is None


def test_wavefronts_tell_amd() -> None:
    found = describe(
        {"name": "AMD Radeon Graphics", "numSms": 104, "computeMajor": 9, "computeMinor": 0, "warpSize": 64}
    )
    assert found is not None
    assert found.vendor == "amd"
    assert found.fp16 == pytest.approx(181)


def test_kernel_names_tell_the_architecture() -> None:
    found = assumed(["void at::native::foo", "volta_sgemm_128x64_nn"])
    assert found is not None
    assert found.fp32 == 15.7
    assert "assumed" in found.basis
    assert assumed(["void at::native::foo"]) is None


@pytest.mark.skipif(not SPEC_FILE.exists(), reason="shared evidence is not here")
def test_published_figures() -> None:
    """Our table beside the figures that others list."""
    seen = 0
    with SPEC_FILE.open() as handle:
        for row in csv.DictReader(handle):
            found = lookup(row["gpu"].split(" 40 /")[0])
            assert found is not None, row["gpu"]
            number = re.search(r"[\d.]+", row["bf16_tflops(fp16 in brackets)"])
            assert number is not None
            assert found.fp16 == pytest.approx(float(number[0]), rel=0.01), row["gpu"]
            assert found.fp32 == pytest.approx(float(row["fp32_tflops"]), rel=0.07), row["gpu"]
            assert found.dram_gb_s == pytest.approx(float(row["dram_gb_s"].split(" /")[0]), rel=0.01), row[
                "gpu"
            ]
            seen += 1
    assert seen >= 10
