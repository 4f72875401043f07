"""What a bundle says of its own run: how it ended, what is missing, which settings took effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bundlekit import START, Run, lines
from tracelens.bundle import Bundle
from tracelens.ingest.account import LIMIT, account
from tracelens.ingest.discover import discover

END = {"event": "exit", "code": 0, "signal": None}


def told(
    folder: Path, *events: dict[str, Any], steps: int = 3, windows: list[dict[str, Any]] | None = None
) -> list[str]:
    """The account of a bundle with these events (and a start)."""
    path = Run(steps=steps).write(folder / "run")
    lines(
        path / "events.jsonl",
        [{"ts": START + n, **event} for n, event in enumerate(({"event": "start"}, *events))],
    )
    if windows is not None:
        lines(path / "rank0" / "windows.jsonl", windows)
    return list(account(Bundle.open(path)))


def agent(rank: int, pid: int) -> dict[str, Any]:
    return {"event": "agent", "rank": rank, "pid": pid}


def done(rank: int, pid: int) -> dict[str, Any]:
    return {"event": "done", "rank": rank, "pid": pid, "steps": 3}


def test_a_run_that_ended_well_and_whole_has_nothing_to_say(tmp_path: Path) -> None:
    assert told(tmp_path, agent(0, 1), done(0, 1), END) == []


def test_no_end(tmp_path: Path) -> None:
    (line,) = told(tmp_path, agent(0, 1))
    assert line == (
        "The recording has no end: the job still runs, or it was killed together with its recorder; "
        "the last recorded step, 2, ended 2023-11-14 22:13:20 UTC."
    )


@pytest.mark.parametrize(
    ("code", "number", "says"),
    [
        (1, None, "exit code 1"),
        (137, 9, "SIGKILL ended it, as the kernel does when memory runs out"),
        (137, None, "exit code 137 (SIGKILL, as the kernel does when memory runs out)"),
        (139, 11, "SIGSEGV ended it"),
        (143, None, "exit code 143 (SIGTERM)"),
        (255, None, "exit code 255"),
    ],
)
def test_a_bad_end(code: int, number: int | None, says: str, tmp_path: Path) -> None:
    first, *_ = told(tmp_path, agent(0, 1), done(0, 1), {"event": "exit", "code": code, "signal": number})
    assert first.startswith(f"The job did not end well: {says}; the last recorded step, 2,")


def test_of_several_launchers_the_one_that_failed_speaks(tmp_path: Path) -> None:
    first, *_ = told(tmp_path, {**END, "code": 3}, END)
    assert "exit code 3" in first


def test_an_exception_says_more_than_the_exit_code(tmp_path: Path) -> None:
    raised = {"event": "exception", "type": "ValueError", "message": "bad\n  shape", "rank": 0, "pid": 1}
    assert told(tmp_path, agent(0, 1), raised, done(0, 1), {**END, "code": 1}) == [
        "The training ended with ValueError after 3 recorded steps: bad shape."
    ]


def test_the_same_exception_on_several_ranks_is_said_once(tmp_path: Path) -> None:
    raised = [
        {"event": "exception", "type": "RuntimeError", "message": "NCCL", "rank": rank} for rank in (7, 8)
    ]
    assert told(tmp_path, *raised, {**END, "code": 1}) == [
        "The training ended with RuntimeError: NCCL (ranks 7 and 8)."
    ]


def test_ctrl_c(tmp_path: Path) -> None:
    raised = {"event": "exception", "type": "KeyboardInterrupt", "message": "", "rank": 0}
    assert told(tmp_path, raised, {**END, "code": 130}) == ["The training was interrupted (Ctrl-C)."]


def test_stop_after_is_no_bad_end(tmp_path: Path) -> None:
    assert told(tmp_path, agent(0, 1), {"event": "stop", "step": 30}, done(0, 1), END) == [
        "The job was ended by --stop-after after 30 steps."
    ]


def test_a_rank_without_a_last_word(tmp_path: Path) -> None:
    (line,) = told(tmp_path, agent(0, 1), agent(1, 2), done(1, 2), END)
    assert line.startswith("The process of rank 0 ended suddenly after 3 recorded steps, as after a kill")
    other = told(tmp_path / "b", agent(0, 1), agent(1, 2), END)
    assert other[0].startswith("The processes of ranks 0 and 1 ended suddenly")
    assert other[0].endswith("(recorded steps: 0: 3, 1: 0).")


def test_settings(tmp_path: Path) -> None:
    common = {"event": "set", "rank": 0, "pid": 1, "setting": "num_workers=4", "key": "num_workers"}
    took = {**common, "applied": True, "before": 0, "after": 4, "reason": None}
    refused = {
        **common,
        "applied": False,
        "before": 0,
        "after": 0,
        "reason": "no sharding",
        "loader": 2,
        "dataset": "S",
    }
    pin = {
        **took,
        "setting": "pin_memory=True",
        "loader": 0,
        "dataset": "Slow",
        "before": False,
        "after": True,
    }
    found = told(
        tmp_path, agent(0, 1), done(0, 1), {**took, "loader": 0, "dataset": "Slow", "rank": None},
        {**took, "loader": 1, "dataset": "Val"}, refused,
        pin, {**pin, "effective": False, "reason": "no accelerator", "dataset": None},
        {"event": "warning", "where": "outcome", "message": "--set num_workers=4 was not applied: no sharding"}, END,
    )  # fmt: skip
    assert found == [
        "--set num_workers=4 took effect on loaders 0 (Slow) and 1 (Val): 0 -> 4.",
        "--set num_workers=4 was not applied on loader 2 (S): no sharding.",
        "--set pin_memory=True has no effect on loader 0 (Slow): no accelerator.",
    ]


def test_a_setting_that_stopped_the_job_is_said_once(tmp_path: Path) -> None:
    tried = {
        "event": "set",
        "setting": "num_workers=4",
        "loader": 0,
        "applied": False,
        "reason": "no sharding",
        "pid": 1,
    }
    message = "--set num_workers=4 cannot be applied to loader 0 (S): no sharding"
    assert told(
        tmp_path, agent(0, 1), tried, {"event": "rejected", "message": message, "pid": 1}, {**END, "code": 2}
    ) == [f"The job was stopped before its first batch: {message}."]


def test_warnings_that_differ_in_numbers_alone_are_said_once(tmp_path: Path) -> None:
    warnings = [
        {"event": "warning", "message": f"window {n} holds no GPU kernels: CUPTI", "rank": n % 2}
        for n in range(3)
    ]
    assert told(tmp_path, *warnings, warnings[0], END) == [
        "Window 0 holds no GPU kernels: CUPTI (and 2 more like it)."
    ]


def test_windows_that_are_not_whole(tmp_path: Path) -> None:
    cut = {"window": 0, "kind": "lean", "first_step": 12, "complete": False, "file": "w", "reason": "SIGTERM"}
    inside = {"window": 1, "kind": "shapes", "first_step": 32, "complete": False, "file": None}
    whole = {"window": 2, "kind": "lean", "first_step": 250, "complete": True, "file": "x"}
    assert told(tmp_path, END, windows=[cut, inside, whole]) == [
        "Profiler window 0 (lean, from step 12) was cut short (SIGTERM); its trace holds what came before.",
        "Profiler window 1 (shapes, from step 32) has no trace: the process was killed inside it.",
    ]
    assert "is not closed" in told(tmp_path / "b", windows=[inside])[1]


def test_the_samplers_own_troubles(tmp_path: Path) -> None:
    path = Run(steps=3).write(tmp_path / "run")
    lines(path / "sampler.jsonl", [
        {"event": "start"}, {"event": "gpu_lost", "uuid": "GPU-1", "reason": "GPU is lost"},
        {"event": "error", "where": "host", "message": "OSError: no"},
    ])  # fmt: skip
    assert account(Bundle.open(path)) == (
        "GPU GPU-1 was lost while the job ran, its samples end there: GPU is lost.",
        "The sampler of the host timeline failed, which may have gaps: OSError: no.",
    )


WINDOW = {
    "window": 0,
    "first_step": 1,
    "last_step": 2,
    "kind": "lean",
    "file": "window-0.pt.trace.json.gz",
    "complete": True,
}


def test_a_lost_step_log_is_said(tmp_path: Path) -> None:
    path = Run(steps=3).write(tmp_path / "run")
    lines(path / "rank0" / "windows.jsonl", [WINDOW])
    assert account(Bundle.open(path)) == ()
    (path / "rank0" / "steps.jsonl").write_text("junk\n")
    lost, torn = account(Bundle.open(path))
    assert lost.startswith("The step log of rank 0 is missing or unreadable")
    assert torn == "Lines that are not readable were left out: rank0/steps.jsonl (1)."
    (path / "rank0" / "steps.jsonl").unlink()
    assert account(Bundle.open(path)) == (lost,)


def test_a_step_log_that_ends_before_what_was_profiled_is_said(tmp_path: Path) -> None:
    path = Run(steps=3).write(tmp_path / "run")
    lines(path / "rank0" / "windows.jsonl", [{**WINDOW, "last_step": 7}])
    assert "ends at step 2, though step 7 was profiled" in account(Bundle.open(path))[0]


def test_a_last_line_cut_by_a_kill_is_no_damage(tmp_path: Path) -> None:
    path = Run(steps=3).write(tmp_path / "run")
    log = path / "rank0" / "steps.jsonl"
    log.write_text(log.read_text() + '{"step": 3, "t0"')
    assert account(Bundle.open(path)) == ()


def test_an_empty_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text(json.dumps({"schema": "tracelens.bundle/1"}))
    first, second = account(Bundle.open(tmp_path))
    assert first == "No training process left anything in this bundle."
    assert second.endswith("recorder, and no step was recorded.")


def test_lines_are_few(tmp_path: Path) -> None:
    found = told(tmp_path, *({"event": "warning", "message": "x" * n} for n in range(1, 20)), END)
    assert len(found) == LIMIT
    assert found[-1] == "12 more such notes can be read in the bundle's logs"


def test_the_end_and_the_settings_are_always_said(tmp_path: Path) -> None:
    took = {"event": "set", "pid": 1, "applied": True, "before": 0, "after": 1}
    settings = [{**took, "setting": f"{n}.num_workers=1", "loader": n} for n in range(LIMIT + 2)]
    warned = {"event": "warning", "message": "less"}
    found = told(tmp_path, *settings, warned, {**END, "code": 1})
    assert len(found) == 1 + LIMIT + 2 + 1
    assert found[-1] == "1 more such note can be read in the bundle's logs"
    assert len(told(tmp_path / "b", *settings, END)) == LIMIT + 2


def test_the_run_carries_the_account(tmp_path: Path) -> None:
    path = Run(steps=3, finished=False).write(tmp_path / "run")
    assert discover([path]).notes == account(Bundle.open(path))
    assert len(discover([path]).notes) == 1
