"""A bundle's own account of the run: how the job ended, what is missing and why, which ``--set`` took effect."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracelens.bundle import Bundle, RankFiles, Record, read_lines

LIMIT = 8
_LOGS = ("process.jsonl", "steps.jsonl", "loader.jsonl", "windows.jsonl")
_NUMBER = re.compile(r"\d+")
_SUDDEN = "as after a kill, a crash or os._exit; up to half a second of its lines is missing"


def account(bundle: Bundle) -> tuple[str, ...]:
    """One line each, the most important first; empty for a run that ended well and whole. Of what is missing, as
    many as fit into ``LIMIT``; how it ended and what became of the settings is always said."""
    first = dict.fromkeys([*_ending(bundle), *_lost_ranks(bundle), *_settings(bundle)])
    rest = dict.fromkeys([*_damaged(bundle), *_warnings(bundle), *_windows(bundle), *_sampler(bundle)])
    lines = [*first, *rest]
    if len(lines) <= LIMIT:
        return tuple(lines)
    kept = max(LIMIT - 1, len(first))
    more = len(lines) - kept
    return (
        (*lines[:kept], f"{more} more such note{'s' * (more > 1)} can be read in the bundle's logs")
        if more
        else tuple(lines)
    )


# -- the end -----------------------------------------------------------------------------------------


def _ending(bundle: Bundle) -> Iterator[str]:
    yield from (
        f"The job was stopped before its first batch: {event.get('message')}."
        for event in bundle.events_of("rejected")
    )
    yield from (
        f"The job was ended by --stop-after after {event['step']} steps."
        for event in bundle.events_of("stop")[:1]
        if event.get("step") is not None
    )
    if not bundle.ranks and not bundle.events_of("warning"):
        yield "No training process left anything in this bundle."
    exits = bundle.events_of("exit")
    if not exits:
        yield (
            "The recording has no end: the job still runs, or it was killed together with its recorder"
            f"{_last_step(bundle.ranks)}."
        )
        return
    ended = next((event for event in exits if event.get("code")), exits[-1])
    errors = bundle.events_of("exception")
    if errors:
        yield from _grouped((_raised(event, bundle), event.get("rank")) for event in errors)
    elif ended.get("code") and not bundle.events_of("rejected"):
        yield f"The job did not end well: {_code(ended)}{_last_step(bundle.ranks)}."


def _raised(event: Record, bundle: Bundle) -> str:
    kind = str(event.get("type"))
    if kind == "KeyboardInterrupt":
        return "The training was interrupted (Ctrl-C)."
    message = " ".join(str(event.get("message") or "").split())
    shown = message if len(message) <= 200 else f"{message[:200].rstrip()} ..."
    steps = next((len(rank.steps) for rank in bundle.ranks if rank.rank == event.get("rank")), None)
    after = "" if steps is None else f" after {steps} recorded steps"
    return f"The training ended with {kind}{after}{f': {shown}' if shown else ''}."


def _code(event: Record) -> str:
    """How a command ended, in words: its signal where one ended it, also one that a shell turned into 128 + n."""
    code, number = int(event["code"]), event.get("signal")
    if number is None and code <= 128:
        return f"exit code {code}"
    name = _signal_name(int(number) if number is not None else code - 128)
    if name is None:
        return f"exit code {code}"
    why = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"{name} ended it{why}" if number is not None else f"exit code {code} ({name}{why})"


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _last_step(ranks: Sequence[RankFiles]) -> str:
    last = max(
        (rank.steps[-1] for rank in ranks if rank.steps), key=lambda step: step.get("t1") or 0, default=None
    )
    if last is None or not last.get("t1"):
        return ", and no step was recorded"
    when = datetime.fromtimestamp(last["t1"] / 1e9, UTC)
    return f"; the last recorded step, {last.get('step')}, ended {when:%Y-%m-%d %H:%M:%S} UTC"


def _lost_ranks(bundle: Bundle) -> Iterator[str]:
    """Training processes without a last word though the job is over."""
    if bundle.exit is None:
        return
    spoke = {
        event.get("pid") for kind in ("done", "exception", "rejected") for event in bundle.events_of(kind)
    }
    lost = {event.get("rank") for event in bundle.events_of("agent") if event.get("pid") not in spoke}
    counts = {rank.rank: len(rank.steps) for rank in bundle.ranks}
    numbers = sorted(number for number in lost if isinstance(number, int))
    if len(numbers) == 1:
        steps = counts.get(numbers[0], 0)
        yield f"The process of rank {numbers[0]} ended suddenly after {steps} recorded steps, {_SUDDEN}."
    elif numbers:
        each = ", ".join(f"{number}: {counts.get(number, 0)}" for number in numbers[:8])
        others = ", ..." if len(numbers) > 8 else ""
        yield f"The processes of {_named(numbers)} ended suddenly, {_SUDDEN} (recorded steps: {each}{others})."


def _damaged(bundle: Bundle) -> Iterator[str]:
    """Files that are not there or not whole though others show that they were written."""
    for rank in bundle.ranks:
        if rank.windows and not rank.steps:
            yield (
                f"The step log of rank {rank.rank} is missing or unreadable: only the profiled steps are judged,"
                " which the profiler may have slowed down."
            )
        elif rank.windows:
            recorded = max((n for w in rank.windows if isinstance(n := w.get("last_step"), int)), default=-1)
            logged = max(
                (n for step in rank.steps if isinstance(n := step.get("step"), int)), default=recorded
            )
            if logged < recorded:
                yield (
                    f"The step log of rank {rank.rank} ends at step {logged}, though step {recorded} was profiled:"
                    " what came after is missing."
                )
    paths = [bundle.path / "events.jsonl", *(rank.folder / name for rank in bundle.ranks for name in _LOGS)]
    torn = {
        path.relative_to(bundle.path).as_posix(): count for path in sorted(paths) if (count := _torn(path))
    }
    if torn:
        which = ", ".join(f"{name} ({count})" for name, count in torn.items())
        yield f"Lines that are not readable were left out: {which}."


def _torn(path: Path) -> int:
    """Lines without an object, not counting a last one that a kill cut."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return 0
    return sum(
        1 for line in lines[:-1] if line.strip() and not (line.startswith(b"{") and line.endswith(b"}"))
    )


