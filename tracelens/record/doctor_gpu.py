"""GPU side: the driver, NVML, and what stands between the profiler and the kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracelens.record.doctor import Check

_TIMEOUT_S = 20.0
# in a process of its own: a driver in trouble hangs or crashes whoever asks
_PROBE = r"""
import json
from tracelens.record.nvml import Nvml, NvmlUnavailable
try:
    nvml = Nvml()
except NvmlUnavailable as error:
    print(json.dumps({"reason": str(error)}))
else:
    now = 10**9
    rows = []
    for uuid in list(nvml.devices):
        device = nvml.devices[uuid]
        try:
            row = nvml.sample(uuid, now, now, frozenset())
        except Exception as error:
            rows.append({"name": device.gpu.name, "lost": str(error)})
            continue
        rows.append({"name": device.gpu.name, "mig": device.gpu.parent is not None, "refused": sorted(device.refused),
                     "gpm": bool(device.gpm and device.gpm.supported), "width": row.get("pcie_width"),
                     "width_max": row.get("pcie_width_max"), "foreign": row.get("foreign_pids")})
    print(json.dumps({"driver": nvml.versions()["driver"], "gpus": rows, "lost": list(nvml.lost.values())}))
"""
_PROFILER_VARIABLES = {
    "CUDA_INJECTION64_PATH": "another tool is injected into every CUDA process and holds CUPTI",
    "NVTX_INJECTION64_PATH": "a tool is injected through NVTX and may hold CUPTI",
    "NSYS_PROFILING_SESSION_ID": "this shell runs under Nsight Systems, which holds CUPTI",
}
_DCGM = ("nv-hostengine", "dcgm-exporter")


def gpu_checks(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None, privileged: bool | None = None
) -> list[Check]:
    """Driver, NVML, CUPTI. ``root`` stands for / in tests; ``privileged``: root or CAP_SYS_ADMIN."""
    environ = os.environ if environ is None else environ
    driver = (root / "proc/driver/nvidia/version").exists()
    checks = _nvml(driver, environ)
    if driver:
        checks.append(_counters(root, _is_privileged(root) if privileged is None else privileged))
    checks += _variables(environ, driver)
    checks.append(_cupti(environ))
    if running := _processes(root, _DCGM):
        checks.append(
            Check(
                "dcgm",
                "warn",
                f"{running} runs: it may hold the GPU's performance counters, so that GPM values are missing",
                "dcgmi profile --pause while recording, if they are",
            )
        )
    return checks


def _nvml(driver: bool, environ: Mapping[str, str]) -> list[Check]:
    found = _ask_nvml(environ)
    if "reason" in found:
        if not driver and ("not found" in found["reason"].lower() or "not loaded" in found["reason"].lower()):
            return [
                Check(
                    "gpu", "info", "no NVIDIA driver here: GPU clocks, power and memory will not be recorded"
                )
            ]
        return [
            Check(
                "nvml",
                "warn",
                f"NVML does not answer ({found['reason']}): GPU clocks, power and memory will not be recorded",
                "in a container: run it with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility; "
                "else reinstall the driver",
            )
        ]
    checks = [_gpus(found)]
    for row in found.get("gpus", ()):
        checks += _gpu(row)
    for reason in found.get("lost", ()):
        checks.append(
            Check("gpu", "fail", f"a GPU does not answer: {reason}", "reset it, or restart the machine")
        )
    return checks


def _ask_nvml(environ: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=dict(environ), check=False
        )
        value = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"reason": f"no answer within {_TIMEOUT_S:.0f} s"}
    except (OSError, ValueError, IndexError):
        return {"reason": "the process that asked it ended without an answer"}
    return value if isinstance(value, dict) else {"reason": "it answered nothing of use"}


def _gpus(found: Mapping[str, Any]) -> Check:
    names = [str(row["name"]) for row in found.get("gpus", ())]
    if not names:
        return Check(
            "nvml", "warn", f"driver {found.get('driver')}, but NVML lists no GPU", "see nvidia-smi -L"
        )
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return Check("nvml", "ok", f"driver {found.get('driver')}: {counted}")


def _gpu(row: Mapping[str, Any]) -> list[Check]:
    name = row["name"]
    if "lost" in row:
        return [
            Check("gpu", "fail", f"{name} does not answer: {row['lost']}", "reset it, or restart the machine")
        ]
    checks: list[Check] = []
    wanted = {"utilization", "memory", "power", "sm_clock", "throttle_reasons"}
    missing = sorted(wanted.intersection(row["refused"]))
    if missing and not row["mig"]:
        names = ", ".join(missing)
        checks.append(Check("gpu", "warn", f"{name} does not tell {names}: they will be missing, not zero"))
    if row["mig"]:
        checks.append(
            Check(
                "gpu",
                "info",
                f"{name}: MIG instances have no utilisation of their own; the trace says how busy they are",
            )
        )
    if row["width"] and row["width_max"] and row["width"] < row["width_max"]:
        checks.append(
            Check(
                "pcie",
                "warn",
                f"{name} uses {row['width']} of {row['width_max']} PCIe lanes: copies to it are slower than they could be",
                "reseat the card or use another slot; in the cloud, ask the provider",
            )
        )
    if row["foreign"]:
        count = len(row["foreign"])
        checks.append(
            Check(
                "gpu",
                "warn",
                f"{name} is in use by {count} process{'es' * (count > 1)} now: a recording would see a shared GPU",
                "see nvidia-smi, and record when the GPU is free",
            )
        )
    if not row["gpm"]:
        checks.append(
            Check("gpm", "info", f"{name} has no GPM counters: memory bandwidth is estimated from shapes")
        )
    return checks


def _counters(root: Path, privileged: bool) -> Check:
    try:
        text = (root / "proc/driver/nvidia/params").read_text("utf-8", "replace")
    except OSError:
        return Check(
            "cupti permission", "info", "/proc/driver/nvidia/params is hidden: permission is unknown"
        )
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if values.get("RmProfilingAdminOnly", "0").strip() == "1" and not privileged:
        return Check(
            "cupti permission",
            "warn",
            "the driver keeps performance counters for administrators: on some drivers CUPTI then delivers no kernels",
            "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d and reload the driver; "
            "in a container --cap-add=SYS_ADMIN",
        )
    return Check("cupti permission", "ok", "performance counters are open to this user")


def _is_privileged(root: Path) -> bool:
    """CAP_SYS_ADMIN (bit 21) among the effective capabilities."""
    try:
        text = (root / "proc/self/status").read_text("utf-8", "replace")
    except OSError:
        return os.geteuid() == 0
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 21 & 1)
    return os.geteuid() == 0


def _variables(environ: Mapping[str, str], driver: bool) -> list[Check]:
    checks = [
        Check(name, "warn", f"{name} is set: {why}; the windows may come without kernels", f"unset {name}")
        for name, why in _PROFILER_VARIABLES.items()
        if environ.get(name)
    ]
    if driver and environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        message = "CUDA_VISIBLE_DEVICES hides every GPU from a job started here"
        checks.append(Check("CUDA_VISIBLE_DEVICES", "warn", message, "unset CUDA_VISIBLE_DEVICES"))
    return checks


def _cupti(environ: Mapping[str, str]) -> Check:
    """A libcupti of another version on the library path is loaded instead of torch's own."""
    found: list[str] = []
    for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        for entry in environ.get(variable, "").replace(" ", ":").split(":"):
            if "libcupti" in entry:
                found.append(entry)
            elif variable == "LD_LIBRARY_PATH" and entry:
                try:
                    found += sorted(str(path) for path in Path(entry).glob("libcupti.so*"))[:1]
                except OSError:
                    continue  # an entry that may not be read is not loaded from either
    if found:
        return Check(
            "libcupti",
            "warn",
            f"{found[0]} is found before the libcupti that torch brings; a mismatch yields traces without kernels",
            "take its folder out of LD_LIBRARY_PATH for the job",
        )
    return Check(
        "libcupti", "ok", "torch will load the libcupti that it brings: the library path names no other"
    )


def _processes(root: Path, names: tuple[str, ...]) -> str | None:
    try:
        folders = list((root / "proc").iterdir())
    except OSError:
        return None
    for folder in folders:
        if folder.name.isdigit():
            try:
                name = (folder / "comm").read_text("utf-8", "replace").strip()
            except OSError:
                continue  # ended in between
            if name in names:
                return name
    return None
