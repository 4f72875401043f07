"""The interface words of a view, by language; ``reports/html/lang`` holds one file a language."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tracelens.errors import UsageError
from tracelens.resources import data_dir

DEFAULT = "en"


@dataclass(frozen=True)
class Words:
    """``words("stat.batch", batch="64")``: the text of a key with its slots filled."""

    language: str
    texts: Mapping[str, str]

    def __call__(self, key: str, **slots: object) -> str:
        text = self.texts[key]
        return text.format(**slots) if slots else text

    def known(self, group: str, name: str | None) -> str:
        """The word for a value of the result (a class, a phase ...); what has no word is shown as it is."""
        if name is None:
            return self.texts["unknown"]
        return self.texts.get(f"{group}.{name}", name)


def languages() -> tuple[str, ...]:
    """The languages there are, sorted."""
    return tuple(sorted(path.stem for path in (data_dir("reports") / "html" / "lang").glob("*.toml")))


@cache
def load_words(language: str = DEFAULT) -> Words:
    """The catalogue of a language. Raises UsageError, naming those there are."""
    if language not in languages():
        raise UsageError(f"no report language {language!r}; there is {', '.join(languages())}")
    path = data_dir("reports") / "html" / "lang" / f"{language}.toml"
    return Words(language, _flat(tomllib.loads(path.read_text("utf-8"))))


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = str(value)
    return flat
