"""``--set``: DataLoader arguments changed as the loader is built, and the proof that they took effect."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
from typing import Any, Dict, List, NoReturn, Optional, Set, Tuple

from .config import Setting
from .runtime import Agent
from .sharding import shards

EXIT_REJECTED = 2  # a bad --set is bad usage


class Change:
    """One setting on one loader: what it was, and why it could not be applied if so."""

    def __init__(self, setting: Setting, before: Any, reason: Optional[str]) -> None:
        self.setting = setting
        self.before = before
        self.reason = reason


class Settings:
    """The settings of this run and what became of them in this process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._wanted = [setting for setting in agent.config.settings if setting.key != "num_threads"]
        self._applied: Set[Setting] = set()
        self._said: Set[str] = set()
        self._skipped: Dict[int, List[Tuple[Change, str]]] = {}

    def set_threads(self) -> None:
        """``num_threads``: right after torch's import; reported when this process turns out to train."""
        torch = self._agent.torch
        for setting in self._agent.config.settings:
            if setting.key == "num_threads":
                before = torch.get_num_threads()
                torch.set_num_threads(setting.value)
                after = torch.get_num_threads()
                self._hold_threads(torch)
                self._agent.on_activate.append(functools.partial(self._threads_event, setting, before, after))

    @staticmethod
    def _hold_threads(torch: Any) -> None:
        """What the command line set stays, whatever the script asks for later. Workers and ranks that multiprocessing
        started set their own: torch gives each worker one thread."""
        original = torch.set_num_threads

        @functools.wraps(original)
        def set_num_threads(number: int) -> None:
            started = multiprocessing.parent_process() is not None
            if started or not isinstance(number, int) or not 0 < number < 2**31:
                original(number)  # torch's own error for what it does not take

        torch.set_num_threads = set_num_threads

    def _threads_event(self, setting: Setting, before: int, after: int) -> None:
        now = self._agent.torch.get_num_threads()
        reason = None if now == after else "the script set {} threads later".format(now)
        self._event(None, setting.key, setting, before, now, now == setting.value, reason)

    def _event(
        self, loader: Optional[int], key: str, setting: Setting, before: Any, after: Any, applied: bool,
        reason: Optional[str], **more: Any
    ) -> None:  # fmt: skip
        self._agent.event(
            "set", loader=loader, key=key, value=setting.value, setting=setting.text, before=_plain(before),
            after=_plain(after), applied=applied, reason=reason, **more
        )  # fmt: skip

    # -- while a loader is built ---------------------------------------------------------------------

    def change(
        self,
        index: int,
        signature: inspect.Signature,
        loader: Any,
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Tuple[Tuple[Any, ...], Dict[str, Any], List[Change]]:
        """The arguments to build loader ``index`` with, and what is changed in them."""
        if not self._wanted:
            return args, kwargs, []
        try:
            bound = signature.bind(loader, *args, **kwargs)
        except TypeError:  # torch says it better
            return args, kwargs, []
        dataset = bound.arguments.get("dataset")
        name = type(dataset).__name__
        chosen: Dict[str, Setting] = {}
        for setting in self._wanted:  # those that name a loader come last, and win
            if setting.loader in (None, name, str(index)):
                chosen[setting.key] = setting
        changes: List[Change] = []
        for setting in chosen.values():
            parameter = signature.parameters.get(setting.key)
            if parameter is None:
                self._reject(index, name, setting, None, "this torch's DataLoader has no such argument")
            before = bound.arguments.get(setting.key, parameter.default)
            change = Change(setting, before, self._obstacle(setting, bound.arguments, dataset, before))
            changes.append(change)
            if change.reason is None:
                bound.arguments[setting.key] = setting.value
            elif setting.loader is not None:
                self._reject(index, name, setting, before, change.reason)
        return bound.args[1:], bound.kwargs, changes

    @staticmethod
    def _obstacle(setting: Setting, arguments: Dict[str, Any], dataset: Any, before: Any) -> Optional[str]:
        """Why the setting must not be applied to this loader."""
        if setting.key in ("batch_size", "drop_last"):
            if arguments.get("batch_sampler") is not None:
                return "the loader has a batch sampler, which decides {}".format(setting.key)
            if arguments.get("batch_size", 1) is None:
                return "the loader does not batch (batch_size=None)"
        if setting.key == "num_workers" and setting.value > (before or 0):
            sharded = shards(dataset, arguments.get("worker_init_fn"), setting.value)
            if sharded is False:
                return (
                    "its IterableDataset shows no sharding by worker (no get_worker_info), so that every worker "
                    "would deliver the same samples"
                )
        return None

    def built(self, index: int, loader: Any, changes: List[Change]) -> None:
        """The loader exists: read its attributes back and say what took effect."""
        name = type(getattr(loader, "dataset", None)).__name__
        for change in changes:
            setting = change.setting
            if change.reason is not None:
                self._skipped.setdefault(index, []).append((change, name))
                self._event(
                    index,
                    setting.key,
                    setting,
                    change.before,
                    change.before,
                    False,
                    change.reason,
                    dataset=name,
                )
                continue
            after = getattr(loader, setting.key, None)
            if setting.key == "multiprocessing_context":
                took = (
                    setting.value is None
                    or getattr(after, "get_start_method", lambda: None)() == setting.value
                )
            else:
                took = after == setting.value or (setting.key == "prefetch_factor" and setting.value is None)
            if not took:
                self._reject(
                    index, name, setting, change.before, "the loader has {} afterwards".format(_plain(after))
                )
            self._applied.add(setting)
            self._event(index, setting.key, setting, change.before, after, True, None, dataset=name)

    def refused(self, index: int, dataset: Any, changes: List[Change], error: Exception) -> None:
        """torch did not accept the changed arguments: stop the job."""
        made = [change for change in changes if change.reason is None]
        if made:
            texts = " ".join("--set " + change.setting.text for change in made)
            message = "torch rejects {} for loader {} ({}): {}".format(
                texts, index, type(dataset).__name__, error
            )
            for change in made:
                self._event(
                    index, change.setting.key, change.setting, change.before, change.before, False, str(error)
                )
            self._stop(message)

    def before_first_batch(self, index: int) -> None:
        """A loader that a setting for all loaders had to pass over must not run if no other loader took it."""
        for change, name in self._skipped.pop(index, ()):
            text, reason = change.setting.text, change.reason
            if change.setting not in self._applied:
                self._stop(
                    "--set {} cannot be applied to loader {} ({}): {}".format(text, index, name, reason)
                )
            self._say_once(
                "--set {} is not applied to loader {} ({}): {}".format(text, index, name, reason), text
            )

    def first_iterator(self, index: int, pinned: bool) -> None:
        """Whether pinning has an effect is known when the first iterator exists."""
        for setting in self._wanted:
            if setting.key == "pin_memory" and setting in self._applied and setting.value and not pinned:
                reason = "no accelerator in this process"
                self._event(index, setting.key, setting, True, True, True, reason, effective=False)
                self._say_once("--set {}: {}: pin_memory has no effect here".format(setting.text, reason))

    def _say_once(self, message: str, about: Optional[str] = None) -> None:
        """A job that builds a loader an epoch is told about the first of them."""
        if (about or message) not in self._said:
            self._said.add(about or message)
            self._agent.say(message)

    def _reject(self, index: int, name: str, setting: Setting, before: Any, reason: str) -> NoReturn:
        self._event(index, setting.key, setting, before, before, False, reason, dataset=name)
        self._stop(
            "--set {} cannot be applied to loader {} ({}): {}".format(setting.text, index, name, reason)
        )

    def _stop(self, message: str) -> NoReturn:
        self._agent.event("rejected", message=self._agent.redactor.text(message))
        self._agent.say(message + "; the job is stopped before its first batch")
        raise SystemExit(EXIT_REJECTED)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    method = getattr(value, "get_start_method", None)
    return method() if method is not None else type(value).__name__
