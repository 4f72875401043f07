"""Which GPUs CUDA_VISIBLE_DEVICES leaves to a process, by UUID: NVML's index and CUDA's are not the same.

Rules: CUDA C Programming Guide, environment variables; CUDA stops at the first entry that it cannot resolve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU, or a MIG instance with its ``parent``'s uuid. ``index``: NVML's, of the whole GPU."""

    index: int
    uuid: str
    name: str
    bus_id: str = ""
    mig_enabled: bool = False
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Visible:
    """The uuids in CUDA's order; ``certain`` False where the order of unlike GPUs is CUDA's own affair."""

    uuids: tuple[str, ...]
    certain: bool = True


def visible(env: Mapping[str, str], gpus: Sequence[Gpu]) -> Visible:
    """The GPUs that a process with this environment can use, out of all physical and MIG devices."""
    physical = sorted((gpu for gpu in gpus if gpu.parent is None), key=lambda gpu: (gpu.bus_id, gpu.index))
    alike = len({gpu.name for gpu in physical}) <= 1
    by_bus = env.get("CUDA_DEVICE_ORDER", "").upper() == "PCI_BUS_ID"
    value = env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return Visible(tuple(_usable(gpu, gpus) for gpu in physical))
    chosen: list[str] = []
    certain = True
    for entry in value.split(","):
        entry = entry.strip()
        if entry.isdigit():
            # FASTEST_FIRST, the default, leaves the order of unlike GPUs open
            certain = certain and (by_bus or alike)
            number = int(entry)
            uuid = _usable(physical[number], gpus) if number < len(physical) else None
        else:
            uuid = find(entry, gpus)
        if uuid is None:
            break
        if uuid in chosen:
            return Visible(())  # a device named twice leaves none
        chosen.append(uuid)
    if not certain and chosen:
        return Visible(tuple(_usable(gpu, gpus) for gpu in physical), certain=False)
    return Visible(tuple(chosen))


def find(name: str, gpus: Sequence[Gpu]) -> str | None:
    """The one device whose uuid starts with ``name``; None where there is none, or several.

    Names come as GPU-<uuid>, MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci> (old drivers), and bare (torch).
    """
    wanted = name.strip().lower()
    if not wanted.startswith(("gpu-", "mig-")) and len(wanted.replace("-", "")) != 32:
        return None
    if wanted in ("gpu-", "mig-"):
        return None
    matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(wanted)]
    bare = wanted.removeprefix("gpu-")
    if not matches and len(bare.replace("-", "")) == 32:
        # torch prints no prefix; who adds one cannot know that the device is a MIG instance
        matches = [gpu for gpu in gpus if gpu.uuid.lower().removeprefix("gpu-").removeprefix("mig-") == bare]
    exact = [gpu for gpu in matches if gpu.uuid.lower() == wanted]
    matches = exact or matches
    if len(matches) != 1:
        return None
    return _usable(matches[0], gpus)


def _usable(gpu: Gpu, gpus: Sequence[Gpu]) -> str:
    """Of a GPU in MIG mode CUDA enumerates the first instance only."""
    if gpu.parent is None and gpu.mig_enabled:
        return next((mig.uuid for mig in gpus if mig.parent == gpu.uuid), gpu.uuid)
    return gpu.uuid
