from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.record.fake_nvml import environment, write_script
from tracelens.record import doctor, doctor_gpu, doctor_host, doctor_python
from tracelens.record.cgroup import CgroupSample
from tracelens.record.doctor import Check, diagnose, doctor_text, system_checks


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_this_machine_is_diagnosed_without_an_error() -> None:
    checks = diagnose()
    assert {"system", "python", "affinity", "cpu quota", "memory", "/dev/shm", "libcupti", "bundle"} <= set(
        by_name(checks)
    )
    text = doctor_text(checks)
    assert "Traceback" not in text
    for check in checks:
        assert "\n" not in check.message
        assert check.fix is None or "\n" not in check.fix
        if check.status == "fail":
            assert check.fix


@pytest.mark.parametrize(
    ("system", "release", "status", "word"),
    [
        ("Windows", "10", "fail", "Windows"),
        ("Darwin", "23.1", "fail", "macOS"),
        ("FreeBSD", "14", "fail", "FreeBSD"),
        ("Linux", "5.15.90.1-microsoft-standard-WSL2", "warn", "WSL"),
        ("Linux", "6.1.0", "ok", "Linux"),
    ],
)
def test_systems(system: str, release: str, status: str, word: str) -> None:
    (check,) = system_checks(system, release)
    assert check.status == status
    assert check.message.startswith(word)


def test_where_recording_is_impossible_nothing_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "system", lambda: "Windows")
    assert [check.status for check in diagnose()] == ["fail"]


def test_text_names_the_fix_and_counts() -> None:
    text = doctor_text(
        [
            Check("a", "ok", "fine", "never shown"),
            Check("bb", "fail", "broken", "mend it"),
            Check("c", "warn", "so so"),
        ]
    )
    assert "never shown" not in text
    assert "FAIL  bb  broken" in text
    assert "fix: mend it" in text
    assert text.endswith("1 problem must be solved before a recording is of use")
    assert doctor_text([Check("a", "warn", "x")]).endswith("1 point will limit what it can tell")
    assert doctor_text([Check("a", "info", "x")]).endswith("say what it will not show")
    assert doctor_text([Check("a", "ok", "x")]).endswith("can be recorded here")


PYTHON = {
    "version": [3, 11, 7],
    "executable": "/env/bin/python",
    "torch": "2.4.1",
    "cuda": "12.1",
    "hip": None,
    "sitecustomize": None,
}


@pytest.mark.parametrize(
    ("change", "name", "status", "word"),
    [
        ({}, "python", "ok", "3.11.7"),
        ({}, "torch", "ok", "CUDA 12.1"),
        ({"version": [3, 8, 10]}, "python", "fail", "3.9"),
        ({"version": [3, 12, 0]}, "python", "warn", "stacks"),
        ({"version": [3, 12, 4]}, "python", "warn", "stacks"),
        ({"version": [3, 12, 5]}, "python", "ok", "3.12.5"),
        ({"torch": None}, "torch", "fail", "no torch"),
        ({"torch": "2.0.1"}, "torch", "fail", "older than 2.1"),
        ({"torch": "1.13.1+cu117"}, "torch", "fail", "older than 2.1"),
        ({"torch": "2.10.0a0+gitabc"}, "torch", "ok", "2.10.0"),
        ({"cuda": None, "hip": "6.0"}, "torch", "warn", "ROCm"),
        ({"error": "OSError: x", "torch": None}, "torch", "warn", "OSError"),
        ({"sitecustomize": "/x/sitecustomize.py"}, "sitecustomize", "info", "/x/sitecustomize.py"),
    ],
)
def test_interpreters(change: dict[str, object], name: str, status: str, word: str) -> None:
    check = by_name(doctor_python.describe({**PYTHON, **change}))[name]
    assert check.status == status
    assert word in check.message


