"""The log: lines survive a full disk, a slow file system and a fork."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tracelens.agent import log as module
from tracelens.agent.log import Log


class Clock:
    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        self.now += 1000
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module.time, "monotonic_ns", found)
    return found


def numbers(path: Path) -> list[int]:
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line)["n"])
        except ValueError:
            continue
    return found


def quiet(path: str, error: OSError) -> None:
    raise AssertionError(error)


def test_urgent_lines_are_there_at_once(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), quiet)
    log.write({"n": 1, "text": "äß"}, urgent=True)
    assert (tmp_path / "log").read_text("utf-8") == '{"n":1,"text":"\\u00e4\\u00df"}\n'
    log.write({"n": 2})
    log.write({"n": 3}, urgent=True)
    assert numbers(tmp_path / "log") == [1, 2, 3]


def test_odd_values_do_not_break_a_line(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), quiet)
    log.write({"n": 1, "path": tmp_path, "text": "\ud800"})
    log.close()
    assert numbers(tmp_path / "log") == [1]


def test_lines_are_written_together_twice_a_second(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(str(tmp_path / "log"), quiet)
    sizes: list[int] = []
    write = os.write

    def counting(fd: int, data: bytes) -> int:
        sizes.append(data.count(b"\n"))
        return write(fd, data)

    monkeypatch.setattr(module.os, "write", counting)
    for number in range(1000):
        clock.now += 10_000_000
        log.write({"n": number})
    assert len(sizes) < 25
    assert max(sizes) <= 51  # half a second of 10 ms
    clock.now += 10**9
    log.write({"n": 1000})  # a slow step's line does not wait
    assert numbers(tmp_path / "log") == list(range(1001))


def test_many_lines_do_not_pile_up(tmp_path: Path, clock: Clock) -> None:
    log = Log(str(tmp_path / "log"), quiet)
    for number in range(5000):
        log.write({"n": number})
    assert len(numbers(tmp_path / "log")) >= 4000


def test_a_full_disk_is_told_once_and_tried_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    log = Log(str(tmp_path / "log"), lambda path, error: told.append(error.errno))
    write = os.write
    state = {"room": 5}

    def filling(fd: int, data: bytes) -> int:
        if state["room"] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: state["room"]]
        state["room"] -= len(part)
        return write(fd, part)

    log.write({"n": 0}, urgent=True)
    monkeypatch.setattr(module.os, "write", filling)
    for number in range(1, 20):
        log.write({"n": number}, urgent=True)
    assert told == [errno.ENOSPC]
    assert log.dropped == 19
    state["room"] = 10**6
    clock.now += 6 * 10**9
    log.write({"n": 20}, urgent=True)
    log.write({"n": 21}, urgent=True)
    assert numbers(tmp_path / "log") == [0, 20, 21]
    assert told == [errno.ENOSPC]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    told: list[Any] = []
    log = Log(str(tmp_path / "none" / "log"), lambda path, error: told.append(error.errno))
    log.write({"n": 1}, urgent=True)
    log.write({"n": 2}, urgent=True)
    assert told == [errno.ENOENT]


def test_a_child_forgets_what_its_parent_will_write(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), quiet)
    log.write({"n": 1}, urgent=True)
    log.write({"n": 2})
    log.forget()
    log.write({"n": 3}, urgent=True)
    assert numbers(tmp_path / "log") == [1, 3]


def test_lines_wait_no_longer_than_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**12
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: now)
    path = tmp_path / "log"
    log = Log(str(path), lambda path, error: None, every_ns=100)
    counts = []
    for later in (0, 50, 51, 200):  # the first is written at once
        now += later
        log.write({"n": later})
        counts.append(path.read_text().count("\n"))
    assert counts == [1, 1, 3, 4]
