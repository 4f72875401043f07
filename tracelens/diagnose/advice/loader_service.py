"""How long a batch takes to make, from whatever was recorded of it."""

from __future__ import annotations

import numpy as np

from tracelens.diagnose.advice.case import Case
from tracelens.ingest.runlog import RunLog
from tracelens.signals.deliveries import computing_beside
from tracelens.whatif.loader_inputs import LoaderSettings
from tracelens.whatif.loader_observe import ObservedService, service_with_workers, service_without_workers
from tracelens.whatif.loader_seen import WorkersSeen, always_starved, divided, slow_one
from tracelens.whatif.replay import fit_service
from tracelens.whatif.stats import block_error, over_rounds


def observed_service(case: Case, settings: LoaderSettings) -> ObservedService | None:
    """Service times: the loader log's own, else what ``next`` shows in the trace."""
    log = case.analysis.run_log
    if log is not None and len(log.fetches) >= 3:
        return _logged(case, settings, log)
    asked = _requests(case)
    if asked is None:
        return None
    ends, spans = asked
    if settings.num_workers == 0:
        return service_without_workers(spans, _main_cpu_share(case))
    epoch = _epochs(spans, epoch_batches(case), settings)
    fitted = _from_waits(case, settings, ends, spans, epoch)
    seen = workers_seen(case)
    if seen is None or epoch is not None:
        # workers that are started anew meanwhile compute and read for that too
        return fitted
    return divided(
        fitted if fitted.known == "measured" else None,
        ends,
        spans,
        settings.num_workers,
        batch_ms(case, settings),
        seen,
        starved=_starved(case, settings),
        prefetch_factor=settings.prefetch_factor,
    )


def _logged(case: Case, settings: LoaderSettings, log: RunLog) -> ObservedService:
    """Service times as the loader logged them, without the fetches in which the profiler ran."""
    made = log.fetches
    # the profiler also records the dataset's own operators
    keep = log.unprofiled(made.t0, made.t1)
    if keep.sum() < 3:
        keep[:] = True
    cpu = np.where(np.isfinite(made.cpu_ms), made.cpu_ms, made.wall_ms)[keep]
    waiting, worker = made.waiting_ms[keep], made.worker[keep]
    in_worker = bool((made.worker >= 0).any())
    running = max(1.0, computing_beside(log.deliveries, made, keep) or 1.0) if in_worker else 1.0
    collate, wall = made.collate_ms[keep], made.wall_ms[keep]
    known = np.isfinite(collate) & (wall > 0)
    spent = float((collate * cpu / np.maximum(wall, 1e-9))[known].mean()) if known.any() else None
    slow = slow_one(cpu + waiting, worker)
    if slow is not None:
        usual = worker != slow[0]
        cpu, waiting = cpu[usual], waiting[usual]
    return ObservedService(
        cpu,
        waiting,
        "measured",
        in_worker,
        running,
        slow_worker=slow[1] if slow is not None else 1.0,
        collate_ms=spent,
    )


def _from_waits(
    case: Case, settings: LoaderSettings, ends: np.ndarray, spans: np.ndarray, epoch: np.ndarray | None
) -> ObservedService:
    """What the waits for batches show of the workers, all of it taken for computing."""
    if case.replayed is not None and case.fired_load_rule not in (None, "load.worker_startup"):
        # the loader limits: the replay has followed every worker from batch to batch
        ahead = settings.num_workers * settings.prefetch_factor
        service = fit_service(case.replayed.graph, settings.num_workers, ahead, case.replayed.busy) / 1e6
        service = service[service > 0]
        if service.size >= 3:
            running = float(settings.num_workers)
            return ObservedService(service, np.zeros(service.size), "measured", True, running)
    return service_with_workers(
        ends, spans, settings.num_workers, prefetch_factor=settings.prefetch_factor, epoch=epoch
    )


def workers_seen(case: Case) -> WorkersSeen | None:
    """What the host log shows of the workers while the trace's steps ran; None without one, or where it saw no worker."""
    log, signals = case.analysis.host_log, case.signals
    if log is None or signals.number("machine.worker_cpu") is None:
        return None
    weight = _overlap(case, log.t_ns)
    workers = log.processes.role_is("worker")
    if case.analysis.rank is not None:
        workers = workers.take((workers.rank == case.analysis.rank) | (workers.rank < 0))
    workers = workers.take(np.isfinite(workers.cpu_percent) & (weight[workers.row] > 0))
    if not len(workers):
        return None
    each = np.array([
        np.average(workers.cpu_percent[mine], weights=weight[workers.row[mine]]) / 100
        for mine in (workers.pid == pid for pid in np.unique(workers.pid))
    ])  # fmt: skip
    computing, busiest = float(each.mean()), float(each.max())
    cores, iowait = signals.number("machine.cores"), log.iowait_percent
    known = np.isfinite(iowait) & (weight > 0)
    waiting = float(np.average(iowait[known], weights=weight[known])) / 100 if known.any() and cores else 0.0
    reading = min(waiting * (cores or 0.0) / len(each), max(1.0 - computing, 0.0))
    # storage waits are the machine's: a worker that computes longer for its batches also waits longer
    slower = max(busiest / max(computing, 1e-9), 1.0)
    top = busiest + reading * slower
    count = len(each)
    others = (count * (computing + reading) - top) / (count - 1) if count > 1 else top
    return WorkersSeen(computing, reading, top, max(others, 1e-3))


