"""What recording costs: the same script with and without it, alternating, medians. One table, marked CPU or CUDA.

    python benchmarks/overhead.py [--repeats 3] [--steps-ms 5 20 100] [--workers 0 2 4]

``plain`` and ``recorded`` are medians over runs of the median step outside profiled windows, as the script itself
measures them; the aim is at most max(1 %, 0.1 ms) more. ``p10`` compares the runs' fastest tenths in the same way: on
a machine that others use too it tells the recorder's cost from theirs. The wall times are of the whole command.
Further lines: a Python process that never imports torch, and what the hooks cost in a loop of empty steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.zeros(1024)

def main():
    steps, step_ms, workers = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(1024, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = time.perf_counter()
    last, durations = None, []
    for batch in DataLoader(Data(steps * 8), batch_size=8, num_workers=workers):
        until = time.perf_counter() + step_ms / 1000
        optimizer.zero_grad()
        model(batch.to(device)).sum().backward()
        while time.perf_counter() < until:
            pass
        optimizer.step()
        now = time.perf_counter()
        if last is not None:
            durations.append((now - last) * 1000)
        last = now
    print(json.dumps({"durations": durations, "loop_s": time.perf_counter() - began, "device": device}))

if __name__ == "__main__":
    main()
"""
_LAUNCH = (
    "import sys; from pathlib import Path; from tracelens.record.launcher import RecordOptions, run; "
    "sys.exit(run(RecordOptions(tuple(sys.argv[2:]), out=Path(sys.argv[1]))))"
)
_UNPROFILED = 52  # the three windows of the default schedule, and the steps after them, lie before this step
_STEPS = {5.0: 240, 20.0: 160, 100.0: 100}


def run_once(folder: Path, arguments: list[str], recorded: bool) -> tuple[dict[str, object], float]:
    """The script's own numbers and the wall time of the whole command."""
    script = folder / "job.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), *arguments]
    bundle = folder / "bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    if recorded:
        command = [sys.executable, "-c", _LAUNCH, str(bundle), *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=folder)
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def typical_steps(answer: dict[str, object]) -> tuple[float, float]:
    """Median and 10th percentile of the steps outside profiled windows, in ms."""
    durations = answer["durations"]
    assert isinstance(durations, list)
    kept = durations[_UNPROFILED:250]
    return statistics.median(kept), statistics.quantiles(kept, n=10)[0]


@dataclass(frozen=True)
class Row:
    """One line of the table; pairs are (without, with) recording."""

    step_ms: float
    workers: int
    median: tuple[float, float]
    p10: tuple[float, float]
    wall: tuple[float, float]
    device: str

    def line(self) -> str:
        """As Markdown."""
        plain, recorded = self.median
        allowed = max(0.01 * plain, 0.1)
        verdict = "yes" if recorded - plain <= allowed else "NO"
        return (
            f"| {self.step_ms:g} | {self.workers} | {plain:.3f} | {recorded:.3f} | {recorded - plain:+.3f} | {allowed:.3f} "
            f"| {verdict} | {self.p10[1] - self.p10[0]:+.3f} | {self.wall[0]:.2f} | {self.wall[1]:.2f} |"
        )


def compare(folder: Path, step_ms: float, workers: int, repeats: int) -> Row:
    """Alternating runs without and with recording, the order turned round every time."""
    arguments = [str(_STEPS.get(step_ms, 120)), str(step_ms), str(workers)]
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    device = ""
    for repeat in range(repeats):
        for recorded in (False, True) if repeat % 2 else (True, False):
            answer, wall = run_once(folder, arguments, recorded)
            found[recorded].append((*typical_steps(answer), wall))
            device = str(answer["device"])
    plain, with_recorder = (
        [statistics.median(column) for column in zip(*found[kind], strict=True)] for kind in (False, True)
    )
    pairs = list(zip(plain, with_recorder, strict=True))
    return Row(step_ms, workers, pairs[0], pairs[1], pairs[2], device)


def idle_process(folder: Path, repeats: int = 20) -> float:
    """Milliseconds that the injected sitecustomize adds to a Python process that never imports torch."""
    import tracelens.agent

    inject = str(Path(tracelens.agent.__file__).parent / "inject")
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    injected = {**base, "PYTHONPATH": inject, "TRACELENS_BUNDLE": str(folder)}
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for recorded in (False, True):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=injected if recorded else base, check=True)
            times[recorded].append((time.perf_counter() - began) * 1000)
    return statistics.median(times[True]) - statistics.median(times[False])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[5.0, 20.0, 100.0])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracelens-overhead-") as name:
        folder = Path(name)
        rows = [
            compare(folder, step_ms, workers, args.repeats)
            for step_ms in args.steps_ms
            for workers in args.workers
        ]
        print(
            f"device: {rows[0].device}; {os.cpu_count()} cores; {args.repeats} alternating runs each, medians\n"
        )
        print(
            "| step ms | workers | plain ms | recorded ms | added ms | allowed ms | ok | added p10 ms "
            "| wall s | recorded wall s |"
        )
        print("|---:|---:|---:|---:|---:|---:|:--|---:|---:|---:|")
        for row in rows:
            print(row.line())
        plain, _ = run_once(folder, ["2000", "0", "0"], False)
        hooked, _ = run_once(folder, ["2000", "0", "0"], True)
        bare = statistics.median(plain["durations"][300:])  # type: ignore[index]
        with_hooks = statistics.median(hooked["durations"][300:])  # type: ignore[index]
        print(f"\nhooks in a loop of empty steps, 0 workers: {(with_hooks - bare) * 1000:.0f} us a step")
        print(f"a Python process that never imports torch: {idle_process(folder):+.2f} ms")


if __name__ == "__main__":
    main()
