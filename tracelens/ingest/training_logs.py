"""``read_training_log``: step and data times out of the text that training scripts print.

The formats are data: one regular expression a format, tried in order, with the groups ``time`` or ``rate``,
``data``, ``step``, ``epoch``, ``samples`` (per second) and the units beside them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracelens.errors import InputError
from tracelens.ingest.history import Row, history_rows
from tracelens.ingest.tables import TrainingLog
from tracelens.ingest.text import clock_ns, read_text

_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_N = r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_U = r"(?:ms|us|µs|seconds|secs|sec|s)?"


@dataclass(frozen=True, slots=True)
class _Format:
    framework: str
    averaged: bool  # the printed values are means over many steps
    pattern: re.Pattern[str]


def _format(framework: str, pattern: str, *, averaged: bool = False) -> _Format:
    return _Format(framework, averaged, re.compile(pattern, re.IGNORECASE))


_FORMATS: tuple[_Format, ...] = (
    _format(
        "mmengine",
        rf"Epoch(?:\(train\))?\s*\[(?P<epoch>\d+)\]\s*\[\s*(?P<step>\d+)/\d+\].*?\btime: (?P<time>{_N})"
        rf"(?:.*?\bdata_time: (?P<data>{_N}))?",
        averaged=True,
    ),
    _format(
        "mmengine",
        rf"Iter(?:\(train\))?\s*\[\s*(?P<step>\d+)/\d+\].*?\btime: (?P<time>{_N})"
        rf"(?:.*?\bdata_time: (?P<data>{_N}))?",
        averaged=True,
    ),
    _format(
        "detectron2",
        rf"\biter: (?P<step>\d+) .*?\btime: (?P<time>{_N})(?:.*?\bdata_time: (?P<data>{_N}))?",
        averaged=True,
    ),
    _format(
        "timm",
        rf"Train: (?P<epoch>\d+) \[\s*(?P<step>\d+)/\d+.*?\bTime: (?P<time>{_N})s,\s*(?P<samples>{_N})/s"
        rf"(?:.*?\bData: (?P<data>{_N}))?",
    ),
    _format(
        "torchvision",
        rf"Epoch: \[(?P<epoch>\d+)\]\s+\[\s*(?P<step>\d+)/\d+\].*?\btime: (?P<time>{_N})(?: \({_N}\))?"
        rf"(?:.*?\bdata: (?P<data>{_N}))?",
        averaged=True,
    ),
    _format(
        "imagenet example",
        rf"Epoch:? ?\[(?P<epoch>\d+)\]\s*\[\s*(?P<step>\d+)/\d+\].*?"
        rf"\b(?:Batch )?Time:?\s+(?P<time>{_N})\s*\(\s*{_N}\)"
        rf"(?:.*?\bData(?: Time)?:?\s+(?P<data>{_N})\s*\(\s*{_N}\))?",
    ),
    _format(
        "megatron",
        rf"\biteration\s+(?P<step>\d+)/.*?elapsed time per iteration \((?P<time_unit>ms|s)\): (?P<time>{_N})",
        averaged=True,
    ),
    _format("nanogpt", rf"^iter (?P<step>\d+): .*?\btime (?P<time>{_N})(?P<time_unit>ms|s)\b"),
    _format(
        "hf trainer",
        rf"['\"]train_runtime['\"]: (?:['\"])?{_N}.*?"
        rf"['\"]train_samples_per_second['\"]: (?:['\"])?(?P<samples>{_N})"
        rf".*?['\"]train_steps_per_second['\"]: (?:['\"])?(?P<rate>{_N})",
        averaged=True,
    ),
    _format(
        "keras",
        rf"^\s*(?P<step>\d+)/\d+ .*?(?:{_N}s)? (?P<time>{_N})(?P<time_unit>ms|us|s)/step",
        averaged=True,
    ),
    _format(
        "progress bar",
        rf"(?:Epoch (?P<epoch>\d+))?.*?\b(?P<step>\d+)/\d+ \[[\d:.]+<[\d:?.]+,\s*"
        rf"(?:(?P<rate>{_N}) ?(?:it|batch|step|ba|steps)/s"
        rf"|(?P<time>{_N}) ?s/(?:it|batch|step|ba|steps))",
        averaged=True,
    ),
    _format(
        "progress bar",
        rf"Epoch (?P<epoch>\d+)(?:/\d+)?\s.*?\b(?P<step>\d+)/\d+ "
        rf"\d+:\d\d(?::\d\d)? [•·] [-\d:]+ (?P<rate>{_N})it/s",
        averaged=True,
    ),
)

# Lightning's SimpleProfiler: a table of actions, mean seconds, calls, total seconds
_PROFILED = re.compile(
    rf"^\s*\|\s*(?:\[_\w*TrainingEpochLoop\]\.)?(?P<action>train_dataloader_next|get_train_batch|run_training_batch)"
    rf"\s*\|\s*(?P<mean>{_N})\s*\|\s*(?P<calls>\d+)\s*\|",
    re.MULTILINE,
)

# the general case: two named durations on one line, in either order
_TIME_KEY = re.compile(
    r"(?<![\w-])(?<!elapsed )(?<!total )(?<!epoch )(?<!remaining )(?<!eval )(?<!val )(?<!start )(?<!end )"
    r"(?:(?:iter|iteration|step|batch|train)[ _-]?time|time[ _]per[ _](?:step|iter|iteration|batch)"
    r"|time|batch|step_s)"
    rf"(?:[ _]?\(?(?P<pre>ms|s|sec)\)?)?\s*[:=]\s*(?P<value>{_N})\s*(?P<unit>{_U})(?![\w:/])",
    re.IGNORECASE,
)
_DATA_KEY = re.compile(
    r"(?<![\w-])(?:data(?:[ _-]?(?:time|load|loading|wait|loading[ _-]?time|load[ _-]?time))?|data_s"
    r"|dataload(?:er)?[ _-]?(?:time|wait)?"
    r"|load(?:ing)?[ _-]?time|fetch[ _-]?time|wait[ _-]?time|input[ _-]?time|batch[ _-]generator)"
    rf"(?:[ _]?\(?(?P<pre>ms|s|sec)\)?)?\s*[:=]\s*(?P<value>{_N})\s*(?P<unit>{_U})(?![\w:/])",
    re.IGNORECASE,
)
_STEP_KEY = re.compile(
    r"(?<!\w)(?:global[ _]?step|step|iter(?:ation)?|batch(?:_idx)?)[ :=#\[]+\s*"
    r"(?P<step>\d+)(?![\d.]|\s*(?:ms|s)\b)",
    re.IGNORECASE,
)
_EPOCH_KEY = re.compile(r"(?<!\w)epoch[ :=#\[]+\s*(?P<epoch>\d+)(?![\d.])", re.IGNORECASE)
_RATE_KEY = re.compile(
    rf"(?:(?<!\w)(?:samples|img|imgs|images|examples|sentences|seq)(?:/s(?:ec)?|_per_s(?:ec(?:ond)?)?)\s*[:=]\s*(?P<a>{_N})"
    rf"|(?P<b>{_N}) ?(?:samples|img|imgs|images|examples|sentences|seq)/s(?:ec)?(?!\w))",
    re.IGNORECASE,
)
_STAMP = re.compile(r"(\d{4}[-/]\d{2}[-/]\d{2})[ T](\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?)(?P<zone>Z|\+00:?00)?")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# bars and lines about something else than training steps
_NOT_TRAINING = re.compile(
    r"\b(?:valid\w*|val|eval\w*|test(?:ing)?|sanity|predict\w*|download\w*|tokeniz\w*|map|filter|loading|saving|resolving|generating"
    r"|extracting|caching|scanning)\b[^|\n]{0,40}(?:\||%|\[)|Epoch\((?:val|test)\)|\b(?:val|test|eval): ",
    re.IGNORECASE,
)


def read_training_log(path: str | Path) -> TrainingLog:
    """Step and data times of a training log: console output of common trainers, JSON lines, wandb exports.

    Raises InputError, one line, for a file that is missing, empty, binary or names no step time.
    """
    text = read_text(path, "training log")
    source = str(path)
    rows, framework, averaged, notes = history_rows(text)
    if not rows:
        rows, framework, averaged = _profiled_rows(text), "lightning profiler", True
    if not rows:
        rows, framework, averaged = _text_rows(text)
    if not rows:
        raise InputError(
            f"{source} names no step time we know: expected lines like 'time: 0.45 data_time: 0.12'"
        )
    stamps = np.array([-1 if row.t_ns is None else row.t_ns for row in rows], np.int64)
    absolute = any(row.absolute for row in rows)
    return TrainingLog(
        step=np.array([-1 if row.step is None else row.step for row in rows], np.int64),
        epoch=np.array([-1 if row.epoch is None else row.epoch for row in rows], np.int64),
        step_s=np.array([np.nan if row.step_s is None else row.step_s for row in rows]),
        data_s=np.array([np.nan if row.data_s is None else row.data_s for row in rows]),
        samples_per_s=np.array([np.nan if row.samples_per_s is None else row.samples_per_s for row in rows]),
        t_ns=stamps,
        framework=framework,
        averaged=averaged,
        clock="relative" if not (stamps >= 0).any() else "utc" if absolute else "local",
        source=source,
        notes=tuple(notes),
    )


def _profiled_rows(text: str) -> list[Row]:
    """One row a SimpleProfiler table: fetching the batch, and the step, which does not include it."""
    rows: list[Row] = []
    fetch: float | None = None
    batch: float | None = None
    for match in _PROFILED.finditer(text):
        if match["action"] == "run_training_batch":
            batch = float(match["mean"])
        else:
            fetch = float(match["mean"])
        if fetch is not None and batch is not None:
            rows.append(Row(None, None, batch + fetch, fetch, None, None))
            fetch = batch = None
    return rows


def _text_rows(text: str) -> tuple[list[Row], str, bool]:
    """Every line that names a step time, by the format that most lines follow."""
    found: dict[str, list[Row]] = {}
    averaged: Counter[str] = Counter()
    for raw in re.split(r"[\r\n]+", text):
        line = _ANSI.sub("", raw)
        if len(line) > 4000 or not any(ch.isdigit() for ch in line) or _NOT_TRAINING.search(line):
            continue
        for form in _FORMATS:
            if match := form.pattern.search(line):
                row = _row_of_format(match, line)
                if row is not None:
                    found.setdefault(form.framework, []).append(row)
                    averaged[form.framework] += form.averaged
                break
        else:
            if row := _row_of_keys(line):
                found.setdefault("generic", []).append(row)
    if not found:
        return [], "", False
    # lines with data times say more than a progress bar's rate; then the more frequent format wins
    best = max(found, key=lambda name: (any(row.data_s is not None for row in found[name]), len(found[name])))
    return found[best], best, averaged[best] > 0


def _row_of_format(match: re.Match[str], line: str) -> Row | None:
    groups = match.groupdict()
    scale = _UNITS[(groups.get("time_unit") or "").lower()]
    time, rate = groups.get("time"), groups.get("rate")
    if time is not None:
        step_s = float(time) * scale
    elif rate is not None and float(rate) > 0:
        step_s = 1.0 / float(rate)
    else:
        return None
    data = groups.get("data")
    samples = groups.get("samples")
    return _row(
        line,
        step=_int(groups.get("step")),
        epoch=_int(groups.get("epoch")),
        step_s=step_s,
        data_s=None if data is None else float(data) * scale,
        samples_per_s=None if samples is None else float(samples),
    )


def _row_of_keys(line: str) -> Row | None:
    time, data = _TIME_KEY.search(line), _DATA_KEY.search(line)
    if time is None or (data is None and not _STEP_KEY.search(line)):
        return None  # "time: 3" alone may be anything
    step, epoch, rate = _STEP_KEY.search(line), _EPOCH_KEY.search(line), _RATE_KEY.search(line)
    return _row(
        line,
        step=_int(step["step"]) if step else None,
        epoch=_int(epoch["epoch"]) if epoch else None,
        step_s=_duration(time),
        data_s=None if data is None else _duration(data),
        samples_per_s=float(rate["a"] or rate["b"]) if rate else None,
    )


def _duration(match: re.Match[str]) -> float:
    return float(match["value"]) * _UNITS[(match["unit"] or match["pre"] or "").lower()]


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _row(
    line: str,
    *,
    step: int | None,
    epoch: int | None,
    step_s: float,
    data_s: float | None,
    samples_per_s: float | None,
) -> Row:
    stamp = _STAMP.search(line)
    t_ns = clock_ns(stamp[1], stamp[2]) if stamp else None
    absolute = bool(stamp and stamp["zone"])
    return Row(step, epoch, step_s, data_s, samples_per_s, t_ns, absolute)
