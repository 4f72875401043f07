"""How fast two threads run on neighbouring CPUs that may be the two hyper-threads of one core.

Virtual machines hide which of their CPUs share a core, and two busy hyper-threads each run at 0.55 to 0.75 of the speed
of one alone, so that "two cores free" promises up to twice too much. Measured before the job starts, in a tenth of a
second (three where a core seems to be shared, and then once more when it has ended), because nothing in the job's own
timeline shows it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from tracelens.bundle import UNSHARED

_SPIN_S = 0.012
_START_S = 0.003  # for all children to be there
_TRIES, _MOST_TRIES = 3, 10
_LEAST = 0.55  # below, something else took their time: two hyper-threads do a tenth more than one at least
_CROWDED = 0.3  # of the time


def pair_speed() -> float | None:
    """Speed of each of two busy CPUs against one that is busy alone, at most 1; the least of the likely pairs.

    None where only one CPU may be used, where others keep them busy, or where this system cannot pin a thread.
    """
    if not hasattr(os, "sched_getaffinity") or not hasattr(os, "fork"):
        return None
    pairs = _pairs(sorted(os.sched_getaffinity(0)))
    try:
        found = [_measure(pair) for pair in pairs]
    except OSError:
        return None
    known = [speed for speed in found if speed is not None]
    return round(min(known), 3) if known else None


def _pairs(allowed: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs worth asking about: known siblings; else the neighbour and the CPU half the list away."""
    if len(allowed) < 2:
        return []
    first = allowed[0]
    siblings = [cpu for cpu in _siblings(first) if cpu in allowed and cpu != first]
    others = siblings[:1] or [allowed[1], allowed[len(allowed) // 2]]
    return [(first, other) for other in dict.fromkeys(others)]


def _siblings(cpu: int) -> list[int]:
    """The CPUs that the kernel says share a core with this one (thread_siblings_list: 0,8 or 0-1)."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    found: list[int] = []
    try:
        for part in path.read_text("ascii").strip().split(","):
            low, _, high = part.partition("-")
            found += range(int(low), int(high or low) + 1)
    except (OSError, ValueError):
        return []
    return found


def _measure(pair: tuple[int, int]) -> float | None:
    """Best of both against best of one; None where others kept these CPUs busy meanwhile.

    What disturbs a try, a neighbour on the same hardware among it, slows it down and speeds none up. So the best of some
    tries is nearest, and where it looks as if a core were shared, more are made before that is believed.
    """
    alone, both, own = 0.0, 0.0, 0.0
    before, begun = _busy_s(pair), time.monotonic()
    for number in range(_MOST_TRIES):
        if number >= _TRIES and both >= UNSHARED * alone:
            break
        alone = max(alone, float(_rounds(pair[:1])[0]))
        both = max(both, statistics.mean(_rounds(pair)))
        own += 3 * (_SPIN_S + _START_S)
    after, spent = _busy_s(pair), time.monotonic() - begun
    if before is not None and after is not None and after - before - own > _CROWDED * spent:
        return None
    speed = min(both / alone, 1.0) if alone else 0.0
    return speed if speed >= _LEAST else None


def _busy_s(cpus: Sequence[int]) -> float | None:
    """Seconds that these CPUs were busy since boot (/proc/stat: all but idle and iowait)."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text("ascii").splitlines()]
        ticks = sum(
            sum(map(int, words[1:9])) - int(words[4]) - int(words[5]) for words in lines if words[0] in wanted
        )
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def _rounds(cpus: Sequence[int]) -> list[int]:
    """Rounds of a loop that a pinned child does on each CPU within one span of time. Raises OSError where that fails."""
    start = time.monotonic() + _START_S
    children = [_child(cpu, start) for cpu in cpus]
    counts = []
    for pid, reader in children:
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        counts.append(int(answer or b"0"))
    return counts


def _child(cpu: int, start: float) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        os.sched_setaffinity(0, {cpu})
        while time.monotonic() < start:
            pass
        count, value = 0, 1
        while time.monotonic() < start + _SPIN_S:
            for number in range(200):
                value = (value * 31 + number) & 0xFFFF
            count += 1
        os.write(writer, str(count).encode())
    finally:
        os._exit(0)
