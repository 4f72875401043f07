"""The loader's model fed with what was recorded of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracelens.diagnose.advice.case import WORTH, Case
from tracelens.diagnose.advice.loader_machine import (
    consumer,
    elsewhere,
    hyper_threads,
    is_crowded,
    limits_of,
    relieved,
    threads,
    usable_cores,
    workers_beside,
)
from tracelens.diagnose.advice.loader_service import (
    batch_ms,
    batches_per_step,
    epoch_batches,
    loading_noise,
    observed_service,
)
from tracelens.errors import InputError
from tracelens.whatif import loader_choice as choice
from tracelens.whatif import loader_model as model
from tracelens.whatif.loader_fit import (
    BESIDE,
    HOST_GROWTH,
    OPERATOR_GROWTH,
    PIN_MS_PER_MB,
    Prior,
    collate_prior,
    fit_crowding,
    fit_epoch_ms,
    fit_parallel,
)
from tracelens.whatif.loader_inputs import LoaderInputs, LoaderSettings, Machine
from tracelens.whatif.loader_observe import ObservedService


@dataclass(frozen=True)
class LoaderCase:
    """The loader model's inputs for a case: today's settings, limits, and whether the cores were known."""

    inputs: LoaderInputs
    settings: LoaderSettings
    limits: choice.Limits
    cores_known: bool
    advice: choice.Advice
    points: Mapping[int, float] = field(default_factory=dict)
    batches: int = 1  # batches that one step consumes; the model's unit is the batch
    measured_ms: float = 0.0  # from one batch to the next, as recorded
    noise: float = 0.0  # what could look like a gain of loading, relative

    @property
    def changes(self) -> dict[str, int | bool]:
        """What the model would change."""
        return self.advice.changes

    @property
    def feed_ms(self) -> float:
        """What the loader alone needs for a batch, with today's settings."""
        return model.predict(self.inputs.replace(consume_ms=0.01, main_cpu_ms=0.0), self.settings).mean_ms

    def with_consumption(self, consume_ms: np.ndarray) -> model.Prediction:
        """The advised settings with another time of the rest of the step."""
        return model.predict(
            self.inputs.replace(consume_ms=consume_ms / self.batches), self.advice.advised.settings
        )


