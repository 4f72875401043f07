"""Text from a trace is hostile: names, paths and messages pass through here before any view shows them."""

from __future__ import annotations

import re

# C0/C1 controls (terminal escapes), lone surrogates, bidirectional overrides, and what is no character at all
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_BLANKS = re.compile(r"\s+")


def clean(text: str) -> str:
    """The text with everything replaced that could steer a terminal, reorder a line or break UTF-8.

    Line ends are kept, as LF.
    """
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """Clean text on a single line."""
    return _BLANKS.sub(" ", clean(text)).strip()


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters; the middle is cut, since kernel names differ at both ends."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    tail = limit - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"
