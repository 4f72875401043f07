"""What the sampler costs: its share of one core and its bytes an hour, beside 0, 4 and 16 worker processes.

    python benchmarks/sampler_cost.py [--seconds 20] [--workers 0 4 16]

The job is one Python process with forked children that each compute a little, have two extra threads and
sleep most of the time, so that what is measured is the sampler and not the fight for cores. The figures are
of the first minutes (fastest rate, 10 Hz) and, with ``--steady``, of the rate of a long job (1 Hz).
GPUs are sampled where NVML is there. CPU time is the kernel's own account of the whole sampler process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = """
import os, sys, threading, time
def idle():
    for _ in range(2):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        idle()
        while True:
            sum(range(2000))
            time.sleep(0.05)
idle()
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def measure(workers: int, seconds: float, interval_ms: float) -> tuple[float, float, float]:
    """(share of one core, bytes an hour, samples a second) over ``seconds`` after start-up."""
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(workers)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert job.stdout is not None
        job.stdout.readline()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tracelens.record.sampler", folder, "--pid", str(job.pid)]
            sampler = subprocess.Popen([*command, "--interval-ms", str(interval_ms)])
            time.sleep(3.0)
            files = [Path(folder) / name for name in ("host.jsonl", "gpu.jsonl", "sampler.jsonl")]
            size = lambda: sum(file.stat().st_size for file in files if file.exists())  # noqa: E731
            count = lambda: files[0].read_bytes().count(b"\n")  # noqa: E731
            before = cpu_seconds(sampler.pid), size(), count(), time.monotonic()
            time.sleep(seconds)
            wall = time.monotonic() - before[3]
            share = (cpu_seconds(sampler.pid) - before[0]) / wall
            result = share, (size() - before[1]) / wall * 3600, (count() - before[2]) / wall
            sampler.send_signal(signal.SIGTERM)
            sampler.wait(10)
            return result
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--steady", action="store_true", help="also at the rate of a long job (1 Hz)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    options = parser.parse_args()
    if not options.json:
        print(f"{'workers':>7}  {'interval':>8}  {'samples/s':>9}  {'% of one core':>13}  {'MB an hour':>10}")
    for interval in (100, 1000) if options.steady else (100,):
        for workers in options.workers:
            share, hourly, rate = measure(workers, options.seconds, interval)
            if options.json:
                row = {
                    "workers": workers,
                    "interval_ms": interval,
                    "cpu_share": share,
                    "bytes_per_hour": hourly,
                }
                print(json.dumps({**row, "samples_per_s": rate}), flush=True)
            else:
                print(
                    f"{workers:7d}  {interval:5d} ms  {rate:9.1f}  {share * 100:13.2f}  {hourly / 1e6:10.1f}",
                    flush=True,
                )
    if not options.json:
        print("bytes: the first minutes' rate; the sampler's budget holds any hour to 3 MB + 15 MB a rank")


if __name__ == "__main__":
    main()
