"""What to set on the DataLoader: the loader model fed with what was recorded, and its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracelens.diagnose.advice.case import WORTH, Case, Proposal
from tracelens.errors import InputError
from tracelens.model import Curve, Declined, Recommendation
from tracelens.signals.deliveries import computing_beside
from tracelens.signals.signal import Signals
from tracelens.units import milliseconds, ratio
from tracelens.whatif import loader_model as model
from tracelens.whatif.loader_fit import busy_elsewhere, fit_epoch_ms, fit_parallel
from tracelens.whatif.loader_inputs import LoaderInputs, LoaderSettings, Machine
from tracelens.whatif.loader_observe import ObservedService, service_with_workers, service_without_workers
from tracelens.whatif.replay import fit_service
from tracelens.whatif.scenarios import LOADED

_ASSUMED_CORES = 8.0  # where nobody recorded how many: a small share of a training host


@dataclass(frozen=True)
class LoaderCase:
    """The loader model's inputs for a case: today's settings, limits, and whether the cores were known."""

    inputs: LoaderInputs
    settings: LoaderSettings
    limits: model.Limits
    cores_known: bool
    advice: model.Advice
    points: Mapping[int, float] = field(default_factory=dict)
    batches: int = 1  # batches that one step consumes; the model's unit is the batch

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
        observed = _service(case, settings)
    except InputError as error:
        return str(error)
    if observed is None:
        return "the trace has no DataLoader events"
    if observed.known == "upper":
        return "the loader was never waited for, so it only shows that it is fast enough"
    cores, known = _cores(case.signals)
    ranks = max(case.analysis.tables.world_size or 1, 1)
    local = min(ranks, 8)
    machine = Machine(
        cores=max(cores / local if known and ranks > 1 else cores, 1.0),
        busy_elsewhere=_elsewhere(case, cores, settings),
    )
    batches = _batches(case)
    consume = case.consume_ms() / batches
    if not case.analysis.has_gpu:
        # recorded beside others' load; the model adds that load again
        consume = consume * float(machine.speed([float(_threads(case))])[0])
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
    ).costs(wanted)
    inputs = LoaderInputs(
        service_cpu_ms=observed.cpu_ms,
        service_wait_ms=observed.wait_ms,
        consume_ms=consume,
        samples_per_batch=float(case.analysis.batch_size or 1),
        parallel=parallel,
        recorded_in_worker=observed.in_worker,
        recorded_running=observed.running,
        machine=machine,
        batches_per_epoch=_epoch(case),
        **_consumer(case, consume, batches),
        **_starting(case),
    )
    if (
        case.fired("load.worker_startup")
        and inputs.batches_per_epoch
        and settings.num_workers
        and not settings.persistent_workers
    ):
        inputs = inputs.replace(epoch_ms=fit_epoch_ms(inputs, settings, case.step_ms / batches))
    limits = _limits(case, machine.cores, size)
    return LoaderCase(
        inputs,
        settings,
        limits,
        known,
        needed(inputs, model.advise(inputs, settings, limits)),
        dict(points or {}),
        batches,
    )


def _batches(case: Case) -> int:
    """Batches that a step consumes: more than one where gradients are accumulated, or a step is a whole inference call."""
    log = case.analysis.run_log
    if log is not None and len(log.steps) and log.queue_depth.size:
        return max(round(log.queue_depth.size / len(log.steps)), 1)
    activity, (low, high) = case.analysis.activity, case.analysis.window
    mine = activity.next_events & (activity.host.thread == activity.main_thread)
    inside = mine & (activity.host.start >= low) & (activity.host.start < high)
    return max(round(int(inside.sum()) / case.analysis.step_count), 1)


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


def _service(case: Case, settings: LoaderSettings) -> ObservedService | None:
    """Service times: the loader log's own, else what ``next`` shows in the trace."""
    log = case.analysis.run_log
    if log is not None and len(log.fetches) >= 3:
        made = log.fetches
        keep = np.ones(len(made), dtype=bool)
        for window in log.windows:
            if isinstance(window.get("t0"), int) and isinstance(window.get("t1"), int):
                # the profiler also records the dataset's own operators
                keep &= (made.t1 < window["t0"]) | (made.t0 > window["t1"])
        made_cpu, waiting = np.where(np.isfinite(made.cpu_ms), made.cpu_ms, made.wall_ms), made.waiting_ms
        if keep.sum() >= 3:
            made_cpu, waiting = made_cpu[keep], waiting[keep]
        in_worker = bool((made.worker >= 0).any())
        busy = case.signals.number("load.worker_busy") or 1.0
        running = max(1.0, settings.num_workers * busy) if in_worker else 1.0
        return ObservedService(made_cpu, waiting, "measured", in_worker, running)
    activity = case.analysis.activity
    rows = np.flatnonzero(activity.next_events & (activity.host.thread == activity.main_thread))
    low = (
        int(case.analysis.steps.begin[case.analysis.steps.first])
        if case.analysis.steps.count
        else case.analysis.window[0]
    )
    rows = rows[(activity.host.start[rows] >= low) & (activity.host.start[rows] < case.analysis.window[1])]
    if not rows.size:
        return None
    spans = (activity.host.end - activity.host.start)[rows] / 1e6
    if settings.num_workers == 0:
        return service_without_workers(spans, _main_cpu_share(case))
    worker = case.signals.number("machine.worker_cpu")
    share = min(worker, 1.0) if worker else 1.0
    if case.replayed is not None and case.fired_load_rule not in (None, "load.worker_startup"):
        # the loader limits: the replay has followed every worker from batch to batch
        graph = case.replayed.graph
        service = (
            fit_service(
                graph,
                settings.num_workers,
                settings.num_workers * settings.prefetch_factor,
                case.replayed.busy,
            )
            / 1e6
        )
        service = service[service > 0]
        if service.size >= 3:
            running = max(1.0, settings.num_workers * share)
            return ObservedService(service * share, service * (1 - share), "measured", True, running)
    ends = (activity.host.end[rows] - low) / 1e6
    return service_with_workers(
        ends,
        spans,
        settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        epoch=_epochs(spans, _epoch(case), settings),
        cpu_share=share,
    )