def _starved(case: Case, settings: LoaderSettings) -> bool:
    """Whether steps use batches as fast as these come; not said of runs that start their workers anew meanwhile."""
    analysis, epoch = case.analysis, epoch_batches(case)
    if not analysis.steps.count or (
        epoch and epoch <= analysis.steps.steady and not settings.persistent_workers
    ):
        return False
    waits, durations = _step_waits(case)
    return always_starved(waits, settings.num_workers, max(0.05 * float(np.mean(durations)), 0.2e6))


def _step_waits(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """How long each steady step waited for data with nothing else to do, and how long it took, in ns."""
    analysis = case.analysis
    edges = analysis.steps.edges
    waits = analysis.phases.parts["load"].measure(edges[:-1], edges[1:])
    return waits.astype(np.float64), analysis.steps.durations.astype(np.float64)


def _overlap(case: Case, taken_ns: np.ndarray) -> np.ndarray:
    """How much of the trace's steps each sample of a log speaks for: it covers the time since the one before it.

    All alike where the samples cover less than half of the steps.
    """
    low, high = (case.analysis.tables.base_ns + edge for edge in case.analysis.window)
    apart = np.diff(taken_ns)
    since = taken_ns - (float(np.median(apart)) if apart.size else 0.0)
    covered = np.clip(np.minimum(taken_ns, high) - np.maximum(since, low), 0.0, None)
    return covered if covered.sum() >= 0.5 * (high - low) else np.ones(taken_ns.size)


def batch_ms(case: Case, settings: LoaderSettings) -> float:
    """Measured time from one batch to the next; in a trace over whole rounds of workers, which deliver in bursts."""
    batches, durations = batches_per_step(case), case.analysis.steps.durations / 1e6
    if case.analysis.has_step_log:
        # of the whole run: a few steps before a window may hold a burst, or none
        return float(np.mean(case.analysis.plain_ms)) / batches
    if batches > 1 or not durations.size:
        return case.step_ms / batches
    return over_rounds(durations, settings.num_workers)


def loading_noise(case: Case) -> float:
    """Relative standard error of the step without its waiting for data: what could look like a gain of loading.

    The waits themselves are seen one by one: a step that waited would have ended earlier by its wait.
    """
    analysis = case.analysis
    if analysis.has_step_log and np.isfinite(analysis.plain_wait_ms).all():
        rest = analysis.plain_ms - analysis.plain_wait_ms
        return min(float(block_error(rest) / max(float(np.mean(analysis.plain_ms)), 1e-9)), case.noise)
    if analysis.has_step_log or analysis.steps.steady < 3:
        return case.noise
    waits, durations = _step_waits(case)
    return float(block_error(durations - waits) / max(float(np.mean(durations)), 1e-9))


def _requests(case: Case) -> tuple[np.ndarray, np.ndarray] | None:
    """When each batch of the steady steps was handed over, and how long ``next`` took, in ms; None without loader events."""
    activity, steps = case.analysis.activity, case.analysis.steps
    rows = np.flatnonzero(activity.next_events & (activity.host.thread == activity.main_thread))
    low = int(steps.begin[steps.first]) if steps.count else case.analysis.window[0]
    start = activity.host.start[rows]
    rows = rows[(start >= low) & (start < case.analysis.window[1])]
    if not rows.size:
        return None
    return (activity.host.end[rows] - low) / 1e6, (activity.host.end - activity.host.start)[rows] / 1e6


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


def epoch_batches(case: Case) -> int | None:
    """Batches of an epoch; None where that is unknown, and where a whole recording saw no second epoch begin: nothing
    then says that there will be one."""
    log = case.analysis.run_log
    if log is not None and len(log.steps) and np.unique(log.steps.epoch[log.steps.epoch >= 0]).size < 2:
        return None
    length, batch = case.analysis.settings.get("dataset_len"), case.analysis.batch_size
    return -(-length // batch) if isinstance(length, int) and length > 0 and batch else None


def batches_per_step(case: Case) -> int:
    """Batches that a step consumes: more than one where gradients are accumulated, or a step is a whole inference call."""
    log = case.analysis.run_log
    if log is not None and len(log.steps) and log.queue_depth.size:
        return max(round(log.queue_depth.size / len(log.steps)), 1)
    activity, (low, high) = case.analysis.activity, case.analysis.window
    mine = activity.next_events & (activity.host.thread == activity.main_thread)
    inside = mine & (activity.host.start >= low) & (activity.host.start < high)
    return max(round(int(inside.sum()) / case.analysis.step_count), 1)
