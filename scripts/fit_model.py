"""Fit the reference model of bottleneck classes on simulated, labelled runs: ``make model``.

    python scripts/fit_model.py                       # simulate, fit, validate, write models/reference.json
    python scripts/fit_model.py --n 300 --cache FILE  # keep the signals of the runs, to fit again without simulating

Only the simulator's TRAIN families are used; the test families and recorded runs never enter. The script prints the
accuracy of leaving one family out at a time: a family is judged by a model that has seen none of its runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from tracelens.diagnose.reference import FEATURES, ReferenceModel, features, read_model
from tracelens.errors import TracelensError
from tracelens.signals.signal import Signals

Floats = NDArray[np.float64]

MODEL = Path(__file__).resolve().parents[1] / "models" / "reference.json"
NEEDED = 0.85
SHRINKAGE = 0.1  # of the covariance towards its diagonal
ROUNDS, RATE, MOMENTUM = 150, 3.0, 0.9
TETHER = 0.002  # pulls a centroid back to the mean of its class


def one_run(job: tuple[str, int]) -> dict[str, Any] | str:
    """The signals and the truth of one simulated run; a text where there is none."""
    from benchmarks.simulator import simulate, write_trace
    from tracelens.diagnose.load import load_run
    from tracelens.ingest.discover import discover
    from tracelens.signals.catalog import rank_signals

    family, seed = job
    try:
        run = simulate(family, seed, "train", settings=False)
        with tempfile.TemporaryDirectory() as scratch:
            where = Path(scratch) / "run"
            write_trace(run, where, truth=False)
            ranks = load_run(discover([where])).ranks
            signals = rank_signals(ranks[0])
    except (RuntimeError, TracelensError) as error:
        return f"{family} seed {seed}: {error}"
    truth = run.truth.to_json()
    known = {s.name: s.value for s in signals.values() if isinstance(s.value, int | float)}
    accepted = sorted({*truth["acceptable"], *truth.get("acceptable_trace", ())})
    return {"family": family, "label": truth["bottleneck"], "acceptable": accepted, "signals": known}


def simulated(count: int, seed: int, jobs: int) -> list[dict[str, Any]]:
    """``count`` runs over the train families in turn."""
    from benchmarks.simulator import families

    names = families("train")
    work = [(names[i % len(names)], seed * 100_003 + i // len(names)) for i in range(count)]
    runs = []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for outcome in pool.imap(one_run, work, chunksize=4):
            if isinstance(outcome, str):
                print(outcome, file=sys.stderr)
            else:
                runs.append(outcome)
    return runs


def rows_of(runs: Sequence[dict[str, Any]]) -> Floats:
    """The feature vectors (runs, features), NaN where missing."""
    rows = []
    for run in runs:
        signals = Signals()
        for name, value in run["signals"].items():
            signals.add(name, value, None, "simulator")
        rows.append(features(signals))
    return np.array(rows)


def fit(rows: Floats, labels: NDArray[np.str_]) -> dict[str, Any]:
    """Centroids of the classes in the metric of their pooled covariance, then moved to where they part classes best.

    The start is linear discriminant analysis; the moves are soft nearest-prototype classification (Seo, Bode and
    Obermayer 2003), classes weighted by the inverse root of their size.
    """
    mean = np.nanmean(rows, axis=0)
    scale = np.maximum(np.nanstd(rows, axis=0), 1e-6)
    standard = np.where(np.isnan(rows), 0.0, (rows - mean) / scale)
    classes = sorted(set(labels.tolist()))
    member = labels[:, None] == np.array(classes)
    centres = np.array([standard[labels == name].mean(axis=0) for name in classes])
    away = standard - centres[member.argmax(axis=1)]
    covariance = away.T @ away / len(away)
    covariance = (1 - SHRINKAGE) * covariance + np.diag(SHRINKAGE * np.diag(covariance) + 1e-4)
    white = np.linalg.cholesky(np.linalg.inv(covariance))
    points, own = standard @ white, centres @ white
    temperature = max(1.0, float(np.median(_squares(points, own).min(axis=1))))
    weight = 1 / np.sqrt(member.mean(axis=0)[member.argmax(axis=1)])
    weight /= weight.mean()
    start, speed = own.copy(), np.zeros_like(own)
    for _ in range(ROUNDS):
        near = np.exp(
            -(_squares(points, own) - _squares(points, own).min(axis=1, keepdims=True)) / (2 * temperature)
        )
        pull = (member - near / near.sum(axis=1, keepdims=True)) * weight[:, None]
        gradient = (pull.T @ points - pull.sum(axis=0)[:, None] * own) / (temperature * len(points))
        speed = MOMENTUM * speed + RATE * (gradient - TETHER * (own - start))
        own = own + speed
    centroids = own @ np.linalg.inv(white)
    return {
        "mean": mean.round(6).tolist(), "scale": scale.round(6).tolist(), "temperature": round(temperature, 4),
        "covariance": covariance.round(6).tolist(),
        "centroids": {name: centroids[i].round(4).tolist() for i, name in enumerate(classes)},
    }  # fmt: skip


def _squares(points: Floats, centres: Floats) -> Floats:
    return np.asarray(((points[:, None] - centres) ** 2).sum(axis=-1))


def model_of(fitted: dict[str, Any]) -> ReferenceModel:
    """The fitted values as the model that tracelens loads."""
    return read_model({"schema": "tracelens.reference/1", "features": list(FEATURES), **fitted})


def left_out(rows: Floats, runs: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """For each run the class and the agreement of a model that has seen none of its family."""
    families = np.array([run["family"] for run in runs])
    labels = np.array([run["label"] for run in runs])
    told: list[tuple[str, float]] = [("", 0.0)] * len(runs)
    for family in sorted(set(families.tolist())):
        others = families != family
        model = model_of(fit(rows[others], labels[others]))
        for i in np.flatnonzero(~others).tolist():
            told[i] = model.nearest(rows[i])
    return told


def main() -> int:
    """Fit, validate, write; 1 where the accuracy is below what is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=424, help="runs to simulate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="signals of the runs: read where it exists, else written")
    parser.add_argument("--out", type=Path, default=MODEL)
    arguments = parser.parse_args()
    began = time.perf_counter()
    if arguments.cache and arguments.cache.is_file():
        runs = json.loads(arguments.cache.read_text("utf-8"))
    else:
        runs = simulated(arguments.n, arguments.seed, arguments.jobs)
        if arguments.cache:
            arguments.cache.write_text(json.dumps(runs), "utf-8")
    runs = [run for run in runs if run["label"] != "inconclusive"]
    rows = rows_of(runs)
    labels = np.array([run["label"] for run in runs])
    told = left_out(rows, runs)
    hits = [name in run["acceptable"] for (name, _), run in zip(told, runs, strict=True)]
    scores: dict[str, list[bool]] = defaultdict(list)
    for run, hit in zip(runs, hits, strict=True):
        scores[run["family"]].append(hit)
    print(f"{'family left out':32} right")
    for family, own in sorted(scores.items()):
        print(f"{family:32} {sum(own):3d} of {len(own):3d}{'' if sum(own) > len(own) / 2 else '   <<<'}")
    total = len(runs)
    accuracy = sum(hits) / total
    most = Counter(labels.tolist()).most_common(1)[0][0]
    print(f"leave one family out: {sum(hits)} of {total} right ({accuracy:.1%}, needed {NEEDED:.0%})")
    print(f"always {most}: {sum(most in run['acceptable'] for run in runs) / total:.1%}")
    edges = (0.0, 0.5, 0.7, 0.9, 1.01)
    for low, high in itertools.pairwise(edges):
        inside = [hit for hit, (_, agreement) in zip(hits, told, strict=True) if low <= agreement < high]
        print(f"agreement from {low:.1f}: {sum(inside)} of {len(inside)} right")
    fitted = fit(rows, labels)
    document = {
        "schema": "tracelens.reference/1",
        "training": {
            "source": "benchmarks/simulator, train families", "seed": arguments.seed, "runs": total,
            "families": len(scores), "runs_by_class": dict(sorted(Counter(labels.tolist()).items())),
            "leave_one_family_out": round(accuracy, 4),
            "families_half_wrong": sorted(f for f, own in scores.items() if sum(own) <= len(own) / 2),
        },
        "features": list(FEATURES),
        **fitted,
    }  # fmt: skip
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(_readable(document), "utf-8")
    print(f"{arguments.out.name} written, {time.perf_counter() - began:.0f} s")
    return 0 if accuracy >= NEEDED else 1


def _readable(document: dict[str, Any]) -> str:
    """JSON with a line for each list of numbers."""
    text = json.dumps(document, indent=1)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
