"""The bundle of one recording: where it lies, its manifest, and the sampler beside the job."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens import __version__
from tracelens.agent.config import Config, Setting, encode
from tracelens.agent.redact import Redactor
from tracelens.bundle import UNSHARED, Bundle, append_line, is_bundle, write_manifest
from tracelens.errors import InputError, UsageError
from tracelens.record.options import RecordOptions
from tracelens.record.pairing import pair_speed

RUNS = "tracelens-runs"
SAMPLER = (sys.executable, "-m", "tracelens.record.sampler")
SOURCE = str(Path(__file__).resolve().parent.parent.parent)
RESERVE = ".reserve"  # given up when the disk is full, so that the last lines still find room
_RESERVE_BYTES = 8192
_JOIN_SECONDS = 10.0
_JOIN_WITHIN_NS = 600_000_000_000  # an older bundle of the same name is another run's
_WRAPPERS = {
    "torchrun",
    "accelerate",
    "launch",
    "srun",
    "bash",
    "sh",
    "env",
    "deepspeed",
    "uv",
    "run",
    "poetry",
}


def say(message: str) -> None:
    """One short line on stderr."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tracelens: {message}", file=sys.stderr, flush=True)


def script_name(command: tuple[str, ...]) -> str:
    """What the run is called after: the script, the module behind -m, else the program."""
    for index, word in enumerate(command):
        if word == "-m" and index + 1 < len(command) and command[index + 1] != "torch.distributed.run":
            return _clean(command[index + 1].rpartition(".")[2])
        if word.endswith((".py", ".sh", ".sbatch")):
            return _clean(Path(word).stem)
    program = next(
        (word for word in command if Path(word).name not in _WRAPPERS and word[:1] != "-"), command[0]
    )
    return _clean(Path(program).name)


def _clean(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)[:60] or "run"


@dataclass(frozen=True, slots=True)
class Session:
    """One recording. ``leader`` wrote the manifest and finishes the bundle; others of the same job joined."""

    bundle: Path
    config: Config
    redactor: Redactor
    leader: bool

    def event(self, kind: str, **fields: Any) -> None:
        """A line in events.jsonl; a bundle that cannot be written any more costs the line, not the job."""
        path = self.bundle / "events.jsonl"
        record = {"ts": time.time_ns(), "event": kind, **fields}
        try:
            append_line(path, record)
        except OSError as error:
            if self._give_up_reserve():
                message = f"the bundle could not be written any more ({error.strerror or error}): what came after is missing"
                with contextlib.suppress(OSError):
                    _end_torn_line(path)
                    append_line(path, record)
                    append_line(path, {**record, "event": "warning", "where": "output", "message": message})

    def finish(self) -> None:
        """The last line."""
        self._give_up_reserve()
        self.event("end")

    def _give_up_reserve(self) -> bool:
        try:
            (self.bundle / RESERVE).unlink()
        except OSError:
            return False
        return True

    def warn(self, where: str, message: str) -> None:
        """Keep and show a warning."""
        self.event("warning", where=where, message=self.redactor.text(message))
        say(message)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with what carries the agent into every Python process below."""
        found = dict(base)
        inject = str(inject_dir())
        others = [
            entry for entry in found.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != inject
        ]
        found["PYTHONPATH"] = os.pathsep.join([inject, *others])
        found.update(encode(self.config))
        return found


def _end_torn_line(path: Path) -> None:
    """Close a line that the full disk cut in two, so that the next one stands alone. Raises OSError."""
    with path.open("ab") as file:
        file.write(b"\n")


def inject_dir() -> Path:
    """The folder with our sitecustomize."""
    return Path(__file__).resolve().parent.parent / "agent" / "inject"


def open_session(
    options: RecordOptions, settings: list[Setting], *, within_job: bool = False
) -> Session | None:
    """Make the bundle, or join the one that another task of this Slurm step made.

    An output folder that cannot be written moves the bundle to the temporary folder; None where not even that
    works, and the job then runs unrecorded. UsageError where ``--out`` exists and is not empty.
    ``within_job``: this process is the training itself, which nothing forks or holds up.
    """
    redactor = Redactor(str(Path.home()), socket.gethostname(), _user(), off=options.include_sensitive)
    place, leader = _place(options)
    folder: Path | None = None
    for attempt in (place, Path(tempfile.gettempdir()) / RUNS / place.name):
        try:
            attempt.mkdir(parents=True, exist_ok=True)
            if leader and not is_bundle(attempt):
                write_manifest(attempt, _manifest(options, attempt.name, redactor, within_job))
                with contextlib.suppress(
                    OSError
                ):  # the disk is full already: the bundle says it line by line
                    (attempt / RESERVE).write_bytes(bytes(_RESERVE_BYTES))
            elif not os.access(attempt, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            say(f"cannot write {attempt}: {error.strerror or error}")
            continue
        folder = attempt
        break
    if folder is None:
        say("no place to write to: the job runs unrecorded")
        return None
    config = Config(
        bundle=str(folder.resolve()),
        settings=settings,
        stop_after=options.stop_after,
        probe=options.probe,
        trace=options.trace,
        stacks=options.stacks,
        sensitive=options.include_sensitive,
        home=str(Path.home()),
        host=socket.gethostname(),
        user=_user(),
        sampler=SAMPLER,
        source=SOURCE,
    )
    session = Session(folder.resolve(), config, redactor, leader)
    if folder != place:
        session.warn("output", f"{place} cannot be written, the bundle is {folder}")
    return session


def measure_again(session: Session) -> None:
    """After the job: ask once more how fast two CPUs are together, where a core seemed to be shared or nothing was known.

    Virtual machines have neighbours that come and go, and each of the two looks takes a moment only.
    """
    with contextlib.suppress(InputError, OSError):
        if max(Bundle.open(session.bundle).pair_speeds, default=0.0) < UNSHARED:
            session.event("machine", pair_speed=pair_speed())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""


def _place(options: RecordOptions) -> tuple[Path, bool]:
    """The bundle's path, and whether this process makes it."""
    job = os.environ.get("SLURM_JOB_ID")
    script = script_name(options.command)
    suffix = f"-{script}-{job}" if job else f"-{script}"
    launch, task = launch_id()
    follows = launch is not None and task != 0
    if launch is not None and follows:
        found = _join(options.out, suffix, launch)
        if found is not None:
            return found, False
        say(f"task 0 made no bundle within {_JOIN_SECONDS:.0f} s; task {task} records into its own")
        suffix += f"-task{task}"
    if options.out is not None:
        if follows:
            return options.out.with_name(f"{options.out.name}-task{task}"), True
        if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
            raise UsageError(f"--out {options.out} exists already; name a new folder")
        return options.out, True
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = Path(RUNS) / f"{stamp}{suffix}"
    number = 2
    while folder.exists():
        folder = Path(RUNS) / f"{stamp}{suffix}-{number}"
        number += 1
    return folder, True


