"""The search for the posterior over weights with the highest bound, in the smaller of two spaces.

With A the design in the coordinates of a :class:`~thalweg.gaussian.linear.weights.Frame`, it works

- over the weights, V⁻¹ = I + Aᵀdiag(γ̃)A, where there are no more of them than examples, or
- over the linear predictor at the examples, whose prior covariance is K = AAᵀ.

Rows and columns are padded with zeros to a few sizes, rows with weight 0, so that fits of about the same size share one
compiled function. The posterior of a padded weight is its prior: neither posterior nor bound changes.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.linalg import cho_factor, cho_solve, cholesky

from thalweg.codec import storable
from thalweg.descent import History, Monotone, Result, Status, Tolerance, minimize
from thalweg.descent.steps import Move, Taken
from thalweg.gaussian.divergence import GaussianKL, KLToNormal, KLToProcess
from thalweg.gaussian.likelihood import Expected, Likelihood
from thalweg.gaussian.linear.mixture import Mixture
from thalweg.gaussian.linear.observations import Observations, check_numbers, with_intercept
from thalweg.gaussian.linear.weights import Frame, LowRankSpread, Weights
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Full, Implicit
from thalweg.padding import padded, padded_size

_ROWS, _COLUMNS = 256, 16
"""The smallest sizes that data are padded to."""

_SMALLEST_VARIANCE = 1e-30
"""Prior variance at least given to the linear predictor of an example, which a row of zeros would leave at 0."""


class Pseudo(NamedTuple):
    """A Gaussian observation of the linear predictor in place of each example, to start from."""

    pulls: np.ndarray
    """What is observed, times its precision."""
    precisions: np.ndarray
    reach: float = np.inf
    """Where this leads to a linear predictor beyond it, the search starts at 0 instead."""


class Search(NamedTuple):
    """How to look for a posterior: until the natural gradient is as short as ``tol``, in ``max_iter`` steps at most.

    Examples
    --------
    >>> Search(tol=1e-5, max_iter=1000)
    Search(tol=1e-05, max_iter=1000, progress=False)
    """

    tol: float
    max_iter: int
    progress: bool = False


@storable
class Solution(NamedTuple):
    """The posterior that a search has led to, and how; arrays are NumPy's.

    Examples
    --------
    >>> from thalweg.gaussian.linear import Measurements, Observations, Prior, Search, fit
    >>> rows = Observations(np.ones((2, 1)), np.array([1.0, 3.0]), np.ones(2))
    >>> fit(Measurements(1.0), rows, Prior(1.0, intercept=None), Search(1e-6, 10)).predict(np.ones((1, 1))).round(4)
    array([1.3333])
    """

    weights: Weights | Mixture
    likelihood: Likelihood
    """With its parameters as given or learned."""
    elbo: float
    """The bound, in nats; for a stream the sum over batches."""
    steps: int
    status: Status
    history: History
    prior_scale: Any = None
    """As given or learned."""
    stream: Observations | None = None
    """All observations so far, in short where that says the same, while a stream needs them."""
    log_prior: float = 0.0
    """Of what was learned of the likelihood."""
    shift: float = 0.0
    """Of the linear predictor of predictions, so that they add up to what was seen."""

    def check_stored(self) -> None:
        """Refuse parts that are something else."""
        for name in ("elbo", "log_prior", "shift"):
            check_numbers(name, getattr(self, name))
        kinds = (self.weights, Weights | Mixture), (self.likelihood, Likelihood), (self.stream, Observations | None)
        for part, kind in kinds:
            if not isinstance(part, kind):
                raise ValueError(f"a {type(part).__name__} in place of {kind}")
        if self.stream is not None and self.stream.columns.shape[1] != len(self.weights.frame.scales):
            raise ValueError("observations of other weights")

    def predict(self, X: np.ndarray, offsets: np.ndarray | float = 0.0) -> np.ndarray:
        """The mean of the targets of rows of features, averaged over the posterior."""
        average = lambda part, mean, variance: mean_targets(part.likelihood, mean, variance)
        with jax.enable_x64(True):
            return np.sum([share * average(*rest) for share, *rest in self.latents(X, offsets)], axis=0)

    def latents(self, X: np.ndarray, offsets: np.ndarray | float = 0.0) -> list[tuple[float, Weights, Any, Any]]:
        """The parts and their shares, and for each the means and variances of the linear predictor of rows."""
        columns = self._columns(X)
        parts = ((share, part, *part.latent(columns)) for share, part in self.weights.parts())
        return [(share, part, mean + offsets + self.shift, variance) for share, part, mean, variance in parts]

    def draws(
        self, count: int, X: np.ndarray, offsets: np.ndarray | float, rng: np.random.Generator
    ) -> Iterator[tuple[Weights, np.ndarray, np.ndarray, np.ndarray]]:
        """For each part: its draws as coefficients, as linear predictors of the rows, and by what the noise is off."""
        columns = self._columns(X)
        shares, parts = zip(*self.weights.parts(), strict=True)
        for part, number in zip(parts, rng.multinomial(count, shares), strict=True):
            drawn, off = part.sample(int(number), rng)
            latent = part.frame.origin(columns) + drawn @ part.frame.design(columns).T + offsets + self.shift
            yield part, part.in_units_of_data(drawn), latent, off

    def settled(self) -> "Solution":
        """The same with the shift of predictions in the intercept: what the examples that come next begin with."""
        weights = self.weights
        if not (self.shift and isinstance(weights, Weights) and isinstance(weights.spread, Full)):
            return self
        mean = weights.mean + np.eye(1, len(weights.mean))[0] * self.shift / weights.frame.scales[0]
        return self._replace(weights=replace(weights, mean=mean, spread=weights.spread._replace(mean=mean)), shift=0.0)

    def _columns(self, X: np.ndarray) -> np.ndarray:
        return with_intercept(X, self.weights.frame.centre is not None)


def mean_targets(likelihood: Likelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The mean of targets whose linear predictors are N(mean, variance)."""
    return np.asarray(_mean_target(likelihood, *pad_rows(mean, variance)))[: len(mean)]


