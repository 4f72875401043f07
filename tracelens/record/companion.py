"""The sampler process beside the job."""

from __future__ import annotations

import os
import subprocess

from tracelens.record.session import SAMPLER, SOURCE, Session

# The job's own packages on PYTHONPATH may be another Python's.
_NOT_OURS = ("TRACELENS_", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")


class Sampler:
    """The sampler process: started beside the job, stopped with it, and never a reason for the job to fail."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def start(self, pid: int) -> None:
        """Sample the process tree below ``pid``."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
        environment["PYTHONPATH"] = SOURCE
        try:
            self._process = subprocess.Popen(
                [*SAMPLER, str(self._session.bundle), "--pid", str(pid)],
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
