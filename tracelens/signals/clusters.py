"""Which steps behave alike: change-points of their durations, then clusters of step-aligned feature vectors.

A run is parted again and again as long as a one-mode noise would not feign the parts and the difference is worth saying.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.signals.changepoints import change_points
from tracelens.signals.modes import best_cut, group_count

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WORTH = 0.08  # of the common step: what a difference must come to (the threshold of the verdict, design section 5)
ALIKE = 0.25  # of the longer step: rare groups that differ by less are one
NOTICEABLE = 0.01  # of the run's time: what a group's difference must sum to
GROUPED = 8  # steps from which vectors are grouped; fewer are parted by duration alone
# steps from which scikit-learn refines the groups in all dimensions; among fewer the cut along the clearest direction
# gives the same ones, and its import takes longer than everything else that a short trace needs
CLUSTERED = 64
SEPARATED = 0.5  # silhouette of a reasonable structure (Kaufman and Rousseeuw 1990)
_FEW_RATIO = 1.6  # of a handful of steps the slow ones must take so much longer than the others ...
_FEW_CLEAR = 6.0  # ... and lie so many times further off than the others differ
_COMPARABLE = (
    0.5  # of the largest group's steps: the fastest group of that size is the one others are compared with
)
_DEPTH = 4
_SCORED = 1000


def step_groups(durations: Floats, phases: Floats) -> Ints:
    """The group of each step (n,), 0 the common one; all 0 where nothing tells steps apart.

    ``durations`` (n,) and ``phases`` (n, p) in one unit, in order of time; unknown phases are 0.
    """
    durations = np.asarray(durations, dtype=np.float64)
    if durations.size < 4 or not (durations > 0).all():
        return np.zeros(durations.size, dtype=np.int64)
    labels = np.zeros(durations.size, dtype=np.int64)
    features = step_features(durations, phases)
    _part(np.arange(durations.size), durations, features, labels, 0)
    return _ranked(_merged(labels, durations, phases), durations)


def step_features(durations: Floats, phases: Floats) -> Floats:
    """Duration and phases of each step relative to the median step, on a logarithmic scale: (n, 1 + p)."""
    middle = float(np.median(durations))
    return np.column_stack((np.log(durations / middle), np.log1p(np.maximum(phases, 0.0) / middle)))


def _part(rows: Ints, durations: Floats, features: Floats, labels: Ints, depth: int) -> None:
    """Gives the parts of ``rows`` labels of their own, in place."""
    parts = None
    if depth < _DEPTH and rows.size >= 4:
        parts = _by_level(durations[rows])
        if parts is None:
            parts = _by_vector(features[rows]) if rows.size >= GROUPED else _few(features[rows, 0], depth)
    if parts is None:
        return
    for part in range(1, int(parts.max()) + 1):
        labels[rows[parts == part]] = labels.max() + 1
    for part in range(int(parts.max()) + 1):
        _part(rows[parts == part], durations, features, labels, depth + 1)


def _by_level(durations: Floats) -> Ints | None:
    """Segments between change-points, those of one level together; None where the level stays."""
    bounds = change_points(durations)
    if not bounds.size:
        return None
    pieces = np.split(durations, bounds)
    # medians: a stall or two in a segment is no new level
    levels = np.array([np.median(piece) for piece in pieces])
    order = np.argsort(levels, kind="stable")
    jumps = levels[order][1:] / levels[order][:-1]
    if jumps.max(initial=1.0) < 1 + WORTH:
        return None
    group = np.empty(len(pieces), dtype=np.int64)
    group[order] = np.concatenate(([0], np.cumsum(jumps >= 1 + WORTH)))
    return np.repeat(group, [len(piece) for piece in pieces])


def _few(logs: Floats, depth: int) -> Ints | None:
    """A handful of steps: two groups by duration where the gap is plain."""
    if depth:
        return None
    ordered = np.sort(logs)
    gaps = np.diff(ordered)
    at = int(np.argmax(gaps)) + 1
    rest = ordered[:at] if at >= ordered.size - at else ordered[at:]
    plain = gaps[at - 1] >= np.log(_FEW_RATIO) and gaps[at - 1] >= _FEW_CLEAR * np.ptp(rest)
    if not plain and (group_count(logs)[0] == 1 or gaps[at - 1] < np.log(1 + WORTH)):
        return None
    return np.asarray(logs >= ordered[at], dtype=np.int64)


def _by_vector(features: Floats) -> Ints | None:
    """Clusters of the vectors, as many as the data ask for; None for one."""
    centred = features - features.mean(axis=0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    views = [features[:, 0], *(centred @ axis for axis, s in zip(axes[:2], spread, strict=False) if s > 1e-9)]
    # the view that shows groups most clearly tells how many; the vectors say which step belongs where
    found = [(*group_count(view), view) for view in views]
    count, _, view = max(found, key=lambda one: (one[0] > 1, one[1]))
    return _clusters(features, view, count) if count > 1 else None


def _clusters(features: Floats, view: Floats, count: int) -> Ints | None:
    labels = np.asarray(view >= best_cut(view), dtype=np.int64)
    if len(features) >= CLUSTERED:
        labels = _k_means(features, labels, count)
    if np.unique(labels).size < 2:
        return None
    scored = np.arange(len(labels)) if len(labels) <= _SCORED else _some(labels)
    if silhouette(features[scored], labels[scored]) < SEPARATED:
        return None
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _k_means(features: Floats, start: Ints, count: int) -> Ints:
    """k-means of the vectors, two groups from the given ones; the same whatever the order of the steps."""
    from sklearn.cluster import KMeans

    order = np.lexsort(features.T[::-1])
    if count == 2:
        centres = np.array([features[start == side].mean(axis=0) for side in (0, 1)])
        model = KMeans(2, init=centres, n_init=1)
    else:
        model = KMeans(count, n_init=3, max_iter=100, random_state=0)
    labels = np.empty(len(features), dtype=np.int64)
    labels[order] = model.fit_predict(features[order])
    return labels


def silhouette(features: Floats, labels: Ints) -> float:
    """Mean silhouette of a clustering (Rousseeuw 1987): 1 far apart, 0 touching; a group of one counts 0. O(n^2)."""
    square = (features**2).sum(axis=1)
    distance = np.sqrt(np.maximum(square[:, None] + square[None, :] - 2 * features @ features.T, 0.0))
    names, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    to_group = np.stack([distance[:, inverse == i].sum(axis=1) for i in range(names.size)], axis=1)
    rows = np.arange(labels.size)
    own = to_group[rows, inverse] / np.maximum(counts[inverse] - 1, 1)
    others = to_group / counts
    others[rows, inverse] = np.inf
    nearest = others.min(axis=1)
    score = (nearest - own) / np.maximum(np.maximum(nearest, own), 1e-300)
    return float(np.where(counts[inverse] > 1, score, 0.0).mean())


def _some(labels: Ints) -> Ints:
    """About ``_SCORED`` rows, some of every cluster."""
    share = _SCORED / labels.size
    picked = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        picked.append(rows[np.linspace(0, rows.size - 1, max(int(rows.size * share), 2)).astype(int)])
    return np.unique(np.concatenate(picked))


def _merged(labels: Ints, durations: Floats, phases: Floats) -> Ints:
    """Groups that do not differ by what is worth saying become one, the most alike first."""
    labels = labels.copy()
    vectors = np.column_stack((durations, phases))
    while True:
        names, counts = np.unique(labels, return_counts=True)
        if names.size == 1:
            return labels
        means = np.array([vectors[labels == name].mean(axis=0) for name in names])
        common = int(np.argmax(counts))
        best: tuple[float, int, int] | None = None
        for i in range(names.size):
            for j in range(i + 1, names.size):
                difference = float(np.abs(means[i] - means[j]).max())
                near = difference / max(means[i, 0], means[j, 0]) / ALIKE
                if common in (i, j):
                    rare = j if common == i else i
                    near = difference / means[common, 0] / WORTH
                    # compared by what it sums to, as well: a rare small thing is not worth a line
                    weight = difference * counts[rare] / (durations.sum() * NOTICEABLE)
                    near = min(near, weight)
                if near < 1 and (best is None or near < best[0]):
                    best = (near, i, j)
        if best is None:
            return labels
        _, i, j = best
        labels[labels == names[j]] = names[i]


def _ranked(labels: Ints, durations: Floats) -> Ints:
    """Labels by number of steps; but 0 is the fastest of those groups that hold about as many steps as the largest.

    Where clocks are cut half-way through a run, its first half shows what is normal even if it is the smaller one.
    """
    names, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.array([float(durations[labels == name].mean()) for name in names])
    large = np.flatnonzero(counts >= _COMPARABLE * counts.max())
    usual = int(large[np.argmin(means[large])])
    order = sorted(range(names.size), key=lambda i: (i != usual, -counts[i], means[i]))
    place = np.empty(names.size, dtype=np.int64)
    place[order] = np.arange(names.size)
    return np.asarray(place[inverse], dtype=np.int64)
