"""Puts the agent into a process that has torch: hooks, patches, and the way out."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Any, Optional

from .config import Config, from_environment
from .loader import Loaders
from .remote import start_sampler
from .runtime import Agent
from .settings import Settings
from .steps import StepLog
from .windows import Windows
from .worker import Workers

OLDEST = (2, 1)
_current: Optional["Recorder"] = None


class Recorder:
    """All parts of the agent in this process."""

    def __init__(self, config: Config, torch: Any) -> None:
        self.agent = Agent(config, torch)
        self.windows = Windows(self.agent)
        self.steps = StepLog(self.agent, self._boundary, self.finish, self.windows.replan)
        self.settings = Settings(self.agent)
        self.workers = Workers(self.agent)
        self.loaders = Loaders(self.agent, self.steps, self.windows, self.settings, self.workers)
        self._finished = False

    def install(self) -> None:
        """Hook into torch."""
        torch = self.agent.torch
        import torch.utils.data._utils.fetch as fetchers
        import torch.utils.data._utils.worker as worker
        import torch.utils.data.dataloader as dataloader
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.workers.install(worker)
        self.loaders.install(dataloader, fetchers)
        register_optimizer_step_post_hook(self._on_optimizer)
        self._patch_scaler(torch)
        self._patch_profiler(torch)
        self.settings.set_threads()
        self.agent.on_activate.append(self._finish_forked)
        self.agent.on_activate.append(lambda: self.steps.collections.start())  # a forked child has its own
        self.agent.on_activate.append(lambda: start_sampler(self.agent, self.agent.local))
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    # -- hooks ---------------------------------------------------------------------------------------

    def _live(self) -> bool:
        return self.agent.on and not self.agent.worker

    def _on_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._live():
            try:
                self.steps.on_optimizer(optimizer)
            except Exception as error:
                self.agent.fail("step", error)

    # torch.compile must not trace into bookkeeping (the marker is what torch._dynamo.disable sets)
    _on_optimizer._torchdynamo_disable = True  # type: ignore[attr-defined]

    def explicit(self) -> None:
        """The job says that a step ended."""
        if self._live():
            try:
                self.steps.on_explicit()
            except Exception as error:
                self.agent.fail("step", error)

    def _boundary(self, upcoming: int, end_ns: int, duration_ms: float) -> Optional[int]:
        try:
            return self.windows.boundary(upcoming, end_ns, duration_ms)
        except Exception as error:  # a profiler that cannot start or stop costs the windows, not the step log
            self.windows.give_up(error)
            return None

    def _patch_scaler(self, torch: Any) -> None:
        """A GradScaler that skips the optimizer (inf gradients) still ends an iteration."""
        module = sys.modules.get("torch.amp.grad_scaler") or sys.modules.get("torch.cuda.amp.grad_scaler")
        scaler = getattr(module, "GradScaler", None)
        if scaler is None:
            return
        original = scaler.step

        def step(instance: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps.seen
            result = original(instance, optimizer, *args, **kwargs)
            if self.steps.seen == before:
                self._on_optimizer(optimizer, args, kwargs)
            return result

        step.__name__, step.__doc__, step.__wrapped__ = original.__name__, original.__doc__, original  # type: ignore[attr-defined]
        step.__qualname__ = original.__qualname__
        scaler.step = step

    def _patch_profiler(self, torch: Any) -> None:
        """See a profiler of the job's own before it starts: two at once make the second one fail."""
        import torch.autograd.profiler as profiler

        original = profiler.profile.__init__

        def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if self._live():
                try:
                    self.windows.yield_to_job()
                except Exception as error:
                    self.agent.fail("profiler", error)
            original(instance, *args, **kwargs)

        __init__.__wrapped__ = original  # type: ignore[attr-defined]
        __init__.__doc__ = original.__doc__
        profiler.profile.__init__ = __init__

    # -- the way out ---------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """In every forked child: its profiler, its files and its steps are its own."""
        try:
            self.windows.abandon()
            self.agent.forget()
            self.steps.restart()
            self._finished = False
        except Exception as error:
            self.agent.fail("fork", error)

    def _finish_forked(self) -> None:
        """A forked process ends without atexit; multiprocessing runs its finalizers, though."""
        if self.agent.forked:
            from multiprocessing.util import Finalize

            Finalize(None, self.finish, exitpriority=100)

    def _at_exit(self) -> None:
        if os.getpid() != self.agent.pid:
            return
        self.finish()
        if self.steps.stopped and not isinstance(getattr(sys, "last_value", None), BaseException):
            self._leave_gloo()

    def _leave_gloo(self) -> None:
        """After --stop-after: gloo's threads abort a process now and then that ends with its group alive. What
        the job and its libraries registered at exit has run by now; multiprocessing's part is done here."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        if distributed.get_backend() != "gloo":
            return
        from multiprocessing.util import _exit_function  # type: ignore[attr-defined]

        _exit_function()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(0)

    def finish(self) -> None:
        """Export an open window, write what is pending. Later calls do nothing."""
        if self._finished or self.agent.worker:
            return
        self._finished = True
        try:
            if self.agent.on:
                self.steps.finish()
                self.windows.finish(self.steps.count)
                self._last_words()
        except Exception as error:
            self.agent.fail("exit", error)
        self.agent.flush()

    def _last_words(self) -> None:
        agent = self.agent
        if not agent.active:
            return
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            agent.exception(error)
        agent.flush()
        lost = agent.lost_lines()
        if lost:
            each = ", ".join("{} {}".format(name, lost[name]) for name in sorted(lost))
            agent.warn("log", "lines that could not be written are missing: " + each)
        agent.event("done", steps=self.steps.count, windows=self.windows.closed, source=self.steps.source)


def arm(config: Optional[Config] = None) -> Optional[Recorder]:
    """Install the agent in this process, once; None where nothing is to be recorded."""
    global _current
    if _current is not None:
        return _current
    config = from_environment() if config is None else config
    if config is None:
        return None
    spawned = b"multiprocessing" in _command_line()
    if not os.path.isdir(config.bundle):
        if not spawned:
            sys.stderr.write(
                "tracelens: this process cannot see the bundle {}, it is not recorded; "
                "put --out on a file system that all machines share\n".format(config.bundle)
            )
        return None
    torch = sys.modules["torch"]
    if not hasattr(torch, "__version__") or not hasattr(torch, "nn"):
        return None  # something else of this name
    version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    recorder = Recorder(config, torch)
    if version < OLDEST:
        recorder.agent.warn(
            "torch", "torch {} is too old to be recorded, 2.1 is needed".format(torch.__version__), loud=True
        )
        return None
    _current = recorder
    recorder.install()
    if not spawned:
        script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
        recorder.agent.event(
            "torch", python=sys.version.split()[0], torch=str(torch.__version__), script=script
        )
    return recorder


def _command_line() -> bytes:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def release(error: Optional[BaseException] = None) -> None:
    """End the recording of this process while it goes on (the API's ``with`` block is left)."""
    global _current
    recorder, _current = _current, None
    if recorder is None:
        return
    if error is not None and recorder.agent.active:
        recorder.agent.exception(error)
    recorder.finish()
    recorder.steps.collections.stop()
    recorder.agent.on = False
    recorder.agent.close()


def current() -> Optional[Recorder]:
    """The agent of this process, if it has one."""
    return _current
