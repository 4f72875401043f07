from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.render import samples
from tracelens.render.html import html_report
from tracelens.render.jsonview import json_text
from tracelens.render.markdown import markdown_block
from tracelens.render.model_io import result_from_json
from tracelens.render.text import terminal_summary


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["loader_bound", "four_ranks", "healthy"]))
def test_whatever_is_unknown_no_view_breaks_or_says_none(seed: int, name: str) -> None:
    result = samples.with_unknowns(samples.ALL[name](), seed)
    html = html_report(result).split('<script type="application/json"')[0]
    for text in (html, markdown_block(result), terminal_summary(result)):
        assert "None" not in text
        assert "nan" not in text.replace("nanosecond", "").lower().split()
    assert result_from_json(json.loads(json_text(result))).to_json() == result.to_json()
