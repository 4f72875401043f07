"""What an operator has to do at least: floating-point operations and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.signals.shapes import FLOATING, Tensor


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator has to do at least.

    ``flops`` None: not a matrix operator (its arithmetic does not count). ``gradients``: how many equal parts the
    work falls into, each made by kernels of its own (a convolution's backward: 2). ``exact``: whether the FLOPs follow
    from what was recorded. ``channels``: of a convolution, out and in of one group. ``exponentials``: of attention,
    one a score.
    """

    bytes: float | None
    flops: float | None = None
    format: str | None = None
    gradients: int = 1
    exact: bool = True
    channels: tuple[int, int] | None = None
    exponentials: float = 0.0


def number_format_of(*tensors: Tensor | None) -> str | None:
    """The number format of the first tensor that has one."""
    return next((t.format for t in tensors if t is not None and t.format in (*FLOATING, "int8")), None)
