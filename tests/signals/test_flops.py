"""FLOPs and least bytes of operators, against counting loops, torch's own counter and operators that really ran."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.signals.convolution import (
    convolution_flops,
    convolution_sizes,
    convolution_with_output,
    convolved,
    weight_gradient,
)
from tracelens.signals.flops import attention_flops, broadcast, matmul_flops, matrix_work
from tracelens.signals.shapes import Tensor, parse
from tracelens.signals.traffic import traffic_bytes
from tracelens.signals.work import Work

small = st.integers(1, 5)


def recorded(
    dims: list[Any], types: list[str] | str = "float", concrete: list[str] | None = None
) -> Mapping[str, Any]:
    """An entry of the shapes table."""
    listed = (
        types
        if isinstance(types, list)
        else [types if d and not isinstance(d[0], list) else "" for d in dims]
    )
    return {"dims": dims, "types": listed, "concrete": concrete or [""] * len(dims)}


def work(
    operator: str, dims: list[Any], types: list[str] | str = "float", concrete: list[str] | None = None
) -> Work:
    found = matrix_work(operator, parse(recorded(dims, types, concrete)))
    assert found is not None
    return found


@given(small, small, small, st.lists(small, max_size=2))
def test_matmul_counts_multiply_adds(m: int, k: int, n: int, batch: list[int]) -> None:
    count = sum(2 for _ in itertools.product(range(prod(batch)), range(m), range(n), range(k)))
    assert matmul_flops((*batch, m, k), (*batch, k, n)) == count
    # one side broadcasts
    assert matmul_flops((*batch, m, k), (k, n)) == count


def test_matmul_shapes_that_do_not_fit() -> None:
    assert matmul_flops((2, 3), (4, 5)) is None
    assert matmul_flops((2, 2, 3), (3, 3, 5)) is None
    assert matmul_flops((), (3, 5)) is None
    assert matmul_flops((3,), (3, 5)) == 30
    assert matmul_flops((2, 3), (3,)) == 12


@given(st.lists(st.integers(1, 3), max_size=4), st.lists(st.integers(1, 3), max_size=4))
def test_broadcast_as_numpy(left: list[int], right: list[int]) -> None:
    numpy = pytest.importorskip("numpy")
    try:
        expected = numpy.broadcast_shapes(tuple(left), tuple(right))
    except ValueError:
        expected = None
    assert broadcast(tuple(left), tuple(right)) == expected


@given(
    size=st.tuples(st.integers(3, 7), st.integers(3, 7)), kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)), padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    batch=st.integers(1, 2), channels=st.integers(1, 3), out=st.integers(1, 3), groups=st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_convolution_counts_multiply_adds(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    batch: int, channels: int, out: int, groups: int,
) -> None:  # fmt: skip
    """Every window position is counted by walking over the padded input; padding counts, as in every convention."""
    positions = [
        len(range(0, n + 2 * p - k + 1, s)) for n, k, s, p in zip(size, kernel, stride, padding, strict=True)
    ]
    weight = (out * groups, channels, *kernel)
    count = 0
    for _ in itertools.product(range(batch), range(out * groups), *(range(n) for n in positions)):
        count += 2 * channels * kernel[0] * kernel[1]
    assert convolved(size, kernel, stride, padding, (1, 1)) == tuple(positions)
    assert convolution_flops((batch, out * groups, *positions), weight) == count
    found = work(
        "aten::cudnn_convolution", [[batch, channels * groups, *size], list(weight), [], [], [], [], [], [], []],
        concrete=["", "", str(list(padding)), str(list(stride)), "[1, 1]", str(groups), "False", "False", "True"],
    )  # fmt: skip
    assert found.flops == count
    assert found.exact


def test_convolution_without_written_settings() -> None:
    """Same size assumed, not exact; its backward shows the true output."""
    dims = [[2, 3, 32, 32], [8, 3, 3, 3], [], [], [], [], [], [], []]
    found = work("aten::cudnn_convolution", dims)
    assert not found.exact
    assert found.flops == 2 * 2 * 8 * 32 * 32 * 27
    backward = parse(recorded([[2, 8, 16, 16], [2, 3, 32, 32], [8, 3, 3, 3], [], [], [], [], [], [], [], []]))
    sizes = convolution_sizes("aten::convolution_backward", backward)
    assert sizes == ((2, 3, 32, 32), (8, 3, 3, 3), (2, 8, 16, 16))
    completed = convolution_with_output(parse(recorded(dims)), sizes[2])
    assert completed is not None
    assert completed.flops == 2 * 2 * 8 * 16 * 16 * 27
    assert completed.exact


def test_convolution_backward_makes_what_the_mask_asks() -> None:
    dims = [[2, 8, 16, 16], [2, 4, 16, 16], [8, 4, 3, 3], [8], [], [], [], [], [], [], []]
    one = 2 * 2 * 8 * 16 * 16 * 4 * 9
    both = work("aten::convolution_backward", dims, concrete=[""] * 10 + ["[True, True, False]"])
    assert (both.flops, both.gradients, both.exact) == (2 * one, 2, True)
    weight_only = work("aten::convolution_backward", dims, concrete=[""] * 10 + ["[False, True, False]"])
    assert (weight_only.flops, weight_only.gradients) == (one, 1)
    assert not work("aten::convolution_backward", dims).exact
    nothing = parse(recorded(dims, concrete=[""] * 10 + ["[False, False, True]"]))
    assert matrix_work("aten::convolution_backward", nothing) is None


def test_gradients_of_older_torch() -> None:
    grad, source, weight = [2, 8, 16, 16], [2, 4, 16, 16], (8, 4, 3, 3)
    one = 2 * 2 * 8 * 16 * 16 * 4 * 9
    assert work("aten::cudnn_convolution_backward_input", [[], grad, list(weight), [], []]).flops == one
    inputs = parse(recorded([[], grad, source, [], []]))
    known = weight_gradient(inputs, weight)
    assert known is not None
    assert known.flops == one
    guessed = weight_gradient(inputs, None)
    assert guessed is not None
    assert guessed.flops == one / 9
    assert not guessed.exact


def test_transposed_convolution_counts_from_its_input() -> None:
    dims = [[2, 8, 5, 5], [8, 4, 2, 2], [], [], [], [], [], [], []]
    expected = 2 * (2 * 8 * 5 * 5) * 4 * 4
    assert work("aten::cudnn_convolution_transpose", dims).flops == expected
    flagged = work(
        "aten::convolution", dims, concrete=["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]
    )
    assert flagged.flops == expected
    backward = work(
        "aten::convolution_backward", [[2, 4, 10, 10], [2, 8, 5, 5], [8, 4, 2, 2], [], [], [], [], [], [], [], []],
        concrete=[""] * 10 + ["[True, False, False]"],
    )  # fmt: skip
    assert backward.flops == expected


def test_bytes_of_a_matmul_are_read_and_written_once() -> None:
    found = work(
        "aten::addmm",
        [[16], [8, 4], [4, 16], [], []],
        ["c10::Half"] * 3 + ["Scalar"] * 2,
        [""] * 3 + ["1", "1"],
    )
    assert found.flops == 2 * 8 * 4 * 16
    assert found.bytes == 2 * (16 + 8 * 4 + 4 * 16 + 8 * 16)
    assert found.format == "fp16"
    eight_bit = work("aten::_scaled_mm", [[8, 4], [4, 16]], "c10::Float8_e4m3fn")
    assert eight_bit.bytes == 8 * 4 + 4 * 16 + 2 * 8 * 16


def test_linear_and_grouped() -> None:
    assert work("aten::linear", [[2, 3, 4], [5, 4], [5]]).flops == 2 * 6 * 4 * 5
    assert work("aten::_grouped_mm", [[10, 4], [3, 4, 6]]).flops == 2 * 10 * 4 * 6


@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), small, small)
def test_attention_counts_both_products(b: int, h: int, q: int, k: int, d: int, v: int) -> None:
    count = sum(2 * d + 2 * v for _ in itertools.product(range(b), range(h), range(q), range(k)))
    assert attention_flops(b, h, q, k, d, v) == count
    dims = [[b, h, q, d], [b, h, k, d], [b, h, k, v]]
    found = work("aten::_scaled_dot_product_flash_attention", dims)
    assert found.flops == count
    assert found.exponentials == b * h * q * k
    sequence_first = [[b, q, h, d], [b, k, h, d], [b, k, h, v]]
    assert work("aten::_flash_attention_forward", sequence_first).flops == count


def test_attention_causal_and_backward() -> None:
    q = [2, 4, 128, 64]
    full = 2 * 2 * 4 * 128 * 128 * 128
    flags = ["", "", "", "0.0", "True", "False", ""]
    assert (
        work("aten::_scaled_dot_product_flash_attention", [q, q, q, [], [], [], []], concrete=flags).flops
        == full / 2
    )
    lse = [2, 4, 128]
    dims = [q, q, q, q, q, lse, [], [], [], [], [], []]
    plain = work("aten::_scaled_dot_product_flash_attention_backward", dims)
    assert plain.flops == 2.5 * full
    packed = work(
        "aten::_flash_attention_forward", [[256, 4, 64], [256, 4, 64], [256, 4, 64], [3], [3], [], []],
        ["float", "float", "float", "int", "int", "Scalar", "Scalar"],
    )  # fmt: skip
    assert packed.flops == full
    assert not packed.exact


@pytest.mark.parametrize(
    ("operator", "dims", "types", "concrete", "expected"),
    [
        ("aten::add", [[8, 16], [8, 16], []], ["float", "float", "Scalar"], ["", "", "1"], 3 * 128 * 4),
        ("aten::add_", [[8, 16], [8, 16], []], ["float", "float", "Scalar"], ["", "", "1"], 3 * 128 * 4),
        ("aten::mul", [[8, 16], [16]], ["c10::Half", "c10::Half"], None, 2 * (128 + 16 + 128)),
        ("aten::mul", [[8, 16], []], ["c10::BFloat16", "double"], ["", ""], 2 * 256 + 8),
        ("aten::eq", [[8, 16], [8, 16]], ["float", "float"], None, 2 * 128 * 4 + 128),
        ("aten::relu", [[8, 16]], ["float"], None, 2 * 128 * 4),
        ("aten::copy_", [[8, 16], [8, 16], []], ["c10::Half", "float", "Scalar"], ["", "", "False"], 128 * 6),
        ("aten::fill_", [[8, 16], []], ["float", "Scalar"], ["", "0"], 512),
        ("aten::sum", [[8, 16], [], [], []], ["float", "ScalarList", "Scalar", ""], ["", "[0]", "False", ""], 512 + 64),
        ("aten::sum", [[8, 16], []], ["float", ""], None, 512 + 4),
        ("aten::_softmax", [[8, 16], [], []], ["float", "Scalar", "Scalar"], ["", "-1", "False"], 1024),
        ("aten::cudnn_batch_norm_backward", [[2, 4, 8, 8], [2, 4, 8, 8], [4]], ["float"] * 3, None, 3 * 512 * 4),
        ("aten::cat", [[[8, 16], [8, 16]], []], ["TensorList", "Scalar"], ["", "0"], 0),
        ("aten::embedding", [[100, 16], [8]], ["float", "long int"], None, 64 + 2 * 8 * 16 * 4),
        ("aten::embedding_dense_backward", [[8, 16], [8], []], ["float", "long int", "Scalar"], ["", "", "100"],
         8 * 16 * 4 + 64 + 100 * 16 * 4),
        ("aten::max_pool2d_with_indices", [[1, 2, 8, 8], [], []], ["float", "ScalarList", "ScalarList"],
         ["", "[2, 2]", "[2, 2]"], 128 * 4 + 32 * 12),
        ("triton_poi_fused_add_0", [[8, 16], [8, 16], []], ["float", "float", "Scalar"], ["", "", "128"], 1024),
    ],
)  # fmt: skip
def test_traffic(
    operator: str, dims: list[Any], types: list[str], concrete: list[str] | None, expected: int
) -> None:
    assert traffic_bytes(operator, parse(recorded(dims, types, concrete))) == expected


def test_traffic_of_lists_needs_a_width() -> None:
    inputs = parse(recorded([[[8, 16], [4]], [[8, 16], [4]], []], ["TensorList", "TensorList", "Scalar"]))
    widened = type(inputs)(
        tuple(
            tuple(Tensor(t.shape, None, 4) for t in a) if isinstance(a, tuple) else a
            for a in inputs.arguments
        ),
        inputs.concrete,
    )
    assert traffic_bytes("aten::_foreach_add_", widened) == 3 * 132 * 4
    assert traffic_bytes("aten::_foreach_zero_", widened) == 132 * 4
    assert traffic_bytes("aten::_fused_adamw_", widened) == (2 * 2 - 1) * 132 * 4


def test_unknown_operators_and_broken_shapes_tell_nothing() -> None:
    assert matrix_work("my::operator", parse(recorded([[2, 3], [3, 4]]))) is None
    assert traffic_bytes("my::operator", parse(recorded([[2, 3]]))) is None
    assert traffic_bytes("aten::nonzero", parse(recorded([[2, 3]]))) is None
    for dims in (
        [],
        [[2, 3]],
        [[2, 3], "x"],
        [[2, 3], [4, 5]],
        [[2, -3], [3, 4]],
        ["", ""],
        None,
        [None, {}],
    ):
        assert matrix_work("aten::mm", parse({"dims": dims, "types": ["float", "float"]})) is None


@given(
    st.recursive(
        st.none() | st.integers(-3, 5) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=4)
    )
)
def test_no_shape_breaks_the_parser(value: object) -> None:
    inputs = parse({"dims": value, "types": value, "concrete": value})
    for operator in (
        "aten::mm",
        "aten::convolution",
        "aten::convolution_backward",
        "aten::_flash_attention_forward",
    ):
        matrix_work(operator, inputs)
    for operator in ("aten::add", "aten::sum", "aten::cat", "aten::_foreach_add_", "aten::copy_"):
        traffic_bytes(operator, inputs)


def test_against_torch_on_operators_that_ran(tmp_path: Path) -> None:
    """A small network, forward and backward: the profiler's shapes give what torch's own counter counts.

    Without groups, which that counter leaves out of weight gradients.
    """
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3),
        torch.nn.Flatten(), torch.nn.Linear(16 * 6 * 6, 10),
    )  # fmt: skip
    data = torch.randn(2, 3, 16, 16)
    with FlopCounterMode(display=False) as counter:
        net(data).sum().backward()
    net.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        net(data).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    outermost = {"aten::convolution", "aten::convolution_backward", "aten::addmm", "aten::mm"}
    total = 0.0
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("name") in outermost:
            args = event["args"]
            found = matrix_work(event["name"], parse({
                "dims": args["Input Dims"], "types": args["Input type"], "concrete": args["Concrete Inputs"],
            }))  # fmt: skip
            assert found is not None, event
            assert found.exact, event
            total += found.flops or 0.0
    assert total == counter.get_total_flops()
