"""Real training on a CUDA machine: each fault recorded, diagnosed, fixed, recorded again. One table.

    python benchmarks/gpu_zoo.py [--out DIR] [--cases NAME...] [--minutes 9.5] [--device cuda] [--tiny]

A case is a training script with one fault, the classes and causes that are right, and a fix: a DataLoader setting
(applied by ``record --set`` with the value the report suggests) or a flag of the script. ``predicted`` is the report's
speed-up for that change, ``measured`` the ratio of samples a second outside profiled windows. Recorder overhead
compares a recorded with an unrecorded run of the same job. Needs torch and this package, nothing else; without a
CUDA device it says so and stops (``--device cpu --tiny`` runs the mechanics on a CPU).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).resolve().parent / "zoo" / "train.py"
CLI = [sys.executable, "-c", "from tracelens.cli import main; main()"]
KEEP_BYTES = 4 << 20  # of a bundle kept beside the table


@dataclass(frozen=True, slots=True)
class Case:
    """``flags`` make the fault, ``fix`` replaces flags, ``setting`` names the DataLoader argument to change."""

    name: str
    flags: tuple[str, ...]
    bottlenecks: tuple[str, ...]
    causes: tuple[str, ...]
    fix: tuple[str, ...] = ()
    setting: str | None = None
    default: str = ""
    parameter: str | None = None
    beside: tuple[str, ...] = ()
    needs_cuda: bool = True


RESNET = ("--model", "resnet", "--batch", "64")
LM = ("--model", "decoder", "--batch", "8")
KERNELS = ("gpu", "memory_bandwidth")

CASES = (
    Case("healthy", RESNET, KERNELS, ("healthy", "compute.arithmetic", "memory.bandwidth")),
    Case("main_process", (*RESNET, "--workers", "0", "--decode-ms", "2"), ("cpu",), ("load.main_process",),
         setting="num_workers", default="8", needs_cuda=False),
    Case("workers", (*RESNET, "--workers", "1", "--decode-ms", "3"), ("cpu",), ("load.too_few_workers",),
         setting="num_workers", default="8", needs_cuda=False),
    Case("pinning", (*RESNET, "--batch", "256", "--no-pin", "--steps", "70"), ("h2d_copy",), ("transfer.pageable",),
         setting="pin_memory", default="true"),
    Case("blocking", (*LM, "--batch", "2", "--no-non-blocking", "--image", "224"),
         ("h2d_copy", "cpu"), ("transfer.blocking", "host.launch_bound"), fix=("--non-blocking",), parameter="non_blocking"),
    Case("float64_input", (*RESNET, "--batch", "256", "--input-dtype", "float64", "--steps", "60"), ("h2d_copy", "cpu"),
         ("transfer.link", "transfer.serialised", "load.collate_ipc", "load.host_memory_bandwidth"),
         fix=("--input-dtype", "uint8")),
    Case("pcie_heavy", (*RESNET, "--batch", "128", "--image", "384", "--steps", "60"), ("h2d_copy", "cpu", *KERNELS),
         ("transfer.link", "transfer.serialised", "load.collate_ipc", "memory.bandwidth", "healthy"),
         fix=("--input-dtype", "uint8")),
    Case("sync_every_step", (*LM, "--syncs", "8", "--item"), ("cpu", *KERNELS),
         ("host.sync", "host.launch_bound", "memory.bandwidth", "healthy"), fix=("--syncs", "0")),
    Case("tiny_batch", (*LM, "--batch", "1", "--length", "64", "--steps", "200"), ("cpu",),
         ("host.launch_bound", "host.python", "host.optimizer"), setting="batch_size", default="8", needs_cuda=False),
    Case("pointwise", (*RESNET, "--pointwise", "60"), ("memory_bandwidth",), ("memory.bandwidth",), fix=("--compile",)),
    Case("fp32", (*LM, "--batch", "32", "--dtype", "fp32"), ("gpu",), ("compute.precision", "compute.arithmetic"),
         fix=("--dtype", "bf16")),
    Case("memory_full", (*RESNET, "--workers", "1", "--decode-ms", "3", "--fill", "0.9"), ("cpu",),
         ("load.too_few_workers",), setting="num_workers", default="8"),
    Case("checkpoint_stall", (*RESNET, "--checkpoint-every", "10"), ("cpu",), ("host.periodic_stall",),
         fix=("--checkpoint-every", "0"), needs_cuda=False),
    Case("allocator", (*RESNET, "--empty-cache"), ("cpu",), ("host.allocator", "host.sync"), fix=("--no-empty-cache",)),
    Case("two_processes", (*LM, "--batch", "16"), ("gpu", "memory_bandwidth"), ("compute.shared_gpu",),
         beside=(*LM, "--batch", "16", "--steps", "100000")),
)  # fmt: skip


@dataclass(slots=True)
class Row:
    """One line of the table; ``None`` is unknown."""

    case: str
    expected: str
    verdict: str | None = None
    cause: str | None = None
    confidence: float | None = None
    right: bool | None = None
    change: str | None = None
    predicted: float | None = None
    interval: tuple[float, float] | None = None
    measured: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None
    overhead: float | None = None
    after_window: float | None = None
    note: str = ""
    seconds: float = field(default=0.0)


class Failed(Exception):
    """A case could not run; the text says why."""


def flags_of(case: Case, a: argparse.Namespace, fixed: bool) -> list[str]:
    """The script's arguments; later flags win, so a fix overrides the fault."""
    common = ["--device", a.device, *(["--tiny"] if a.tiny else [])]
    out = [*common, "--steps", str(a.steps), *case.flags, *(case.fix if fixed else ())]
    if a.tiny:
        out += ["--batch", "4", "--steps", str(a.steps)]
    return out


