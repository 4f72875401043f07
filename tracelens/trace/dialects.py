"""The vocabularies of Kineto files, old and new, CUDA and ROCm, mapped to our kinds.

Categories: ``Operator/Runtime/Kernel/Memcpy/Memset`` until torch 1.11, ``cpu_op/cuda_runtime/kernel/gpu_memcpy`` since.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tracelens.trace.tables import Device, Host, Pin

HOST_CATEGORIES = {
    "cpu_op": Host.OPERATOR,
    "Operator": Host.OPERATOR,
    "user_annotation": Host.ANNOTATION,
    "cuda_runtime": Host.RUNTIME,
    "cuda_driver": Host.RUNTIME,
    "hip_runtime": Host.RUNTIME,
    "hip_driver": Host.RUNTIME,
    "xpu_runtime": Host.RUNTIME,
    "privateuse1_runtime": Host.RUNTIME,
    "privateuse1_driver": Host.RUNTIME,
    "Runtime": Host.RUNTIME,
    "python_function": Host.PYTHON,
    "python function": Host.PYTHON,
    "overhead": Host.OVERHEAD,
}
DEVICE_CATEGORIES = {"kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}
OLD_DEVICE_CATEGORIES = {"Kernel": 0, "Memcpy": 1, "Memset": 2}
OLD_CATEGORIES = frozenset({"Operator", "Runtime", *OLD_DEVICE_CATEGORIES})

# old files list ranges of the profiler, frameworks and users as operators too; only names tell them apart
_OPERATOR = re.compile(
    r"^\w+(::\w+)+|Backward\d*$|^record_param_comms$|^Torch-Compiled Region|^CompiledFunction"
)
_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d+)")

# collective kernels: the libraries, then hand-written all-reduces of inference engines and of torch's symmetric memory
_COMMUNICATION = re.compile(
    r"^(void )?((\w+::)*)?(nccl|rccl|oneccl|mscclpp|msccl|nvshmem)|ncclDevKernel|ncclKernel|ncclx|cross_device_reduce"
    r"|(multimem|one_shot|two_shot|flashinfer|trtllm)\w*(all_?reduce|all_?gather|reduce_?scatter)|allreduce_fusion|deep_ep::",
    re.IGNORECASE,
)
_COPY = re.compile(
    r"(HtoD|HostToDevice|DtoH|DeviceToHost|DtoD|DeviceToDevice|PtoP|PeerToPeer|HtoH|HostToHost)",
    re.IGNORECASE,
)
_COPY_KINDS = {
    "htod": Device.H2D, "hosttodevice": Device.H2D, "dtoh": Device.D2H, "devicetohost": Device.D2H,
    "dtod": Device.D2D, "devicetodevice": Device.D2D, "ptop": Device.P2P, "peertopeer": Device.P2P,
    "htoh": Device.H2D, "hosttohost": Device.H2D,
}  # fmt: skip

LAUNCH_CALLS = re.compile(
    r"^(cuda|cu|hip|hipExt|hipModule|hipExtModule)?(Launch|GraphLaunch|LaunchKernel|LaunchCooperative|ModuleLaunch)",
    re.IGNORECASE,
)
COPY_CALLS = re.compile(r"^(cuda|cu|hip)Memcpy", re.IGNORECASE)
MEMSET_CALLS = re.compile(r"^(cuda|cu|hip)Memset", re.IGNORECASE)
SYNC_CALLS = re.compile(r"^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize", re.IGNORECASE)
ALLOC_CALLS = re.compile(
    r"^(cuda|cu|hip)(Malloc(?!Host)|Free(?!Host)|Mem(Alloc|Free|Create|Map|Unmap|Release|AddressReserve|SetAccess))",
    re.IGNORECASE,
)
HOST_ALLOC_CALLS = re.compile(
    r"^(cuda|cu|hip)(HostAlloc|HostMalloc|MallocHost|FreeHost|HostFree|HostRegister|MemHostAlloc|MemFreeHost)",
    re.IGNORECASE,
)
WAIT_CALLS = re.compile(r"^(cuda|cu|hip)StreamWaitEvent", re.IGNORECASE)
GRAPH_CALLS = re.compile(r"^(cuda|cu|hip)GraphLaunch", re.IGNORECASE)
MODULE_CALLS = re.compile(r"^(cuda|cu|hip)(Module|Library)(Load|Get)", re.IGNORECASE)


def host_kind(category: str, name: str) -> int:
    """The ``Host`` kind of a host event, -1 for one that is not ours."""
    kind = HOST_CATEGORIES.get(category, -1)
    if kind in (Host.OPERATOR, Host.ANNOTATION):
        return Host.OPERATOR if _OPERATOR.search(name) else Host.ANNOTATION
    return kind


def step_number(name: str) -> int | None:
    """N of ``ProfilerStep#N``, None for any other name."""
    match = _STEP.match(name)
    # more digits than a 64-bit count has are damage, not a step
    return int(match.group(1)) if match and len(match.group(1)) <= 18 else None


@lru_cache(maxsize=65536)
def is_communication(kernel: str) -> bool:
    """Whether a kernel's name is that of a collective or peer-to-peer exchange."""
    return _COMMUNICATION.search(kernel) is not None


# c10's names of element types, as collectives write them
_WIDTHS = {
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Half": 2, "BFloat16": 2, "Short": 2, "Int": 4,
    "Float": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip


def element_width(dtype: str) -> int:
    """Bytes of an element by c10's name of its type, 0 where it is not known."""
    return _WIDTHS.get(dtype, 0)


def collective_kind(name: str) -> str:
    """A collective's name without what its variants add: "allreduce", "allgather", "reducescatter", "broadcast" ..."""
    lowered = name.lower().strip("_").replace("_", "")
    for kind in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast"):
        if lowered.startswith(kind):
            return kind
    return lowered


@lru_cache(maxsize=4096)
def copy_kind(name: str, wording: str = "") -> tuple[int, int]:
    """``(Device kind, Pin kind)`` of a copy from its name and, on ROCm, its ``kind`` argument."""
    match = _COPY.search(wording) or _COPY.search(name)
    kind = _COPY_KINDS[match.group(1).lower()] if match else Device.D2D
    lowered = name.lower()
    pin = Pin.PAGEABLE if "pageable" in lowered else Pin.PINNED if "pinned" in lowered else Pin.UNKNOWN
    if kind in (Device.D2D, Device.P2P):
        pin = Pin.UNKNOWN
    return int(kind), int(pin)