def launch_id() -> tuple[str | None, int]:
    """What all tasks of one parallel launch have in common (None for a single process), and this task's number.

    Slurm starts one of us per task; torchrun only where a script records itself through the API.
    """
    variables = os.environ
    if "SLURM_STEP_ID" in variables and variables.get("SLURM_NTASKS", "1") != "1":
        task = variables.get("SLURM_PROCID", "0")
        name = f"slurm-{variables.get('SLURM_JOB_ID')}-{variables['SLURM_STEP_ID']}"
        return name, int(task) if task.isdigit() else 0
    rank = variables.get("RANK", variables.get("LOCAL_RANK", ""))
    if variables.get("WORLD_SIZE", "1") != "1" and rank.isdigit():
        where = [variables.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        return f"ranks-{hashlib.sha256('|'.join(where).encode()).hexdigest()[:12]}", int(rank)
    return None, 0


def _join(out: Path | None, suffix: str, launch: str) -> Path | None:
    """The bundle that task 0 of this launch made, waited for a short while."""
    deadline = time.monotonic() + _JOIN_SECONDS
    oldest = time.time_ns() - _JOIN_WITHIN_NS
    while time.monotonic() < deadline:
        names = [out] if out is not None else sorted(Path(RUNS).glob(f"*{suffix}*"), reverse=True)
        for folder in names:
            try:
                manifest = Bundle.open(folder).manifest
            except InputError:  # not there yet
                continue
            if (manifest.get("job") or {}).get("launch") == launch and manifest.get("created_ns", 0) > oldest:
                return folder
        time.sleep(0.05)
    return None


def _manifest(options: RecordOptions, name: str, redactor: Redactor, within_job: bool) -> dict[str, Any]:
    return {
        "id": name,
        "created_ns": time.time_ns(),
        "tool": {"version": __version__},
        "command": redactor.command(options.command),
        "options": {
            "set": list(options.set),
            "stop_after": options.stop_after,
            "trace": options.trace,
            "stacks": options.stacks,
        },
        "git": git_state(options.command),
        "host": {"pair_speed": None if within_job else pair_speed()},  # it forks
        "redacted": not options.include_sensitive,
        "job": {
            "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
            "slurm_step_id": os.environ.get("SLURM_STEP_ID"),
            "launch": launch_id()[0],
            "world_size_hint": _world_hint(),
        },
    }


def _world_hint() -> int | None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


def git_state(command: tuple[str, ...]) -> dict[str, Any]:
    """Commit and dirty flag of the working folder, else of the script's; None where there is no git."""
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    folders = [Path.cwd()] + ([script.resolve().parent] if script is not None and script.is_file() else [])
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    for folder in folders:
        answers = []
        for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
            try:
                answer = subprocess.run(
                    ["git", "-C", str(folder), *arguments],
                    capture_output=True, text=True, timeout=5, env=environment, check=False, stdin=subprocess.DEVNULL,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired):
                answer = None
            answers.append(answer.stdout.strip() if answer is not None and answer.returncode == 0 else None)
        if answers[0]:
            return {"commit": answers[0], "dirty": None if answers[1] is None else bool(answers[1])}
    return {"commit": None, "dirty": None}
