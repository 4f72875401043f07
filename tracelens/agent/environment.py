"""The environment of a training process, as far as it can be read without initialising a device."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any, Callable, Dict, Optional

from .redact import Redactor

_FRAMEWORKS = (
    "lightning", "pytorch_lightning", "transformers", "accelerate", "deepspeed", "datasets", "webdataset",
    "torchvision", "torchaudio", "torchdata", "timm", "ray", "cv2", "PIL", "albumentations", "nvidia.dali",
    "triton", "xformers", "flash_attn", "bitsandbytes", "apex", "peft", "unsloth", "numpy", "tensorboard", "wandb",
)  # fmt: skip


def read(path: str) -> Optional[str]:
    """The text of a small file of /proc or /sys, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace").strip()
    except OSError:
        return None


def affinity() -> Optional[int]:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def quota() -> Optional[float]:
    """The tightest CPU quota of this process's cgroups, in cores; None where there is none."""
    limits = []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        number, names, path = [*line.split(":", 2), "", ""][:3]
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            below = "/".join(parts[:depth])
            if number == "0":
                words = (read("/sys/fs/cgroup/{}/cpu.max".format(below)) or "").split()
                if len(words) == 2 and words[0] != "max":
                    limits.append(int(words[0]) / int(words[1]))
            elif "cpu" in names.split(","):
                base = "/sys/fs/cgroup/{}/{}".format(names, below)
                allowed, period = read(base + "/cpu.cfs_quota_us"), read(base + "/cpu.cfs_period_us")
                if allowed and period and int(allowed) > 0 and int(period) > 0:
                    limits.append(int(allowed) / int(period))
    return min(limits) if limits else None


def cpu_model() -> Optional[str]:
    """The processor's name."""
    for line in (read("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model\t", "Hardware")):
            return line.split(":", 1)[-1].strip()
    return platform.processor() or None


def available_bytes() -> Optional[int]:
    """Memory that can still be had: the machine's, or the cgroup's head-room where that is less."""
    meminfo = (read("/proc/meminfo") or "").splitlines()
    found = [int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:")]
    for line in (read("/proc/self/cgroup") or "").splitlines():
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            base, limit_name, used_name = "/sys/fs/cgroup" + path.rstrip("/"), "memory.max", "memory.current"
        elif "memory" in names.split(","):
            base, limit_name, used_name = (
                "/sys/fs/cgroup/memory" + path.rstrip("/"),
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        else:
            continue
        limit, used = read(base + "/" + limit_name), read(base + "/" + used_name)
        if limit and used and limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
            found.append(max(0, int(limit) - int(used)))
    return min(found) if found else None


def resident_bytes() -> Optional[int]:
    """This process's resident memory."""
    text = read("/proc/self/statm")
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") if text else None


def file_system(path: str) -> Optional[Dict[str, str]]:
    """Type and mount point of the file system that holds ``path``."""
    path = os.path.realpath(path)
    best: Optional[Dict[str, str]] = None
    for line in (read("/proc/self/mounts") or "").splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        mount = words[1].replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and (best is None or len(mount) >= len(best["mount"])):
            best = {"mount": mount, "type": words[2]}
    return best


def _dev_shm() -> Optional[int]:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def frameworks() -> Dict[str, Optional[str]]:
    """Versions of the training frameworks that the job has imported; None where it has not."""
    found: Dict[str, Optional[str]] = {}
    for name in _FRAMEWORKS:
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if module is not None:
            found[name] = str(version) if version is not None else "unknown"
        elif name in ("lightning", "transformers", "accelerate"):
            found[name] = None
    return found


def threads(torch: Any) -> Dict[str, Any]:
    """Sizes of the thread pools of this process; ``opencv`` only where the job uses it."""
    cv2 = sys.modules.get("cv2")
    variables = os.environ
    return {
        "intraop": torch.get_num_threads(),
        "interop": torch.get_num_interop_threads(),
        "omp": variables.get("OMP_NUM_THREADS"),
        "mkl": variables.get("MKL_NUM_THREADS"),
        "opencv": None if cv2 is None else getattr(cv2, "getNumThreads", lambda: None)(),
    }


def device(torch: Any) -> Optional[Dict[str, Any]]:
    """The current CUDA device, None before the job itself has initialised one."""
    if not (hasattr(torch, "cuda") and torch.cuda.is_initialized()):
        return None
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {
        "index": index,
        "name": properties.name,
        "uuid": None if uuid is None else "GPU-" + str(uuid).replace("GPU-", ""),
        "total_memory": properties.total_memory,
        "sms": properties.multi_processor_count,
        "capability": "{}.{}".format(properties.major, properties.minor),
    }


def flags(torch: Any) -> Dict[str, Any]:
    """Settings of torch that change its speed; None for one that this torch does not tell."""
    backends = torch.backends
    readers: Dict[str, Callable[[], Any]] = {
        "tf32": lambda: bool(backends.cuda.matmul.allow_tf32),
        "tf32_cudnn": lambda: bool(backends.cudnn.allow_tf32),
        "matmul_precision": lambda: torch.get_float32_matmul_precision(),
        "cudnn_benchmark": lambda: bool(backends.cudnn.benchmark),
        "cudnn_enabled": lambda: bool(backends.cudnn.enabled),
        "anomaly": lambda: bool(torch.is_anomaly_enabled()),
        "deterministic": lambda: bool(torch.are_deterministic_algorithms_enabled()),
        "cudnn_deterministic": lambda: bool(backends.cudnn.deterministic),
    }
    found: Dict[str, Any] = {}
    for name, reader in readers.items():
        try:
            found[name] = reader()
        except (AttributeError, RuntimeError):  # torch refuses to mix its old switches with its new ones
            found[name] = None
    return found


def describe(torch: Any, redactor: Redactor) -> Dict[str, Any]:
    """Everything of ``process.jsonl`` but the process's own numbers."""
    driver = read("/proc/driver/nvidia/version")
    words = driver.split("Kernel Module", 1)[-1].split() if driver else []
    cudnn = None
    if torch.version.cuda and torch.cuda.is_initialized():
        cudnn = torch.backends.cudnn.version()
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    return {
        "python": platform.python_version(),
        "executable": redactor.path(sys.executable or ""),
        "script": redactor.path(script) if script else None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": cudnn,
        "driver": next((word for word in words if word[:1].isdigit()), None),
        "device": device(torch),
        "cpu": {"count": os.cpu_count(), "affinity": affinity(), "quota": quota(), "model": cpu_model()},
        "threads": threads(torch),
        "dev_shm_bytes": _dev_shm(),
        "env": redactor.environment(os.environ),
        "flags": flags(torch),
        "anchor": {"time_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()},
        "frameworks": frameworks(),
        "kernel": platform.release(),
        "platform": sys.platform,
    }
