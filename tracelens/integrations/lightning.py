"""``Trainer(callbacks=[TracelensCallback()])``: records ``fit``, one step an optimizer step."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from tracelens.errors import UsageError
from tracelens.record.inprocess import Recording, record


def _base() -> Any:
    """The Callback class of the Lightning that the job uses: the new package's, else the old one's."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise UsageError("Lightning is not installed here: pip install lightning")


class TracelensCallback(_base()):  # type: ignore[misc]
    """Records from the start of ``fit`` to its end; options as of ``tracelens.record``.

    Under ``tracelens record -- CMD`` it only marks the steps.
    """

    def __init__(
        self, out: str | os.PathLike[str] | None = None, *, set: Iterable[str] = (), trace: bool = True, stacks: bool = True
    ) -> None:  # fmt: skip
        super().__init__()
        self._options: dict[str, Any] = {"out": out, "set": tuple(set), "trace": trace, "stacks": stacks}
        self._recording: Recording | None = None
        self._seen = 0

    @property
    def recording(self) -> Recording | None:
        """The recording of the newest ``fit``."""
        return self._recording

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before the loaders are built, so that ``set`` reaches them."""
        if stage == "fit":
            self._recording = record(**self._options).start()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Steps already taken (a restored checkpoint) are not counted."""
        self._seen = int(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """With accumulated gradients only the batch that stepped ends a step."""
        if self._recording is not None and int(trainer.global_step) != self._seen:
            self._seen = int(trainer.global_step)
            self._recording.step()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """``fit`` is over."""
        if stage == "fit" and self._recording is not None:
            self._recording.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training broke: keep what there is."""
        if self._recording is not None:
            self._recording.stop(exception)
