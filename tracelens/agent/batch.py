"""What a batch is made of: samples, bytes and dtypes, for any nesting of tensors and arrays."""

from __future__ import annotations

from itertools import islice
from typing import Any, Dict, Iterable, List, Optional, Tuple

_LEAVES = 256  # a batch of thousands of small tensors is described by its first ones, scaled up
_VISITS = 2048  # containers of plain Python objects are not walked further than this


def describe(batch: Any) -> Tuple[Optional[int], int, Dict[str, int]]:
    """Samples (the leading size that most tensors share), bytes, and bytes by dtype.

    Looks at shapes only: nothing is copied, moved or synchronised. Samples are None where nothing in the
    batch has a leading dimension.
    """
    sizes: Dict[int, int] = {}
    dtypes: Dict[str, int] = {}
    total = 0
    leaves = 0
    visits = 0
    stack: List[Any] = [batch]
    containers = set()
    while stack and leaves < _LEAVES and visits < _VISITS:
        item = stack.pop()
        visits += 1
        shape = getattr(item, "shape", None)
        dtype = getattr(item, "dtype", None)
        if shape is not None and dtype is not None:
            leaves += 1
            count = 1
            for length in shape:
                count *= int(length)
            size = count * _width(item)
            name = str(dtype).replace("torch.", "")
            dtypes[name] = dtypes.get(name, 0) + size
            total += size
            if len(shape):
                first = int(shape[0])
                sizes[first] = sizes.get(first, 0) + 1
        elif isinstance(item, (bytes, bytearray)):
            leaves += 1
            total += len(item)
            dtypes["bytes"] = dtypes.get("bytes", 0) + len(item)
        elif id(item) not in containers:
            containers.add(id(item))
            stack.extend(islice(_inside(item), _VISITS))
    if stack and leaves >= _LEAVES:
        scale = (len(stack) + leaves) / leaves
        total = int(total * scale)
        dtypes = {name: int(size * scale) for name, size in dtypes.items()}
    if sizes:
        samples: Optional[int] = max(sizes, key=lambda size: (sizes[size], size))
    else:
        samples = len(batch) if isinstance(batch, (list, tuple)) and batch else None
    return samples, total, dtypes


def _width(item: Any) -> int:
    width = getattr(item, "itemsize", None)
    return int(item.element_size() if width is None else width)


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, (list, tuple)):
        return item
    if isinstance(item, (str, int, float, bool, type(None), type)):
        return ()
    if isinstance(item, dict) or (hasattr(item, "keys") and hasattr(item, "values")):
        return item.values()  # type: ignore[no-any-return]
    return vars(item).values() if hasattr(item, "__dict__") else ()
