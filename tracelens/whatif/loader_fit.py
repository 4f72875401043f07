"""What more workers cost: hand-over and contention, fitted to measured worker counts or taken from priors.

The law, for n workers, ms a batch (both stations of a closed queueing network, joined by a norm):

    workers(n) = ((cpu + worker_ms) / speed(n) + wait) / n
    main       = main_ms
    time(n)    = (workers(n)^p + main^p)^(1/p),  p = 6          and time(0) = cpu + wait

``worker_ms`` is what a worker does on top of the fetch (copying the batch into shared memory, or pickling
it), ``main_ms`` what the receiver does for every batch, one after the other: it is the ceiling that more
workers do not move. ``speed`` is ``Machine.speed``: cores, hyper-threads, time slicing, contention. p comes
from ``loader_sim``: with batches that vary by 10 % the simulated knee is as sharp as 5 to 9, depending on
which station is slower.

The fit is Bayesian on a grid: priors below times the likelihood of the measured counts. With no point
measured the priors alone give the interval.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracelens.errors import InputError
from tracelens.whatif.loader_inputs import (
    Floats,
    LoaderInputs,
    LoaderSettings,
    Machine,
    ParallelCosts,
    Scenario,
)
from tracelens.whatif.loader_model import predict
from tracelens.whatif.stats import weighted_quantile

KNEE = 6.0
BESIDE = 0.5  # cores: what a main process takes beside workers that compete with it, between none and one
_Z90 = 1.645
_MODEL_ERROR = 0.02  # of the law against the simulation, as a standard deviation of the logarithm

Kind = Literal["tensor", "object"]


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before measuring. Medians in ms a batch; spreads are standard deviations of
    logarithms.

    ``main_per_worker`` ties the two hand-over costs: median and spread of main_ms / worker_ms.
    ``contention`` is the scale of a half-normal distribution.
    """

    main_ms: float
    main_spread: float
    main_per_worker: float
    ratio_spread: float
    contention: float = 0.02


# Batches of tensors go through shared memory: the worker writes fresh pages, the receiver maps them, and both pay
# page faults. CPU time measured with torch 2.13 and 18 MB batches on a virtual machine whose page faults are slow:
# 0.43 ms/MB in the receiver, 0.75 in the worker. A published pair on real hardware (ResNet-50, V100) shows 0.05 to
# 0.2 in the receiver: real hardware weighs more, its geometric mean being 0.1.
TENSOR_MAIN_MS_PER_MB, TENSOR_MAIN_SPREAD = 0.12, 0.6
TENSOR_RATIO, TENSOR_RATIO_SPREAD = 0.5, 0.5
# Copying a batch to pinned memory: 8 GB/s, what one thread copies. With workers a thread of its own does it.
PIN_MS_PER_MB = 0.12
# Anything else (lists of arrays, dictionaries of objects) is pickled through one pipe. The receiver reads into a new
# buffer and unpickles into another, both with page faults. A thread of the worker writes meanwhile; the worker itself
# is held up by one copy, so by about half. Measured as above with lists of arrays: 0.63 to 0.85 ms/MB of CPU time in
# the receiver, to which waiting for the pipe comes. The spread was settled with published decode throughputs in view
# (benchmarks/models.py says how).
OBJECT_MAIN_MS_PER_MB, OBJECT_MAIN_SPREAD = 0.9, 0.2
OBJECT_RATIO, OBJECT_RATIO_SPREAD = 2.0, 0.4
# How much the main process's own work grows beside workers (low, likely, high): colder caches, shared cores and
# memory. Five published ResNet-50 pairs, 0 to 4 workers, gained 1.22 to 1.40x where leaving out the loader's time
# promised 1.32 to 1.66x: host-limited steps grew by 8 to 19 %.
HOST_GROWTH = (0.03, 0.12, 0.25)
# The same where the main process computes the operators itself: what these lose to busy neighbours is contention for
# memory and clocks, which the model holds already; only the Python between them (a fifth, say) grows like a host that
# dispatches.
OPERATOR_GROWTH = (0.0, 0.02, 0.2)
# Size unknown: hand-over between 1 and 15 % of the service time in the worker.
UNKNOWN_SHARE, UNKNOWN_SPREAD = 0.04, 0.8


def handover_prior(service_ms: float, bytes_per_batch: float | None = None, kind: Kind = "tensor") -> Prior:
    """The prior for a batch of so many bytes; ``kind`` is ``object`` for what is not made of tensors."""
    if not bytes_per_batch:
        return Prior(UNKNOWN_SHARE * service_ms * 0.5, UNKNOWN_SPREAD, 0.5, 0.7)
    megabytes = bytes_per_batch / 1e6
    if kind == "tensor":
        return Prior(TENSOR_MAIN_MS_PER_MB * megabytes, TENSOR_MAIN_SPREAD, TENSOR_RATIO, TENSOR_RATIO_SPREAD)
    return Prior(OBJECT_MAIN_MS_PER_MB * megabytes, OBJECT_MAIN_SPREAD, OBJECT_RATIO, OBJECT_RATIO_SPREAD)


