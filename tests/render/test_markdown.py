from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render import samples
from tracelens.model import Verdict
from tracelens.render.markdown import code, escape, markdown_block


def test_headline_table_phases_and_snippet() -> None:
    text = markdown_block(samples.loader_bound())
    lines = text.splitlines()
    assert lines[0].startswith("### Loading limits this job")
    assert "| `num_workers` | `2` | `6` | **1.64x** (between 1.52x and 1.71x) | GPU |" in lines
    assert any(line.startswith("| together: `num_workers` + `pin_memory` |") for line in lines)
    assert any(line.startswith("Time by phase: load 41 %") for line in lines)
    assert "```python\nloader = DataLoader(" in text
    assert "Not worth doing: `batch_size` `256`: fits (80 % of memory)" in text


@pytest.mark.parametrize("name", samples.ALL)
def test_it_fits_a_pull_request(name: str) -> None:
    assert len(markdown_block(samples.ALL[name]()).splitlines()) <= 45


def test_unknown_values_are_named() -> None:
    text = markdown_block(samples.loader_bound())
    assert "| `persistent_workers` | unknown | `True` | unknown | unknown |" in text
    assert "GPU busy unknown" in markdown_block(samples.inconclusive())


def test_no_empty_parts() -> None:
    text = markdown_block(samples.inconclusive())
    assert "```" not in text
    assert "|---" not in text
    assert "\n\n\n" not in text


def test_tables_keep_their_columns_whatever_the_names() -> None:
    rows = [line for line in markdown_block(samples.hostile()).splitlines() if line.startswith("|")]
    assert len(rows) > 3
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


def test_a_snippet_cannot_close_its_fence() -> None:
    base = samples.loader_bound()
    assert base.plan is not None
    text = markdown_block(replace(base, plan=replace(base.plan, snippet="x = 1\n````\n<b>out</b>\n````")))
    assert "\n`````python\n" in text
    assert text.count("\n`````\n") == 1


def test_mentions_references_and_links_are_defused() -> None:
    verdict = Verdict("cpu", None, 0.9, "ask @octocat about #12, GH-3, https://x.example/ and www.x.example")
    text = markdown_block(replace(samples.inconclusive(), verdict=verdict)).splitlines()[0]
    for live in ("@octocat", "#12", "GH-3", "https://", "www."):
        assert live not in text


@given(st.text(max_size=80))
def test_escaped_text_stays_one_plain_line(text: str) -> None:
    written = escape(text)
    assert "\n" not in written
    assert "<" not in written
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]|~]", re.sub(r"\\[`*_{}\[\]|~$\\]", "", written))


@given(st.text(alphabet="`ab|\\ ", min_size=1, max_size=30).filter(str.strip))
def test_inline_code_is_one_code_span(text: str) -> None:
    written = code(text)
    fence = re.match("`+", written)
    assert fence is not None
    inner = written[len(fence.group()) : -len(fence.group())]
    assert written.endswith(fence.group())
    assert fence.group() not in re.findall("`+", inner)
