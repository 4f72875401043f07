"""Predict the step time for other DataLoader settings; ``loader_choice`` chooses among them.

``predict`` runs the simulation of ``loader_sim`` with measured costs; ``sweep`` does so for a range of num_workers.

Intervals (90 %) combine, in quadrature on the logarithm: contention and hand-over cost between their own
bounds, the standard error of the mean service time and of the mean consumption, and the spread between
alignments of the recorded batches with the workers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tracelens.whatif.loader_inputs import LoaderInputs, LoaderSettings, Scenario, main_slowdown
from tracelens.whatif.loader_sim import Costs, Trace, simulate
from tracelens.whatif.stats import block_error

TOLERANCE = 0.02  # gains below this are not worth a change, and values this close to the best are as good
# 90 % error of a step predicted from a run without workers, against real loaders (benchmarks/models.py --live)
WAIT_ERROR, STEP_ERROR = 0.10, 0.02
_HORIZON = 160
_MAX_HORIZON = 640
_Z90 = 1.645


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Busy shares 0..1: of all workers, of the usable cores, of the consumer (device or training step)."""

    workers: float
    cores: float
    consumer: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Mean step time in ms with its 90 % interval, mean wait in ``next`` a step, samples/s and utilisation.

    ``fast_ms`` and ``slow_ms`` are the means with every uncertain cost at either end of its interval;
    ``noise`` is the rest of the uncertainty, relative.
    """

    settings: LoaderSettings
    mean_ms: float
    low_ms: float
    high_ms: float
    wait_ms: float
    samples_per_s: float
    utilisation: Utilisation
    fast_ms: float
    slow_ms: float
    noise: float

    @property
    def expected_ms(self) -> float:
        """Mean over what is uncertain: the scenarios at 5, 50 and 95 % with Pearson and Tukey's weights."""
        return 0.185 * self.fast_ms + 0.63 * self.mean_ms + 0.185 * self.slow_ms

    def speedup_to(self, other: Prediction) -> float:
        """How many times faster ``other`` is: the ratio of mean throughputs."""
        return self.mean_ms / other.mean_ms


@dataclass(frozen=True, slots=True)
class LoaderCurve:
    """Predictions by num_workers, in rising order, all other settings alike."""

    points: tuple[Prediction, ...]

    def at(self, num_workers: int) -> Prediction:
        """The prediction for one value; KeyError where it was not asked for."""
        for point in self.points:
            if point.settings.num_workers == num_workers:
                return point
        raise KeyError(num_workers)

    @property
    def best(self) -> Prediction:
        """The fastest; the fewest workers among equals."""
        return min(self.points, key=lambda p: (p.mean_ms, p.settings.num_workers))


def speedup_interval(before: Prediction, after: Prediction) -> tuple[float, float]:
    """90 % interval of ``before.mean_ms / after.mean_ms``.

    An uncertain cost is the same before and after, so the ratio is taken within each scenario, where it
    cancels as far as it should; the noise of both sides is added.
    """
    if before.settings == after.settings:
        return (1.0, 1.0)
    ratio = before.mean_ms / after.mean_ms
    ends = (ratio, before.fast_ms / after.fast_ms, before.slow_ms / after.slow_ms)
    margin = math.hypot(before.noise, after.noise)
    down = math.hypot(math.log(ratio / min(ends)), margin)
    up = math.hypot(math.log(max(ends) / ratio), margin)
    return (ratio * math.exp(-down), ratio * math.exp(up))


