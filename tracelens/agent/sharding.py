"""Whether an IterableDataset gives each loader worker its own share, as far as its code shows it."""

from __future__ import annotations

import types
from typing import Any, Iterator, Optional

_WORDS = {"get_worker_info", "worker_info", "split_by_worker", "sharding_filter", "apply_sharding"}


def shards(dataset: Any, worker_init_fn: Any, workers: int) -> Optional[bool]:
    """None for a map-style dataset; True where its code asks which worker it runs in (in any method of its
    classes, of a dataset inside it, or in ``worker_init_fn``), or where it has shards enough for ``workers``."""
    if not is_iterable(dataset):
        return None
    if worker_init_fn is not None and _mentions(_code(worker_init_fn)):
        return True
    return _sharded(dataset, workers, 4)


def is_iterable(dataset: Any) -> bool:
    """Whether torch would treat ``dataset`` as an IterableDataset."""
    import torch.utils.data

    return isinstance(dataset, torch.utils.data.IterableDataset)


def _sharded(dataset: Any, workers: int, depth: int) -> bool:
    count = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None)
    if isinstance(count, int) and type(dataset).__module__.startswith("datasets."):
        return count >= workers
    for kind in type(dataset).__mro__:
        if kind.__module__.startswith("torch.utils.data.dataset") or kind is object:
            continue
        if kind.__name__ in ("ShardingFilterIterDataPipe", "SplitByWorker"):
            return True
        if any(_mentions(_code(member)) for member in vars(kind).values()):
            return True
    if depth:
        for value in list(getattr(dataset, "__dict__", {}).values()):
            for inner in value if isinstance(value, (list, tuple)) else (value,):
                if inner is dataset or isinstance(inner, type) or not hasattr(inner, "__dict__"):
                    continue
                iterates = is_iterable(inner) or callable(getattr(inner, "__iter__", None))
                if iterates and _sharded(inner, workers, depth - 1):
                    return True
    return False


def _code(member: Any) -> Optional[types.CodeType]:
    function = getattr(member, "__func__", member)
    function = getattr(function, "__wrapped__", function)
    return getattr(function, "__code__", None)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _mentions(code: Optional[types.CodeType]) -> bool:
    return code is not None and not _WORDS.isdisjoint(_names(code))
