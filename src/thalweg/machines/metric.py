"""Metrics that are learned: a feature counts as much as f changes along it.

That is M = mean_x ∇f(x)∇f(x)ᵀ, the average gradient outer product (AGOP; Radhakrishnan et al., 2024). Of its diagonal
the roots are the scales of the features, and a root of all of it is a linear map. A hundredth of the plain scale is
mixed in, so that no feature is lost for good. Where f is too smooth to see what depends on a feature, as of fast waves
along one of many, the share of the targets that the feature explains alone does instead of the gradients.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_GRADIENT_OUTPUTS = 4
"""Outputs whose gradients are taken; more are mixed by random signs, which leaves the expected mean square alone."""

LEAST_PLAIN_SHARE = 0.01
"""The share of the plain scales that is mixed into learned ones."""


@dataclass(frozen=True, eq=False)
class Metric:
    """What framed features are multiplied by: factors, or a matrix; the identity of the object is its hash."""

    factors: np.ndarray | None
    learned: int = 0
    """How many scales were learned, if plain ones compete with them: a full metric is only taken if it is asked for."""

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return rows in this metric."""
        if self.factors is None:
            return x
        return x * self.factors if self.factors.ndim == 1 else x @ self.factors

    def chance(self, rows: int) -> float:
        """Return the factor by which so many rows look easier than they are to a metric that knows them.

        That is Akaike's criterion (1974), n log(loss) + 2·scales.
        """
        return float(np.exp(2 * self.learned / rows))


def gradient_outer_product(
    slope: np.ndarray, weights: np.ndarray, x: np.ndarray, metric: Metric, full: bool
) -> np.ndarray | None:
    """Return the AGOP of f = Σ_i W_i κ(‖x − x_i‖²) at its own points, over outputs, or its diagonal; None if it is 0.

    Parameters
    ----------
    slope
        κ′ at the squared distances among the points in the metric: there ∇f = 2 Σ_i W_i κ′(r_i²)(x − x_i).
    weights, x
        W, and the points without the metric, in whose coordinates the product is.
    """
    if weights.shape[1] > MAX_GRADIENT_OUTPUTS:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (weights.shape[1], MAX_GRADIENT_OUTPUTS))
        weights = weights @ (signs / np.sqrt(MAX_GRADIENT_OUTPUTS)).astype(weights.dtype)
    points = metric.apply(x).astype(slope.dtype)
    total: Any = 0.0
    for column in weights.astype(slope.dtype).T[:, :, None]:
        sums = slope @ np.concatenate([column, column * points], axis=1)
        gradient = 2 * (sums[:, :1] * points - sums[:, 1:])
        total = total + (gradient.T @ gradient if full else np.sum(gradient**2, axis=0)) / len(gradient)
    total, factors = np.asarray(total, float), metric.factors
    if factors is not None:
        total = factors @ total @ factors.T if factors.ndim == 2 else _scaled(total, factors)
    return total if np.all(np.isfinite(total)) and np.any(total > 0) else None


def explained_alone(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the share of the variance of targets that each feature explains, less two deviations above chance.

    That is the correlation ratio (Pearson, 1905) of blocks of rows in the order of the feature: of n^(1/3), n^(1/2) or
    n^(2/3) of them, whichever explain most: fast waves are lost in long blocks, and slow ones are clearer there.

    Examples
    --------
    >>> x = np.random.default_rng(0).uniform(-1, 1, size=(1000, 3))
    >>> explained_alone(x, np.sin(6 * x[:, :1]), np.ones(1000)).round(1)
    array([0.9, 0. , 0. ])
    """
    rows, y = len(x), y - np.average(y, axis=0, weights=weights)
    columns = np.concatenate([weights[:, None] * y, weights[:, None]], axis=1)
    total = max(float(weights @ np.sum(y**2, axis=1)), np.finfo(float).tiny)
    blocks = [np.linspace(0, rows, round(rows**power), endpoint=False, dtype=int) for power in (1 / 3, 1 / 2, 2 / 3)]

    def share(order: np.ndarray, starts: np.ndarray) -> float:
        sums, spare = np.add.reduceat(columns[order], starts), len(starts) - 1
        between = float(np.sum(sums[:, :-1] ** 2 / sums[:, -1:]))
        return between / total - (spare + 2 * np.sqrt(2 * spare)) / (rows - 1)

    orders = np.argsort(x, axis=0, kind="stable").T
    return np.array([max(0.0, *(share(order, starts) for starts in blocks)) for order in orders])


def learned_metrics(product: np.ndarray, scales: np.ndarray) -> list[Metric]:
    """Return the metric of an AGOP and, of its diagonal, another halfway to the plain scales of the features."""
    if product.ndim == 2:
        values, vectors = np.linalg.eigh(_scaled(product, scales))
        root = vectors * np.sqrt(np.maximum(values, LEAST_PLAIN_SHARE**2 * values[-1]))
        return [Metric(root / scales[:, None] / np.sqrt(np.mean(np.sum(root**2, axis=1))))]
    own, steep = (normalised(factors, scales) for factors in (1 / scales, np.sqrt(product)))
    learned = normalised((1 - LEAST_PLAIN_SHARE) * steep + LEAST_PLAIN_SHARE * own, scales)
    return [Metric(factors, product.size) for factors in (learned, normalised(np.sqrt(learned * own), scales))]


def normalised(factors: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return factors of features of these scales with a mean square of 1."""
    return factors / np.sqrt(np.mean((factors * scales) ** 2))


def _scaled(product: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """D·M·D for D = diag(factors), or the diagonal of it where M is given by its diagonal."""
    return product * factors**2 if product.ndim == 1 else product * factors * factors[:, None]