def _epochs(spans: np.ndarray, epoch: int | None, settings: LoaderSettings) -> np.ndarray | None:
    """The epoch of each batch, where epochs are shorter than the trace: they begin where the waits gather."""
    if epoch is None or epoch >= spans.size or settings.persistent_workers:
        return None
    start = max(range(epoch), key=lambda offset: float(spans[offset::epoch].mean()))
    return (np.arange(spans.size) - start) // epoch


def _main_cpu_share(case: Case) -> float:
    """How much of ``next`` in the main process is computing: its CPU use, less the rest of the step, which computes all along."""
    used, share = case.signals.number("machine.main_cpu"), case.signals.number("load.next_share")
    if used is None or not share:
        return 1.0
    return float(np.clip((used - (1 - share)) / share, 0.05, 1.0))


def _cores(signals: Signals) -> tuple[float, bool]:
    cores = signals.number("machine.usable_cores")
    return (float(cores), True) if cores else (_ASSUMED_CORES, False)


def _elsewhere(case: Case, cores: float, settings: LoaderSettings) -> float:
    """Threads of other processes that compete for the cores: from how long the fetches waited for one, else the host log."""
    foreign = case.signals.number("machine.foreign_cores")
    most = foreign if foreign is not None else math.inf
    log = case.analysis.run_log
    if log is not None:
        made = log.fetches
        # the first batch of each worker meets workers that still start
        rows = (
            np.isfinite(made.cpu_ms) & np.isfinite(made.run_delay_ms) & (made.batch >= settings.num_workers)
        )
        beside = computing_beside(log.deliveries, made, rows) if rows.sum() >= 3 else None
        if beside is not None:
            # a core that is busy all the time looks alike with one rival on it and with five; the waits do not. But a
            # few waits do not show a rival at all times: no more than the samples saw
            computing = max(1.0, beside)
            delay = float(made.run_delay_ms[rows].sum())
            found = busy_elsewhere(cores, float(made.cpu_ms[rows].sum()), delay, computing)
            return found if most >= cores - computing else min(found, most)
    return float(np.clip(most, 0.0, max(cores - 1, 0.0))) if foreign is not None else 0.0


