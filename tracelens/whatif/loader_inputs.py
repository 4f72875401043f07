"""What the loader model is fed with: costs of a batch, the machine, the DataLoader's settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """The DataLoader arguments that change timing; the defaults are torch's."""

    num_workers: int = 0
    prefetch_factor: int = 2
    persistent_workers: bool = False
    pin_memory: bool = False
    in_order: bool = True

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.prefetch_factor < 1:
            raise InputError(
                "num_workers must be 0 or more and prefetch_factor 1 or more; correct the settings"
            )

    def replace(self, **changes: int | bool) -> LoaderSettings:
        """The same settings with some changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Machine:
    """The CPU that one rank's training may use.

    ``cores``: logical CPUs: affinity and quota, divided by the ranks that share them.
    ``busy_elsewhere``: always runnable threads of processes that are not in the model.
    ``threads_per_core``: 2 where logical CPUs are hyper-threads, else 1.
    ``smt_yield``: what the second thread of a core adds, in cores; vendors and measurements say 0.15 to 0.4.
    ``storage_streams``: how many reads progress at full speed together; None where storage is not a limit.
    ``crowding``: relative slow-down of all for each further runnable thread a core, beyond one (switches, cold
    caches, a waiting training loop).
    """

    cores: float = 1.0
    busy_elsewhere: float = 0.0
    threads_per_core: int = 1
    smt_yield: float = 0.3
    storage_streams: float | None = None
    crowding: float = 0.0

    def __post_init__(self) -> None:
        if not self.cores > 0:
            raise InputError(
                "the number of usable cores must be above 0; give cpu_count in the loader settings"
            )

    def speed(
        self, running: npt.ArrayLike, contention: npt.ArrayLike = 0.0, *, sliced: bool = True
    ) -> Floats:
        """Speed of each of ``running`` CPU-bound threads; 1 is a thread alone on an idle machine.

        ``contention``: relative slow-down for each further thread on a core (memory bandwidth, shared cache,
        turbo), the sigma of Gunther's universal scalability law without its coherence term.
        ``sliced=False`` leaves out time slicing, which lengthens wall time but not measured CPU time.
        """
        total = np.maximum(np.asarray(running, dtype=np.float64), 1.0) + self.busy_elsewhere
        on_cpu = np.minimum(total, max(self.cores, 1.0))
        full = max(self.cores / self.threads_per_core, 1.0)
        capacity = np.where(on_cpu <= full, on_cpu, full + (on_cpu - full) * self.smt_yield)
        pace = capacity / on_cpu / (1.0 + np.asarray(contention, dtype=np.float64) * (on_cpu - 1.0))
        if sliced:
            crowd = 1.0 + self.crowding * np.maximum(total / self.cores - 1.0, 0.0)
            pace = pace * np.minimum(1.0, self.cores / total) / crowd
        return np.asarray(pace, dtype=np.float64)


def main_slowdown(num_workers: int, cores: float) -> float:
    """How many times longer a main process takes beside so many workers that all compute.

    A fair share of the cores would make it (workers + 1) / cores; a scheduler that prefers who slept, nothing. The
    geometric mean of the two.
    """
    return math.sqrt(max(1.0, (num_workers + 1.0) / cores))


@dataclass(frozen=True, slots=True)
class Scenario:
    """What running in workers adds: ms a batch in the worker and in the receiving process, and contention.

    ``host_growth``: by how much the main process's own work grows, relative, beside workers that compute.
    """

    worker_ms: float = 0.0
    main_ms: float = 0.0
    contention: float = 0.0
    host_growth: float = 0.0


@dataclass(frozen=True, slots=True)
class ParallelCosts:
    """The likely scenario, and the two that bound the 90 % interval of throughput with many workers."""

    likely: Scenario
    fast: Scenario
    slow: Scenario

    @staticmethod
    def exact(
        worker_ms: float = 0.0, main_ms: float = 0.0, contention: float = 0.0, host_growth: float = 0.0
    ) -> ParallelCosts:
        """Costs without uncertainty."""
        one = Scenario(worker_ms, main_ms, contention, host_growth)
        return ParallelCosts(one, one, one)


@dataclass(frozen=True, slots=True)
class LoaderInputs:
    """Measured costs. Arrays keep the recorded order of batches; all times in ms.

    ``service_cpu_ms``, ``service_wait_ms``: per batch, CPU time and waiting (I/O, sleep, locks) of the fetch.
    ``collate_ms``: CPU time to collate a batch where it is not part of ``service_cpu_ms``.
    ``parallel``: what workers add; see ``loader_fit``. ``recorded_in_worker``: the service times were taken
    in workers, so that ``worker_ms`` is already in them. ``recorded_running``: threads that ran on average
    while recording, for which CPU time is corrected.
    ``pin_ms``: copying a batch to pinned memory; ``main_pin_ms``: what that adds where the main process does it, for
    want of workers. ``held_ms``: ms a batch that workers stay above, however many,
    because something unrecorded held them up while they were waited for; 0 where nothing did. ``service_error``:
    relative standard error of the mean service time; None: that of the recorded values. ``beside_workers``: cores
    that the job's other threads take where it has workers, at most half of them. ``slow_worker``: how many times
    longer one of the workers takes for a batch than the others, whatever their number. ``host_relief``: how much of
    ``consume_ms`` goes where the main process no longer shares the cores with ``crowd`` workers, as recorded.
    ``consume_ms``: time of a step whose batch is always there: a constant, recorded values, or a function of
    the step. ``main_cpu_ms``: how long the main process computes in it, alone on its cores, with
    ``main_threads`` threads. ``host_share``: how much of ``consume_ms`` grows with it. ``run_ahead``: how many
    steps the host may be ahead of the device; 0 where every step ends in a synchronisation, and where there is
    no device.
    ``machine_at_best``: the machine of the fast end, where ``machine`` itself is uncertain.
    ``batches_per_epoch``: None where only the steady state matters. ``epoch_ms``: cost of each start with
    workers that does not depend on their number (queues, pin thread, joining the old ones), then ``fork_ms``
    for each, and ``init_ms`` until a forked worker fetches. ``resume_ms``: an epoch with persistent workers.
    """

    service_cpu_ms: Floats
    service_wait_ms: Floats
    consume_ms: float | Sequence[float] | Floats | Callable[[int], float]
    samples_per_batch: float = 1.0
    collate_ms: float = 0.0
    parallel: ParallelCosts = dataclasses.field(default_factory=ParallelCosts.exact)
    recorded_in_worker: bool = False
    recorded_running: float = 1.0
    pin_ms: float = 0.0
    main_pin_ms: float = 0.0
    held_ms: float = 0.0
    service_error: float | None = None
    beside_workers: float = 0.0
    slow_worker: float = 1.0
    host_relief: float = 0.0
    crowd: int = 0
    main_cpu_ms: float = 0.0
    main_threads: int = 1
    host_share: float = 0.0
    run_ahead: int = 2
    batches_per_epoch: int | None = None
    epoch_ms: float = 0.0
    fork_ms: float = 10.0
    init_ms: float = 20.0
    resume_ms: float = 0.0
    machine: Machine = dataclasses.field(default_factory=Machine)
    machine_at_best: Machine | None = None

    def __post_init__(self) -> None:
        cpu = np.atleast_1d(np.asarray(self.service_cpu_ms, dtype=np.float64))
        wait = np.atleast_1d(np.asarray(self.service_wait_ms, dtype=np.float64))
        cpu, wait = (np.full(len(wait), cpu[0]) if len(cpu) == 1 else cpu), wait
        wait = np.full(len(cpu), wait[0]) if len(wait) == 1 else wait
        if len(cpu) == 0 or len(cpu) != len(wait):
            raise InputError(
                "the loader model needs a CPU and a waiting time for each batch; record at least one"
            )
        if not (
            np.isfinite(cpu).all() and np.isfinite(wait).all() and (cpu >= 0).all() and (wait >= 0).all()
        ):
            raise InputError("loader times must be finite and not negative; record the run again")
        if not callable(self.consume_ms) and np.size(self.consume_ms) == 0:
            raise InputError("the loader model needs the time of at least one step without loading")
        if self.batches_per_epoch is not None and self.batches_per_epoch < 1:
            raise InputError("an epoch must have at least one batch; check dataset_len and batch_size")
        object.__setattr__(self, "service_cpu_ms", cpu)
        object.__setattr__(self, "service_wait_ms", wait)

    def replace(self, **changes: object) -> LoaderInputs:
        """The same inputs with some changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @property
    def consumption(self) -> Floats | None:
        """``consume_ms`` as recorded values; None where it is a function."""
        given = self.consume_ms
        return None if callable(given) else np.atleast_1d(np.asarray(given, dtype=np.float64))

    def consume(self, factor: float = 1.0) -> Callable[[int], float]:
        """``consume_ms``, times ``factor``, as a function of the step; recorded values repeat in their order."""
        given = self.consume_ms
        if callable(given):
            return given if factor == 1.0 else lambda step: given(step) * factor
        values = (np.atleast_1d(np.asarray(given, dtype=np.float64)) * factor).tolist()
        count = len(values)
        return lambda step: float(values[step % count])
