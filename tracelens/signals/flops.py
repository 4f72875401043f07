"""Floating-point operations and least bytes of operators that multiply matrices: matmul and attention; convolutions too.

A multiply-add counts two. Least bytes: every input read once, every output written once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tracelens.signals.convolution import CONVOLUTIONS
from tracelens.signals.shapes import Inputs, Shape
from tracelens.signals.work import Work, number_format_of


def matrix_work(operator: str, inputs: Inputs) -> Work | None:
    """FLOPs and least bytes of a matrix operator by its name as the profiler writes it; None for every other one."""
    formula = _FORMULAS.get(operator)
    return formula(inputs) if formula is not None else None


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
        return Work(float(size), flops, number_format_of(left, right))

    return formula


def _linear(inputs: Inputs) -> Work | None:
    left, weight = inputs.tensor(0), inputs.tensor(1)
    if left is None or weight is None or len(weight.shape) != 2 or not left.shape:
        return None
    if left.shape[-1] != weight.shape[1]:
        return None
    out = left.numel // max(left.shape[-1], 1) * weight.shape[0]
    flops = 2.0 * out * weight.shape[1]
    return Work(float(left.bytes + weight.bytes + out * left.width), flops, number_format_of(left))


def _dot(inputs: Inputs) -> Work | None:
    left, right = inputs.tensor(0), inputs.tensor(1)
    if left is None or right is None:
        return None
    return Work(float(left.bytes + right.bytes), 2.0 * left.numel, number_format_of(left))


def _grouped(inputs: Inputs) -> Work | None:
    """``_grouped_mm``: rows of a 2-D matrix, each multiplied with one of a stack of matrices (mixture of experts)."""
    left, right = inputs.tensor(0), inputs.tensor(1)
    if left is None or right is None or len(left.shape) != 2 or len(right.shape) != 3:
        return None
    flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[2]
    written = left.shape[0] * right.shape[2] * max(left.width, 2)
    return Work(float(left.bytes + right.bytes + written), flops, number_format_of(left))


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
        return Work(float(moved), flops, number_format_of(query), exact=not packed, exponentials=scores)

    return formula


_FORMULAS: dict[str, Callable[[Inputs], Work | None]] = {
    **CONVOLUTIONS,
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
