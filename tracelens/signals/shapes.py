"""An operator's recorded inputs, as torch.profiler writes them with ``record_shapes``: tensors, lists and concrete values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

Shape = tuple[int, ...]

# C++ names as torch writes them in "Input type"; the word we use for the format, and bytes an element
_TYPES: dict[str, tuple[str, int]] = {
    "float": ("fp32", 4),
    "double": ("fp64", 8),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::Float8_e8m0fnu": ("fp8", 1),
    "c10::Float4_e2m1fn_x2": ("fp4", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "c10::qint8": ("int8", 1),
    "c10::quint8": ("int8", 1),
    "bool": ("bool", 1),
    "short int": ("int", 2),
    "short": ("int", 2),
    "int": ("int", 4),
    "long int": ("int", 8),
    "long": ("int", 8),
    "long long": ("int", 8),
    "c10::complex<float>": ("complex", 8),
    "c10::complex<double>": ("complex", 16),
}
_NUMBER = re.compile(r"-?\d+")
FLOATING = ("fp64", "fp32", "bf16", "fp16", "fp8", "fp4")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor argument: sizes, format (None: not written), bytes an element."""

    shape: Shape
    format: str | None
    width: int

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes, every element once."""
        return self.numel * self.width


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments by position: a tensor, a tuple of tensors (TensorList), or None for what is neither.

    ``concrete`` are the written values of the rest, empty text where the file has none.
    """

    arguments: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    concrete: tuple[str, ...]

    def tensor(self, position: int) -> Tensor | None:
        """The tensor at a position, None where there is none."""
        found = self.arguments[position] if position < len(self.arguments) else None
        return found if isinstance(found, Tensor) else None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors in order, those in lists too."""
        flat: list[Tensor] = []
        for argument in self.arguments:
            if isinstance(argument, Tensor):
                flat.append(argument)
            elif argument is not None:
                flat.extend(argument)
        return tuple(flat)

    @property
    def lists(self) -> tuple[tuple[Tensor, ...], ...]:
        """The TensorList arguments in order."""
        return tuple(a for a in self.arguments if isinstance(a, tuple))

    def value(self, position: int) -> str:
        """The written value at a position, empty where the file has none."""
        return self.concrete[position] if position < len(self.concrete) else ""

    def integers(self, position: int) -> tuple[int, ...] | None:
        """A written list of integers (or one integer), None where the file has none."""
        text = self.value(position)
        if not text or re.fullmatch(r"[\s\[\](),\d-]+", text) is None:
            return None
        return tuple(int(n) for n in _NUMBER.findall(text))

    def flags(self, position: int) -> tuple[bool, ...] | None:
        """A written list of booleans, None where the file has none."""
        words = re.findall(r"True|False", self.value(position))
        return tuple(word == "True" for word in words) if words else None


def parse(recorded: Mapping[str, Any]) -> Inputs:
    """One entry of ``TraceTables.shapes``; what is malformed counts as not recorded."""
    dims, types = _sequence(recorded.get("dims")), _sequence(recorded.get("types"))
    concrete = tuple(str(value) for value in _sequence(recorded.get("concrete")))
    arguments: list[Tensor | tuple[Tensor, ...] | None] = []
    for position, sizes in enumerate(dims):
        written = str(types[position]) if position < len(types) else ""
        value = concrete[position] if position < len(concrete) else ""
        arguments.append(_argument(sizes, written, value))
    return Inputs(tuple(arguments), concrete)


_LARGEST = 2**40  # elements along one dimension


def _sequence(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _argument(sizes: object, written: str, value: str) -> Tensor | tuple[Tensor, ...] | None:
    if not isinstance(sizes, list):
        return None
    if sizes and all(isinstance(size, list) for size in sizes):
        # types of a list's members are not written
        known = _TYPES.get(written)
        members = [
            Tensor(tuple(size), known[0] if known else None, known[1] if known else 0)
            for size in sizes
            if all(type(n) is int and n <= _LARGEST for n in size)
        ]
        return tuple(members)
    if not all(type(size) is int and 0 <= size <= _LARGEST for size in sizes):
        return None
    known = _TYPES.get(written)
    if not sizes and (known is None or value):
        return None
    if known is None:
        # an unknown element type, but surely a tensor: sizes are written for nothing else
        return Tensor(tuple(sizes), None, 0) if "List" not in written else None
    return Tensor(tuple(sizes), *known)
