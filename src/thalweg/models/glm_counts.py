"""Regression of counts with a Gaussian posterior over the coefficients, by PG-SVI's steps."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize_scalar
from sklearn.utils import Tags

from thalweg.arguments import number
from thalweg.gaussian.likelihood import Expected, Likelihood
from thalweg.gaussian.likelihoods import NegativeBinomial, Poisson
from thalweg.models._glm import Regressor, Solution
from thalweg.models._weights import Pseudo, Rows, Weights, padded

_FURTHEST_START = 300.0
"""The exponential of a linear predictor beyond this could overflow."""

_DISPERSIONS = (1e-6, 1e4)
"""Between these the dispersion is learned. At the lower end the counts are Poisson for all that data can tell."""

_MOST_ROUNDS = 100


class _Counts(Regressor):
    """Models of counts with the mean eᶻ."""

    def _targets(self, y: np.ndarray, first: bool, **known: Any) -> np.ndarray:
        if np.any(y < 0):
            raise ValueError(f"y must hold counts, numbers of at least 0, found {y[y < 0][0]}")
        return y.astype(np.float64)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class _PoissonRate(Poisson):
    """The Poisson likelihood for counts divided by exposures too."""

    def check(self, y: Any) -> None:
        """Take any number; the estimator has refused those below 0."""


class PoissonGLM(_Counts):
    """Bayesian Poisson regression: counts with the mean eᶻ.

    The posterior over the coefficients is the normal distribution N(m, V) that maximises the evidence lower bound,
    as in :class:`BernoulliGLM`.

    Parameters
    ----------
    prior_scale, fit_intercept, intercept_scale, max_iter, tol, verbose
        As in :class:`BernoulliGLM`.

    Notes
    -----
    For counts over unequal exposures, fit rates: ``fit(X, counts / exposure, sample_weight=exposure)``. The bound is
    then that of the counts up to a constant.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> model = PoissonGLM().fit(X, rng.poisson(np.exp(1 + X @ [0.5, -0.5])))
    >>> bool(np.all(np.abs(model.coef_ - [0.5, -0.5]) < 0.1))
    True
    """

    def _likelihood(self) -> Likelihood:
        return _PoissonRate()

    def _solve(self, rows: Rows, before: Weights | None) -> Solution:
        return self._maximise(rows, before, self._likelihood(), _count_start(rows, dispersion=0.0))


def _count_start(rows: Rows, dispersion: float) -> Pseudo:
    """The likelihood at its highest point, with half a count more for the sake of counts of 0."""
    means = rows.targets + 0.5
    # At least as precise as an example of weight 1: otherwise the average of the exponential could overflow.
    precisions = np.maximum(rows.weights, 1) * means / (1 + dispersion * means)
    return Pseudo(np.log(means), precisions, reach=_FURTHEST_START)


class _NegativeBinomialRate(NegativeBinomial):
    """The negative binomial likelihood for any numbers of at least 0."""

    def check(self, y: Any) -> None:
        """Take any number; the estimator has refused those below 0."""


class NegativeBinomialGLM(_Counts):
    """Bayesian negative binomial regression: counts of mean μ = eᶻ and variance μ + dispersion·μ².

    The posterior over the coefficients is the normal distribution N(m, V) that maximises the evidence lower bound,
    as in :class:`BernoulliGLM`.

    Parameters
    ----------
    dispersion
        A positive number; as it goes to 0 this is Poisson regression. By default the bound is maximised over it too,
        between 1e-6 and 1e4; intervals take the outcome as known. In a stream it is learned from the first batch and
        then kept: give it, or make the first batch a large one.
    prior_scale, fit_intercept, intercept_scale, max_iter, tol, verbose
        As in :class:`BernoulliGLM`.

    Attributes
    ----------
    dispersion_ : float
        As given or learned.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 1))
    >>> mean = np.exp(1 + 0.5 * X[:, 0])
    >>> model = NegativeBinomialGLM().fit(X, rng.poisson(mean * rng.gamma(2, 0.5, size=500)))
    >>> 0.4 < model.dispersion_ < 0.6
    True
    """

    def __init__(
        self,
        dispersion: float | None = None,
        prior_scale: Any = 2.5,
        fit_intercept: bool = True,
        intercept_scale: float = 10.0,
        max_iter: int = 1000,
        tol: float = 1e-5,
        verbose: int = 0,
    ) -> None:
        super().__init__(prior_scale, fit_intercept, intercept_scale, max_iter, tol, verbose)
        self.dispersion = dispersion

    def _likelihood(self) -> Likelihood:
        return _NegativeBinomialRate(self.dispersion_)

    def _solve(self, rows: Rows, before: Weights | None) -> Solution:
        if before is not None:
            return self._solve_given(self.dispersion_, rows, before)
        if self.dispersion is not None:
            return self._solve_given(float(number("dispersion", self.dispersion, above=0)), rows, None)
        dispersion = 1.0
        solution = self._solve_given(dispersion, rows, None)
        steps = solution.steps
        for _ in range(_MOST_ROUNDS):
            last, dispersion = dispersion, _best_dispersion(rows, solution.weights)
            solution = self._solve_given(dispersion, rows, None, _warm_start(rows, solution.weights, dispersion))
            steps += solution.steps
            if abs(np.log(dispersion / last)) < self.tol:
                break
        return solution._replace(steps=steps)

    def _solve_given(
        self, dispersion: float, rows: Rows, before: Weights | None, start: Pseudo | None = None
    ) -> Solution:
        start = _count_start(rows, dispersion) if start is None else start
        solution = self._maximise(rows, before, _NegativeBinomialRate(jnp.asarray(dispersion)), start)
        return solution._replace(learned={"dispersion_": dispersion})


def _best_dispersion(rows: Rows, weights: Weights) -> float:
    """The dispersion at which the bound is highest for this posterior."""
    targets, counts, *latent = padded(rows.targets, rows.weights, *weights.latent(rows.columns))
    expected = lambda log: _expected(_NegativeBinomialRate(np.exp(log)), targets, *latent).value
    loss = lambda log: -counts @ np.asarray(expected(log))
    lowest, highest = np.log(_DISPERSIONS)
    found = minimize_scalar(loss, bounds=(lowest, highest), options={"xatol": 1e-7}).x
    # Next to the lower end the bound is flat but for rounding: without this the search would never settle.
    return float(np.exp(found)) if found > lowest + 0.1 else _DISPERSIONS[0]


def _warm_start(rows: Rows, weights: Weights, dispersion: float) -> Pseudo:
    """The likelihood as it looks from this posterior."""
    targets, mean, variance = padded(rows.targets, *weights.latent(rows.columns))
    _, first, second = _expected(_NegativeBinomialRate(jnp.asarray(dispersion)), targets, mean, variance)
    real = slice(len(rows.targets))
    values = mean - np.asarray(first) / np.asarray(second)
    return Pseudo(values[real], -np.asarray(second)[real] * rows.weights, reach=_FURTHEST_START)


@eqx.filter_jit
def _expected(
    likelihood: Likelihood, targets: Float[Array, " n"], mean: Float[Array, " n"], variance: Float[Array, " n"]
) -> Expected:
    return likelihood.expected(targets, mean, variance)
