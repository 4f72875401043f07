"""The HTML report: one file, no network, complete without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any

from tracelens.model import Result
from tracelens.render.display import Display
from tracelens.render.embedded import ELEMENT_ID, embedded_json
from tracelens.render.sanitize import clean, shorten
from tracelens.render.words import DEFAULT, load_words
from tracelens.resources import data_dir

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_CODE = re.compile(r"`([^`\n]+)`")
_PARAGRAPHS = re.compile(r"\n\s*\n")


def html_report(result: Result, *, title: str | None = None, lang: str = DEFAULT) -> str:
    """The whole report as one HTML document that carries its result (see ``embedded``).

    ``title`` defaults to the run's name. Raises UsageError for a language there is not.
    """
    from markupsafe import Markup

    from tracelens.render.view import build_page

    words = load_words(lang)
    show = Display(words)
    folder = data_dir("reports") / "html"
    script = (folder / "report.js").read_text("utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    text = (
        template_environment()
        .get_template("report.html.j2")
        .render(
            page=build_page(result, show, title),
            words=words,
            show=show,
            # our own files and escaped JSON: the only text that is not autoescaped
            style=Markup((folder / "report.css").read_text("utf-8").strip()),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            embedded=Markup(embedded_json(result)),
            embedded_id=ELEMENT_ID,
        )
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def template_environment() -> Environment:
    """Jinja with autoescape on; every text that a template writes is also cleaned of control characters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(data_dir("reports") / "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["prose"] = prose
    environment.filters["shorten"] = shorten
    return environment


def _finalize(value: Any) -> Any:
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return clean(value)
    return value


def prose(text: str) -> Markup:
    """A rule's text: blank lines part paragraphs, backticks mark code; everything else is escaped."""
    from markupsafe import Markup, escape

    paragraphs = []
    for paragraph in _PARAGRAPHS.split(clean(text).strip()):
        pieces = _CODE.split(paragraph)
        written = [f"<code>{escape(p)}</code>" if i % 2 else str(escape(p)) for i, p in enumerate(pieces)]
        paragraphs.append(f"<p>{''.join(written)}</p>")
    return Markup("".join(paragraphs))
