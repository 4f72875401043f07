"""What can be recorded on this machine and what cannot, with the fix for each: ``tracelens doctor``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "info", "warn", "fail"]
_ORDER: tuple[Status, ...] = ("fail", "warn", "info", "ok")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``fix`` says in one line what to do where there is something to do."""

    name: str
    status: Status
    message: str
    fix: str | None = None


def diagnose() -> list[Check]:
    """Every check, in the order of a recording: system, interpreter, GPU, host. Never raises.

    The interpreter is the ``python`` that this shell would run, which need not be the one that runs tracelens.
    """
    system = system_checks(platform.system(), platform.release())
    if any(check.status == "fail" for check in system):
        return system
    # the others read /proc and are only imported where there is one
    from tracelens.record.doctor_gpu import gpu_checks
    from tracelens.record.doctor_host import host_checks
    from tracelens.record.doctor_python import python_checks

    checks = [*system]
    groups: tuple[tuple[str, Callable[[], Sequence[Check]]], ...] = (
        ("python", python_checks),
        ("gpu", gpu_checks),
        ("host", host_checks),
    )
    for name, group in groups:
        try:
            checks += group()
        except OSError as error:
            # a machine that hides even the basics must not take the other answers with it
            checks.append(Check(name, "warn", f"could not be looked at: {error}"))
    return checks


def system_checks(system: str, release: str) -> list[Check]:
    """The operating system: recording needs Linux, reports do not. Arguments as ``platform`` gives them."""
    if system == "Windows":
        return [
            Check(
                "system",
                "fail",
                "Windows: recording is not possible; reports of trace files and logs are",
                "record on Linux or inside WSL 2, or hand torch.profiler traces to tracelens report",
            )
        ]
    if system == "Darwin":
        return [
            Check(
                "system",
                "fail",
                "macOS: recording is not possible; reports of trace files and logs are",
                "record on Linux, or hand torch.profiler traces to tracelens report",
            )
        ]
    if system != "Linux":
        return [
            Check("system", "fail", f"{system}: recording is not possible; reports are", "record on Linux"),
        ]
    if "microsoft" in release.lower():
        return [
            Check(
                "system",
                "warn",
                "WSL: steps, loading and traces are recorded; NVML often lacks utilisation, clocks and processes, "
                "and files under /mnt are slow",
                "update the Windows GPU driver, keep the data set inside WSL's own file system",
            )
        ]
    machine = f"Linux {release}, Python {sys.version.split()[0]} for tracelens itself"
    return [Check("system", "ok", machine)]


def doctor_text(checks: Sequence[Check]) -> str:
    """The checks as text for a terminal: a mark, the name, the message, and the fix below it."""
    marks = {"ok": "ok  ", "info": "info", "warn": "warn", "fail": "FAIL"}
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{marks[check.status]}  {check.name:<{width}}  {check.message}")
        if check.fix and check.status != "ok":
            lines.append(f"      {'':<{width}}  fix: {check.fix}")
    return "\n".join([*lines, "", _summary(checks)])


def _summary(checks: Sequence[Check]) -> str:
    counts = {status: sum(check.status == status for check in checks) for status in _ORDER}
    if counts["fail"]:
        noun = "problem" if counts["fail"] == 1 else "problems"
        return f"{counts['fail']} {noun} must be solved before a recording is of use"
    if counts["warn"]:
        noun = "point" if counts["warn"] == 1 else "points"
        return f"recording works; {counts['warn']} {noun} will limit what it can tell"
    if counts["info"]:
        return "recording works here; the lines marked info say what it will not show"
    return "everything that tracelens records can be recorded here"
