"""What ``tracelens record`` was asked for, checked before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.agent.config import Setting
from tracelens.errors import UsageError

_MOST = 65_536  # workers, threads and batches to prefetch; a batch may have more samples
_WHOLE = {"num_workers": 0, "prefetch_factor": 1, "batch_size": 1, "num_threads": 1}
_FLAGS = {"pin_memory", "persistent_workers", "drop_last"}
_METHODS = {"fork", "spawn", "forkserver"}
_CODE_EDITS = {
    "non_blocking": "an argument of Tensor.to(): write batch.to(device, non_blocking=True) in the training loop",
    "amp": "a code edit: wrap forward and loss in torch.autocast",
    "autocast": "a code edit: wrap forward and loss in torch.autocast",
    "bf16": "a code edit: wrap forward and loss in torch.autocast(dtype=torch.bfloat16)",
    "tf32": "a code edit: torch.set_float32_matmul_precision('high')",
    "compile": "a code edit: model = torch.compile(model)",
    "channels_last": "a code edit: model.to(memory_format=torch.channels_last)",
    "fused": "an argument of the optimizer: torch.optim.AdamW(..., fused=True)",
    "collate_fn": "a function, which only the code can pass",
    "sampler": "an object, which only the code can pass",
    "shuffle": "part of what is trained, and is left to the code",
}


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """One ``record``: ``command`` is the job's argv, ``set`` the texts of ``--set``, ``out`` the bundle itself."""

    command: tuple[str, ...]
    out: Path | None = None
    set: tuple[str, ...] = ()
    stop_after: int | None = None
    probe: float | None = None  # seconds for measuring the loader alone, of tune --loader-only
    trace: bool = True
    stacks: bool = True
    include_sensitive: bool = False


def parse_setting(text: str) -> Setting:
    """``[LOADER.]KEY=VALUE``; UsageError for a key that no loader argument has, or a value it cannot take."""
    name, equals, value = text.partition("=")
    loader, _, key = name.rpartition(".")
    if not equals or not key or (name.count(".") and not loader):
        raise UsageError(f"--set {text}: write [LOADER.]KEY=VALUE, for example --set num_workers=4")
    if key in _CODE_EDITS:
        raise UsageError(f"--set {text}: {key} cannot be set from outside; it is {_CODE_EDITS[key]}")
    if key == "num_threads" and loader:
        raise UsageError(f"--set {text}: num_threads is the process's, not a loader's; leave out {loader!r}")
    return Setting(loader or None, key, _value(text, key, value.strip()))


def _value(text: str, key: str, value: str) -> Any:
    if key in ("prefetch_factor", "multiprocessing_context") and value.lower() == "none":
        return None
    if key in _WHOLE:
        most = 2**31 if key == "batch_size" else _MOST
        if not re.fullmatch(r"\d{1,10}", value) or not _WHOLE[key] <= int(value) <= most:
            raise UsageError(f"--set {text}: {key} takes a whole number from {_WHOLE[key]} to {most}")
        return int(value)
    if key in _FLAGS:
        if value.lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise UsageError(f"--set {text}: {key} is true or false")
        return value.lower() in ("true", "1", "yes")
    if key == "multiprocessing_context":
        if value not in _METHODS:
            raise UsageError(
                f"--set {text}: multiprocessing_context is one of {', '.join(sorted(_METHODS))}, none"
            )
        return value
    known = ", ".join(sorted([*_WHOLE, *_FLAGS, "multiprocessing_context"]))
    raise UsageError(f"--set {text}: {key!r} is not among what can be set: {known}")


def parse_settings(texts: tuple[str, ...]) -> list[Setting]:
    """All of them; two values for the same key and loader are an error."""
    found: dict[tuple[str | None, str], Setting] = {}
    for text in texts:
        setting = parse_setting(text)
        place = (setting.loader, setting.key)
        if place in found and found[place].value != setting.value:
            raise UsageError(f"--set {text}: {setting.key} was already set to {found[place].value}")
        found[place] = setting
    # A setting for one loader comes after those for all, and so wins.
    return sorted(found.values(), key=lambda setting: setting.loader is not None)
