"""The interpreter that the user's ``python`` names: is there a torch in it that can be recorded."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracelens.record.doctor import Check

OLDEST_PYTHON = (3, 9)
OLDEST_TORCH = (2, 1)
_TIMEOUT_S = 30.0

# Runs in the user's interpreter, on Python 3.6 and later. torch is looked at, not imported: that takes
# seconds, and may touch the GPU.
_PROBE = r"""
import importlib.util, json, os, sys
out = {"version": list(sys.version_info[:3]), "executable": sys.executable}
try:
    sys.path[:] = [entry for entry in sys.path if entry]
    spec = importlib.util.find_spec("torch")
    out["torch"] = None
    if spec is not None and spec.origin:
        out["torch_path"] = os.path.dirname(spec.origin)
        values = {}
        with open(os.path.join(out["torch_path"], "version.py")) as file:
            exec(file.read(), values)
        out["torch"] = str(values.get("__version__"))
        out["cuda"] = values.get("cuda")
        out["hip"] = values.get("hip")
    site = importlib.util.find_spec("sitecustomize")
    out["sitecustomize"] = site.origin if site is not None else None
except Exception as error:
    out["error"] = "%s: %s" % (type(error).__name__, error)
print("\n" + json.dumps(out))
"""


def python_checks(path: str | None = None, environ: Mapping[str, str] | None = None) -> list[Check]:
    """Interpreter and torch, for the ``python`` on ``path`` (default: PATH)."""
    environ = os.environ if environ is None else environ
    name = next((name for name in ("python", "python3") if shutil.which(name, path=path)), None)
    if name is None:
        return [
            Check(
                "python",
                "warn",
                "no python on the PATH: the interpreter of your job could not be looked at",
                "activate the environment that the job runs in, then run tracelens doctor again",
            )
        ]
    executable = shutil.which(name, path=path) or name
    try:
        done = subprocess.run(
            [executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=dict(environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [
            Check(
                "python",
                "warn",
                f"{executable} did not answer within {_TIMEOUT_S:.0f} s",
                "see what its start-up waits for",
            )
        ]
    except OSError as error:
        return [
            Check("python", "fail", f"{executable} cannot be run: {error.strerror}", "repair the environment")
        ]
    found = _answer(done.stdout)
    if found is None:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [Check("python", "fail", f"{executable} does not run: {reason}", "repair the environment")]
    return describe(found)


def _answer(text: str) -> dict[str, Any] | None:
    lines = text.strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def describe(found: Mapping[str, Any]) -> list[Check]:
    """The checks for what the probe found in an interpreter."""
    version = tuple(found["version"])
    text = ".".join(str(part) for part in version)
    where = found["executable"]
    checks: list[Check] = []
    if version < OLDEST_PYTHON:
        oldest = ".".join(str(part) for part in OLDEST_PYTHON)
        message = f"{where} is Python {text}; jobs are recorded from Python {oldest} on"
        return [Check("python", "fail", message, "run the job with a newer Python")]
    if (3, 12, 0) <= version < (3, 12, 5):
        checks.append(
            Check(
                "python",
                "warn",
                f"{where} is Python {text}, which loses call events: the window with stacks may lack file and line names",
                "update to Python 3.12.5 or later, or record with --no-stacks",
            )
        )
    else:
        checks.append(Check("python", "ok", f"this shell's python is Python {text}, {where}"))
    checks.append(_torch(found))
    if found.get("sitecustomize"):
        message = f"{found['sitecustomize']} exists; the recorder runs it as Python would"
        checks.append(Check("sitecustomize", "info", message))
    return checks


def _other_interpreter(where: str) -> str:
    """The fix for an interpreter without torch: the job's own, or ours where that has one."""
    activate = "activate the job's environment first; tracelens itself may stay in its own"
    if sys.executable == where or importlib.util.find_spec("torch") is None:
        return activate
    return f"{activate}. Or: tracelens record -- {sys.executable} train.py, which has torch"


def _torch(found: Mapping[str, Any]) -> Check:
    where = found["executable"]
    if found.get("error"):
        return Check(
            "torch",
            "warn",
            f"torch of {where} cannot be looked at: {found['error']}",
            "reinstall torch there",
        )
    torch = found.get("torch")
    if not torch:
        return Check(
            "torch",
            "fail",
            f"{where}, this shell's python, has no torch: a job run with it cannot be recorded",
            _other_interpreter(where),
        )
    number = re.match(r"(\d+)\.(\d+)", torch)
    version = (int(number[1]), int(number[2])) if number else None
    if version is not None and version < OLDEST_TORCH:
        oldest = ".".join(str(part) for part in OLDEST_TORCH)
        return Check(
            "torch",
            "fail",
            f"torch {torch} of {where} is older than {oldest}",
            f"update torch to {oldest} or later",
        )
    if found.get("hip"):
        return Check(
            "torch",
            "warn",
            f"torch {torch} for ROCm {found['hip']}: steps, loading and traces are recorded, the GPU's clocks and power are not",
            "none needed; AMD GPUs have no NVML",
        )
    if found.get("cuda"):
        return Check("torch", "ok", f"torch {torch} for CUDA {found['cuda']}")
    if Path("/proc/driver/nvidia/version").exists():
        return Check(
            "torch",
            "warn",
            f"torch {torch} of {where} is built without CUDA, though this machine has an NVIDIA driver",
            "install a CUDA build of torch, or activate the environment that has one",
        )
    return Check("torch", "ok", f"torch {torch}, built without CUDA: operators on the CPU are recorded")
