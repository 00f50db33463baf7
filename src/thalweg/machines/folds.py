"""A lengthscale and a ridge for few rows: each row left out in turn, in closed form for squared losses."""

from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg.machines.losses import LogisticLoss, Loss, SoftmaxLoss
from thalweg.machines.rows import Rows

FEWEST = 40
"""With fewer different rows than this, what is left out says too little."""

_MOST = 320
_RIDGES = tuple(10.0 ** (k / 2) for k in range(-6, 5))
# A smaller one gains little and takes many rounds.
_LEAST_LOGISTIC = 0.003


def left_out(
    rows: Rows, loss: Loss, multipliers: tuple[float, ...], kernel: Callable[[float], Any], seed: int
) -> tuple[float, float] | None:
    """Return the multiplier and the ridge whose errors on rows left out are smallest; None for too few rows.

    Rows that are the same are one, of the sum of their weights and left out together. For the logistic losses the
    errors are those of squares against labels of 0 and 1, and the ridge is that of squares times p(1 − p), the
    curvature. Of many rows some are looked at.
    """
    different, place = np.unique(rows.features(np.arange(len(rows)), np.float64), axis=0, return_inverse=True)
    if len(different) < FEWEST:
        return None
    place = np.ravel(place)
    weights = np.bincount(place, rows.weights)
    every = rows.targets_of(slice(None))
    sums = np.stack([np.bincount(place, rows.weights * column) for column in every.T], axis=1)
    if len(different) > _MOST:
        chosen = np.sort(np.random.default_rng([seed, 3]).permutation(len(different))[:_MOST])
        different, weights, sums = different[chosen], weights[chosen], sums[chosen]
    y = sums / weights[:, None]
    mean = np.average(y, axis=0, weights=weights)
    y, root = y - mean, np.sqrt(weights)[:, None]
    best, found = np.inf, None
    for times in multipliers:
        K = np.asarray(kernel(times)(different), np.float64)
        values, vectors = np.linalg.eigh(root * K * root.T)
        values, coordinates = np.maximum(values, 0), vectors.T @ (root * y)
        for ridge in _RIDGES:
            kept = ridge / (values + ridge)
            errors = (vectors @ (kept[:, None] * coordinates)) / root / (vectors**2 @ kept)[:, None]
            score = float(np.sum(weights[:, None] * errors**2))
            if score < best:
                best, found = score, (times, ridge, np.clip(y - errors + mean, 0, 1))
    if found is None:
        return None
    times, ridge, p = found
    if isinstance(loss, LogisticLoss | SoftmaxLoss):
        ridge = max(ridge * float(np.mean(p * (1 - p))), _LEAST_LOGISTIC)
    return times, ridge
