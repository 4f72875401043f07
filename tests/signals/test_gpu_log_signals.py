"""Signals of a GPU log whose numbers are damaged."""

from __future__ import annotations

import pytest

from tracelens.ingest.nvidia_smi import parse_query_csv
from tracelens.signals.gpuwork import log_signals
from tracelens.signals.signal import Signals


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("generation", "speed"), [("4", 31.5), ("99999", None), ("1e308", None)])
def test_the_link_of_a_generation_that_does_not_exist_is_missing(
    generation: str, speed: float | None
) -> None:
    header = "timestamp, index, uuid, utilization.gpu [%], pcie.link.gen.current, pcie.link.width.current"
    row = f"2026/12/01 17:40:10.702, 0, GPU-aa, 89 %, {generation}, 16"
    out = Signals()
    log_signals(parse_query_csv(f"{header}\n{row}\n", "gpu.csv"), out)
    assert out.value("pcie.link_gb_s") == speed
    assert out.value("gpu.utilization") == 0.89
