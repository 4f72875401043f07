"""The step log: one line an optimizer iteration, from explicit calls, optimizer hooks, or the loader."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from . import environment
from .collector import Collections
from .runtime import Agent

_MEMORY_EVERY_NS = 100_000_000
_INFERENCE_BATCHES = 8  # without gradients nothing will ever step: these many batches settle it
_TRAINING_BATCHES = 64  # with gradients a first optimizer step may come after long accumulation
_LEADER_LOST = 16  # steps of other optimizers without one of the leader


class StepLog:
    """Finds where steps end and writes steps.jsonl.

    ``replan(count)`` is told when what were taken for steps were batches of an evaluation before the training.
    ``close()`` finishes the recording of this process.
    ``boundary(next_step, end_ns, duration_ms)`` is called at every end (the profiler's windows hang on it) and
    returns the window that the finished step ran in.
    """

    def __init__(
        self,
        agent: Agent,
        boundary: Callable[[int, int, float], Optional[int]],
        close: Callable[[], None],
        replan: Callable[[int], None],
    ) -> None:
        self._agent = agent
        self._boundary = boundary
        self._close = close
        self._replan = replan
        self.count = 0
        self.source: Optional[str] = None
        self._start: Optional[int] = None
        self._wait = 0
        self._samples: Optional[int] = None
        self._fresh = False
        self._epoch: Optional[int] = None
        self._leader: Optional[Callable[[], Any]] = None
        self._others = 0
        self._batches = 0  # training batches so far
        self._stepped_at = -1
        self._rivals: Dict[
            int, int
        ] = {}  # optimizers that stepped since the leader did, and the batch they did so at
        self._pending: Deque[Dict[str, Any]] = deque(maxlen=4096)
        self._unsettled: Dict[str, Any] = {}
        self._memory_at = 0
        self._peak: Optional[int] = None
        self._refused = 0
        self.training_steps = 0
        self.seen = 0
        self.collections = Collections()

    # -- what happens in the job -----------------------------------------------------------------

    def before_next(self, now: int, training: bool) -> None:
        """The job asks a loader for a batch: the first step starts here, and so does a step of the loader."""
        if self._start is None:
            self._start = now
        if self.source in ("explicit", "optimizer"):
            return
        if self._fresh:
            self._fresh = False
            self._loader_step(now, training)

    def on_batch(self, wait_ns: int, samples: Optional[int], epoch: Optional[int], training: bool) -> None:
        """A batch arrived. Batches fetched without gradients belong to validation where anything steps."""
        if self.source is None:
            self._unsettled = {"wait": wait_ns, "samples": samples, "epoch": epoch}
        self._fresh = True
        if not training and self.source != "loader":
            return
        self._wait += wait_ns
        self._batches += 1
        if samples is not None:
            self._samples = (self._samples or 0) + samples
        if epoch is not None:
            self._epoch = epoch

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer stepped. Of several, the one that stepped first marks the iterations."""
        self.seen += 1
        if self.source == "explicit":
            return
        leader = None if self._leader is None else self._leader()
        if leader is None or (leader is not optimizer and self._is_lost(optimizer)):
            try:
                self._leader = weakref.ref(optimizer)
            except TypeError:
                self._leader = lambda kept=optimizer: kept
            leader = optimizer
        if leader is not optimizer:
            self._others += 1
            self._rivals[id(optimizer)] = self._batches
            return
        self._others = 0
        self._rivals.clear()
        if self._batches and self._batches == self._stepped_at and "deepspeed" in sys.modules:
            return  # ZeRO steps one optimizer once for every part of the parameters
        self._stepped_at = self._batches
        self._finish("optimizer")

    def _is_lost(self, rival: Any) -> bool:
        """The leader steps no more: another optimizer stepped in two iterations running, or often, without it."""
        return self._others >= _LEADER_LOST or self._rivals.get(id(rival), self._batches) != self._batches

    def on_explicit(self) -> None:
        """The job says that a step ended; from now on nothing else does."""
        if self.source == "optimizer" and not self._fresh:
            self.source = "explicit"  # the first call: the optimizer's hook has just ended this very step
            return
        self._finish("explicit")

    # -- steps of the loader -----------------------------------------------------------------------

    def _loader_step(self, now: int, training: bool) -> None:
        if self.source == "loader":
            self._finish("loader", now)
            return
        # Not settled yet. The sums run on: an optimizer step that comes later owns all these batches.
        begin = self._pending[-1]["t1"] if self._pending else self._start
        self._pending.append({"t0": begin, "t1": now, "gc": self.collections.take(), **self._unsettled})
        if len(self._pending) >= (_TRAINING_BATCHES if training else _INFERENCE_BATCHES):
            self._adopt()
            self._start = now

    def _adopt(self) -> None:
        for entry in self._pending:
            self._line(
                entry["t0"], entry["t1"], entry["wait"], entry["samples"], entry["epoch"], None, "loader", entry["gc"]
            )  # fmt: skip
        self._pending.clear()
        self.source = "loader"
        self._reset()

    # -- the end of a step -------------------------------------------------------------------------

    def _finish(self, source: str, now: Optional[int] = None) -> None:
        end = time.time_ns() if now is None else now
        agent = self._agent
        agent.activate()
        if self.source != source:
            if self.source == "loader":
                self._replan(self.count)
            self.source = source
            self._pending.clear()
        if self._start is None:
            self._start = agent.started_ns
        start = self._start
        step = self.count
        window = self._boundary(step + 1, end, (end - start) / 1e6)
        self._line(
            start, end, self._wait, self._samples, self._epoch, window, source, self.collections.take()
        )
        self._reset()
        self._fresh = False
        self.training_steps += source != "loader"
        limit = agent.config.stop_after
        self._start = time.time_ns() if now is None else max(now, end)
        if limit is not None and self.count >= limit:
            self._stop(limit)

    def _reset(self) -> None:
        self._wait = 0
        self._samples = None

    def _line(
        self, start: Optional[int], end: int, wait: int, samples: Optional[int], epoch: Optional[int],
        window: Optional[int], source: str, collected: Optional[Tuple[float, int]],
    ) -> None:  # fmt: skip
        record: Dict[str, Any] = {
            "step": self._agent.first_step + self.count, "t0": start, "t1": end, "wait_ms": round(wait / 1e6, 4),
            "samples": samples, "window": window, "source": source, "epoch": epoch,
        }  # fmt: skip
        if collected is not None:
            record["gc_ms"], record["gc_runs"] = collected
        if end - self._memory_at > _MEMORY_EVERY_NS:
            self._memory_at = end
            self._memory(record)
        self._agent.write("steps.jsonl", record)
        self.count += 1

    def _memory(self, record: Dict[str, Any]) -> None:
        record["rss"] = environment.resident_bytes()
        cuda = self._agent.torch.cuda
        if cuda.is_initialized():
            self._agent.describe_device()
            statistics = cuda.memory_stats_as_nested_dict()
            peak = statistics["allocated_bytes"]["all"]["peak"]
            self._peak = peak if self._peak is None else max(peak, self._peak)
            record["mem_peak"] = self._peak
            record["mem_reserved"] = statistics["reserved_bytes"]["all"]["current"]

    def _stop(self, limit: int) -> None:
        """End the job as ``sys.exit(0)`` would: the job's own cleanup runs."""
        agent = self._agent
        self._refused += 1
        if self._refused == 1:
            agent.event("stop", step=limit)
            if not agent.rank:
                agent.say("stopping the job after {} steps, as asked".format(limit))
        if self._refused > 2:  # the job swallows SystemExit
            self._close()
            os._exit(0)
        raise SystemExit(0)

    def restart(self) -> None:
        """In a forked child: its steps begin anew."""
        self.collections.stop()
        self.__init__(self._agent, self._boundary, self._close, self._replan)  # type: ignore[misc]

    @property
    def stopped(self) -> bool:
        """Whether --stop-after ended the job."""
        return self._refused > 0

    def finish(self) -> None:
        """At the end of the process: steps that only the loader saw, where nothing else ever stepped."""
        if self.source is None and self._pending and self._agent.active:
            self._adopt()
