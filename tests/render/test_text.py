from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render import samples
from tracelens.model import PHASES
from tracelens.render.text import terminal_summary


def test_the_first_line_is_the_verdict() -> None:
    first = terminal_summary(samples.loader_bound()).splitlines()[0]
    assert first.startswith("[CPU] Loading limits this job")


def test_the_plan_its_speedup_and_the_next_limit_are_said() -> None:
    text = " ".join(terminal_summary(samples.loader_bound()).split())
    assert "num_workers 2 -> 6, pin_memory False -> True: 1.70x predicted (between 1.60x and 1.78x)" in text
    assert "then limited by GPU" in text
    assert "tracelens record --set num_workers=6 --set pin_memory=True -- CMD" in text


def test_without_a_plan_the_best_recommendation_is_the_change() -> None:
    text = " ".join(terminal_summary(samples.four_ranks()).split())
    assert "num_workers 2 -> 6: 1.64x predicted" in text


def test_nothing_to_change_says_nothing_of_a_change() -> None:
    assert "change " not in terminal_summary(samples.healthy())


def test_unknown_is_never_zero() -> None:
    text = terminal_summary(samples.inconclusive())
    assert "phases    unknown" in text
    assert "GPU busy unknown" in text
    assert not re.search(r"(?<![\d.])0 ?(%|ms|samples)", text)


def test_bounds_are_called_bounds() -> None:
    assert "upper bounds" in " ".join(terminal_summary(samples.four_ranks()).split())
    assert "upper bounds from phase" not in terminal_summary(samples.loader_bound())


@pytest.mark.parametrize("name", samples.ALL)
@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_it_is_short_and_keeps_to_the_width(name: str, width: int) -> None:
    lines = terminal_summary(samples.ALL[name](), width=width).splitlines()
    assert len(lines) <= (16 if width >= 80 else 30)
    assert all(len(line) <= width for line in lines[1:])


def test_colour_only_where_asked() -> None:
    assert "\x1b" not in terminal_summary(samples.loader_bound())
    coloured = terminal_summary(samples.loader_bound(), color=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert plain.splitlines()[1:] == terminal_summary(samples.loader_bound()).splitlines()[1:]


def test_ascii_for_a_terminal_without_unicode() -> None:
    text = terminal_summary(samples.loader_bound(), unicode=False)
    assert text.isascii()
    assert "LLLL" in text
    assert "L load 41 %" in text


def test_no_escape_sequence_of_the_run_reaches_the_terminal() -> None:
    text = terminal_summary(samples.hostile())
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800-\udfff]", text)


@given(st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(lambda shares: sum(shares) > 0.01))
def test_the_bar_has_one_length(shares: list[float]) -> None:
    total = sum(shares)
    phases = {name: share / total for name, share in zip(PHASES, shares, strict=True)}
    result = replace(samples.inconclusive(), phases=phases)
    line = next(
        line for line in terminal_summary(result, unicode=False).splitlines() if line.startswith("phases")
    )
    assert len(line) == 10 + 60
