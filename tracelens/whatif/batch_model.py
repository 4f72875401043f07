"""Whether a larger batch is worth advising: memory, time and what else limits, with the reason where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelens.whatif.batch_memory import MemoryFit, advisable_batch, max_safe_batch
from tracelens.whatif.batch_time import BatchPoint, TimeFit, curve

MINIMUM_GAIN = 0.02
SAME_AS_BEST = 0.02
LEARNING_RATE = (
    "A larger batch changes training: adjust the learning rate (often in proportion), check the loss."
)

Refusal = Literal["starved", "varying_shapes", "memory", "no_gain", "feed", "unknown_capacity"]


@dataclass(frozen=True, slots=True)
class BatchAdvice:
    """What to do with the batch size.

    ``suggested`` is None where no change is advised, for ``reason``: ``starved`` (the GPU waits for data),
    ``varying_shapes`` (memory follows shapes, not the batch), ``memory`` (nothing larger is safe), ``feed``
    (loading limits at the larger size), ``no_gain``, ``unknown_capacity``. ``considered`` is the size the
    numbers are about: the suggested one, else the largest advisable. ``gain`` is the ratio of throughputs
    there, ``interval`` its 90 % interval; ``memory_share`` the reserved peak there by capacity.
    """

    current: int
    suggested: int | None
    considered: int
    reason: Refusal | None
    gain: float
    interval: tuple[float, float]
    memory_share: float | None
    max_safe: int | None
    curve: tuple[BatchPoint, ...]
    diminishing_from: float
    caveat: str = LEARNING_RATE


def advise_batch(
    time: TimeFit,
    memory: MemoryFit | None,
    current: int,
    capacity_bytes: float | None,
    *,
    outside_bytes: float = 0.0,
    starved: bool = False,
    varying_shapes: bool = False,
    noise: float = 0.0,
) -> BatchAdvice:
    """The batch size to advise: the smallest within 2 % of the best throughput that is safe and at most twice
    as large.

    Advised only where it gains more than 2 % and more than twice ``noise`` (relative error of today's mean
    step).
    """
    if memory is None or capacity_bytes is None:
        top, safe, share = current, None, None
    else:
        top = advisable_batch(memory, capacity_bytes, current, outside_bytes=outside_bytes)
        safe = max_safe_batch(memory, capacity_bytes, outside_bytes=outside_bytes)
        share = (memory.reserved(top) + outside_bytes) / capacity_bytes
    step = max(1, current // 8)
    sizes = sorted({current, top, *range(current, top + 1, step)})
    best = max(time.samples_per_s(size) for size in sizes)
    target = next(size for size in sizes if time.samples_per_s(size) >= best * (1 - SAME_AS_BEST))
    gain, low, high = time.gain(current, target)
    worth = gain > 1 + max(MINIMUM_GAIN, 2 * noise)
    reason: Refusal | None = None
    if memory is None or capacity_bytes is None:
        reason = "unknown_capacity"
    elif varying_shapes:
        reason = "varying_shapes"
    elif starved:
        reason = "starved"
    elif top <= current:
        reason = "memory"
    elif not worth:
        reason = "feed" if _fed_out(time, current, top) else "no_gain"
    suggested = target if reason is None else None
    if suggested is None:
        target = top
        gain, low, high = time.gain(current, top)
    elif memory is not None and capacity_bytes is not None:
        share = (memory.reserved(target) + outside_bytes) / capacity_bytes
    drawn = {
        max(1, current // 4),
        max(1, current // 2),
        current,
        *sizes[:: max(1, len(sizes) // 8)],
        top,
        2 * current,
    }
    return BatchAdvice(
        current,
        suggested,
        target,
        reason,
        gain,
        (low, high),
        share,
        safe,
        curve(time, sorted(drawn)),
        time.diminishing_from,
    )


def _fed_out(time: TimeFit, current: int, top: int) -> bool:
    """Whether loading is what keeps the larger batch from gaining."""
    feed = time.feed_ms_per_sample * top
    return feed > 0 and time.step_ms(top) <= feed * 1.001 and time.per_sample_ms < time.feed_ms_per_sample
