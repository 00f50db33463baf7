"""The posterior over the weights of a linear predictor, found in the smaller of two spaces (equations.md §3).

Weights are counted in prior standard deviations, so that the prior is N(0, I), and the features are centred if there is
an intercept. With A the design in these coordinates, a fit works

- over the weights, V⁻¹ = I + Aᵀdiag(γ̃)A, where there are no more of them than examples, or
- over the linear predictor at the examples, whose prior covariance is K = AAᵀ; then V = I − RᵀR with a matrix R that
  has a row an example, and no matrix over pairs of weights is formed.

Rows and columns are padded with zeros to a few sizes, rows with weight 0, so that fits of about the same size share one
compiled function. The posterior of a padded weight is its prior: neither posterior nor bound changes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from thalweg.descent import Monotone, Result, Tolerance, minimize
from thalweg.descent.steps import Move, Taken
from thalweg.gaussian.divergence import GaussianKL, KLToNormal, KLToProcess
from thalweg.gaussian.likelihood import Expected, Likelihood
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Full, Implicit

_ROWS, _COLUMNS = 256, 16
"""The smallest sizes that data are padded to."""

_ROUNDING = 1e-24
"""Centred columns with squares smaller than this, beside those of the columns, are rounding errors."""

_SMALLEST_VARIANCE = 1e-30
"""Prior variance at least given to the linear predictor of an example, which a row of zeros would leave at 0."""


class Rows(NamedTuple):
    """Examples: the columns (that of the intercept first, if there is one), targets, and positive weights."""

    columns: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


class Pseudo(NamedTuple):
    """A Gaussian observation of the linear predictor in place of each example, to start from."""

    pulls: np.ndarray
    """What is observed, times its precision."""
    precisions: np.ndarray


class Search(NamedTuple):
    """How to look for a posterior."""

    tol: float
    max_iter: int
    progress: bool
    reach: float
    """Where a start leads to a linear predictor beyond this, it is 0 instead."""


@dataclass(frozen=True)
class Frame:
    """The coordinates of the weights: centre of the features (None without intercept), prior standard deviations."""

    centre: np.ndarray | None
    scales: np.ndarray

    @classmethod
    def of(cls, rows: Rows, scales: np.ndarray, intercept: bool) -> "Frame":
        """Centred at the weighted mean of the rows, if there is an intercept."""
        if not intercept:
            return cls(None, scales)
        ones = rows.columns[:, 0]
        pull = rows.weights * ones
        return cls(pull @ rows.columns[:, 1:] / (pull @ ones), scales)

    def spread(self, rows: Rows) -> float:
        """The prior standard deviation of a typical example's linear predictor, less the part of the intercept.

        It is 0 where the columns are all constant, but for rounding.
        """
        squares = lambda columns: rows.weights @ np.sum(columns[:, self.intercepts :] ** 2, axis=1)
        centred, plain = squares(self.design(rows.columns)), squares(rows.columns * self.scales)
        return float(np.sqrt(centred / np.sum(rows.weights))) if centred > _ROUNDING * plain else 0.0

    @property
    def intercepts(self) -> int:
        """1 with an intercept, 0 without: where the other weights begin."""
        return int(self.centre is not None)

    def design(self, columns: np.ndarray) -> np.ndarray:
        """The columns in these coordinates."""
        if self.centre is None:
            return columns * self.scales
        ones = columns[:, :1]
        return np.hstack([ones, columns[:, 1:] - ones * self.centre]) * self.scales


@dataclass(frozen=True)
class Examples:
    """What the examples say of more weights than there are examples: V⁻¹ = I + GᵀG, V = I − RᵀR, R = L⁻¹G."""

    root: np.ndarray
    """G."""
    factor: np.ndarray
    """L, the lower Cholesky factor of I + GGᵀ."""

    @classmethod
    def of(cls, design: np.ndarray, sites: np.ndarray) -> "Examples":
        """With V⁻¹ = I + Aᵀdiag(γ̃)A, for a design A and sites γ̃."""
        root = np.sqrt(sites)[:, None] * design
        return cls(root, cholesky(np.eye(len(root)) + root @ root.T, lower=True))

    def explained(self, design: np.ndarray) -> np.ndarray:
        """The part ‖Rx‖² of the prior variance ‖x‖² that each row x loses."""
        return np.sum(solve_triangular(self.factor, self.root @ design.T, lower=True) ** 2, axis=0)

    def explained_of_each(self) -> np.ndarray:
        """The same of each weight by itself."""
        return np.sum(solve_triangular(self.factor, self.root, lower=True) ** 2, axis=0)


@dataclass(frozen=True)
class Weights:
    """The posterior N(mean, V) in the coordinates of a frame; V is that of ``spread``."""

    frame: Frame
    mean: Any
    spread: Full | Examples

    def latent(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor."""
        design = self.frame.design(columns)
        if isinstance(self.spread, Full):
            variance = np.sum((design @ self.spread.covariance) * design, axis=1)
        else:
            variance = np.sum(design**2, axis=1) - self.spread.explained(design)
        return design @ self.mean, np.maximum(variance, 0)

    def _variances(self) -> np.ndarray:
        """The diagonal of V."""
        spread = self.spread
        return np.diagonal(spread.covariance) if isinstance(spread, Full) else 1 - spread.explained_of_each()

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations in the units of the data, the intercept's first if there is one."""
        scales = self.frame.scales
        means, deviations = scales * self.mean, scales * np.sqrt(np.maximum(self._variances(), 0))
        if self.frame.centre is not None:
            # The intercept is the linear predictor where all features are 0.
            (means[0],), (variance,) = self.latent(np.eye(1, len(scales)))
            deviations[0] = np.sqrt(variance)
        return means, deviations

    def slope_in_scale(self) -> float:
        """How the bound changes with the logarithm of a factor common to the scales of all weights but the intercept's.

        At the best posterior only the prior's change counts, Σ(m² + V − 1); given is its share of Σ(m² + 1 − V), which
        is between −1 and 1.
        """
        learned = slice(self.frame.intercepts, None)
        squares, explained = np.sum(self.mean[learned] ** 2), np.sum(1 - self._variances()[learned])
        return float((squares - explained) / max(squares + explained, np.finfo(float).tiny))

    def covariance_of_coefficients(self) -> np.ndarray | None:
        """Over all pairs, the intercept first; None where it was not formed."""
        if not isinstance(self.spread, Full):
            return None
        back = np.diag(self.frame.scales)
        if self.frame.centre is not None:
            back[0, 1:] = -self.frame.centre * self.frame.scales[1:]
        return back @ self.spread.covariance @ back.T

    def as_prior(self) -> Full:
        """The prior of the examples that come next."""
        if isinstance(self.spread, Full):
            return self.spread
        precision: Any = np.eye(len(self.mean)) + self.spread.root.T @ self.spread.root
        covariance: Any = np.linalg.inv(precision)
        return Full(self.mean, covariance, precision)


