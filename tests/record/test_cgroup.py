from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.record.cgroup import locate


def system(folder: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    """A fake /proc beside fake cgroup mounts; ``@`` in mountinfo stands for the folder."""
    proc = folder / "proc"
    for name, text in {"42/cgroup": cgroup, "self/mountinfo": mountinfo.replace("@", str(folder))}.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return proc


V2 = "30 1 0:26 / @/cg rw - cgroup2 cgroup2 rw\n"


def test_v2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    proc = system(
        tmp_path,
        "0::/slurm/job1/step0\n",
        V2,
        {
            "cg/slurm/job1/step0/cpu.max": "max 100000\n",
            "cg/slurm/job1/step0/cpu.stat": "usage_usec 5\nnr_periods 1\nnr_throttled 0\nthrottled_usec 0\n",
            "cg/slurm/job1/cpu.max": "250000 100000\n",
            "cg/slurm/job1/cpu.stat": "usage_usec 5\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500\n",
            "cg/slurm/cpu.max": "800000 100000\n",
            "cg/slurm/cpu.stat": "nr_periods 99\n",
            "cg/slurm/job1/step0/memory.current": "1000\n",
            "cg/slurm/job1/step0/memory.max": "max\n",
            "cg/slurm/job1/memory.current": "5000\n",
            "cg/slurm/job1/memory.max": "64000\n",
        },
    )
    group = locate(42, proc)
    sample = group.sample()
    assert group.version == 2
    assert sample.quota_cores == 2.5
    assert (sample.throttled_ms, sample.nr_throttled, sample.nr_periods) == (2.5, 4, 10)
    assert (sample.memory_current, sample.memory_max) == (1000, 64000)


def test_v1_controllers_in_mounts_of_their_own(tmp_path: Path) -> None:
    proc = system(
        tmp_path,
        "8:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n",
        # the container's mounts start at its own group
        "33 1 0:29 /docker/abc @/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 1 0:30 /docker/abc @/mem\\040ory rw - cgroup cgroup rw,memory\n"
        "35 1 0:31 / @/unified rw - cgroup2 cgroup2 rw\n",
        {
            "cpu/cpu.cfs_quota_us": "150000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "cpu/cpu.stat": "nr_periods 7\nnr_throttled 3\nthrottled_time 9000000\n",
            "mem ory/memory.limit_in_bytes": "9223372036854771712\n",
            "mem ory/memory.usage_in_bytes": "77\n",
            "unified/cgroup.procs": "",
        },
    )
    group = locate(42, proc)
    sample = group.sample()
    assert group.version == 1
    assert sample.quota_cores == 1.5
    assert (sample.throttled_ms, sample.nr_throttled, sample.nr_periods) == (9.0, 3, 7)
    assert sample.memory_current == 77
    assert sample.memory_max is None


def test_v1_without_a_quota_is_unlimited_not_zero(tmp_path: Path) -> None:
    proc = system(
        tmp_path,
        "3:cpu:/\n",
        "33 1 0:29 / @/cpu rw - cgroup cgroup rw,cpu\n",
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
    )
    sample = locate(42, proc).sample()
    assert sample.quota_cores is None
    assert sample.throttled_ms is None


@pytest.mark.parametrize("path", ["/../../other", "/gone/away"])
def test_a_group_outside_what_we_may_see_falls_back_to_the_top(tmp_path: Path, path: str) -> None:
    limits = {"cg/cpu.max": "100000 100000\n", "cg/cpu.stat": "nr_periods 1\n"}
    proc = system(tmp_path, f"0::{path}\n", V2, limits)
    assert locate(42, proc).sample().quota_cores == 1.0


def test_nothing_there(tmp_path: Path) -> None:
    group = locate(42, tmp_path)
    assert group.version is None
    assert group.sample().quota_cores is None


def test_this_process_has_a_readable_group() -> None:
    sample = locate("self").sample()
    assert sample.quota_cores is None or sample.quota_cores > 0
    assert sample.memory_max is None or sample.memory_max > 0
