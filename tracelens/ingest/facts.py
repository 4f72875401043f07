"""What a bundle says about where and with what it was recorded: machine, versions, code, options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.bundle import Bundle, Record

HARDWARE = ("gpu", "gpu_memory_bytes", "gpus", "cpu_model", "cpu_count")
VERSIONS = ("python", "torch", "cuda", "hip", "cudnn", "driver", "kernel", "tracelens")
CODE = ("git_commit", "git_dirty", "command")
ALLOTTED = ("usable_cores", "num_threads")
PACKAGE = "package."  # before the name of a framework or library that the job imported
FACTS = frozenset((*HARDWARE, *VERSIONS, *CODE, *ALLOTTED, "ranks", "set"))


def bundle_facts(bundle: Bundle) -> dict[str, Any]:
    """Flat facts by name, of rank 0's last process; what was not recorded is absent.

    Names are those of ``HARDWARE``, ``VERSIONS``, ``CODE`` and ``ALLOTTED``, then ``flag.*`` (torch's
    switches), ``env.*`` (the recorded variables), ``package.*`` (versions of the libraries that the job imported) and
    ``set`` (the ``--set`` texts).
    """
    manifest = bundle.manifest
    process: Record = next((rank.process[-1] for rank in bundle.ranks if rank.process), {})
    found: dict[str, Any] = {}
    device = _table(process, "device")
    found["gpu"], found["gpu_memory_bytes"] = device.get("name"), device.get("total_memory")
    ranks = [rank for rank in bundle.ranks if rank.process]
    if ranks:
        # without a GPU there is none, which is known; a bundle without a process line says nothing
        found["gpus"] = sum(1 for rank in ranks if _table(rank.process[-1], "device"))
        found["ranks"] = process.get("world_size") or len(ranks)
        found["gpu"] = device.get("name") or "none"
    cpu = _table(process, "cpu")
    found["cpu_model"], found["cpu_count"] = cpu.get("model"), cpu.get("count")
    allowed = [cpu.get(name) for name in ("affinity", "quota", "count")]
    usable = [float(value) for value in allowed if isinstance(value, int | float) and value > 0]
    found["usable_cores"] = min(usable) if usable else None
    found["num_threads"] = _table(process, "threads").get("intraop")
    for name in ("python", "torch", "cuda", "hip", "cudnn", "driver", "kernel"):
        found[name] = process.get(name)
    found["tracelens"] = _table(manifest, "tool").get("version")
    git = _table(manifest, "git")
    found["git_commit"], found["git_dirty"] = git.get("commit"), git.get("dirty")
    command = manifest.get("command")
    found["command"] = " ".join(map(str, command)) if isinstance(command, list) else None
    given = _table(manifest, "options").get("set")
    found["set"] = " ".join(map(str, given)) if isinstance(given, list) else None
    found.update({f"flag.{name}": value for name, value in _table(process, "flags").items()})
    found.update({f"env.{name}": value for name, value in _table(process, "env").items()})
    found.update({PACKAGE + name: value for name, value in _table(process, "frameworks").items()})
    return {name: value for name, value in found.items() if value is not None}


def _table(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}
