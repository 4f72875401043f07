"""The profiler's windows: which steps are traced, how, and what that did to them."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, Optional

from . import environment, kineto, trace_file
from .runtime import Agent
from .schedule import Planned, is_traced, plan, stacks_reason
from .sigterm import Sigterm

_BASELINE = 8  # unprofiled steps kept from before a window, and waited for after it
_LEAN_NS = 150_000_000  # a lean window of short steps goes on until it has seen this much ...
_RESERVE = 1 << 30  # bytes of free memory without which no window opens
_GROWTH = 1 << 31  # resident growth at which a window is closed early
_TRACE_LIMIT = 2 << 30  # bytes of one uncompressed trace
_BUNDLE_LIMIT = 512 << 20  # bytes of all compressed traces of a rank


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
        self._step_bytes = 0.0  # of plain trace text, in the newest window
        self._durations: Deque[float] = deque(maxlen=_BASELINE)
        self._after: Optional[Dict[str, Any]] = None
        self._own = False
        self._sigterm = Sigterm(agent, self.close)
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
        if steps >= planned.most or (steps + 1) * self._step_bytes > _TRACE_LIMIT / 2:
            return True
        if steps >= planned.least and now - window["t0"] > _LEAN_NS:
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
            if not is_traced(agent.rank or 0, agent.world or 1):
                self._plan = []
                return False
        reason = None
        available = environment.available_bytes()
        if self._profiler is None and kineto.is_active(agent.torch):
            reason = "the job runs a profiler of its own"
        elif available is not None and available < _RESERVE:
            reason = "less than 1 GB of memory is free"
        elif self._bytes > _BUNDLE_LIMIT:
            reason = "the traces of this rank already hold {} MB".format(self._bytes >> 20)
        elif planned.least * self._step_bytes > _TRACE_LIMIT / 2:
            reason = "one step takes {} MB of trace".format(int(self._step_bytes) >> 20)
        elif planned.kind == "stacks":
            reason = stacks_reason(agent.torch)
        if reason is None:
            return True
        agent.warn("profiler", "no {} window at step {}: {}".format(planned.kind, planned.start, reason))
        if planned in self._plan:
            self._plan.remove(planned)
        return False

    # -- opening -----------------------------------------------------------------------------------

    def _prepare(self, planned: Planned) -> None:
        torch = self._agent.torch
        self._own = True
        try:
            profiler = kineto.make(torch, planned.kind)
            with kineto.Quiet(torch):
                profiler.prepare_trace()
        finally:
            self._own = False
        self._profiler = profiler
        self._prepared = planned

    def _start(self, planned: Planned, step: int) -> None:
        self._current, self._prepared = planned, None
        self._rss = environment.resident_bytes() or 0
        self._own = True
        try:
            with kineto.Quiet(self._agent.torch):
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
            "cuda": kineto.records_cuda(self._agent.torch), "teardown_cupti": os.environ.get("TEARDOWN_CUPTI"),
            "flags": environment.flags(self._agent.torch),
        }  # fmt: skip
        self._durations.clear()
        self._agent.write("windows.jsonl", dict(self._open), urgent=True)
        self._sigterm.catch()
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
        with self._sigterm.held():
            self._mark(None)
            self._profiler, self._open, self._current = None, None, None
            self._stop(profiler, started=window is not None)
            if window is not None:
                window["complete"] = complete
                if reason is not None:
                    window["reason"] = reason
                self._keep(profiler, window)

    def _stop(self, profiler: Any, started: bool) -> None:
        self._own = True
        try:
            with kineto.Quiet(self._agent.torch):
                if not started:
                    self._prepared = None
                    profiler.start_trace()  # a prepared Kineto session ends only through start and stop
                profiler.stop_trace()
        finally:
            self._own = False

    def _keep(self, profiler: Any, window: Dict[str, Any]) -> None:
        stopped = time.time_ns()
        window["t1"] = stopped
        self._export(profiler, window)
        window["export_ms"] = round((time.time_ns() - stopped) / 1e6, 3)
        window["after_ms"] = None
        self._agent.write("windows.jsonl", window, urgent=True)
        self._after = {"window": window["window"], "after_ms": []}
        self.closed += 1

    def _export(self, profiler: Any, window: Dict[str, Any]) -> None:
        agent = self._agent
        name = "window-{}.pt.trace.json.gz".format(window["window"])
        try:
            if agent.folder is None:
                raise OSError("no folder to write to")
            size, kernels, plain = trace_file.export(
                profiler, os.path.join(agent.folder, name), agent.redactor, _TRACE_LIMIT
            )
        except (OSError, RuntimeError) as error:
            if isinstance(error, trace_file.TraceError):
                self._step_bytes = error.plain / max(1, window["steps"])
            window.update(file=None, bytes=None, kernels=None)
            agent.warn(
                "export",
                "the trace of window {} could not be kept: {}".format(window["window"], error),
                loud=True,
            )
            return
        self._bytes += size
        self._step_bytes = plain / max(1, window["steps"])
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
            self._agent.write("windows.jsonl", after, urgent=True)

    def give_up(self, error: Exception) -> None:
        """The profiler itself failed: no more windows."""
        self._agent.reraise_foreign(error)
        self._plan = []
        self._profiler, self._open, self._marker = None, None, None
        self._sigterm.release()
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
        self._sigterm.release()
        if ours is None and not kineto.is_active(torch):
            return
        if sys.getprofile() is not None:
            sys.setprofile(None)
        torch.autograd._enable_record_function(False)
        if not torch.cuda.is_initialized():
            # This frees the profiler's state whole; with CUDA it would call CUPTI, which a fork must not.
            torch.autograd._disable_profiler()
