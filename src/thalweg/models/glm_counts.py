"""Regression of counts with a Gaussian posterior over the coefficients, by PG-SVI's steps."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.utils import Tags

from thalweg.arguments import number
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.likelihoods import NegativeBinomial, Poisson
from thalweg.models._glm import Regressor
from thalweg.models._scale import Solution
from thalweg.models._weights import Frame, Pseudo, Rows, Weights, expected, padded, seen_from

_DISPERSIONS = (1e-6, 1e4)
"""Between these the dispersion is learned. At the lower end the counts are Poisson for all that data can tell."""

_MOST_ROUNDS = 100


class _Counts(Regressor):
    """Models of counts with the mean eᶻ."""

    _reach = 300.0  # beyond it the exponential could overflow

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

    def _start(self, rows: Rows, frame: Frame, before: Weights | None) -> Pseudo:
        return _count_start(rows, dispersion=0.0)


def _count_start(rows: Rows, dispersion: float) -> Pseudo:
    """The likelihood at its highest point, with half a count more for the sake of counts of 0."""
    means = rows.targets + 0.5
    # At least as precise as an example of weight 1: otherwise the average of the exponential could overflow.
    precisions = np.maximum(rows.weights, 1) * means / (1 + dispersion * means)
    return Pseudo(precisions * np.log(means), precisions)


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
    prior_scale_ : float or array
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
        prior_scale: Any = "auto",
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

    def _posterior(
        self, rows: Rows, frame: Frame, before: Weights | None = None, nearby: Solution | None = None
    ) -> Solution:
        if before is not None:
            return self._at_dispersion(self.dispersion_, rows, frame, before)
        if self.dispersion is not None:
            given = float(number("dispersion", self.dispersion, above=0))
            return self._at_dispersion(given, rows, frame, nearby=nearby)
        dispersion = 1.0 if nearby is None else nearby.learned["dispersion_"]
        solution = self._at_dispersion(dispersion, rows, frame, nearby=nearby)
        steps = solution.steps
        for _ in range(_MOST_ROUNDS):
            last, dispersion = dispersion, _best_dispersion(rows, solution.weights)
            solution = self._at_dispersion(dispersion, rows, frame, nearby=solution)
            steps += solution.steps
            if abs(np.log(dispersion / last)) < self.tol:
                break
        return solution._replace(steps=steps)

    def _at_dispersion(
        self,
        dispersion: float,
        rows: Rows,
        frame: Frame,
        before: Weights | None = None,
        nearby: Solution | None = None,
    ) -> Solution:
        likelihood = _NegativeBinomialRate(jnp.asarray(dispersion))
        start = _count_start(rows, dispersion) if nearby is None else seen_from(nearby.weights, likelihood, rows)
        solution = self._maximise(rows, frame, before, likelihood, start)
        return solution._replace(learned={"dispersion_": dispersion})


def _best_dispersion(rows: Rows, weights: Weights) -> float:
    """The dispersion at which the bound is highest for this posterior."""
    targets, counts, *latent = padded(rows.targets, rows.weights, *weights.latent(rows.columns))
    value = lambda log: expected(_NegativeBinomialRate(np.exp(log)), targets, *latent).value
    loss = lambda log: -counts @ np.asarray(value(log))
    lowest, highest = np.log(_DISPERSIONS)
    found = minimize_scalar(loss, bounds=(lowest, highest), options={"xatol": 1e-7}).x
    # Next to the lower end the bound is flat but for rounding: without this the search would never settle.
    return float(np.exp(found)) if found > lowest + 0.1 else _DISPERSIONS[0]
