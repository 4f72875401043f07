"""Bytes of a text log, checked once for everybody: exists, readable, not empty, not binary."""

from __future__ import annotations

import gzip
import zlib
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from tracelens.errors import InputError

_DAY_FORMATS = ("%Y/%m/%d", "%Y-%m-%d", "%Y%m%d", "%d.%m.%Y")


def read_text(path: str | Path, what: str) -> str:
    """The file's text (gz too); InputError in one line where there is none. ``what``: "GPU log" ..."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{file} is a folder, not a {what}: name the file itself") from None
    except FileNotFoundError:
        raise InputError(f"{what} {file} does not exist: check the path") from None
    except OSError as error:
        raise InputError(f"cannot read the {what} {file}: {error.strerror or error}") from None
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{what} {file} is a damaged gzip file: unpack or record it again") from None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # PowerShell redirection writes UTF-16
        text = data.decode("utf-16", errors="replace")
    else:
        if b"\0" in data[:65536]:
            # a crash of the machine may leave zero pages behind a log; in front they mean another format
            head = data.split(b"\0", 1)[0]
            if not head.strip():
                raise InputError(f"{file} is a binary file, not a {what}")
            if b"\n" not in head:
                raise InputError(f"{file} is a binary file, not a {what}")
        text = data.replace(b"\0", b"").decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise InputError(f"{what} {file} is empty: nothing was logged")
    head_text = text[:4096]
    if (
        sum(ch == "\ufffd" or (ch < " " and ch not in "\t\n\r\x1b\b\f") for ch in head_text)
        > len(head_text) // 10
    ):
        raise InputError(f"{file} is a binary file, not a {what}")
    if head_text.lstrip()[:64].lower().startswith(("<!doctype", "<html")):
        raise InputError(f"{file} is a web page, not a {what}: download the raw file")
    return text


@lru_cache(maxsize=512)
def _day_ns(day: str) -> int | None:
    for fmt in _DAY_FORMATS:
        try:
            parsed = datetime.strptime(day, fmt)
        except ValueError:
            continue
        return (parsed - datetime(1970, 1, 1)).days * 86_400_000_000_000
    return None


def clock_ns(day: str, time: str) -> int | None:
    """ns of a date and a time of day (fraction after . or ,), the zone left out; None where it is neither."""
    base = _day_ns(day)
    of_day = time_of_day_ns(time)
    return None if base is None or of_day is None else base + of_day


def time_of_day_ns(time: str) -> int | None:
    """ns since midnight of HH:MM:SS[.fff]; None where it is not a time."""
    parts = time.replace(",", ".").split(":")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    whole, _, fraction = parts[2].partition(".")
    if not whole.isdigit() or (fraction and not fraction.isdigit()):
        return None
    hour, minute, second = int(parts[0]), int(parts[1]), int(whole)
    if hour > 23 or minute > 59 or second > 60:
        return None
    return (hour * 3600 + minute * 60 + second) * 1_000_000_000 + int((fraction + "0" * 9)[:9])


def epoch_ns(value: float) -> int:
    """A Unix time given in s, ms, us or ns, told apart by magnitude (years 2001 to 2286 in each unit)."""
    magnitude = abs(value)
    for limit, factor in ((1e10, 1_000_000_000), (1e13, 1_000_000), (1e16, 1_000)):
        if magnitude < limit:
            return round(value * factor)
    return int(value)
