"""How long a batch takes to make, from whatever was recorded of it."""

from __future__ import annotations

import numpy as np

from tracelens.diagnose.advice.case import Case
from tracelens.signals.deliveries import computing_beside
from tracelens.whatif.loader_inputs import LoaderSettings
from tracelens.whatif.loader_observe import ObservedService, service_with_workers, service_without_workers
from tracelens.whatif.replay import fit_service


def observed_service(case: Case, settings: LoaderSettings) -> ObservedService | None:
    """Service times: the loader log's own, else what ``next`` shows in the trace."""
    log = case.analysis.run_log
    if log is not None and len(log.fetches) >= 3:
        made = log.fetches
        keep = np.ones(len(made), dtype=bool)
        for window in log.windows:
            if isinstance(window.get("t0"), int) and isinstance(window.get("t1"), int):
                # the profiler also records the dataset's own operators
                keep &= (made.t1 < window["t0"]) | (made.t0 > window["t1"])
        rows = keep if keep.sum() >= 3 else np.ones(len(made), dtype=bool)
        made_cpu = np.where(np.isfinite(made.cpu_ms), made.cpu_ms, made.wall_ms)[rows]
        in_worker = bool((made.worker >= 0).any())
        running = max(1.0, computing_beside(log.deliveries, made, rows) or 1.0) if in_worker else 1.0
        collate, wall = made.collate_ms[rows], made.wall_ms[rows]
        known = np.isfinite(collate) & (wall > 0)
        spent = float((collate * made_cpu / np.maximum(wall, 1e-9))[known].mean()) if known.any() else None
        return ObservedService(made_cpu, made.waiting_ms[rows], "measured", in_worker, running, spent)
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
        epoch=_epochs(spans, epoch_batches(case), settings),
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


def epoch_batches(case: Case) -> int | None:
    length, batch = case.analysis.settings.get("dataset_len"), case.analysis.batch_size
    return -(-length // batch) if isinstance(length, int) and length > 0 and batch else None
