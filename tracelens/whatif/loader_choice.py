"""Which settings of a DataLoader to choose, by the rule of design section 7 over what the loader's model predicts: where a
change gains more than 2 %, the smallest value within 2 % of the best, otherwise today's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracelens.whatif.loader_inputs import LoaderInputs, LoaderSettings
from tracelens.whatif.loader_model import TOLERANCE, LoaderCurve, Prediction, predict, speedup_interval, sweep


@dataclass(frozen=True, slots=True)
class Limits:
    """What num_workers must respect. Bytes; None where unknown, which limits nothing.

    Every worker holds ``worker_rss`` of its own; ``prefetch_factor`` batches a worker wait in /dev/shm, and
    as many again in pinned memory. ``readers``: how many may read at once; storage that serves today's workers
    need not serve many more.
    """

    cores: float | None = None
    ram_free: float | None = None
    worker_rss: float | None = None
    shm_bytes: float | None = None
    bytes_per_batch: float = 0.0
    shards: bool | None = None
    readers: int | None = None

    def reason_against(self, settings: LoaderSettings, today: int = 0) -> str | None:
        """Why settings are not allowed: ``cores``, ``storage``, ``ram``, ``shm`` or ``shards``; None where they are.

        Fewer workers than ``today`` are no reason against cores, however few these are.
        """
        workers = settings.num_workers
        if workers == 0:
            return None
        if self.cores is not None and workers > max(1, math.floor(self.cores + 1e-9), today - 1):
            return "cores"
        if self.readers is not None and workers > self.readers:
            return "storage"
        waiting = workers * (settings.prefetch_factor + 1) * self.bytes_per_batch
        if self.shm_bytes is not None and waiting > 0.8 * self.shm_bytes:
            return "shm"
        pinned = waiting if settings.pin_memory else 0.0
        if (
            self.ram_free is not None
            and workers * (self.worker_rss or 0.0) + waiting + pinned > 0.8 * self.ram_free
        ):
            return "ram"
        if self.shards is False and workers > 1:
            return "shards"
        return None


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen prediction beside today's; ``limited_by`` is what forbids a faster one."""

    current: Prediction
    chosen: Prediction
    changed: bool
    limited_by: str | None = None

    @property
    def speedup(self) -> float:
        """Ratio of mean throughputs, chosen to today's."""
        return self.current.speedup_to(self.chosen)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of the speed-up; what both predictions share (today's own level) cancels."""
        return speedup_interval(self.current, self.chosen)


def choose(curve: LoaderCurve, current: int, limits: Limits | None = None) -> Choice:
    """The rule of design section 7 over a curve that contains today's value.

    Where the best allowed value gains more than 2 %: the smallest within 2 % of it; otherwise today's value.
    Values are compared by ``expected_ms``, so that one worker more is taken where contention is uncertain.
    """
    bounds = limits or Limits()
    today = curve.at(current)
    allowed = [p for p in curve.points if p is today or bounds.reason_against(p.settings, current) is None]
    best = min(p.expected_ms for p in allowed)
    barred = [p for p in curve.points if p not in allowed and p.expected_ms < best * (1 - TOLERANCE)]
    limited_by = bounds.reason_against(min(barred, key=lambda p: p.expected_ms).settings) if barred else None
    if today.expected_ms <= best * (1 + TOLERANCE):
        return Choice(today, today, False, limited_by)
    chosen = next(p for p in allowed if p.expected_ms <= best * (1 + TOLERANCE))
    return Choice(today, chosen, chosen is not today, limited_by)


@dataclass(frozen=True, slots=True)
class Advice:
    """All loader settings worth changing, evaluated together: today's and the advised prediction."""

    current: Prediction
    advised: Prediction
    curve: LoaderCurve
    limited_by: str | None = None
    gains: Mapping[str, float] = field(default_factory=dict)

    @property
    def changes(self) -> dict[str, int | bool]:
        """The settings that differ from today's."""
        old, new = self.current.settings, self.advised.settings
        names = ("num_workers", "prefetch_factor", "persistent_workers")
        return {name: getattr(new, name) for name in names if getattr(new, name) != getattr(old, name)}


def advise(
    inputs: LoaderInputs,
    settings: LoaderSettings,
    limits: Limits | None = None,
    num_workers: Sequence[int] | None = None,
    *,
    seed: int = 0,
) -> Advice:
    """Choose num_workers, then persistent_workers and prefetch_factor, each only for a gain above 2 %.

    ``gains``: speed-up that each change adds after the ones before it.
    """
    bounds = limits or Limits(cores=inputs.machine.cores)
    values = list(candidates(bounds.cores, settings.num_workers) if num_workers is None else num_workers)
    curve = sweep(inputs, settings, [*values, settings.num_workers], seed=seed)
    choice = choose(curve, settings.num_workers, bounds)
    best, limited_by = choice.chosen, choice.limited_by
    gains: dict[str, float] = {"num_workers": choice.speedup} if choice.changed else {}
    short_epoch = inputs.batches_per_epoch is not None and not settings.persistent_workers
    if short_epoch:
        lasting = sweep(
            inputs, settings.replace(persistent_workers=True), [w for w in values if w], seed=seed
        )
        fits = [p for p in lasting.points if bounds.reason_against(p.settings) is None]
        if fits:
            top = min(p.expected_ms for p in fits)
            kept = next(p for p in fits if p.expected_ms <= top * (1 + TOLERANCE))
            if best.expected_ms > kept.expected_ms * (1 + TOLERANCE):
                gains["persistent_workers"] = best.mean_ms / kept.mean_ms
                best = kept
    if best.settings.num_workers and best.wait_ms > TOLERANCE * best.mean_ms:
        deeper = [
            best.settings.replace(prefetch_factor=f) for f in (2, 4, 8) if f > best.settings.prefetch_factor
        ]
        tried = [predict(inputs, s, seed=seed) for s in deeper if bounds.reason_against(s) is None]
        if tried:
            top = min(p.expected_ms for p in tried)
            if best.expected_ms > top * (1 + TOLERANCE):
                found = next(p for p in tried if p.expected_ms <= top * (1 + TOLERANCE))
                gains["prefetch_factor"] = best.mean_ms / found.mean_ms
                best = found
    return Advice(choice.current, best, curve, limited_by, gains)


def candidates(cores: float | None, current: int, most: int = 32) -> tuple[int, ...]:
    """The values of num_workers worth asking about: those that people use, a third to a half apart, up to the cores.

    Where today's are more than the cores, also fewer than today's up to twice the cores: they may wait a lot.
    """
    top = most if cores is None else min(most, max(1, math.floor(cores + 1e-9)))
    reach = max(top, min(current - 1, 2 * top))
    values = {w for w in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if w <= reach} | {top, current}
    return tuple(sorted(values))
