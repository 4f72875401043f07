"""The host sampler's parts: parsing of /proc, roles, pressure, disks, and which GPUs a job uses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracelens.record import machine
from tracelens.record.gpu_thread import select
from tracelens.record.host import HostSampler
from tracelens.record.nvml_visibility import Gpu
from tracelens.record.procfs import Process, children, parse_stat, read_stat
from tracelens.record.tree import RankFiles, RankProcess, Tree

STAT = (
    b"4711 (python (x) y) S 42 4711 4711 0 -1 4194304 100 0 7 0 250 50 0 0 20 0 9 0 123456 1000000 2048 "
    b"18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


def test_stat_with_a_name_that_looks_like_fields() -> None:
    stat = parse_stat(STAT)
    assert stat is not None
    assert stat.name == "python (x) y"
    assert (stat.state, stat.ppid, stat.majflt, stat.num_threads, stat.start_ticks) == ("S", 42, 7, 9, 123456)
    assert stat.cpu_s == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))
    assert stat.rss == 2048 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("data", [b"", b"4711 (py", b"4711 (py) S 42", STAT[:60]])
def test_cut_stat_is_nothing(data: bytes) -> None:
    assert parse_stat(data) is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_process_has_no_rates_at_first_and_none_when_it_ended(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process(sleeper.pid)
    first = process.hot(1_000)
    assert first is not None
    assert (first["cpu_percent"], first["majflt"]) == (None, None)
    assert first["num_threads"] == 1
    assert process.run_delay_ms() is None
    assert process.ctx_involuntary() is None
    second = process.hot(1_000_001_000)
    assert second is not None
    assert second["cpu_percent"] == 0.0
    assert process.ctx_involuntary() == 0
    assert process.affinity() == sorted(os.sched_getaffinity(sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    assert process.hot(2_000_000_000) is None
    assert process.run_delay_ms() is None
    assert process.affinity() is None
    process.close()


def test_a_process_that_does_not_exist() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(OSError):
        Process(ended.pid)
    assert read_stat(ended.pid) is None


def test_run_delay_sums_the_threads() -> None:
    stop = threading.Event()
    allowed = os.sched_getaffinity(0)

    def burn() -> None:
        import hashlib

        os.sched_setaffinity(0, {min(allowed)})  # of this thread only
        while not stop.is_set():
            hashlib.sha256(bytes(1 << 20)).digest()

    threads = [threading.Thread(target=burn) for _ in range(3)]
    process = Process(os.getpid())
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.1)
        process.run_delay_ms()
        time.sleep(0.5)
        waited = process.run_delay_ms()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        process.close()
    if waited is None:
        pytest.skip("no schedstat")
    # three threads share one core for half a second: together they wait about a second
    assert waited > 500


def test_children_of_any_thread(sleeper: subprocess.Popen[bytes]) -> None:
    below = children(os.getpid())
    if below is None:
        pytest.skip("the kernel lists no children")
    assert sleeper.pid in below
    assert children(2**22 + 5) is None


def test_without_children_files_the_whole_proc_is_searched(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.record.tree.children", lambda pid: None)
    tree = Tree(sleeper.pid, RankFiles(tmp_path))
    shell = subprocess.Popen(["sh", "-c", "sleep 60; true"])
    try:
        tree = Tree(shell.pid, RankFiles(tmp_path))
        until = time.monotonic() + 10
        while len(tree.members) < 2 and time.monotonic() < until:
            time.sleep(0.05)
            tree.refresh()
        assert {member.process.stat.name for member in tree.members.values()} == {"sh", "sleep"}
    finally:
        for pid in tree.pids():
            os.kill(pid, 9)
        shell.wait()


def test_worker_files_name_the_workers(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "rank4").mkdir()
    (tmp_path / "rank4" / f"worker-{sleeper.pid}.jsonl").write_text("")
    (tmp_path / "rank4" / "worker-x.jsonl").write_text("")
    tree = Tree(sleeper.pid, RankFiles(tmp_path))
    tree.refresh()
    assert (tree.members[sleeper.pid].role, tree.members[sleeper.pid].rank) == ("worker", 4)


def test_spawned_workers_and_helpers_of_multiprocessing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing as mp, time\n"
        "def work(): time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    p = mp.get_context('spawn').Process(target=work, daemon=True)\n"
        "    p.start(); time.sleep(60)\n"
    )
    root = subprocess.Popen([sys.executable, str(script)])
    tree = Tree(root.pid, RankFiles(tmp_path))
    try:
        until = time.monotonic() + 20
        roles: list[str] = []
        while "worker" not in roles and time.monotonic() < until:
            time.sleep(0.1)
            tree.refresh()
            roles = [member.role for member in tree.members.values()]
        assert sorted(roles) == ["main", "other", "worker"]  # other: the resource tracker
    finally:
        for pid in sorted(tree.pids()):
            os.kill(pid, 9)
        root.wait()


def test_the_sampler_itself_is_not_part_of_the_job(tmp_path: Path) -> None:
    tree = Tree(os.getpid(), RankFiles(tmp_path))
    tree.refresh()
    assert os.getpid() not in tree.members


def test_pressure_is_a_share_of_time_and_missing_where_there_is_none(tmp_path: Path) -> None:
    pressure = machine.Pressure(tmp_path)
    assert pressure.sample(0) == {"cpu": None, "io": None, "memory": None}
    (tmp_path / "io").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0 total=7\n"
    )
    assert pressure.sample(10**9)["io"] is None
    (tmp_path / "io").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1250000\nfull avg10=0 total=7\n"
    )
    assert pressure.sample(2 * 10**9)["io"] == 25.0


def test_nfs_mounts_are_numbered_not_named(tmp_path: Path) -> None:
    stats = tmp_path / "mountstats"
    stats.write_text(
        "device server:/secret mounted on /data with fstype nfs4 statvers=1.1\n"
        "\tbytes:\t10 20 0 0 4096 20 1 1\n"
        "device tmpfs mounted on /dev/shm with fstype tmpfs\n"
    )
    found = machine.disks(tmp_path, stats)
    assert found == {"nfs0": {"read_bytes": 4096, "busy_ms": None, "rotational": None, "kind": "network"}}


def test_kinds_of_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = type("Counter", (), {"read_bytes": 5, "busy_time": 3})()
    idle = type("Counter", (), {"read_bytes": 0, "busy_time": 0})()
    names = {
        "sda": counter,
        "sda1": counter,
        "sdb": counter,
        "nvme0n1": counter,
        "vda": counter,
        "loop0": counter,
        "sdc": idle,
    }
    monkeypatch.setattr(machine.psutil, "disk_io_counters", lambda perdisk: names)
    for name, flag in {"sda": "1", "sdb": "0", "nvme0n1": "0", "vda": "1", "loop0": "0", "sdc": "1"}.items():
        (tmp_path / name / "queue").mkdir(parents=True)
        (tmp_path / name / "queue" / "rotational").write_text(flag + "\n")
    found = machine.disks(tmp_path, tmp_path / "none")
    assert {name: (info["kind"], info["rotational"]) for name, info in found.items()} == {
        "sda": ("hdd", True),
        "sdb": ("ssd", False),
        "nvme0n1": ("nvme", False),
        "vda": ("virtual", None),
    }


def test_file_systems_of_files_open_for_reading(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_text("x")
    kinds = {
        line.split(" - ")[1].split()[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()
    }
    with path.open() as reading:
        found = machine.open_filesystems(os.getpid(), limit=1000)
        assert reading.readable()
    assert {kind for kind, _ in found} <= kinds
    if "/tmp" in str(tmp_path) and not os.path.ismount("/tmp"):
        assert found
    assert machine.open_filesystems(2**22 + 5) == set()


def test_shared_memory_and_machine_totals() -> None:
    assert machine.shared_memory("/nowhere") == {"dev_shm_used": None, "dev_shm_total": None}
    totals = machine.memory()
    assert totals["mem_total"]
    assert 0 < (totals["mem_available"] or 0) <= (totals["mem_total"] or 0)


def test_core_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(
        [
            b"cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 100 0 100 800 0 0 0 0 0 0\nintr 5\n",
            b"cpu  150 0 125 800 25 0 0 0 0 0\ncpu0 150 0 125 800 25 0 0 0 0 0\nintr 5\n",
            b"cpu  150 0 125 900 20 0 0 0 0 0\ncpu0 150 0 125 900 20 0 0 0 0 0\nintr 5\n",
            b"cpu  150 0 125 900 20 0 0 0 0 0\nintr 5\n",
        ]
    )
    cores = machine.CoreTimes()
    monkeypatch.setattr(machine.os, "pread", lambda *_: next(texts))
    assert cores.sample() == (None, None, None)
    assert cores.sample() == (75.0, 25.0, [75.0])
    assert cores.sample() == (0.0, 0.0, [0.0])  # iowait ran backwards
    assert cores.sample() == (None, None, None)  # a core went offline
    cores.close()


def test_host_lines_hold_what_was_looked_at(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    host = HostSampler(sleeper.pid, tmp_path, "n")
    start = time.monotonic_ns()
    first = host.sample(1, start)
    hot = host.sample(2, start + 10**8)
    medium = host.sample(3, start + 12 * 10**8)
    slow = host.sample(4, start + 25 * 10**8)
    again = host.sample(5, start + 61 * 10**9)
    host.close()
    assert {"psi", "disks", "dev_shm_total", "percpu"} <= first.keys()
    assert hot.keys() == {"ts", "node", "system_cpu_percent", "cpu_count", "iowait_percent", "processes"}
    assert "psi" in medium
    assert "disks" not in medium
    assert "disks" in slow
    entries = [line["processes"][0] for line in (first, hot, medium, again)]  # type: ignore[index]
    assert ["cpu_affinity" in entry for entry in entries] == [True, False, False, True]
    assert ["run_delay_ms" in entry for entry in entries] == [True, False, True, True]


GPUS = [Gpu(0, "GPU-a", "A100", "01"), Gpu(1, "GPU-b", "A100", "02"), Gpu(2, "GPU-c", "A100", "03")]


def rank(number: int | None, uuid: str | None = None, **env: str) -> RankProcess:
    return RankProcess(100 + (number or 0), 1, number, uuid, env)


@pytest.mark.parametrize(
    ("ranks", "environ", "expected"),
    [
        ([], {}, {"GPU-a": None, "GPU-b": None, "GPU-c": None}),
        ([], {"CUDA_VISIBLE_DEVICES": "2"}, {"GPU-c": None}),
        ([], {"CUDA_VISIBLE_DEVICES": ""}, {}),
        ([rank(0, "GPU-b")], {}, {"GPU-b": 0}),
        ([rank(0, "GPU-b"), rank(1, "GPU-a")], {}, {"GPU-b": 0, "GPU-a": 1}),
        ([rank(0, "GPU-b"), rank(1, "GPU-b")], {}, {"GPU-b": 0}),
        ([rank(0, CUDA_VISIBLE_DEVICES="1")], {}, {"GPU-b": 0}),
        (
            [rank(0, CUDA_VISIBLE_DEVICES="1,2"), rank(1, CUDA_VISIBLE_DEVICES="1,2")],
            {},
            {"GPU-b": None, "GPU-c": None},
        ),
        ([rank(0, CUDA_VISIBLE_DEVICES="1,2"), rank(1, "GPU-c")], {}, {"GPU-b": None, "GPU-c": 1}),
        ([rank(0, "GPU-elsewhere", CUDA_VISIBLE_DEVICES="0")], {}, {"GPU-a": 0}),
    ],
)
def test_gpus_of_the_job(
    ranks: list[RankProcess], environ: dict[str, str], expected: dict[str, int | None]
) -> None:
    assert select({process.pid: process for process in ranks}, GPUS, environ) == expected
