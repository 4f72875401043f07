from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.bundle import Bundle, write_manifest
from tracelens.check.speed import UNPROFILED, Sample, logged_sample, speedup, throughput


def sample(*durations: float, samples: float | None = 8.0) -> Sample:
    return Sample(np.array(durations, dtype=float), samples, UNPROFILED)


def bundle_of(
    folder: Path, durations: list[float], windows: list[int | None], *, workers: int = 0, samples: int = 8
) -> Bundle:
    write_manifest(folder, {"id": "run", "created_ns": 0})
    rank = folder / "rank0"
    rank.mkdir()
    at, lines = 10**18, []
    for step, (duration, window) in enumerate(zip(durations, windows, strict=True)):
        end = at + int(duration * 1e6)
        lines.append(
            {"step": step, "t0": at, "t1": end, "wait_ms": 0.0, "samples": samples, "window": window}
        )
        at = end
    (rank / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loader = {
        "event": "loader",
        "loader": 0,
        "num_workers": workers,
        "prefetch_factor": 2 if workers else None,
    }
    batch = {"event": "batch", "loader": 0, "batch": 0, "training": True, "samples": samples}
    (rank / "loader.jsonl").write_text(json.dumps(loader) + "\n" + json.dumps(batch) + "\n")
    return Bundle.open(folder)


def test_the_speed_up_is_the_ratio_of_mean_throughputs() -> None:
    ratio, (low, high), per_sample = speedup([sample(20, 20, 20)], [sample(10, 10, 10)])
    assert (ratio, low, high) == pytest.approx((2.0, 2.0, 2.0))
    assert per_sample


def test_a_larger_batch_is_compared_by_samples() -> None:
    ratio, _, per_sample = speedup([sample(10, 10, 10, samples=8)], [sample(15, 15, 15, samples=16)])
    assert per_sample
    assert ratio == pytest.approx(2 / 1.5)


def test_without_batch_sizes_steps_are_compared() -> None:
    ratio, _, per_sample = speedup([sample(10, 10, 10, samples=None)], [sample(5, 5, 5, samples=16)])
    assert not per_sample
    assert ratio == pytest.approx(2.0)


@given(
    st.lists(st.floats(1, 100), min_size=3, max_size=30), st.lists(st.floats(1, 100), min_size=3, max_size=30)
)
def test_the_interval_holds_the_ratio_and_turns_round_with_the_sides(
    first: list[float], second: list[float]
) -> None:
    ratio, (low, high), _ = speedup([sample(*first)], [sample(*second)])
    back, _, _ = speedup([sample(*second)], [sample(*first)])
    assert low <= ratio <= high
    assert ratio * back == pytest.approx(1.0)


def test_repeats_that_disagree_widen_the_interval_beyond_that_of_their_steps() -> None:
    calm = [sample(*[10.0] * 20), sample(*[10.0] * 20), sample(*[10.0] * 20)]
    wild = [sample(*[8.0] * 20), sample(*[10.0] * 20), sample(*[12.0] * 20)]
    _, narrow, _ = speedup(calm, calm)
    _, wide, _ = speedup(wild, calm)
    assert narrow[1] / narrow[0] == pytest.approx(1.0)
    # Student's t with the four degrees of freedom of both sides on the logarithms of 8, 10 and 12
    spread = 2.13 * math.sqrt(float(np.var(np.log([8, 10, 12]), ddof=1)) / 2 * 2 / 3)
    assert math.log(wide[1] / wide[0]) == pytest.approx(2 * spread, rel=1e-6)


def test_one_repeat_beside_three_takes_their_spread() -> None:
    wild = [sample(*[8.0] * 20), sample(*[10.0] * 20), sample(*[12.0] * 20)]
    _, (low, high), _ = speedup(wild, [sample(*[10.0] * 20)])
    spread = 2.92 * float(np.std(np.log([8, 10, 12]), ddof=1)) * math.sqrt(1 / 3 + 1)
    assert math.log(high / low) == pytest.approx(2 * spread, rel=1e-6)


def test_throughput_needs_the_batch_size() -> None:
    assert throughput([sample(10, 10, 10, samples=None)]) is None
    rate, (low, high) = throughput([sample(10, 10, 10)]) or (0.0, (0.0, 0.0))
    assert rate == pytest.approx(800.0)
    assert low == pytest.approx(high)


def test_profiled_steps_and_the_step_after_a_window_do_not_count(tmp_path: Path) -> None:
    durations = [10.0] * 10 + [50.0] * 3 + [900.0] + [10.0] * 10
    windows: list[int | None] = [None] * 10 + [0] * 3 + [None] * 11
    found = logged_sample(bundle_of(tmp_path, durations, windows))
    assert found is not None
    assert found.mean_ms == pytest.approx(10.0)
    assert found.samples == 8.0


def test_steps_that_live_on_the_queue_filled_during_a_window_do_not_count(tmp_path: Path) -> None:
    # 2 workers hold 4 batches: after the window four steps find theirs ready
    durations = [40.0] * 15 + [60.0] * 3 + [900.0] + [5.0] * 4 + [40.0] * 15
    windows: list[int | None] = [None] * 15 + [0] * 3 + [None] * 20
    found = logged_sample(bundle_of(tmp_path, durations, windows, workers=2))
    assert found is not None
    assert found.mean_ms == pytest.approx(40.0)


def test_a_bundle_that_ended_after_two_steps_has_no_speed(tmp_path: Path) -> None:
    assert logged_sample(bundle_of(tmp_path, [10.0, 10.0], [None, None])) is None