# -- settings ----------------------------------------------------------------------------------------


def _settings(bundle: Bundle) -> Iterator[str]:
    """What became of every ``--set``, the loaders that it did the same to in one line."""
    events = bundle.events_of("set")
    stopped = bool(bundle.events_of("rejected"))  # says why already
    ranks_of = {event.get("pid"): event.get("rank") for event in bundle.events_of("agent")}
    names = {_place(event)[1:]: event["dataset"] for event in events if event.get("dataset")}
    idle = {_place(event) for event in events if event.get("effective") is False}
    found: dict[tuple[str, str], dict[Any, dict[str, None]]] = {}
    for event in events:
        applied, reason = event.get("applied"), event.get("reason")
        if event.get("effective") is False:
            said, tail = "has no effect", f": {reason}"
        elif applied and _place(event) in idle:
            continue
        elif applied:
            said, tail = "took effect", f": {_shown(event.get('before'))} -> {_shown(event.get('after'))}"
        elif stopped:
            continue
        else:
            said, tail = "was not applied", f": {reason or 'no reason was recorded'}"
        what = f"--set {event.get('setting') or event.get('key')} {said}"
        loaders = found.setdefault((what, tail), {}).setdefault(
            ranks_of.get(event.get("pid"), event.get("rank")), {}
        )
        if event.get("loader") is not None:
            dataset = names.get(_place(event)[1:])
            name = f" ({dataset})" if dataset else ""
            loaders[f"{event['loader']}{name}"] = None
    yield from _grouped(
        (f"{what}{_on(list(loaders))}{tail}.", rank)
        for (what, tail), ranks in found.items()
        for rank, loaders in ranks.items()
    )


def _place(event: Record) -> tuple[Any, ...]:
    return event.get("setting"), event.get("loader"), event.get("pid")


def _on(loaders: Sequence[str]) -> str:
    if not loaders:
        return ""
    if len(loaders) == 1:
        return f" on loader {loaders[0]}"
    shown = [*loaders[:4], f"{len(loaders) - 4} more"] if len(loaders) > 4 else loaders
    return f" on loaders {', '.join(shown[:-1])} and {shown[-1]}"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


# -- what is missing ---------------------------------------------------------------------------------


def _warnings(bundle: Bundle) -> Iterator[str]:
    """The recorder's warnings; those that differ in numbers alone (a window's, a process's) are said once."""
    kept: dict[str, str] = {}
    others: dict[str, set[str]] = {}
    told = {f"--set {event.get('setting')}" for event in bundle.events_of("set")}
    for event in bundle.events_of("warning"):
        message = " ".join(str(event.get("message") or "").split())
        if not message or message.partition(" was not applied")[0] in told:
            continue
        key = _NUMBER.sub("#", message)
        if message != kept.setdefault(key, message):
            others.setdefault(key, set()).add(message)
    for key, message in kept.items():
        more = f" (and {len(others[key])} more like it)" if key in others else ""
        yield f"{message[:1].upper()}{message[1:].rstrip('.')}{more}."


def _windows(bundle: Bundle) -> Iterator[str]:
    """Profiler windows that were cut short, and those inside which a process died."""
    lines: list[tuple[str, int | None]] = []
    for rank in bundle.ranks:
        for window in rank.windows:
            if window.get("complete") or window.get("window") is None:
                continue
            what = f"Profiler window {window.get('window')} ({window.get('kind')}, from step {window.get('first_step')})"
            if window.get("file") or window.get("reason"):
                kept = "its trace holds what came before" if window.get("file") else "its trace is missing"
                lines.append(
                    (f"{what} was cut short ({window.get('reason') or 'unknown why'}); {kept}.", rank.rank)
                )
            elif bundle.exit is None:
                lines.append((f"{what} is not closed: no trace of it yet, or never.", rank.rank))
            else:
                lines.append((f"{what} has no trace: the process was killed inside it.", rank.rank))
    yield from _grouped(lines)


def _sampler(bundle: Bundle) -> Iterator[str]:
    path = bundle.sampler_log
    for line in read_lines(path) if path is not None else ():
        if line.get("event") == "gpu_lost":
            yield f"GPU {line.get('uuid')} was lost while the job ran, its samples end there: {line.get('reason')}."
        elif line.get("event") == "error":
            yield f"The sampler of the {line.get('where')} timeline failed, which may have gaps: {line.get('message')}."


def _grouped(lines: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Every text once; where several ranks said it, or another rank did not, with the ranks."""
    by_text: dict[str, list[int]] = {}
    for text, rank in lines:
        known = by_text.setdefault(text, [])
        if isinstance(rank, int) and rank not in known:
            known.append(rank)
    for text, ranks in by_text.items():
        alone = len(ranks) < 2 and ranks in ([], [0])
        yield text if alone else f"{text.rstrip('.')} ({_named(sorted(ranks))})."


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(str(rank) for rank in ranks[:-1])} and {ranks[-1]}"