def loader_case(case: Case, points: Mapping[int, float] | None = None) -> LoaderCase | str:
    """The model for this run, or the reason why there is none. ``points``: ms a batch of the loader alone, by workers."""
    settings = _settings(case)
    if settings is None:
        return "the DataLoader's settings were not recorded (--loader)"
    try:
        observed = observed_service(case, settings)
    except InputError as error:
        return str(error)
    if observed is None:
        return "the trace has no DataLoader events"
    if observed.known == "upper":
        return "the loader was never waited for, so it only shows that it is fast enough"
    cores, known = usable_cores(case.signals)
    ranks = max(case.analysis.tables.world_size or 1, 1)
    local = min(ranks, 8)
    usable = max(cores / local if known and ranks > 1 else cores, 1.0)
    machine, at_best = hyper_threads(
        Machine(cores=usable, busy_elsewhere=elsewhere(case, cores, settings)), case.signals
    )
    batches, measured = batches_per_step(case), batch_ms(case, settings)
    consume = case.consume_ms() / batches
    if not case.analysis.has_gpu:
        # recorded beside others' load and the workers'; the model adds that load again
        consume = consume * float(machine.speed([threads(case) + workers_beside(case)])[0])
    rest = consumer(case, consume, batches)
    workers, used = settings.num_workers, float(np.mean(observed.cpu_ms)) / max(measured, 1e-9)
    # computing in workers is known from either log
    logged = observed.error is not None or (case.analysis.run_log is not None and case.analysis.has_gpu)
    crowded = known and logged and is_crowded(case, usable, settings, used)
    if crowded:
        machine = replace(machine, busy_elsewhere=0.0)  # they are each other's rivals
        rest |= {
            "crowd": workers,
            "host_relief": relieved(case, usable, workers, float(np.mean(consume)) * batches),
            "main_cpu_ms": rest["main_cpu_ms"] * usable / (workers + 1),
            "beside_workers": BESIDE,
        }
    copied = case.signals.number("transfer.h2d_bytes")
    size = case.signals.number("load.batch_bytes") or (copied / batches if copied else None)
    service = float(np.mean(observed.cpu_ms + observed.wait_ms))
    wanted = max(1, min(math.ceil(service / max(float(np.mean(consume)), 1e-3)) + 1, int(machine.cores), 16))
    if case.rehearsal:
        return "rehearsal"  # the consumer's time is a question to the replay, asked above; the rest needs its answer
    parallel = fit_parallel(
        sorted((points or {}).items()),
        machine=machine,
        cpu_ms=float(np.mean(observed.cpu_ms)),
        wait_ms=float(np.mean(observed.wait_ms)),
        bytes_per_batch=size,
        in_worker=observed.in_worker,
        prior=_handover(observed, size),
    ).costs(wanted, HOST_GROWTH if case.analysis.has_gpu else OPERATOR_GROWTH)
    inputs = LoaderInputs(
        service_cpu_ms=observed.cpu_ms,
        service_wait_ms=observed.wait_ms,
        consume_ms=consume,
        samples_per_batch=float(case.analysis.batch_size or 1),
        parallel=parallel,
        recorded_in_worker=observed.in_worker,
        recorded_running=observed.running,
        main_pin_ms=PIN_MS_PER_MB * (size or 0.0) / 1e6 if observed.in_worker else 0.0,
        held_ms=observed.held_ms,
        service_error=observed.error,
        slow_worker=observed.slow_worker,
        machine=machine,
        machine_at_best=at_best,
        batches_per_epoch=epoch_batches(case),
        **rest,
        **_starting(case),
    )
    if (
        case.fired("load.worker_startup")
        and inputs.batches_per_epoch
        and settings.num_workers
        and not settings.persistent_workers
    ):
        inputs = inputs.replace(epoch_ms=fit_epoch_ms(inputs, settings, measured))
    held = bool(inputs.held_ms) and known and workers > usable
    if held or (crowded and case.analysis.run_log is not None):
        # more workers than cores: it is the cores that hold them up
        inputs = fit_crowding(inputs.replace(held_ms=0.0), settings, measured)
    reading = float(np.sum(observed.wait_ms)) / max(float(np.sum(observed.cpu_ms + observed.wait_ms)), 1e-9)
    limits = limits_of(case, usable, size, reading)
    return LoaderCase(
        inputs,
        settings,
        limits,
        known,
        needed(inputs, choice.advise(inputs, settings, limits)),
        dict(points or {}),
        batches,
        measured,
        loading_noise(case),
    )


def _handover(observed: ObservedService, size: float | None) -> Prior | None:
    """What the workers' own collating says of handing batches over; None where it was not recorded."""
    if not observed.in_worker or observed.collate_ms is None or not size:
        return None
    return collate_prior(observed.collate_ms, size)


def _settings(case: Case) -> LoaderSettings | None:
    given = case.analysis.settings
    workers = given.get("num_workers")
    if not isinstance(workers, int) or isinstance(workers, bool):
        if case.signals.value("load.mode") != "main_process":
            return None
        workers = 0
    prefetch = given.get("prefetch_factor")
    return LoaderSettings(
        num_workers=workers,
        prefetch_factor=prefetch if isinstance(prefetch, int) and prefetch > 0 else 2,
        persistent_workers=given.get("persistent_workers") is True,
        pin_memory=given.get("pin_memory") is True,
        in_order=given.get("in_order") is not False,
    )


def _starting(case: Case) -> dict[str, Any]:
    """What starting workers costs, where the recorder measured it."""
    log = case.analysis.run_log
    workers = case.analysis.settings.get("num_workers")
    if log is None or not isinstance(workers, int) or workers < 1:
        return {}
    starts = log.starts_ms[np.isfinite(log.starts_ms)]
    if not starts.size:
        return {}
    return {"fork_ms": float(np.median(starts)) / workers}


def needed(inputs: LoaderInputs, advice: choice.Advice) -> choice.Advice:
    """The advice without the changes that the others make superfluous: taking one back costs less than 2 %."""
    for name in sorted(advice.changes, key=lambda n: advice.gains.get(n, 1.0)):
        if len(advice.changes) == 1:
            break
        today = getattr(advice.current.settings, name)
        without = model.predict(inputs, advice.advised.settings.replace(**{name: today}))
        if without.mean_ms <= advice.advised.mean_ms * (1 + WORTH):
            advice = replace(advice, advised=without)
    return advice