def predict(inputs: LoaderInputs, settings: LoaderSettings, *, seed: int = 0) -> Prediction:
    """Mean step time with ``settings``; deterministic for a seed."""
    costs = inputs.parallel
    base, trace = _run(inputs, settings, costs.likely, 0, seed)
    shuffled, _ = _run(inputs, settings, costs.likely, 0, seed + 1)
    at_best = inputs if inputs.machine_at_best is None else inputs.replace(machine=inputs.machine_at_best)
    fast, _ = _run(at_best, settings, costs.fast, -1, seed)
    slow, _ = _run(inputs, settings, costs.slow, +1, seed)
    noise = math.hypot(math.log(shuffled / base), _consumption_error(inputs, base))
    waited = float(np.mean(trace.waits))
    if settings.num_workers:
        waited += max(inputs.held_ms - base, 0.0)
        base, fast, slow = (max(ms, inputs.held_ms) for ms in (base, fast, slow))
        # the model itself: what real loaders do beyond torch's rules, on the wait and on everything else
        noise = math.hypot(noise, WAIT_ERROR * waited / base, STEP_ERROR)
    down = math.hypot(max(0.0, math.log(base / fast)), noise)
    up = math.hypot(max(0.0, math.log(slow / base)), noise)
    span = trace.ends[-1] or 1.0
    workers = settings.num_workers
    used = Utilisation(
        workers=min(1.0, trace.worker_busy / (span * workers)) if workers else 0.0,
        cores=min(1.0, trace.cpu_busy / (span * inputs.machine.cores)),
        consumer=min(1.0, trace.consumer_busy / span),
    )
    return Prediction(
        settings,
        base,
        base * math.exp(-down),
        base * math.exp(up),
        waited,
        1000.0 * inputs.samples_per_batch / base if base > 0 else math.inf,
        used,
        fast,
        slow,
        noise,
    )


def sweep(
    inputs: LoaderInputs, settings: LoaderSettings, num_workers: Iterable[int] = range(17), *, seed: int = 0
) -> LoaderCurve:
    """Predictions for each value of num_workers."""
    values = sorted(set(num_workers))
    return LoaderCurve(tuple(predict(inputs, settings.replace(num_workers=w), seed=seed) for w in values))


def _consumption_error(inputs: LoaderInputs, mean_ms: float) -> float:
    values = inputs.consumption
    return 0.0 if values is None else _Z90 * block_error(values) / max(mean_ms, 1e-12)


