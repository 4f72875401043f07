from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.render import samples
from tracelens.errors import InputError
from tracelens.model import Recommendation
from tracelens.render.jsonview import json_text
from tracelens.render.model_io import result_from_json

EXAMPLES = Path(__file__).resolve().parents[2] / "fixtures" / "results"
CONTRACT = Path(__file__).resolve().parents[3] / "shared" / "result.schema.json"


@pytest.mark.parametrize("name", [*samples.ALL, "hostile"])
def test_a_result_comes_back_as_it_was(name: str) -> None:
    result = samples.hostile() if name == "hostile" else samples.ALL[name]()
    data = result.to_json()
    assert result_from_json(json.loads(json.dumps(data))).to_json() == data


def test_unknown_keys_are_ignored_and_absent_ones_unknown() -> None:
    data = samples.loader_bound().to_json()
    data["new_key"] = {"a": 1}
    data["verdict"]["later"] = True
    for key in ("step_rows", "timeline", "curves", "kernels", "rules_checked", "declined", "memory"):
        del data[key]
    del data["recommendations"][0]["basis"]
    del data["recommendations"][0]["interval"]
    result = result_from_json(data)
    assert result.timeline is None
    assert result.step_rows == ()
    assert result.memory.peak_bytes is None
    assert isinstance(result.recommendations[0], Recommendation)
    assert result.recommendations[0].interval is None


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("verdict", "confidence"), "high", "verdict.confidence should be a number"),
        (("verdict", "bottleneck"), "gpuu", "verdict.bottleneck should be one of cpu"),
        (("verdict",), None, "verdict should be an object"),
        (("steps", "count"), 1.5, "steps.count should be a whole number"),
        (("steps", "mean_ms"), True, "steps.mean_ms should be a number"),
        (("phases", "load"), "x", "phases.load should be a number"),
        (("recommendations", 0, "interval"), [1.0], "recommendations[0].interval should be a list of 2"),
        (("findings",), {}, "findings should be a list"),
        (("verdict", "headline"), 3, "verdict.headline should be a text"),
    ],
)
def test_a_damaged_value_is_named(path: tuple[str | int, ...], value: object, said: str) -> None:
    data = samples.loader_bound().to_json()
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputError) as caught:
        result_from_json(data)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [[], {}, "x", {"schema": "other/1"}, {"schema": 3}])
def test_what_is_not_a_result_is_refused(data: object) -> None:
    with pytest.raises(InputError, match="not a tracelens result"):
        result_from_json(data)


def test_a_newer_format_asks_for_an_update() -> None:
    with pytest.raises(InputError, match="update tracelens"):
        result_from_json({**samples.healthy().to_json(), "schema": "tracelens.result/2"})


def test_a_result_without_a_verdict_is_refused() -> None:
    data = samples.healthy().to_json()
    del data["verdict"]
    with pytest.raises(InputError, match="lacks verdict"):
        result_from_json(data)


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.json")} == samples.ALL.keys() - {"many_steps"}


def test_the_json_view_is_strict_json_and_utf8() -> None:
    result = dataclasses.replace(
        samples.healthy(),
        environment={"nan": float("nan"), "inf": [float("inf")], "path": Path("a/b"), "name": "\ud800 数据"},
    )
    text = json_text(result)
    text.encode("utf-8")
    assert "数据" in text
    data = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert data["environment"] == {"nan": None, "inf": [None], "path": "a/b", "name": "? 数据"}
    assert list(data)[:3] == ["schema", "verdict", "steps"]


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.json")))
def test_the_examples_are_what_the_samples_write(name: str) -> None:
    stored = json.loads((EXAMPLES / f"{name}.json").read_text("utf-8"))
    assert stored == json.loads(json_text(samples.ALL[name]()))


@pytest.mark.parametrize("name", samples.ALL)
def test_the_examples_keep_the_contract(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    if not CONTRACT.is_file():
        pytest.skip("the contract is not beside this checkout")
    jsonschema.validate(samples.ALL[name]().to_json(), json.loads(CONTRACT.read_text("utf-8")))
