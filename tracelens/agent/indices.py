"""What the sampler costs: naming the next indices is the training process's own work, workers or not."""

from __future__ import annotations

import functools
import time
from typing import Any, Dict, Optional

from . import environment
from .runtime import Agent

_KEY = "_tracelens_indices"  # in the iterator's __dict__


class Account:
    """Time in the sampler of one iterator, not yet written; ``grown`` is the process's growth at the first index."""

    def __init__(self) -> None:
        self.source: Any = None
        self.spent = 0
        self.grown: Optional[int] = None


class Indices:
    """Patches the iterators' ``_next_index``."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def install(self, kind: Any) -> None:
        """``kind`` is torch's _BaseDataLoaderIter."""
        original = getattr(kind, "_next_index", None)
        if original is None:
            return

        @functools.wraps(original)
        def _next_index(iterator: Any) -> Any:
            if not self._agent.on or self._agent.worker:
                return original(iterator)
            account = iterator.__dict__.get(_KEY)
            if account is None:
                account = iterator.__dict__[_KEY] = Account()
            source = getattr(iterator, "_sampler_iter", None)
            first = account.source is not source
            account.source = source  # lets the last pass's sampler go before the new one lists its indices
            before = environment.resident_bytes() if first else None
            start = time.perf_counter_ns()
            try:
                return original(iterator)
            finally:
                account.spent += time.perf_counter_ns() - start
                if before is not None:
                    after = environment.resident_bytes()
                    account.grown = None if after is None else max(0, after - before)

        kind._next_index = _next_index

    @staticmethod
    def take(iterator: Any) -> Dict[str, Any]:
        """``sampler_ms`` since the last call, and ``sampler_bytes`` where a pass began; nothing where none was asked."""
        account = iterator.__dict__.get(_KEY)
        if account is None:
            return {}
        found: Dict[str, Any] = {"sampler_ms": round(account.spent / 1e6, 4)}
        account.spent = 0
        if account.grown is not None:
            found["sampler_bytes"] = account.grown
            account.grown = None
        return found
