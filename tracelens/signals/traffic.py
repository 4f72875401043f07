"""Least DRAM bytes of operators without matrix products: every input read once, every output written once.

Inputs are recorded, outputs are not: their sizes follow from the operator. None where they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

from tracelens.signals.flops import broadcast
from tracelens.signals.shapes import FLOATING, Inputs, Shape, Tensor

_ORDER = {name: rank for rank, name in enumerate(("bool", "int8", "int", *reversed(FLOATING), "complex"))}
_COMPARISONS = frozenset(
    f"aten::{name}"
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or",
                 "logical_not", "logical_xor", "signbit", "isin", "bitwise_and")
)  # fmt: skip
# these write their first argument and read nothing
_WRITES = frozenset({"aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::bernoulli_",
                       "aten::random_", "aten::exponential_", "aten::full", "aten::arange"})  # fmt: skip


def traffic_bytes(name: str, inputs: Inputs) -> float | None:
    """Least bytes that an operator moves to and from device memory; None where its shapes do not tell."""
    rule = _RULES.get(name) or _RULES.get(name.removesuffix("_"))
    if rule is not None:
        return rule(inputs)
    if name.startswith("triton_"):
        # Inductor's kernels list outputs among their arguments; those updated in place move twice
        return float(sum(t.bytes for t in inputs.tensors)) if inputs.tensors else None
    if name.startswith("aten::_foreach_"):
        return _foreach(name, inputs)
    if name.startswith("aten::_fused_"):
        return _fused_optimizer(inputs)
    if name in _WRITES:
        first = inputs.tensor(0)
        return float(first.bytes) if first is not None else None
    if not name.startswith("aten::"):
        return None
    return _pointwise(name, inputs)


def _pointwise(name: str, inputs: Inputs) -> float | None:
    """Inputs broadcast against each other, one output; the widest type wins."""
    tensors = inputs.tensors
    if not tensors or inputs.lists:
        return None
    read = sum(t.bytes for t in tensors)
    if name.endswith("_"):
        return float(read + tensors[0].bytes)
    shape: Shape | None = tensors[0].shape
    for tensor in tensors[1:]:
        shape = broadcast(shape, tensor.shape) if shape is not None else None
    if shape is None:
        return None
    # numbers wrapped as tensors of no dimension take part in no promotion
    real = [t for t in tensors if t.shape] or tensors
    width = 1 if name in _COMPARISONS else max(real, key=lambda t: _ORDER.get(t.format or "", 0)).width
    return float(read + prod(shape) * width)


def _copy(inputs: Inputs) -> float | None:
    target, source = inputs.tensor(0), inputs.tensor(1)
    if target is None or source is None:
        return None
    return float(target.bytes + source.bytes)


def _streams(reads: tuple[int, ...], writes: tuple[int, ...]) -> Callable[[Inputs], float | None]:
    """Reads of some arguments and writes as large as some; the first of each must be there."""

    def rule(inputs: Inputs) -> float | None:
        if (reads and inputs.tensor(reads[0]) is None) or (writes and inputs.tensor(writes[0]) is None):
            return None
        return float(sum(t.bytes for at in (*reads, *writes) if (t := inputs.tensor(at)) is not None))

    return rule


def _reduction(dims_at: int) -> Callable[[Inputs], float | None]:
    """One read; the output is the input without the reduced dimensions (one element where none is written)."""

    def rule(inputs: Inputs) -> float | None:
        source = inputs.tensor(0)
        if source is None:
            return None
        dims = inputs.integers(dims_at)
        rank = len(source.shape)
        if not dims or any(not -rank <= d < rank for d in dims):
            return float(source.bytes + source.width)
        kept = prod(n for i, n in enumerate(source.shape) if i not in {d % rank for d in dims})
        return float(source.bytes + kept * source.width)

    return rule


def _concatenation(inputs: Inputs) -> float | None:
    return 2.0 * sum(t.bytes for t in inputs.tensors) if inputs.lists else None


def _lookup(table: int, index: int, per_row: bool) -> Callable[[Inputs], float | None]:
    """Rows (or elements) of a table by index: indices and rows read, rows written."""

    def rule(inputs: Inputs) -> float | None:
        source, at = inputs.tensor(table), inputs.tensor(index)
        if source is None or at is None or not source.shape:
            return None
        row = prod(source.shape[1:]) if per_row else 1
        return float(at.bytes + 2 * at.numel * row * source.width)

    return rule


def _embedding_backward(inputs: Inputs) -> float | None:
    grad, at, rows = inputs.tensor(0), inputs.tensor(1), inputs.integers(2)
    if grad is None or at is None or not grad.shape:
        return None
    table = rows[0] * grad.shape[-1] * grad.width if rows else grad.bytes
    return float(grad.bytes + at.bytes + table)


def _pooling(indices: bool, kernel_at: int = 1, stride_at: int = 2) -> Callable[[Inputs], float | None]:
    """Input read, output written (input over the strides), with indices of 8 bytes for max pooling."""

    def rule(inputs: Inputs) -> float | None:
        source = inputs.tensor(0)
        if source is None:
            return None
        step = inputs.integers(stride_at) or inputs.integers(kernel_at)
        if not step:
            return None
        axes = step if len(step) > 1 else step * 2
        out = source.numel / max(prod(axes), 1)
        return float(source.bytes + out * (source.width + (8 if indices else 0)))

    return rule


def _adaptive(inputs: Inputs) -> float | None:
    source, size = inputs.tensor(0), inputs.integers(1)
    if source is None or not size or len(source.shape) < len(size):
        return None
    return float(source.bytes + prod(source.shape[: -len(size)]) * prod(size) * source.width)


def _resampling(inputs: Inputs) -> float | None:
    source, size = inputs.tensor(0), inputs.integers(1)
    if source is None or not size or len(source.shape) != len(size) + 2:
        return None
    return float(source.bytes + prod(source.shape[:2]) * prod(size) * source.width)


def _native_dropout(inputs: Inputs) -> float | None:
    source = inputs.tensor(0)
    return float(2 * source.bytes + source.numel) if source is not None else None


def _foreach(name: str, inputs: Inputs) -> float | None:
    """Every list read, one written (in place or new); norms write nothing, copies do not read their target."""
    lists = [sum(t.bytes for t in members) for members in inputs.lists]
    if not lists:
        return None
    if name == "aten::_foreach_zero_":
        return float(lists[0])
    if name == "aten::_foreach_copy_":
        return float(sum(lists[:2]))
    return float(sum(lists) + (0 if name.startswith("aten::_foreach_norm") else lists[0]))


def _fused_optimizer(inputs: Inputs) -> float | None:
    """Parameters, gradients and states read; all but the gradients (second list) written."""
    lists = [sum(t.bytes for t in members) for members in inputs.lists]
    return float(2 * sum(lists) - lists[1]) if len(lists) >= 2 else None


def _unfold(inputs: Inputs) -> float | None:
    source, kernel = inputs.tensor(0), inputs.integers(1)
    return float(source.bytes * (1 + prod(kernel))) if source is not None and kernel else None


def _loss_forward(inputs: Inputs) -> float | None:
    """Of the log-probabilities only the target's are read."""
    target = inputs.tensor(1)
    return float(target.bytes + target.numel * 4) if target is not None else None