def test_without_torch_the_fix_names_an_interpreter_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {**PYTHON, "torch": None}
    monkeypatch.setattr(doctor_python.importlib.util, "find_spec", lambda name: object())
    assert f"tracelens record -- {sys.executable} train.py" in str(
        by_name(doctor_python.describe(without))["torch"].fix
    )
    own = by_name(doctor_python.describe({**without, "executable": sys.executable}))["torch"]
    assert "tracelens record" not in str(own.fix)
    monkeypatch.setattr(doctor_python.importlib.util, "find_spec", lambda name: None)
    assert "tracelens record" not in str(by_name(doctor_python.describe(without))["torch"].fix)


def executable(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(folder)


def test_the_real_interpreter_answers_with_a_torch_that_is_only_looked_at(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "version.py").write_text("__version__ = '2.5.0'\ncuda = None\nhip = None\n")
    folder = executable(tmp_path, f'exec {sys.executable} "$@"')
    checks = by_name(doctor_python.python_checks(folder, {**os.environ, "PYTHONPATH": str(tmp_path)}))
    assert checks["python"].status == "ok"
    assert "torch 2.5.0" in checks["torch"].message


def test_interpreters_in_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = doctor_python.python_checks(str(tmp_path))
    assert (check.status, "no python" in check.message) == ("warn", True)
    (check,) = doctor_python.python_checks(executable(tmp_path, "echo broken >&2; exit 3"))
    assert (check.status, "broken" in check.message) == ("fail", True)
    monkeypatch.setattr(doctor_python, "_TIMEOUT_S", 0.3)
    (check,) = doctor_python.python_checks(executable(tmp_path, "exec sleep 20"))
    assert (check.status, "did not answer" in check.message) == ("warn", True)


def root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


GPU = """
[gpu]
uuid=GPU-1
name=NVIDIA A100
bus=01
utilization=1,1
memory=1,2
power=1000
sm_clock=5
throttle=0
pcie_width=4
pcie_width_max=16
"""


def test_gpu_checks_through_the_fake_nvml(tmp_path: Path) -> None:
    env = environment(write_script(tmp_path, GPU))
    env.pop("CUDA_INJECTION64_PATH", None)
    checks = by_name(doctor_gpu.gpu_checks(root(tmp_path / "root", {"proc/1/comm": "nv-hostengine\n"}), env))
    assert (checks["nvml"].status, "1 x NVIDIA A100" in checks["nvml"].message) == ("ok", True)
    assert (checks["pcie"].status, "4 of 16" in checks["pcie"].message) == ("warn", True)
    assert checks["gpm"].status == "info"
    assert "nv-hostengine" in checks["dcgm"].message
    assert "cupti permission" not in checks


def test_a_gpu_that_is_lost_and_one_that_tells_little(tmp_path: Path) -> None:
    text = GPU + "lost_after=0\n" + "[gpu]\nuuid=GPU-2\nname=Tesla T4\nbus=02\n"
    checks = doctor_gpu.gpu_checks(
        root(tmp_path / "root", {"x": ""}), environment(write_script(tmp_path, text))
    )
    assert any(check.status == "fail" and "A100 does not answer" in check.message for check in checks)
    assert any(
        check.status == "warn" and "T4 does not tell memory, power" in check.message for check in checks
    )


def test_no_gpu_is_information_and_a_silent_nvml_a_warning(tmp_path: Path) -> None:
    env = environment(tmp_path / "none", LD_LIBRARY_PATH=str(tmp_path))
    checks = by_name(doctor_gpu.gpu_checks(root(tmp_path / "a", {"x": ""}), env))
    assert checks["gpu"].status == "info"
    checks = by_name(
        doctor_gpu.gpu_checks(
            root(tmp_path / "b", {"proc/driver/nvidia/version": "550"}), env, privileged=True
        )
    )
    assert checks["nvml"].status == "warn"
    assert "--gpus all" in (checks["nvml"].fix or "")


@pytest.mark.parametrize(
    ("value", "privileged", "status"), [("1", False, "warn"), ("1", True, "ok"), ("0", False, "ok")]
)
def test_cupti_permission(tmp_path: Path, value: str, privileged: bool, status: str) -> None:
    folder = root(
        tmp_path,
        {
            "proc/driver/nvidia/version": "550",
            "proc/driver/nvidia/params": f"Other: 3\nRmProfilingAdminOnly: {value}\n",
        },
    )
    env = environment(tmp_path / "none", LD_LIBRARY_PATH="")
    check = by_name(doctor_gpu.gpu_checks(folder, env, privileged))["cupti permission"]
    assert check.status == status
    if status == "warn":
        assert "NVreg_RestrictProfilingToAdminUsers=0" in (check.fix or "")


def test_capabilities_decide_who_is_privileged(tmp_path: Path) -> None:
    assert doctor_gpu._is_privileged(
        root(tmp_path / "a", {"proc/self/status": "CapEff:\t0000000000200000\n"})
    )
    assert not doctor_gpu._is_privileged(
        root(tmp_path / "b", {"proc/self/status": "CapEff:\t00000000a80425fb\n"})
    )


def test_injected_tools_and_foreign_libcupti(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcupti.so.12").write_text("")
    env = environment(
        tmp_path / "none",
        LD_LIBRARY_PATH=f"/nowhere:{tmp_path / 'lib'}",
        CUDA_INJECTION64_PATH="/opt/tool.so",
    )
    checks = by_name(doctor_gpu.gpu_checks(root(tmp_path / "root", {"x": ""}), env))
    assert (checks["CUDA_INJECTION64_PATH"].status, checks["CUDA_INJECTION64_PATH"].fix) == (
        "warn",
        "unset CUDA_INJECTION64_PATH",
    )
    assert checks["libcupti"].status == "warn"
    assert "libcupti.so.12" in checks["libcupti"].message


def test_hidden_gpus(tmp_path: Path) -> None:
    folder = root(tmp_path, {"proc/driver/nvidia/version": "550"})
    for value, told in (("", True), ("-1", True), ("0,1", False)):
        env = environment(tmp_path / "none", LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES=value)
        checks = by_name(doctor_gpu.gpu_checks(folder, env, privileged=True))
        assert ("CUDA_VISIBLE_DEVICES" in checks) is told


def test_cores_and_quota() -> None:
    assert doctor_host.affinity_check(8, 8).status == "ok"
    assert doctor_host.affinity_check(8, 16).status == "info"
    assert doctor_host.affinity_check(1, 16).status == "warn"
    assert doctor_host.quota_check(CgroupSample(), 8).status == "ok"
    assert doctor_host.quota_check(CgroupSample(quota_cores=8.0), 8).status == "ok"
    tight = doctor_host.quota_check(CgroupSample(quota_cores=2.5), 8)
    assert tight.status == "warn"
    assert "2.5 cores" in tight.message


def test_memory_shared_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_host.memory_check(CgroupSample(memory_max=10**9), 8 * 10**9).status == "info"
    assert doctor_host.memory_check(CgroupSample(memory_max=10**12), 8 * 10**9).status == "ok"
    assert doctor_host.memory_check(CgroupSample(), None).status == "ok"
    assert doctor_host.shm_check(None).status == "warn"
    assert doctor_host.shm_check(64 * 2**20).status == "fail"
    assert doctor_host.shm_check(10**9).status == "warn"
    assert doctor_host.shm_check(8 * 10**9).status == "ok"
    assert doctor_host.disk_check(tmp_path / "none").status == "fail"
    monkeypatch.setattr(doctor_host.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    assert doctor_host.disk_check(tmp_path).status == "warn"


def test_kernel_accounting(tmp_path: Path) -> None:
    full = root(
        tmp_path / "full",
        {
            "proc/pressure/cpu": "some\n", "proc/self/schedstat": "1 2 3\n", "proc/self/io": "x\n",
            "proc/sys/kernel/task_delayacct": "1\n", "proc/sys/kernel/perf_event_paranoid": "-1\n",
        },
    )  # fmt: skip
    assert {check.status for check in doctor_host.kernel_checks(full)} == {"ok"}
    bare = by_name(
        doctor_host.kernel_checks(root(tmp_path / "bare", {"proc/sys/kernel/task_delayacct": "0\n"}))
    )
    assert {check.status for check in bare.values()} == {"info"}
    assert bare["I/O delay"].fix == "sudo sysctl kernel.task_delayacct=1"
    assert json.dumps([check.fix for check in bare.values()])
