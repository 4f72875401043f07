"""The real nvidia-ml-py against a fake libnvidia-ml.so.1 that plays scripted GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.record.fake_nvml import record
from tracelens.ingest import read_gpu_log
from tracelens.record.nvml_visibility import Gpu, find, visible

H100 = """
[gpu]
uuid=GPU-aaaaaaaa-1111-2222-3333-444444444444
name=NVIDIA H100
bus=00000000:07:00.0
utilization=91,33
memory=1000000,80000000
power=300500
power_limit=700000
temperature=61
sm_clock=1410
sm_clock_max=1980
mem_clock=2619
throttle=0x24
pcie_gen=3
pcie_gen_max=5
pcie_width=8
pcie_width_max=16
pcie_rx_bytes=5000
pcie_tx_bytes=7000
gpm=1
gpm.2=91.5
gpm.3=40
gpm.10=33.25
gpm.21=100
"""
BARE = """
[gpu]
uuid=GPU-bbbbbbbb-1111-2222-3333-444444444444
name=Tesla T4
bus=00000000:08:00.0
"""
AA, BB = "GPU-aaaaaaaa-1111-2222-3333-444444444444", "GPU-bbbbbbbb-1111-2222-3333-444444444444"
MEASURED = {
    "utilization_gpu", "utilization_memory", "memory_used", "memory_total", "power_w", "power_limit_w", "temperature_c",
    "sm_clock_mhz", "sm_clock_max_mhz", "mem_clock_mhz", "throttle_reasons", "pcie_gen", "pcie_gen_max", "pcie_width",
    "pcie_width_max", "gpm",
}  # fmt: skip


def events(log: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [line for line in log if line["event"] == name]


def test_every_field_with_its_unit(tmp_path: Path) -> None:
    rows, log = record(tmp_path, H100)
    assert len(rows) >= 3
    row = rows[-1]
    expected = {
        "uuid": AA, "index": 0, "name": "NVIDIA H100", "rank": None, "utilization_gpu": 0.91, "utilization_memory": 0.33,
        "memory_used": 1_000_000, "memory_total": 80_000_000, "power_w": 300.5, "power_limit_w": 700.0, "temperature_c": 61,
        "sm_clock_mhz": 1410, "sm_clock_max_mhz": 1980, "mem_clock_mhz": 2619, "throttle_reasons": 0x24, "pcie_gen": 3,
        "pcie_gen_max": 5, "pcie_width": 8, "pcie_width_max": 16, "foreign_pids": [],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    # the first sample has nothing to compare with; what the GPU does not count is null, not 0
    assert rows[0]["gpm"] is None
    assert row["gpm"] == {"sm_util": 0.915, "sm_occupancy": 0.4, "tensor": None, "dram_bw": 0.3325}
    assert row["pcie_rx_bytes_per_s"] == 100 * 2**20
    counted = [line for line in rows if "pcie_rx_bytes" in line]
    assert counted[0]["pcie_rx_bytes"] > 5000
    assert counted[0]["pcie_tx_bytes"] > 7000
    (nvml,) = events(log, "nvml")
    assert (nvml["available"], nvml["driver"]) == (True, "550.54.15")


def test_the_log_reads_back(tmp_path: Path) -> None:
    record(tmp_path, H100 + BARE)
    log = read_gpu_log(tmp_path / "bundle" / "gpu.jsonl")
    assert log.clock == "utc"
    assert log.gpus == (AA, BB)
    assert log.of(AA).utilization_gpu.tolist() == [0.91] * len(log.of(AA))
    assert (log.of(BB).throttle_reasons == -1).all()


def test_not_supported_is_null_never_zero_and_said_once(tmp_path: Path) -> None:
    rows, log = record(tmp_path, BARE)
    assert len(rows) >= 3
    for row in rows:
        assert {row[name] for name in MEASURED} == {None}
    told = events(log, "gpu_unsupported")
    assert len(told) <= 2
    assert told[-1]["fields"][BB]["utilization"] == "Not Supported"


def test_gpu_falls_off_the_bus_and_the_others_go_on(tmp_path: Path) -> None:
    rows, log = record(tmp_path, H100 + "lost_after=2\n" + BARE + "utilization=50,5\n", rows=8)
    (lost,) = events(log, "gpu_lost")
    assert lost["uuid"] == AA
    assert "lost" in lost["reason"].lower()
    last_of_lost = max(row["ts"] for row in rows if row["uuid"] == AA)
    after = [row for row in rows if row["uuid"] == BB and row["ts"] > last_of_lost + 10**8]
    assert len([row for row in rows if row["uuid"] == AA]) == 2
    assert len(after) >= 2
    assert {row["utilization_gpu"] for row in after} == {0.5}


def test_the_last_gpu_lost_ends_gpu_sampling_only(tmp_path: Path) -> None:
    _, log = record(tmp_path, H100 + "lost_after=1\n", rows=1, event="gpu_lost")
    assert len(events(log, "gpu_lost")) == 1
    assert events(log, "nvml")[-1]["available"] is False
    assert events(log, "end")[0]["reason"] == "root ended"


def test_a_passing_error_is_one_missing_value(tmp_path: Path) -> None:
    # 10 is a timeout: null now, asked again next time
    rows, log = record(tmp_path, H100.replace("power=300500", "error.power=10"))
    assert {row["power_w"] for row in rows} == {None}
    assert "power" not in str(events(log, "gpu_unsupported"))


def test_foreign_processes(tmp_path: Path) -> None:
    initial = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    rows, _ = record(tmp_path, H100 + "process=4111\nprocess=4112\n")
    # in a container the driver's pids may be those of another namespace: unknown until one of ours is among them
    assert rows[-1]["foreign_pids"] == ([4111, 4112] if initial else None)


def test_foreign_processes_beside_an_own_one(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "rank0").mkdir(parents=True)
    own = os.getpid()
    line = {"ts": 0, "pid": own, "rank": 3, "device": {"uuid": AA[4:]}, "env": {}}
    (bundle / "rank0" / "process.jsonl").write_text(json.dumps(line) + "\n")
    rows, _ = record(tmp_path, H100 + f"process={own}\nprocess=4112\n" + BARE)
    assert {row["uuid"] for row in rows[-3:]} == {AA}
    assert rows[-1]["foreign_pids"] == [4112]
    assert rows[-1]["rank"] == 3


def test_process_list_refused(tmp_path: Path) -> None:
    rows, _ = record(tmp_path, H100 + "error.process=4\n")
    assert rows[-1]["foreign_pids"] is None


def test_old_driver_without_gpm_or_event_reasons(tmp_path: Path) -> None:
    rows, _ = record(
        tmp_path,
        H100 + "pcie_rx_rate=12\npcie_tx_rate=5\nerror.pcie_rx_bytes=3\nerror.pcie_tx_bytes=3\n",
        "-DOLD_DRIVER",
    )
    assert rows[-1]["throttle_reasons"] == 0x24
    assert {json.dumps(row["gpm"]) for row in rows} == {"null"}
    assert next(row["pcie_rx_bytes_per_s"] for row in rows if "pcie_rx_bytes_per_s" in row) == 12_000


MIG = """
[gpu]
uuid=GPU-cccccccc-1111-2222-3333-444444444444
name=NVIDIA A100
bus=00000000:09:00.0
mig_mode=1
power=200000
sm_clock=1000
gpm=1
gpm.2.gi2=12.5
[mig]
uuid=MIG-11111111-aaaa-bbbb-cccc-dddddddddddd
name=NVIDIA A100 MIG 1g.5gb
memory=100,500
gpu_instance=1
[mig]
uuid=MIG-22222222-aaaa-bbbb-cccc-dddddddddddd
name=NVIDIA A100 MIG 2g.10gb
memory=200,900
gpu_instance=2
"""


def test_mig_has_its_own_memory_and_no_utilisation(tmp_path: Path) -> None:
    rows, _ = record(tmp_path, MIG, CUDA_VISIBLE_DEVICES="MIG-22222222-aaaa-bbbb-cccc-dddddddddddd")
    row = rows[-1]
    assert {line["uuid"] for line in rows} == {"MIG-22222222-aaaa-bbbb-cccc-dddddddddddd"}
    assert (row["memory_used"], row["memory_total"]) == (200, 900)
    assert row["utilization_gpu"] is None
    assert (row["power_w"], row["sm_clock_mhz"]) == (200.0, 1000)
    assert row["gpm"]["sm_util"] == 0.125


def test_no_library(tmp_path: Path) -> None:
    rows, log = record(tmp_path, H100, rows=0, event="nvml", LD_LIBRARY_PATH=str(tmp_path))
    assert rows == []
    assert not (tmp_path / "bundle" / "gpu.jsonl").exists()
    assert events(log, "nvml")[0]["available"] is False
    assert (tmp_path / "bundle" / "host.jsonl").stat().st_size > 0


def test_driver_not_loaded(tmp_path: Path) -> None:
    _, log = record(tmp_path, H100, rows=0, event="nvml", FAKE_NVML_SCRIPT=str(tmp_path / "none"))
    assert "Driver" in events(log, "nvml")[0]["reason"]


def test_visible_devices_choose_what_is_sampled(tmp_path: Path) -> None:
    rows, log = record(tmp_path, H100 + BARE, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert {row["uuid"] for row in rows} == {BB}
    assert events(log, "gpus")[0]["uuids"] == [BB]


ALIKE = [
    Gpu(i, f"GPU-{i}{i}aa-{i}", "A100", f"0{3 - i}") for i in range(4)
]  # bus order is the reverse of NVML's
SPLIT = [
    Gpu(0, "GPU-0", "A100", "01", mig_enabled=True),
    Gpu(0, "MIG-aa1", "A100 MIG", "01", True, "GPU-0"),
    Gpu(0, "MIG-ab2", "A100 MIG", "01", True, "GPU-0"),
]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [3, 2, 1, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", [3]),
        ("2,0", [1, 3]),
        (" 1 , 2 ", [2, 1]),
        ("0,9,1", [3]),
        ("0,-1,1", [3]),
        ("0,x,1", [3]),
        ("0,,1", [3]),
        ("0,0", []),
        ("0,GPU-33", []),
        ("GPU-11aa-1", [1]),
        ("GPU-2,GPU-1", [2, 1]),
        ("gpu-11AA", [1]),
        ("GPU-", []),
        ("GPU-9,GPU-1", []),
    ],
)
def test_visible_devices_of_cuda(value: str | None, indices: list[int]) -> None:
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    shown = visible(env, ALIKE)
    assert shown.certain
    assert list(shown.uuids) == [ALIKE[index].uuid for index in indices]


def test_ambiguous_prefix_is_invalid() -> None:
    twins = [Gpu(0, "GPU-ab1", "A100"), Gpu(1, "GPU-ab2", "A100")]
    assert visible({"CUDA_VISIBLE_DEVICES": "GPU-ab"}, twins).uuids == ()
    assert visible({"CUDA_VISIBLE_DEVICES": "GPU-ab2"}, twins).uuids == ("GPU-ab2",)


def test_unlike_gpus_have_a_certain_order_only_by_bus() -> None:
    mixed = [Gpu(0, "GPU-a", "T400", "02"), Gpu(1, "GPU-b", "A100", "01")]
    shown = visible({"CUDA_VISIBLE_DEVICES": "0"}, mixed)
    assert not shown.certain
    assert set(shown.uuids) == {"GPU-a", "GPU-b"}
    by_bus = visible({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed)
    assert (by_bus.certain, by_bus.uuids) == (True, ("GPU-b",))
    by_uuid = visible({"CUDA_VISIBLE_DEVICES": "GPU-a"}, mixed)
    assert (by_uuid.certain, by_uuid.uuids) == (True, ("GPU-a",))


def test_mig_names() -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": "MIG-ab2"}, SPLIT).uuids == ("MIG-ab2",)
    assert visible({"CUDA_VISIBLE_DEVICES": "MIG-a"}, SPLIT).uuids == ()
    # CUDA shows one instance of a GPU in MIG mode: its first
    assert visible({}, SPLIT).uuids == ("MIG-aa1",)
    assert visible({"CUDA_VISIBLE_DEVICES": "0"}, SPLIT).uuids == ("MIG-aa1",)
    old = [Gpu(0, "MIG-GPU-77/3/0", "A100 MIG", "01", True, "GPU-77"), Gpu(0, "GPU-77", "A100", "01", True)]
    assert find("MIG-GPU-77/3/0", old) == "MIG-GPU-77/3/0"


def test_bare_uuids_as_torch_prints_them() -> None:
    gpus = [Gpu(0, AA, "H100"), Gpu(1, BB, "T4")]
    assert find(BB[4:].upper(), gpus) == BB
    assert find("", gpus) is None
    mig = Gpu(0, "MIG-11111111-aaaa-bbbb-cccc-dddddddddddd", "A100 MIG", "01", True, AA)
    assert find("GPU-11111111-aaaa-bbbb-cccc-dddddddddddd", [*gpus, mig]) == mig.uuid
    assert find("bbbb", gpus) is None
