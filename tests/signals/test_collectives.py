"""Tiny collectives, the rate of large ones, and ranks that take turns at being late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tracekit import ALL_REDUCE, GEMM, V100, Loop, Trace
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.collectives import collective_signals, shared_rate, unevenness
from tracelens.signals.signal import Signals


def told(elements: int, kind: str = "allreduce", ranks: int = 2, dtype: str = "Float") -> dict[str, Any]:
    return {
        "Collective name": kind,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": ranks,
        "dtype": dtype,
    }


def with_collectives(*collectives: tuple[float, dict[str, Any]], gpus: int = 2) -> Trace:
    """Steps that end with collectives of (us, arguments), while nothing else runs."""
    out = Loop(steps=8, load_us=4000, kernels=[(GEMM, 100)] * 3).trace()
    out.metadata |= {
        "deviceProperties": [{**V100, "id": i} for i in range(gpus)],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    }  # fmt: skip
    for step in [e for e in out.events if str(e.get("name", "")).startswith("ProfilerStep")]:
        at = step["ts"] + 300
        for length, arguments in collectives:
            out.correlation += 1
            out.call("cudaLaunchKernel", at - 6, at - 2, correlation=out.correlation)
            out.kernel(ALL_REDUCE, at, at + length, out.correlation, **arguments)
            at += length + 10
    return out


def signals_of(trace: Trace, folder: Path) -> Signals:
    out = Signals()
    collective_signals(RankAnalysis(trace.tables(folder)), out)
    return out


def test_tiny_ones_are_counted_apart(tmp_path: Path) -> None:
    out = signals_of(with_collectives((200, told(1)), (300, told(50)), (900, told(5_000_000))), tmp_path)
    assert out.number("communication.count") == pytest.approx(3, abs=0.3)
    assert out.number("communication.tiny_count") == pytest.approx(2, abs=0.3)
    assert out.number("communication.tiny_ms") == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [("allreduce", 2, 1.0), ("allreduce", 8, 1.75), ("_allgather_base", 8, 0.875)],
)
@pytest.mark.parametrize("waiting", [0.0, 700.0])
def test_bus_bandwidth(kind: str, ranks: int, factor: float, waiting: float, tmp_path: Path) -> None:
    """10 and 20 MB in 1 and 2 ms are 10 GB/s, times what each link carries of it, however long both wait for a rank."""
    small, large = told(5_000_000, kind, ranks, "Half"), told(10_000_000, kind, ranks, "Half")
    out = signals_of(with_collectives((1000 + waiting, small), (2000 + waiting, large)), tmp_path)
    assert out.number("communication.bus_gb_s") == pytest.approx(10 * factor)


def test_one_size_cannot_tell_waiting_from_moving(tmp_path: Path) -> None:
    out = signals_of(with_collectives((3000.0, told(5_000_000)), (1000.0, told(5_000_000))), tmp_path)
    assert out["communication.bus_gb_s"].value is None


def test_all_ranks_tell_it_by_the_last_one(tmp_path: Path) -> None:
    """20 MB take 2 ms on the rank that comes last, whichever that is, and longer on the other."""
    sides = []
    for number, length in enumerate((2000.0, 9000.0)):
        (tmp_path / str(number)).mkdir()
        sides.append(RankAnalysis(with_collectives((length, told(5_000_000))).tables(tmp_path / str(number))))
    assert shared_rate(sides) == pytest.approx(10)
    assert shared_rate(sides[:1]) is None
    (tmp_path / "2").mkdir()
    other = RankAnalysis(with_collectives((2000.0, told(9_000_000))).tables(tmp_path / "2"))
    assert shared_rate([sides[0], other]) is None


def test_what_the_kernels_do_not_say_is_unknown(tmp_path: Path) -> None:
    out = signals_of(with_collectives((200, {})), tmp_path)
    assert out.number("communication.count") == pytest.approx(1, abs=0.2)
    assert out["communication.tiny_count"].value is None
    assert out["communication.bus_gb_s"].value is None
    assert signals_of(Loop().trace(), tmp_path)["communication.count"].value is None
    unknown = told(1000) | {"dtype": "Complicated"}
    assert signals_of(with_collectives((200, unknown)), tmp_path)["communication.tiny_count"].value is None


@pytest.mark.parametrize(("gpus", "same"), [(2, True), (1, False)])
def test_ranks_of_one_machine(gpus: int, same: bool, tmp_path: Path) -> None:
    out = signals_of(with_collectives((200, told(1)), gpus=gpus), tmp_path)
    assert out.value("communication.one_machine") is same


def ranks(folder: Path, *late: Any) -> list[RankAnalysis]:
    """Ranks whose collective is shorter where ``late(step)`` says they come late: it ends for all together."""
    found = []
    for number, is_late in enumerate(late):
        out = Loop(steps=9, load_us=4000, kernels=[(GEMM, 100)] * 3).trace()
        markers = [e for e in out.events if str(e.get("name", "")).startswith("ProfilerStep")]
        for index, step in enumerate(markers):
            end, length = step["ts"] + 2500, 200 if is_late(index) else 1200
            out.correlation += 1
            out.call("cudaLaunchKernel", end - length - 6, end - length - 2, correlation=out.correlation)
            out.kernel(ALL_REDUCE, end - length, end, out.correlation)
        found.append(RankAnalysis(out.tables(folder / str(number))))
    return found


def test_ranks_that_take_turns(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    found = unevenness(ranks(tmp_path, lambda step: step % 2 == 0, lambda step: step % 2 == 1))
    assert found is not None
    waiting, share = found
    assert waiting == pytest.approx(1.0, rel=0.05)
    assert share < 0.7


def test_one_rank_that_is_always_late(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    found = unevenness(ranks(tmp_path, lambda step: True, lambda step: False))
    assert found is not None
    assert found[0] == pytest.approx(1.0, rel=0.05)
    assert found[1] == 1.0


def test_one_rank_waits_for_nobody(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    assert unevenness(ranks(tmp_path, lambda step: True)) is None
