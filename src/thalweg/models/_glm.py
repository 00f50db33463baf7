"""What the generalised linear models have in common: everything but the likelihood."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from sklearn.base import BaseEstimator, RegressorMixin, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from thalweg.arguments import number, whole
from thalweg.descent.result import Status
from thalweg.gaussian.likelihood import Likelihood
from thalweg.models._common import unharmed
from thalweg.models._scale import Solution, with_best_scale
from thalweg.models._summary import Summary, intervals
from thalweg.models._weights import Frame, Pseudo, Rows, Search, Weights, find_weights, padded, seen_from

_LARGEST = 1e100
"""The squares of larger numbers could overflow."""

_SHORTEST_MOVE = 1e-15
"""Rounding hides moves shorter than this."""


_PLAIN_SCALE = 2.5
"""The prior scale where none is given and none can be learned."""


class GeneralisedLinearModel(BaseEstimator):
    """Base of the generalised linear models: a Gaussian posterior over coefficients by natural-gradient steps.

    A subclass says what the likelihood is, where to start, and how targets are checked and predicted.
    """

    _reach = np.inf
    """The search starts at 0 instead of at a linear predictor beyond this."""

    def __init__(
        self,
        prior_scale: Any = "auto",
        fit_intercept: bool = True,
        intercept_scale: float = 10.0,
        max_iter: int = 1000,
        tol: float = 1e-5,
        verbose: int = 0,
    ) -> None:
        self.prior_scale = prior_scale
        self.fit_intercept = fit_intercept
        self.intercept_scale = intercept_scale
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose

    def _likelihood(self) -> Likelihood:
        """p(y|z), with the parameters that were given or learned; called with float64 switched on."""
        raise NotImplementedError

    def _start(self, rows: Rows, frame: Frame, before: Weights | None) -> Pseudo:
        """Where the search starts if nothing better is known."""
        raise NotImplementedError

    def _targets(self, y: np.ndarray, first: bool, **known: Any) -> np.ndarray:
        """Targets as the likelihood wants them, or an error that says what is wrong; ``first`` if nothing was seen."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GeneralisedLinearModel":
        """Find the posterior given these examples, and forget all others.

        Parameters
        ----------
        X
            Features, an array or data frame with a row for each example.
        y
            Targets.
        sample_weight
            How often each example counts; 1 by default. A weight of 2 is the same as giving the example twice.
        """
        with unharmed(self):
            self._take_in(self._rows(X, y, sample_weight, first=True), self._solve)
        return self

    def _take_in(self, rows: Rows, solve: Callable[[Rows], Solution]) -> None:
        with jax.enable_x64(True):
            self._keep(solve(rows))

    def _solve_further(self, rows: Rows) -> Solution:
        """The posterior given these rows and all before, if there were any."""
        if hasattr(self, "_weights"):
            return self._posterior(rows, self._weights.frame, before=self._weights)
        return self._at_scale(rows, _PLAIN_SCALE if self._learns_scale() else self.prior_scale)

    def _learns_scale(self) -> bool:
        return isinstance(self.prior_scale, str) and self.prior_scale == "auto"

    def _solve(self, rows: Rows) -> Solution:
        """The posterior given these rows and no others."""
        if not self._learns_scale():
            return self._at_scale(rows, self.prior_scale)
        spread = Frame.of(rows, self._prior_scales(1.0), self.fit_intercept).spread(rows)
        if spread == 0:
            return self._at_scale(rows, _PLAIN_SCALE)
        return with_best_scale(partial(self._at_scale, rows), 1 / spread, self._search().tol)

    def _at_scale(self, rows: Rows, prior_scale: Any, nearby: Solution | None = None) -> Solution:
        """The same with this prior; ``nearby`` is that with another one, to start from."""
        frame = Frame.of(rows, self._prior_scales(prior_scale), self.fit_intercept)
        solution = self._posterior(rows, frame, nearby=nearby)
        kept = float(prior_scale) if np.ndim(prior_scale) == 0 else np.array(prior_scale, dtype=np.float64)
        return solution._replace(learned={**solution.learned, "prior_scale_": kept})

    def _posterior(
        self, rows: Rows, frame: Frame, before: Weights | None = None, nearby: Solution | None = None
    ) -> Solution:
        """The posterior in these coordinates given the rows and, in a stream, that of the rows before."""
        likelihood = self._likelihood()
        start = self._start(rows, frame, before) if nearby is None else seen_from(nearby.weights, likelihood, rows)
        return self._maximise(rows, frame, before, likelihood, start)

    def _maximise(
        self, rows: Rows, frame: Frame, before: Weights | None, likelihood: Likelihood, start: Pseudo
    ) -> Solution:
        """The posterior with the highest bound, its prior being the posterior of the rows before, if there were any."""
        prior = None if before is None else before.as_prior()
        weights, result = find_weights(frame, rows, likelihood, start, self._search(), prior)
        elbo = -result.history.last["value"] + (0.0 if before is None else self.elbo_)
        return Solution(weights, result, result.steps, elbo)

    def _keep(self, solution: Solution) -> None:
        status = solution.result.status
        if status is Status.DIVERGED or not np.isfinite(solution.elbo):
            raise ValueError(
                "X and y lead to a bound beyond the range of numbers: look for features or targets of extreme size, or "
                "lower prior_scale. The model is as it was before"
            )
        last = solution.result.history.last
        # Where rounding hides what a step gains it is cut to nothing; the gradient that it shows is then 0 anyhow.
        if not status.success or self.tol * last["size"] < _SHORTEST_MOVE:
            warnings.warn(
                f"{type(self).__name__} took {solution.steps} steps without reaching tol={self.tol}: natural gradient "
                f"{last['residual']:.1e}, step size {last['size']:.1e}. Standardise the features or lower prior_scale; "
                f"where the gradient is small and the step is not, raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        self._weights, self._has_intercept = solution.weights, bool(self.fit_intercept)
        means, deviations = solution.weights.coefficients()
        first = int(self.fit_intercept)
        self.coef_, self.coef_sd_ = means[first:], deviations[first:]
        self.intercept_ = float(means[0]) if self.fit_intercept else 0.0
        self.intercept_sd_ = float(deviations[0]) if self.fit_intercept else 0.0
        self.covariance_ = solution.weights.covariance_of_coefficients()
        self.elbo_, self.n_iter_, self.history_ = solution.elbo, solution.steps, solution.result.history
        for name, value in solution.learned.items():
            setattr(self, name, value)

    def _rows(self, X: Any, y: Any, sample_weight: Any, first: bool, **known: Any) -> Rows:
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64, y_numeric=is_regressor(self))
        if is_regressor(self) and y.dtype.kind not in "biuf":
            raise ValueError(f"y must hold numbers, found {y[0]!r}")
        _check_size("X", X)
        _check_size("y", y)
        if not first and bool(self.fit_intercept) != self._has_intercept:
            raise ValueError(
                f"fit_intercept must stay what it was in the first fit, {self._has_intercept}, found "
                f"{self.fit_intercept!r}: set it back, or fit anew"
            )
        weights = np.ones(len(X)) if sample_weight is None else sample_weight
        counts = weights > 0
        if not counts.any():
            raise ValueError("sample_weight must be above zero for one example at least; all weights are zero")
        return Rows(_columns(X[counts], self.fit_intercept), self._targets(y[counts], first, **known), weights[counts])

    def _prior_scales(self, prior_scale: Any) -> np.ndarray:
        """The prior standard deviations, that of the intercept first."""
        try:
            scales = np.asarray(prior_scale, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"prior_scale must be 'auto', a number, or one a feature, found {self.prior_scale!r}"
            ) from None
        if scales.ndim and scales.shape != (self.n_features_in_,):
            raise ValueError(
                f"prior_scale must be a number or have shape ({self.n_features_in_},), one entry for each feature, "
                f"found shape {scales.shape}"
            )
        if not np.all((scales > 0) & np.isfinite(scales)):
            raise ValueError(f"prior_scale must be finite and above 0, found {self.prior_scale!r}")
        scales = np.broadcast_to(scales, self.n_features_in_)
        if not self.fit_intercept:
            return np.array(scales)
        return np.append(float(number("intercept_scale", self.intercept_scale, above=0)), scales)

    def _search(self) -> Search:
        tol = float(number("tol", self.tol, above=0))
        return Search(tol, whole("max_iter", self.max_iter), bool(self.verbose), self._reach)

    def _latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        _check_size("X", X)
        return self._weights.latent(_columns(X, self._has_intercept))

    def _mean_target(self, X: Any) -> np.ndarray:
        """The mean of a target, averaged over the posterior of the coefficients."""
        mean, variance = self._latent(X)
        with jax.enable_x64(True):
            return np.asarray(_mean_target(self._likelihood(), *padded(mean, variance)))[: len(mean)]

    def interval(self, level: float = 0.95) -> np.ndarray:
        """Central credible intervals of the coefficients, one a row; the first row is the intercept's, if there is one.

        Parameters
        ----------
        level
            The posterior probability of each interval.
        """
        check_is_fitted(self, "coef_")
        level = float(number("level", level, above=0, below=1))
        return intervals(*self._weights.coefficients(), level)

    def summary(self) -> Summary:
        """A table: mean, standard deviation, 2.5 % and 97.5 % quantile and P(coefficient > 0) of each coefficient."""
        check_is_fitted(self, "coef_")
        names = getattr(self, "feature_names_in_", [f"x{index}" for index in range(self.n_features_in_)])
        return Summary([*(["intercept"] if self._has_intercept else []), *names], *self._weights.coefficients())


