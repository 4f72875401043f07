"""The worker's side of a DataLoader: one line a batch fetched, and no profiler of the parent's."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import time
from typing import Any, Dict, Optional

from . import environment
from .batch import describe
from .fetch import Meter, ProcFiles
from .runtime import Agent

NOTE = "tracelens"  # key in multiprocessing's per-process configuration, which fork, spawn and forkserver all pass on


class Worker:
    """This process as a loader worker: which one, and the batch it works on."""

    def __init__(self, agent: Agent, note: Dict[str, Any], number: int) -> None:
        self._agent = agent
        self._loader = note["loader"]
        self._since = note["ts"]
        self._number = number
        self._file = "worker-{}.jsonl".format(os.getpid())
        self._ready = False
        self.epoch = note["epoch"] - 1  # the first fetcher made here begins the epoch that the parent names
        self.batch: Optional[int] = None
        self.proc = ProcFiles()

    def ready(self) -> None:
        """The worker asks for its first index."""
        if self._ready:
            return
        self._ready = True
        now = time.time_ns()
        self._agent.write(
            self._file,
            {
                "event": "worker", "loader": self._loader, "worker": self._number, "pid": os.getpid(), "ts": now,
                "start_ms": round((now - self._since) / 1e6, 3), "affinity": environment.affinity(),
                "threads": self._agent.torch.get_num_threads(),
            },
            urgent=True,
        )  # fmt: skip

    def fetched(self, record: Dict[str, Any], data: Any, error: Optional[BaseException]) -> None:
        """A batch is ready, or its dataset raised."""
        line: Dict[str, Any] = {
            "event": "fetch", "loader": self._loader, "worker": self._number, "batch": self.batch, "epoch": self.epoch,
        }  # fmt: skip
        line.update(record)
        if error is None:
            line["samples"], line["bytes"], _ = describe(data)
        else:
            line["error"] = type(error).__name__
        self._agent.write(self._file, line, urgent=error is not None)  # an error may be the job's last act


class IndexQueue:
    """The worker's index queue; notes which batch is asked for. Everything else is the queue's own."""

    def __init__(self, queue: Any, worker: Worker, agent: Agent) -> None:
        self._queue = queue
        self._worker = worker
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        if self._agent.on:
            try:
                self._worker.ready()
            except Exception as error:
                self._agent.fail("worker", error)
        item = self._queue.get(*args, **kwargs)
        if isinstance(item, tuple) and item:
            self._worker.batch = item[0]
        return item


class Workers:
    """Patches torch's worker loop. ``current`` is set in a worker process only."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.current: Optional[Worker] = None

    def install(self, module: Any) -> None:
        """``module`` is torch.utils.data._utils.worker; pickling by name (spawn) keeps working."""
        original = module._worker_loop
        names = list(inspect.signature(original).parameters)
        queue_at, number_at = names.index("index_queue"), names.index("worker_id")

        @functools.wraps(original)
        def _worker_loop(*args: Any) -> Any:
            changed = list(args)
            try:
                self._enter(changed, queue_at, number_at)
            except Exception as error:
                self._agent.fail("worker", error)
                changed = list(args)
            try:
                return original(*changed)
            finally:
                self._agent.flush()

        module._worker_loop = _worker_loop

    def _enter(self, args: Any, queue_at: int, number_at: int) -> None:
        agent = self._agent
        nested, agent.worker = agent.worker, True
        note = multiprocessing.current_process()._config.pop(NOTE, None)  # type: ignore[attr-defined]
        if nested or not agent.on or not note:  # a loader inside a worker is its dataset's affair
            return
        agent.folder, agent.rank = note["folder"], note["rank"]
        self.current = Worker(agent, note, args[number_at])
        args[queue_at] = IndexQueue(args[queue_at], self.current, agent)

    def meter(self) -> Optional[Meter]:
        """A new fetcher of this worker begins an epoch."""
        if self.current is None:
            return None
        self.current.epoch += 1
        return Meter(self.current.proc)
