from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.render import samples
from tracelens.errors import InputError
from tracelens.model import Series
from tracelens.render.embedded import PLAIN_LIMIT, embedded_json, read_embedded
from tracelens.render.html import html_report
from tracelens.render.model_io import result_from_json

OPEN = '<script type="application/json" id="tracelens-result">'


@pytest.mark.parametrize("name", [*samples.ALL, "hostile"])
def test_a_report_gives_its_result_back(name: str, tmp_path: Path) -> None:
    result = samples.hostile() if name == "hostile" else samples.ALL[name]()
    path = tmp_path / "report.html"
    path.write_text(html_report(result), "utf-8")
    assert read_embedded(path) == json.loads(json.dumps(result.to_json()))


def test_small_results_stay_readable_and_large_ones_are_packed() -> None:
    small = json.loads(embedded_json(samples.healthy()))
    assert small["verdict"]["cause"] == "healthy"
    large = json.loads(embedded_json(samples.many_steps()))
    assert large["encoding"] == "zlib+base64"
    assert len(large["data"]) < PLAIN_LIMIT


def test_an_enormous_result_is_thinned_and_says_so(tmp_path: Path) -> None:
    rng = random.Random(3)
    t = tuple(float(i) for i in range(60_000))
    series = (
        Series("s", "S", "W", t, tuple(rng.random() for _ in t)),
        Series("k", "K", "W", (0.0, 1.0), (1.0, 2.0)),
    )
    path = _report(tmp_path, html_report(replace(samples.many_steps(), series=series)))
    assert path.stat().st_size < 400_000
    data = read_embedded(path)
    kept, total = data["thinned"]["series"]
    assert total == 120_000
    assert kept == 2 * len(data["series"][0]["t_ms"]) == 2 * len(data["series"][0]["values"]) < 30_000
    assert len(data["series"][1]["t_ms"]) == 2
    assert result_from_json(data).verdict == samples.many_steps().verdict


def test_nothing_in_it_can_end_the_script_element() -> None:
    text = embedded_json(samples.hostile())
    assert "<" not in text
    assert ">" not in text
    assert "&" not in text
    assert text.isascii()


def _report(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "report.html"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<html><body>hello</body></html>", "not a report that tracelens wrote"),
        (OPEN + '{"schema"', "cut off"),
        (OPEN + '{"schema"</script>', "damaged"),
        (OPEN + "[1]</script>", "not an object"),
        (
            OPEN + '{"encoding":"zlib+base64"}</script>',
            "damaged",
        ),
        (
            OPEN + '{"encoding":"zlib+base64","data":"!!"}</script>',
            "damaged",
        ),
        (
            OPEN + '{"encoding":"zlib+base64","data":"eJw="}</script>',
            "damaged",
        ),
        (f'<script id="tracelens-result">{"[" * 200_000}</script>', "damaged"),
    ],
)
def test_foreign_and_damaged_html_is_one_clear_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_embedded(_report(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_embedded(tmp_path / "absent.html")
    binary = tmp_path / "binary.html"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_embedded(binary)
