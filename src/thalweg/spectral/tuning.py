"""Choose the law of degrees and the control variate from a sketch of the spectral density.

Lanczos' method, run for the interval, leaves a quadrature (x_k, τ_k) with tr g(A) ≈ d Σ τ_k g(x_k). With it the
variance of the estimate is predicted before it is made: that of the probes, 2d Var(f) over the density, and that of the
degrees, through the truncation error e_n = p̂_n − f of every degree n. The mean degree minimises variance × work.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from thalweg.spectral import degrees as laws
from thalweg.spectral.degrees import Law

STEP_COLUMNS = 4.0
"""One step of a block costs as much again as this many more columns would. Twice as many favour shorter degrees."""


class Forecast(NamedTuple):
    """The predicted behaviour of a law, per probe."""

    variance: float
    probe: float
    """The variance by the probe alone."""
    degree: float
    """The variance by the degree alone."""
    work: float
    coefficient: float
    """Of the control variate."""


@dataclass(frozen=True)
class Tuner:
    """Compares laws on a sketch of the spectrum.

    It holds the coefficients of f and of f′; the density, as ``nodes`` on [−1, 1] and ``weights``; the dimension; the
    number of ``strata`` of degrees; ``centre``, the point of the control variate on [−1, 1]; and ``probe_share``, the
    share of the predicted variance that probes have: random signs have none for a diagonal matrix.
    """

    value: np.ndarray
    slope: np.ndarray
    nodes: np.ndarray
    weights: np.ndarray
    dimension: int
    strata: int
    centre: float
    probe_share: float = 1.0

    def choose(self, name: str, degree: float | None, gradient: str | None, rho: float | None) -> Law:
        """Return the law of that name and mean degree, by default the best one for the ``gradient``."""
        degree = degree or self._best_degree(gradient)
        if name == "optimal":
            return self._optimal(degree, gradient)
        if name == "theorem3":
            return laws.theorem3(self._padded, degree, rho)
        return laws.LAWS[name](self._padded, degree)

    def predict(self, coefficients: np.ndarray, law: Law) -> Forecast:
        """Predict the variance and work of one probe."""
        errors, values = self._truncations(coefficients, law)
        at_nodes, control = errors[:, :-1], self.dimension * errors[:, -1]
        trace = self.dimension * (at_nodes @ self.weights)
        squares = 2.0 * self.dimension * (at_nodes**2 @ self.weights)
        length, stratum, degree = _cells(law, self.strata)
        within = lambda g, h: _within(length, stratum, g[degree], h[degree], self.strata)
        denominator = within(control, control)
        # The control variate has mean zero only under a law that leaves nothing out.
        useful = denominator > 0 and not law.biased
        coefficient = within(trace, control) / denominator if useful else 0.0
        rest = trace - coefficient * control
        mean = self.weights @ values
        probe = 2.0 * self.dimension * (self.weights @ (values - mean) ** 2)
        alone = within(rest, rest)
        truncation = alone + float(length @ squares[degree])
        work = float(length @ degree) + STEP_COLUMNS * float(degree.max()) / (2 * self.strata)
        return Forecast(float(probe + truncation), float(probe), alone, work, float(coefficient))

    def _truncations(self, coefficients: np.ndarray, law: Law) -> tuple[np.ndarray, np.ndarray]:
        """Return e_n(t) = p̂_n(t) − f(t) for n = 0 … J (one per row) at the nodes and the centre; and f at the nodes."""
        b = np.append(coefficients, np.zeros(law.log_survival.size - coefficients.size))
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            weights = np.where(b != 0, b * np.exp(-law.log_survival), 0.0)
        terms = np.where(np.isfinite(weights), weights, 0.0)[:, None] * self._polynomials[: b.size]
        values = coefficients @ self._polynomials[: coefficients.size]
        return np.cumsum(terms, axis=0) - values[None, :], values[:-1]

    @cached_property
    def _polynomials(self) -> np.ndarray:
        """T_j at the nodes and the centre, one degree per row, shared by all laws."""
        points = np.clip(np.append(self.nodes, self.centre), -1.0, 1.0)
        return np.cos(np.arange(self._padded.size)[:, None] * np.arccos(points)[None, :])

    @cached_property
    def _padded(self) -> np.ndarray:
        """The coefficients of f, as many as the longer of the two series has."""
        return np.append(self.value, np.zeros(max(self.slope.size - self.value.size, 0)))

    def _last(self, gradient: str | None) -> int:
        return max(self._padded.size - 1 if gradient else self.value.size - 1, 1)

    def _optimal(self, mean: float, gradient: str | None) -> Law:
        mean = min(mean, float(self._last(gradient)))
        if not gradient:
            return laws.optimal(self._padded, mean)
        # What (12) truncates are the coefficients of the derivative of the polynomial: j b_j.
        other = self.slope if gradient != "paper" else np.arange(self.value.size) * self.value
        return laws.optimal(self._padded, mean, other)

    def _best_degree(self, gradient: str | None) -> float:
        last = self._last(gradient)
        grid = np.unique(np.minimum(np.geomspace(4.0, max(4.0, last), 16), last))
        candidates = [self._optimal(mean, gradient) for mean in grid]
        values = [self.predict(self._padded, law) for law in candidates]
        scores = [(figure.variance - (1.0 - self.probe_share) * figure.probe) * figure.work for figure in values]
        if gradient:
            # Value and gradient each in units of what their probes alone would vary by.
            slopes = [self.predict(self.slope, law) for law in candidates]
            excess = lambda figure: figure.variance / max(figure.probe, np.finfo(np.float64).tiny)
            scores = [(excess(v) + excess(s)) * v.work for v, s in zip(values, slopes, strict=True)]
        return float(grid[int(np.argmin(scores))])


def thin(nodes: np.ndarray, weights: np.ndarray, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring nodes until tables of so many terms at all nodes are small enough."""
    count = max(8, min(400, 2_000_000 // terms))
    if nodes.size <= count:
        return nodes, weights
    starts = np.linspace(0, nodes.size, count, endpoint=False).astype(int)
    merged = np.add.reduceat(weights, starts)
    centres = np.add.reduceat(weights * nodes, starts) / np.maximum(merged, np.finfo(np.float64).tiny)
    # The ends matter: the control variate sits there.
    centres[0], centres[-1] = nodes[0], nodes[-1]
    return centres, merged


def _cells(law: Law, strata: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut (0, 1) where the degree n(u) = #{j : S_j > u} or the stratum changes; return lengths, strata and degrees."""
    survival = np.sort(law.survival[1:])
    edges = np.unique(np.concatenate([survival, np.arange(strata + 1) / strata]))
    middle = 0.5 * (edges[1:] + edges[:-1])
    degree = survival.size - np.searchsorted(survival, middle, side="right")
    return np.diff(edges), np.minimum((middle * strata).astype(int), strata - 1), degree


def _within(length: np.ndarray, stratum: np.ndarray, g: np.ndarray, h: np.ndarray, strata: int) -> float:
    """Return the covariance of g and h within strata, averaged over them."""
    mean = lambda x: np.bincount(stratum, weights=length * x, minlength=strata) * strata
    return float(np.mean(mean(g * h) - mean(g) * mean(h)))
