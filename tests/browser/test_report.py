"""The HTML report in a real Chromium: looks, accessibility, keyboard, print, no request."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.render import samples

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
SHOTS = ("loader_bound", "healthy", "four_ranks")
SCHEMES = ("light", "dark")

# the visible text's own contrast: axe looks at HTML, this at the text of the charts
_SVG_CONTRAST = """() => {
  const channel = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); };
  const light = c => { const m = c.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(m[0]) + 0.7152 * channel(m[1]) + 0.0722 * channel(m[2]); };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const bad = [];
  for (const text of document.querySelectorAll("svg text:not(.inbar)")) {
    const ink = light(getComputedStyle(text).fill);
    const ratio = (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
    if (ratio < 4.5) bad.push(text.textContent + " " + ratio.toFixed(2));
  }
  return bad;
}"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", SHOTS)
def test_screenshots_in_both_schemes(open_report: Open, tmp_path: Path, name: str, scheme: str) -> None:
    opened = open_report(name, color_scheme=scheme)
    shot = tmp_path / f"{name}-{scheme}.png"
    opened.page.screenshot(path=shot, full_page=True)
    assert shot.stat().st_size > 20_000
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 24, 28)") == (scheme == "dark")


@pytest.mark.parametrize("name", SHOTS)
def test_print_to_pdf_is_light_and_complete(open_report: Open, tmp_path: Path, name: str) -> None:
    opened = open_report(name, color_scheme="dark")
    path = tmp_path / f"{name}.pdf"
    opened.page.pdf(path=path, format="A4", print_background=True)
    assert path.read_bytes().startswith(b"%PDF")
    assert path.stat().st_size > 20_000
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for table in opened.page.locator("details table").all():
        assert table.is_visible()
    assert not opened.page.locator("nav").is_visible()


def test_print_shows_the_tables_without_javascript_too(open_report: Open) -> None:
    opened = open_report("loader_bound", java_script_enabled=False)
    opened.page.emulate_media(media="print")
    tables = opened.page.locator("details table")
    assert tables.count() >= 10
    # the layout's own answer: a hidden box has no height
    for index in range(tables.count()):
        box = tables.nth(index).bounding_box()
        assert box is not None
        assert box["height"] > 10


@pytest.mark.parametrize("name", [*samples.ALL, "hostile"])
def test_nothing_is_loaded_and_nothing_complained_of(open_report: Open, name: str) -> None:
    opened = open_report(name)
    opened.page.mouse.move(400, 400)
    opened.page.wait_for_timeout(100)
    assert opened.requests == []
    assert opened.complaints == []


def test_the_policy_stops_what_would_leave_the_page(open_report: Open) -> None:
    opened = open_report("healthy")
    opened.page.evaluate("document.body.appendChild(new Image()).src = 'https://example.invalid/x.png'")
    opened.page.evaluate(
        "document.body.appendChild(document.createElement('script')).text = 'window.ran = 1'"
    )
    opened.page.wait_for_timeout(100)
    assert opened.page.evaluate("window.ran") is None
    assert opened.requests == []
    assert len(opened.complaints) >= 2


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["loader_bound", "inconclusive", "four_ranks"])
def test_axe_finds_nothing(open_report: Open, name: str, scheme: str, lang: str) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    opened = open_report(name, color_scheme=scheme, lang=lang)
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    # rows of one table are alike: a few of each keep this fast
    opened.page.evaluate(
        "document.querySelectorAll('tbody tr:nth-child(n + 6)').forEach(one => one.remove())"
    )
    opened.page.evaluate((resources.files(axe) / "axe.min.js").read_text("utf-8"))
    found = opened.page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
    )
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
    assert opened.page.evaluate(_SVG_CONTRAST) == []


def test_axe_would_find_something(open_report: Open) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    opened = open_report("healthy")
    opened.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<button></button>')")
    opened.page.evaluate((resources.files(axe) / "axe.min.js").read_text("utf-8"))
    found = opened.page.evaluate("axe.run(document)")
    assert "button-name" in [one["id"] for one in found["violations"]]


