"""Copies under other settings: what each change does to the device's and the host's time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.whatif.transfer_model import (
    Copies,
    convert_on_device,
    copy_stream,
    merge_copies,
    non_blocking,
    pin_copy_ms,
    pin_memory,
    pinned_bytes,
    pinned_rate,
    pinning_fits,
)

BATCH = 38.5e6  # 64 x 3 x 224 x 224 float32


def pageable(gbs: float = 4.0, steps: int = 10, waited: float = 0.0) -> Copies:
    ms = BATCH / gbs / 1e6
    each = np.full(steps, ms)
    return Copies(
        np.full(steps, BATCH), each, each + waited, np.zeros(steps, bool), steps, np.full(steps, waited)
    )


def pinned(gbs: float = 12.0, steps: int = 10, blocking: bool = True) -> Copies:
    ms = BATCH / gbs / 1e6
    call = ms if blocking else 0.01
    return Copies(
        np.full(steps, BATCH), np.full(steps, ms), np.full(steps, call), np.ones(steps, bool), steps
    )


def test_pinned_rate_comes_from_the_trace_then_the_link_then_a_prior() -> None:
    measured, basis = pinned_rate(pinned(11.0), 3, 16)
    assert (basis, measured.value) == ("measured", pytest.approx(11.0))
    link, basis = pinned_rate(pageable(), 4, 16)
    assert basis == "link"
    assert link.value == pytest.approx(0.85 * 31.5, rel=0.01)  # PCIe 4.0 x16: 31.5 GB/s on paper
    assert pinned_rate(pageable(2.0), 3, 4)[0].value == pytest.approx(0.85 * 3.94, rel=0.01)
    prior, basis = pinned_rate(pageable())
    assert basis == "prior"
    assert prior.high / prior.low > 3 > link.high / link.low


def test_a_pinned_rate_is_never_below_the_pageable_one() -> None:
    fast = pageable(20.0)
    rate, _ = pinned_rate(fast, 3, 16)
    assert rate.low >= 20.0 * 0.999


def test_pinning_alone_shortens_the_copy_but_the_host_still_waits_for_it() -> None:
    got = pin_memory(pageable(4.0), non_blocking=False, num_workers=4, pcie_gen=4, pcie_width=16)
    assert got.gpu_before_ms == pytest.approx(9.6, rel=0.01)
    assert got.gpu_after_ms.value == pytest.approx(BATCH / 26.8e6, rel=0.02)
    assert got.host_after_ms.value == pytest.approx(got.gpu_after_ms.value + 0.01, rel=0.02)
    assert not got.overlapped
    assert got.helps


def test_pinning_with_non_blocking_frees_the_host_and_allows_overlap() -> None:
    got = pin_memory(pageable(4.0), non_blocking=True, num_workers=4, pcie_gen=4, pcie_width=16)
    assert got.host_after_ms.high < 0.1
    assert got.overlapped
    assert got.change == "pin_memory+non_blocking"


def test_without_workers_the_main_process_pins() -> None:
    got = pin_memory(pageable(4.0), non_blocking=True, num_workers=0, pcie_gen=4, pcie_width=16)
    staged = pin_copy_ms(BATCH)
    assert got.host_after_ms.value == pytest.approx(staged.value + 0.01, rel=0.01)
    assert staged.low < staged.value < staged.high
    assert "num_workers=0" in got.note


def test_what_a_copy_waited_for_is_not_charged_to_it() -> None:
    alone, queued = pageable(4.0), pageable(4.0, waited=50.0)
    assert non_blocking(alone).host_before_ms == pytest.approx(non_blocking(queued).host_before_ms)
    pin = pin_memory(queued, non_blocking=True, num_workers=2, pcie_gen=3, pcie_width=16)
    assert pin.host_before_ms - pin.host_after_ms.value < 10.0


def test_non_blocking_alone_does_nothing_for_pageable_copies() -> None:
    got = non_blocking(pageable(4.0))
    assert got.host_after_ms.value == pytest.approx(got.host_before_ms)
    assert not got.helps
    assert "pin_memory" in got.note
    freed = non_blocking(pinned(12.0))
    assert freed.host_after_ms.high < 0.05 < freed.host_before_ms
    assert freed.helps


def test_nothing_is_promised_where_all_copies_are_pinned_and_asynchronous() -> None:
    done = pinned(12.0, blocking=False)
    assert not pin_memory(done, non_blocking=True, num_workers=2).helps
    assert not non_blocking(done).helps


def test_a_stream_hides_pinned_copies_behind_kernels_only() -> None:
    got = copy_stream(pinned(12.0), compute_ms=20.0)
    assert got.gpu_after_ms.value == pytest.approx(0.0)
    exposed = copy_stream(pinned(12.0), compute_ms=1.0)
    assert exposed.gpu_after_ms.value == pytest.approx(BATCH / 12e6 - 1.0)
    assert copy_stream(pageable(4.0), compute_ms=20.0).gpu_after_ms.value == pytest.approx(9.6, rel=0.01)


def test_merging_small_copies_saves_calls_not_bytes() -> None:
    steps, count = 5, 40
    total = steps * count
    many = Copies(
        np.full(total, 512.0), np.full(total, 0.0015), np.full(total, 0.02), np.zeros(total, bool), steps
    )
    got = merge_copies(many)
    assert got.host_before_ms == pytest.approx(0.8)
    assert got.host_after_ms.value == pytest.approx(0.02)
    assert got.gpu_after_ms.value == pytest.approx(0.0015)
    assert got.helps
    assert not merge_copies(pageable()).helps


def test_a_narrower_type_moves_fewer_bytes() -> None:
    got = convert_on_device(pageable(4.0), 0.25)
    assert got.gpu_after_ms.value == pytest.approx(9.625 * 0.25, rel=0.01)
    assert got.host_after_ms.value == pytest.approx(9.625 * 0.25, rel=0.01)
    with pytest.raises(InputError, match="ratio"):
        convert_on_device(pageable(), 4.0)


def test_pinned_memory_is_counted_with_the_allocators_rounding() -> None:
    assert pinned_bytes(38.5e6, 4, 2) == 2**26 * 10
    assert pinned_bytes(0, 4, 2) == 0
    assert pinning_fits(38.5e6, 4, 2, 8e9)
    assert not pinning_fits(38.5e6, 4, 2, 1e9)
    assert pinning_fits(38.5e6, 4, 2, None)


@given(
    gbs=st.floats(0.5, 30.0),
    ahead=st.booleans(),
    workers=st.integers(1, 8),
    link=st.sampled_from([(None, None), (3, 16), (4, 8), (5, 16)]),
)
def test_intervals_are_ordered_and_pinning_never_slows_a_copy(
    gbs: float, ahead: bool, workers: int, link: tuple[int | None, int | None]
) -> None:
    got = pin_memory(
        pageable(gbs), non_blocking=ahead, num_workers=workers, pcie_gen=link[0], pcie_width=link[1]
    )
    for span in (got.gpu_after_ms, got.host_after_ms):
        assert span.low <= span.value <= span.high
    assert got.gpu_after_ms.high <= got.gpu_before_ms * 1.001


def test_copies_are_checked() -> None:
    with pytest.raises(InputError, match="equal number"):
        Copies(np.ones(2), np.ones(1), np.ones(2), np.zeros(2, bool), 1)
    with pytest.raises(InputError, match="not negative"):
        Copies(np.ones(1), -np.ones(1), np.ones(1), np.zeros(1, bool), 1)
