"""Results of traces that others handed over; tests that use them skip where the folder is absent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover
from tracelens.model import Recommendation, Result

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT / ".." / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the handed traces are not here")


@cache
def result_of(path: Path) -> Result:
    """The analysis of a path, once a session."""
    return analyse(discover([path]))


def real(name: str) -> Result:
    """The result of a recorded trace."""
    return result_of(TRACES / "real" / f"{name}.json.gz")


def simulated(name: str) -> Result:
    """The result of a simulated run."""
    return result_of(TRACES / "simulated" / name)


def advised(result: Result, parameter: str) -> Recommendation | None:
    """The recommendation for a parameter, None where there is none."""
    return next((r for r in result.recommendations if r.parameter == parameter), None)


def parameters(result: Result) -> list[str]:
    """What is recommended, in order."""
    return [r.parameter for r in result.recommendations]
