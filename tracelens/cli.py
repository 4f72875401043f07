"""The verbs: the only place where recording and analysis meet. Heavy imports happen where they are used."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tracelens import __version__
from tracelens.errors import InputError, TracelensError, UsageError

app = typer.Typer(
    name="tracelens", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Why is this PyTorch training job slow, and what exactly do I change?",
)  # fmt: skip
rules_app = typer.Typer(
    no_args_is_help=True, help="The rules that findings come from.", rich_markup_mode=None
)
app.add_typer(rules_app, name="rules")

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def _version(show: bool) -> None:
    if show:
        typer.echo(f"tracelens {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Why is this PyTorch training job slow, and what exactly do I change?"""


_Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        readable=False,
        help="A bundle, a trace (.json, .json.gz), a report.html of ours, or a folder of traces. "
        "Default: the newest run below ./tracelens-runs.",
    ),
]


def _option(*names: str, metavar: str | None = None, help: str) -> Any:
    # unreadable files are ours to complain about, in one line and with our exit code
    return typer.Option(*names, metavar=metavar, help=help, readable=False)


_RulesDirs = Annotated[
    list[Path] | None, _option("--rules", metavar="DIR", help="A folder of your own rules.")
]


@app.command()
def report(
    paths: _Paths = None,
    output: Annotated[
        Path | None,
        _option(
            "-o", "--output", metavar="FILE.html",
            help="Where the HTML report goes. Default: into the bundle, else beside the trace.",
        ),
    ] = None,
    json_file: Annotated[
        str | None, _option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")
    ] = None,
    markdown: Annotated[
        str | None,
        _option("--markdown", metavar="FILE", help="Write a Markdown block for a pull request; - for stdout."),
    ] = None,
    perfetto: Annotated[
        Path | None,
        _option("--perfetto", metavar="FILE", help="Write a trace for ui.perfetto.dev: phases and steps as tracks."),
    ] = None,
    gpu_log: Annotated[
        list[Path] | None, _option("--gpu-log", metavar="FILE", help="nvidia-smi CSV or dmon log.")
    ] = None,
    host_log: Annotated[
        list[Path] | None, _option("--host-log", metavar="FILE", help="JSONL of per-process samples.")
    ] = None,
    log: Annotated[
        list[Path] | None, _option("--log", metavar="FILE", help="Training log with step and data times.")
    ] = None,
    loader: Annotated[
        Path | None, _option("--loader", metavar="FILE", help="JSON object of DataLoader settings, for bare traces.")
    ] = None,
    rules: _RulesDirs = None,
    lang: Annotated[str, _option("--lang", help="Language of the report: en or zh.")] = "en",
    no_cache: Annotated[bool, _option("--no-cache", help="Analyse afresh. Nothing is cached yet, so this is always so.")] = False,
) -> None:  # fmt: skip
    """Analyse a run: verdict on the terminal, report.html beside it."""
    from tracelens.reporting import ReportOptions, run_report

    run_report(ReportOptions(
        tuple(paths or ()), output, json_file, markdown, perfetto, tuple(gpu_log or ()), tuple(host_log or ()), tuple(log or ()),
        loader, tuple(rules or ()), lang,
    ))  # fmt: skip


