"""A broken analyser must cost right answers on the committed simulated runs."""

from __future__ import annotations

from benchmarks.mutations import FIXTURES, MUTATIONS, runs_in, scores


def test_every_mutation_is_noticed() -> None:
    runs = runs_in(FIXTURES)
    assert len(runs) >= 8
    found = dict(scores(runs))
    base = found.pop("as it is")
    assert base.classes == base.causes == len(runs)
    assert set(found) == set(MUTATIONS)
    unnoticed = [name for name, score in found.items() if not score.worse_than(base)]
    assert not unnoticed
