"""What a DataLoader is: its effective arguments, its dataset, and the line of code that built it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any, Dict, Optional, Tuple

from . import environment
from .redact import Redactor
from .runtime import Agent
from .sharding import is_iterable, shards

Place = Tuple[Optional[str], Optional[int]]
_OWN = os.path.dirname(os.path.abspath(__file__))
_FOLDERS = (
    "root", "data_dir", "root_dir", "folder", "path", "img_dir", "image_dir", "data_root", "directory",
)  # fmt: skip
_WRAPPERS = 4  # data sets inside data sets that are looked into


def loader_line(loader: Any, index: int, place: Optional[Place], agent: Agent) -> Dict[str, Any]:
    """The ``loader`` line of loader.jsonl."""
    dataset = getattr(loader, "dataset", None)
    try:
        length: Optional[int] = len(dataset)  # type: ignore[arg-type]
    except Exception:  # an IterableDataset need not have one, and user code may raise anything
        length = None
    context = getattr(loader, "multiprocessing_context", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    custom = batch_sampler is not None and type(batch_sampler).__name__ != "BatchSampler"
    collate = getattr(loader, "collate_fn", None)
    workers = getattr(loader, "num_workers", None)
    init = getattr(loader, "worker_init_fn", None)
    file, line = place or (None, None)
    found: Dict[str, Any] = {
        "event": "loader", "loader": index, "ts": time.time_ns(), "pid": agent.pid, "dataset": type(dataset).__name__,
        "dataset_kind": "iterable" if is_iterable(dataset) else "map", "dataset_len": length,
    }  # fmt: skip
    for name in (
        "batch_size",
        "num_workers",
        "pin_memory",
        "prefetch_factor",
        "persistent_workers",
        "drop_last",
        "timeout",
    ):
        found[name] = getattr(loader, name, None)
    found.update(_source(dataset))
    found.update(
        in_order=getattr(loader, "in_order", True),
        multiprocessing_context=None if context is None else context.get_start_method(),
        start_method=multiprocessing.get_start_method(allow_none=True),
        sampler=type(getattr(loader, "sampler", None)).__name__,
        batch_sampler=type(batch_sampler).__name__ if custom else None,
        collate_fn=getattr(collate, "__name__", type(collate).__name__),
        worker_init_fn=init is not None,
        shards=shards(dataset, init, max(workers or 0, 2)),
        file=file,
        line=line,
        storage=storage(dataset, agent.redactor),
    )
    found["class"] = type(loader).__name__
    return found


def _source(dataset: Any) -> Dict[str, Any]:
    """Where the data set's class comes from, below Subset and its like; whether it fetches whole batches; and, of a
    Hugging Face data set, what it converts its rows to."""
    inner = dataset
    for _ in range(_WRAPPERS):
        below = getattr(inner, "__dict__", {}).get("dataset")
        if below is None:
            break
        inner = below
    found: Dict[str, Any] = {
        "dataset_module": type(inner).__module__,
        "getitems": callable(getattr(dataset, "__getitems__", None)),
    }
    if found["dataset_module"].split(".")[0] == "datasets":
        try:
            found["dataset_format"] = str(inner.format["type"] or "python")
        except Exception:  # another version's attribute, or one that its dataset computes and cannot
            found["dataset_format"] = None
    return found


def storage(dataset: Any, redactor: Redactor) -> Optional[Dict[str, str]]:
    """The file system that the data is on, where the dataset names a path."""
    for name in _FOLDERS:
        value = getattr(dataset, "__dict__", {}).get(name)
        if isinstance(value, (str, os.PathLike)) and os.path.exists(value):
            found = environment.file_system(os.fspath(value))
            if found is not None:
                found["mount"] = redactor.path(found["mount"])
            return found
    return None


def caller(redactor: Redactor) -> Place:
    """Where a loader is built: the first frame outside torch, us and installed packages, else outside torch."""
    frame: Any = sys._getframe(1)
    found: Place = (None, None)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OWN) and "/torch/utils/data/" not in name:
            place = (redactor.path(name), frame.f_lineno)
            if "site-packages" not in name and "dist-packages" not in name and not name.startswith("<"):
                return place
            if found[0] is None:
                found = place
        frame = frame.f_back
    return found
