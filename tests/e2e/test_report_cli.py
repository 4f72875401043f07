"""``tracelens report`` and ``rules`` as a user runs them: a process, its streams, its exit code, its files."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.tracekit import Loop

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "fixtures" / "traces"
SHARED = ROOT / ".." / "shared" / "traces" / "real"


def tracelens(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None, before: Callable[[], None] | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Runs the installed command; where it is not on the path, the module."""
    command = [sys.executable, "-m", "tracelens", *map(str, arguments)]
    return subprocess.run(
        [*prefix, *command], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120,
        check=False, preexec_fn=before,
    )  # fmt: skip


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tracelens: ")
    for text in says:
        assert text in lines[0]
    assert "Traceback" not in done.stdout
    assert done.stdout == ""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A loader-bound trace in a folder of its own."""
    folder = tmp_path / "traces"
    folder.mkdir()
    return Path(shutil.copy(TRACES / "loader_main_process.json.gz", folder / "run.pt.trace.json.gz"))


def test_a_file(trace: Path, tmp_path: Path) -> None:
    done = tracelens("report", trace, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    assert "samples are made in the training process" in first
    assert "\x1b[" not in done.stdout, "no colour into a pipe"
    assert done.stdout.rstrip().endswith("report: traces/run.report.html")
    page = (trace.parent / "run.report.html").read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert sorted(p.name for p in trace.parent.iterdir()) == ["run.pt.trace.json.gz", "run.report.html"]


def test_a_folder(trace: Path, tmp_path: Path) -> None:
    done = tracelens("report", trace.parent, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (trace.parent / "report.html").is_file()


def test_a_folder_with_its_side_files(trace: Path, tmp_path: Path) -> None:
    (trace.parent / "loader.json").write_text(json.dumps({"num_workers": 0, "batch_size": 50}))
    done = tracelens("report", trace.parent, "--json", "-", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["throughput"]["batch_size"] == 50
    assert result["throughput"]["samples_per_s"] == pytest.approx(
        50 / result["steps"]["mean_ms"] * 1e3, rel=1e-3
    )


def test_several_files_are_ranks_of_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        made = Loop(load_us=2000 + 100 * rank).trace()
        made.metadata["distributedInfo"] = {"rank": rank, "world_size": 2}
        made.write(tmp_path / f"worker{rank}.json.gz")
    done = tracelens("report", "worker0.json.gz", "worker1.json.gz", "--json", "-", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert [row["rank"] for row in result["ranks"]] == [0, 1]
    assert (tmp_path / "report.html").is_file()


def test_our_own_report_is_an_input(trace: Path, tmp_path: Path) -> None:
    first = tracelens("report", trace, "--json", "-", cwd=tmp_path)
    again = tracelens("report", trace.parent / "run.report.html", "--json", "-", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_where_the_views_go(trace: Path, tmp_path: Path) -> None:
    done = tracelens(
        "report", trace, "-o", "out.html", "--json", "r.json", "--markdown", "r.md", cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.html").is_file()
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))["schema"] == "tracelens.result/1"
    assert "load.main_process" in (tmp_path / "r.md").read_text("utf-8")
    assert not (trace.parent / "run.report.html").exists()


def test_json_on_stdout_is_nothing_but_json(trace: Path, tmp_path: Path) -> None:
    done = tracelens("report", trace, "--json", "-", cwd=tmp_path)
    assert json.loads(done.stdout)["verdict"]["cause"] == "load.main_process"
    assert done.stderr == ""


def test_markdown_on_stdout_is_nothing_but_markdown(trace: Path, tmp_path: Path) -> None:
    done = tracelens("report", trace, "--markdown", "-", cwd=tmp_path)
    assert "report:" not in done.stdout
    assert "load.main_process" in done.stdout
    assert done.stderr == ""


def test_both_on_stdout_is_refused(trace: Path, tmp_path: Path) -> None:
    assert_one_line(tracelens("report", trace, "--json", "-", "--markdown", "-", cwd=tmp_path), 2, "stdout")


def test_a_reader_that_has_gone(trace: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m tracelens report {trace} --json - | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("{", "")


def test_a_trace_in_a_folder_that_cannot_be_written(trace: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    trace.parent.chmod(0o500)
    done = tracelens("report", trace, cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "run.report.html").is_file()


# errors: one line, exit 3 or 2, nothing left behind

NOT_TRACES = {
    "empty.json": (b"", "is empty"),
    "page.json": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
    "profile.nsys-rep": (b"\x80\x01nsys\x00\x00", "Nsight"),
    "none.json": (b'{"schemaVersion": 1, "traceEvents": []}', "without a single event"),
    "blob.json": (bytes(range(256)) * 8, "binary"),
    "words.json": (b"step 1 loss 0.3\n", "not JSON"),
    "broken.json.gz": (b"\x1f\x8b\x08\x00garbage", "damaged gzip"),
    "other.json": (b'{"a": [1, 2]}', "without traceEvents"),
    "weights.zip": (b"PK\x03\x04\x00\x00", "zip"),
}


@pytest.mark.parametrize("name", NOT_TRACES)
def test_what_is_no_trace(tmp_path: Path, name: str) -> None:
    content, says = NOT_TRACES[name]
    (tmp_path / name).write_bytes(content)
    assert_one_line(tracelens("report", name, "--json", "r.json", cwd=tmp_path), 3, name, says)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    assert_one_line(tracelens("report", "nowhere.json", cwd=tmp_path), 3, "nowhere.json", "does not exist")


def test_a_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "loader.json").write_text("{}")
    assert_one_line(tracelens("report", ".", cwd=tmp_path), 3, "no trace")
    assert [p.name for p in tmp_path.iterdir()] == ["loader.json"]


def test_no_path_and_no_run(tmp_path: Path) -> None:
    assert_one_line(tracelens("report", cwd=tmp_path), 3, "tracelens record")


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(gzip.decompress((TRACES / "gpu_healthy.json.gz").read_bytes()))
    (tmp_path / "run.json").chmod(0)
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None or not os.access(sys.executable, os.X_OK):
            pytest.skip("root reads anything, and there is no setpriv to be somebody else")
        prefix = (setpriv, "--reuid=65534", "--regid=65534", "--clear-groups")
        probe = subprocess.run(
            [*prefix, sys.executable, "-c", "import tracelens"], cwd=ROOT, capture_output=True, check=False
        )
        if probe.returncode:
            pytest.skip("another user cannot run this interpreter")
        for folder in (tmp_path, *tmp_path.parents):
            if folder.owner() == "root" and folder != Path("/") and folder.is_relative_to("/tmp"):
                folder.chmod(folder.stat().st_mode | 0o055)
    assert_one_line(
        tracelens("report", "run.json", cwd=tmp_path, prefix=prefix), 3, "run.json", "Permission denied"
    )


def test_no_space_for_the_output(trace: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = tracelens("report", trace, cwd=tmp_path, before=small_files, env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert_one_line(done, 3, "cannot write", "-o")
    assert [p.name for p in trace.parent.iterdir()] == [trace.name], "nothing half-written"


def test_an_output_in_a_folder_that_does_not_exist(trace: Path, tmp_path: Path) -> None:
    assert_one_line(tracelens("report", trace, "-o", "no/such/r.html", cwd=tmp_path), 3, "no/such/r.html")


def test_an_output_that_is_a_folder(trace: Path, tmp_path: Path) -> None:
    assert_one_line(tracelens("report", trace, "-o", ".", cwd=tmp_path), 3, "folder")


@pytest.mark.parametrize(
    ("content", "says"), [("{not json", "not JSON"), ("[1]", "JSON object"), ("", "not JSON")]
)
def test_loader_settings_that_cannot_be_read(trace: Path, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "l.json").write_text(content)
    assert_one_line(tracelens("report", trace, "--loader", "l.json", cwd=tmp_path), 3, "l.json", says)


def test_an_option_that_does_not_exist(tmp_path: Path) -> None:
    done = tracelens("report", "--jsn", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "--jsn" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_language_that_does_not_exist(trace: Path, tmp_path: Path) -> None:
    done = tracelens("report", trace, "--lang", "xx", cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert len(done.stderr.strip().splitlines()) == 1


RULE = """id = "load.mine"
title = "Mine"
class = "cpu"
phase = "load"
since = "1"
[when]
all = [{ signal = "load.saving_ms", op = ">", value = 0.0 }]
[advice]
text = "My rule saw {load.saving_ms}."
[doc]
why = "It is mine."
"""


def test_rules_of_ones_own(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.toml").write_text(RULE)
    done = tracelens("report", trace, "--rules", "mine", "--json", "-", cwd=tmp_path)
    finding = next(f for f in json.loads(done.stdout)["findings"] if f["rule"] == "load.mine")
    assert finding["advice"].startswith("My rule saw ")
    assert "{" not in finding["advice"]
    listed = tracelens("rules", "list", "--rules", "mine", cwd=tmp_path).stdout
    assert "load.mine" in listed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RULE.replace('op = ">"', 'op = "~"'), "condition"),
        (RULE.replace('"cpu"', '"disk"'), "disk"),
        (RULE + "[broken", "TOML"),
        (RULE.replace("load.mine", "load.storage"), "override"),
        (RULE.replace("since", "sinse"), "sinse"),
    ],
)
def test_a_broken_rule(trace: Path, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.toml").write_text(text)
    assert_one_line(tracelens("report", trace, "--rules", "mine", cwd=tmp_path), 3, "a.toml", says)
    assert [p.name for p in trace.parent.iterdir()] == [trace.name]


def test_rules_that_are_not_there(trace: Path, tmp_path: Path) -> None:
    assert_one_line(tracelens("report", trace, "--rules", "none", cwd=tmp_path), 3, "none")


def test_rules_list_and_show(tmp_path: Path) -> None:
    listed = tracelens("rules", "list", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    ids = [line.split()[0] for line in listed.stdout.splitlines()]
    assert len(ids) >= 16
    assert {"load.main_process", "transfer.pageable", "host.launch_bound", "quality.few_steps"} <= set(ids)
    shown = tracelens("rules", "show", "load.main_process", cwd=tmp_path)
    for part in ("fires when", "why", "fix", "false positives", "load.saving_ms"):
        assert part in shown.stdout
    assert_one_line(
        tracelens("rules", "show", "load.main_proces", cwd=tmp_path), 2, "did you mean load.main_process"
    )


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("report", "--help"), ("record", "--help"), ("rules", "--help"), ("--version",)],
)
def test_help_loads_nothing_heavy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\nsys.argv = ['tracelens', *sys.argv[1:]]\nfrom tracelens.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'pandas', 'sklearn', 'torch', 'jinja2', 'numpy', 'rich', 'psutil', 'msgspec'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stdout[-300:] + done.stderr


@pytest.mark.parametrize("command", ["record", "tune"])
def test_help_shows_where_the_training_command_goes(tmp_path: Path, command: str) -> None:
    assert f"tracelens {command} [OPTIONS] -- COMMAND" in tracelens(command, "--help", cwd=tmp_path).stdout


def test_a_report_needs_neither_pandas_nor_torch(trace: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nsys.argv = ['tracelens', 'report', sys.argv[1]]\nfrom tracelens.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('HEAVY', sorted({'pandas', 'torch', 'sklearn'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


@pytest.mark.parametrize("path", sorted(SHARED.iterdir()) if SHARED.is_dir() else [], ids=lambda p: p.name)
def test_each_handed_trace_without_noise(tmp_path: Path, path: Path) -> None:
    done = tracelens(
        "report", path, "-o", tmp_path / "r.html", cwd=tmp_path, env={"PYTHONWARNINGS": "default"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "r.html").stat().st_size < 400_000
    said = done.stdout
    if path.name.startswith("resnet50_v100_workers0"):
        assert "load.main_process" in said
    if path.name.startswith("resnet50_v100_workers4"):
        assert "cause load." not in said
    if path.name.startswith("bert_small"):
        assert "host.launch_bound" in said
        assert "num_workers" not in said
    if path.name.startswith(("sync_wait_a100", "ddp_a100")):
        assert not said.startswith("[H2D")
