"""How often to sample: fast at first, slower in a long job, and always within a budget of CPU and bytes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

# seconds since the start -> the shortest interval from then on
_SCHEDULE = ((120.0, 0.0), (600.0, 0.5), (float("inf"), 1.0))
_LONGEST_S = 10.0
# of one core; the promise is 1 %, and a little is kept for start-up and bursts
_CPU_SHARE = 0.008
_CPU_AIM = 0.006
# the promise is 20 MB an hour and rank
_BYTES_AT_START = 3_000_000
_BYTES_PER_S = 15_000_000 / 3600
_REVIEW_S = 5.0


@dataclass(slots=True)
class Pace:
    """``interval`` seconds between samples, reviewed every few seconds against what they really cost.

    ``base_s``: the fastest interval asked for. Clocks are arguments so that tests need no waiting.
    """

    base_s: float
    started_s: float
    cpu_s: float
    ranks: int = 1
    written: int = 0
    samples: int = 0
    cpu_share: float | None = None
    _cpu_stretch: float = 1.0
    _byte_stretch: float = 1.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _reviewed_s: float = field(init=False)
    _reviewed_cpu: float = field(init=False)
    _reviewed_bytes: int = 0

    def __post_init__(self) -> None:
        self._reviewed_s, self._reviewed_cpu = self.started_s, self.cpu_s

    @classmethod
    def start(cls, base_s: float) -> Pace:
        """A pace from now on; what the process cost before (imports) is not counted."""
        return cls(base_s, time.monotonic(), time.process_time())

    def wrote(self, size: int, samples: int = 1) -> None:
        """Count a line; several threads write."""
        with self._lock:
            self.written += size
            self.samples += samples

    def interval(self, now_s: float, cpu_s: float) -> float:
        """Seconds to the next sample. ``cpu_s``: CPU time of this process so far."""
        with self._lock:
            if now_s - self._reviewed_s >= _REVIEW_S:
                self._review(now_s, cpu_s)
        elapsed = now_s - self.started_s
        floor = next(shortest for until, shortest in _SCHEDULE if elapsed < until)
        wanted = max(self.base_s, floor) * max(self._cpu_stretch, self._byte_stretch)
        return min(wanted, max(_LONGEST_S, self.base_s))

    def allowance(self, elapsed_s: float) -> float:
        """Bytes that may have been written by now."""
        return max(1, self.ranks) * (_BYTES_AT_START + _BYTES_PER_S * elapsed_s)

    def _review(self, now_s: float, cpu_s: float) -> None:
        spent = now_s - self._reviewed_s
        share = (cpu_s - self._reviewed_cpu) / spent
        self.cpu_share = share
        if share > _CPU_SHARE:
            self._cpu_stretch = self._longer(self._cpu_stretch, share / _CPU_AIM)
        elif share * 1.25 < _CPU_AIM * 1.1:  # faster by a quarter would still be well inside
            self._cpu_stretch = max(1.0, self._cpu_stretch / 1.25)
        rate = (self.written - self._reviewed_bytes) / spent / max(1, self.ranks)
        allowed = self.allowance(now_s - self.started_s)
        if self.written > allowed and rate > 0.9 * _BYTES_PER_S:
            self._byte_stretch = self._longer(self._byte_stretch, rate / (0.9 * _BYTES_PER_S))
        elif self.written < 0.9 * allowed:
            self._byte_stretch = max(1.0, self._byte_stretch / 1.25)
        self._reviewed_s, self._reviewed_cpu, self._reviewed_bytes = now_s, cpu_s, self.written

    def _longer(self, stretch: float, factor: float) -> float:
        # one look may be an outlier: never more than fourfold at once
        return min(stretch * min(4.0, factor), _LONGEST_S / self.base_s)
