"""Folders on disk: side files, bundles, fixtures, the command line."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulator import simulate, write_bundle, write_trace
from benchmarks.simulator.__main__ import main
from benchmarks.simulator.fixtures import ROOT, RUNS, TRACES, write_fixtures
from benchmarks.simulator.params import Params

JOB = Params(template="mlp", sizes=(("width", 512), ("depth", 3)), device="H100", dtype="bf16", batch=64, warm=4, horizon=20,
             traced=4, workers=2, sample_cpu_ms=0.05, sample_wait_ms=0.0, machine_cores=8, persistent=False,
             epoch_batches=8)  # fmt: skip


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_trace_folder_has_its_side_files_on_one_clock(tmp_path: Path) -> None:
    run = simulate(JOB, settings=False)
    out = write_trace(run, tmp_path / "a")
    assert {f.name for f in out.iterdir()} == {
        "rank0.pt.trace.json.gz",
        "loader.json",
        "gpu.csv",
        "host.jsonl",
        "truth.json",
    }
    trace = json.loads(gzip.decompress((out / "rank0.pt.trace.json.gz").read_bytes()))
    first = min(e["ts"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation")
    ns = trace["baseTimeNanoseconds"] + 1000 * first
    host = _lines(out / "host.jsonl")
    assert host[0]["ts"] < ns < host[-1]["ts"]
    assert [p["name"] for p in host[0]["processes"]] == ["main", "worker0", "worker1"]
    assert len((out / "gpu.csv").read_text().splitlines()) == len(host) + 1
    assert json.loads((out / "loader.json").read_text())["num_workers"] == 2


def test_ranks_have_folders_of_their_own(tmp_path: Path) -> None:
    write_trace(simulate(JOB.but(ranks=2), settings=False), tmp_path)
    for r in (0, 1):
        assert (tmp_path / f"rank{r}" / f"rank{r}.pt.trace.json.gz").exists()
        assert (tmp_path / f"rank{r}" / "gpu.csv").exists()


def test_a_bundle_has_every_step_and_batch(tmp_path: Path) -> None:
    run = simulate(JOB, settings=False)
    out = write_bundle(run, tmp_path / "b")
    assert json.loads((out / "bundle.json").read_text())["schema"] == "tracelens.bundle/1"
    rank = out / "rank0"
    steps = _lines(rank / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(24))
    assert all(a["t1"] == b["t0"] for a, b in itertools.pairwise(steps))
    windows = _lines(rank / "windows.jsonl")
    assert [w["kind"] for w in windows] == ["lean", "shapes"]
    for w in windows:
        assert (rank / w["file"]).stat().st_size == w["bytes"]
        inside = [s for s in steps if s["window"] == w["window"]]
        assert [s["step"] for s in inside] == list(range(w["first_step"], w["last_step"] + 1))
    loader = _lines(rank / "loader.jsonl")
    assert loader[0]["event"] == "loader"
    assert sum(row["event"] == "batch" for row in loader) == 24
    assert sum(row["event"] == "iter" for row in loader) == 3
    fetched = [row for f in rank.glob("worker-*.jsonl") for row in _lines(f) if row["event"] == "fetch"]
    assert sorted((r["epoch"], r["batch"]) for r in fetched) == [(k // 8, k % 8) for k in range(24)]
    assert all(r["t1"] > r["t0"] for r in fetched)
    starts = [row for f in rank.glob("worker-*.jsonl") for row in _lines(f) if row["event"] == "worker"]
    assert len(starts) == 2 * 3, "the workers are started anew each epoch"
    assert len(list(rank.glob("worker-*.jsonl"))) == 2 * 3
    assert [row["batches"] for row in loader if row["event"] == "iter_end"] == [8, 8]
    gpu = _lines(out / "gpu.jsonl")
    assert gpu[0]["gpm"] is not None
    assert gpu[0]["memory_used"] < gpu[0]["memory_total"]


def test_slow_samples_stand_out_in_the_worker_logs(tmp_path: Path) -> None:
    job = JOB.but(persistent=True, epoch_batches=100000, sample_cpu_ms=0.2, outlier_p=0.01, outlier_x=300.0)
    out = write_bundle(simulate(job, settings=False), tmp_path)
    rows = [
        row for f in (out / "rank0").glob("worker-*.jsonl") for row in _lines(f) if row["event"] == "fetch"
    ]
    slowest = [row["slowest_sample_ms"] for row in rows]
    assert max(slowest) > 50 * min(slowest)


def test_the_timelines_show_what_limits(tmp_path: Path) -> None:
    quiet = simulate(JOB.but(sample_cpu_ms=2.0, persistent=True, epoch_batches=100000), settings=False)
    busy = simulate(
        JOB.but(
            horizon=60,
            batch=64,
            template="decoder",
            sizes=(),
            persistent=True,
            epoch_batches=100000,
            sample_cpu_ms=0.02,
        ),
        settings=False,
    )
    means = []
    for i, run in enumerate((quiet, busy)):
        rows = _lines(write_bundle(run, tmp_path / str(i)) / "gpu.jsonl")
        rows = rows[len(rows) // 2 :]
        means.append(sum(r["utilization_gpu"] for r in rows) / len(rows))
    assert means[0] < 0.2
    assert means[1] > 0.9
    host = _lines(tmp_path / "0" / "host.jsonl")
    worker = [p["cpu_percent"] for row in host for p in row["processes"] if p["role"] == "worker"]
    steady = worker[len(worker) // 2 :]
    assert sum(steady) / len(steady) > 80


def test_generate_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "x")
    assert (
        main(
            [
                "generate",
                "--family",
                "load.too_few_workers",
                "--seed",
                "2",
                "--split",
                "train",
                "--out",
                where,
            ]
        )
        == 0
    )
    truth = json.loads((tmp_path / "x" / "truth.json").read_text())
    assert truth["cause"] == "load.too_few_workers"
    assert truth["bottleneck"] == "cpu"
    assert "load.too_few_workers" in capsys.readouterr().out
    assert main(["generate", "--family", "nonsense", "--out", where]) == 2
    assert "unknown family" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "bottleneck"),
    [
        ("traces/healthy", "gpu"), ("traces/too_few_workers", "cpu"), ("traces/main_process_old", "cpu"),
        ("traces/launch_bound", "cpu"), ("traces/pageable", "h2d_copy"), ("traces/straggler", "communication"),
        ("traces/gpu_lag", "memory_bandwidth"), ("runs/too_few_workers", "cpu"), ("runs/worker_startup", "cpu"),
        ("runs/periodic_stall", "cpu"), ("runs/cpu_training", "cpu"),
    ],
)  # fmt: skip
def test_a_fixture_is_what_its_name_says(folder: str, bottleneck: str) -> None:
    truth = json.loads((ROOT / folder / "truth.json").read_text())
    assert truth["bottleneck"] == bottleneck
    assert truth["acceptable"][0] == bottleneck
    name = folder.split("/")[1].removesuffix("_old")
    if bottleneck not in ("gpu", "memory_bandwidth") and name != "cpu_training":
        assert truth["cause"].split(".")[1] == name


_NUMBER = re.compile(rb"-?\d+\.\d+(?:e[-+]?\d+)?")


def _content(path: Path) -> tuple[list[bytes], np.ndarray]:
    """The text between the decimal numbers, and these."""
    data = path.read_bytes()
    # builds of zlib may pack the same text differently
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return _NUMBER.split(text), np.array([float(one) for one in _NUMBER.findall(text)])


def test_the_fixtures_are_what_the_generator_writes(tmp_path: Path) -> None:
    write_fixtures(tmp_path)
    made = sorted(f.relative_to(tmp_path) for f in tmp_path.rglob("*") if f.is_file())
    folders = [ROOT / "traces" / n for n in TRACES] + [ROOT / "runs" / n for n in RUNS]
    kept = sorted(f.relative_to(ROOT) for folder in folders for f in folder.rglob("*") if f.is_file())
    assert made == kept
    for f in made:
        if f.name == "windows.jsonl":
            continue  # holds the packed size
        (text, numbers), (kept_text, kept_numbers) = _content(tmp_path / f), _content(ROOT / f)
        assert text == kept_text, f
        # logarithms differ in their last bit between processors, and what is written is rounded
        np.testing.assert_allclose(numbers, kept_numbers, rtol=1e-9, atol=1.1e-3, err_msg=str(f))
    assert sum((ROOT / f).stat().st_size for f in kept) < 1_200_000
