"""Regression of counts with a Gaussian posterior over the coefficients, by PG-SVI's steps."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import _num_samples

from thalweg.gaussian import linear
from thalweg.models._glm import POSITIVE, Regressor
from thalweg.models._inputs import row_numbers


class _CountRegressor(Regressor):
    """Models of counts with the mean eᶻ."""

    _true_tags = ("input_tags.sparse", "target_tags.positive_only")

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, exposure: Any = None) -> Self:
        """Find the posterior given these examples, and forget all others.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in :meth:`BernoulliGLM.fit`.
        exposure
            How long, or over how many, each count was taken: the mean is exposure·eᶻ. 1 by default.
        """
        return super().fit(X, y, sample_weight, _with_exposure(X, offset, exposure))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, exposure: Any = None) -> Self:
        """Take in a further batch: see :meth:`GaussianGLM.partial_fit`.

        Parameters
        ----------
        X, y, sample_weight, offset, exposure
            As in :meth:`fit`.
        """
        return super().partial_fit(X, y, sample_weight, _with_exposure(X, offset, exposure))

    def predict(self, X: Any, offset: Any = None, exposure: Any = None) -> np.ndarray:
        """The mean count, averaged over the posterior of the coefficients.

        Parameters
        ----------
        X, offset, exposure
            As in :meth:`fit`.
        """
        offset = _with_exposure(X, offset, exposure)
        found, variances = super().predict(X, offset), self._posterior.latents(self._rows(X))[3]
        unknown = "whose rates are known to a factor of a hundred at best have means far above what is likely"
        _warn_of_rows(np.any(variances > np.log(100.0) ** 2, axis=0), unknown)
        return found

    def predict_interval(self, X: Any, level: float = 0.95, offset: Any = None, exposure: Any = None) -> np.ndarray:
        """Central intervals that a new count is in with a probability of at least ``level``; both ends belong to them.

        Parameters
        ----------
        X, offset, exposure
            As in :meth:`fit`.
        level
            The probability.
        """
        ends = super().predict_interval(X, level, _with_exposure(X, offset, exposure))
        _warn_of_rows(np.any(np.isinf(ends), axis=1), "far from all that was learned from have intervals beyond 1e308")
        return ends

    def sample(
        self, n: int = 1, X: Any = None, offset: Any = None, random_state: Any = None, exposure: Any = None
    ) -> np.ndarray:
        """Draws from the posterior: see :meth:`GaussianGLM.sample`.

        Parameters
        ----------
        n, X, offset, random_state
            As there.
        exposure
            As in :meth:`fit`.
        """
        return super().sample(n, X, offset if X is None else _with_exposure(X, offset, exposure), random_state)

    def _targets(self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any) -> tuple[np.ndarray, np.ndarray]:
        if np.any(y < 0):
            raise ValueError(f"y must hold counts, numbers of at least 0, found {y[y < 0][0]}")
        return super()._targets(y, weights, first, classes)


def _warn_of_rows(which: np.ndarray, what: str) -> None:
    if np.any(which):
        message = f"{np.sum(which)} rows {what}; the first of them is row {np.argmax(which)}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _with_exposure(X: Any, offset: Any, exposure: Any) -> Any:
    if exposure is None:
        return offset
    count = _num_samples(X)
    return row_numbers("offset", offset, count) + np.log(row_numbers("exposure", exposure, count, above=0))


class PoissonGLM(_CountRegressor):
    """Bayesian Poisson regression: counts with the mean eᶻ.

    The posterior over the coefficients is the normal distribution N(m, V) that maximises the evidence lower bound,
    as in :class:`BernoulliGLM`.

    Parameters
    ----------
    prior_scale, fit_intercept, intercept_scale, max_iter, tol, verbose
        As in :class:`BernoulliGLM`.

    Examples
    --------
    >>> model = PoissonGLM(prior_scale=1.0).fit([[0.0], [1.0], [2.0], [3.0]], [1, 3, 7, 20])
    >>> model.predict([[1.0], [2.0]]).round(1)
    array([2.9, 7.4])
    """

    def _target_model(self) -> linear.TargetModel:
        return linear.CountTargets(dispersion=0.0)


@dataclass(repr=False, eq=False)
class _Dispersion:
    """The first parameter of :class:`NegativeBinomialGLM`: fields of the last base class come first."""

    dispersion: float | None = None


@dataclass(repr=False, eq=False)
class NegativeBinomialGLM(_CountRegressor, _Dispersion):
    """Bayesian negative binomial regression: counts of mean μ = eᶻ and variance μ + dispersion·μ².

    The posterior over the coefficients is the normal distribution N(m, V) that maximises the evidence lower bound,
    as in :class:`BernoulliGLM`.

    Parameters
    ----------
    dispersion
        A positive number; as it goes to 0 this is Poisson regression. By default the bound is maximised over it too,
        between 1e-6 and 1e4, with an exponential prior of mean 1 of its square root, without which a few events would
        leave it anywhere; intervals are then those of Student's t with n − d degrees of freedom. In a stream it is
        learned from the first 2,048 rows and then kept.
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
    >>> X, counts = [[0.0], [0.0], [1.0], [1.0]], [0, 9, 2, 40]
    >>> wide, narrow = (NegativeBinomialGLM(dispersion, prior_scale=1.0).fit(X, counts) for dispersion in (1.0, 0.1))
    >>> bool(wide.elbo_ > narrow.elbo_)
    True
    """

    _parameter_constraints: ClassVar[dict] = {"dispersion": [POSITIVE, None]}

    def _target_model(self) -> linear.TargetModel:
        return linear.CountTargets(self.dispersion)

    def _store(self, fit: linear.LinearFit) -> None:
        super()._store(fit)
        self.dispersion_ = float(fit.likelihood.dispersion)
