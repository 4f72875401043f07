"""Floating-point operations and least bytes of operators that multiply matrices: matmul, convolution, attention.

A multiply-add counts two. Least bytes: every input read once, every output written once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tracelens.signals.shapes import FLOATING, Inputs, Shape, Tensor


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


def matrix_work(operator: str, inputs: Inputs) -> Work | None:
    """FLOPs and least bytes of a matrix operator by its name as the profiler writes it; None for every other one."""
    formula = _FORMULAS.get(operator)
    return formula(inputs) if formula is not None else None


def _channels(weight: Shape) -> tuple[int, int]:
    return weight[0], weight[1]


def _format(*tensors: Tensor | None) -> str | None:
    return next((t.format for t in tensors if t is not None and t.format in (*FLOATING, "int8")), None)


def matmul_flops(left: Shape, right: Shape) -> float | None:
    """``left @ right`` by torch's rules, batch dimensions broadcast: 2 * output elements * inner size."""
    if not left or not right:
        return None
    rows = left if len(left) > 1 else (1, *left)
    columns = right if len(right) > 1 else (*right, 1)
    if rows[-1] != columns[-2]:
        return None
    batch = broadcast(rows[:-2], columns[:-2])
    return 2.0 * prod(batch) * rows[-2] * columns[-1] * rows[-1] if batch is not None else None


def broadcast(left: Shape, right: Shape) -> Shape | None:
    """The shape two tensors broadcast to, None where they do not."""
    size = max(len(left), len(right))
    padded = ((1,) * (size - len(left)) + left, (1,) * (size - len(right)) + right)
    out = []
    for a, b in zip(*padded, strict=True):
        if a != b and 1 not in (a, b):
            return None
        out.append(b if a == 1 else a)
    return tuple(out)


def _product(first: int, second: int, added: int | None = None) -> Callable[[Inputs], Work | None]:
    """``mm``-like: the two matrices' positions, and the one that is added."""

    def formula(inputs: Inputs) -> Work | None:
        left, right = inputs.tensor(first), inputs.tensor(second)
        if left is None or right is None:
            return None
        flops = matmul_flops(left.shape, right.shape)
        if flops is None:
            return None
        inner = left.shape[-1]
        out = flops / (2.0 * inner) if inner else 0.0
        # 8-bit inputs give outputs of at least 16 bits
        written = out * max(left.width, 2)
        plus = inputs.tensor(added) if added is not None else None
        size = left.bytes + right.bytes + written + (plus.bytes if plus is not None else 0)
        return Work(float(size), flops, _format(left, right))

    return formula


def _linear(inputs: Inputs) -> Work | None:
    left, weight = inputs.tensor(0), inputs.tensor(1)
    if left is None or weight is None or len(weight.shape) != 2 or not left.shape:
        return None
    if left.shape[-1] != weight.shape[1]:
        return None
    out = left.numel // max(left.shape[-1], 1) * weight.shape[0]
    flops = 2.0 * out * weight.shape[1]
    return Work(float(left.bytes + weight.bytes + out * left.width), flops, _format(left))


def _dot(inputs: Inputs) -> Work | None:
    left, right = inputs.tensor(0), inputs.tensor(1)
    if left is None or right is None:
        return None
    return Work(float(left.bytes + right.bytes), 2.0 * left.numel, _format(left))


def _grouped(inputs: Inputs) -> Work | None:
    """``_grouped_mm``: rows of a 2-D matrix, each multiplied with one of a stack of matrices (mixture of experts)."""
    left, right = inputs.tensor(0), inputs.tensor(1)
    if left is None or right is None or len(left.shape) != 2 or len(right.shape) != 3:
        return None
    flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[2]
    written = left.shape[0] * right.shape[2] * max(left.width, 2)
    return Work(float(left.bytes + right.bytes + written), flops, _format(left))


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
            return Work(float(moved), flops, _format(source), channels=_channels(weight.shape))
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
            _format(source),
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
        float(moved * parts), one * parts, _format(grad, source), gradients=parts,
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
        _format(grad),
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
        float(grad.bytes + source.bytes + weight), convolution_flops(grad.shape, shape), _format(grad),
        exact=exact, channels=_channels(shape),
    )  # fmt: skip


