"""Host side: cores and memory this job may use, shared memory, and what the kernel tells about waiting."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tracelens.record import machine
from tracelens.record.cgroup import CgroupSample, locate
from tracelens.record.doctor import Check
from tracelens.units import number, size

_SMALL_SHM = 2 * 10**9
_SMALL_DISK = 2 * 10**9


def host_checks(root: Path = Path("/"), folder: Path | None = None) -> list[Check]:
    """Every check of the host; ``root`` stands for / in tests, ``folder`` is where bundles go (default: here)."""
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0))
    group = locate("self", root / "proc").sample()
    return [
        affinity_check(allowed, cores),
        quota_check(group, allowed),
        memory_check(group, machine.memory()["mem_total"]),
        shm_check(machine.shared_memory(str(root / "dev/shm"))["dev_shm_total"]),
        *kernel_checks(root),
        disk_check(Path.cwd() if folder is None else folder),
    ]


def affinity_check(allowed: int, cores: int) -> Check:
    """Cores this shell may use, against the machine's."""
    if allowed < cores:
        return Check(
            "affinity",
            "warn" if allowed <= 2 < cores else "info",
            f"this shell may use {allowed} of {cores} cores; the advice on workers goes by that",
            "if that is not meant: srun --cpus-per-task, docker --cpuset-cpus, taskset -c, numactl",
        )
    return Check("affinity", "ok", f"all {cores} cores may be used")


def quota_check(group: CgroupSample, allowed: int) -> Check:
    """The cgroup's CPU quota against the cores that affinity leaves."""
    if group.quota_cores is None:
        return Check("cpu quota", "ok", "no cgroup limits CPU time")
    quota = number(group.quota_cores)
    if group.quota_cores < allowed:
        return Check(
            "cpu quota",
            "warn",
            f"the cgroup grants {quota} cores of CPU time, though {allowed} are visible: more workers than that are throttled",
            "docker --cpus, Kubernetes resources.limits.cpu, or fewer workers and threads",
        )
    return Check("cpu quota", "ok", f"the cgroup grants {quota} cores")


def memory_check(group: CgroupSample, total: int | None) -> Check:
    """The cgroup's memory limit against the machine's memory."""
    if group.memory_max is None or total is None or group.memory_max >= total:
        return Check("memory", "ok", f"{size(total)} may be used")
    return Check(
        "memory",
        "info",
        f"the cgroup limits memory to {size(group.memory_max)} of {size(total)}; workers count against it",
        "docker --memory, Kubernetes resources.limits.memory, Slurm --mem",
    )


def shm_check(total: int | None) -> Check:
    """/dev/shm, through which workers hand over batches."""
    if total is None:
        return Check(
            "/dev/shm",
            "warn",
            "there is no /dev/shm: DataLoader workers need it",
            "mount a tmpfs on /dev/shm",
        )
    if total < _SMALL_SHM:
        # 64 MB is what Docker gives a container
        return Check(
            "/dev/shm",
            "warn" if total > 256 * 10**6 else "fail",
            f"/dev/shm holds {size(total)}: workers with large batches die of a bus error",
            "docker run --shm-size=8g or --ipc=host; Kubernetes: an emptyDir with medium: Memory on /dev/shm",
        )
    return Check("/dev/shm", "ok", f"/dev/shm holds {size(total)}")


def kernel_checks(root: Path = Path("/")) -> list[Check]:
    """What the kernel accounts for: pressure, run-queue delay, I/O delay, I/O bytes, hardware counters."""
    proc = root / "proc"
    checks = [
        _present(
            proc / "pressure/cpu", "pressure", "pressure stall information is there",
            "no pressure stall information: waiting for CPU, storage and memory is judged from other signs",
            "boot with psi=1 (kernel 4.20 or later)",
        ),
        _present(
            proc / "self/schedstat", "run-queue delay", "the kernel counts how long each thread waits for a core",
            "no schedstat: oversubscription is judged from CPU time and thread counts alone",
            "a kernel with CONFIG_SCHED_INFO",
        ),
        _present(
            proc / "self/io", "I/O bytes", "the kernel counts what each process reads from storage",
            "no /proc/<pid>/io: bytes read from storage are unknown",
            "a kernel with CONFIG_TASK_IO_ACCOUNTING",
        ),
    ]  # fmt: skip
    if _read(proc / "sys/kernel/task_delayacct") == "0":
        checks.append(
            Check(
                "I/O delay",
                "info",
                "delay accounting is off: a worker that waits for storage looks like one that sleeps",
                "sudo sysctl kernel.task_delayacct=1",
            )
        )
    paranoid = _read(proc / "sys/kernel/perf_event_paranoid")
    if paranoid is None or (paranoid.lstrip("-").isdigit() and int(paranoid) > 0 and os.geteuid() != 0):
        checks.append(
            Check(
                "perf counters",
                "info",
                "hardware counters are closed to this user; tracelens needs none, perf stat would",
                "sudo sysctl kernel.perf_event_paranoid=0, if the machine is yours",
            )
        )
    else:
        checks.append(Check("perf counters", "ok", "open to perf, should you want it; tracelens needs none"))
    return checks


def _present(path: Path, name: str, there: str, missing: str, fix: str) -> Check:
    if _read(path) is not None:
        return Check(name, "ok", there)
    return Check(name, "info", missing, fix)


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None  # absent, switched off (PSI answers EOPNOTSUPP) or hidden


def disk_check(folder: Path) -> Check:
    """Room and permission where the bundle goes (``tracelens-runs`` below the current folder)."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            "bundle", "fail", f"{folder} cannot be written", "change the folder, or name one with --out"
        )
    free = shutil.disk_usage(folder).free
    if free < _SMALL_DISK:
        return Check(
            "bundle",
            "warn",
            f"only {size(free)} are free in {folder}, where runs are kept",
            "make room, or name another disk with --out",
        )
    return Check(
        "bundle", "ok", f"{size(free)} are free in {folder}, where runs are kept (--out names another place)"
    )
