"""Floating-point operations and least bytes of convolutions, forward and backward, as torch and its backends call them.

A multiply-add counts two; padding counts as input. Least bytes: every input read once, every output written once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod

from tracelens.signals.shapes import Inputs, Shape, Tensor
from tracelens.signals.work import Work, number_format_of


def _channels(weight: Shape) -> tuple[int, int]:
    return weight[0], weight[1]


def convolved(size: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Shape:
    """Spatial sizes of a convolution's output: (n + 2p - d(k - 1) - 1) / s + 1, rounded down."""
    return tuple(
        max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0)
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )


def convolution_flops(out: Shape, weight: Shape) -> float:
    """2 * output elements * weight elements per output channel; the weight is [K, C / groups, *kernel]."""
    return 2.0 * prod(out) * prod(weight[1:])


def _convolution(
    stride: int, padding: int, dilation: int, transposed: int | bool = False
) -> Callable[[Inputs], Work | None]:
    """A forward convolution; positions of its settings. ``transposed``: position of the flag, or the fact."""

    def formula(inputs: Inputs) -> Work | None:
        source, weight = inputs.tensor(0), inputs.tensor(1)
        if source is None or weight is None or len(weight.shape) < 3:
            return None
        spatial = len(weight.shape) - 2
        if len(source.shape) not in (spatial + 1, spatial + 2):
            return None
        batched = source.shape if len(source.shape) == spatial + 2 else (1, *source.shape)
        fixed = transposed if isinstance(transposed, bool) else inputs.value(transposed) == "True"
        if fixed:
            flops = 2.0 * source.numel * prod(weight.shape[1:])
            moved = source.bytes + weight.bytes + source.bytes
            return Work(float(moved), flops, number_format_of(source), channels=_channels(weight.shape))
        settings = [_per_axis(inputs.integers(at), spatial) for at in (stride, padding, dilation)]
        exact = settings[0] is not None and settings[1] is not None
        step, around, apart = (
            settings[0] or (1,) * spatial,
            # not written: assume the output as large as the input
            settings[1] or tuple((k - 1) // 2 for k in weight.shape[2:]),
            settings[2] or (1,) * spatial,
        )
        if 0 in step:
            return None
        out = (batched[0], weight.shape[0], *convolved(batched[2:], weight.shape[2:], step, around, apart))
        size = source.bytes + weight.bytes + prod(out) * source.width
        return Work(
            float(size),
            convolution_flops(out, weight.shape),
            number_format_of(source),
            exact=exact,
            channels=_channels(weight.shape),
        )

    return formula


def _per_axis(values: tuple[int, ...] | None, spatial: int) -> tuple[int, ...] | None:
    if values is None or not values:
        return None
    return values if len(values) == spatial else values * spatial if len(values) == 1 else None


def _gradient_work(grad: Tensor, source: Tensor, weight: Tensor, parts: int) -> Work | None:
    if (
        len(weight.shape) < 3
        or len(grad.shape) != len(weight.shape)
        or len(source.shape) != len(weight.shape)
    ):
        return None
    # the weight's first size is the channels of the convolution's output; of its input where it is transposed
    forward_out = grad if grad.shape[1] == weight.shape[0] or source.shape[1] != weight.shape[0] else source
    one = convolution_flops(forward_out.shape, weight.shape)
    moved = grad.bytes + source.bytes + weight.bytes
    return Work(
        float(moved * parts), one * parts, number_format_of(grad, source), gradients=parts,
        channels=_channels(weight.shape),
    )  # fmt: skip


def _convolution_backward(
    grad: int, source: int, weight: int, mask: int | None
) -> Callable[[Inputs], Work | None]:
    """Both gradients, or those that the written output mask asks for."""

    def formula(inputs: Inputs) -> Work | None:
        tensors = inputs.tensor(grad), inputs.tensor(source), inputs.tensor(weight)
        if tensors[0] is None or tensors[1] is None or tensors[2] is None:
            return None
        wanted = inputs.flags(mask) if mask is not None else None
        data, weights = wanted[:2] if wanted is not None and len(wanted) >= 2 else (True, True)
        if not data and not weights:
            return None
        work = _gradient_work(tensors[0], tensors[1], tensors[2], data + weights)
        return dataclasses.replace(work, exact=wanted is not None) if work is not None else None

    return formula


def _input_gradient(inputs: Inputs) -> Work | None:
    """``cudnn_convolution_backward_input(sizes, grad_output, weight, ...)`` of older torch."""
    grad, weight = inputs.tensor(1), inputs.tensor(2)
    if grad is None or weight is None or len(weight.shape) < 3 or len(grad.shape) != len(weight.shape):
        return None
    # the input's sizes are an integer list, which old files do not write: as large as the output, channels known
    source = grad.numel // max(grad.shape[1], 1) * weight.shape[1] * grad.width
    flops = convolution_flops(grad.shape, weight.shape)
    return Work(
        float(grad.bytes + weight.bytes + source),
        flops,
        number_format_of(grad),
        channels=_channels(weight.shape),
    )


def weight_gradient(inputs: Inputs, kernel: Shape | None) -> Work | None:
    """``cudnn_convolution_backward_weight(sizes, grad_output, input, ...)`` of older torch.

    ``kernel``: the weight's shape, from the operator around it.
    """
    grad, source = inputs.tensor(1), inputs.tensor(2)
    if grad is None or source is None or len(grad.shape) < 3 or len(source.shape) != len(grad.shape):
        return None
    sizes = inputs.integers(0)
    shape = kernel or (sizes if sizes is not None and len(sizes) == len(grad.shape) else None)
    exact = shape is not None
    if shape is None:
        # a 1x1 kernel is the least that it can be
        shape = (grad.shape[1], source.shape[1], *(1,) * (len(grad.shape) - 2))
    weight = prod(shape) * grad.width
    return Work(
        float(grad.bytes + source.bytes + weight), convolution_flops(grad.shape, shape), number_format_of(grad),
        exact=exact, channels=_channels(shape),
    )  # fmt: skip


CONVOLUTIONS: dict[str, Callable[[Inputs], Work | None]] = {
    "aten::convolution": _convolution(3, 4, 5, 6),
    "aten::_convolution": _convolution(3, 4, 5, 6),
    "aten::convolution_overrideable": _convolution(3, 4, 5, 6),
    "aten::conv1d": _convolution(3, 4, 5),
    "aten::conv2d": _convolution(3, 4, 5),
    "aten::conv3d": _convolution(3, 4, 5),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5),
    "aten::cudnn_convolution_add_relu": _convolution(5, 6, 7),
    "aten::cudnn_convolution_transpose": _convolution(4, 2, 5, True),
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::miopen_convolution_relu": _convolution(3, 4, 5),
    "aten::miopen_convolution_add_relu": _convolution(5, 6, 7),
    "aten::miopen_convolution_transpose": _convolution(5, 3, 6, True),
    "aten::miopen_depthwise_convolution": _convolution(4, 3, 5),
    "aten::_conv_depthwise2d": _convolution(4, 5, 6),
    "aten::conv_depthwise3d": _convolution(4, 5, 6),
    "aten::_slow_conv2d_forward": _convolution(4, 5, 99),
    "aten::slow_conv3d_forward": _convolution(4, 5, 99),
    "aten::thnn_conv2d": _convolution(4, 5, 99),
    "aten::convolution_backward": _convolution_backward(0, 1, 2, 10),
    "aten::convolution_backward_overrideable": _convolution_backward(0, 1, 2, 9),
    "aten::cudnn_convolution_backward": _convolution_backward(1, 0, 2, 9),
    "aten::miopen_convolution_backward": _convolution_backward(1, 0, 2, 9),
    "aten::_slow_conv2d_backward": _convolution_backward(0, 1, 2, 6),
    "aten::cudnn_convolution_backward_input": _input_gradient,
    "aten::miopen_convolution_backward_input": _input_gradient,
}
WEIGHT_GRADIENTS = frozenset(
    {"aten::cudnn_convolution_backward_weight", "aten::miopen_convolution_backward_weight"}
)

