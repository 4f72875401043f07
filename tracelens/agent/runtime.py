"""The agent of one process: who it is, where it writes, and how it gets out of the way when it breaks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import environment
from .config import Config
from .log import FLUSH_NS, WORKER_FLUSH_NS, Log
from .redact import Redactor


def distributed_rank(torch: Any) -> "tuple[Optional[int], Optional[int], Optional[int]]":
    """(rank, local rank, world size) of this process, None where nothing says."""
    rank = local = world = None
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    variables = os.environ
    families: List[Tuple[str, str, str]] = [
        ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ]
    for names in families:
        numbers = [variables.get(name, "") for name in names]
        if not numbers[0].isdigit() or (names[0] == "SLURM_PROCID" and "SLURM_STEP_ID" not in variables):
            continue
        found = [int(number) if number.isdigit() else None for number in numbers]
        if rank is None:
            rank = found[0]
        if found[0] == rank:
            local = found[1]
            world = found[2] if world is None else world
        break
    return rank, local, world


def _last_lines(path: str) -> List[Dict[str, Any]]:
    """The objects in the last 16 KB of a JSONL file; [] where there is none."""
    found = []
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # cut at the start of what was read, or by a kill
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _code(handler: Any) -> Any:
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


class Agent:
    """State of this process. Nothing is written to a rank's folder before the process trains."""

    def __init__(self, config: Config, torch: Any) -> None:
        self.config = config
        self.torch = torch
        self.redactor = Redactor(config.home, config.host, config.user, off=config.sensitive)
        self.on = True
        self.pid = os.getpid()
        self.main_thread = threading.main_thread()
        self.started_ns = time.time_ns()
        self.rank: Optional[int] = None
        self.world: Optional[int] = None
        self.local: Optional[int] = None
        self.folder: Optional[str] = None
        self.first_step = 0  # a process that was started again goes on counting
        self.first_window = 0
        self.active = False
        self.worker = False
        self.forked = False
        self.on_activate: List[Callable[[], None]] = []
        self._logs: Dict[str, Log] = {}
        self._lock: Optional[int] = None
        self._device_known = False
        self.events = Log(os.path.join(config.bundle, "events.jsonl"), self._unwritable)

    # -- telling ---------------------------------------------------------------------------------

    def event(self, kind: str, **fields: Any) -> None:
        """One line in events.jsonl."""
        record: Dict[str, Any] = {"ts": time.time_ns(), "event": kind}
        if kind != "agent":
            rank = self.rank if self.rank is not None else distributed_rank(self.torch)[0]
            record.update(rank=rank, pid=os.getpid())
        record.update(fields)
        self.events.write(record, urgent=True)

    def say(self, message: str) -> None:
        """One line on the job's stderr."""
        try:
            sys.stderr.write("tracelens: {}\n".format(message))
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError, RuntimeError):
            # stderr is closed, replaced, or being written to (we may be in a signal handler): events.jsonl has it
            pass

    def warn(self, where: str, message: str, loud: bool = False) -> None:
        """Keep a warning in the bundle; ``loud`` shows it as well."""
        self.event("warning", where=where, message=self.redactor.text(message))
        if loud:
            self.say(message)

    def exception(self, error: BaseException) -> None:
        """The job's own error, by type and message."""
        self.event("exception", type=type(error).__name__, message=self.redactor.text(str(error))[:500])

    def _unwritable(self, path: str, error: OSError) -> None:
        message = (
            "cannot write {}: {}; the job goes on, lines are dropped until it can be written again".format(
                os.path.basename(path), error.strerror or error
            )
        )
        if path != self.events.path:
            self.warn("log", message, loud=True)
        else:
            self.say(message)

    @staticmethod
    def reraise_foreign(error: BaseException) -> None:
        """An error that a signal handler of the job (torch's for dead workers is one) raised while our code
        happened to run is not ours to keep."""
        handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise error

    def fail(self, where: str, error: BaseException) -> None:
        """Something of ours broke: say so once, and touch nothing of the job's any more."""
        self.reraise_foreign(error)
        if not self.on:
            return
        self.on = False
        frames = traceback.extract_tb(error.__traceback__)
        place = "{}:{}".format(os.path.basename(frames[-1].filename), frames[-1].lineno) if frames else "?"
        message = "recording stopped in process {} ({}: {}: {}, {}); the job goes on".format(
            os.getpid(), where, type(error).__name__, error, place
        )
        try:
            self.warn(where, message, loud=True)
        except Exception:  # the last resort of the last resort: the job must go on
            self.say(message)

    # -- becoming a rank -------------------------------------------------------------------------

    def activate(self) -> None:
        """This process trains: take its rank's folder and describe it. Later calls do nothing."""
        if self.active or not self.on:
            return
        self.active = True
        rank, local, world = distributed_rank(self.torch)
        self.world, self.local = world, local
        self.folder, self.rank = self._claim(rank)
        self._go_on(self.folder)
        self._process(local)
        self.event(
            "agent",
            pid=self.pid,
            rank=self.rank,
            python=sys.version.split()[0],
            torch=str(self.torch.__version__),
        )
        for call in self.on_activate:
            call()

    def _go_on(self, folder: str) -> None:
        """After a restart: steps and windows are numbered on from what the earlier process left."""
        last = _last_lines(os.path.join(folder, "steps.jsonl"))
        self.first_step = 1 + max((line.get("step", -1) for line in last), default=-1)
        windows = _last_lines(os.path.join(folder, "windows.jsonl"))
        self.first_window = 1 + max((line.get("window", -1) for line in windows), default=-1)

    def _process(self, local: Optional[int]) -> None:
        record: Dict[str, Any] = {
            "ts": time.time_ns(), "pid": self.pid, "rank": self.rank, "local_rank": local, "world_size": self.world,
        }  # fmt: skip
        record.update(environment.describe(self.torch, self.redactor))
        self._device_known = record["device"] is not None
        self.write("process.jsonl", record, urgent=True)

    def describe_device(self) -> None:
        """Add the line that names the GPU once the job has initialised it."""
        if not self._device_known and self.torch.cuda.is_initialized():
            self._process(distributed_rank(self.torch)[1])
            self._device_known = True

    def _claim(self, rank: Optional[int]) -> "tuple[str, int]":
        """A folder of this rank; another live process that claims the same number gets the next free one."""
        number = rank or 0
        while True:
            folder = os.path.join(self.config.bundle, "rank{}".format(number))
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                self._unwritable(folder, error)
                return folder, number
            if self._locked(folder):
                if number != (rank or 0):
                    self.warn(
                        "rank",
                        "process {} says it is rank {}, as another live process does; kept as rank {}".format(
                            self.pid, rank, number
                        ),
                    )
                return folder, number
            number += 1

    def _locked(self, folder: str) -> bool:
        """Hold the folder for as long as this process lives; True also where locks do not work."""
        try:
            import fcntl

            fd = os.open(os.path.join(folder, ".owner"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (ImportError, OSError):
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:  # a file system without locks
            os.close(fd)
            return True
        self._lock = fd
        return True

    # -- writing ---------------------------------------------------------------------------------

    def write(self, name: str, record: Mapping[str, Any], urgent: bool = False) -> None:
        """One line in a file of this rank's folder; see ``Log.write``."""
        log = self._logs.get(name)
        if log is None:
            if self.folder is None:
                return
            every = WORKER_FLUSH_NS if self.worker else FLUSH_NS
            log = self._logs[name] = Log(os.path.join(self.folder, name), self._unwritable, every)
        log.write(record, urgent)

    def lost_lines(self) -> Dict[str, int]:
        """How many lines could not be written, by file."""
        return {os.path.basename(log.path): log.dropped for log in self._all() if log.dropped}

    def flush(self) -> None:
        """Hand every line to the operating system."""
        for log in self._all():
            log.flush()

    def close(self) -> None:
        """Flush and close every file, and let the rank's folder go."""
        for log in self._all():
            log.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _all(self) -> List[Log]:
        return [*self._logs.values(), self.events]

    def forget(self) -> None:
        """In a forked child: the parent's files, lines and folder are not ours."""
        for log in self._all():
            log.forget()
        self._logs = {}
        if self._lock is not None:
            # Closing a duplicate leaves the parent's lock alone; LOCK_UN would release it.
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None
        self.pid = os.getpid()
        self.forked = True
        self.active = False
        self._device_known = False
        self.main_thread = threading.main_thread()
