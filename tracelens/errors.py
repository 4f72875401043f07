"""Errors a user can act on: one line each, with the exit code of design section 8."""

from __future__ import annotations


class TracelensError(Exception):
    """Base of every error that is shown as one line; ``exit_code`` is what the process returns."""

    exit_code = 3


class InputError(TracelensError):
    """An input is unreadable, or holds nothing that can be analysed (exit 3)."""


class OutputError(TracelensError):
    """An output cannot be written (exit 3)."""


class UsageError(TracelensError):
    """The command line asks for something impossible (exit 2)."""

    exit_code = 2
