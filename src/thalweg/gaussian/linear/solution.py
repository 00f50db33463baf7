"""What a fit of a linear model leads to: the posterior, how it was found, and predictions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from thalweg.codec import storable
from thalweg.descent import History, Status
from thalweg.gaussian.ascent import maximise_bound, place
from thalweg.gaussian.divergence import KLToNormal
from thalweg.gaussian.likelihood import Likelihood, expected_on_host
from thalweg.gaussian.linear.observations import LinearObservations, check_numbers, with_intercept
from thalweg.gaussian.linear.weights import PriorFrame, WeightPosterior
from thalweg.gaussian.oracle import WeightLikelihood
from thalweg.gaussian.posteriors import Full
from thalweg.linalg import factorise

__all__ = ["AscentSettings", "LinearFit"]


class AscentSettings(NamedTuple):
    """How to look for a posterior: until the natural gradient is as short as ``tol``, in ``max_iter`` steps at most.

    Examples
    --------
    >>> AscentSettings(tol=1e-5, max_iter=1000)
    AscentSettings(tol=1e-05, max_iter=1000)
    """

    tol: float
    max_iter: int


@storable
class LinearFit(NamedTuple):
    """The posterior that a fit has led to, and how; arrays are NumPy's.

    Examples
    --------
    >>> from thalweg.gaussian.linear import LinearModel, LinearObservations, RealTargets
    >>> rows = LinearObservations(np.ones((2, 1)), np.array([1.0, 3.0]), np.ones(2))
    >>> LinearModel(RealTargets(1.0), AscentSettings(1e-6, 10), 1.0, None).fit(rows).predict(np.ones((1, 1))).round(4)
    array([1.3333])
    """

    weights: Any
    """A :class:`WeightPosterior`; of several classes :class:`ClassWeights`."""
    elbo: float
    """The bound, in nats; for a stream the sum over batches."""
    steps: int
    status: Status
    history: History
    prior_scale: Any = None
    """As given or learned."""
    stream: LinearObservations | None = None
    """All observations so far, compressed if that is exact, while a stream needs them."""
    log_prior: float = 0.0
    """Of the parameters of the likelihood that were learned."""
    shift: float = 0.0
    """Of the linear predictor of predictions, so that they add up to what was seen."""

    @property
    def likelihood(self) -> Any:
        """With its parameters as given or learned."""
        return self.weights.likelihood

    def check_stored(self) -> None:
        """Refuse parts that do not fit one another."""
        check_numbers(self, elbo=(), log_prior=(), shift=())
        weights = len(self.weights.frame.scales)
        if self.stream is not None and self.stream.columns.shape[1] != weights:
            raise ValueError("observations of other weights")

    def predict(self, X: np.ndarray, offsets: np.ndarray | float = 0.0) -> np.ndarray:
        """The mean of the targets of rows of features, averaged over the posterior."""
        columns = self._columns(X)
        with np.errstate(over="ignore"):
            parts = [share * part.predict(columns, offsets + self.shift) for share, part in self.weights.parts()]
        return np.sum(parts, axis=0)

    def latents(
        self, X: np.ndarray, offsets: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, tuple[WeightPosterior, ...], np.ndarray, np.ndarray]:
        """The shares of the parts, the parts, and a row for each of means and of variances of linear predictors."""
        columns, (shares, parts) = self._columns(X), zip(*self.weights.parts(), strict=True)
        means, variances = np.stack([part.latent(columns) for part in parts], axis=1)
        return np.array(shares), parts, means + offsets + self.shift, variances

    def draws(
        self, count: int, X: np.ndarray, offsets: np.ndarray | float, rng: np.random.Generator
    ) -> Iterator[tuple[WeightPosterior, np.ndarray, np.ndarray, np.ndarray]]:
        """For each part: draws of coefficients, of linear predictors of the rows, and the factors of the noise."""
        columns = self._columns(X)
        shares, parts = zip(*self.weights.parts(), strict=True)
        for part, number in zip(parts, rng.multinomial(count, shares), strict=True):
            coefficients, latent, factors = part.sample(int(number), columns, rng)
            yield part, coefficients, latent + offsets + self.shift, factors

    def leverages(self, rows: LinearObservations) -> np.ndarray:
        """The share of the information on the weights that each row has, times the number of weights it is about."""
        mean, variance = self.weights.latent(rows.columns)
        curvature = expected_on_host(self.likelihood, rows.targets, mean + rows.offsets, variance).second
        return np.clip(-rows.weights * curvature * variance, 0.0, 1.0)

    def with_covariance_at_shift(self, rows: LinearObservations) -> "LinearFit":
        """The same with the covariance that the rows leave where the shift takes predictions."""
        weights = self.weights
        mean, variance = weights.latent(rows.columns)
        curvature = expected_on_host(self.likelihood, rows.targets, mean + rows.offsets + self.shift, variance).second
        design = weights.frame.design(rows.columns)
        information: Any = -(design.T * (rows.weights * curvature)) @ design
        covariance = factorise(np.eye(design.shape[1]) + information).inverse()
        return self._replace(weights=replace(weights, covariance=covariance, basis=None))

    def with_shift_in_intercept(self) -> "LinearFit":
        """The same with the shift of predictions in the intercept, as the prior of the examples that come next."""
        weights = self.weights
        if not self.shift:
            return self
        mean = weights.mean + np.eye(1, len(weights.mean))[0] * self.shift / weights.frame.scales[0]
        return self._replace(weights=replace(weights, mean=mean), shift=0.0)

    def _columns(self, X: np.ndarray) -> np.ndarray:
        return with_intercept(X, self.weights.frame.centre is not None)


class LinearProblem(NamedTuple):
    """Observations, the coordinates in which the prior of their weights is N(0, I), and how to find the posterior."""

    rows: LinearObservations
    frame: PriorFrame
    settings: AscentSettings
    rough: bool = False
    """Whether half of the digits are enough, since the posterior only says how to go on."""

    @property
    def known(self) -> np.ndarray:
        """The linear predictor of each row at the prior mean."""
        return self.frame.origin(self.rows.columns) + self.rows.offsets

    def solve(
        self, likelihood: Likelihood, nearby: LinearFit | None = None, before: LinearFit | None = None
    ) -> LinearFit:
        """Maximise the bound over the weights, beginning with a whole step from ``nearby``, or from the prior mean.

        Of more weights than examples those along the rows of the design are enough: the others keep their prior. In a
        stream the prior is the posterior of the observations ``before``.
        """
        with jax.enable_x64(True):
            likelihood = jax.tree.map(np.asarray, likelihood)
        start_mean, start_variance = self.known, np.zeros(len(self.known))
        if nearby is not None:
            start_mean, start_variance = nearby.weights.latent(self.rows.columns)
            start_mean = start_mean + self.rows.offsets
        _, first, second = expected_on_host(likelihood, self.rows.targets, start_mean, start_variance)
        # The response of iteratively reweighted least squares, less its prior mean, times its precision.
        response = self.rows.weights * (first - second * (start_mean - self.known))
        design, basis = self.frame.design(self.rows.columns), None
        if before is None and design.shape[0] < design.shape[1]:
            basis, triangle = np.linalg.qr(design.T)
            design = triangle.T
        prior = standard_normal(design.shape[1]) if before is None else before.weights.as_prior()
        precision: Any = prior.precision - (design.T * (self.rows.weights * second)) @ design
        start = Full.from_precision(prior.mean, precision)
        # A whole step can lead much too far, to where an exponential overflows.
        starts = start._replace(mean=start.covariance @ (prior.precision @ prior.mean + design.T @ response)), start
        rows = self.rows
        with jax.enable_x64(True):
            oracle = WeightLikelihood(likelihood, rows.targets, rows.weights, self.known, design)
            oracle, term, starts = place((oracle, KLToNormal(prior), starts), design.size)
            result = maximise_bound(oracle, term, *starts, **self.settings._asdict())
        x: Any = jax.tree.map(np.asarray, result.x)
        mean = x.mean if basis is None else basis @ x.mean
        weights = WeightPosterior(self.frame, mean, x.covariance, basis, likelihood=likelihood)
        fit = LinearFit(weights, -result.loss, result.steps, result.status, result.history)
        return fit if before is None else fit._replace(elbo=fit.elbo + before.elbo, prior_scale=before.prior_scale)


def standard_normal(count: int) -> Any:
    """N(0, I)."""
    return Full(np.zeros(count), np.eye(count), np.eye(count))  # type: ignore[arg-type]
