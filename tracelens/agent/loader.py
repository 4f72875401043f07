"""The job's side of its DataLoaders: what they are, what every ``next`` cost, and which batch it gave."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from .batch import describe
from .fetch import Meter, delay_file, wrap
from .indices import Indices
from .portrait import Place, caller, loader_line
from .probe import probe
from .runtime import Agent
from .settings import Settings
from .steps import StepLog
from .windows import Windows
from .worker import NOTE, Workers

_KEY = "_tracelens"  # in the loader's and the iterator's __dict__


class Iteration:
    """One pass over a loader."""

    def __init__(self, loader: int, epoch: int, training: bool, steps: int) -> None:
        self.loader = loader
        self.epoch = epoch
        self.training = training
        self.steps = steps
        self.batches = 0
        self.ended = False


class Loaders:
    """Patches DataLoader, its iterators and fetchers. Every patch calls torch's own code exactly once."""

    def __init__(
        self, agent: Agent, steps: StepLog, windows: Windows, settings: Settings, workers: Workers
    ) -> None:
        self._agent = agent
        self._steps = steps
        self._windows = windows
        self._settings = settings
        self._workers = workers
        self._inside: Set[int] = set()  # threads that are in a next
        self._count = 0
        self._probed = False
        self._places: Dict[int, Place] = {}
        self._epochs: Dict[int, int] = {}
        self._indices = Indices(agent)

    def install(self, module: Any, fetchers: Any) -> None:
        """``module`` is torch.utils.data.dataloader, ``fetchers`` torch.utils.data._utils.fetch."""
        self._patch_init(module.DataLoader)
        self._patch_iter(module.DataLoader)
        self._patch_next(module._BaseDataLoaderIter)
        self._indices.install(module._BaseDataLoaderIter)
        self._patch_create(module._DatasetKind)
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            kind = getattr(fetchers, name)
            kind.fetch = wrap(kind.fetch, self._fetched, lambda error: self._agent.fail("fetch", error))

    def _live(self) -> bool:
        """Loaders that a dataset iterates inside another loader's ``next`` are part of that ``next``."""
        return self._agent.on and not self._agent.worker and threading.get_ident() not in self._inside

    # -- construction --------------------------------------------------------------------------------

    def _patch_init(self, kind: Any) -> None:
        original = kind.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if not self._live():
                return original(loader, *args, **kwargs)  # type: ignore[no-any-return]
            index = self._count
            self._count += 1
            changes: List[Any] = []
            changed, named = args, kwargs
            try:
                changed, named, changes = self._settings.change(index, signature, loader, args, kwargs)
                self._places[index] = caller(self._agent.redactor)
            except Exception as error:
                self._agent.fail("--set", error)
            try:
                original(loader, *changed, **named)
            except Exception as error:
                if changes:
                    self._settings.refused(
                        index, loader.__dict__.get("dataset", args[0] if args else None), changes, error
                    )
                raise
            try:
                loader.__dict__[_KEY] = index
                self._settings.built(index, loader, changes)
            except Exception as error:
                self._agent.fail("loader", error)
            return None

        kind.__init__ = __init__

    # -- iteration -----------------------------------------------------------------------------------

    def _patch_iter(self, kind: Any) -> None:
        original = kind.__iter__

        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            if not self._live():
                return original(loader)
            self._probe(loader)
            note: Optional[Dict[str, Any]] = None
            index = epoch = 0
            try:
                index, epoch = self._begin(loader)
                note = {
                    "loader": index, "epoch": epoch, "ts": time.time_ns(),
                    "folder": self._agent.folder, "rank": self._agent.rank,
                }  # fmt: skip
            except Exception as error:
                self._agent.fail("loader", error)
                return original(loader)
            config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
            config[NOTE] = note
            try:
                iterator = original(loader)
            finally:
                config.pop(NOTE, None)
            try:
                self._began(loader, iterator, index, epoch, note["ts"])
            except Exception as error:
                self._agent.fail("loader", error)
            return iterator

        kind.__iter__ = __iter__

    def _probe(self, loader: Any) -> None:
        """``tune --loader-only``: the first loader of the training is measured alone, in a copy of this process."""
        seconds = self._agent.config.probe
        if seconds is None or self._probed or not self._gradients():
            return
        self._probed = True
        try:
            self._agent.activate()
            probe(self._agent, loader, loader.__dict__.get(_KEY, self._count), seconds)
        except Exception as error:
            self._agent.fail("probe", error)

    def _begin(self, loader: Any) -> Tuple[int, int]:
        self._agent.activate()
        index = loader.__dict__.get(_KEY)
        if index is None:  # built before us, or by a subclass that copies torch's __init__
            index = loader.__dict__[_KEY] = self._count
            self._count += 1
        self._settings.before_first_batch(index)
        epoch = self._epochs.get(index, -1) + 1
        self._epochs[index] = epoch
        if epoch == 0:
            self._agent.write(
                "loader.jsonl", loader_line(loader, index, self._places.get(index), self._agent)
            )
        if getattr(loader, "num_workers", 0):
            self._windows.before_fork()
        return index, epoch

    def _began(self, loader: Any, iterator: Any, index: int, epoch: int, since: int) -> None:
        training = self._gradients()
        iterator.__dict__[_KEY] = Iteration(index, epoch, training, self._steps.training_steps)
        pinned = bool(getattr(iterator, "_pin_memory", False))
        self._agent.write(
            "loader.jsonl",
            {
                "event": "iter", "loader": index, "epoch": epoch, "ts": since, "pid": self._agent.pid,
                "start_ms": round((time.time_ns() - since) / 1e6, 3), "training": training,
                "workers": len(getattr(iterator, "_workers", ())), "pinned": pinned, **self._indices.take(iterator),
            },
        )  # fmt: skip
        if epoch == 0:
            self._settings.first_iterator(index, pinned)

    def _gradients(self) -> bool:
        torch = self._agent.torch
        return bool(torch.is_grad_enabled()) and not torch.is_inference_mode_enabled()

    # -- next ----------------------------------------------------------------------------------------

    def _patch_next(self, kind: Any) -> None:
        original = kind.__next__

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if not self._live():
                return original(iterator)
            before: Any = None
            try:
                before = self._before_next(iterator)
            except Exception as error:
                self._agent.fail("next", error)
            thread = threading.get_ident()
            self._inside.add(thread)
            try:
                data = original(iterator)
            except BaseException as error:
                if before is not None:
                    self._no_batch(before, error)
                raise
            finally:
                self._inside.discard(thread)
            if before is not None:
                try:
                    self._after_next(iterator, before, data)
                except Exception as error:
                    self._agent.fail("next", error)
            return data

        kind.__next__ = __next__

    def _before_next(self, iterator: Any) -> Tuple[Iteration, bool, Optional[int], Any, int]:
        iteration = iterator.__dict__.get(_KEY)
        if iteration is None:
            iteration = self._adopt(iterator)
        training = self._gradients()
        depth: Optional[int] = None
        held: Any = None
        tasks = getattr(iterator, "_task_info", None)
        if tasks is not None:
            depth = sum(len(info) == 2 for info in tasks.values()) + _size(iterator._data_queue)
            if iterator._data_queue is not iterator._worker_result_queue:
                depth += _size(iterator._worker_result_queue)
            if not getattr(iterator, "_in_order", True):
                held = set(tasks)
        now = time.time_ns()
        self._steps.before_next(now, training)
        return iteration, training, depth, held, time.time_ns()

    def _adopt(self, iterator: Any) -> Iteration:
        """An iterator that came about without DataLoader.__iter__ (a subclass with its own)."""
        self._agent.activate()
        index = self._count
        self._count += 1
        self._epochs[index] = 0
        iteration = iterator.__dict__[_KEY] = Iteration(
            index, 0, self._gradients(), self._steps.training_steps
        )
        self._agent.write(
            "loader.jsonl",
            {
                "event": "loader", "loader": index, "ts": time.time_ns(), "pid": self._agent.pid,
                "dataset": type(getattr(iterator, "_dataset", None)).__name__, "class": type(iterator).__name__,
                "num_workers": getattr(iterator, "_num_workers", None), "pin_memory": getattr(iterator, "_pin_memory", None),
                "prefetch_factor": getattr(iterator, "_prefetch_factor", None),
                "drop_last": getattr(iterator, "_drop_last", None),
            },
        )  # fmt: skip
        return iteration

    def _after_next(
        self, iterator: Any, before: Tuple[Iteration, bool, Optional[int], Any, int], data: Any
    ) -> None:
        end = time.time_ns()
        iteration, training, depth, held, start = before
        samples, size, dtypes = describe(data)
        line: Dict[str, Any] = {
            "event": "batch", "loader": iteration.loader, "epoch": iteration.epoch, "batch": self._number(iterator, held),
            "t0": start, "t1": end, "queue_depth": depth, "samples": samples, "bytes": size, "dtypes": dtypes,
            "pinned": bool(getattr(iterator, "_pin_memory", False)), "training": training, **self._indices.take(iterator),
        }  # fmt: skip
        meter = getattr(iterator, "_dataset_fetcher", None)
        meter = None if meter is None else meter.__dict__.get(_KEY)
        if meter is not None and meter.last is not None:
            last = meter.last
            line["fetch_ms"] = round((last["t1"] - last["t0"]) / 1e6, 4)
            for name in (
                "cpu_ms",
                "collate_ms",
                "run_delay_ms",
                "slowest_sample_ms",
                "read_bytes",
                "rchar",
                "syscr",
            ):
                if name in last:
                    line[name] = last[name]
        iteration.batches += 1
        self._agent.write("loader.jsonl", line)
        self._steps.on_batch(end - start, samples, iteration.epoch, training)

    @staticmethod
    def _number(iterator: Any, held: Any) -> Optional[int]:
        """The batch's task number, by which the worker's line names it too."""
        received = getattr(iterator, "_rcvd_idx", None)
        if received is None:
            return int(iterator._num_yielded) - 1
        if held is not None:
            taken = [number for number in held if number not in iterator._task_info]
            return taken[0] if len(taken) == 1 else None
        return int(received) - 1

    def _no_batch(
        self, before: Tuple[Iteration, bool, Optional[int], Any, int], error: BaseException
    ) -> None:
        """The pass is over, or the loader broke (a worker was killed, the dataset raised)."""
        try:
            iteration = before[0]
            if isinstance(error, StopIteration):
                if not iteration.ended:
                    iteration.ended = True
                    steps = self._steps.training_steps - iteration.steps
                    known = self._steps.training_steps > 0
                    self._agent.write(
                        "loader.jsonl",
                        {
                            "event": "iter_end", "loader": iteration.loader, "epoch": iteration.epoch,
                            "ts": time.time_ns(), "batches": iteration.batches, "steps": steps,
                            "training": steps > 0 if known else iteration.training,
                        },
                    )  # fmt: skip
            elif isinstance(error, Exception):
                lines = str(error).strip().splitlines() or [""]
                message = "next() of loader {} raised {}: {}".format(
                    iteration.loader, type(error).__name__, lines[-1]
                )
                self._agent.warn("loader", message)
        except Exception as problem:
            self._agent.fail("next", problem)

    # -- fetchers ------------------------------------------------------------------------------------

    def _patch_create(self, kind: Any) -> None:
        original = kind.create_fetcher

        @functools.wraps(original)
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = original(*args, **kwargs)
            if self._agent.on:
                try:
                    meter = self._workers.meter() if self._agent.worker else Meter(delay_file())
                    if meter is not None:
                        meter.attach(fetcher)
                except Exception as error:
                    self._agent.fail("fetcher", error)
            return fetcher

        kind.create_fetcher = staticmethod(create_fetcher)

    def _fetched(self, record: Dict[str, Any], data: Any, error: Optional[BaseException]) -> None:
        current = self._workers.current
        if current is not None and self._agent.on:
            current.fetched(record, data, error)


def _size(queue: Any) -> int:
    try:
        return int(queue.qsize())
    except (NotImplementedError, OSError):  # macOS has no qsize
        return 0