def attention_flops(batch: int, heads: int, queries: float, keys: float, size: int, value_size: int) -> float:
    """QK^T and PV: 2 * batch * heads * queries * keys * (size + value size)."""
    return 2.0 * batch * heads * queries * keys * (size + value_size)


def _attention(
    first: int, heads_first: bool, causal: int, backward: bool, lengths: int | None = None
) -> Callable[[Inputs], Work | None]:
    """Scaled dot product attention.

    ``first``: position of the query, key and value follow. Layout [B, H, S, D] (``heads_first``) or [B, S, H, D], or
    [tokens, H, D] for packed sequences, whose offsets lie at ``lengths``. ``causal``: position of the flag; it halves
    the work where queries and keys are as many. Backward recomputes QK^T and has four more products: 2.5 times.
    """

    def formula(inputs: Inputs) -> Work | None:
        query, key, value = (inputs.tensor(first + i) for i in range(3))
        if query is None or key is None or value is None:
            return None
        packed = len(query.shape) == 3 and not heads_first
        if packed:
            offsets = inputs.tensor(lengths) if lengths is not None else None
            sequences = max(offsets.numel - 1, 1) if offsets is not None else 1
            batch, heads, size = sequences, query.shape[1], query.shape[2]
            # sequences of unequal length have more work than equal ones: a least estimate
            queries, keys = query.shape[0] / sequences, key.shape[0] / sequences
        elif len(query.shape) == 4 and len(key.shape) == 4:
            heads_at, length_at = (1, 2) if heads_first else (2, 1)
            batch, heads, size = query.shape[0], query.shape[heads_at], query.shape[3]
            queries, keys = float(query.shape[length_at]), float(key.shape[length_at])
        else:
            return None
        flops = attention_flops(batch, heads, queries, keys, size, value.shape[-1])
        flag = inputs.value(causal)
        scores = batch * heads * queries * keys
        if flag in ("True", "1", "2") and queries == keys:
            flops, scores = flops * 0.5, scores * 0.5
        moved = query.bytes * 2 + key.bytes + value.bytes
        if backward:
            flops, moved = flops * 2.5, moved * 2
        return Work(float(moved), flops, _format(query), exact=not packed, exponentials=scores)

    return formula


_FORMULAS: dict[str, Callable[[Inputs], Work | None]] = {
    "aten::mm": _product(0, 1),
    "aten::bmm": _product(0, 1),
    "aten::mv": _product(0, 1),
    "aten::matmul": _product(0, 1),
    "aten::_int_mm": _product(0, 1),
    "aten::_scaled_mm": _product(0, 1),
    "aten::addmm": _product(1, 2, 0),
    "aten::addmm_": _product(1, 2, 0),
    "aten::addmv": _product(1, 2, 0),
    "aten::addmv_": _product(1, 2, 0),
    "aten::baddbmm": _product(1, 2, 0),
    "aten::baddbmm_": _product(1, 2, 0),
    "aten::addbmm": _product(1, 2, 0),
    "aten::_addmm_activation": _product(1, 2, 0),
    "aten::linear": _linear,
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
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
    "aten::_scaled_dot_product_flash_attention": _attention(0, True, 4, False),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, True, 6, False),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, True, 6, False),
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention(0, True, 5, False),
    "aten::scaled_dot_product_attention": _attention(0, True, 5, False),
    "aten::_flash_attention_forward": _attention(0, False, 8, False, 3),
    "aten::_efficient_attention_forward": _attention(0, False, 9, False, 4),
    "aten::_cudnn_attention_forward": _attention(0, True, 10, False),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, True, 11, True),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, True, 11, True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, True, 14, True),
    "aten::_flash_attention_backward": _attention(1, False, 11, True, 6),
    "aten::_efficient_attention_backward": _attention(1, False, 14, True, 6),
    "aten::_cudnn_attention_backward": _attention(1, True, 14, True),
    "flash_attn::_flash_attn_forward": _attention(0, False, 5, False),
    "flash_attn::_flash_attn_backward": _attention(1, False, 11, True),
    "flash_attn::_flash_attn_varlen_forward": _attention(0, False, 9, False, 3),
    "flash_attn::_flash_attn_varlen_backward": _attention(1, False, 15, True, 9),
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
    return Work(float(size), flops, _format(source), channels=_channels(weight.shape))
