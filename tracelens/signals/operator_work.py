"""The work of the operators that launch kernels: each distinct (operator, shapes) computed once."""

from __future__ import annotations

from math import nan

import numpy as np
from numpy.typing import NDArray

from tracelens.signals import convolution
from tracelens.signals.activity import Activity
from tracelens.signals.flops import matrix_work
from tracelens.signals.kernel_names import MATRIX_FAMILIES, family, number_format
from tracelens.signals.operators import parent_operators
from tracelens.signals.shapes import Inputs, Shape, Tensor, parse
from tracelens.signals.traffic import traffic_bytes
from tracelens.signals.work import Work

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LEVELS = 4  # operators around the innermost one that may know the shapes: attention is wrapped three times


class WorkBook:
    """Works by distinct (operator, shape), each computed once."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.works: list[Work] = []
        self._index: dict[tuple[int, int, int, int], int] = {}
        self._inputs: dict[int, Inputs] = {}
        self._outputs: dict[tuple[Shape, Shape], Shape | None] | None = None
        self._around: Ints | None = None
        self._weight_gradients = np.array(
            [n in convolution.WEIGHT_GRADIENTS for n in activity.tables.names] or [False], dtype=bool
        )

    @property
    def around(self) -> Ints:
        """For each host row the operator around it."""
        if self._around is None:
            self._around = parent_operators(self.activity)
        return self._around

    def inputs(self, shape: int) -> Inputs:
        """The parsed inputs of a shape."""
        found = self._inputs.get(shape)
        if found is None:
            found = self._inputs[shape] = parse(self.activity.tables.shapes[shape])
        return found

    def matrix_rows(self, owner: Ints, kernel: NDArray[np.int32]) -> tuple[Ints, Ints]:
        """For each kernel by its operator's row: the row, itself or one around it, that is a known matrix operator, and
        its work's index (-1: none)."""
        host, base = self.activity.host, len(self.activity.tables.shapes) + 1
        if not owner.size:
            return owner, owner
        widths = self._widths(kernel)
        # the first kernel of an operator names the type where the operator's was not written
        rows, lead, inverse = np.unique(owner, return_index=True, return_inverse=True)
        width = widths[kernel[lead]]
        index = np.full(rows.size, -1, dtype=np.int64)
        current = rows.copy()
        for _ in range(_LEVELS):
            todo = np.flatnonzero((index < 0) & (current >= 0))
            if not todo.size:
                break
            at = current[todo]
            keys = (host.name[at].astype(np.int64) * base + host.shape[at] + 1) * 16 + width[todo]
            if self._weight_gradients[host.name[at]].any():
                # their weight's shape is the surrounding operator's: it belongs to the key
                around = self.around[at]
                keys = keys * base + np.where(around >= 0, host.shape[np.maximum(around, 0)], -1) + 1
            _, first, back = np.unique(keys, return_index=True, return_inverse=True)
            found = [self._matrix(int(at[i]), int(width[todo[i]])) for i in first.tolist()]
            index[todo] = np.array(found, dtype=np.int64)[back]
            left = todo[index[todo] < 0]
            if left.size:
                current[left] = self.around[current[left]]
        return np.where(index >= 0, current, -1)[inverse], index[inverse]

    def _widths(self, kernel: NDArray[np.int32]) -> Ints:
        """Bytes an element by kernel name code, as the name tells."""
        names = self.activity.tables.names
        widths = np.zeros(len(names), dtype=np.int64)
        codes = np.unique(kernel)
        widths[codes] = [_element_width(names[c]) for c in codes.tolist()]
        return widths

    def _matrix(self, row: int, width: int) -> int:
        """The index of an operator's work, -1 where it is no matrix operator or its shapes were not recorded."""
        host, tables = self.activity.host, self.activity.tables
        name, shape = int(host.name[row]), int(host.shape[row])
        if shape < 0:
            return -1
        operator, weight = tables.names[name], -1
        if operator in convolution.WEIGHT_GRADIENTS:
            weight = int(host.shape[self.around[row]]) if self.around[row] >= 0 else -1
        key = (name, shape, weight, width)
        if key not in self._index:
            inputs = _with_width(self.inputs(shape), width)
            if operator in convolution.WEIGHT_GRADIENTS:
                found = convolution.weight_gradient(inputs, self._weight(int(self.around[row]), weight))
            else:
                found = matrix_work(operator, inputs)
            if found is not None and not found.exact and operator not in convolution.CONVOLUTION_BACKWARD:
                found = self._with_output(inputs) or found
            if found is None:
                self._index[key] = -1
            else:
                self._index[key] = len(self.works)
                self.works.append(found)
        return self._index[key]

    def _weight(self, around: int, shape: int) -> Shape | None:
        if shape < 0:
            return None
        sizes = convolution.convolution_sizes(
            self.activity.tables.names[self.activity.host.name[around]], self.inputs(shape)
        )
        return sizes[1] if sizes is not None else None

    def _with_output(self, inputs: Inputs) -> Work | None:
        """A convolution whose settings were not written: its backward shows the output."""
        source, weight = inputs.tensor(0), inputs.tensor(1)
        if source is None or weight is None:
            return None
        out = self._convolution_outputs().get((source.shape, weight.shape))
        return convolution.convolution_with_output(inputs, out) if out is not None else None

    def _convolution_outputs(self) -> dict[tuple[Shape, Shape], Shape | None]:
        """Output sizes by input and weight sizes, from backward operators; None where two outputs were seen."""
        if self._outputs is None:
            host, names = self.activity.host, self.activity.tables.names
            self._outputs = {}
            codes = [i for i, n in enumerate(names) if n in convolution.CONVOLUTION_BACKWARD]
            rows = np.flatnonzero(np.isin(host.name, codes) & (host.shape >= 0))
            for name, shape in set(zip(host.name[rows].tolist(), host.shape[rows].tolist(), strict=True)):
                sizes = convolution.convolution_sizes(names[name], self.inputs(shape))
                if sizes is not None:
                    key = (sizes[0], sizes[1])
                    known = self._outputs.get(key, sizes[2])
                    self._outputs[key] = sizes[2] if known == sizes[2] else None
        return self._outputs

    def traffic(self, owner: Ints, kernel: NDArray[np.int32]) -> tuple[Floats, NDArray[np.bool_]]:
        """Least bytes of each kernel's operator (NaN: unknown), and whether recorded types alone give them."""
        host, tables = self.activity.host, self.activity.tables
        if not owner.size:
            return np.empty(0), np.empty(0, dtype=bool)
        widths = self._widths(kernel)
        shape = host.shape[owner].astype(np.int64)
        keys = (host.name[owner].astype(np.int64) * (len(tables.shapes) + 1) + shape + 1) * 16 + widths[
            kernel
        ]
        _, first, back = np.unique(keys, return_index=True, return_inverse=True)
        values, certain = [], []
        for i in first.tolist():
            at = int(shape[i])
            found, typed = None, False
            if at >= 0:
                inputs = self.inputs(at)
                typed = all(t.width for t in inputs.tensors)
                found = traffic_bytes(
                    tables.names[host.name[owner[i]]], _with_width(inputs, int(widths[kernel[i]]))
                )
            values.append(found if found is not None else nan)
            certain.append(typed)
        return np.array(values, dtype=np.float64)[back], np.array(certain, dtype=bool)[back]


def _element_width(name: str) -> int:
    """Bytes an element of what a kernel works on, as its name tells; 4 where it does not."""
    if "double" in name:
        return 8
    if "c10::Half" in name or "BFloat16" in name:
        return 2
    used = number_format(name) if family(name) in MATRIX_FAMILIES else None
    return {"fp64": 8, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}.get(used or "", 4)


def _with_width(inputs: Inputs, width: int) -> Inputs:
    """Tensors whose element type was not written (those of lists, all in old files) take the kernel's."""
    if all(t.width for t in inputs.tensors):
        return inputs

    def completed(tensor: Tensor) -> Tensor:
        return tensor if tensor.width else Tensor(tensor.shape, tensor.format, width)

    return Inputs(
        tuple(
            completed(a)
            if isinstance(a, Tensor)
            else tuple(completed(t) for t in a)
            if a is not None
            else None
            for a in inputs.arguments
        ),
        inputs.concrete,
    )
