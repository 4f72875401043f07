"""The ``report`` verb: inputs in, views out."""

from __future__ import annotations

import os
import sys
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

    if options.json_file == "-" and options.markdown == "-":
        raise UsageError("--json - and --markdown - both want stdout; give one of them a file")
    load_words(options.lang)
    result, home, name = _result(options)
    target = options.output or home / name
    if options.output is None and not os.access(home if home.exists() else home.parent, os.W_OK):
        target = Path.cwd() / name
    write_file(target, html_report(result, lang=options.lang))
    quiet = "-" in (options.json_file, options.markdown)
    if options.json_file:
        emit(options.json_file, json_text(result))
    if options.markdown:
        emit(options.markdown, markdown_block(result))
    if options.perfetto:
        from tracelens.render.perfetto import perfetto_json

        write_file(options.perfetto, perfetto_json(result))
    if not quiet:
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(terminal_summary(result, color=color))
        print(f"report: {_shown(target)}")
    return result


def _result(options: ReportOptions) -> tuple[Result, Path, str]:
    logs = (*options.gpu_logs, *options.host_logs, *options.logs)
    paths = options.paths or (() if logs else (newest_run(),))
    if len(paths) == 1 and paths[0].suffix.lower() in (".html", ".htm") and paths[0].is_file():
        from tracelens.render.embedded import read_embedded
        from tracelens.render.model_io import result_from_json

        stored = result_from_json(read_embedded(paths[0]))
        return stored, paths[0].parent, f"{paths[0].stem}.again.html"
    from tracelens.diagnose.analyse import analyse

    run: RunInput = discover(paths, Extras(options.gpu_logs, options.host_logs, options.logs, options.loader))
    return analyse(run, options.rules), run.home, run.report_name


def emit(where: str, text: str) -> None:
    """Text to a file, or to stdout for ``-``. Raises OutputError."""
    if where == "-":
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    else:
        write_file(Path(where), text if text.endswith("\n") else text + "\n")


def write_file(path: Path, text: str) -> None:
    """Writes a whole file or none of it. Raises OutputError."""
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; give a file name")
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(text, "utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; choose another place with -o"
        ) from None


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


__all__ = ["InputError", "ReportOptions", "run_report"]
