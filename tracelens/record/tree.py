"""Which processes belong to the job, and what each of them is: training process, loader worker, other."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelens.record.procfs import Process, all_parents, children, command_line, read_stat

# two hosts whose clocks agree, but that booted at other times, differ in time - monotonic
_SAME_HOST_NS = 5_000_000_000
_SETTLED_S = 5.0


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A training process on this machine, as its agent described it in rank<k>/process.jsonl."""

    pid: int
    start_ticks: int
    rank: int | None
    gpu_uuid: str | None
    env: Mapping[str, str]


@dataclass(slots=True)
class Member:
    """A followed process with its place in the job."""

    process: Process
    role: str
    rank: int | None
    affinity: list[int] | None = None
    affinity_written: bool = False
    # between fork and exec a process looks like its parent, and workers name themselves late
    settled: float = field(default_factory=lambda: time.monotonic() + _SETTLED_S)


class RankFiles:
    """What the agents wrote so far about pids: read again only where a file grew."""

    def __init__(self, bundle: Path) -> None:
        self._bundle = bundle
        self._sizes: dict[Path, int] = {}
        self.ranks: dict[int, RankProcess] = {}
        self.workers: dict[int, int | None] = {}
        self.version = 0

    def refresh(self) -> bool:
        """Look again; True when something about ranks is new."""
        before = self.version
        for folder in sorted(self._bundle.glob("rank*")):
            rank = int(folder.name[4:]) if folder.name[4:].isdigit() else None
            try:
                names = os.listdir(folder)
            except OSError:
                continue  # a folder that vanished with its bundle
            for name in names:
                if name.startswith("worker-") and name.endswith(".jsonl") and name[7:-6].isdigit():
                    self.workers.setdefault(int(name[7:-6]), rank)
            if "process.jsonl" in names:
                self._read(folder / "process.jsonl", rank)
        return self.version != before

    def _read(self, path: Path, rank: int | None) -> None:
        try:
            size = path.stat().st_size
            if self._sizes.get(path) == size:
                return
            text = path.read_text("utf-8", "replace")
        except OSError:
            return  # the next look may succeed
        self._sizes[path] = size
        self.version += 1
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # a line still being written
            if isinstance(entry, dict) and (process := _rank_process(entry, rank)) is not None:
                self.ranks[process.pid] = process


def _rank_process(entry: Mapping[str, Any], rank: int | None) -> RankProcess | None:
    pid = entry.get("pid")
    if not isinstance(pid, int) or pid <= 0 or not _on_this_host(entry.get("anchor")):
        return None
    stat = read_stat(pid)
    if stat is None:
        return None
    device, env = entry.get("device"), entry.get("env")
    uuid = device.get("uuid") if isinstance(device, dict) else None
    own = entry.get("rank")
    return RankProcess(
        pid,
        stat.start_ticks,
        own if isinstance(own, int) else rank,
        uuid if isinstance(uuid, str) and uuid else None,
        {str(key): str(value) for key, value in env.items()} if isinstance(env, dict) else {},
    )


def _on_this_host(anchor: object) -> bool:
    """Several nodes may share a bundle; a pid means something only on the machine that wrote it."""
    if not isinstance(anchor, dict):
        return True
    wall, monotonic = anchor.get("time_ns"), anchor.get("monotonic_ns")
    if not isinstance(wall, int) or not isinstance(monotonic, int):
        return True
    return abs((wall - monotonic) - (time.time_ns() - time.monotonic_ns())) < _SAME_HOST_NS