def _costs(
    inputs: LoaderInputs, settings: LoaderSettings, scenario: Scenario, side: int, steps: int, seed: int
) -> Costs:
    """Recorded costs as sequences: whole passes over the record in its order, each begun at another batch.

    Order and period of the record survive within a pass; the alignment with the workers changes between
    passes. ``side`` moves the mean service time by the 90 % bound of its standard error, down (-1) or up
    (+1).
    """
    count = len(inputs.service_cpu_ms)
    rng = np.random.default_rng(seed)
    passes = -(-steps // count)
    starts = rng.integers(0, count, size=passes) if seed or passes > 1 else np.zeros(1, dtype=np.int64)
    order = ((np.arange(count)[None, :] + starts[:, None]) % count).ravel()[:steps]
    machine, workers = inputs.machine, settings.num_workers
    if workers and inputs.beside_workers:
        free = max(machine.cores - inputs.beside_workers, 0.5 * machine.cores)
        machine = dataclasses.replace(machine, cores=free)
    sigma = scenario.contention
    recorded = machine.speed([inputs.recorded_running, 1.0], sigma, sliced=False)
    cpu, wait = inputs.service_cpu_ms * (recorded[0] / recorded[1]), inputs.service_wait_ms
    if side:
        error = inputs.service_error
        if error is None:
            error = block_error(cpu + wait) / max(float(np.mean(cpu + wait)), 1e-12)
        factor = math.exp(side * _Z90 * min(error, 0.5))
        cpu, wait = cpu * factor, wait * factor
    cpu = cpu[order] + inputs.collate_ms
    if workers and not inputs.recorded_in_worker:
        cpu = cpu + scenario.worker_ms
    main_cpu, stretch, spared = inputs.main_cpu_ms, 1.0 - _relief(inputs, workers), 0.0
    if inputs.recorded_in_worker and not workers:
        # no shared memory: the worker need not write it, nor training touch its fresh pages
        cpu = np.maximum(cpu - scenario.worker_ms, 0.05 * cpu)
        spared = min(scenario.main_ms, 0.5 * main_cpu)
        main_cpu -= spared
    if workers and not inputs.recorded_in_worker:
        computing = float(np.sum(cpu)) / max(float(np.sum(cpu) + np.sum(wait)), 1e-12)
        growth = scenario.host_growth * computing
        main_cpu *= 1.0 + growth
        stretch *= 1.0 + growth * inputs.host_share
    # what the main process needs alone with all its threads, expressed at the speed of one
    main_cpu *= float(machine.speed(inputs.main_threads, sigma, sliced=False)) / float(recorded[1])
    speed = machine.speed(np.arange(workers + 4 + inputs.main_threads, dtype=np.float64), sigma)
    return Costs(
        wait=wait[order].tolist(),
        cpu=cpu.tolist(),
        consume=_shortened(inputs, stretch, spared),
        receive=scenario.main_ms if workers else 0.0,
        pin=(inputs.pin_ms + (0.0 if workers else inputs.main_pin_ms)) if settings.pin_memory else 0.0,
        main_cpu=main_cpu,
        speed=(speed / recorded[1]).tolist(),
        streams=math.inf if machine.storage_streams is None else machine.storage_streams,
    )


def _shortened(inputs: LoaderInputs, stretch: float, spared: float) -> Callable[[int], float]:
    """The consumer's time, less what the host is spared where the step is the host's own time."""
    consume = inputs.consume(stretch)
    if not spared or inputs.run_ahead:
        return consume
    return lambda step: max(consume(step) - spared, 0.5 * consume(step))


def _relief(inputs: LoaderInputs, workers: int) -> float:
    """How much shorter the rest of a step is than it was beside ``inputs.crowd`` workers."""
    if not inputs.host_relief or workers >= inputs.crowd:
        return 0.0
    then, now = (main_slowdown(n, inputs.machine.cores) for n in (inputs.crowd, workers))
    return inputs.host_relief * (then - now) / max(then - 1.0, 1e-9)


def _run(
    inputs: LoaderInputs, settings: LoaderSettings, scenario: Scenario, side: int, seed: int
) -> tuple[float, Trace]:
    """Mean step time over the run, and the simulated steps it comes from."""
    horizon = min(_MAX_HORIZON, max(_HORIZON, 6 * settings.num_workers * settings.prefetch_factor))
    epoch = inputs.batches_per_epoch
    if epoch is not None and epoch <= horizon:
        epochs = [epoch] * max(2 if epoch > 1 else 3, min(40, horizon // epoch))
    else:
        epochs = [horizon]
    steps = sum(epochs)
    costs = _costs(inputs, settings, scenario, side, steps, seed)
    trace = simulate(inputs, settings, costs, epochs, cold=epoch is not None)
    ends = trace.ends
    if epoch is not None and epoch <= horizon:
        # the first epoch starts the workers; with persistent workers it happens once and is not the steady
        # state
        if settings.persistent_workers and settings.num_workers:
            return (ends[-1] - ends[epoch - 1]) / (steps - epoch), trace
        return ends[-1] / steps, trace
    half = steps // 2
    steady = (ends[-1] - ends[half - 1]) / (steps - half)
    if epoch is None:
        return steady, trace
    once = settings.persistent_workers and settings.num_workers > 0
    start = ends[half - 1] - (_start_cost(inputs, settings) if once else 0.0)
    return (start + steady * (epoch - half)) / epoch, trace


def _start_cost(inputs: LoaderInputs, settings: LoaderSettings) -> float:
    """What starting the workers costs beyond waking them, ms."""
    started = inputs.fork_ms * settings.num_workers + inputs.epoch_ms + inputs.init_ms
    return max(0.0, started - inputs.resume_ms)
