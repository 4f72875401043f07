"""A bundle's own account of the run: how the job ended, what is missing and why, which ``--set`` took effect."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from tracelens.bundle import Bundle, RankFiles, Record, read_lines

LIMIT = 8
_NUMBER = re.compile(r"\d+")
_SUDDEN = "as after kill -9, a crash or os._exit; up to half a second of its lines is missing"


def account(bundle: Bundle) -> tuple[str, ...]:
    """One line each, the most important first; at most ``LIMIT``. Empty for a run that ended well and whole."""
    lines = list(
        dict.fromkeys(
            [
                *_ending(bundle),
                *_lost_ranks(bundle),
                *_settings(bundle),
                *_warnings(bundle),
                *_windows(bundle),
                *_sampler(bundle),
            ]
        )
    )
    if len(lines) > LIMIT:
        more = len(lines) - LIMIT + 1
        lines = [*lines[: LIMIT - 1], f"{more} more such notes are in the bundle's events.jsonl"]
    return tuple(lines)


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
        yield from _grouped(
            (_raised(event, bundle), event.get("rank")) for event in errors
        )
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
    spoke = {event.get("pid") for kind in ("done", "rejected") for event in bundle.events_of(kind)}
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


# -- settings ----------------------------------------------------------------------------------------


def _settings(bundle: Bundle) -> Iterator[str]:
    stopped = bool(bundle.events_of("rejected"))  # says why already
    lines = []
    for event in bundle.events_of("set"):
        what = f"--set {event.get('setting') or event.get('key')}"
        where = _loader(event)
        reason = event.get("reason")
        if event.get("effective") is False:
            text = f"{what} has no effect{where}: {reason}."
        elif event.get("applied"):
            change = f"{_shown(event.get('before'))} -> {_shown(event.get('after'))}"
            text = f"{what} took effect{where}: {change}."
        elif not stopped:
            text = f"{what} was not applied{where}: {reason or 'no reason was recorded'}."
        else:
            continue
        lines.append((text, event.get("rank")))
    yield from _grouped(lines)


def _loader(event: Record) -> str:
    if event.get("loader") is None:
        return ""
    name = f" ({event['dataset']})" if event.get("dataset") else ""
    return f" on loader {event['loader']}{name}"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


# -- what is missing ---------------------------------------------------------------------------------


def _warnings(bundle: Bundle) -> Iterator[str]:
    """The recorder's warnings; those that differ in numbers alone (a window's, a process's) are said once."""
    kept: dict[str, tuple[str, int | None]] = {}
    alike: dict[str, int] = {}
    said = {" ".join(line.rstrip(".").split()) for line in _settings(bundle)}
    for event in bundle.events_of("warning"):
        message = " ".join(str(event.get("message") or "").split())
        if not message or message in said:
            continue
        key = _NUMBER.sub("#", message)
        if key in kept:
            alike[key] = alike.get(key, 0) + (message != kept[key][0])
        else:
            kept[key] = (message, event.get("rank"))
    for key, (message, _) in kept.items():
        more = f" (and {alike[key]} more like it)" if alike.get(key) else ""
        yield f"{message[:1].upper()}{message[1:]}{more}" + ("" if message.endswith(".") and not more else ".")


def _windows(bundle: Bundle) -> Iterator[str]:
    """Profiler windows that were cut short, and those inside which a process died."""
    lines: list[tuple[str, int | None]] = []
    for rank in bundle.ranks:
        for window in rank.windows:
            if window.get("complete"):
                continue
            what = f"Profiler window {window.get('window')} ({window.get('kind')}, from step {window.get('first_step')})"
            if window.get("file") or window.get("reason"):
                kept = "its trace holds what came before" if window.get("file") else "its trace is missing"
                lines.append((f"{what} was cut short ({window.get('reason') or 'unknown why'}); {kept}.", rank.rank))
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