def _loss_backward(inputs: Inputs) -> float | None:
    logits = inputs.tensor(1)
    return float(logits.bytes) if logits is not None else None


# of an operator's bytes, those of each of its kernels by what it reads and writes: (piece of the kernel's name, share)
_KERNELS: dict[str, tuple[tuple[str, float], ...]] = {
    "aten::native_layer_norm_backward": (("GammaBeta", 2 / 5), ("grad_input", 3 / 5)),
    "aten::native_group_norm": (("RowwiseMoments", 1 / 3),),
    "aten::native_group_norm_backward": (("ComputeInternalGradients", 2 / 5),),
}


@lru_cache(maxsize=4096)
def kernel_share(operator: str, kernel: str) -> float | None:
    """The share of its operator's bytes that a kernel moves; None where its name does not tell."""
    return next((share for piece, share in _KERNELS.get(operator, ()) if piece in kernel), None)


_RULES: dict[str, Callable[[Inputs], float | None]] = {
    "aten::copy_": _copy,
    "aten::_to_copy": lambda inputs: _first(inputs, 2.0),
    "aten::clone": lambda inputs: _first(inputs, 2.0),
    "aten::contiguous": lambda inputs: _first(inputs, 2.0),
    "aten::cat": _concatenation,
    "aten::stack": _concatenation,
    "aten::_softmax": _streams((0,), (0,)),
    "aten::_log_softmax": _streams((0,), (0,)),
    "aten::_softmax_backward_data": _streams((0, 1), (0,)),
    "aten::_log_softmax_backward_data": _streams((0, 1), (0,)),
    "aten::_masked_softmax": _streams((0, 1), (0,)),
    "aten::native_layer_norm": _streams((0,), (0,)),
    "aten::_fused_rms_norm": _streams((0,), (0,)),
    "aten::_fused_rms_norm_backward": _streams((0, 1), (0,)),
    # the gradients of input and weight are made by kernels of their own, moments before they are applied: each reads anew
    "aten::native_layer_norm_backward": _streams((0, 1, 0, 1), (0,)),
    "aten::native_group_norm": _streams((0, 0), (0,)),
    "aten::native_group_norm_backward": _streams((0, 1, 0, 1), (0,)),
    "aten::native_batch_norm": _streams((0,), (0,)),
    "aten::native_batch_norm_backward": _streams((0, 1), (0,)),
    "aten::cudnn_batch_norm": _streams((0,), (0,)),
    "aten::cudnn_batch_norm_backward": _streams((0, 1), (0,)),
    "aten::_batch_norm_with_update": _streams((0,), (0,)),
    "aten::batch_norm_backward": _streams((0, 1), (0,)),
    "aten::miopen_batch_norm": _streams((0,), (0,)),
    "aten::miopen_batch_norm_backward": _streams((0, 1), (0,)),
    "aten::batch_norm_stats": _streams((0,), ()),
    "aten::batch_norm_elemt": _streams((0,), (0,)),
    "aten::batch_norm_backward_reduce": _streams((0, 1), ()),
    "aten::batch_norm_backward_elemt": _streams((0, 1), (0,)),
    "aten::native_dropout": _native_dropout,
    "aten::native_dropout_backward": _streams((0, 1), (0,)),
    "aten::sum": _reduction(1),
    "aten::mean": _reduction(1),
    "aten::amax": _reduction(1),
    "aten::amin": _reduction(1),
    "aten::max": _reduction(1),
    "aten::min": _reduction(1),
    "aten::argmax": _reduction(1),
    "aten::argmin": _reduction(1),
    "aten::var": _reduction(1),
    "aten::std": _reduction(1),
    "aten::var_mean": _reduction(1),
    "aten::prod": _reduction(1),
    "aten::any": _reduction(1),
    "aten::all": _reduction(1),
    "aten::logsumexp": _reduction(1),
    "aten::norm": _reduction(2),
    "aten::linalg_vector_norm": _reduction(2),
    "aten::cumsum": _streams((0,), (0,)),
    "aten::embedding": _lookup(0, 1, True),
    "aten::index_select": _lookup(0, 2, True),
    "aten::gather": _lookup(0, 2, False),
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::max_pool2d_with_indices": _pooling(True),
    "aten::avg_pool2d": _pooling(False),
    "aten::max_pool2d_with_indices_backward": _streams((0, 1), (1,)),
    "aten::avg_pool2d_backward": _streams((0,), (1,)),
    "aten::_adaptive_avg_pool2d": _adaptive,
    "aten::_adaptive_avg_pool2d_backward": _streams((0,), (1,)),
    "aten::upsample_nearest2d": _resampling,
    "aten::upsample_bilinear2d": _resampling,
    "aten::upsample_bicubic2d": _resampling,
    "aten::im2col": _unfold,
    "aten::nll_loss_forward": _loss_forward,
    "aten::nll_loss_backward": _loss_backward,
    "aten::nll_loss2d_forward": _loss_forward,
    "aten::nll_loss2d_backward": _loss_backward,
    # element by element after all, but with outputs that the inputs do not show, or too data-dependent to tell
    "aten::index": lambda _: None,
    "aten::index_put_": lambda _: None,
    "aten::_index_put_impl_": lambda _: None,
    "aten::scatter": lambda _: None,
    "aten::scatter_add": lambda _: None,
    "aten::index_add": lambda _: None,
    "aten::nonzero": lambda _: None,
    "aten::sort": lambda _: None,
    "aten::topk": lambda _: None,
    "aten::repeat": lambda _: None,
    "aten::roll": lambda inputs: _first(inputs, 2.0),
    "aten::flip": lambda inputs: _first(inputs, 2.0),
    "aten::_cudnn_rnn": lambda _: None,
    "aten::_cudnn_rnn_backward": lambda _: None,
    "aten::miopen_rnn": lambda _: None,
    "aten::grid_sampler_2d": lambda _: None,
}  # fmt: skip


def _first(inputs: Inputs, times: float) -> float | None:
    source: Tensor | None = inputs.tensor(0)
    return source.bytes * times if source is not None else None
