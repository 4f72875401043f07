from __future__ import annotations

import re
import string
from pathlib import Path
from typing import get_args

import pytest

from tracelens.errors import UsageError
from tracelens.model import PHASES, RESOURCES, Bottleneck
from tracelens.render.words import languages, load_words

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*(ROOT / "tracelens/render").glob("*.py"), *(ROOT / "reports").rglob("*.j2")]
# groups whose keys are put together from a value of the result
BY_VALUE = {
    "bottleneck",
    "bottleneck_note",
    "phase",
    "phase_note",
    "confidence",
    "basis",
    "kind",
    "outcome",
    "lane",
}
BY_VALUE |= {"limited", "section", "table"}


def _slots(text: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_every_language_has_every_key_with_the_same_slots() -> None:
    english = load_words("en").texts
    assert "zh" in languages()
    for language in languages():
        other = load_words(language).texts
        assert other.keys() == english.keys()
        assert other["language"] == language
        assert {key: _slots(text) for key, text in other.items()} == {
            key: _slots(text) for key, text in english.items()
        }


def test_chinese_is_translated() -> None:
    english, chinese = load_words("en").texts, load_words("zh").texts
    same = {key for key in english if english[key] == chinese[key]}
    assert same <= {"bottleneck.cpu", "bottleneck.gpu", "ui.made_by"}


def test_used_keys_exist_and_all_keys_are_used() -> None:
    source = "\n".join(path.read_text("utf-8") for path in SOURCES)
    used = set(
        re.findall(r"""["']((?:ui|stat|col|chart|memory|note|table|kind|confidence)\.\w+)["']""", source)
    )
    keys = set(load_words("en").texts)
    assert used <= keys
    dynamic = {"ui.current", "ui.suggested", "chart.host_split", "chart.occupancy", "col.part", "col.engine"}
    fixed = {key for key in keys if "." in key and key.split(".")[0] not in BY_VALUE}
    assert fixed - dynamic <= used


def test_every_value_of_the_model_has_a_word() -> None:
    texts = load_words("en").texts
    assert {f"bottleneck.{name}" for name in get_args(Bottleneck)} <= texts.keys()
    assert {f"bottleneck_note.{name}" for name in RESOURCES} <= texts.keys()
    assert {f"phase.{name}" for name in PHASES} | {f"phase_note.{name}" for name in PHASES} <= texts.keys()


def test_a_language_there_is_not() -> None:
    with pytest.raises(UsageError, match="there is en, zh"):
        load_words("../en")
