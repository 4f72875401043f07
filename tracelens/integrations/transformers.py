"""``Trainer(callbacks=[TracelensCallback()])`` of Hugging Face: records ``train``, one step an optimizer step."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any

from tracelens.errors import UsageError
from tracelens.record.inprocess import Recording, record


def _base() -> Any:
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ImportError:
        raise UsageError("transformers is not installed here: pip install transformers") from None


class TracelensCallback(_base()):  # type: ignore[misc]
    """Records from the first step of ``train`` to its end; options as of ``tracelens.record``.

    Under ``tracelens record -- CMD`` it only marks the steps.
    """

    def __init__(
        self, out: str | os.PathLike[str] | None = None, *, set: Iterable[str] = (), trace: bool = True, stacks: bool = True
    ) -> None:  # fmt: skip
        self._options: dict[str, Any] = {"out": out, "set": tuple(set), "trace": trace, "stacks": stacks}
        self._recording: Recording | None = None

    @property
    def recording(self) -> Recording | None:
        """The recording of the newest ``train``."""
        return self._recording

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer is about to iterate its loader."""
        self._recording = record(**self._options).start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One optimizer step, all accumulated batches included."""
        if self._recording is not None:
            self._recording.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """``train`` is over."""
        if self._recording is not None:
            self._recording.stop()
