"""The mean degree and the control variate, chosen from a sketch of the spectral density.

Lanczos' method, run for the interval, leaves a quadrature (x_k, τ_k) with tr g(A) ≈ d Σ τ_k g(x_k). With it the
variance of the estimate is predicted before it is made: that of the probes, 2d Var(f) over the density, and that of the
degrees, through the truncation error e_n = p̂_n − f of every degree n. The mean degree minimises variance × work.
"""

from typing import NamedTuple

import numpy as np

from thalweg.spectral.chebyshev import clenshaw
from thalweg.spectral.degrees import Law

# One step of the block costs about as much again as this many more columns would.
_STEP_COLUMNS = 4.0


class Prediction(NamedTuple):
    """What a law is predicted to do, per probe.

    The variance, that of the probe alone and that of the degree alone; the work; the control coefficient.
    """

    variance: float
    probe: float
    degree: float
    work: float
    coefficient: float


def truncations(coefficients: np.ndarray, law: Law, points: np.ndarray) -> np.ndarray:
    """Return e_n(t) = p̂_n(t) − f(t) at points t of [−1, 1], for n = 0 … J: an array of shape (J+1, len(points))."""
    degrees = np.arange(law.log_survival.size)
    b = np.zeros(degrees.size)
    b[: coefficients.size] = coefficients[: degrees.size]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        weights = np.where(b != 0, b * np.exp(-law.log_survival), 0.0)
    polynomials = np.cos(degrees[:, None] * np.arccos(np.clip(points, -1.0, 1.0))[None, :])
    terms = np.where(np.isfinite(weights), weights, 0.0)[:, None] * polynomials
    return np.cumsum(terms, axis=0) - clenshaw(coefficients, points)[None, :]


def predict(
    coefficients: np.ndarray,
    law: Law,
    nodes: np.ndarray,
    weights: np.ndarray,
    dimension: int,
    strata: int,
    centre: float,
) -> Prediction:
    """Predict the variance and work of one probe; ``centre`` is the point c of the control variate, on [−1, 1]."""
    errors = truncations(coefficients, law, np.append(nodes, centre))
    spread, control = errors[:, :-1], dimension * errors[:, -1]
    trace = dimension * (spread @ weights)
    squares = 2.0 * dimension * (spread**2 @ weights)
    length, stratum, degree = _cells(law, strata)
    within = lambda g, h: _within(length, stratum, g[degree], h[degree], strata)
    denominator = within(control, control)
    coefficient = within(trace, control) / denominator if denominator > 0 else 0.0
    rest = trace - coefficient * control
    values = clenshaw(coefficients, nodes)
    mean = weights @ values
    probe = 2.0 * dimension * (weights @ (values - mean) ** 2)
    alone = within(rest, rest)
    truncation = alone + float(length @ squares[degree])
    work = float(length @ degree) + _STEP_COLUMNS * float(degree.max()) / (2 * strata)
    return Prediction(float(probe + truncation), float(probe), alone, work, float(coefficient))


def thin(nodes: np.ndarray, weights: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring nodes until at most ``count`` are left."""
    if nodes.size <= count:
        return nodes, weights
    starts = np.linspace(0, nodes.size, count, endpoint=False).astype(int)
    merged = np.add.reduceat(weights, starts)
    centres = np.add.reduceat(weights * nodes, starts) / np.maximum(merged, np.finfo(np.float64).tiny)
    # The ends matter: the control variate sits there.
    centres[0], centres[-1] = nodes[0], nodes[-1]
    return centres, merged


def _cells(law: Law, strata: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut (0, 1) where the degree n(u) = #{j : S_j > u} or the stratum changes: lengths, strata, degrees of cells."""
    survival = np.sort(law.survival[1:])
    edges = np.unique(np.concatenate([survival, np.arange(strata + 1) / strata]))
    middle = 0.5 * (edges[1:] + edges[:-1])
    degree = survival.size - np.searchsorted(survival, middle, side="right")
    stratum = np.minimum((middle * strata).astype(int), strata - 1)
    return np.diff(edges), stratum, degree


def _within(length: np.ndarray, stratum: np.ndarray, g: np.ndarray, h: np.ndarray, strata: int) -> float:
    """The covariance of g and h within strata, averaged over them."""
    mean = lambda x: np.bincount(stratum, weights=length * x, minlength=strata) * strata
    return float(np.mean(mean(g * h) - mean(g) * mean(h)))
