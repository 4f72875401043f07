"""Pauses of Python's garbage collector, which stops every thread of the training process."""

from __future__ import annotations

import gc
import time
from typing import Any, Mapping, Optional, Tuple


class Collections:
    """Sums the collector's pauses in this process from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._on = False
        self._began: Optional[int] = None
        self._paused = 0
        self._runs = 0

    def start(self) -> None:
        """Begin to count. Later calls do nothing."""
        if not self._on:
            self._on = True
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Count no more; what was not taken is dropped."""
        if self._on:
            self._on = False
            self._began = None
            if self._note in gc.callbacks:
                gc.callbacks.remove(self._note)

    def take(self) -> Optional[Tuple[float, int]]:
        """(ms, collections) since the last call, None while nobody counts."""
        if not self._on:
            return None
        found = round(self._paused / 1e6, 4), self._runs
        self._paused = self._runs = 0
        return found

    def _note(self, phase: str, info: Mapping[str, Any]) -> None:
        # runs several times in a step: nothing here may allocate more than an int
        if phase == "start":
            self._began = time.perf_counter_ns()
        elif self._began is not None:
            self._paused += time.perf_counter_ns() - self._began
            self._runs += 1
            self._began = None
