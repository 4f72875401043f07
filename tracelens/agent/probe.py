"""Measures a loader alone at a few worker counts, in a forked child, before the job asks for its first batch.

The child is a copy: the job's random state, sampler and data set objects stay as they are. Samples are made
with one thread, as torch's workers do.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import sys
import time
import warnings
from typing import Any, Dict, List, Optional, Tuple

from .batch import describe
from .runtime import Agent

FILE = "loader-points.json"
SCHEMA = "tracelens.loader-points/1"
MOST_BATCHES = 400  # a point
_ENOUGH = (100, 5.0)  # batches and seconds, of which a point needs no more
_GRACE = 10.0  # seconds beyond the budget before the child is killed
_MOST_WORKERS = 16
_SHM_SHARE = 0.5


def worker_counts(cores: int) -> List[int]:
    """About three counts that show the cost of a batch, of handing it over, and of contention."""
    most = max(1, min(cores, _MOST_WORKERS))
    return sorted({0, max(1, most // 4), most})


def probe(agent: Agent, loader: Any, index: int, seconds: float) -> None:
    """Measure ``loader`` for at most ``seconds`` and leave ``loader-points.json`` in the rank's folder."""
    if agent.folder is None or not hasattr(os, "fork"):
        agent.warn("probe", "the loader cannot be measured here: there is no fork", loud=True)
        return
    path = os.path.join(agent.folder, FILE)
    agent.flush()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)  # one group with its workers, to be ended as one
            agent.on = False
            _measure_all(agent, loader, index, seconds, path)
            code = 0
        except BaseException as error:  # whatever the data set raises ends here, in the copy
            sys.stderr.write(
                "tracelens: measuring the loader failed: {}: {}\n".format(type(error).__name__, error)
            )
        finally:
            sys.stderr.flush()
            os._exit(code)
    _wait(agent, pid, seconds + _GRACE)


def _wait(agent: Agent, pid: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    done = False
    try:
        while time.monotonic() < deadline:
            try:
                done = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:  # somebody else in the job collected it
                done = True
            if done:
                return
            time.sleep(0.02)
        agent.warn("probe", "measuring the loader took too long and was ended", loud=True)
    finally:
        for group in (True, False):
            try:
                (os.killpg if group else os.kill)(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
            break
        if not done:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _measure_all(agent: Agent, loader: Any, index: int, seconds: float, path: str) -> None:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    begin = time.monotonic()
    agent.torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    wanted = worker_counts(cores)
    found: Dict[str, Any] = {
        "schema": SCHEMA, "ts": time.time_ns(), "loader": index, "dataset": type(getattr(loader, "dataset", None)).__name__,
        "num_workers": getattr(loader, "num_workers", None), "cores": cores, "points": [], "skipped": [],
    }  # fmt: skip
    size: Optional[float] = None
    for position, workers in enumerate(wanted):
        left = seconds - (time.monotonic() - begin)
        if left <= 0:
            found["skipped"].append({"num_workers": workers, "reason": "no time left"})
            continue
        reason = _obstacle(loader, workers, size)
        if reason is not None:
            found["skipped"].append({"num_workers": workers, "reason": reason})
            continue
        point = _measure(agent, loader, workers, left / (len(wanted) - position))
        if point is None:
            found["skipped"].append({"num_workers": workers, "reason": "the loader gave too few batches"})
        else:
            found["points"].append(point)
            size = point["bytes_per_batch"]
        found["seconds"] = round(time.monotonic() - begin, 3)
        _write(path, found)
    _write(path, found)


def _write(path: str, found: Dict[str, Any]) -> None:
    part = "{}.{}".format(path, os.getpid())
    with open(part, "w") as file:
        json.dump(found, file)
    os.replace(part, path)


def _obstacle(loader: Any, workers: int, size: Optional[float]) -> Optional[str]:
    """Why so many workers must not be tried."""
    if not workers or not size:
        return None
    try:
        shared = os.statvfs("/dev/shm")
    except OSError:
        return None
    if workers * 3 * size > _SHM_SHARE * shared.f_bavail * shared.f_frsize:
        return "the batches of {} workers would not fit into /dev/shm".format(workers)
    return None


def _clone(loader: Any, workers: int) -> Any:
    """The same loader with another worker count, without pinning (no device in a forked process)."""
    clone = copy.copy(loader)
    values = clone.__dict__
    values.update(num_workers=workers, persistent_workers=False, pin_memory=False, _iterator=None)
    if workers == 0:
        values.update(timeout=0, prefetch_factor=None)
    elif values.get("prefetch_factor") is None:
        values["prefetch_factor"] = 2
    return clone


def _measure(agent: Agent, loader: Any, workers: int, seconds: float) -> Optional[Dict[str, Any]]:
    """Milliseconds a batch when nobody does anything with it."""
    begin = time.monotonic()
    deadline = begin + seconds
    epochs: List[Tuple[float, List[float]]] = []
    samples: List[int] = []
    size = 0.0
    count = 0
    first: Optional[float] = None

    def done() -> bool:
        now = time.monotonic()
        enough = count >= _ENOUGH[0] and now - begin >= _ENOUGH[1]
        return enough or count >= MOST_BATCHES or now >= deadline

    while not epochs or not done():
        start = time.monotonic()
        arrivals: List[float] = []
        iterator = _clone(loader, workers)._get_iterator()
        for batch in iterator:
            arrivals.append(time.monotonic())
            number, held, _ = describe(batch)
            if number:
                samples.append(number)
            size = max(size, float(held))
            count += 1
            if done():
                break
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        if not arrivals:
            break
        first = arrivals[0] - start if first is None else first
        epochs.append((start, arrivals))
    spans = [_steady(start, arrivals, workers) for start, arrivals in epochs]
    batches = sum(number for number, _ in spans)
    if not batches:
        return None
    spent = sum(seconds for _, seconds in spans)
    return {
        "num_workers": workers, "ms_per_batch": round(1000 * spent / batches, 4), "batches": batches,
        "samples_per_batch": round(sum(samples) / len(samples), 3) if samples else None, "bytes_per_batch": size or None,
        "first_batch_ms": None if first is None else round(1000 * first, 3), "epochs": len(epochs), "seconds": round(spent, 3),
    }  # fmt: skip


def _steady(start: float, arrivals: List[float], workers: int) -> Tuple[int, float]:
    """(batches, seconds) from the end of the first round of the workers on, in whole rounds."""
    if workers == 0:
        return len(arrivals), arrivals[-1] - start
    base = workers - 1
    rounds = (len(arrivals) - 1 - base) // workers
    if rounds < 1:
        return 0, 0.0
    return rounds * workers, arrivals[base + rounds * workers] - arrivals[base]
