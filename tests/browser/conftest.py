"""A Chromium for the tests of the HTML report; every request is counted, and none is let through."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.render import samples
from tracelens.render.html import html_report

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
]


def find_chromium() -> str | None:
    """The browser named by TRACELENS_CHROMIUM, else the first one on the path."""
    named = os.environ.get("TRACELENS_CHROMIUM")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine (set TRACELENS_CHROMIUM)")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield chromium
        chromium.close()


class Opened:
    """A page with what it tried to load and what it complained about."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """``open_report("loader_bound", width=360, ...)``: that sample's report in a page of its own."""
    contexts = []

    def open_one(name: str, *, width: int = 1280, lang: str = "en", **options: Any) -> Opened:
        result = samples.hostile() if name == "hostile" else samples.ALL[name]()
        path = tmp_path / f"{name}-{lang}.html"
        path.write_text(html_report(result, lang=lang), "utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        opened = Opened(context.new_page())
        own = path.as_uri()

        def intercept(route: Any) -> None:
            if route.request.url == own:
                route.continue_()
            else:
                opened.requests.append(route.request.url)
                route.abort()

        opened.page.route("**/*", intercept)
        opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.goto(own)
        return opened

    yield open_one
    for context in contexts:
        context.close()
