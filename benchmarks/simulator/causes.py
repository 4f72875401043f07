"""Which cause inside the class: narrower what-ifs decide, in an order that prefers the more specific answer.

Every function returns the cause and the answers that are as good. ``ask(name, free, **changes)`` re-simulates
with resources free or parameters changed and returns the share of the step that saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.simulator import models
from benchmarks.simulator.hardware import DEVICES
from benchmarks.simulator.params import Params

if TYPE_CHECKING:
    from benchmarks.simulator.truth import Truth

THRESHOLD = 0.08
SECTIONS = ("loader", "launch", "python", "optimizer", "sync", "alloc", "stall", "cast", "startup")
# what a bare trace with host and GPU logs cannot tell from the cause: only a bundle has quotas and worker logs
WITHOUT_BUNDLE = {
    "load.quota": ("load.cores_exhausted",),
    "load.slow_samples": ("load.shallow_prefetch",),
    "load.shallow_prefetch": ("load.slow_samples",),
    "balanced": ("healthy", "memory.bandwidth", "compute.arithmetic"),
}
WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


def share(ask: Any, name: str, free: frozenset[str], whole: float, **changes: Any) -> float:
    """How much of ``whole`` (a saving) the narrower what-if recovers."""
    return ask(name, free, **changes) / whole if whole > 0.005 else 0.0


def cause_of(t: Truth, ask: Any) -> tuple[str, tuple[str, ...]]:
    p = t.p
    if t.bottleneck == "none":
        return "balanced", ("balanced",)
    if t.bottleneck == "communication":
        whole = t.saving("communication")
        if p.straggler and t.saving("straggler") >= 0.5 * whole:
            own = {"loader": "load.too_few_workers", "throttle": "compute.throttled", "host": "host.python"}[
                p.straggler
            ]
            return "communication.straggler", ("communication.straggler", own)
        return "communication.bandwidth", ("communication.bandwidth",)
    if t.bottleneck == "h2d_copy":
        return _transfer_cause(t, ask)
    if t.bottleneck == "gpu":
        return _gpu_cause(t, ask)
    if t.bottleneck == "memory_bandwidth":
        if "host_memory" in t.step_us and t.saving("host_memory") >= THRESHOLD:
            return "load.host_memory_bandwidth", ("load.host_memory_bandwidth",)
        return "memory.bandwidth", ("memory.bandwidth",)
    return _cpu_cause(t, ask)


def _cpu_cause(t: Truth, ask: Any) -> tuple[str, tuple[str, ...]]:
    p = t.p
    if p.device is None and t.saving("cpu") < THRESHOLD:
        return "host.cpu_compute", ("host.cpu_compute",)
    savings = {s: t.saving(s) for s in SECTIONS}
    top = max(savings, key=lambda s: savings[s])
    best = savings[top]
    named = {
        "launch": "host.launch_bound",
        "python": "host.python",
        "optimizer": "host.optimizer",
        "sync": "host.sync",
        "alloc": "host.allocator",
        "stall": "host.periodic_stall",
        "cast": "host.cast",
        "startup": "host.startup",
    }
    also = [named[s] for s in named if savings[s] >= 0.75 * best and savings[s] > 0.0]
    if top == "sync" and p.mallocs and savings["alloc"] >= 0.75 * best:
        top = "alloc"
    if top != "loader":
        cause = named[top]
        if savings["loader"] >= 0.9 * best:
            also.append(_loader_cause(t, ask)[0])
        return cause, tuple(dict.fromkeys((cause, *also)))
    cause, other = _loader_cause(t, ask)
    return cause, tuple(dict.fromkeys((cause, *other, *also)))


def _loader_cause(t: Truth, ask: Any) -> tuple[str, tuple[str, ...]]:
    p = t.p
    whole = max(t.saving("loader"), 1e-6)
    if p.custom_loader:
        return "load.custom", ("load.custom", "host.python")
    threads = max(p.worker_threads if p.workers else p.main_threads, 1)
    if threads > 1 and share(ask, "threads", frozenset({"threads"}), whole) >= 0.5:
        return "load.oversubscribed_threads", ("load.oversubscribed_threads",)
    io = share(ask, "loader_io", frozenset({"loader_io"}), whole)
    if p.workers == 0:
        return "load.main_process", ("load.main_process", "load.storage") if io >= 0.7 else (
            "load.main_process",
        )
    fewer = [w for w in WORKERS if 0 < w < p.workers and w >= p.workers // 4]
    gain = {w: ask(f"num_workers={w}", workers=w) for w in fewer}
    more = {w: ask(f"num_workers={w}", workers=w) for w in WORKERS if p.workers < w <= max(4 * p.workers, 4)}
    found: list[str] = []
    if gain and max(gain.values()) >= 0.05 and max(gain.values()) >= max(more.values(), default=0.0):
        found.append("load.too_many_workers")
    checks = (
        ("load.worker_startup", "worker_start", frozenset({"worker_start"}), not p.persistent),
        (
            "load.slow_samples",
            "outliers",
            frozenset({"outliers"}),
            bool(p.outlier_p or p.slow_worker > 1 or p.burst_every),
        ),
        ("load.collate_ipc", "handoff", frozenset({"handoff"}), True),
    )
    for cause, name, free, possible in checks:
        if possible and share(ask, name, free, whole) >= 0.5:
            found.append(cause)
    deep = ask("prefetch=16", prefetch=max(16, 4 * p.prefetch)) / whole
    if deep >= 0.5:
        found.insert(1 if found and found[0] == "load.too_many_workers" else 0, "load.shallow_prefetch")
    more_gain = max(more.values(), default=0.0) / whole
    unlimited = share(ask, "cores", frozenset({"cores"}), whole)
    capped_io = share(ask, "storage_mbs", frozenset(), whole, storage_mbs=1e9) >= 0.5
    if io >= 0.5 and (capped_io or more_gain < 0.3) and not found:
        found.append("load.storage")
    if more_gain < 0.35 and unlimited >= 0.5:
        found.append(_limit(p, ask, whole))
    if not found:
        found = (
            ["load.too_few_workers"]
            if more_gain >= 0.35
            else ["load.storage" if io >= 0.5 else "load.cores_exhausted"]
        )
    if io >= 0.5 and "load.storage" not in found:
        found.append("load.storage")
    if more_gain >= 0.6 and found[0] not in ("load.too_few_workers", "load.too_many_workers"):
        found.append("load.too_few_workers")
    return found[0], tuple(found)


def _limit(p: Params, ask: Any, whole: float) -> str:
    """Which limit of the cores binds: the quota, the affinity mask, or the machine itself."""
    quota = p.quota and p.quota < (p.affinity or p.machine_cores)
    if quota and share(ask, "quota", frozenset(), whole, quota=None) >= 0.4:
        return "load.quota"
    affinity = p.affinity and p.affinity < p.machine_cores
    if affinity and share(ask, "affinity", frozenset(), whole, affinity=None) >= 0.4:
        return "load.affinity"
    return "load.cores_exhausted"


def _transfer_cause(t: Truth, ask: Any) -> tuple[str, tuple[str, ...]]:
    p = t.p
    whole = t.saving("h2d_copy")
    found: list[str] = []
    pieces = len(models.build(p.template, p.batch, p.dtype, p.device or "V100", dict(p.sizes)).inputs)
    if p.pieces > pieces and share(ask, "one_copy", frozenset(), whole, pieces=1) >= 0.5:
        found.append("transfer.many_small")
    if not p.pin and share(ask, "pinned_copies", frozenset(), whole, pin=True, non_blocking=True) >= 0.4:
        found.append("transfer.pageable")
    if (
        p.pin
        and not p.non_blocking
        and share(ask, "non_blocking", frozenset(), whole, non_blocking=True) >= 0.5
    ):
        found.append("transfer.blocking")
    full = 16 if p.pcie_width < 16 or p.pcie_gen else 0
    wider = (
        share(ask, "full_link", frozenset(), whole, pcie_gen=None, pcie_width=16, link_share=1)
        if full
        else 0.0
    )
    narrow = share(ask, "narrow_dtype", frozenset(), whole, wide=0.25 if p.wide <= 1.0 else 0.5 * p.wide)
    overlap = 0.0
    if p.pin and p.non_blocking and not p.copy_stream:
        overlap = share(ask, "copy_stream", frozenset(), whole, copy_stream=True)
    if overlap >= 0.6 and not wider >= 0.5:
        found.append("transfer.serialised")
    if wider >= 0.4 or narrow >= 0.4 or not found:
        found.append("transfer.link")
    return found[0], tuple(dict.fromkeys(found))


def _gpu_cause(t: Truth, ask: Any) -> tuple[str, tuple[str, ...]]:
    p = t.p
    found: list[str] = []
    if (p.clock < 1.0 or p.straggler == "throttle") and ask("throttle", frozenset({"throttle"})) >= THRESHOLD:
        found.append("compute.throttled")
    if p.shared_gpu and ask("shared_gpu", frozenset({"shared_gpu"})) >= THRESHOLD:
        found.append("compute.shared_gpu")
    if not found and t.saving("gpu_small") >= 0.5 * t.saving("gpu"):
        found.append("compute.underfilled")
    if not found and p.dtype == "fp32":
        better = next((d for d in ("tf32", "bf16", "fp16") if _supported(p, d)), None)
        if better and ask(f"dtype={better}", dtype=better) >= 0.2:
            found.append("compute.precision")
    if not found or (t.busy >= 0.9 and not found):
        found.append("healthy" if t.busy >= 0.9 else "compute.arithmetic")
        found.append("compute.arithmetic" if t.busy >= 0.9 else "healthy")
    return found[0], tuple(dict.fromkeys(found))


def _supported(p: Params, dtype: str) -> bool:
    return DEVICES[p.device or "V100"].supports(dtype)
