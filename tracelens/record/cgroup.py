"""What a control group (v1 and v2) allows a process: cores, memory, and how often it was throttled.

A limit set on any ancestor binds, so each limit is the smallest on the way up to the mount's root.
Sources: the kernel's admin-guide/cgroup-v2 (cpu.max, cpu.stat, memory.max) and scheduler/sched-bwc (v1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# v1 writes "no limit" as a number just below 2^63
_UNLIMITED = 2**60


@dataclass(frozen=True, slots=True)
class CgroupSample:
    """Cores of quota (None: unlimited), cumulative throttling, bytes; None where the kernel does not say."""

    quota_cores: float | None = None
    throttled_ms: float | None = None
    nr_throttled: int | None = None
    nr_periods: int | None = None
    memory_current: int | None = None
    memory_max: int | None = None


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The folders of a process's group, itself first, then its ancestors; empty where there is none.

    ``cpu_v2`` and ``memory_v2`` tell the file names: on hybrid systems only some controllers are v2.
    """

    cpu: tuple[Path, ...] = ()
    memory: tuple[Path, ...] = ()
    cpu_v2: bool = True
    memory_v2: bool = True

    @property
    def version(self) -> int | None:
        """2, 1, or None where the process is in no group that limits CPU or memory."""
        if not self.cpu and not self.memory:
            return None
        return 2 if self.cpu_v2 and self.memory_v2 else 1

    def sample(self) -> CgroupSample:
        """The limits and counters now."""
        quota, binding = self._quota()
        throttled, count, periods = self._throttling(binding)
        return CgroupSample(quota, throttled, count, periods, self._memory_current(), self._memory_max())

    def _quota(self) -> tuple[float | None, Path | None]:
        """The tightest quota on the way up, and the folder that sets it (the own one where none does)."""
        best: tuple[float | None, Path | None] = (None, self.cpu[0] if self.cpu else None)
        for folder in self.cpu:
            cores = _quota_v2(folder) if self.cpu_v2 else _quota_v1(folder)
            if cores is not None and (best[0] is None or cores < best[0]):
                best = (cores, folder)
        return best

    def _throttling(self, folder: Path | None) -> tuple[float | None, int | None, int | None]:
        stat = _pairs(folder / "cpu.stat") if folder else {}
        if self.cpu_v2:
            spent = stat.get("throttled_usec")
            milliseconds = None if spent is None else spent / 1e3
        else:
            spent = stat.get("throttled_time")
            milliseconds = None if spent is None else spent / 1e6
        return milliseconds, stat.get("nr_throttled"), stat.get("nr_periods")

    def _memory_current(self) -> int | None:
        name = "memory.current" if self.memory_v2 else "memory.usage_in_bytes"
        return next((value for folder in self.memory if (value := _number(folder / name)) is not None), None)

    def _memory_max(self) -> int | None:
        name = "memory.max" if self.memory_v2 else "memory.limit_in_bytes"
        limits = [value for folder in self.memory if (value := _number(folder / name)) is not None]
        return min((value for value in limits if value < _UNLIMITED), default=None)


def locate(pid: int | str = "self", proc: Path = Path("/proc")) -> Cgroup:
    """The group of ``pid``, from /proc/<pid>/cgroup and this process's own mounts."""
    try:
        memberships = (proc / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
        mounts = _mounts((proc / "self" / "mountinfo").read_text("utf-8", "replace"))
    except OSError:
        return Cgroup()  # no cgroups, or the process is gone: nothing limits it that we could see
    paths: dict[str, str] = {}
    for line in memberships:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for name in controllers.split(",") if controllers else ["unified"]:
            paths[name] = path
    found: dict[str, tuple[tuple[Path, ...], bool]] = {}
    for controller, probe in (("cpu", "cpu.stat"), ("memory", "memory.current")):
        if controller in paths and controller in mounts:
            found[controller] = (_chain(*mounts[controller], paths[controller]), False)
        elif "unified" in paths and "unified" in mounts:
            chain = _chain(*mounts["unified"], paths["unified"])
            # on a hybrid system the v2 tree exists without this controller: no limit files in it
            found[controller] = (tuple(folder for folder in chain if (folder / probe).exists()), True)
    cpu, cpu_v2 = found.get("cpu", ((), True))
    memory, memory_v2 = found.get("memory", ((), True))
    return Cgroup(cpu, memory, cpu_v2, memory_v2)


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Controller ("unified" for v2) -> (root of the mount inside the hierarchy, mount point)."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (_unescape(fields[3]), _unescape(fields[4]))
        if kind[0] == "cgroup2":
            found.setdefault("unified", place)
        elif kind[0] == "cgroup":
            for controller in kind[2].split(","):
                found.setdefault(controller, place)
    return found


def _unescape(path: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def _chain(root: str, point: str, path: str) -> tuple[Path, ...]:
    """The folders from the group up to the mount point. A container may see its own group as the root."""
    inside = path
    if root != "/":
        inside = path[len(root) :] if path == root or path.startswith(root.rstrip("/") + "/") else "/"
    folder = Path(point) / inside.strip("/")
    top = Path(point)
    if ".." in folder.parts or not folder.is_dir():
        folder = top  # a group outside the namespace, or one that was removed: the top is what we may see
    chain = [folder]
    while chain[-1] != top:
        chain.append(chain[-1].parent)
    return tuple(chain)


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return None  # not every controller has every file


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _pairs(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in (_read(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _quota_v2(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None
