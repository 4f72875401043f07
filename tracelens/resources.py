"""Where the packaged data (rules, report templates, the reference model) lives: in the wheel, else in our own checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tracelens.errors import InputError

_PACKAGE = Path(__file__).resolve().parent


@cache
def data_dir(name: str) -> Path:
    """The folder ``rules``, ``reports`` or ``models``: packaged data first, the checkout only when it is ours."""
    packaged = _PACKAGE / "_data" / name
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    project = checkout / "pyproject.toml"
    if project.is_file() and 'name = "torch-tracelens"' in project.read_text("utf-8"):
        source = checkout / name
        if source.is_dir():
            return source
    raise InputError(f"this installation of tracelens lacks its {name} folder; install it again")
