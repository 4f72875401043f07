"""Today's trace events told in the dialect of PyTorch 1.8 and 1.9."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def to_old(everything: list[Event], top: dict[str, Any]) -> tuple[list[Event], dict[str, Any]]:
    """The same events in the words of PyTorch 1.8/1.9: other categories, Unix microseconds, text ids."""
    shift = top["baseTimeNanoseconds"] / 1e3
    cats = {
        "cpu_op": "Operator",
        "user_annotation": "Operator",
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
        "cuda_runtime": "Runtime",
        "ac2g": "async",
    }
    begin = {
        e["args"]["External id"]: e["ts"] for e in everything if e.get("cat") in ("cpu_op", "user_annotation")
    }
    device_events = {"kernel", "gpu_memcpy", "gpu_memset"}
    out: list[Event] = []
    for e in everything:
        cat = e.get("cat")
        if cat in ("fwdbwd", "gpu_user_annotation") or e.get("name") in (
            "process_sort_index",
            "thread_sort_index",
        ):
            continue
        if e.get("name", "").startswith("autograd::engine"):
            continue  # these wrappers came later
        if cat == "ac2g" and e["ph"] == "f" and isinstance(e["pid"], int) and e["pid"] > 1000:
            continue  # only GPU work ended a flow
        new = dict(e)
        new["ts"] = int(shift + e["ts"])
        if "dur" in e:
            new["dur"] = int(shift + e["ts"] + e["dur"]) - new["ts"]
        if cat == "cpu_instant_event":
            a = e["args"]
            new.pop("cat")
            new["args"] = {"Device Type": a["Device Type"], "Device Id": a["Device Id"], "Bytes": a["Bytes"]}
        elif cat in cats:
            new["cat"] = cats[cat]
            gpu = cat in device_events or (cat == "ac2g" and e["pid"] < 1000)
            if e["ph"] == "X" or gpu:
                new["tid"] = f"stream {e['tid']}" if gpu else str(e["tid"])
            if cat == "ac2g":
                new["name"] = "launch"
            else:
                new["args"] = _old_args(e, cat, begin, shift)
        elif e["ph"] == "M" and e["name"] == "thread_name" and str(e["args"]["name"]).startswith("stream"):
            new["tid"] = f"stream {e['tid']}"
        out.append(new)
    return out, {
        "schemaVersion": 1,
        **({"deviceProperties": top["deviceProperties"]} if top["deviceProperties"] else {}),
    }


def _old_args(e: Event, cat: str, begin: dict[int, float], shift: float) -> dict[str, Any]:
    a = e["args"]
    if cat in ("cpu_op", "user_annotation"):
        new: dict[str, Any] = {
            "Device": e["pid"],
            "External id": a["External id"],
            "Trace name": "PyTorch Profiler",
            "Trace iteration": 0,
        }
        if "Input Dims" in a:
            new |= {"Input Dims": a["Input Dims"], "Input type": a["Input type"]}
        if "Sequence number" in a:
            new |= {"Fwd thread id": a["Fwd thread id"], "Sequence number": a["Sequence number"]}
        return new
    ext = a.get("External id", 0)
    if cat == "cuda_runtime":
        return {
            "cbid": a["cbid"],
            "correlation": a["correlation"],
            "external id": ext,
            "external ts": int(shift + begin.get(ext, 0.0)),
        }
    new = {}
    for key, value in a.items():
        if key == "External id":
            continue
        new[key] = value
        if key == "correlation":
            new["external id"] = ext
    return {
        k: v
        for k, v in new.items()
        if not k.startswith(("Collective", "In ", "Out ", "Group", "Process", "dtype"))
    }
