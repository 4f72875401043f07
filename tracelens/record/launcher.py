"""Runs the job's command unchanged, with the agent on its path and the sampler beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tracelens.bundle import Bundle
from tracelens.errors import InputError, UsageError
from tracelens.record.companion import Sampler
from tracelens.record.diagnosis import outcome_messages
from tracelens.record.options import RecordOptions, parse_settings
from tracelens.record.session import Session, measure_again, open_session, say

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SI_USER = (0, -6)  # sent by a process (SI_USER, SI_TKILL), not by the terminal to the whole group
_POLL_SECONDS = 1.0

__all__ = ["Outcome", "RecordOptions", "record", "run"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the command ended (its own code, 128 + n for signal n) and where its bundle is, if there is one."""

    code: int
    bundle: Path | None


def run(options: RecordOptions) -> int:
    """Record ``options.command`` and return its own exit code."""
    return record(options).code


def record(options: RecordOptions) -> Outcome:
    """Record the command. UsageError for a command that does not exist or a ``--set`` that makes no sense."""
    if not options.command:
        raise UsageError(
            "name the command to record after --, for example: tracelens record -- python train.py"
        )
    if options.stop_after is not None and options.stop_after < 1:
        raise UsageError("--stop-after takes a whole number from 1")
    settings = parse_settings(options.set)
    if shutil.which(options.command[0]) is None:
        raise UsageError(f"command not found: {options.command[0]}")
    session = open_session(options, settings)
    if session is None:
        return Outcome(_wait(_spawn(options.command, dict(os.environ)), None), None)
    session.event("start", pid=os.getpid())
    say(f"recording into {_shown(session.bundle)}")
    started = time.monotonic()
    process = _spawn(options.command, session.environment(os.environ))
    sampler = Sampler(session)
    sampler.start(process.pid)  # every task starts one; of those on one machine, one writes
    code = _wait(process, sampler)
    session.event("exit", code=code, signal=code - 128 if process.returncode < 0 else None)
    sampler.stop()
    if session.leader and code < 128:  # nobody who stopped the job waits for this
        measure_again(session)
    _finish(session, options, code, time.monotonic() - started)
    return Outcome(code, session.bundle)


def _spawn(command: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise UsageError(f"cannot run {command[0]}: {error.strerror or error}") from error


def _wait(process: subprocess.Popen[bytes], sampler: Sampler | None) -> int:
    """Wait for the command. A signal from the terminal reached it already; one sent to us alone is passed on."""
    if hasattr(signal, "sigtimedwait"):
        _wait_for_signals(process, sampler)
    else:  # macOS: a signal cannot be told from another, and the terminal's Ctrl-C is the common one
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        process.wait()
        signal.signal(signal.SIGINT, before)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _wait_for_signals(process: subprocess.Popen[bytes], sampler: Sampler | None) -> None:
    passed_on = set(_PASSED_ON)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on | {signal.SIGCHLD})
    try:
        while process.poll() is None:
            arrived = signal.sigtimedwait(passed_on | {signal.SIGCHLD}, _POLL_SECONDS)
            if arrived is not None and arrived.si_signo in passed_on and arrived.si_code in _SI_USER:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(arrived.si_signo)
            if sampler is not None:
                sampler.check(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _finish(session: Session, options: RecordOptions, code: int, seconds: float) -> None:
    try:
        bundle = Bundle.open(session.bundle)
        for loud, message in outcome_messages(bundle, options, seconds):
            if loud:
                session.warn("outcome", message)
            else:
                say(message)
    except (InputError, OSError) as error:
        say(f"the bundle cannot be read back: {error}")
    session.finish()


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
