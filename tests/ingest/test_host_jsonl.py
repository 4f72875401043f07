# ruff: noqa: E501  (log lines are quoted as they come)
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tracelens.errors import InputError
from tracelens.ingest import read_host_log

SIMULATED = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces" / "simulated"
T0 = 1_796_083_200_000_000_000


def write(folder: Path, *lines: object, tail: str = "") -> Path:
    path = folder / "host.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n" + tail)
    return path


def test_plain_format(tmp_path: Path) -> None:
    process = {
        "pid": 5,
        "name": "main",
        "cpu_percent": 250.0,
        "rss": 10,
        "num_threads": 9,
        "cpu_affinity": [0, 1],
        "read_bytes": 7,
    }
    log = read_host_log(
        write(
            tmp_path,
            {
                "ts": T0,
                "system_cpu_percent": 30.0,
                "cpu_count": 8,
                "iowait_percent": 1.5,
                "processes": [process],
            },
            {
                "ts": T0 + 10**9,
                "system_cpu_percent": 40.0,
                "cpu_count": 8,
                "processes": [process, {"pid": 6, "name": "worker0"}],
            },
            tail='{"ts": 17960',
        )
    )
    assert log.t_ns.tolist() == [T0, T0 + 10**9]
    assert log.system_cpu_percent.tolist() == [30.0, 40.0]
    assert np.isnan(log.iowait_percent[1])
    assert log.processes.pid.tolist() == [5, 5, 6]
    assert log.processes.role.tolist() == ["main", "main", "worker"]
    assert log.processes.affinity_count[:2].tolist() == [2, 2]
    assert np.isnan(log.processes.cpu_percent[2])
    assert log.processes.role_is("worker").row.tolist() == [1]
    assert not log.notes


def test_recorder_fields_are_carried_on_and_never_zero(tmp_path: Path) -> None:
    log = read_host_log(
        write(
            tmp_path,
            {
                "ts": T0, "node": "n1", "system_cpu_percent": None, "percpu": [1.0, 2.0], "mem_total": 100, "psi": {"cpu": 3.0},
                "cgroup": {"quota_cores": 1.5, "memory_max": 50}, "disks": {"sda": {"read_bytes": 5, "busy_ms": 1, "rotational": True},
                "nfs:0": {"read_bytes": 7, "kind": "network"}},
                "storage": [{"fstype": "ext4", "network": False}, {"fstype": "nfs4", "network": True}],
                "processes": [{"pid": 1, "name": "python", "role": "main", "rank": 0, "cpu_affinity": [0], "cpu_percent": None}],
            },
            {"ts": T0 + 10**9, "node": "n1", "processes": [{"pid": 1, "cpu_percent": 99.0}]},
            {"ts": T0 + 2 * 10**9, "node": "n1", "processes": [{"pid": 1, "cpu_percent": 99.0, "run_delay_ms": 500.0}]},
        )
    )  # fmt: skip
    assert log.mem_limit[0] == 50
    assert np.isnan(log.mem_limit[1])
    assert log.quota_cores[0] == 1.5
    assert log.percpu.shape == (3, 2)
    assert np.isnan(log.percpu[1]).all()
    assert log.disks == ("sda", "nfs:0")
    assert log.rotational is True
    assert log.network_storage is True
    assert log.disk_read_bytes[0] == 12
    assert log.psi_cpu[0] == 3.0
    assert np.isnan(log.psi_io).all()
    assert log.processes.rank.tolist() == [0, 0, 0]
    assert log.processes.affinity_count.tolist() == [1, 1, 1]
    assert log.processes.role.tolist() == ["main"] * 3
    # 500 ms of waiting since the process was first seen, two seconds before
    assert log.processes.run_delay_share[2] == pytest.approx(0.25)


def test_without_roles_the_first_python_is_main_and_that_is_said(tmp_path: Path) -> None:
    log = read_host_log(
        write(
            tmp_path, {"ts": T0, "processes": [{"pid": 9, "name": "python3"}, {"pid": 4, "name": "python3"}]}
        )
    )
    assert log.processes.role.tolist() == ["worker", "main"]
    assert any("pid 4" in note for note in log.notes)


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_time_units_are_told_apart(tmp_path: Path, scale: int) -> None:
    log = read_host_log(write(tmp_path, {"ts": T0 // 10**9 * scale, "system_cpu_percent": 1}))
    assert log.t_ns.tolist() == [T0 // 10**9 * 10**9]


def test_samples_are_sorted_by_time(tmp_path: Path) -> None:
    log = read_host_log(
        write(
            tmp_path,
            {"ts": T0 + 5, "processes": [{"pid": 1, "rss": 2}]},
            {"ts": T0, "processes": [{"pid": 1, "rss": 1}]},
        )
    )
    assert log.processes.rss.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02", "binary"),
        (b"timestamp, index\n", "no host log"),
        (b'{"ts": 1}\n', "no host log"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "host.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_host_log(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not SIMULATED.is_dir(), reason="the handed traces are not here")
def test_handed_logs() -> None:
    files = sorted(SIMULATED.glob("**/host.jsonl"))
    assert files
    for file in files:
        log = read_host_log(file)
        assert not log.notes
        assert np.isfinite(log.system_cpu_percent).all()
        assert set(log.processes.role.tolist()) <= {"main", "worker"}
    oversubscribed = read_host_log(SIMULATED / "oversub_main" / "host.jsonl").processes.role_is("main")
    assert oversubscribed.cpu_percent.mean() > 500


def test_numbers_that_no_process_has_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    path.write_text(
        '{"ts": 1, "processes": [{"pid": 7, "name": "main", "cpu_percent": -50, "rss": -1, "rank": 1'
        + "0" * 30 + '}, {"pid": 1' + "0" * 30 + ', "name": "worker0"}]}\n'
    )  # fmt: skip
    processes = read_host_log(path).processes
    assert processes.pid.tolist() == [7]
    assert processes.rank.tolist() == [-1]
    assert np.isnan([processes.cpu_percent[0], processes.rss[0]]).all()
