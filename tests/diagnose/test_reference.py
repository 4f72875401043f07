from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tracekit import Loop
from tracelens.diagnose.reference import (
    FEATURES,
    SCHEMA,
    features,
    read_model,
    reference_model,
    second_opinion,
)
from tracelens.errors import InputError
from tracelens.signals.analysis import RankAnalysis
from tracelens.signals.catalog import rank_signals
from tracelens.signals.signal import Signals

ROOT = Path(__file__).resolve().parents[2]


def opinion_of(loop: Loop, folder: Path) -> tuple[str, float]:
    return second_opinion(rank_signals(RankAnalysis(loop.trace().tables(folder))))


def small_model(**changes: object) -> dict[str, object]:
    count = len(FEATURES)
    value: dict[str, object] = {
        "schema": SCHEMA, "features": list(FEATURES), "mean": [0.0] * count, "scale": [1.0] * count,
        "covariance": np.eye(count).tolist(), "temperature": 1.0,
        "centroids": {"cpu": [1.0] * count, "gpu": [-1.0] * count, "none": [-9.0] * count}, "training": {},
    }  # fmt: skip
    return {**value, **changes}


def test_the_nearest_centroid_speaks() -> None:
    model = read_model(small_model())
    name, agreement = model.nearest(np.ones(len(FEATURES)))
    assert name == "cpu"
    assert agreement == pytest.approx(1, abs=1e-3)
    # half-way there is no agreement
    assert model.nearest(np.zeros(len(FEATURES)))[1] == pytest.approx(0, abs=1e-6)
    odds = np.exp(-(1.1**2 - 0.9**2) * len(FEATURES) / 2)
    assert model.nearest(np.full(len(FEATURES), 0.1)) == ("cpu", pytest.approx((1 - odds) / (1 + odds)))


def test_distances_are_in_the_metric_of_the_spread() -> None:
    wide = np.eye(len(FEATURES))
    wide[0, 0] = 1e6
    row = np.full(len(FEATURES), -1.0)
    row[0] = 9.0  # far off in a direction in which classes spread anyway
    assert read_model(small_model(covariance=wide.tolist())).nearest(row)[0] == "gpu"
    assert read_model(small_model()).nearest(row)[0] == "cpu"


def test_missing_features_are_left_out_of_the_distance() -> None:
    model = read_model(small_model())
    row = np.full(len(FEATURES), 1.0)
    row[: len(FEATURES) // 3] = np.nan
    assert model.nearest(row)[0] == "cpu"
    row[: len(FEATURES) * 2 // 3] = np.nan
    assert model.nearest(row) == ("inconclusive", 0.0)


def test_no_signals_no_opinion() -> None:
    assert second_opinion(Signals()) == ("inconclusive", 0.0)


def test_a_model_of_other_features_is_refused() -> None:
    with pytest.raises(InputError, match="make model"):
        read_model(small_model(features=["phase.load"]))
    with pytest.raises(InputError, match="make model"):
        read_model(small_model(schema="tracelens.reference/0"))


def test_plain_cases(tmp_path: Path) -> None:
    waiting, agreement = opinion_of(Loop(steps=12, load_us=30_000), tmp_path / "load")
    assert waiting == "cpu"
    assert agreement > 0.1
    copying = Loop(steps=12, load_us=10, copy_bytes=200_000_000, copy_us=60_000, pinned=False)
    assert opinion_of(copying, tmp_path / "copy")[0] == "h2d_copy"
    computing = Loop(steps=12, load_us=10, kernels=(("ampere_sgemm_128x64_tn", 4000),) * 8)
    assert opinion_of(computing, tmp_path / "compute")[0] == "gpu"


def test_features_are_shares_of_the_step(tmp_path: Path) -> None:
    signals = rank_signals(RankAnalysis(Loop(steps=12, load_us=30_000).trace().tables(tmp_path)))
    row = dict(zip(FEATURES, features(signals).tolist(), strict=True))
    load, host, step = (signals.number(n) for n in ("phase.load", "host.saving_ms", "steps.mean_ms"))
    assert load is not None
    assert host is not None
    assert step is not None
    waste = load + host / step
    assert row["host waste"] == pytest.approx(waste / (waste + 0.08))
    assert row["no GPU"] == 0.0


def test_the_shipped_model_is_readable_and_says_how_good_it_is() -> None:
    model = reference_model()
    assert model.training["leave_one_family_out"] >= 0.85
    assert model.training["families"] >= 40
    assert set(model.centroids) >= {"cpu", "gpu", "h2d_copy", "communication", "memory_bandwidth", "none"}
    assert (model.scale > 0).all()
    path = ROOT / "models" / "reference.json"
    assert path.stat().st_size < 10_000
    assert json.loads(path.read_text("utf-8"))["features"] == list(FEATURES)


def test_an_opinion_needs_no_scikit_learn() -> None:
    code = (
        "import sys; from tracelens.diagnose.reference import second_opinion; from tracelens.signals.signal import Signals;"
        "second_opinion(Signals()); sys.exit('sklearn' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
