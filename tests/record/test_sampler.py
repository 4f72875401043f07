"""The sampler as a process of its own beside real jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.record.fake_nvml import lines, sampler, wait_for
from tracelens.ingest import read_host_log
from tracelens.record.lines import LineFile
from tracelens.record.pace import Pace
from tracelens.record.sampler import Sampler


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    return folder


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def host(bundle: Path) -> list[dict[str, Any]]:
    return lines(bundle / "host.jsonl")


def finish(process: subprocess.Popen[str]) -> float:
    """Seconds until the sampler ended by itself."""
    start = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert (out, err) == ("", "")
    return time.monotonic() - start


def test_lines_of_a_job_and_the_end_with_it(bundle: Path, job: subprocess.Popen[bytes]) -> None:
    before = time.time_ns()
    process = sampler(bundle, job.pid, "--no-gpu")
    wait_for(lambda: len(host(bundle)) >= 12, process)
    job.kill()
    assert finish(process) < 2.0
    rows = host(bundle)
    first, last = rows[0], rows[-1]
    assert before <= first["ts"] <= last["ts"] <= time.time_ns()
    (entry,) = first["processes"]
    assert entry["pid"] == job.pid
    # nothing to compare the first sample with: unknown, not zero
    assert first["system_cpu_percent"] is None
    assert entry["cpu_percent"] is None
    assert entry["run_delay_ms"] is None
    assert entry["cpu_affinity"] == sorted(os.sched_getaffinity(job.pid))
    assert 0 <= last["system_cpu_percent"] <= 100
    assert last["processes"][0]["cpu_percent"] < 50
    assert {"psi", "cgroup", "mem_total", "dev_shm_total", "disks", "net_read_bytes", "load1"} <= first.keys()
    log = lines(bundle / "sampler.jsonl")
    assert [line["event"] for line in log] == ["start", "anchor", "end"]
    assert log[-1]["reason"] == "root ended"
    assert abs(log[1]["drift_ms"]) < 1000
    assert log[1]["time_ns"] > log[0]["time_ns"] > before
    assert not (bundle / "gpu.jsonl").exists()
    read = read_host_log(bundle / "host.jsonl")
    assert len(read) == len(rows)
    assert not read.notes


def test_descendants_and_reparented_ranks_with_roles(bundle: Path, tmp_path: Path) -> None:
    # root -> rank, which is re-parented when its starter ends; rank -> a forked child
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\n"
        "if os.fork() == 0: time.sleep(60)\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    note = tmp_path / "pid"
    root = subprocess.Popen(["sleep", "60"])
    starter = subprocess.run(["sh", "-c", f"{sys.executable} {script} {note} >/dev/null 2>&1 &"], check=True)
    assert starter.returncode == 0
    while not note.exists() or not note.read_text():
        time.sleep(0.02)
    rank = int(note.read_text())
    worker = None
    try:
        (bundle / "rank1").mkdir()
        entry = {
            "pid": rank,
            "rank": 1,
            "anchor": {"time_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()},
        }
        foreign = {"pid": os.getpid(), "rank": 2, "anchor": {"time_ns": time.time_ns(), "monotonic_ns": 5}}
        (bundle / "rank1" / "process.jsonl").write_text(
            f'{json.dumps(entry)}\n{json.dumps(foreign)}\n{{"pid": 1'
        )
        process = sampler(bundle, root.pid, "--no-gpu")
        wait_for(lambda: len(host(bundle)) >= 2, process)
        root.kill()
        root.wait()
        finish(process)
        found = {entry["pid"]: (entry["role"], entry["rank"]) for entry in host(bundle)[0]["processes"]}
        (worker,) = set(found) - {rank, root.pid}
        assert found[rank] == ("main", 1)
        assert found[worker] == ("worker", 1)
        assert found[root.pid] == ("other", None)
    finally:
        for pid in (rank, worker):
            if pid:
                os.kill(pid, signal.SIGKILL)
        root.kill()


def test_before_any_agent_speaks_the_first_python_is_main(bundle: Path) -> None:
    root = subprocess.Popen(["sh", "-c", f"{sys.executable} -c 'import time; time.sleep(60)'; true"])
    try:
        time.sleep(0.3)
        process = sampler(bundle, root.pid, "--no-gpu")
        wait_for(lambda: len(host(bundle)) >= 2, process)
        entries = {entry["name"]: entry for entry in host(bundle)[0]["processes"]}
        python = next(entry for name, entry in entries.items() if name.startswith("python"))
        assert python["role"] == "main"
        assert entries["sh"]["role"] == "other"
    finally:
        os.kill(python["pid"], signal.SIGKILL)
        root.wait()
    finish(process)


def test_new_processes_are_found_and_ended_ones_leave(bundle: Path) -> None:
    code = "import subprocess, time; time.sleep(0.5); subprocess.run(['sleep', '2.5']); time.sleep(60)"
    root = subprocess.Popen([sys.executable, "-c", code])
    process = sampler(bundle, root.pid, "--no-gpu")
    names = lambda row: [entry["name"] for entry in row["processes"]]  # noqa: E731
    try:
        wait_for(lambda: any("sleep" in names(row) for row in host(bundle)), process)
        wait_for(lambda: "sleep" not in names(host(bundle)[-1]), process)
    finally:
        root.kill()
        root.wait()
    finish(process)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel keeps no schedstat")
def test_oversubscribed_threads_show_as_cpu_and_run_queue_delay(bundle: Path) -> None:
    # library threads: four hashing threads release the GIL and outnumber the cores they may use
    allowed = sorted(os.sched_getaffinity(0))[:2]
    code = (
        "import hashlib, os, threading\n"
        f"os.sched_setaffinity(0, {allowed})\n"
        "def burn():\n"
        "    while True: hashlib.sha256(bytes(1 << 22)).digest()\n"
        "[threading.Thread(target=burn).start() for _ in range(4)]\n"
    )
    root = subprocess.Popen([sys.executable, "-c", code])
    process = sampler(bundle, root.pid, "--no-gpu")
    try:
        wait_for(lambda: sum(row["ts"] - host(bundle)[0]["ts"] > 3.2e9 for row in host(bundle)) > 0, process)
    finally:
        root.kill()
        root.wait()
    finish(process)
    host_log = read_host_log(bundle / "host.jsonl")
    log = host_log.processes.role_is("main")
    settled = log.t_ns > log.t_ns[0] + 10**9
    cores = log.cpu_percent[settled].mean() / 100
    whole = np.nanmean(host_log.system_cpu_percent) / 100 * host_log.cpu_count[0]
    assert cores < len(allowed) + 0.15
    # several hundred percent as far as the cores allow, unless others use the machine at the same time
    if len(allowed) > 1 and whole - cores < 0.3:
        assert cores > 1.2
    delays = log.run_delay_ms[np.isfinite(log.run_delay_ms)]
    assert len(delays) >= 2
    assert (delays > 100).all()
    # four threads want a core all the time: what they did not get, they waited for
    waiting = np.nanmean(log.run_delay_share)
    assert 2.5 < cores + waiting < 4.5
    assert log.num_threads[settled].min() >= 5
    assert log.affinity_count[-1] == len(allowed)


def test_ctrl_c_is_the_jobs_affair_and_sigterm_ends(bundle: Path, job: subprocess.Popen[bytes]) -> None:
    process = sampler(bundle, job.pid, "--no-gpu")
    wait_for(lambda: len(host(bundle)) >= 1, process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    count = len(host(bundle))
    wait_for(lambda: len(host(bundle)) > count + 2, process)
    process.send_signal(signal.SIGTERM)
    assert finish(process) < 1.5
    assert lines(bundle / "sampler.jsonl")[-1]["reason"] == "stopped"


def test_a_root_that_is_gone_already(bundle: Path) -> None:
    root = subprocess.Popen(["true"])
    root.wait()
    assert finish(sampler(bundle, root.pid, "--no-gpu")) < 5
    assert not (bundle / "host.jsonl").exists()


def test_a_zombie_root_counts_as_ended(bundle: Path) -> None:
    root = subprocess.Popen(["sleep", "60"])
    process = sampler(bundle, root.pid, "--no-gpu")
    wait_for(lambda: len(host(bundle)) >= 1, process)
    root.kill()  # and not waited for
    assert finish(process) < 2.0
    root.wait()


def test_two_samplers_of_one_bundle_take_turns(bundle: Path, job: subprocess.Popen[bytes]) -> None:
    first = sampler(bundle, job.pid, "--no-gpu")
    wait_for(lambda: len(host(bundle)) >= 1, first)
    second = sampler(bundle, job.pid, "--no-gpu")
    try:
        time.sleep(0.8)
        assert len([line for line in lines(bundle / "sampler.jsonl") if line["event"] == "start"]) == 1
        first.kill()  # kill -9 of the one that writes
        first.wait()
        starts = lambda: [line for line in lines(bundle / "sampler.jsonl") if line["event"] == "start"]  # noqa: E731
        wait_for(lambda: len(starts()) == 2, second)
    finally:
        job.kill()
        job.wait()
    finish(second)


def test_bad_command_lines_are_one_line(tmp_path: Path) -> None:
    process = sampler(tmp_path / "none", os.getpid(), "--no-gpu")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert err.startswith("tracelens sampler: the bundle")
    assert err.count("\n") == 1
    process = sampler(tmp_path, os.getpid(), "--interval-ms", "1")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "--interval-ms" in err


def test_lines_survive_a_full_disk() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    file = LineFile(Path("/dev/full"))
    assert file.write({"a": 1}) == 0
    assert file.dropped == 1
    file.close()


def test_a_cut_line_does_not_damage_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(tmp_path / "x.jsonl")
    real = os.write
    monkeypatch.setattr("tracelens.record.lines.os.write", lambda fd, data: real(fd, data[:3]))
    file.write({"a": 1})
    monkeypatch.setattr("tracelens.record.lines.os.write", real)
    file.write({"b": 2})
    file.close()
    assert (tmp_path / "x.jsonl").read_text() == '{"a\n{"b":2}\n'
    assert file.dropped == 1


def simulate(pace: Pace, hours: float, cpu_ms: float, size: int, gpus: int = 8) -> tuple[float, float, int]:
    """CPU share and bytes of a sampler whose sample costs ``cpu_ms`` and ``size``; and its samples."""
    now = cpu = 0.0
    while now < hours * 3600:
        cpu += cpu_ms / 1000
        pace.wrote(size)
        for _ in range(gpus):
            pace.wrote(500)
        now += pace.interval(now, cpu)
    return cpu / now, pace.written, pace.samples


@pytest.mark.parametrize(
    ("cpu_ms", "size"), [(0.3, 500), (0.5, 4000), (3.0, 30_000), (20.0, 2000), (60.0, 500)]
)
@pytest.mark.parametrize("hours", [1.0, 8.0])
def test_pace_keeps_both_promises(cpu_ms: float, size: int, hours: float) -> None:
    share, written, samples = simulate(Pace(0.1, 0.0, 0.0), hours, cpu_ms, size)
    assert share < 0.01
    assert written < 20e6 * hours
    assert samples > 300 * hours  # and it still samples


def test_pace_is_fast_at_first_and_slows_in_a_long_job() -> None:
    pace = Pace(0.1, 0.0, 0.0)
    assert pace.interval(1.0, 0.0) == pytest.approx(0.1)
    assert pace.interval(200.0, 0.0) == pytest.approx(0.5)
    assert pace.interval(4000.0, 0.0) == pytest.approx(1.0)
    slow = Pace(2.0, 0.0, 0.0)
    assert slow.interval(1.0, 0.0) == pytest.approx(2.0)


def test_pace_recovers_after_a_burst() -> None:
    pace = Pace(0.1, 0.0, 0.0)
    pace.interval(5.0, 1.0)
    assert pace.interval(5.1, 1.0) > 0.1
    for second in range(10, 200, 5):
        last = pace.interval(float(second), 1.0)
    assert last == pytest.approx(0.5)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full to play a full disk")
def test_a_full_disk_ends_neither_the_sampler_nor_its_account(
    bundle: Path, job: subprocess.Popen[bytes]
) -> None:
    (bundle / "host.jsonl").symlink_to("/dev/full")
    process = sampler(bundle, job.pid, "--no-gpu")
    wait_for(lambda: (bundle / "sampler.jsonl").exists(), process)
    time.sleep(0.6)
    job.kill()
    finish(process)
    anchor = next(line for line in lines(bundle / "sampler.jsonl") if line["event"] == "anchor")
    assert anchor["dropped"] >= 2


def test_a_bundle_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "host.jsonl").mkdir()
    job = subprocess.Popen(["sleep", "60"])
    try:
        process = sampler(tmp_path, job.pid, "--no-gpu")
        _, err = process.communicate(timeout=20)
    finally:
        job.kill()
        job.wait()
    assert process.returncode == 3
    assert "host.jsonl" in err
    assert err.count("\n") == 1


def test_an_unexpected_proc_costs_lines_and_is_said_once(
    bundle: Path, job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watch:
        """Ends after three turns, without waiting."""

        reason = "stopped"
        turns = 0

        def wait(self, seconds: float) -> bool:
            self.turns += 1
            return self.turns <= 3

    beside = Sampler(bundle, job.pid, 0.1, False, Watch())  # type: ignore[arg-type]

    def broken(*_: object) -> dict[str, object]:
        raise ValueError("another kernel")

    monkeypatch.setattr(beside._host, "sample", broken)
    beside.run()
    errors = [line for line in lines(bundle / "sampler.jsonl") if line["event"] == "error"]
    assert [error["message"] for error in errors] == ["ValueError: another kernel"]
    assert host(bundle) == []