def train(flags: list[str], timeout: float) -> dict[str, Any]:
    """Run the script unrecorded; its JSON line."""
    done = subprocess.run(
        [sys.executable, str(TRAIN), *flags], capture_output=True, text=True, timeout=timeout, check=False
    )
    return _answer(done)


def record(flags: list[str], bundle: Path, settings: list[str], timeout: float) -> dict[str, Any]:
    """Run the script under ``record``; its JSON line."""
    sets = [x for s in settings for x in ("--set", s)]
    command = [*CLI, "record", "--out", str(bundle), *sets, "--", sys.executable, str(TRAIN), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    return _answer(done)


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise Failed("the script printed no result")


def report(bundle: Path, timeout: float) -> dict[str, Any]:
    """The Result JSON of a bundle."""
    out = bundle / "result.json"
    command = [*CLI, "report", str(bundle), "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode or not out.exists():
        raise Failed("report: " + (done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def speed(bundle: Path) -> tuple[float, float, float | None]:
    """Samples a second and median step (ms) outside windows after warm-up; the slowdown right after a window."""
    rows = [
        json.loads(line)
        for line in (bundle / "rank0" / "steps.jsonl").read_text().splitlines()
        if line.strip()
    ]
    # the step after a window still carries its export: it counts as profiled
    spoiled = {r["step"] + d for r in rows if r.get("window") is not None for d in (0, 1)}
    clean = [r for r in rows if r["step"] not in spoiled and r["step"] >= min(8, len(rows) // 3)]
    if len(clean) < 3:
        raise Failed("too few unprofiled steps")
    spans = [(r["t1"] - r["t0"]) / 1e6 for r in clean]
    rate = sum(r.get("samples") or 0 for r in clean) / (sum(spans) / 1e3)
    first = min((r["step"] for r in rows if r.get("window") is not None), default=None)
    before = [s for r, s in zip(clean, spans, strict=True) if first is not None and r["step"] < first]
    after = [s for r, s in zip(clean, spans, strict=True) if first is not None and r["step"] > first]
    slowdown = (
        statistics.median(after) / statistics.median(before) - 1.0
        if len(before) > 2 and len(after) > 2
        else None
    )
    return rate, statistics.median(spans), slowdown


def promised(result: dict[str, Any], case: Case) -> tuple[Any, float | None, tuple[float, float] | None]:
    """The report's value, speed-up and interval for the case's change, if it recommends it."""
    wanted = case.setting or case.parameter
    for r in result.get("recommendations", []):
        if (wanted and r["parameter"] == wanted) or (not wanted and r["rule"] in case.causes):
            interval = tuple(r["interval"]) if r.get("interval") else None
            return r["suggested"], r["predicted_speedup"], interval  # type: ignore[return-value]
    return None, None, None


def run_case(case: Case, a: argparse.Namespace, folder: Path) -> Row:
    """Record the fault, report it, apply the fix, record again."""
    row = Row(case.name, "|".join(case.bottlenecks))
    began = time.perf_counter()
    neighbour = None
    try:
        if case.beside:
            extra = ["--device", a.device, *(["--tiny"] if a.tiny else []), *case.beside]
            neighbour = subprocess.Popen(
                [sys.executable, str(TRAIN), *extra], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(4.0 if not a.tiny else 0.5)
        before = folder / f"{case.name}-before"
        record(flags_of(case, a, False), before, [], a.timeout)
        if neighbour:
            neighbour.terminate()
            neighbour.wait()
        result = report(before, a.timeout)
        verdict = result["verdict"]
        row.verdict, row.cause, row.confidence = (
            verdict["bottleneck"],
            verdict["cause"],
            verdict["confidence"],
        )
        row.right = row.verdict in case.bottlenecks and row.cause in case.causes
        rate0, row.before_ms, row.after_window = speed(before)
        if case.name in ("healthy", "tiny_batch") and not case.beside:
            plain = train(flags_of(case, a, False), a.timeout)
            row.overhead = row.before_ms / plain["median_ms"] - 1.0
        value, row.predicted, row.interval = promised(result, case)
        if case.setting or case.fix or case.beside:
            after = folder / f"{case.name}-after"
            chosen = value if value is not None else case.default
            settings = [f"{case.setting}={str(chosen).lower()}"] if case.setting else []
            row.change = settings[0] if settings else " ".join(case.fix) or "alone on the GPU"
            record(flags_of(case, a, True), after, settings, a.timeout)
            rate1, row.after_ms, _ = speed(after)
            row.measured = rate1 / rate0
    except Failed as error:
        row.note = str(error)
    except subprocess.TimeoutExpired:
        row.note = f"took longer than {a.timeout:.0f} s"
    finally:
        if neighbour and neighbour.poll() is None:
            neighbour.kill()
            neighbour.wait()
    row.seconds = time.perf_counter() - began
    return row


def keep(folder: Path, out: Path) -> None:
    """Copy the bundles (redacted as recorded) that are small enough, without their reports."""
    for bundle in sorted(folder.iterdir()):
        files = [f for f in bundle.rglob("*") if f.is_file() and f.suffix != ".html" and f.name[0] != "."]
        if bundle.is_dir() and sum(f.stat().st_size for f in files) <= KEEP_BYTES:
            for f in files:
                to = out / "bundles" / bundle.name / f.relative_to(bundle)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(f, to)


def _n(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(rows: list[Row], device: str) -> str:
    """The rows as Markdown."""
    lines = [
        f"Device: {device}",
        "",
        "| case | expected | verdict | cause | conf. | right | change | predicted | interval | measured | step before, ms |"
        " after, ms | recording, unprofiled | after a window | note |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        interval = f"{r.interval[0]:.2f} to {r.interval[1]:.2f}" if r.interval else "-"
        right = "-" if r.right is None else "yes" if r.right else "NO"
        cells = [r.case, r.expected.replace("|", " or "), r.verdict or "-", r.cause or "-", _n(r.confidence, ".2f"), right,
                 r.change or "-", _n(r.predicted, ".2f"), interval, _n(r.measured, ".2f"), _n(r.before_ms, ".2f"),
                 _n(r.after_ms, ".2f"), _n(r.overhead, "+.1%"), _n(r.after_window, "+.1%"), r.note]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    judged = [r for r in rows if r.right is not None]
    pairs = [r for r in rows if r.predicted and r.measured]
    lines += ["", f"{sum(bool(r.right) for r in judged)} of {len(judged)} diagnosed as expected"]
    if pairs:
        error = statistics.median(
            abs(r.predicted / r.measured - 1.0) for r in pairs if r.predicted and r.measured
        )
        lines.append(
            f"predicted against measured speed-up: median error {error:.1%} over {len(pairs)} changes"
        )
    return "\n".join(lines) + "\n"


def missing(device: str) -> str | None:
    """Why the zoo cannot run on ``device``, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed in this environment"
    if device.startswith("cuda") and not torch.cuda.is_available():
        return "torch sees no CUDA device here; run it on a GPU machine, or the mechanics with --device cpu --tiny"
    return None


def main(argv: list[str] | None = None) -> int:
    """Run the cases; 0 when all ran (or there is no GPU), 1 when a case could not."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("gpu-zoo"))
    p.add_argument("--cases", nargs="*", choices=[c.name for c in CASES])
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--steps", type=int, default=90)
    p.add_argument("--minutes", type=float, default=9.5, help="start no case after this long")
    p.add_argument("--timeout", type=float, default=120.0, help="seconds one run may take")
    a = p.parse_args(argv)
    reason = missing(a.device)
    if reason:
        print(f"skipped: {reason}")
        return 0
    import torch

    name = torch.cuda.get_device_name() if a.device.startswith("cuda") else "CPU (mechanics only)"
    began = time.perf_counter()
    rows: list[Row] = []
    a.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        for case in CASES:
            if a.cases and case.name not in a.cases:
                continue
            if case.needs_cuda and not a.device.startswith("cuda"):
                rows.append(Row(case.name, "|".join(case.bottlenecks), note="needs a CUDA device"))
                continue
            if time.perf_counter() - began > 60 * a.minutes:
                rows.append(Row(case.name, "|".join(case.bottlenecks), note="not run: out of time"))
                continue
            row = run_case(case, a, Path(folder))
            rows.append(row)
            print(f"{row.case:18s} {row.verdict or '-':18s} {row.cause or '-':24s} predicted {_n(row.predicted, '.2f')} "
                  f"measured {_n(row.measured, '.2f')}  {row.seconds:.0f} s {row.note}", flush=True)  # fmt: skip
        keep(Path(folder), a.out)
    text = table(rows, name)
    (a.out / "table.md").write_text(text)
    (a.out / "table.json").write_text(
        json.dumps({"device": name, "rows": [asdict(r) for r in rows]}, indent=1) + "\n"
    )
    print("\n" + text)
    failed = [r for r in rows if r.note and r.note not in ("needs a CUDA device", "not run: out of time")]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
