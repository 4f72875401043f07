"""Everything that defines one simulated run: times in ms unless the name says us, sizes in bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Params:
    """One training job. Every field has the value of a healthy job unless a family changes it."""

    family: str = "adhoc"
    split: str = "train"
    seed: int = 0

    # the model; device None trains on the CPU
    template: str = "resnet"
    sizes: tuple[tuple[str, Any], ...] = ()
    device: str | None = "A100-40"
    dtype: str = "bf16"
    batch: int = 32

    # what is simulated and what is traced: ``warm`` steps before the horizon, the window inside it
    warm: int = 16
    horizon: int = 112
    traced: int = 10
    window_at: int = 6

    # loader
    workers: int = 8
    prefetch: int = 2
    pin: bool = True
    non_blocking: bool = True
    persistent: bool = True
    epoch_batches: int = 100000
    sample_cpu_ms: float = 1.0
    sample_wait_ms: float = 0.1
    sample_kb: float = 110.0
    storage_mbs: float = 4000.0
    stream_mbs: float = 800.0
    collate_ms: float = 1.0
    ipc_us_mb: float = 60.0
    host_gbs: float = 60.0
    touch: float = 2.0
    handoff_ms: float = 0.1
    pin_gbs: float = 6.0
    fork_ms: float = 15.0
    init_ms: float = 120.0
    outlier_p: float = 0.0
    outlier_x: float = 1.0
    slow_worker: float = 1.0
    burst_every: int = 0
    burst_ms: float = 0.0
    custom_loader: bool = False
    loader_sigma: float = 0.08

    # the host's processors
    machine_cores: int = 32
    affinity: int | None = None
    quota: float | None = None
    worker_threads: int = 1
    main_threads: int = 1
    thread_penalty: float = 0.35
    switch_penalty: float = 0.03

    # copies
    pageable_gbs: float = 5.0
    pcie_gen: int | None = None
    pcie_width: int = 16
    link_share: int = 1
    wide: float = 1.0
    pieces: int = 1
    copy_stream: bool = False
    cast_gbs: float = 0.0
    input_dtype: str = "float"

    # host side of the step
    dispatch: float = 1.0
    python_us: float = 6.0
    step_python_ms: float = 0.3
    optimizer: str = "AdamW"
    optimizer_impl: str = "foreach"
    item: bool = False
    mid_syncs: int = 0
    device_sync: bool = False
    mallocs: int = 0
    malloc_us: float = 250.0
    stall_every: int = 0
    stall_ms: float = 0.0
    stall_kind: str = "checkpoint"
    startup_steps: int = 0
    startup_ms: float = 0.0
    queue: int = 1024
    profiler_us: float = 0.5
    host_sigma: float = 0.15

    # GPU
    clock: float = 1.0
    throttle_from: int = 0
    shared_gpu: float = 0.0
    graph: bool = False
    extra_bytes: int = 0
    gpu_sigma: float = 0.02

    # ranks
    ranks: int = 1
    busbw_gbs: float = 120.0
    bucket_mb: float = 25.0
    straggler: str | None = None
    straggle_x: float = 1.0

    # what the recording leaves out: kernels, host, steps
    hide: str | None = None

    @property
    def cores(self) -> float:
        """Cores one rank may use: affinity and quota of the machine, shared by the ranks."""
        limit = float(min(self.machine_cores, self.affinity or self.machine_cores))
        return max(1.0, min(limit, self.quota or limit) / self.ranks)

    def but(self, **changes: Any) -> Params:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {k: (dict(v) if k == "sizes" else v) for k, v in asdict(self).items()}
