"""Fewer workers, where more than the cores get in each other's way: advised without a number."""

from types import SimpleNamespace
from typing import Any

import pytest

from tracelens.diagnose.advice.prescribe import _fewer


def case(rule: str | None, usable: float | None) -> Any:
    return SimpleNamespace(
        signals=SimpleNamespace(number=lambda name: usable),
        fired_load_rule=rule,
        next_bottleneck=lambda applied: "gpu",
        analysis=SimpleNamespace(settings={"num_workers": 16}),
    )


def test_one_worker_a_core_is_where_to_start() -> None:
    proposal = _fewer(case("load.too_many_workers", 4.0), 16)
    assert proposal is not None
    advised = proposal.recommendation
    assert (advised.current, advised.suggested, advised.predicted_speedup) == (16, 4, None)
    assert advised.set_flag == "--set num_workers=4"


@pytest.mark.parametrize(
    ("rule", "usable", "today"),
    [
        ("load.cores_exhausted", 4.0, 16),
        ("load.too_many_workers", None, 16),
        ("load.too_many_workers", 4.0, 4),
    ],
)
def test_nothing_is_said_where_cores_are_not_outnumbered_or_not_known(
    rule: str, usable: float | None, today: int
) -> None:
    assert _fewer(case(rule, usable), today) is None
