"""The profiler's windows: which steps are traced, how, and what that did to them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional

from . import environment, trace_file
from .runtime import Agent

_BASELINE = 8  # unprofiled steps kept from before a window, and waited for after it
_LEAN_NS = 150_000_000  # a lean window of short steps goes on until it has seen this much ...
_RESERVE = 1 << 30  # bytes of free memory without which no window opens
_GROWTH = 1 << 31  # resident growth at which a window is closed early
_TRACE_LIMIT = 2 << 30  # bytes of one uncompressed trace
_BUNDLE_LIMIT = 512 << 20  # bytes of all compressed traces of a rank
_RANKS = 8


class Planned(NamedTuple):
    """A window to come: the step it opens at, its kind, the steps it takes at least and at most."""

    start: int
    kind: str
    least: int
    most: int


def plan(stop_after: Optional[int], stacks: bool) -> List[Planned]:
    """The schedule, a function of the options alone: every rank opens its windows at the same global step.

    Steps 0-3 warm up, the next eight are the unprofiled baseline. Later lean windows catch what changes in a
    long run. A short ``stop_after`` moves everything forward.
    """
    if stop_after is None or stop_after >= 50:
        found = [Planned(12, "lean", 6, 12), Planned(32, "shapes", 2, 2), Planned(42, "stacks", 1, 1)]
        found += [Planned(start, "lean", 6, 12) for start in (250, 1500, 10_000, 50_000)]
    else:
        first = max(1, min(12, stop_after // 3))
        lean = max(2, min(6, stop_after // 4))
        gap = max(1, (stop_after - first - lean) // 4)
        shapes = first + lean + gap
        found = [Planned(first, "lean", lean, lean), Planned(shapes, "shapes", 1, 1)]
        found.append(Planned(shapes + 1 + gap, "stacks", 1, 1))
    if stop_after is not None:
        found = [window for window in found if window.start + window.least < stop_after]
    return [window for window in found if stacks or window.kind != "stacks"]


def _stacks_reason(torch: Any) -> Optional[str]:
    """Why Python stacks are not recorded here: known crashes and lost events of certain versions."""
    version = sys.version_info[:3]
    if (3, 12, 0) <= version <= (3, 12, 4):
        return "Python 3.12.0 to 3.12.4 lose call events (fixed in 3.12.5)"
    torch_version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    if version >= (3, 13, 0) and torch_version < (2, 7):
        return "torch before 2.7 can crash with stacks on Python 3.13"
    return None


class Windows:
    """Opens, closes and exports the windows at step boundaries."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._plan = plan(agent.config.stop_after, agent.config.stacks) if agent.config.trace else []
        self._profiler: Any = None
        self._marker: Any = None
        self._open: Optional[Dict[str, Any]] = None
        self._current: Optional[Planned] = None
        self._prepared: Optional[Planned] = None
        self._index = 0
        self._bytes = 0
        self._rss = 0
        self._durations: Deque[float] = deque(maxlen=_BASELINE)
        self._after: Optional[Dict[str, Any]] = None
        self._own = False
        self._handler: Any = None
        self._checked = False
        self.closed = 0

    @property
    def is_open(self) -> bool:
        """Whether a profiler of ours runs or is prepared."""
        return self._profiler is not None

    # -- at the end of every step ------------------------------------------------------------------

    def boundary(self, upcoming: int, end_ns: int, duration_ms: float) -> Optional[int]:
        """A step ended and ``upcoming`` begins; returns the window that the ended step ran in."""
        ran_in: Optional[int] = None
        if self._open is not None:
            ran_in = self._open["window"]
            self._mark(None)
            self._open["last_step"] = self._agent.first_step + upcoming - 1
            self._open["steps"] += 1
            if self._is_full(end_ns):
                self.close(complete=True)
            else:
                self._mark(upcoming)
        elif self._profiler is None:
            self._durations.append(duration_ms)
            self._note_after(duration_ms)
        if self._plan and self._open is None:
            self._maybe_open(upcoming)
        return ran_in

    def replan(self, count: int) -> None:
        """The ``count`` steps so far were batches without training (an evaluation ahead of it): plan from here."""
        self.close(complete=False, reason="training began")
        config = self._agent.config
        if config.trace and config.stop_after is None:
            self._plan = [window._replace(start=window.start + count) for window in plan(None, config.stacks)]

    def _is_full(self, now: int) -> bool:
        window, planned = self._open, self._current
        if window is None or planned is None:
            return False
        steps = window["steps"]
        if steps >= planned.most or (steps >= planned.least and now - window["t0"] > _LEAN_NS):
            return True
        grown = (environment.resident_bytes() or 0) - self._rss
        available = environment.available_bytes()
        if grown > _GROWTH or (available is not None and available < _RESERVE // 2):
            self._agent.warn("profiler", "window {} closed early: memory runs short".format(window["window"]))
            return True
        return False

    def _maybe_open(self, upcoming: int) -> None:
        planned = self._plan[0]
        if upcoming > planned.start:
            self._plan.pop(0)  # this process was started again, or joined late
            return
        with_cuda = self._agent.torch.cuda.is_initialized()
        if upcoming == planned.start - 1 and with_cuda and self._allowed(planned):
            self._prepare(planned)  # CUPTI is switched on one step ahead: its start transient stays outside
        if upcoming < planned.start:
            return
        self._plan.pop(0)
        if self._profiler is None:
            if not self._allowed(planned):
                return
            self._prepare(planned)
        if self._profiler is not None:
            self._start(planned, upcoming)

    def _allowed(self, planned: Planned) -> bool:
        agent = self._agent
        if not self._checked:
            self._checked = True
            world = agent.world or 1
            if world > _RANKS and (agent.rank or 0) % -(-world // _RANKS):
                self._plan = []
                return False
        reason = None
        available = environment.available_bytes()
        if self._foreign():
            reason = "the job runs a profiler of its own"
        elif available is not None and available < _RESERVE:
            reason = "less than 1 GB of memory is free"
        elif self._bytes > _BUNDLE_LIMIT:
            reason = "the traces of this rank already hold {} MB".format(self._bytes >> 20)
        elif planned.kind == "stacks":
            reason = _stacks_reason(agent.torch)
        if reason is None:
            return True
        agent.warn("profiler", "no {} window at step {}: {}".format(planned.kind, planned.start, reason))
        if planned in self._plan:
            self._plan.remove(planned)
        return False

    def _foreign(self) -> bool:
        """Whether somebody else's profiler runs on this thread."""
        enabled = getattr(self._agent.torch._C._autograd, "_profiler_enabled", None)
        return self._profiler is None and enabled is not None and bool(enabled())

    # -- opening -----------------------------------------------------------------------------------

    def _prepare(self, planned: Planned) -> None:
        torch = self._agent.torch
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._with_cuda():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        from torch.profiler.profiler import _KinetoProfile

        self._own = True
        try:
            profiler = _KinetoProfile(
                activities=activities,
                record_shapes=planned.kind == "shapes",
                # On the CPU torch warns on stderr about blocks from before the window, and nothing needs them.
                profile_memory=planned.kind == "shapes" and torch.cuda.is_initialized(),
                with_stack=planned.kind == "stacks",
                experimental_config=_experimental(torch, planned.kind),
            )
            with _Quiet(torch):
                profiler.prepare_trace()
        finally:
            self._own = False
        self._profiler = profiler
        self._prepared = planned

    def _with_cuda(self) -> bool:
        torch = self._agent.torch
        if not torch.cuda.is_initialized() or os.environ.get("CUDA_INJECTION64_PATH"):
            return False
        return torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()

    def _start(self, planned: Planned, step: int) -> None:
        self._current, self._prepared = planned, None
        self._rss = environment.resident_bytes() or 0
        self._own = True
        try:
            with _Quiet(self._agent.torch):
                self._profiler.start_trace()
        finally:
            self._own = False
        index = self._agent.first_window + self._index
        self._index += 1
        self._finish_after()
        self._open = {
            "window": index, "kind": planned.kind, "first_step": self._agent.first_step + step, "last_step": None, "steps": 0,
            "t0": time.time_ns(), "t1": None, "file": None, "complete": False,
            "baseline_ms": [round(value, 4) for value in self._durations],
            "cuda": self._with_cuda(), "teardown_cupti": os.environ.get("TEARDOWN_CUPTI"),
        }  # fmt: skip
        self._durations.clear()
        self._agent.write("windows.jsonl", self._open)
        self._catch_sigterm()
        self._mark(step)

    def _mark(self, step: Optional[int]) -> None:
        if self._marker is not None:
            self._marker.__exit__(None, None, None)
            self._marker = None
        if step is not None:
            self._marker = self._agent.torch.autograd.profiler.record_function(
                "ProfilerStep#{}".format(self._agent.first_step + step)
            )
            self._marker.__enter__()

    # -- closing -----------------------------------------------------------------------------------

    def close(self, complete: bool, reason: Optional[str] = None) -> None:
        """Stop the profiler and export what it has; a window that was cut short is kept and says so."""
        profiler, window = self._profiler, self._open
        if profiler is None:
            return
        self._mark(None)
        self._profiler, self._open, self._current = None, None, None
        self._own = True
        try:
            with _Quiet(self._agent.torch):
                if window is None:
                    self._prepared = None
                    profiler.start_trace()  # a prepared Kineto session ends only through start and stop
                profiler.stop_trace()
        finally:
            self._own = False
        self._release_sigterm()
        if window is None:
            return
        stopped = time.time_ns()
        window["t1"] = stopped
        window["complete"] = complete
        if reason is not None:
            window["reason"] = reason
        self._export(profiler, window)
        window["export_ms"] = round((time.time_ns() - stopped) / 1e6, 3)
        window["after_ms"] = None
        self._agent.write("windows.jsonl", window)
        self._after = {"window": window["window"], "after_ms": []}
        self.closed += 1

    def _export(self, profiler: Any, window: Dict[str, Any]) -> None:
        agent = self._agent
        name = "window-{}.pt.trace.json.gz".format(window["window"])
        try:
            if agent.folder is None:
                raise OSError("no folder to write to")
            size, kernels = trace_file.export(
                profiler, os.path.join(agent.folder, name), agent.redactor, _TRACE_LIMIT
            )
        except (OSError, RuntimeError) as error:
            window.update(file=None, bytes=None, kernels=None)
            agent.warn(
                "export",
                "the trace of window {} could not be kept: {}".format(window["window"], error),
                loud=True,
            )
            return
        self._bytes += size
        window.update(file=name, bytes=size, kernels=kernels, missing_kernels_reason=None)
        if not kernels:
            reason = trace_file.missing_kernels(agent.torch, window["cuda"], os.environ)
            window["missing_kernels_reason"] = reason
            if reason is not None and not reason.startswith("no GPU"):
                agent.warn(
                    "kernels",
                    "window {} holds no GPU kernels: {}".format(window["window"], reason),
                    loud=True,
                )

    def _note_after(self, duration_ms: float) -> None:
        if self._after is not None:
            self._after["after_ms"].append(round(duration_ms, 4))
            if len(self._after["after_ms"]) >= _BASELINE:
                self._finish_after()

    def _finish_after(self) -> None:
        """The steps after a window, as a second line of it."""
        after, self._after = self._after, None
        if after is not None:
            self._agent.write("windows.jsonl", after)

    def give_up(self, error: Exception) -> None:
        """The profiler itself failed: no more windows."""
        self._plan = []
        self._profiler, self._open, self._marker = None, None, None
        self._release_sigterm()
        self._agent.warn(
            "profiler", "profiling failed and is off: {}: {}".format(type(error).__name__, error), loud=True
        )

    def finish(self, steps: int) -> None:
        """At the end of the process."""
        planned = self._plan[0] if self._plan else None
        self.close(complete=False, reason="the job ended inside the window")
        self._finish_after()
        if not self._index and planned is not None and self._agent.active:
            reason = "the job ended after {} steps, the first window opens at step {}".format(
                steps, planned.start
            )
            if steps > planned.start:
                reason = "no optimizer stepped and tracelens.step() was not called, steps were told by batches at the end"
            self._agent.warn("profiler", "no step was traced: " + reason)

    # -- others ------------------------------------------------------------------------------------

    def yield_to_job(self) -> None:
        """The job starts a profiler of its own: ours makes way, for good."""
        if self._own:
            return
        if self._plan or self._profiler is not None:
            self._plan = []
            self._agent.warn(
                "profiler", "the job uses torch.profiler itself: no further windows are recorded"
            )
            self.close(complete=False, reason="the job started its own profiler")

    def before_fork(self) -> None:
        """Workers are about to be forked: a window that records memory or stacks would go on in each of them."""
        if self._open is not None and self._open["kind"] != "lean" and self._open["steps"] > 0:
            self.close(complete=True, reason="loader workers were started")

    def abandon(self) -> None:
        """In a forked child: switch off whatever profiler it inherited; nothing of it may be exported here."""
        torch = self._agent.torch
        ours, self._profiler, self._open, self._marker = self._profiler, None, None, None
        self._plan = []
        self._after = None
        self._release_sigterm()
        enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
        if ours is None and not (enabled is not None and enabled()):
            return
        if sys.getprofile() is not None:
            sys.setprofile(None)
        torch.autograd._enable_record_function(False)
        if not torch.cuda.is_initialized():
            # This frees the profiler's state whole; with CUDA it would call CUPTI, which a fork must not.
            torch.autograd._disable_profiler()

    def _catch_sigterm(self) -> None:
        """While a window is open, SIGTERM exports it first; only where the job left the signal alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._handler = self._on_sigterm
            signal.signal(signal.SIGTERM, self._handler)

    def _release_sigterm(self) -> None:
        handler, self._handler = self._handler, None
        if handler is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        if os.getpid() == self._agent.pid:
            try:
                self.close(complete=False, reason="SIGTERM")
                self._agent.flush()
            except Exception as error:  # the signal must end the process, whatever the export does
                self._agent.fail("SIGTERM", error)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _experimental(torch: Any, kind: str) -> Any:
    """Kineto's options, as many as this torch knows."""
    make = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    if make is None:
        return None
    options: Dict[str, Any] = {"enable_cuda_sync_events": True}
    if kind != "stacks":
        options["trace_only"] = True  # spares the parsing of events into Python objects
    while options:
        try:
            return make(**options)
        except TypeError:
            options.popitem()
    return None


class _Quiet:
    """Kineto's chatter on stderr is not the job's, and torch._inductor (0.8 s) need not be imported for us.

    torch asks ``hasattr(torch, "_inductor")`` at every start, which imports it; if the job has not, its
    CUDA-graph setting cannot matter.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._lazy: Any = None
        self._set = False

    def __enter__(self) -> None:
        lazy = getattr(self._torch, "_lazy_modules", None)
        if isinstance(lazy, set) and "_inductor" in lazy and "torch._inductor" not in sys.modules:
            lazy.discard("_inductor")
            self._lazy = lazy
        if "KINETO_LOG_LEVEL" not in os.environ:
            os.environ["KINETO_LOG_LEVEL"] = "99"
            self._set = True

    def __exit__(self, *exc_info: Any) -> None:
        if self._lazy is not None:
            self._lazy.add("_inductor")
        if self._set:
            os.environ.pop("KINETO_LOG_LEVEL", None)