def _consumer(case: Case, consume: np.ndarray, batches: int) -> dict[str, Any]:
    """How the rest of a step uses the CPU, and whether the host runs ahead of a device."""
    mean = float(np.mean(consume))
    if case.analysis.has_gpu:
        host = case.replayed.host_ms / batches if case.replayed is not None else mean
        return {"main_cpu_ms": min(host, mean), "run_ahead": _run_ahead(case)}
    return {"main_cpu_ms": mean, "main_threads": _threads(case), "run_ahead": 0}


def _run_ahead(case: Case) -> int:
    """How many steps the host gets ahead of the device: 0 where it waits for its step's own work (``.item()``), 1 where
    for the one before it (a blocking copy queues behind that), else what loops without waits reach before a batch is due."""
    if case.replayed is None:
        return 2
    graph = case.replayed.graph
    waiting = np.flatnonzero(graph.waits_for >= 0)
    target = graph.waits_for[waiting]
    done = np.cumsum(graph.duration)
    total = np.bincount(graph.owner, weights=graph.duration, minlength=graph.steps)
    before = np.concatenate(([0.0], np.cumsum(total)[:-1]))
    late = done[target] - before[graph.owner[target]] >= 0.5 * total[graph.owner[target]]
    own = late & (graph.owner[target] == graph.step[waiting])
    if np.unique(graph.step[waiting[own]]).size > 0.5 * graph.steps:
        return 0
    return 1 if np.unique(graph.step[waiting]).size > 0.5 * graph.steps else 2


def _threads(case: Case) -> int:
    """Cores that the training process keeps busy while it computes: by its CPU use, at most its intra-op threads."""
    log = case.analysis.run_log
    given = log.process.get("threads") if log is not None else None
    most = given.get("intraop") if isinstance(given, dict) else None
    used, waiting = case.signals.number("machine.main_cpu"), case.signals.number("phase.load") or 0.0
    if not isinstance(most, int) or most < 1:
        return 1
    if used is None or waiting >= 0.95:
        return most
    return int(np.clip(round(used / (1 - waiting)), 1, most))