# Plain copies of a batch in one process run at 5 GB/s on ordinary hosts (2.5 to 12).
COPY_MB_MS = 5.0
# A block above 32 MiB (glibc's largest M_MMAP_THRESHOLD) is mapped anew each time, so that in any process the kernel
# hands out fresh pages for the batch: of what collating takes beyond the copy, shared memory adds this share. Measured
# on a virtual machine with 50 MB: copy 0.18 ms/MB, into fresh pages 0.57, into shared memory 0.80.
MAPPED_BYTES, SHARED_BEYOND_MAPPED = 32 * 2**20, 0.4
# The least and the most that writing a batch into shared memory was seen to add, ms/MB.
_SHARING = (0.05, 0.8)


def collate_prior(collate_ms: float, bytes_per_batch: float) -> Prior:
    """The prior where collating in a worker was timed: what it takes beyond a plain copy is shared memory's."""
    megabytes = bytes_per_batch / 1e6
    low, high = (share * megabytes for share in _SHARING)
    pages = collate_ms - megabytes / COPY_MB_MS
    if bytes_per_batch > MAPPED_BYTES:
        pages *= SHARED_BEYOND_MAPPED
    worker = min(max(pages, low), high)
    return Prior(TENSOR_RATIO * worker, 0.4, TENSOR_RATIO, 0.3)


@dataclass(frozen=True, slots=True)
class ParallelFit:
    """The fitted law: a weighted grid of scenarios, each with the CPU time of a fetch that stays in the main process."""

    cpu_ms: Floats
    wait_ms: float
    machine: Machine
    worker_ms: Floats
    main_ms: Floats
    contention: Floats
    weights: Floats
    noise: float
    measured: tuple[tuple[int, float], ...] = ()

    def batch_ms(self, num_workers: int) -> tuple[float, float, float]:
        """Median ms a batch that the loader alone needs with so many workers, and its 90 % interval."""
        times = self._times(num_workers)
        low, middle, high = weighted_quantile(times, self.weights, (0.05, 0.5, 0.95))
        margin = math.exp(_Z90 * math.hypot(_MODEL_ERROR, self.noise / 2) if num_workers else 0.0)
        return float(middle), float(low / margin), float(high * margin)

    def log_density(self, num_workers: int, measured_ms: float) -> float:
        """Log density that the fit gives to a measured time (of its logarithm): for comparing priors."""
        spread = math.hypot(_MODEL_ERROR, self.noise)
        away = (np.log(self._times(num_workers)) - math.log(measured_ms)) / spread
        return math.log(max(float(np.sum(self.weights * np.exp(-0.5 * away**2))) / spread, 1e-300))

    def costs(self, num_workers: int, host_growth: tuple[float, float, float] = HOST_GROWTH) -> ParallelCosts:
        """Scenarios for the simulation: the likely one, and those at the ends of the 90 % interval.

        ``num_workers``: the count that the interval is wanted for. Costs hang together (a fit cannot tell
        hand-over from contention), so each scenario is the mean of grid points that predict alike there.
        """
        times = self._times(num_workers)
        order = np.argsort(times)
        cumulative = np.cumsum(self.weights[order])

        def mean_within(low: float, high: float, growth: float) -> Scenario:
            chosen = order[(cumulative >= low) & (cumulative <= high)]
            if len(chosen) == 0 or self.weights[chosen].sum() <= 0:
                chosen = order[[min(int(np.searchsorted(cumulative, (low + high) / 2)), len(order) - 1)]]
            mass = self.weights[chosen]
            parts = (self.worker_ms, self.main_ms, self.contention)
            worker, main, sigma = (float(np.average(part[chosen], weights=mass)) for part in parts)
            return Scenario(worker, main, sigma, growth)

        low, likely, high = host_growth
        return ParallelCosts(
            mean_within(0.35, 0.65, likely), mean_within(0.02, 0.08, low), mean_within(0.92, 0.98, high)
        )

    def _times(self, num_workers: int) -> Floats:
        return _law(
            num_workers,
            self.cpu_ms,
            self.wait_ms,
            self.worker_ms,
            self.main_ms,
            self.contention,
            self.machine,
        )


