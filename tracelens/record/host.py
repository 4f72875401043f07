"""The host sample: one line of host.jsonl, each field as often as it is worth and no oftener."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from tracelens.record import machine
from tracelens.record.cgroup import Cgroup, locate
from tracelens.record.tree import Member, RankFiles, Tree

_MEDIUM_NS = 1_000_000_000  # new processes, per-thread delays, I/O, pressure, memory, per-core shares
_SLOW_NS = 2_000_000_000  # disks, network, context switches
_AGAIN_NS = 60_000_000_000  # long lists are written again now and then, for readers of a part of the file


class HostSampler:
    """Samples the machine and the job's processes. Not thread-safe."""

    def __init__(self, root: int, bundle: Path, node: str) -> None:
        self.files = RankFiles(bundle)
        self.tree = Tree(root, self.files)
        self._node = node
        self._cores = machine.CoreTimes()
        self._pressure = machine.Pressure()
        self._cgroup: Cgroup = locate(root)
        self._medium_at = self._slow_at = self._again_at = -(2**62)
        self._count = os.cpu_count()
        self._turn = 0
        self._storage: set[tuple[str, bool]] = set()

    def capabilities(self) -> dict[str, object]:
        """What this kernel offers, for sampler.jsonl."""
        return {
            "psi": os.path.exists("/proc/pressure/cpu"),
            "schedstat": os.path.exists("/proc/self/schedstat"),
            "io": os.access("/proc/self/io", os.R_OK),
            "children": os.path.exists(f"/proc/self/task/{os.getpid()}/children"),
            "cgroup": self._cgroup.version,
        }

    def sample(self, wall_ns: int, monotonic_ns: int) -> dict[str, object]:
        """The line for now. Fields not looked at this time are absent; unknown ones are None."""
        line: dict[str, object] = {"ts": wall_ns, "node": self._node}
        medium = monotonic_ns - self._medium_at >= _MEDIUM_NS
        slow = monotonic_ns - self._slow_at >= _SLOW_NS
        if monotonic_ns - self._again_at >= _AGAIN_NS:
            self._again_at = monotonic_ns
            for member in self.tree.members.values():
                member.affinity_written = False
        if medium:
            self._medium_at = monotonic_ns
            self.tree.refresh()
        busy, iowait, percore = self._cores.sample()
        line |= {"system_cpu_percent": busy, "cpu_count": self._count, "iowait_percent": iowait}
        if medium:
            line |= self._machine(monotonic_ns, percore)
        if slow:
            self._slow_at = monotonic_ns
            line |= machine.shared_memory()
            line["disks"] = machine.disks()
            line["net_read_bytes"] = machine.network_bytes()
            line["storage"] = self._filesystems()
        line["processes"] = [
            entry
            for pid, member in list(self.tree.members.items())
            if (entry := self._process(pid, member, monotonic_ns, medium, slow)) is not None
        ]
        return line

    def close(self) -> None:
        """Give the open files back."""
        self._cores.close()
        for pid in list(self.tree.members):
            self.tree.drop(pid)

    def _machine(self, monotonic_ns: int, percore: list[float | None] | None) -> dict[str, object]:
        group = asdict(self._cgroup.sample())
        return {
            "percpu": None
            if percore is None
            else [None if busy is None else round(busy) for busy in percore],
            "load1": round(os.getloadavg()[0], 2),
            **machine.memory(),
            "psi": self._pressure.sample(monotonic_ns),
            "cgroup": group,
        }

    def _filesystems(self) -> list[dict[str, object]]:
        """Where the job's input lies, as far as it was ever seen open: one process a look, in turn."""
        readers = [pid for pid, member in self.tree.members.items() if member.role in ("main", "worker")]
        if readers:
            self._turn += 1
            self._storage |= machine.open_filesystems(readers[self._turn % len(readers)])
        return [{"fstype": kind, "network": network} for kind, network in sorted(self._storage)]

    def _process(
        self, pid: int, member: Member, now_ns: int, medium: bool, slow: bool
    ) -> dict[str, object] | None:
        hot = member.process.hot(now_ns)
        if hot is None:
            self.tree.drop(pid)
            return None
        entry: dict[str, object] = {
            "pid": pid,
            "name": member.process.stat.name,
            "role": member.role,
            "rank": member.rank,
            **hot,
        }
        if medium:
            entry["read_bytes"] = member.process.read_bytes()
            entry["run_delay_ms"] = member.process.run_delay_ms()
        if slow:
            entry["ctx_involuntary"] = member.process.ctx_involuntary()
        if not member.affinity_written:
            entry["cpu_affinity"] = member.affinity
            member.affinity_written = True
        return entry