@app.command(context_settings=_PASS_THROUGH, options_metavar="[OPTIONS] -- COMMAND...")
def record(
    context: typer.Context,
    out: Annotated[
        Path | None,
        _option("--out", metavar="BUNDLE", help="The bundle to write. Default: tracelens-runs/<UTC time>-<script>."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        _option(
            "--set", metavar="[LOADER.]KEY=VALUE",
            help="Change a DataLoader argument for this run, for example num_workers=6.",
        ),
    ] = None,
    stop_after: Annotated[
        int | None, _option("--stop-after", metavar="STEPS", help="End the job cleanly after so many steps.")
    ] = None,
    no_trace: Annotated[
        bool, _option("--no-trace", help="No profiler windows: step, loader, host and GPU timelines only.")
    ] = False,
    no_stacks: Annotated[bool, _option("--no-stacks", help="No window with Python stacks.")] = False,
    include_sensitive: Annotated[
        bool, _option("--include-sensitive", help="Keep argument values, paths, host and user names.")
    ] = False,
    with_report: Annotated[bool, _option("--report", help="Write the report when the job ends.")] = False,
) -> None:  # fmt: skip
    """Record a training command, unchanged: tracelens record -- python train.py"""
    from tracelens.record.launcher import RecordOptions
    from tracelens.record.launcher import record as run

    command = tuple(context.args)
    if command[:1] == ("--",):
        command = command[1:]
    outcome = run(RecordOptions(
        command=command, out=out, set=tuple(settings or ()), stop_after=stop_after, trace=not no_trace,
        stacks=not no_stacks, include_sensitive=include_sensitive,
    ))  # fmt: skip
    if with_report and outcome.bundle is not None:
        from tracelens.reporting import ReportOptions, run_report

        try:
            run_report(ReportOptions((outcome.bundle,)))
        except TracelensError as error:
            # the job's exit code is the command's, whatever becomes of the report
            _complain(error)
    raise typer.Exit(outcome.code)


@app.command()
def compare(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE", help="A bundle, trace or report.html, or a folder of repeated runs.")
    ],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The same, recorded after the change.")],
    markdown: Annotated[
        str | None,
        _option("--markdown", metavar="FILE", help="Write a Markdown block for a pull request; - for stdout."),
    ] = None,
    output: Annotated[
        Path | None, _option("-o", "--output", metavar="FILE.html", help="Write the comparison as HTML.")
    ] = None,
    rules: _RulesDirs = None,
) -> None:  # fmt: skip
    """What a change did: speed, phases, verdicts, and each prediction beside what was measured.

    Exit code 1 where the two cannot be judged against each other (different hardware, too few steps).
    """
    from tracelens.check.compare import compare_paths
    from tracelens.check.views import html_text, markdown_text, terminal_text
    from tracelens.reporting import colored, emit, keep_inputs, say

    to_stdout = [str(output), markdown].count("-")
    if to_stdout > 1:
        raise UsageError("-o - and --markdown - both want stdout; give one of them a file")
    keep_inputs((before, after), (output, markdown))
    found = compare_paths(before, after, tuple(rules or ()))
    if output is not None:
        emit(str(output), html_text(found))
    if markdown:
        emit(markdown, markdown_text(found))
    if not to_stdout:
        say(terminal_text(found, color=colored()))
    raise typer.Exit(1 if found.outcome in ("not comparable", "unknown") else 0)


@app.command()
def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A bundle, trace or report.html, or a folder of repeated runs.")],
    budget: Annotated[Path, _option("--budget", metavar="FILE", help="Limits as TOML: [[limit]] value, max, min ...")],
    baseline: Annotated[
        list[Path] | None, _option("--baseline", metavar="PATH", help="An earlier recording to be as fast as.")
    ] = None,
    junit: Annotated[
        Path | None, _option("--junit", metavar="FILE", help="Write the outcomes as JUnit XML.")
    ] = None,
    rules: _RulesDirs = None,
) -> None:  # fmt: skip
    """A recording against a budget and earlier recordings, for CI; exit code 1 where a limit does not hold."""
    from tracelens.check.budget import check as judge
    from tracelens.check.budget import checks_text, junit_xml, read_budget
    from tracelens.check.sides import load_side
    from tracelens.reporting import keep_inputs, say, write_file

    keep_inputs((path, budget, *(baseline or ())), (junit,))
    limits, folders = read_budget(budget), tuple(rules or ())
    side = load_side(path, folders)
    found = judge(side, limits, [load_side(one, folders) for one in baseline or ()])
    if junit is not None:
        write_file(junit, junit_xml(found, side.name))
    say(checks_text(found))
    raise typer.Exit(0 if all(one.passed for one in found) else 1)