@pytest.mark.parametrize("name", [*samples.ALL, "hostile"])
@pytest.mark.parametrize("width", [360, 768, 1280, 2200])
def test_no_page_scrolls_sideways(open_report: Open, name: str, width: int) -> None:
    opened = open_report(name, width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_answer_is_on_the_first_screen(open_report: Open) -> None:
    for width in (360, 1280):
        page = open_report("loader_bound", width=width).page
        for selector in ("h1", ".confidence", ".do .gain"):
            box = page.locator(selector).first.bounding_box()
            assert box["y"] + box["height"] < 900


def test_the_keyboard_reaches_every_summary_and_copy_button(open_report: Open) -> None:
    page = open_report("loader_bound").page
    count = page.locator("summary").count() + page.locator("button.copy").count()
    assert page.locator("button.copy").count() >= 8
    reached = set()
    first = None
    for _ in range(200):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            "(() => { const e = document.activeElement; if (!e || e === document.body) return null;"
            " e.dataset.n ??= String(window.counter = (window.counter || 0) + 1);"
            " const box = e.getBoundingClientRect(); const ring = getComputedStyle(e).outlineStyle;"
            " return [e.tagName, e.className, e.dataset.n, box.width > 0, ring]; })()"
        )
        if focus is None:
            break
        first = first or focus
        assert focus[3], focus
        assert focus[4] != "none", focus
        if focus[0] == "SUMMARY" or focus[1] == "copy":
            reached.add(focus[2])
    assert first is not None
    assert first[1] == "skip"
    assert len(reached) == count


def test_a_table_opens_from_the_keyboard(open_report: Open) -> None:
    page = open_report("loader_bound").page
    summary = page.locator("#phases summary")
    table = page.locator("#phases table")
    assert not table.is_visible()
    summary.focus()
    page.keyboard.press("Enter")
    assert table.is_visible()


def test_copy_copies_the_snippet(open_report: Open) -> None:
    opened = open_report("loader_bound", permissions=["clipboard-read", "clipboard-write"])
    button = opened.page.locator(".do button.copy").first
    button.click()
    opened.page.wait_for_function("document.querySelector('.do button.copy').textContent === 'Copied'")
    assert opened.page.evaluate("navigator.clipboard.readText()") == samples.SNIPPET
    assert opened.complaints == []


def test_everything_is_there_without_javascript(open_report: Open) -> None:
    opened = open_report("loader_bound", java_script_enabled=False)
    page = opened.page
    assert page.locator("button").count() == 0
    sections = page.locator(".body > section")
    assert sections.count() >= 20
    for index in range(sections.count()):
        assert sections.nth(index).is_visible()
    page.locator("#steps summary").click()
    assert page.locator("#steps table").is_visible()


def test_hostile_text_does_not_run(open_report: Open) -> None:
    opened = open_report("hostile")
    page = opened.page
    assert page.evaluate("window.pwned") is None
    assert page.locator("main").is_visible()
    assert page.locator("img").count() == 0
    assert page.locator("#tool").is_visible()
    assert page.evaluate("[...document.scripts].length") == 2
    for link in page.locator("a").all():
        assert link.get_attribute("href").startswith("#")


def test_right_to_left_names_do_not_turn_their_line(open_report: Open) -> None:
    page = open_report("hostile").page
    assert page.evaluate(
        "[...document.querySelectorAll('code')].every(e => getComputedStyle(e).unicodeBidi == 'isolate')"
    )
    assert page.evaluate("getComputedStyle(document.body).direction") == "ltr"


def test_charts_fill_their_column_at_every_width(open_report: Open) -> None:
    for width in (360, 1280):
        page = open_report("loader_bound", width=width).page
        for chart in page.locator("svg.chart").all():
            box = chart.bounding_box()
            assert 180 < box["width"] <= width
            assert box["x"] + box["width"] <= width
