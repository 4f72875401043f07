"""Recording from inside the training script: ``with tracelens.record() as rec: ... rec.step()``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from tracelens.errors import UsageError
from tracelens.record.companion import Sampler
from tracelens.record.options import RecordOptions, parse_settings
from tracelens.record.session import Session, open_session

_AGENT = "_tracelens_agent"
_VARIABLES = ("PYTHONPATH", "TRACELENS_BUNDLE", "TRACELENS_OPTIONS")


def _agent_module(name: str) -> Any:
    """A module of the agent, loaded under the name it has in every recorded job, so that there is one agent."""
    if _AGENT not in sys.modules:
        folder = Path(__file__).resolve().parent.parent / "agent"
        spec = importlib.util.spec_from_file_location(
            _AGENT, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise UsageError("this installation of tracelens lacks its agent folder; install it again")
        module = importlib.util.module_from_spec(spec)
        sys.modules[_AGENT] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"{_AGENT}.{name}")


def _current() -> Any:
    """The agent's recorder in this process, None where nothing is recorded."""
    module = sys.modules.get(f"{_AGENT}.arm")
    return None if module is None else module.current()


def step() -> None:
    """Say that a training step ended. From the first call on, only such calls end steps; outside a recording
    it does nothing, so that it may stay in the code."""
    recorder = _current()
    if recorder is not None:
        recorder.explicit()


class Recording:
    """A recording of this process. Under ``tracelens record`` it is the launcher's, and only ``step`` matters."""

    def __init__(self, options: RecordOptions) -> None:
        self._options = options
        self._session: Session | None = None
        self._sampler: Sampler | None = None
        self._recorder: Any = None
        self._before: dict[str, str | None] = {}
        self.bundle: Path | None = None

    def start(self) -> Recording:
        """Begin. UsageError where ``out`` exists or a setting makes no sense; anything else never raises."""
        running = _current()
        if running is not None:
            self.bundle = Path(running.agent.config.bundle)
            return self
        settings = parse_settings(self._options.set)
        importlib.import_module("torch")
        session = open_session(self._options, settings, within_job=True)
        if session is None:
            return self
        self._session, self.bundle = session, session.bundle
        session.event("start", pid=os.getpid())
        self._before = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.update({name: session.environment(os.environ)[name] for name in _VARIABLES})
        self._recorder = _agent_module("arm").arm(_agent_module("config").from_environment())
        self._sampler = Sampler(session)
        self._sampler.start(os.getpid())
        return self

    def step(self) -> None:
        """A training step ended."""
        step()

    def stop(self, error: BaseException | None = None) -> None:
        """End the recording; the process goes on unrecorded. Later calls do nothing."""
        session, self._session = self._session, None
        if session is None:
            return
        if self._recorder is not None:
            _agent_module("arm").release(error)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if session.leader:
            session.event("exit", code=0 if error is None else 1, signal=None)
        if self._sampler is not None:
            self._sampler.stop()
        if session.leader:
            session.finish()

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop(error)


def record(
    out: str | os.PathLike[str] | None = None,
    *,
    set: Iterable[str] = (),
    stop_after: int | None = None,
    trace: bool = True,
    stacks: bool = True,
    include_sensitive: bool = False,
) -> Recording:
    """A context manager that records what this process trains inside it.

    ``out`` is the bundle's folder (default ``tracelens-runs/<UTC time>-<script>``), ``set`` the texts that
    ``--set`` takes; they change the DataLoaders that are built inside. Every rank calls it: one bundle.
    """
    argv = tuple(sys.orig_argv) if sys.orig_argv else ("python",)
    options = RecordOptions(
        command=argv,
        out=None if out is None else Path(out),
        set=tuple(set),
        stop_after=stop_after,
        trace=trace,
        stacks=stacks,
        include_sensitive=include_sensitive,
    )
    return Recording(options)
