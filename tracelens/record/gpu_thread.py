"""GPU sampling in a thread of its own: a GPU in trouble makes NVML hang, and the host samples must go on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracelens.record.lines import LineFile
from tracelens.record.pace import Pace
from tracelens.record.tree import RankProcess

# NVML refreshes its utilisation every 1/6 to 1 s: oftener shows nothing new and holds the driver's lock
_SHORTEST_S = 0.2


class GpuThread(threading.Thread):
    """Samples the job's GPUs until ``stop`` is set. ``ranks`` and ``pids`` tell what is known of the job."""

    def __init__(
        self,
        output: Path,
        pace: Pace,
        note: Callable[..., None],
        ranks: Callable[[], Mapping[int, RankProcess]],
        pids: Callable[[], frozenset[int]],
    ) -> None:
        super().__init__(name="gpu", daemon=True)
        self._path, self._pace, self._note = output, pace, note
        self._ranks, self._pids = ranks, pids
        self._selected: dict[str, int | None] | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        """Open NVML and sample; every way to fail ends in one line of sampler.jsonl."""
        try:
            from tracelens.record.nvml import Nvml, NvmlUnavailable
        except ImportError as error:
            self._note("nvml", available=False, reason=f"nvidia-ml-py is not installed here ({error.name})")
            return
        try:
            nvml = Nvml()
        except NvmlUnavailable as error:
            self._note("nvml", available=False, reason=str(error))
            return
        self._note("nvml", available=True, **nvml.versions(), gpus=[gpu.uuid for gpu in nvml.gpus])
        for name, reason in nvml.lost.items():
            self._note("gpu_lost", uuid=name, reason=reason)
        try:
            self._loop(nvml, LineFile(self._path))  # a run without GPUs has no gpu.jsonl
        except Exception as error:
            # a thread that ends silently would look like a GPU without samples
            self._note("error", where="gpu", message=f"{type(error).__name__}: {error}")
        finally:
            nvml.close()

    def _loop(self, nvml: Any, output: LineFile) -> None:
        from tracelens.record.nvml import GpuLost, capabilities

        told: dict[str, dict[str, str]] = {}
        while not self.stop.is_set():
            for uuid, rank in self._select(nvml).items():
                if uuid not in nvml.devices:
                    continue
                try:
                    line = nvml.sample(uuid, time.time_ns(), time.monotonic_ns(), self._pids())
                except GpuLost as error:
                    self._note("gpu_lost", uuid=uuid, reason=str(error))
                    continue
                self._pace.wrote(output.write({**line, "rank": rank}))
            refused = {uuid: names for uuid, names in capabilities(nvml.devices.values()).items() if names}
            if refused != told:
                told = refused
                self._note("gpu_unsupported", fields=refused)
            if not nvml.devices:
                self._note("nvml", available=False, reason="no GPU is left")
                return
            pause = self._pace.interval(time.monotonic(), time.process_time())
            self.stop.wait(max(_SHORTEST_S, pause))

    def _select(self, nvml: Any) -> dict[str, int | None]:
        """uuid -> rank of the GPUs to sample: those the ranks named, else those the environment shows."""
        selected = select(self._ranks(), nvml.gpus, os.environ)
        if selected != self._selected:
            self._selected = selected
            self._note("gpus", uuids=list(selected), ranks=list(selected.values()))
        return selected


def select(ranks: Mapping[int, RankProcess], gpus: Any, environ: Mapping[str, str]) -> dict[str, int | None]:
    """uuid -> rank. A rank's own device counts, else its CUDA_VISIBLE_DEVICES; without ranks, ours."""
    from tracelens.record.nvml_visibility import find, visible

    selected: dict[str, int | None] = {}
    for process in ranks.values():
        own = find(process.gpu_uuid, gpus) if process.gpu_uuid else None
        if own is not None:
            if selected.get(own) is None:
                selected[own] = process.rank
            continue
        # the agent hands over an allow list of variables, so that a missing one means unset
        shown = visible(process.env if process.env else environ, gpus)
        for uuid in shown.uuids:
            selected.setdefault(uuid, process.rank if shown.certain and len(shown.uuids) == 1 else None)
    if not ranks:
        selected = dict.fromkeys(visible(environ, gpus).uuids)
    return selected
