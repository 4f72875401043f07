"""The machine around the job: cores, memory, pressure, disks and their kind, network, /dev/shm."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil

_NETWORK_FS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "beegfs", "gpfs", "glusterfs", "afs", "9p",
     "virtiofs", "orangefs", "pvfs2", "wekafs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.mount-s3",
     "fuse.goofys", "fuse.juicefs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.blobfuse",
     "fuse.blobfuse2"}
)  # fmt: skip


class CoreTimes:
    """Busy and waiting shares of the cores between two looks at /proc/stat (fields: proc(5))."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._before: list[tuple[float, float, float]] | None = None

    def sample(self) -> tuple[float | None, float | None, list[float | None] | None]:
        """Percent busy and waiting for storage of the whole machine, percent busy a core; None at first."""
        now = self._read()
        before, self._before = self._before, now
        if before is None or len(before) != len(now):  # a core went offline: start anew
            return None, None, None
        shares = [_share(old, new) for old, new in zip(before, now, strict=True)]
        whole = shares[0]
        return whole[0], whole[1], [busy for busy, _ in shares[1:]]

    def _read(self) -> list[tuple[float, float, float]]:
        rows: list[tuple[float, float, float]] = []
        data = os.pread(self._fd, 262_144, 0)
        for line in data.splitlines():
            if not line.startswith(b"cpu"):
                break
            user, nice, system, idle, iowait, *rest = (int(word) for word in line.split()[1:])
            steal = sum(rest[:3])  # irq, softirq, steal; guest time is inside user
            rows.append((user + nice + system + steal, iowait, user + nice + system + steal + idle + iowait))
        return rows

    def close(self) -> None:
        """Give the open file back."""
        os.close(self._fd)


def _share(
    old: tuple[float, float, float], new: tuple[float, float, float]
) -> tuple[float | None, float | None]:
    total = new[2] - old[2]
    if total <= 0:
        return None, None
    # iowait may run backwards (proc(5)); a share below zero means nothing
    return round(max(0.0, new[0] - old[0]) / total * 100, 1), round(
        max(0.0, new[1] - old[1]) / total * 100, 1
    )


class Pressure:
    """Share of time in which some task waited for cpu, io or memory, from /proc/pressure totals."""

    NAMES = ("cpu", "io", "memory")

    def __init__(self, folder: Path = Path("/proc/pressure")) -> None:
        self._folder = folder
        self._before: dict[str, tuple[int, int]] = {}

    def sample(self, now_ns: int) -> dict[str, float | None]:
        """Percent since the last call; None at first and where the kernel has no PSI."""
        out: dict[str, float | None] = {}
        for name in self.NAMES:
            total = self._total(name)
            before = self._before.get(name)
            out[name] = None
            if total is not None:
                if before is not None and now_ns > before[1]:
                    out[name] = round(max(0, total - before[0]) * 1e5 / (now_ns - before[1]), 2)
                self._before[name] = (total, now_ns)
        return out

    def _total(self, name: str) -> int | None:
        try:
            text = (self._folder / name).read_text("ascii")
        except OSError:
            return None  # no PSI in this kernel, or off (psi=0)
        for line in text.splitlines():
            if line.startswith("some"):
                return int(line.rpartition("total=")[2])
        return None


def memory() -> dict[str, int | None]:
    """mem_available, mem_total, swap_used in bytes."""
    ram = psutil.virtual_memory()
    try:
        swap: int | None = psutil.swap_memory().used
    except (OSError, RuntimeError):
        swap = None  # /proc/vmstat hidden
    return {"mem_available": ram.available, "mem_total": ram.total, "swap_used": swap}


def shared_memory(path: str = "/dev/shm") -> dict[str, int | None]:
    """dev_shm_used, dev_shm_total in bytes: where workers hand batches over."""
    try:
        info = os.statvfs(path)
    except OSError:
        return {"dev_shm_used": None, "dev_shm_total": None}
    return {
        "dev_shm_used": (info.f_blocks - info.f_bfree) * info.f_frsize,
        "dev_shm_total": info.f_blocks * info.f_frsize,
    }


def network_bytes() -> int | None:
    """Bytes received by every interface but loopback, cumulative."""
    try:
        counters = psutil.net_io_counters(pernic=True)
    except OSError:
        return None
    return sum(counter.bytes_recv for name, counter in counters.items() if name != "lo")


def disks(
    sys_block: Path = Path("/sys/block"), mountstats: Path = Path("/proc/self/mountstats")
) -> dict[str, dict[str, object]]:
    """Whole disks that have read something, and NFS mounts: read_bytes, busy_ms (both cumulative), kind.

    Names of servers and mount points stay out: NFS mounts are numbered.
    """
    found: dict[str, dict[str, object]] = {}
    try:
        counters = psutil.disk_io_counters(perdisk=True) or {}
    except (OSError, RuntimeError):
        counters = {}
    for name, counter in counters.items():
        if (
            counter.read_bytes == 0
            or name.startswith(("loop", "ram", "zram"))
            or not (sys_block / name).is_dir()
        ):
            continue
        rotational = _flag(sys_block / name / "queue" / "rotational")
        kind = _kind(name, rotational)
        found[name] = {
            "read_bytes": counter.read_bytes,
            "busy_ms": getattr(counter, "busy_time", None),
            # virtual disks claim to rotate whatever is behind them
            "rotational": rotational if kind in ("nvme", "ssd", "hdd") else None,
            "kind": kind,
        }
    for number, read in enumerate(nfs_read_bytes(mountstats)):
        found[f"nfs{number}"] = {"read_bytes": read, "busy_ms": None, "rotational": None, "kind": "network"}
    return found


def _flag(path: Path) -> bool | None:
    try:
        return path.read_text("ascii").strip() == "1"
    except OSError:
        return None


def _kind(name: str, rotational: bool | None) -> str | None:
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith(("vd", "xvd")):
        return "virtual"  # what is behind it, the hypervisor knows
    if name.startswith(("nbd", "rbd", "drbd")):
        return "network"
    return None if rotational is None else "hdd" if rotational else "ssd"


def nfs_read_bytes(mountstats: Path) -> list[int]:
    """Bytes that each NFS mount fetched from its server (fifth number of its ``bytes:`` line)."""
    try:
        text = mountstats.read_text("utf-8", "replace")
    except OSError:
        return []
    out: list[int] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["bytes:"] and len(words) >= 6 and words[5].isdigit():
            out.append(int(words[5]))
    return out


def open_filesystems(pid: int, limit: int = 64) -> set[tuple[str, bool]]:
    """(type, on another machine) of the file systems that the process's files open for reading only lie on.

    Opened for reading only: the dataset's files, not logs or our own bundle. ``limit`` bounds the cost.
    """
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return set()  # gone, or another user's
    devices: set[int] = set()
    for name in descriptors[-limit:]:
        try:
            info = os.stat(f"/proc/{pid}/fd/{name}")
            flags = Path(f"/proc/{pid}/fdinfo/{name}").read_text("ascii").split("flags:", 1)[1].split()[0]
        except (OSError, IndexError):
            continue  # closed in between
        if stat.S_ISREG(info.st_mode) and int(flags, 8) & os.O_ACCMODE == os.O_RDONLY:
            devices.add(info.st_dev)
    if not devices:
        return set()
    try:
        mounts = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    wanted = {f"{os.major(device)}:{os.minor(device)}" for device in devices}
    types = {line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] in wanted}
    return {(kind, kind.lower() in _NETWORK_FS) for kind in types - {"proc", "sysfs", "tmpfs", "devtmpfs"}}
