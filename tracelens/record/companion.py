"""The sampler process beside the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tracelens.record.session import Session, inject_dir


class Sampler:
    """The sampler process: started beside the job, stopped with it, and never a reason for the job to fail."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def start(self, pid: int) -> None:
        """Sample the process tree below ``pid``."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TRACELENS_") and name != "PYTHONPATH"
        }
        inject = str(inject_dir())
        own = str(Path(__file__).resolve().parent.parent.parent)
        rest = [
            entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != inject
        ]
        environment["PYTHONPATH"] = os.pathsep.join([own, *rest])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tracelens.record.sampler", str(self._session.bundle), "--pid", str(pid)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env=environment, cwd="/",
            )  # fmt: skip
        except OSError as error:
            self._tell(f"the sampler could not be started ({error}); CPU and GPU timelines will be missing")

    def check(self, job: subprocess.Popen[bytes]) -> None:
        """A sampler that ended while the job runs is reported once (it ends by itself just after the job)."""
        if self._process is not None and self._process.poll() is not None and job.poll() is None:
            self._tell(
                f"the sampler ended early (code {self._process.returncode}); "
                "CPU and GPU timelines stop here, the job goes on"
            )

    def _tell(self, message: str) -> None:
        if not self._told:
            self._told = True
            self._session.warn("sampler", message)

    def stop(self) -> None:
        """After the job: let it write its last lines, then end it."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