def find_weights(
    frame: Frame, rows: Rows, likelihood: Likelihood, start: Pseudo, search: Search, prior: Full | None = None
) -> tuple[Weights, Result]:
    """The posterior with the highest bound; call it with float64 switched on.

    The search starts where each example is replaced by a Gaussian observation, so that the posterior is a linear
    solve: for a Gaussian likelihood that is the answer, for the others about a step of Fisher scoring.
    """
    design = frame.design(rows.columns)
    if prior is None and design.shape[0] < design.shape[1]:
        return _over_examples(frame, design, rows, likelihood, start, search)
    return _over_weights(frame, design, rows, likelihood, start, search, prior)


def _over_weights(
    frame: Frame,
    design: np.ndarray,
    rows: Rows,
    likelihood: Likelihood,
    start: Pseudo,
    search: Search,
    prior: Full | None,
) -> tuple[Weights, Result]:
    count, dimension = design.shape
    size, kept = padded_size(dimension, _COLUMNS), slice(dimension)
    initial: Any = [np.zeros(size), np.eye(size), np.eye(size)]
    initial = Full(*initial)
    if prior is not None:
        initial.mean[kept], initial.covariance[kept, kept], initial.precision[kept, kept] = prior
    design = np.pad(design, ((0, padded_size(count, _ROWS) - count), (0, size - dimension)))
    pulls, precisions, targets, weights = padded(start.pulls, start.precisions, rows.targets, rows.weights)
    precision = initial.precision + (design.T * precisions) @ design
    factor = cho_factor(precision, lower=True)
    mean = cho_solve(factor, initial.precision @ initial.mean + design.T @ pulls)
    if np.max(np.abs(design @ mean)) > search.reach:
        mean = np.zeros(size)
    result = minimize(
        ExpectedLikelihood(likelihood, targets, design, weights=weights),
        Full(mean, cho_solve(factor, np.eye(size)), precision),
        term=KLToNormal(Full(*(jnp.asarray(part) for part in initial))),
        **_method(search),
    )
    arrays: Any = [np.asarray(part) for part in result.x]
    mean, covariance, precision = arrays
    found = Full(mean[kept], covariance[kept, kept], precision[kept, kept])
    return Weights(frame, found.mean, found), result


