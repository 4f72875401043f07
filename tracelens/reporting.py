"""The ``report`` verb: inputs in, views out."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tracelens.errors import InputError, OutputError, UsageError
from tracelens.ingest.discover import Extras, RunInput, discover, newest_run
from tracelens.model import Result


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of ``tracelens report`` (design section 8)."""

    paths: tuple[Path, ...] = ()
    output: Path | None = None
    json_file: str | None = None
    markdown: str | None = None
    perfetto: Path | None = None
    gpu_logs: tuple[Path, ...] = ()
    host_logs: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()
    loader: Path | None = None
    rules: tuple[Path, ...] = ()
    lang: str = "en"


def run_report(options: ReportOptions) -> Result:
    """Analyses and writes every view that was asked for. Raises TracelensError."""
    from tracelens.render.html import html_report
    from tracelens.render.jsonview import json_text
    from tracelens.render.markdown import markdown_block
    from tracelens.render.text import terminal_summary
    from tracelens.render.words import load_words

    wanted = {"-o": options.output, "--json": options.json_file, "--markdown": options.markdown,
              "--perfetto": options.perfetto}  # fmt: skip
    to_stdout = [f"{name} -" for name, where in wanted.items() if str(where) == "-"]
    if len(to_stdout) > 1:
        raise UsageError(f"{' and '.join(to_stdout)} both want stdout; give one of them a file")
    load_words(options.lang)
    result, target = _result(options)
    emit(str(target), html_report(result, lang=options.lang))
    quiet = bool(to_stdout)
    if options.json_file:
        emit(options.json_file, json_text(result))
    if options.markdown:
        emit(options.markdown, markdown_block(result))
    if options.perfetto:
        from tracelens.render.perfetto import perfetto_json

        emit(str(options.perfetto), perfetto_json(result))
    if not quiet:
        say(f"{terminal_summary(result, color=colored())}\nreport: {_shown(target)}")
    return result


def _target(options: ReportOptions, home: Path, name: str) -> Path:
    if options.output is not None:
        return options.output
    return home / name if os.access(home if home.exists() else home.parent, os.W_OK) else Path.cwd() / name


def _result(options: ReportOptions) -> tuple[Result, Path]:
    """The result and where its HTML goes; refuses outputs that are inputs before any work is done."""
    logs = (*options.gpu_logs, *options.host_logs, *options.logs)
    paths = options.paths or (() if logs else (newest_run(),))
    if len(paths) == 1 and paths[0].suffix.lower() in (".html", ".htm") and paths[0].is_file():
        from tracelens.render.embedded import read_embedded
        from tracelens.render.model_io import result_from_json

        target = _target(options, paths[0].parent, f"{paths[0].stem}.again.html")
        keep_inputs(paths, (target, options.json_file, options.markdown, options.perfetto))
        return result_from_json(read_embedded(paths[0])), target
    from tracelens.diagnose.analyse import analyse

    run: RunInput = discover(paths, Extras(options.gpu_logs, options.host_logs, options.logs, options.loader))
    target = _target(options, run.home, run.report_name)
    read = [
        *paths,
        *logs,
        *(file for rank in run.ranks for file in (*rank.traces, *rank.gpu_logs, *rank.host_logs)),
    ]
    read += [folder / "loader.json" for folder in {file.parent for file in read}]
    read += [rule for folder in options.rules for rule in folder.rglob("*.toml")]
    read += [options.loader] if options.loader else []
    keep_inputs(read, (target, options.json_file, options.markdown, options.perfetto))
    return analyse(run, options.rules), target


def keep_inputs(inputs: Iterable[Path], outputs: Iterable[Path | str | None]) -> None:
    """Raises UsageError where an output is a file that is read, one of a bundle, or another output."""
    read: list[Path] = []
    for path in inputs:
        read.append(path)
        if (path / "bundle.json").is_file():
            read += [path / "bundle.json", *path.glob("*.jsonl"), *path.glob("rank*/*")]
    seen: list[Path] = []
    for where in outputs:
        if where is None or str(where) == "-":
            continue
        path = Path(where)
        if path.exists() and not path.is_file():
            continue  # a device or pipe keeps nothing that could be lost; a folder is refused when written
        if any(_same(path, one) for one in read):
            raise UsageError(f"output {path} is also an input; choose another file")
        if any(_same(path, one) for one in seen):
            raise UsageError(f"{path} is given as two outputs; choose another file for one of them")
        seen.append(path)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # not there yet
        return os.path.realpath(one) == os.path.realpath(other)


def colored() -> bool:
    """Whether stdout shows colours."""
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str) -> None:
    """A line or more on stdout. Raises OutputError where it is closed or full."""
    _to_stdout(text, exact=False)


def _to_stdout(text: str, *, exact: bool) -> None:
    text = text if text.endswith("\n") else text + "\n"
    if sys.stdout is None:
        raise OutputError("cannot write to stdout: it is closed")
    try:
        if exact and hasattr(sys.stdout, "buffer"):  # a file is UTF-8 whatever the terminal's encoding
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        else:
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # what is still buffered would fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"cannot write to stdout: {error.strerror or error}") from None


def emit(where: str, text: str) -> None:
    """Text to a file, or to stdout for ``-``. Raises OutputError."""
    if where == "-":
        _to_stdout(text, exact=True)
    else:
        write_file(Path(where), text if text.endswith("\n") else text + "\n")


def write_file(path: Path, text: str) -> None:
    """Writes a whole file or none of it; a device or pipe is written to, never replaced. Raises OutputError."""
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; give a file name")
    # the file that a link points at is written, the link stays
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if _is_special(path):
            with path.open("w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            return
        try:
            draft.write_text(text, "utf-8", "replace")
            draft.replace(target)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; choose another place with -o"
        ) from None


def _is_special(path: Path) -> bool:
    """Whether something is there that is not a plain file; not knowing is an OSError, never a no."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


__all__ = ["InputError", "ReportOptions", "run_report"]
