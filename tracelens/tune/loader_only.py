"""``tracelens tune --loader-only -- CMD``: the loader alone at a few worker counts, then a few steps of training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tracelens.bundle import Bundle, is_bundle
from tracelens.ingest.points import LoaderPoints, read_loader_points
from tracelens.tune.journal import open_journal
from tracelens.tune.loop import CommandError, TuneOptions, check
from tracelens.tune.trial import Trial, run_trial

SECONDS = 50.0  # for all counts; with starting and ending the workers it stays below a minute
_STEPS = 40


def loader_only(options: TuneOptions, tell: Callable[[str], None]) -> tuple[Path, LoaderPoints]:
    """The bundle and its points; a resumed folder that has them is not measured again. CommandError."""
    check(options)
    journal = open_journal(options.command, options.resume, "loader")
    for trial in journal.trials():
        found = points_of(trial.bundle)
        if found is not None:
            return trial.bundle, found
    number = journal.next_number()
    tell(
        f"measuring the loader alone, up to {SECONDS:.0f} s, then {_STEPS} steps, into {journal.folder / f'run{number}'}"
    )
    begin = time.monotonic()
    trial = run_trial(
        number, journal.folder, options.command, (), stop_after=min(options.stop_after, _STEPS),
        seconds=60 * options.max_minutes, probe=SECONDS,
    )  # fmt: skip
    journal.add(trial)
    found = points_of(trial.bundle)
    if found is None:
        raise CommandError(f"the loader could not be measured: {_reason(trial)} (its output: {trial.log})")
    tell(f"done in {time.monotonic() - begin:.0f} s")
    return trial.bundle, found


def points_of(bundle: Path) -> LoaderPoints | None:
    """The points of the first rank that has some."""
    if not is_bundle(bundle):
        return None
    ranks = (read_loader_points(rank.folder) for rank in Bundle.open(bundle).ranks)
    return next((points for points in ranks if points is not None), None)


def _reason(trial: Trial) -> str:
    if trial.code and not trial.cut:
        return trial.why_failed()
    return "the command iterated over no DataLoader of torch with gradients on"
