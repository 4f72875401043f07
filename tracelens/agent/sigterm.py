"""SIGTERM while a window is open: export it, then end as the signal would have ended the process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any, Callable, Iterator

from .runtime import Agent


class Sigterm:
    """A handler that is there only between ``catch`` and ``release``, and only where the job has none."""

    def __init__(self, agent: Agent, close: Callable[[bool, str], None]) -> None:
        self._agent = agent
        self._close = close
        self._handler: Any = None
        self._held = False
        self._waiting = False

    def catch(self) -> None:
        """A window opened."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._handler = self._on_sigterm
            signal.signal(signal.SIGTERM, self._handler)

    def release(self) -> None:
        """It is closed. A handler that the job set meanwhile stays."""
        handler, self._handler = self._handler, None
        if handler is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While a window is closed and exported: a signal that comes now waits for the end of it."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.release()
            if self._waiting:
                self._end()

    def _on_sigterm(self, number: int, frame: Any) -> None:
        if self._held:
            self._waiting = True
            return
        if os.getpid() == self._agent.pid:
            try:
                self._close(False, "SIGTERM")
            except Exception as error:  # the signal must end the process, whatever the export does
                self._agent.fail("SIGTERM", error)
        self._end()

    def _end(self) -> None:
        self._agent.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
