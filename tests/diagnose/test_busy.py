"""How busy the loader's workers are taken to be, by what was recorded of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnose.judge import signals_of
from tracelens.diagnose.judge import workers_busy

WINDOW = {"load.mode": "workers", "load.worker_busy": 0.6, "machine.worker_cpu": 0.5}


@pytest.mark.parametrize(
    ("values", "busy"),
    [
        # computing, and waiting for storage as the machine does
        ({"load.worker_io_wait": 0.1}, 0.6),
        # the trace lies where workers still fill their queues
        ({"load.worker_io_wait": 0.1, "machine.worker_cpu_usual": 0.3}, 0.4),
        # others use the storage too: at full speed these compute for 90 % of the time
        ({"load.worker_io_wait": 0.4, "machine.worker_cpu_usual": 0.45, "machine.worker_cpu_most": 0.9}, 0.5),
        # a log without their start never shows them at full speed
        ({"load.worker_io_wait": 0.1, "machine.worker_cpu_usual": 0.5, "machine.worker_cpu_most": 0.5}, 0.6),
        # nothing says how long they wait
        ({}, 0.5),
        # the machine waits for more than these workers have time for
        ({"load.worker_io_wait": 0.5}, 0.5),
        ({"load.mode": "main_process"}, None),
        ({"machine.worker_cpu": "missing"}, None),
    ],
)
def test_workers_compute_and_wait(values: dict[str, Any], busy: float | None) -> None:
    found = workers_busy(signals_of({**WINDOW, **values}))
    assert found == (None if busy is None else pytest.approx(busy))


def test_the_loader_log_says_it_itself() -> None:
    signals = signals_of({"load.mode": "workers", "machine.worker_cpu": 0.5, "machine.worker_cpu_usual": 0.2})
    signals.add("load.worker_busy", 0.7, "share", "loader log")
    assert workers_busy(signals) == pytest.approx(0.7)
