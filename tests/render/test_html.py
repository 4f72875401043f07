from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.render import samples
from tracelens.errors import UsageError
from tracelens.model import Curve, Missing, Result, Series, Span, Timeline
from tracelens.render.embedded import read_embedded
from tracelens.render.html import html_report, prose
from tracelens.render.model_io import result_from_json

VOID = {"meta", "br", "img", "input", "link", "hr"}
LIMIT = 400_000


class _Page(HTMLParser):
    """Collects elements and text, and fails on a tag that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def _parse(html: str) -> _Page:
    page = _Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def _sections(html: str) -> list[str]:
    return re.findall(r'<section id="([\w-]+)"', html)


@pytest.mark.parametrize("name", [*samples.ALL, "hostile"])
def test_the_document_is_well_formed_with_unique_ids(name: str) -> None:
    page = _parse(html_report(samples.hostile() if name == "hostile" else samples.ALL[name]()))
    ids = [one["id"] for _, one in page.elements if "id" in one]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for key in ("aria-labelledby", "aria-describedby"):
            if key in attributes:
                assert attributes[key] in ids
    for link in page.all("a"):
        assert link["href"] is not None
        assert link["href"].removeprefix("#") in ids


def test_sections_come_in_the_order_of_a_reader() -> None:
    result = replace(samples.loader_bound(), ranks=samples.four_ranks().ranks)
    order = """change phases steps timeline findings what-if regimes curves series kernels memory host-split
        occupancy ranks declined ruled-out quality missing rules inputs tool"""
    assert _sections(html_report(result)) == order.split()


def test_empty_sections_vanish() -> None:
    assert _sections(html_report(samples.inconclusive())) == ["quality", "missing", "inputs", "tool"]


def test_the_answer_is_in_the_head() -> None:
    html = html_report(samples.loader_bound())
    head = _parse(html).text.split("What to change")[0]
    for said in ("CPU", "load.too_few_workers", "Loading limits this job", "high", "0.93", "1.70x",
                 "between 1.60x and 1.78x", "then limited by GPU", "num_workers=6,"):  # fmt: skip
        assert said in head


def test_unknown_is_written_and_never_zero() -> None:
    text = _parse(html_report(samples.inconclusive())).text
    assert text.count("unknown") >= 4
    assert not re.search(r"(?<![\d.])0 ?(%|ms|samples/s|B)\b", text)


def test_all_what_ifs_and_their_kind_are_explained() -> None:
    text = _parse(html_report(samples.loader_bound())).text
    for said in ("1.71x", "1.05x", "1.10x", "1.12x", "1.00x", "replaying the recorded steps", "off by 1 %"):
        assert said in text
    assert "Upper bounds from phase shares" in _parse(html_report(samples.four_ranks())).text


def test_every_chart_has_a_title_and_a_table_behind_it() -> None:
    html = html_report(replace(samples.loader_bound(), ranks=samples.four_ranks().ranks))
    figures = re.findall(r"<figure>(.*?)</figure>", html, re.S)
    assert len(figures) == html.count('class="plot"') >= 12
    for figure in figures:
        assert re.search(r'<svg class="chart[^>]* role="img"', figure)
        assert "<title" in figure
        assert "<desc" in figure
        assert "<details>" in figure
        assert "<table" in figure


def test_thinned_steps_say_so() -> None:
    text = _parse(html_report(samples.many_steps(500))).text
    assert "500 steps: each bar is the mean of 3 consecutive steps" in text
    assert "each bar is the mean" not in _parse(html_report(samples.loader_bound())).text


@pytest.mark.parametrize("name", samples.ALL)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_stays_small_enough_to_mail(name: str, lang: str) -> None:
    assert len(html_report(samples.ALL[name](), lang=lang).encode("utf-8")) < LIMIT


def test_a_full_result_stays_under_the_limit() -> None:
    base = samples.many_steps(500)
    assert base.timeline is not None
    label = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, Array<3>>_"
    lanes = tuple(
        replace(lane, spans=tuple(Span(i * 0.2, i * 0.2 + 0.11, f"{label}{i % 50}") for i in range(1500)))
        for lane in base.timeline.lanes
    )
    t = tuple(i * 100.0 for i in range(5000))
    series = tuple(
        Series(f"s{k}", f"Series {k}", "share", t, tuple((i * 7 % 100) / 100 for i in range(5000)))
        for k in range(8)
    )
    full = replace(base, timeline=Timeline(300.0, lanes, base.timeline.steps), series=series)
    assert len(html_report(full).encode("utf-8")) < LIMIT


def test_nothing_is_loaded_and_the_policy_forbids_it() -> None:
    html = html_report(samples.loader_bound())
    page = _parse(html)
    assert page.all("link") == []
    assert page.all("img") == []
    assert all("src" not in one for one in page.all("script"))
    assert "@import" not in html
    assert not re.search(r"url\((?!#p-)", html)
    assert "://" not in re.sub(r'id="tracelens-result">.*?</script>', "", html, flags=re.S)
    policy = next(
        one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "'unsafe-inline'" not in policy.split("script-src")[1]


def test_the_language_changes_the_interface_and_not_the_rules_texts() -> None:
    html = html_report(samples.loader_bound(), lang="zh")
    page = _parse(html)
    assert page.all("html")[0]["lang"] == "zh"
    for said in (
        "应作的改动",
        "置信度",
        "逐步分解",
        "未知",
        "Too few DataLoader workers",
        "Loading limits this job",
    ):
        assert said in page.text
    for english in ("What to change", "unknown", "Throughput\n", "Confidence"):
        assert english not in page.text


def test_a_language_there_is_not() -> None:
    with pytest.raises(UsageError, match="'xx'"):
        html_report(samples.healthy(), lang="xx")


def test_a_title_of_ones_own() -> None:
    assert "<title>CPU: my run - tracelens</title>" in html_report(samples.loader_bound(), title="my run")


def test_hostile_texts_are_text() -> None:
    html = html_report(samples.hostile())
    page = _parse(html)
    assert page.all("img") == []
    assert len(page.all("script")) == 2
    assert not [one for _, one in page.elements if any(key.startswith("on") for key in one)]
    assert not [one for _, one in page.elements if str(one.get("href", "")).startswith("javascript:")]
    assert "{{7*7}}" in page.text
    assert not re.search("[\x00\x1b\u202e\ud800]", html)


def test_prose_knows_paragraphs_and_code_only() -> None:
    assert prose("Set `a<b`.\n\n**no** <b>") == "<p>Set <code>a&lt;b</code>.</p><p>**no** &lt;b&gt;</p>"


def test_outcomes_are_four_different_things() -> None:
    text = " ".join(_parse(html_report(samples.loader_bound())).text.split())
    assert "2 fired, 2 could not be evaluated, 4 passed, 2 not applicable" in text


def test_odd_but_legal_results_do_not_break_it() -> None:
    base = samples.inconclusive()
    odd: tuple[Result, ...] = (
        replace(base, phases={}),
        replace(base, series=(Series("a", "A", "W", (), ()), Series("b", "B", "W", (0.0, 0.0), (1.0, 1.0)))),
        replace(base, curves=(Curve("n", "N", "x", (), ()), Curve("n", "N", "x", (1.0, 1.0), (2.0, 2.0)))),
        replace(base, timeline=Timeline(5.0, (), ((0, 9.0),))),
        replace(base, what_if=replace(base.what_if, kind="bound")),
        replace(base, tool={}, inputs={}, environment={"a": {"b": {"c": []}}}),
        replace(base, verdict=replace(base.verdict, cause=None, headline="")),
    )
    for result in odd:
        page = _parse(html_report(result))
        assert {link["href"] for link in page.all("a")} <= {f"#{one.get('id')}" for _, one in page.elements}


def test_long_tables_say_what_they_leave_out() -> None:
    text = _parse(html_report(samples.many_steps())).text
    assert "The longest 200 of 2,000 spans" in text
    assert "Only the first 25 rows are printed" in text
    many = replace(
        samples.four_ranks(), ranks=tuple(replace(samples.four_ranks().ranks[0], rank=i) for i in range(600))
    )
    text = _parse(html_report(many)).text
    assert "The first 64 of 600 ranks are drawn" in text
    assert "The first 500 of 600 rows" in text


def test_the_head_points_to_what_weakens_it() -> None:
    html = html_report(samples.four_ranks())
    for link in ("#what-if", "#quality", "#missing"):
        assert f'<a href="{link}">' in html.split("<nav")[0]
    assert 'class="caveats"' not in html_report(samples.healthy())


@pytest.mark.parametrize("name", samples.ALL)
def test_a_report_read_back_is_the_same_report(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html_report(samples.ALL[name]()), "utf-8")
    again = html_report(result_from_json(read_embedded(path)))
    assert again == html_report(result_from_json(samples.ALL[name]().to_json()))


def test_what_was_not_measured_is_listed_by_reason_the_commonest_first() -> None:
    given = [Missing("a.one", "rare"), Missing("b.one", "common"), Missing("b.two", "common")]
    html = html_report(replace(samples.loader_bound(), missing=tuple(given)))
    text = _parse(html).text
    part = text[text.index("b.one, b.two") - 60 :]
    assert part.index("common") < part.index("b.one, b.two") < part.index("rare") < part.index("a.one")
    assert text.count("b.one") == text.count("b.two") == 1
