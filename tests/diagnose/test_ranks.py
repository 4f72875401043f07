"""Several ranks judged together: freed together, and each with its own idle time."""

from pathlib import Path

from tests.whatif.test_scenarios import ranks
from tracelens.diagnose.judge import judge_ranks
from tracelens.diagnose.rules import load_rules


def test_a_rank_is_not_told_of_time_that_only_another_one_loses(tmp_path: Path) -> None:
    """600 us of Python on the second: freeing it helps both, but the first has no Python to look at."""
    first, second = judge_ranks(ranks(tmp_path, 600), load_rules())
    assert (second.signals.number("host.python_ms") or 0) > 0.4
    assert (first.signals.number("host.python_ms") or 0) < 0.05
    assert "host.python" not in {e.rule.id for e in first.evaluations.values() if e.outcome == "fired"}