def _over_examples(
    frame: Frame, design: np.ndarray, rows: Rows, likelihood: Likelihood, start: Pseudo, search: Search
) -> tuple[Weights, Result]:
    count = len(design)
    pulls, precisions, targets, weights = padded(start.pulls, start.precisions, rows.targets, rows.weights)
    kernel = np.eye(len(pulls))
    kernel[:count, :count] = design @ design.T
    np.fill_diagonal(kernel, np.maximum(np.diagonal(kernel), _SMALLEST_VARIANCE))
    root = np.sqrt(precisions)
    factor = cholesky(np.eye(len(root)) + root[:, None] * kernel * root, lower=True)
    dual = pulls - root * cho_solve((factor, True), root * (kernel @ pulls))
    if np.max(np.abs(kernel @ dual)) > search.reach:
        dual = np.zeros_like(dual)
    covariance = jnp.asarray(kernel)
    result = minimize(
        ExpectedLikelihood(likelihood, targets, weights=weights),
        Implicit.from_factor(covariance, *(jnp.asarray(part) for part in (dual, precisions, factor))),
        term=KLToProcess(covariance),
        **_method(search),
    )
    dual, sites = (np.asarray(part)[:count] for part in (result.x.weights, result.x.sites))
    return Weights(frame, design.T @ dual, Examples.of(design, sites)), result


class _Settling(Monotone):
    """Monotone steps that are never longer than the first, and shorter after one that lengthened the natural gradient.

    Steps too long can circle around the optimum, so near to it that the objective does not tell.
    """

    def __init__(self, longest: float) -> None:
        super().__init__(longest, grow=1.1)

    def init(self, x: Full | Implicit) -> tuple:
        """Carry the length of the last natural gradient too."""
        return *super().init(x), jnp.asarray(jnp.inf, x.mean.dtype)

    def take(self, move: Move, state: tuple) -> Taken:
        """Search, then step."""
        *searched, before = state
        taken = super().take(move, tuple(searched))
        size, largest = taken.state
        length = jnp.asarray(self.residual_norm(move, taken), size.dtype)
        longest, shrink = (number.astype(size.dtype) for number in (self.initial, self.shrink))
        size = jnp.where(length > before, taken.size * shrink, jnp.minimum(size, longest))
        return taken._replace(state=(size, largest, length))


def _method(search: Search) -> dict:
    return {
        "divergence": GaussianKL(),
        "step": _Settling(4.0),
        "tol": Tolerance(0, search.tol),
        "steps": search.max_iter,
        "progress": search.progress,
    }


def seen_from(weights: Weights, likelihood: Likelihood, rows: Rows) -> Pseudo:
    """The likelihood as it looks from a posterior: what a whole natural-gradient step puts in its place."""
    targets, mean, variance = padded(rows.targets, *weights.latent(rows.columns))
    _, first, second = (np.asarray(part)[: len(rows.targets)] for part in expected(likelihood, targets, mean, variance))
    return Pseudo(rows.weights * (first - second * mean[: len(first)]), -second * rows.weights)


@eqx.filter_jit
def expected(
    likelihood: Likelihood, targets: Float[Array, " n"], mean: Float[Array, " n"], variance: Float[Array, " n"]
) -> Expected:
    """E log p(y|z) and its derivatives, of padded vectors."""
    return likelihood.expected(targets, mean, variance)


def compressed(rows: Rows) -> Rows:
    """Rows that say the same to a Gaussian likelihood, for any noise: no more than there are columns, plus one.

    They have the same products of columns and targets, by a QR factorisation, and the same total weight.
    """
    most = rows.columns.shape[1] + 1
    if len(rows.targets) <= most:
        return rows
    total = np.sum(rows.weights)
    scaled = np.sqrt(rows.weights)[:, None] * np.column_stack([rows.columns, rows.targets])
    # Equal weights that add up to the total; what they multiply is divided by them.
    factor = np.linalg.qr(scaled, mode="r") / np.sqrt(total / most)
    return Rows(factor[:, :-1], factor[:, -1], np.full(most, total / most))


def joined(first: Rows, second: Rows) -> Rows:
    """One after the other."""
    return Rows(*(np.concatenate(parts) for parts in zip(first, second, strict=True)))


def padded(*vectors: np.ndarray) -> list[Any]:
    """The vectors with zeros up to the next size."""
    return [np.pad(vector, (0, padded_size(len(vector), _ROWS) - len(vector))) for vector in vectors]


def padded_size(size: int, least: int) -> int:
    """The next of a few sizes, at most an eighth larger or a multiple of ``least``.

    Examples
    --------
    >>> [padded_size(size, 64) for size in (1, 64, 65, 1000, 1025, 10_000)]
    [64, 64, 128, 1024, 1152, 10240]
    """
    grain = max(least, 2 ** (size.bit_length() - 4))
    return -(-size // grain) * grain
