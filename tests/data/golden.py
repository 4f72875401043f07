"""The golden results: ``python -m tests.data.golden`` (``make golden``) writes the fixture traces and their results.

The traces are made by ``tests.tracekit``; what is committed are the files that a user's tool would have written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.tracekit import ALL_REDUCE, GEMM, POINTWISE, WORKERS, Loop, Trace, as_old, comparable
from tracelens.diagnose.analyse import analyse
from tracelens.ingest.discover import discover

ROOT = Path(__file__).resolve().parents[2]
TRACES, GOLDEN = ROOT / "fixtures" / "traces", ROOT / "fixtures" / "golden"
_LAYER = ((GEMM, 300), (POINTWISE, 60))


def _distributed() -> Trace:
    trace = Loop(load_us=5, kernels=[*_LAYER * 3, (ALL_REDUCE, 700)], optimizer_launches=2).trace()
    trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 2}
    return trace


def _cpu_only() -> Trace:
    trace, host = Trace(metadata={"schemaVersion": 1}), 1000.0
    for number in range(6):
        begin = host
        trace.next(host, host + 100)
        for layer in range(8):
            trace.op("aten::mm", host + 101 + 212 * layer, host + 312 + 212 * layer)
        host += 1800
        trace.step(number, begin, host - 2)
    return trace


FIXTURES = {
    "loader_main_process": lambda: Loop(load_us=3000).trace(),
    "loader_stalls": lambda: Loop(
        steps=12, load_us=30, iterator=WORKERS, slow=lambda step: 9000.0 if step % 4 == 3 else 0.0
    ).trace(),
    "gpu_healthy": lambda: Loop(load_us=10).trace(),
    "launch_bound": lambda: Loop(load_us=5, kernels=[(POINTWISE, 3)] * 60).trace(),
    "item_each_step": lambda: Loop(wait=True, load_us=5, python_us=900).trace(),
    "pageable_copies": lambda: Loop(pinned=False, copy_us=3000, copy_bytes=9_000_000, load_us=5).trace(),
    "memory_bound": lambda: Loop(load_us=5, kernels=[(POINTWISE, 400)] * 6).trace(),
    "all_reduce": _distributed,
    "cpu_only": _cpu_only,
    "old_dialect": lambda: as_old(Loop(load_us=3000, steps=5).trace()),
    "no_markers": lambda: Loop(load_us=20, markers=False, iterator=None).trace(),
}  # fmt: skip


def golden_of(trace: Path) -> dict[str, Any]:
    """The result of a fixture trace as plain JSON, without what changes from run to run."""
    result = comparable(analyse(discover([trace])))
    if result["timeline"]:  # every span of a drawing would hide what changed
        result["timeline"]["lanes"] = {
            lane["name"]: len(lane["spans"]) for lane in result["timeline"]["lanes"]
        }
    return result


def main() -> int:
    """Writes every fixture trace and golden result; prints what changed."""
    TRACES.mkdir(parents=True, exist_ok=True)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, make in FIXTURES.items():
        path = make().write(TRACES / f"{name}.json.gz")
        target = GOLDEN / f"{name}.json"
        before = target.read_text("utf-8") if target.exists() else None
        text = json.dumps(golden_of(path), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        target.write_text(text, "utf-8")
        print(f"{name:24s} {'unchanged' if text == before else 'new' if before is None else 'changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