_mean_target = eqx.filter_jit(lambda likelihood, mean, variance: likelihood.predict(mean, variance).mean)


def find_weights(
    frame: Frame, rows: Observations, likelihood: Likelihood, start: Pseudo, search: Search, before: Solution | None
) -> Solution:
    """The posterior with the highest bound; call it with float64 switched on.

    The search starts where each example is replaced by a Gaussian observation, so that the posterior is a linear
    solve: for a Gaussian likelihood that is the answer, for the others about a step of Fisher scoring. In a stream the
    prior is the posterior of the observations ``before``.
    """
    design = frame.design(rows.columns)
    if before is None and design.shape[0] < design.shape[1]:
        weights, result = _over_examples(frame, design, rows, likelihood, start, search)
    else:
        prior = None if before is None else before.weights.as_prior()
        weights, result = _over_weights(frame, design, rows, likelihood, start, search, prior)
    if result.status is Status.INTERRUPTED and not result.steps:
        raise KeyboardInterrupt
    elbo = -result.history.last["value"] + (0.0 if before is None else before.elbo)
    likelihood = jax.tree.map(np.asarray, likelihood)
    weights = replace(weights, likelihood=likelihood)
    scale = None if before is None else before.prior_scale
    return Solution(weights, likelihood, elbo, result.steps, result.status, result.history, scale)


def _over_weights(
    frame: Frame,
    design: np.ndarray,
    rows: Observations,
    likelihood: Likelihood,
    start: Pseudo,
    search: Search,
    prior: Full | None,
) -> tuple[Weights, Result]:
    dimension = design.shape[1]
    size, kept = padded_size(dimension, _COLUMNS), slice(dimension)
    initial: Any = [np.zeros(size), np.eye(size), np.eye(size)]
    initial = Full(*initial)
    if prior is not None:
        initial.mean[kept], initial.covariance[kept, kept], initial.precision[kept, kept] = prior
    offsets = frame.origin(rows.columns) + rows.offsets
    design, pulls, precisions, targets, weights, offsets = pad_rows(
        design, start.pulls, start.precisions, rows.targets, rows.weights, offsets
    )
    design = padded(design, size, axis=1)
    precision = initial.precision + (design.T * precisions) @ design
    factor = cho_factor(precision, lower=True)
    mean = cho_solve(factor, initial.precision @ initial.mean + design.T @ pulls)
    if np.max(np.abs(offsets + design @ mean)) > start.reach:
        mean = np.zeros(size)
    result = minimize(
        ExpectedLikelihood(likelihood, targets, design, weights=weights, offset=offsets),
        Full(mean, cho_solve(factor, np.eye(size)), precision),
        term=KLToNormal(Full(*(jnp.asarray(part) for part in initial))),
        **_method(search),
    )
    arrays: Any = [np.asarray(part) for part in result.x]
    mean, covariance, precision = arrays
    found = Full(mean[kept], covariance[kept, kept], precision[kept, kept])
    return Weights(frame, found.mean, found), result


