"""The agent's files: Python 3.9 syntax, the standard library and torch only, and nothing at all without torch."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracelens.agent

FOLDER = Path(tracelens.agent.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
INJECT = FOLDER / "inject"


def test_there_are_files() -> None:
    assert {"arm.py", "loader.py", "sitecustomize.py"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_syntax_and_imports(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 9))
    own = {file.stem for file in FILES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [str(node.module).split(".")[0]]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1
            assert node.module is None or node.module in own
            continue
        else:
            continue
        for name in names:
            assert name == "torch" or name in sys.stdlib_module_names, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_newer_than_3_9_is_used(path: Path) -> None:
    """What ``ast`` accepts but 3.9 does not run: unions of types at run time, zip(strict=), slots, match."""
    tree = ast.parse(path.read_text("utf-8"))
    postponed = "from __future__ import annotations" in path.read_text("utf-8")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names = {keyword.arg for keyword in node.keywords}
            called = ast.unparse(node.func)
            assert not (called == "zip" and "strict" in names)
            assert not (called.endswith("dataclass") and {"slots", "kw_only"} & names)
        if isinstance(node, ast.FunctionDef) and not postponed:
            assert node.returns is None
            assert all(argument.annotation is None for argument in node.args.args)


def run(code: str, tmp_path: Path, *flags: str, path: tuple[Path, ...] = ()) -> str:
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRACELENS_", "PYTHONPATH"))
    }
    env["PYTHONPATH"] = os.pathsep.join(str(entry) for entry in (INJECT, *path))
    env["TRACELENS_BUNDLE"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_a_process_without_torch_loads_one_module(tmp_path: Path) -> None:
    code = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRACELENS_", "PYTHONPATH"))
    }
    plain = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert set(json.loads(run(code, tmp_path))) - set(json.loads(plain)) <= {"sitecustomize"}
    assert [entry.name for entry in tmp_path.iterdir()] == [".python-seen"]


def test_sys_path_is_as_it_was(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    out = run("import sys; print(sys.path)", tmp_path, path=(other,))
    assert str(INJECT) not in out
    assert str(other) in out


def test_the_users_sitecustomize_and_usercustomize_run(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("VALUE = 'site'\nNAME = __name__\n")
    (theirs / "usercustomize.py").write_text("VALUE = 'user'\n")
    code = "import sitecustomize, usercustomize as u; print(sitecustomize.VALUE, sitecustomize.NAME, u.VALUE)"
    assert run(code, tmp_path, path=(theirs,)) == "site sitecustomize user\n"
    assert run("import sitecustomize; print(sitecustomize.__file__)", tmp_path, path=(theirs,)).startswith(
        str(theirs)
    )


def test_a_broken_sitecustomize_is_reported_as_ever(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRACELENS_", "PYTHONPATH"))
    }
    outputs = []
    for paths in ([theirs], [INJECT, theirs]):
        env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        env["TRACELENS_BUNDLE"] = str(tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", "print(1)"], env=env, capture_output=True, text=True, check=True
        )
        outputs.append((done.stdout, done.stderr.splitlines()[-2:]))
    assert outputs[0] == outputs[1]


def test_looking_for_torch_does_not_load_the_agent(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("LOADED = True\n")
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('torch')\n"
        "print(spec.origin.endswith('torch.py'), '_tracelens_agent' in sys.modules)\n"
        "import torch\n"
        "print(torch.LOADED, type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)\n"
        "print('_tracelens_agent.arm' in sys.modules, [type(f).__name__ for f in sys.meta_path].count('_Finder'))\n"
    )
    # A module that only happens to be called torch is let alone.
    assert run(code, tmp_path, path=(tmp_path,)).splitlines() == [
        "True False", "True SourceFileLoader SourceFileLoader", "True 0",
    ]  # fmt: skip


def test_a_torch_that_cannot_be_imported_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart')\n")
    code = "try:\n    import torch\nexcept ImportError as error:\n    print(error)"
    assert run(code, tmp_path, path=(tmp_path,)) == "libcudart\n"