@dataclass(slots=True)
class Tree:
    """The processes of the job: descendants of ``root`` and of every rank, kept until they end."""

    root: int
    files: RankFiles
    members: dict[int, Member] = field(default_factory=dict)
    _no_children_file: bool = False
    _known: object = None

    def refresh(self) -> None:
        """Find new processes, and say what they are. Ended ones leave in ``drop``."""
        self.files.refresh()
        parents = self._descend()
        for pid in parents:
            if pid not in self.members:
                try:
                    self.members[pid] = Member(Process(pid), "other", None)
                except OSError:
                    continue  # ended between the two looks
        mains = self._mains()
        known = (mains, len(self.files.workers))
        now = time.monotonic()
        for pid, member in self.members.items():
            if known != self._known or now < member.settled:
                if pid in mains:
                    member.role, member.rank = "main", mains[pid]
                else:
                    member.role, member.rank = self._role(pid, member, mains)
            member.affinity = self._affinity(member)
        self._known = known

    def drop(self, pid: int) -> None:
        """Forget a process that ended."""
        member = self.members.pop(pid, None)
        if member is not None:
            member.process.close()

    def pids(self) -> frozenset[int]:
        """The pids followed now."""
        return frozenset(self.members)

    def _descend(self) -> dict[int, int | None]:
        """Every descendant -> its parent (None for the roots)."""
        # what was followed before stays, also where its parent is gone; a rank's pid may have been recycled
        ranks = [
            rank.pid for rank in self.files.ranks.values() if rank.pid not in self.members and _same(rank)
        ]
        found: dict[int, int | None] = dict.fromkeys((self.root, *ranks, *self.members))
        whole: dict[int, list[int]] | None = None
        queue = list(found)
        while queue:
            pid = queue.pop()
            below = None if self._no_children_file else children(pid)
            if below is None and os.path.isdir(f"/proc/{pid}/task"):
                self._no_children_file = True
                if whole is None:
                    whole = {}
                    for child, parent in all_parents().items():
                        whole.setdefault(parent, []).append(child)
                below = whole.get(pid, [])
            for child in below or []:
                if child not in found:
                    found[child] = pid
                    queue.append(child)
        found.pop(os.getpid(), None)  # a sampler started below the root is not part of the job
        return found

    def _mains(self) -> dict[int, int | None]:
        known = {pid: process.rank for pid, process in self.files.ranks.items() if pid in self.members}
        if known:
            return known
        # no agent has spoken yet: the first python process on the way down from the root
        for pid in self._by_depth():
            if _is_python(command_line(pid)):
                return {pid: None}
        return {}

    def _by_depth(self) -> Iterable[int]:
        return sorted(self.members, key=lambda pid: (self.members[pid].process.stat.start_ticks, pid))

    def _role(self, pid: int, member: Member, mains: Mapping[int, int | None]) -> tuple[str, int | None]:
        if pid in self.files.workers:
            return "worker", self.files.workers[pid]
        above = self._ancestor(pid, mains)
        if above is None:
            return "other", None
        arguments = command_line(pid)
        text = " ".join(arguments)
        if member.process.stat.name.startswith("pt_data"):
            return "worker", mains[above]
        if "resource_tracker" in text or "forkserver" in text or "semaphore_tracker" in text:
            return "other", mains[above]
        # a forked worker keeps the command line of the process it was forked from
        forked = bool(arguments) and arguments == command_line(above)
        if "multiprocessing.spawn" in text or forked:
            return "worker", mains[above]
        return "other", mains[above]

    def _ancestor(self, pid: int, mains: Mapping[int, int | None]) -> int | None:
        seen = {pid}
        while (member := self.members.get(pid)) is not None:
            pid = member.process.stat.ppid
            if pid in mains:
                return pid
            if pid in seen:
                return None
            seen.add(pid)
        return None

    @staticmethod
    def _affinity(member: Member) -> list[int] | None:
        cores = member.process.affinity()
        if cores != member.affinity:
            member.affinity_written = False
        return cores


def _same(rank: RankProcess) -> bool:
    stat = read_stat(rank.pid)
    return stat is not None and stat.start_ticks == rank.start_ticks


def _is_python(arguments: list[str]) -> bool:
    return bool(arguments) and os.path.basename(arguments[0]).lower().startswith(
        ("python", "pypy", "pt_main")
    )
