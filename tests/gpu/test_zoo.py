"""The GPU zoo: its arithmetic anywhere, its mechanics on a CPU, its verdicts on a CUDA machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import gpu_zoo
from benchmarks.gpu_zoo import CASES, Failed, Row, flags_of, keep, missing, promised, run_case, speed, table

NO_CUDA = missing("cuda")
CUDA = pytest.mark.skipif(NO_CUDA is not None, reason=NO_CUDA or "")


def _options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{"device": "cuda", "tiny": False, "steps": 90, "timeout": 120.0, **changes})


def _steps(folder: Path, rows: list[tuple[float, int | None]]) -> Path:
    """A bundle whose steps take so many ms, each in the window given."""
    rank = folder / "rank0"
    rank.mkdir(parents=True)
    at, lines = 0, []
    for i, (ms, window) in enumerate(rows):
        lines.append(
            json.dumps({"step": i, "t0": at, "t1": at + int(ms * 1e6), "samples": 10, "window": window})
        )
        at += int(ms * 1e6)
    (rank / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_speed_leaves_out_windows_the_step_after_them_and_warm_up(tmp_path: Path) -> None:
    slow = [(500.0, None)] * 8
    bundle = _steps(
        tmp_path, [*slow, *[(10.0, None)] * 12, *[(40.0, 0)] * 4, (90.0, None), *[(11.0, None)] * 12]
    )
    rate, median, slowdown = speed(bundle)
    assert rate == pytest.approx(24 * 10 / (12 * 10.0 + 12 * 11.0) * 1e3, rel=1e-6)
    assert median == pytest.approx(10.5)
    assert slowdown == pytest.approx(0.1)


def test_a_run_of_windows_only_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="too few"):
        speed(_steps(tmp_path, [(10.0, 0)] * 6))


def test_a_fix_overrides_the_fault() -> None:
    case = next(c for c in CASES if c.name == "fp32")
    flags = flags_of(case, _options(), True)
    assert flags.index("bf16") > flags.index("fp32")
    assert "bf16" not in flags_of(case, _options(), False)


def test_the_promise_is_the_recommendation_for_the_change() -> None:
    case = next(c for c in CASES if c.name == "workers")
    pin = {
        "parameter": "pin_memory",
        "suggested": True,
        "predicted_speedup": 1.1,
        "interval": [1.0, 1.2],
        "rule": "x",
    }
    advice = [
        pin,
        pin | {"parameter": "num_workers", "suggested": 6, "predicted_speedup": 2.5, "interval": [2.2, 2.7]},
    ]
    assert promised({"recommendations": advice}, case) == (6, 2.5, (2.2, 2.7))
    assert promised({"recommendations": []}, case) == (None, None, None)


def test_the_table_counts_and_compares() -> None:
    rows = [
        Row(
            "a",
            "cpu",
            "cpu",
            "load.too_few_workers",
            0.9,
            True,
            "num_workers=6",
            2.0,
            (1.8, 2.2),
            2.5,
            20.0,
            8.0,
        ),
        Row("b", "gpu", "cpu", "host.sync", 0.4, False),
        Row("c", "gpu", note="needs a CUDA device"),
    ]
    text = table(rows, "some GPU")
    assert "1 of 2 diagnosed as expected" in text
    assert "median error 20.0% over 1 changes" in text
    assert "| b | gpu | cpu | host.sync | 0.40 | NO |" in text


def test_large_bundles_and_reports_are_not_kept(tmp_path: Path) -> None:
    small, large = tmp_path / "in" / "small", tmp_path / "in" / "large"
    for folder, size in ((small, 10), (large, gpu_zoo.KEEP_BYTES + 1)):
        folder.mkdir(parents=True)
        (folder / "steps.jsonl").write_bytes(b"x" * size)
        (folder / "report.html").write_text("x")
    keep(tmp_path / "in", tmp_path / "out")
    assert [f.name for f in (tmp_path / "out").rglob("*") if f.is_file()] == ["steps.jsonl"]


@pytest.mark.skipif(NO_CUDA is None, reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_zoo.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("skipped: torch")


@pytest.mark.zoo
def test_the_mechanics_work_on_a_cpu(tmp_path: Path) -> None:
    assert (
        gpu_zoo.main(
            ["--device", "cpu", "--tiny", "--steps", "36", "--cases", "main_process", "--out", str(tmp_path)]
        )
        == 0
    )
    row = json.loads((tmp_path / "table.json").read_text())["rows"][0]
    assert row["verdict"] == "cpu"
    assert row["measured"] > 0.0
    assert row["change"].startswith("num_workers=")
    assert (tmp_path / "bundles" / "main_process-before" / "bundle.json").exists()


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_fault_is_found_and_its_fix_is_promised_right(case: gpu_zoo.Case, tmp_path: Path) -> None:
    row = run_case(case, _options(), tmp_path)
    assert not row.note
    assert row.right, (row.verdict, row.cause)
    if row.predicted and row.measured:
        assert row.predicted <= 1.25 * row.measured, "a promise may fall short, not run ahead"
    if row.overhead is not None and row.before_ms is not None:
        assert row.overhead <= max(0.01, 0.1 / row.before_ms) + 0.02, (
            "two runs differ by a percent or two themselves"
        )