_BACKWARD = {
    "aten::convolution_backward": (0, 1, 2),
    "aten::cudnn_convolution_backward": (1, 0, 2),
    "aten::miopen_convolution_backward": (1, 0, 2),
}

CONVOLUTION_BACKWARD = frozenset(_BACKWARD)


def convolution_sizes(operator: str, inputs: Inputs) -> tuple[Shape, Shape, Shape] | None:
    """Input, weight and output sizes that a convolution's backward operator shows; None for every other operator."""
    at = _BACKWARD.get(operator)
    tensors = [inputs.tensor(i) for i in at] if at is not None else [None]
    if any(t is None for t in tensors):
        return None
    grad, source, weight = (t.shape for t in tensors if t is not None)
    return source, weight, grad


def convolution_with_output(inputs: Inputs, out: Shape) -> Work | None:
    """A forward convolution whose output sizes are known from elsewhere (its own backward)."""
    source, weight = inputs.tensor(0), inputs.tensor(1)
    if source is None or weight is None or len(weight.shape) < 3:
        return None
    forward_out = out if len(out) > 1 and out[1] == weight.shape[0] else source.shape
    size = source.bytes + weight.bytes + prod(out) * source.width
    flops = convolution_flops(forward_out, weight.shape)
    return Work(float(size), flops, number_format_of(source), channels=_channels(weight.shape))