def _over_examples(
    frame: Frame, design: np.ndarray, rows: Observations, likelihood: Likelihood, start: Pseudo, search: Search
) -> tuple[Weights, Result]:
    count = len(design)
    offsets = frame.origin(rows.columns) + rows.offsets
    pulls, precisions, targets, weights, offsets = pad_rows(
        start.pulls, start.precisions, rows.targets, rows.weights, offsets
    )
    kernel = np.eye(len(pulls))
    kernel[:count, :count] = design @ design.T
    np.fill_diagonal(kernel, np.maximum(np.diagonal(kernel), _SMALLEST_VARIANCE))
    root = np.sqrt(precisions)
    factor = cholesky(np.eye(len(root)) + root[:, None] * kernel * root, lower=True)
    dual = pulls - root * cho_solve((factor, True), root * (kernel @ pulls))
    if np.max(np.abs(offsets + kernel @ dual)) > start.reach:
        dual = np.zeros_like(dual)
    covariance = jnp.asarray(kernel)
    result = minimize(
        ExpectedLikelihood(likelihood, targets, weights=weights, offset=offsets),
        Implicit.from_factor(covariance, *(jnp.asarray(part) for part in (dual, precisions, factor))),
        term=KLToProcess(covariance),
        **_method(search),
    )
    dual, sites = (np.asarray(part)[:count] for part in (result.x.weights, result.x.sites))
    return Weights(frame, design.T @ dual, LowRankSpread.of(design, sites)), result


class _Settling(Monotone):
    """Monotone steps that are never longer than the first, and shorter after one that lengthened the natural gradient.

    Steps too long can circle around the optimum, so near to it that the objective does not tell. Where rounding hides
    what they gain and no size lowers the objective, the longest is taken, and the natural gradient says how far it led.
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
        longest, shrink = (number.astype(size.dtype) for number in (self.initial, self.shrink))
        none = jnp.isnan(sum(jnp.sum(leaf) for leaf in taken.x))

        def whole() -> Taken:
            x = move.reach(longest)
            return Taken(x, longest, (longest, largest), taken.evaluations, jnp.asarray(move.f(x), size.dtype))

        taken = jax.lax.cond(none, whole, lambda: taken)
        size, largest = taken.state
        length = jnp.asarray(self.residual_norm(move, taken), size.dtype)
        size = jnp.where(length > before, taken.size * shrink, jnp.minimum(size, longest))
        return taken._replace(state=(size, largest, length))


def _method(search: Search) -> dict:
    return {
        "engine": "compiled",
        "divergence": GaussianKL(),
        "step": _Settling(4.0),
        "tol": Tolerance(0, search.tol),
        "steps": search.max_iter,
        "progress": search.progress,
    }


def seen_from(
    weights: Weights | Mixture, frame: Frame, likelihood: Likelihood, rows: Observations, reach: float
) -> Pseudo:
    """The likelihood as it looks from a posterior: what a whole natural-gradient step in a frame puts in its place."""
    mean, variance = weights.latent(rows.columns)
    first: Any
    second: Any
    _, first, second = expected(likelihood, rows.targets, mean + rows.offsets, variance)
    beyond = mean - frame.origin(rows.columns)
    return Pseudo(rows.weights * (first - second * beyond), -second * rows.weights, reach)


def at_shift(solution: Solution, rows: Observations) -> Weights:
    """The posterior with the spread that these examples leave where predictions are."""
    weights = solution.weights
    assert isinstance(weights, Weights)
    mean, variance = weights.latent(rows.columns)
    curvature: Any = expected(solution.likelihood, rows.targets, mean + rows.offsets + solution.shift, variance).second
    design = weights.frame.design(rows.columns)
    precision: Any = np.eye(design.shape[1]) - (design.T * (rows.weights * curvature)) @ design
    covariance: Any = cho_solve(cho_factor(precision, lower=True), np.eye(len(precision)))
    return replace(weights, spread=Full(weights.mean, covariance, precision))


def expected(likelihood: Likelihood, targets: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> Expected:
    """E log p(y|z) and its derivatives."""
    found = _expected(likelihood, *pad_rows(targets, mean, variance))
    return jax.tree.map(lambda part: np.asarray(part)[: len(targets)], found)


@eqx.filter_jit
def bound_of_each(likelihood: Likelihood, targets: Array, mean: Array, variance: Array) -> Array:
    """E log p(y|z) alone, of padded arrays."""
    return likelihood.expected(targets, mean, variance).value


_expected = eqx.filter_jit(lambda likelihood, *arrays: likelihood.expected(*arrays))


def pad_rows(*arrays: np.ndarray) -> list[Any]:
    """The arrays with rows of zeros up to the next size."""
    return [padded(array, padded_size(len(array), _ROWS)) for array in arrays]
