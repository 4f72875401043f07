"""Making torch's profiler: its options as far as this torch knows them, and no chatter on the job's stderr."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict


def make(torch: Any, kind: str) -> Any:
    """A profiler that is not prepared yet. ``kind`` is lean, shapes or stacks."""
    from torch.profiler.profiler import _KinetoProfile

    activities = [torch.profiler.ProfilerActivity.CPU]
    if records_cuda(torch):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return _KinetoProfile(
        activities=activities,
        record_shapes=kind == "shapes",
        # On the CPU torch warns on stderr about blocks from before the window, and nothing needs them.
        profile_memory=kind == "shapes" and torch.cuda.is_initialized(),
        with_stack=kind == "stacks",
        experimental_config=_experimental(torch, kind),
    )


def records_cuda(torch: Any) -> bool:
    """Whether GPU activity can be recorded: the job uses a GPU, and no other CUPTI client was injected."""
    if not torch.cuda.is_initialized() or os.environ.get("CUDA_INJECTION64_PATH"):
        return False
    return torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()


def is_active(torch: Any) -> bool:
    """Whether a profiler runs on this thread, whoever started it."""
    enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
    return enabled is not None and bool(enabled())


def _experimental(torch: Any, kind: str) -> Any:
    """Kineto's options, as many as this torch knows."""
    make = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    if make is None:
        return None
    options: Dict[str, Any] = {"enable_cuda_sync_events": True}
    if kind != "stacks":
        options["trace_only"] = True  # spares the parsing of events into Python objects
    while options:
        try:
            return make(**options)
        except TypeError:
            options.popitem()
    return None


class Quiet:
    """Kineto's chatter on stderr is not the job's, and torch._inductor (0.8 s) need not be imported for us.

    torch asks ``hasattr(torch, "_inductor")`` at every start, which imports it; if the job has not, its
    CUDA-graph setting cannot matter.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._lazy: Any = None
        self._set = False

    def __enter__(self) -> None:
        lazy = getattr(self._torch, "_lazy_modules", None)
        if isinstance(lazy, set) and "_inductor" in lazy and "torch._inductor" not in sys.modules:
            lazy.discard("_inductor")
            self._lazy = lazy
        if "KINETO_LOG_LEVEL" not in os.environ:
            os.environ["KINETO_LOG_LEVEL"] = "99"
            self._set = True

    def __exit__(self, *exc_info: Any) -> None:
        if self._lazy is not None:
            self._lazy.add("_inductor")
        if self._set:
            os.environ.pop("KINETO_LOG_LEVEL", None)
