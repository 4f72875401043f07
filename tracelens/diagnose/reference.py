"""The reference model: the class of the most alike of labelled runs, a second opinion that moves confidence only.

It looks at signals of the trace alone, not at the replay that the verdict comes from, so that the two can disagree.
Fitted by ``scripts/fit_model.py``, stored as JSON, evaluated with numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import InputError
from tracelens.model import Bottleneck
from tracelens.resources import data_dir
from tracelens.signals.signal import Signals

Floats = NDArray[np.float64]

SCHEMA = "tracelens.reference/1"
FEATURES: tuple[str, ...] = (
    "host waste", "transfer", "communication", "host waste of all waste", "transfer of all waste", "communication of all waste",
    "memory-bound of kernels", "no GPU",
)  # fmt: skip
_WORTH = 0.08  # share of the step that the verdict asks for: shares are bent so that it lies half-way
_LITTLE = 0.03  # added to the sum of all waste: parts of next to nothing say nothing
_LEAST_KNOWN = 0.5  # of the features: with fewer the model has no opinion


def features(signals: Signals) -> Floats:
    """The feature vector of a rank in the order of ``FEATURES``, each 0..1; NaN where its signals are missing.

    No signal that the replay writes over enters (``whatif.scenarios.CAUSES``).
    """
    step = signals.number("steps.mean_ms") or np.nan

    def number(name: str) -> float:
        value = signals.number(name)
        return np.nan if value is None else value

    starved = number("host.saving_ms") / step
    host = min(starved, 1.0) if np.isfinite(starved) else number("phase.host")
    waste = np.array([number("phase.load") + host, number("phase.transfer"), number("phase.communication")])
    kernels = np.array([number(f"kernels.{name}_ms") for name in ("memory", "arithmetic", "small")]) / step
    known = np.isfinite(kernels)
    memory = float(kernels[0] / (kernels[known].sum() + 0.02)) if known[0] else np.nan
    cpu_only = signals.value("quality.cpu_only")
    if cpu_only:
        memory = 0.0  # there are no kernels to be limited by anything
    return np.array([
        *(waste / (waste + _WORTH)), *(waste / (waste.sum() + _LITTLE)), memory,
        np.nan if cpu_only is None else float(bool(cpu_only)),
    ])  # fmt: skip


@dataclass(frozen=True)
class ReferenceModel:
    """One centroid (features,) a class among features standardised by ``mean`` and ``scale`` (features,).

    ``covariance`` (features, features) is the spread within classes, the metric of distances; ``temperature`` turns
    squared distances into probabilities.
    """

    mean: Floats
    scale: Floats
    covariance: Floats
    centroids: Mapping[Bottleneck, Floats]
    temperature: float
    training: Mapping[str, Any]

    def nearest(self, row: Floats) -> tuple[Bottleneck, float]:
        """``(class, agreement)``: the class of the nearest centroid by Mahalanobis distance over the known features.

        ``agreement``: its probability less that of the next class, 0..1. ``inconclusive``, 0 where too few are known.
        """
        known = np.isfinite(row)
        if known.mean() < _LEAST_KNOWN:
            return "inconclusive", 0.0
        standard = (row[known] - self.mean[known]) / self.scale[known]
        metric = np.linalg.inv(self.covariance[np.ix_(known, known)])
        names = list(self.centroids)
        away = np.array([self.centroids[name][known] - standard for name in names])
        distance = np.einsum("ki,ij,kj->k", away, metric, away)
        weight = np.exp(-(distance - distance.min()) / (2 * self.temperature))
        order = np.argsort(distance)
        chance = weight / weight.sum()
        return names[order[0]], float(chance[order[0]] - chance[order[1]])


def second_opinion(signals: Signals) -> tuple[Bottleneck, float]:
    """The class of the most alike labelled runs and how clearly, 0..1; ``inconclusive``, 0 where signals do not suffice."""
    return reference_model().nearest(features(signals))


@cache
def reference_model() -> ReferenceModel:
    """The shipped model. Raises InputError where the installation lacks it or it does not fit this version."""
    path = data_dir("models") / "reference.json"
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the reference model {path.name} cannot be read ({error}); install tracelens again"
        ) from error
    return read_model(value)


def read_model(value: Mapping[str, Any]) -> ReferenceModel:
    """The model of a JSON value. Raises InputError where it was fitted for other features."""
    if value.get("schema") != SCHEMA or tuple(value.get("features", ())) != FEATURES:
        raise InputError("the reference model was fitted for another version of tracelens; run make model")
    centroids = {
        cast(Bottleneck, name): np.array(points, dtype=np.float64)
        for name, points in value["centroids"].items()
    }
    return ReferenceModel(
        np.array(value["mean"]), np.array(value["scale"]), np.array(value["covariance"]), centroids,
        float(value["temperature"]), value.get("training", {}),
    )  # fmt: skip