@app.command(context_settings=_PASS_THROUGH, options_metavar="[OPTIONS] -- COMMAND...")
def tune(
    context: typer.Context,
    loader_only: Annotated[
        bool, typer.Option("--loader-only", help="Measure the loader alone at a few worker counts, within a minute.")
    ] = False,
    max_runs: Annotated[int, _option("--max-runs", metavar="N", help="At most so many recordings.")] = 6,
    max_minutes: Annotated[float, _option("--max-minutes", metavar="M", help="At most so many minutes.")] = 30.0,
    stop_after: Annotated[
        int, _option("--stop-after", metavar="STEPS", help="Steps of each recording.")
    ] = 80,
    resume: Annotated[
        Path | None, _option("--resume", metavar="DIR", help="Go on with an earlier tuning of the same command.")
    ] = None,
) -> None:  # fmt: skip
    """Record, apply what --set can, record again, while it gains: tracelens tune -- python train.py

    Exit code 4 where the command could not be run.
    """
    from tracelens.tune.loop import TuneOptions
    from tracelens.tune.loop import tune as run
    from tracelens.tune.report import points_text, tuned_text

    command = tuple(context.args)
    if command[:1] == ("--",):
        command = command[1:]
    options = TuneOptions(command, max_runs, max_minutes, stop_after, resume)

    def tell(line: str) -> None:
        typer.echo(f"tracelens: {line}", err=True)

    from tracelens.reporting import ReportOptions, run_report, say

    if loader_only:
        from tracelens.tune.loader_only import loader_only as measure

        bundle, points = measure(options, tell)
        say(points_text(points))
        run_report(ReportOptions((bundle,)))
        return
    say(tuned_text(run(options, tell), command))


@rules_app.command("list")
def rules_list(
    rules: _RulesDirs = None,
) -> None:
    """One line a rule: id, class, title."""
    from tracelens.diagnose.rules import load_rules
    from tracelens.reporting import say

    loaded = load_rules(tuple(rules or ()))
    width = max(len(name) for name in loaded)
    in_order = sorted(loaded.values(), key=lambda r: (r.is_quality, r.id))
    say("\n".join(f"{rule.id:<{width}}  {rule.bottleneck or '-':<16}  {rule.title}" for rule in in_order))


@rules_app.command("show")
def rules_show(
    rule_id: Annotated[str, typer.Argument(metavar="ID")],
    rules: _RulesDirs = None,
) -> None:
    """A rule in full: when it fires, why it matters, what to do, when it is wrong."""
    from tracelens.diagnose.rules import load_rules
    from tracelens.diagnose.ruletext import rule_text
    from tracelens.reporting import say

    loaded = load_rules(tuple(rules or ()))
    if rule_id not in loaded:
        import difflib

        near = difflib.get_close_matches(rule_id, loaded, n=1)
        raise UsageError(
            f"no rule {rule_id!r}" + (f"; did you mean {near[0]}?" if near else "; see tracelens rules list")
        )
    say(rule_text(loaded[rule_id]))


@app.command()
def doctor() -> None:
    """What can be recorded here, what cannot, and the fix for each."""
    from tracelens.record.doctor import diagnose, doctor_text
    from tracelens.reporting import say

    checks = diagnose()
    say(doctor_text(checks))
    raise typer.Exit(1 if any(check.status == "fail" for check in checks) else 0)


def _complain(error: BaseException) -> None:
    typer.echo(f"tracelens: {error}", err=True)


def main() -> NoReturn:
    """Runs the command line: one line and an exit code for every foreseen failure, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # a stream that is not UTF-8 shows ? for a bar, where it would fail
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="tracelens")
    except TracelensError as error:
        _complain(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # the reader of our stdout has gone (a pager, head): nothing to say, nowhere to say it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        _complain(InputError("not enough memory to read this input"))
        sys.exit(3)
    sys.exit(0)
