"""Ranks on another machine than the launcher's: the sampler there is started by the rank itself."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import List

from .runtime import Agent


def start_sampler(agent: Agent, local_rank: "int | None") -> None:
    """Start a sampler if this machine has none: the launcher runs elsewhere, and this is the first local rank.

    The sampler belongs to the launcher's environment, which the machines must share, as they share the bundle.
    """
    config = agent.config
    if not config.sampler or not config.host or socket.gethostname() == config.host or local_rank:
        return
    command: List[str] = [*config.sampler, config.bundle, "--pid", str(os.getpid())]
    dropped = ("TRACELENS_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    env["PYTHONPATH"] = config.source
    try:
        subprocess.Popen(
            command, env=env, cwd="/", start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        agent.warn("sampler", "no CPU and GPU timelines of this machine: {}".format(error.strerror or error))
