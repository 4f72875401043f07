"""The verbs ``compare`` and ``check`` as scripts call them: exit codes, files, nothing else on stdout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "fixtures" / "runs" / "too_few_workers"


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tracelens", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_compare_writes_what_was_asked_for_and_keeps_stdout_clean(tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    done = call("compare", str(RUN), str(RUN), "--markdown", "-", "-o", str(page))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("### No clear change: 1.00x")
    assert page.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    "arguments", [("compare", "nowhere", str(RUN)), ("check", str(RUN), "--budget", "nowhere")]
)
def test_a_missing_input_is_one_line_and_exit_3(arguments: tuple[str, ...]) -> None:
    done = call(*arguments)
    assert done.returncode == 3
    assert done.stderr.startswith("tracelens: ")
    assert len(done.stderr.splitlines()) == 1


def test_check_fails_a_limit_with_exit_1_and_says_so_in_junit(tmp_path: Path) -> None:
    budget, junit = tmp_path / "budget.toml", tmp_path / "junit.xml"
    budget.write_text('[[limit]]\nvalue = "phases.load"\nmax = 0.0001\n[baseline]\nmax_slowdown = 0.05\n')
    done = call("check", str(RUN), "--budget", str(budget), "--baseline", str(RUN), "--junit", str(junit))
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["FAIL", "pass"]
    assert 'failures="1"' in junit.read_text("utf-8")


def test_tune_without_a_command_is_bad_usage_and_one_that_is_not_there_exit_4() -> None:
    assert call("tune").returncode == 2
    done = call("tune", "--", "no-such-program")
    assert done.returncode == 4
    assert "command not found" in done.stderr
