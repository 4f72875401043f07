"""``tracelens tune -- CMD``: record briefly, apply, record again, while it gains."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracelens.errors import TracelensError, UsageError
from tracelens.tune.journal import Journal, open_journal
from tracelens.tune.search import best_of, next_candidate
from tracelens.tune.trial import Trial, run_trial

MAX_RUNS, MAX_MINUTES, STOP_AFTER = 6, 30.0, 80
_LEAST_SECONDS = 5.0


class CommandError(TracelensError):
    """The command could not be run (exit 4)."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """One ``tune``. ``max_runs`` and ``max_minutes`` bound the whole tuning, resumed parts included in the runs."""

    command: tuple[str, ...]
    max_runs: int = MAX_RUNS
    max_minutes: float = MAX_MINUTES
    stop_after: int = STOP_AFTER
    resume: Path | None = None


@dataclass(frozen=True, slots=True)
class Tuned:
    """All trials of a tuning, and why it ended."""

    folder: Path
    trials: tuple[Trial, ...]
    ended: str

    @property
    def best(self) -> Trial | None:
        """The fastest trial that clearly gained."""
        return best_of(self.trials)


def check(options: TuneOptions) -> None:
    """UsageError for options that make no sense, CommandError for a command that does not exist."""
    if not options.command:
        raise UsageError("name the command to tune after --, for example: tracelens tune -- python train.py")
    if options.max_runs < 1 or options.max_minutes <= 0 or options.stop_after < 10:
        raise UsageError(
            "--max-runs takes a number from 1, --max-minutes one above 0, --stop-after one from 10"
        )
    if shutil.which(options.command[0]) is None:
        raise CommandError(f"command not found: {options.command[0]}")


def tune(options: TuneOptions, tell: Callable[[str], None]) -> Tuned:
    """Run the loop; ``tell`` gets a line of progress. CommandError where the command itself does not run."""
    check(options)
    journal = open_journal(options.command, options.resume)
    tell(f"tuning in {journal.folder}")
    trials = journal.trials()
    deadline = time.monotonic() + 60 * options.max_minutes
    ended = _first(options, journal, trials, deadline, tell)
    while ended is None:
        candidate = next_candidate(trials)
        if candidate is None:
            ended = "nothing is left that --set could improve"
        elif len(trials) >= options.max_runs:
            ended = f"{options.max_runs} runs were made (--max-runs)"
        elif deadline - time.monotonic() < _LEAST_SECONDS:
            ended = f"{options.max_minutes:g} minutes are over (--max-minutes)"
        else:
            told = "" if candidate.promised is None else f", {candidate.promised:.2f}x predicted"
            number = journal.next_number()
            tell(f"run {number}: {' '.join(candidate.sets)}{told}")
            trial = run_trial(
                number, journal.folder, options.command, candidate.sets, stop_after=options.stop_after,
                seconds=deadline - time.monotonic(), promised=candidate.promised,
            )  # fmt: skip
            journal.add(trial)
            trials.append(trial)
            if not trial.ran:
                tell(f"run {number}: {trial.why_failed()}")
    return Tuned(journal.folder, tuple(trials), ended)


def _first(
    options: TuneOptions, journal: Journal, trials: list[Trial], deadline: float, tell: Callable[[str], None]
) -> str | None:
    """The run with the job's own settings, which all others are measured against; not half the time may go into it."""
    if any(trial.ran and not trial.sets for trial in trials):
        return None
    number = journal.next_number()
    tell(f"run {number}: as it is")
    trial = run_trial(
        number, journal.folder, options.command, (), stop_after=options.stop_after,
        seconds=(deadline - time.monotonic()) / 2,
    )  # fmt: skip
    journal.add(trial)
    if not trial.ran:
        raise CommandError(f"the command could not be tuned: {trial.why_failed()} (its output: {trial.log})")
    trials.append(trial)
    return None
