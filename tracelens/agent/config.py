"""What the launcher tells the agent, through two environment variables."""

from __future__ import annotations

import json
import os
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

BUNDLE = "TRACELENS_BUNDLE"
OPTIONS = "TRACELENS_OPTIONS"


class Setting(NamedTuple):
    """One ``--set``: ``loader`` is a dataset class name, a construction index, or None for every loader."""

    loader: Optional[str]
    key: str
    value: Any

    @property
    def text(self) -> str:
        """As the user would type it."""
        prefix = "" if self.loader is None else self.loader + "."
        return "{}{}={}".format(prefix, self.key, self.value)


class Config(NamedTuple):
    """Where to write, and what was asked for."""

    bundle: str
    settings: List[Setting]
    stop_after: Optional[int] = None
    probe: Optional[float] = None  # seconds for measuring the loader alone before the first batch
    trace: bool = True
    stacks: bool = True
    sensitive: bool = False
    home: str = ""
    host: str = ""
    user: str = ""
    sampler: Sequence[str] = ()  # how to start one, with our own interpreter
    source: str = ""  # where that interpreter finds tracelens


def encode(config: Config) -> Mapping[str, str]:
    """The environment variables that carry ``config`` to the job."""
    options = config._asdict()
    bundle = options.pop("bundle")
    options["settings"] = [list(setting) for setting in config.settings]
    return {BUNDLE: bundle, OPTIONS: json.dumps(options, separators=(",", ":"))}


def from_environment() -> Optional[Config]:
    """What the launcher asked for; None where this process is not being recorded."""
    bundle = os.environ.get(BUNDLE)
    if not bundle:
        return None
    options = json.loads(os.environ.get(OPTIONS) or "{}")
    options["settings"] = [Setting(*item) for item in options.get("settings", [])]
    known = set(Config._fields)
    return Config(bundle=bundle, **{key: value for key, value in options.items() if key in known})