def _epoch(case: Case) -> int | None:
    length, batch = case.analysis.settings.get("dataset_len"), case.analysis.batch_size
    return -(-length // batch) if isinstance(length, int) and length > 0 and batch else None


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


def _limits(case: Case, cores: float, size: float | None) -> model.Limits:
    log = case.analysis.run_log
    host = case.analysis.host_log
    free = shm = rss = None
    if host is not None:
        known = host.mem_available[np.isfinite(host.mem_available)]
        free = float(known.min()) if known.size else None
    if log is not None:
        shared = log.process.get("dev_shm_bytes")
        shm = float(shared) if isinstance(shared, int | float) else None
        grown = log.fetches.rss[np.isfinite(log.fetches.rss)]
        rss = float(np.median(grown)) if grown.size and (log.fetches.worker >= 0).any() else None
    kind = case.analysis.settings.get("dataset_kind")
    shards = bool(case.analysis.settings.get("shards")) if kind == "iterable" else None
    return model.Limits(
        cores=cores, ram_free=free, worker_rss=rss, shm_bytes=shm, bytes_per_batch=size or 0.0, shards=shards
    )


def needed(inputs: LoaderInputs, advice: model.Advice) -> model.Advice:
    """The advice without the changes that the others make superfluous: taking one back costs less than 2 %."""
    for name in sorted(advice.changes, key=lambda n: advice.gains.get(n, 1.0)):
        if len(advice.changes) == 1:
            break
        today = getattr(advice.current.settings, name)
        without = model.predict(inputs, advice.advised.settings.replace(**{name: today}))
        if without.mean_ms <= advice.advised.mean_ms * (1 + WORTH):
            advice = replace(advice, advised=without)
    return advice


def loader_proposals(case: Case, loaded: LoaderCase) -> tuple[list[Proposal], list[Declined], list[Curve]]:
    """The loader model's recommendations with their numbers, what it advises against, and its curve."""
    advice = loaded.advice
    rule = case.fired_load_rule
    changes = advice.changes if rule is not None else {}
    following = case.next_bottleneck(LOADED)
    proposals = []
    before = advice.current
    for name, value in changes.items():
        alone = (
            model.predict(loaded.inputs, loaded.settings.replace(**{name: value}))
            if len(changes) > 1
            else advice.advised
        )
        gain, interval = anchored(case, before, alone, loaded.batches)
        if name == "num_workers" or gain - 1 > WORTH:
            stated, bounds = case.stated(gain, interval)
            current = getattr(loaded.settings, name)
            if gain <= 1 + WORTH:
                stated, bounds = None, None
            proposals.append(
                Proposal(
                    Recommendation(
                        parameter=name,
                        current=current,
                        suggested=value,
                        predicted_speedup=stated,
                        interval=bounds,
                        next_bottleneck=following,
                        rule=rule or "load.too_few_workers",
                        snippet=None,
                        basis="model",
                        why=_why(case, loaded, name, alone),
                        set_flag=f"--set {name}={value}",
                    )
                )
            )
    declined = _declined(case, loaded, changes)
    proposals += _more_cores(case, loaded, rule)
    return proposals, declined, [_curve(loaded)]


_FOREIGN = 0.2  # of a step: more than a model that describes this loader leaves unexplained


def anchored(
    case: Case, before: model.Prediction, after: model.Prediction, batches: int = 1
) -> tuple[float, tuple[float, float]]:
    """Speed-up and interval.

    A little time of a measured step that the model of today's settings does not explain shrinks with the rest, a fifth
    of it and more is something else and stays; the interval reaches from its staying to its going entirely. Where the
    model is slower than the measured step, the speed-up lies between its own and the one from the measured step.
    """
    gain = before.speedup_to(after)
    low, high = model.speedup_interval(before, after)
    per_batch = case.step_ms / batches
    unexplained = per_batch - before.mean_ms
    if per_batch > 0 and abs(unexplained) > 0.05 * per_batch:
        stays = per_batch / max(after.mean_ms + unexplained, after.mean_ms / 2)
        goes = per_batch / after.mean_ms
        low, high = low / gain * min(gain, stays, goes), high / gain * max(gain, stays, goes)
        if unexplained < 0:
            gain = math.sqrt(gain * goes)
        elif unexplained > _FOREIGN * per_batch:
            gain = stays
    return gain, (low, high)


def _why(case: Case, loaded: LoaderCase, name: str, after: model.Prediction) -> str:
    inputs = loaded.inputs
    service = float(np.mean(inputs.service_cpu_ms + inputs.service_wait_ms))
    rest = float(np.mean(inputs.consume_ms)) if not callable(inputs.consume_ms) else 0.0
    today, steps = loaded.advice.current, loaded.batches
    text = (
        f"A batch takes {milliseconds(service)} to make ({milliseconds(float(np.mean(inputs.service_cpu_ms)))} of it CPU), "
        f"the rest of a step {milliseconds(rest * steps)}. Today a step waits {milliseconds(today.wait_ms * steps)} for data "
        f"(modelled step {milliseconds(today.mean_ms * steps)}, measured {milliseconds(case.step_ms)}); "
        f"with {name}={after.settings.num_workers if name == 'num_workers' else getattr(after.settings, name)} "
        f"it waits {milliseconds(after.wait_ms * steps)} (step {milliseconds(after.mean_ms * steps)})."
    )
    if steps > 1:
        text += f" A step consumes {steps} batches."
    if not loaded.cores_known:
        text += f" The number of cores was not recorded; {_ASSUMED_CORES:.0f} are assumed."
    return text


_REASONS = {
    "cores": "more would need cores that this process may not use",
    "ram": "more workers would not fit into the free memory",
    "shm": "the batches waiting in /dev/shm would not fit",
    "shards": "the IterableDataset does not shard its samples: more workers would deliver duplicates",
}


def _declined(case: Case, loaded: LoaderCase, changes: Mapping[str, Any]) -> list[Declined]:
    found = []
    advice, today = loaded.advice, loaded.settings.num_workers
    if "num_workers" not in changes:
        best = advice.curve.best
        gain = advice.current.speedup_to(best)
        if case.fired_load_rule is None:
            saved = milliseconds(case.signals.number("load.saving_ms"))
            reason = f"the loader limits nothing: loading free would save {saved} a step"
        elif advice.limited_by in _REASONS:
            reason = _REASONS[advice.limited_by]
        elif changes and gain > 1 + WORTH:
            reason = (
                f"{best.settings.num_workers} would gain {ratio(gain)}, less than {' and '.join(changes)}, "
                f"which gains {ratio(advice.current.speedup_to(advice.advised))} with today's number"
            )
        else:
            reason = (
                f"the best value ({best.settings.num_workers}) gains {ratio(gain)}, less than {WORTH:.0%}"
            )
        found.append(
            Declined(
                "num_workers",
                best.settings.num_workers if best.settings.num_workers != today else today,
                reason,
            )
        )
    else:
        limit = advice.limited_by
        starving = advice.advised.wait_ms > WORTH * advice.advised.mean_ms
        if limit is None and starving and changes["num_workers"] >= math.floor(loaded.inputs.machine.cores):
            limit = "cores"  # larger numbers were not even asked about
        if limit in _REASONS:
            found.append(Declined("num_workers", None, f"beyond {changes['num_workers']}: {_REASONS[limit]}"))
    return found


def _more_cores(case: Case, loaded: LoaderCase, rule: str | None) -> list[Proposal]:
    """Where cores are the limit: how many would be enough, and what they would give."""
    if (
        rule not in ("load.cores_exhausted", "load.too_many_workers", "load.affinity", "load.quota")
        or not loaded.cores_known
    ):
        return []
    cores = loaded.inputs.machine.cores
    best: tuple[float, int, model.Prediction] | None = None
    base = loaded.advice.current
    for factor in (1.25, 1.5, 2.0, 3.0):
        wider = math.ceil(cores * factor)
        inputs = loaded.inputs.replace(machine=replace(loaded.inputs.machine, cores=float(wider)))
        found = model.predict(inputs, loaded.settings.replace(num_workers=max(wider - 1, 1)))
        gain = base.speedup_to(found)
        if best is None or gain > best[0] * 1.05:
            best = (gain, wider, found)
    if best is None or best[0] < 1.05:
        return []
    gain, wider, found = best
    stated, interval = case.stated(gain, model.speedup_interval(base, found))
    return [
        Proposal(
            Recommendation(
                parameter="cpus_per_task",
                current=int(cores),
                suggested=wider,
                predicted_speedup=stated,
                interval=interval,
                next_bottleneck=case.next_bottleneck(LOADED),
                rule=rule,
                snippet=f"#SBATCH --cpus-per-task={wider}",
                basis="model",
                why=f"All {int(cores)} cores are busy making batches; {wider} cores with {max(wider - 1, 1)} workers would give "
                f"a step of {milliseconds(found.mean_ms)}.",
            ),
            in_plan=False,
        )
    ]


def _curve(loaded: LoaderCase) -> Curve:
    points = loaded.advice.curve.points
    samples = loaded.inputs.samples_per_batch
    return Curve(
        "num_workers",
        "Predicted throughput by num_workers",
        "samples/s" if samples > 1 else "batches/s",
        tuple(float(p.settings.num_workers) for p in points),
        tuple(p.samples_per_s for p in points),
        tuple(1000 * samples / p.high_ms for p in points),
        tuple(1000 * samples / p.low_ms for p in points),
        current=float(loaded.settings.num_workers),
        suggested=float(loaded.advice.advised.settings.num_workers),
        measured=tuple((float(n), 1000 * samples / ms) for n, ms in sorted(loaded.points.items())),
    )