def fit_parallel(
    points: Sequence[tuple[int, float]],
    *,
    machine: Machine,
    cpu_ms: float | None = None,
    wait_ms: float = 0.0,
    bytes_per_batch: float | None = None,
    kind: Kind = "tensor",
    in_worker: bool = False,
    prior: Prior | None = None,
    noise: float = 0.03,
) -> ParallelFit:
    """Fit hand-over and contention to ``points``: (num_workers, ms a batch of the loader alone).

    ``cpu_ms`` and ``wait_ms`` are the service time of a batch on an idle machine, from the record; without
    ``cpu_ms`` the point with 0 workers gives it. ``in_worker``: the service time was recorded in workers, so
    it holds the worker's share of the hand-over, of which 0 workers are free. ``noise``: relative error of a measured point.
    Raises InputError when neither a service time nor a point with 0 workers is there.
    """
    alone = [t for n, t in points if n == 0]
    if any(not (math.isfinite(t) and t > 0) or n < 0 for n, t in points):
        raise InputError(
            "a measured loader speed must be a positive time for 0 or more workers; measure it again"
        )
    if cpu_ms is None:
        if not alone:
            raise InputError("fitting the loader needs the time of a batch; measure with num_workers=0 too")
        cpu_ms = max(float(np.mean(alone)) - wait_ms, 0.0)
    believed = prior or handover_prior(cpu_ms + wait_ms, bytes_per_batch, kind)
    reach = np.linspace(-2.6, 2.6, 41)
    main = (believed.main_ms * np.exp(believed.main_spread * reach))[:, None, None]
    inverse = 1.0 / believed.main_per_worker * np.exp(believed.ratio_spread * reach)
    worker = main * inverse[None, :, None]
    sigma = (believed.contention * np.linspace(0.0, 4.0, 13))[None, None, :]
    log = -0.5 * (reach[:, None, None] ** 2 + reach[None, :, None] ** 2 + (sigma / believed.contention) ** 2)
    main, worker, sigma, log = (
        np.ascontiguousarray(a) for a in np.broadcast_arrays(main, worker, sigma, log)
    )
    alone_ms = np.maximum(cpu_ms - worker, 0.05 * cpu_ms) if in_worker else np.full(worker.shape, cpu_ms)
    for n, measured in points:
        if n or in_worker:
            law = _law(n, alone_ms, wait_ms, worker, main, sigma, machine)
            log = log - 0.5 * (np.log(law / measured) / math.hypot(noise, _MODEL_ERROR)) ** 2
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    return ParallelFit(
        alone_ms.ravel(),
        wait_ms,
        machine,
        worker.ravel(),
        main.ravel(),
        sigma.ravel(),
        weights.ravel(),
        noise,
        tuple((int(n), float(t)) for n, t in points),
    )


def busy_elsewhere(cores: float, cpu_ms: float, run_delay_ms: float, running: float = 1.0) -> float:
    """Always runnable threads of others, from how long ``running`` of our threads waited for a core.

    Under fair sharing n threads on c cores wait n / c - 1 times as long as they compute. 0 where nobody waited:
    others may then use the cores that we left idle, which only the host's CPU samples show.
    """
    if not cpu_ms > 0 or run_delay_ms <= 0:
        return 0.0
    return max(0.0, cores * (1.0 + run_delay_ms / cpu_ms) - running)


def fit_crowding(inputs: LoaderInputs, settings: LoaderSettings, measured_ms: float) -> LoaderInputs:
    """The inputs with the ``crowding`` with which the model's step equals the measured one.

    For more workers than cores, held up by their number: beside them the job's own threads (main process, pin
    thread) take between none and one of the cores. 0 where the model is slower already: then it is the cores alone.
    """
    if not inputs.crowd:
        # the trace shows how long the main process takes beside them all, not how long it computes
        shared = min(inputs.machine.cores / (settings.num_workers + 1.0), 1.0)
        inputs = inputs.replace(beside_workers=BESIDE, main_cpu_ms=inputs.main_cpu_ms * shared)
    low, high = 0.0, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        tried = inputs.replace(machine=dataclasses.replace(inputs.machine, crowding=middle))
        low, high = (low, middle) if predict(tried, settings).mean_ms > measured_ms else (middle, high)
    return inputs.replace(machine=dataclasses.replace(inputs.machine, crowding=low))


def fit_epoch_ms(inputs: LoaderInputs, settings: LoaderSettings, measured_ms: float) -> float:
    """The ``epoch_ms`` with which the model's mean step equals the measured one; 0 where it is slower
    already.

    ``settings`` are those of the measured run and must start workers each epoch; ``batches_per_epoch`` is
    needed.
    """
    epoch = inputs.batches_per_epoch
    if epoch is None or settings.num_workers == 0 or settings.persistent_workers:
        raise InputError("the cost of an epoch start needs a run with workers that are started every epoch")

    def excess(epoch_ms: float) -> float:
        return predict(inputs.replace(epoch_ms=epoch_ms), settings).mean_ms - measured_ms

    low, high = 0.0, max(measured_ms, 1.0) * epoch
    if excess(low) >= 0.0:
        return 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
        if high - low < 1e-4 * measured_ms * epoch:
            break
    return (low + high) / 2


def _law(
    n: int, cpu: Floats, wait: float, worker: Floats, main: Floats, sigma: Floats, machine: Machine
) -> Floats:
    if n == 0:
        return cpu + wait
    alone = np.maximum(cpu + worker + wait, 1e-9)
    computing = n * (cpu + worker) / alone + np.minimum(1.0, n * main / alone)
    alone_speed = machine.speed(1.0, sigma, sliced=False)
    pace = machine.speed(computing, sigma) / alone_speed
    workers = ((cpu + worker) / pace + wait) / n
    if machine.storage_streams is not None:
        workers = np.maximum(workers, wait / machine.storage_streams)
    received = np.maximum(main * alone_speed / machine.speed(1.0, sigma), 1e-9)
    peak = np.maximum(workers, received)
    return np.asarray(
        peak * ((workers / peak) ** KNEE + (received / peak) ** KNEE) ** (1 / KNEE), dtype=np.float64
    )