def _columns(X: np.ndarray, intercept: bool) -> np.ndarray:
    return np.hstack([np.ones((len(X), 1)), X]) if intercept else X


def _check_size(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and np.max(np.abs(array)) > _LARGEST:
        raise ValueError(f"{name} must hold numbers of at most {_LARGEST:g}, found {np.max(np.abs(array)):g}")


class Regressor(RegressorMixin, GeneralisedLinearModel):
    """Models of numbers."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Regressor":
        """Take in a further batch: the posterior so far is the prior of the batch.

        That is Bayes' rule with a Gaussian in place of each intermediate posterior, so the outcome depends on the order
        of the batches a little, and differs from one fit to all of them, the less the larger the batches; for a
        :class:`GaussianGLM` it is exact. It is always over the coefficients, for streams with many more examples than
        features; batches of about the same size share one compiled function. A batch that is refused leaves the model
        as it was. With ``prior_scale="auto"`` the scale is 2.5 in a stream, or that of a :meth:`fit` before it, since
        a first batch can be too small to learn it from; a :class:`GaussianGLM` learns it from all batches.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        """
        with unharmed(self):
            self._take_in(self._rows(X, y, sample_weight, first=not hasattr(self, "coef_")), self._solve_further)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The mean of the target, averaged over the posterior of the coefficients."""
        return self._mean_target(X)


@eqx.filter_jit
def _mean_target(likelihood: Likelihood, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
    return likelihood.predict(mean, variance).mean
