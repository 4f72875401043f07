"""The sampler: ``python -m tracelens.record.sampler BUNDLE --pid ROOT``, a process of its own beside the job.

Writes host.jsonl, gpu.jsonl and its own account, sampler.jsonl, on the clock of the traces (Unix ns). It ends
when the root process ends, at once where the kernel has pidfd, else within a second; Ctrl-C is the job's
affair. Of several samplers of one bundle on one machine, one writes and the others stand by.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tracelens.errors import OutputError, TracelensError, UsageError
from tracelens.record.gpu_thread import GpuThread
from tracelens.record.host import HostSampler
from tracelens.record.lines import LineFile
from tracelens.record.pace import Pace
from tracelens.record.procfs import read_stat

_ANCHOR_S = 60.0
_POLL_S = 1.0


def node_id() -> str:
    """A short name for this machine and pid namespace that tells nothing about it."""
    sources: tuple[Callable[[], str], ...] = (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    )
    parts = []
    for read in sources:
        try:
            parts.append(read())
        except OSError:
            parts.append("")  # hidden; the other part still tells machines apart
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:8]


class RootWatch:
    """Waits, but not beyond the end of the root process or a SIGTERM."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.reason: str | None = None
        self._poll = select.poll()
        self._pidfd: int | None = None
        stat = read_stat(pid)
        self._start = None if stat is None else stat.start_ticks
        if stat is None or stat.state in "ZX":
            self.reason = "root ended"
        else:
            with contextlib.suppress(OSError, AttributeError):  # kernels before 5.3: polled instead
                self._pidfd = os.pidfd_open(pid)
                self._poll.register(self._pidfd, select.POLLIN)
        self._wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)
        # a sampler that is told to stop says so; Ctrl-C and a lost terminal are for the job to judge
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> bool:
        """Sleep; False once it is time to end (``reason`` says why)."""
        until = time.monotonic() + seconds
        while self.reason is None:
            left = until - time.monotonic()
            if left <= 0:
                break
            ready = self._poll.poll(min(left, 60.0 if self._pidfd is not None else _POLL_S) * 1000)
            if any(fd == self._wake for fd, _ in ready):
                self.reason = "stopped"
            elif ready or (self._pidfd is None and self._ended()):
                self.reason = "root ended"
        return self.reason is None

    def _ended(self) -> bool:
        stat = read_stat(self._pid)
        return stat is None or stat.state in "ZX" or stat.start_ticks != self._start


class Sampler:
    """The loop over the host, with the GPUs in a thread beside it."""

    def __init__(self, bundle: Path, root: int, interval_s: float, gpu: bool, watch: RootWatch) -> None:
        self._watch = watch
        self._node = node_id()
        self._log = LineFile(bundle / "sampler.jsonl")
        self._lock = threading.Lock()
        self._output = LineFile(bundle / "host.jsonl")
        self._host = HostSampler(root, bundle, self._node)
        self._pace = Pace.start(interval_s)
        self._anchor = clock_anchor()
        self._note(
            "start", pid=os.getpid(), root=root, **self._anchor, capabilities=self._host.capabilities()
        )
        self._gpu: GpuThread | None = None
        if gpu:
            files, tree = self._host.files, self._host.tree
            self._gpu = GpuThread(
                bundle / "gpu.jsonl", self._pace, self._note, lambda: dict(files.ranks), tree.pids
            )

    def run(self) -> None:
        """Sample until the root ends."""
        if self._gpu is not None:
            self._gpu.start()
        minute = time.monotonic() + _ANCHOR_S
        interval, failures = 0.0, 0
        while self._watch.wait(interval):
            try:
                line = self._host.sample(time.time_ns(), time.monotonic_ns())
                self._pace.wrote(self._output.write(line))
                failures = 0
            except Exception as error:
                # a kernel that formats /proc otherwise, no file descriptors left: costs lines, not the GPUs' timeline
                failures += 1
                if failures == 1:
                    self._note("error", where="host", message=f"{type(error).__name__}: {error}")
            self._pace.ranks = max(1, len(self._host.files.ranks))
            before, interval = interval, self._pace.interval(time.monotonic(), time.process_time())
            if failures:
                interval = max(interval, 5.0)
            if before and not 0.8 < interval / before < 1.25:
                self._note("rate", interval_ms=round(interval * 1000), cpu_share=self._pace.cpu_share)
            if time.monotonic() >= minute:
                minute += _ANCHOR_S
                self._account()
        self._end()

    def _account(self) -> None:
        now = clock_anchor()
        drift = (now["time_ns"] - now["monotonic_ns"]) - (
            self._anchor["time_ns"] - self._anchor["monotonic_ns"]
        )
        self._note(
            "anchor",
            **now,
            drift_ms=round(drift / 1e6, 3),
            cpu_share=self._pace.cpu_share,
            cpu_s=round(time.process_time() - self._pace.cpu_s, 3),
            bytes=self._pace.written,
            samples=self._pace.samples,
            dropped=self._output.dropped,
        )

    def _end(self) -> None:
        if self._gpu is not None:
            self._gpu.stop.set()
            self._gpu.join(1.0)  # a hanging driver must not keep us: the thread is a daemon
        self._account()
        self._note("end", reason=self._watch.reason)
        self._host.close()

    def _note(self, event: str, **fields: object) -> None:
        with self._lock:
            line = {"ts": time.time_ns(), "event": event, "node": self._node, **fields}
            self._pace.wrote(self._log.write(line), samples=0)


def clock_anchor() -> dict[str, int]:
    """time_ns (Unix) and monotonic_ns of one moment, of the tightest of five readings."""
    best: tuple[int, int, int] | None = None
    for _ in range(5):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, wall, (before + after) // 2)
    assert best is not None
    return {"time_ns": best[1], "monotonic_ns": best[2]}


def _only_one(bundle: Path, watch: RootWatch) -> int | None:
    """Hold this machine's lock on the bundle, standing by while another sampler has it; None: not needed."""
    path = bundle / f".sampler-{node_id()}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OutputError(f"cannot write in the bundle {bundle}: {error.strerror or error}") from None
    interval = 0.0
    while watch.wait(interval):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            interval = _POLL_S
            continue
        except OSError:
            return fd  # a file system without locks: two samplers are better than none
        return fd
    os.close(fd)
    return None


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the exit code of design section 8."""
    parser = argparse.ArgumentParser(prog="tracelens-sampler", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path, help="the bundle's folder, which must exist")
    parser.add_argument("--pid", type=int, required=True, help="the job's first process")
    parser.add_argument("--interval-ms", type=float, default=100.0, help="the fastest interval (default 100)")
    parser.add_argument("--no-gpu", action="store_true", help="leave NVML alone")
    options = parser.parse_args(arguments)
    try:
        if options.interval_ms < 10:
            raise UsageError("--interval-ms must be 10 or more")
        if not options.bundle.is_dir():
            raise OutputError(f"the bundle {options.bundle} is not a folder: create it first")
        watch = RootWatch(options.pid)
        lock = _only_one(options.bundle, watch)
        if lock is not None:
            Sampler(options.bundle, options.pid, options.interval_ms / 1000, not options.no_gpu, watch).run()
    except TracelensError as error:
        print(f"tracelens sampler: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread inside a hanging driver call would keep a normal exit waiting
