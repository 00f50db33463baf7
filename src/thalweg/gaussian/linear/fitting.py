"""The fit of a linear model, to some observations or to a stream of them, with a prior scale given or learned."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from thalweg.descent import Status
from thalweg.gaussian.likelihood import expected_on_host
from thalweg.gaussian.likelihoods import Poisson
from thalweg.gaussian.linear.observations import LinearObservations
from thalweg.gaussian.linear.scales import average_over_scales
from thalweg.gaussian.linear.solution import AscentSettings, LinearFit, LinearProblem
from thalweg.gaussian.linear.targets import WIDEST_SCALE, TargetModel
from thalweg.gaussian.linear.weights import PriorFrame
from thalweg.threads import enough_threads

WIDE_SCALE = 1.25
"""The prior scale where none is given and none is learned, for features in standard deviations: 2.5 for two of them, as
in R's rstanarm. Twice as wide, few examples lead further away from 0."""

JEFFREYS_WIDENING = 2.0
"""How much wider the prior is where Jeffreys' prior is there too, which leads back to 0."""

JEFFREYS_ROUNDS = 2
"""How often leverages are computed: they change by a per cent or so the third time."""

ROWS_PER_FEATURE = 10
"""With fewer examples for each feature the scale is learned: a wide prior then predicts badly. At twice as many,
intervals of large effects would be too short."""

MAX_REMEMBERED_ROWS, MAX_REMEMBERED_NUMBERS = 2048, 2**20
"""Rows of a stream, and numbers in them, up to which all of them are fitted to again with each batch: a fit to more
takes more than some tenths of a second."""

SURPRISING_ERRORS, MIN_VARIANCE_RATIO = 6.0, 1.2
"""Standard errors by which data contradict a model, and the ratio of variances, from which a warning is worth it: with
half as many, one stream of a hundred batches in three would warn by chance."""


class WeightPrior(NamedTuple):
    """Prior standard deviations: one for all weights, or one per weight, or how they are chosen; the intercept's.

    Examples
    --------
    >>> rows = LinearObservations(np.ones((3, 2)), np.ones(3), np.ones(3))
    >>> WeightPrior(2.0, intercept=10.0).frame(rows, 2.0).scales
    array([10.,  2.])
    """

    scale: float | np.ndarray | str = "auto"
    """``"learn"``: averaged over one scale for all features in standard deviations; ``"auto"``: so where examples are
    few, wide elsewhere."""
    intercept: float | None = 10.0
    """Of the linear predictor where every feature is at its mean, around that of the intercept alone; None for none."""

    def frame(self, rows: LinearObservations, scale: Any, targets: TargetModel | None = None) -> PriorFrame:
        """The coordinates in which this prior is N(0, I), with weights of this scale."""
        scales = np.array(np.broadcast_to(scale, rows.columns.shape[1] - (self.intercept is not None)), float)
        if self.intercept is None:
            return PriorFrame(None, scales)
        weights = rows.weights * rows.columns[:, 0]
        centre = weights @ rows.columns[:, 1:] / (weights @ rows.columns[:, 0])
        intercept = 0.0 if targets is None else targets.intercept_only(rows)
        return PriorFrame(centre, np.append(self.intercept, scales), intercept)


def fit(targets: TargetModel, rows: LinearObservations, prior: WeightPrior, settings: AscentSettings) -> LinearFit:
    """The posterior given these observations and no others, with a prior scale given, chosen or averaged over.

    Examples
    --------
    >>> from thalweg.gaussian.linear import RealTargets
    >>> rows = LinearObservations(np.ones((2, 1)), np.array([1.0, 3.0]), np.ones(2))
    >>> result = fit(RealTargets(1.0), rows, WeightPrior(scale=1.0, intercept=None), AscentSettings(1e-6, 10))
    >>> result.weights.coefficients()[0].round(4)  # (1 + 3)/(2 + 1)
    array([1.3333])
    """
    with one_thread_if_small(rows):
        rows = rows.less_offsets().compressed() if targets.compresses else rows

        def fit_at(scale: Any, nearby: LinearFit | None = None, seen: LinearObservations = rows) -> LinearFit:
            problem = LinearProblem(seen, prior.frame(rows, scale, targets), settings)
            return targets.posterior(problem, nearby)._replace(prior_scale=scale)

        if not isinstance(prior.scale, str):
            result = fit_at(prior.scale)
        else:
            sizes, varies = _sizes(rows, prior)
            few = prior.scale == "learn" or np.sum(rows.weights) < ROWS_PER_FEATURE * len(sizes)
            # Without an event there is nothing to learn a scale from.
            if targets.uses_jeffreys and not (few and np.any(rows.targets)):
                result = _fit_with_jeffreys(targets, rows, prior, fit_at)
            elif few and np.any(varies):
                # Each column that varies has the same part in the spread of the linear predictor.
                units = sizes * np.sqrt(np.sum(varies))
                result = average_over_scales(lambda spread, nearby: fit_at(spread / units, nearby), settings.tol)
            else:
                result = fit_at(wide_scales(targets, rows, prior))
    return result._replace(stream=rows if targets.compresses else None)


def continue_fit(
    targets: TargetModel,
    rows: LinearObservations,
    prior: WeightPrior,
    settings: AscentSettings,
    before: LinearFit | None,
) -> LinearFit:
    """The posterior given these observations and all ``before``: the posterior so far is the prior of what comes next.

    That is Bayes' rule with a Gaussian in place of each intermediate posterior; for :class:`RealTargets` it is exact,
    and the prior scale is chosen by all batches. Elsewhere the first 2,048 rows are remembered, and the result is the
    posterior given all of them, with a wide prior if none is given: one batch, of one class maybe, is too little for a
    Gaussian to stand for. The prior scale, and a dispersion that is learned, are those of the rows remembered.

    Examples
    --------
    >>> from thalweg.gaussian.linear import RealTargets
    >>> parts = WeightPrior(scale=1.0, intercept=None), AscentSettings(1e-6, 10)
    >>> batch = lambda y: LinearObservations(np.ones((1, 1)), np.array([y]), np.ones(1))
    >>> first = continue_fit(RealTargets(1.0), batch(1.0), *parts, before=None)
    >>> continue_fit(RealTargets(1.0), batch(3.0), *parts, before=first).weights.coefficients()[0].round(4)
    array([1.3333])
    """
    remembered = None if before is None else before.stream
    if targets.compresses:
        rows = rows.less_offsets()
        return fit(targets, rows if remembered is None else remembered.joined(rows), prior, settings)
    with one_thread_if_small(rows):
        if before is not None and remembered is None:
            problem = LinearProblem(rows, before.weights.frame, settings)
            start = targets.start(problem, before.likelihood)
            return problem.solve(before.likelihood, start, before.with_shift_in_intercept())
        rows = rows if remembered is None else remembered.joined(rows)
        scale = wide_scales(targets, rows, prior) if isinstance(prior.scale, str) else prior.scale
        problem = LinearProblem(rows, prior.frame(rows, scale, targets), settings)
        result = targets.posterior(problem)._replace(prior_scale=scale)
    many = len(rows.targets) > MAX_REMEMBERED_ROWS or rows.columns.size > MAX_REMEMBERED_NUMBERS
    return result._replace(stream=None if many else rows)


def one_thread_if_small(rows: LinearObservations) -> Any:
    """A scope in which BLAS keeps to one thread for a design that is no larger than a square one which does."""
    return enough_threads(int(np.sqrt(rows.columns.size)))


def _fit_with_jeffreys(
    targets: TargetModel, rows: LinearObservations, prior: WeightPrior, fit_at: Callable[..., LinearFit]
) -> LinearFit:
    """The posterior for a prior that says little, and that leads away from 0 no more than to it."""
    wide = JEFFREYS_WIDENING * wide_scales(targets, rows, prior)
    result = widen_with_jeffreys(
        lambda scale, nearby: fit_at(
            scale, nearby, rows if nearby is None else targets.pseudo_observations(rows, nearby.leverages(rows))
        ),
        wide,
        lambda result: result.weights.second_moments(),
    )
    return result if prior.intercept is None or not np.isfinite(result.elbo) else targets.balance(rows, result)


def widen_with_jeffreys(fit_at: Callable[..., Any], wide: np.ndarray, second_moments: Callable[..., np.ndarray]) -> Any:
    """Fit with a wide prior, then with pseudo-observations that the last fit says.

    The prior is wider for a feature whose weight turns out to be larger than it allows for: the scale at which the
    bound is highest, where that is above the wide one.
    """
    scale = wide
    result = fit_at(scale, None)
    for _ in range(JEFFREYS_ROUNDS):
        if result.status is Status.INTERRUPTED or not np.isfinite(result.elbo):
            break
        scale = np.maximum(wide, scale * np.sqrt(second_moments(result)))
        steps = result.steps
        result = fit_at(scale, result)
        result = result._replace(steps=steps + result.steps)
    return result


def _sizes(rows: LinearObservations, prior: WeightPrior) -> tuple[np.ndarray, np.ndarray]:
    """The unit of each column, its standard deviation or, where it does not vary, its size; and whether it varies."""
    frame = prior.frame(rows, 1.0)
    spreads = frame.spreads(rows)
    varies = spreads > 0
    largest = np.max(np.abs(rows.columns[:, frame.intercepts :]), axis=0)
    return np.where(varies, spreads, np.where(largest > 0, largest, 1.0)), varies


def wide_scales(targets: TargetModel, rows: LinearObservations, prior: WeightPrior) -> np.ndarray:
    """Prior scales that say little, whatever the units."""
    sizes, _ = _sizes(rows, prior)
    frame = prior.frame(rows, WIDEST_SCALE / sizes, targets)
    return WIDE_SCALE * targets.wide_scale(rows, frame) / sizes


def misfit_warnings(rows: LinearObservations, result: LinearFit, before: LinearFit | None = None) -> list[str]:
    """Say what contradicts a posterior: a stream that is sorted, counts that vary more than they should.

    ``before`` is the posterior of the stream before these rows.

    Examples
    --------
    >>> from thalweg.gaussian.linear import CountTargets
    >>> rows = LinearObservations(np.ones((40, 1)), np.repeat([0.0, 30.0], 20), np.ones(40))
    >>> result = fit(CountTargets(0.0), rows, WeightPrior(1.0, None), AscentSettings(1e-6, 100))
    >>> misfit_warnings(rows, result)[0]  # doctest: +ELLIPSIS
    'the counts vary 15 times as much about their means as Poisson counts do, so that intervals are too narrow: ...'
    """
    warnings = []
    if before is not None and before.stream is None and (errors := abs(_surprise(rows, before))) > SURPRISING_ERRORS:
        warnings.append(
            f"the targets of this batch are {errors:.0f} standard errors from what those before it foretell. Where "
            f"rows come in an order, by target or by time, a stream is off and its intervals are too narrow: "
            f"shuffle them, or give all to fit"
        )
    if isinstance(result.likelihood, Poisson) and (ratio := _variance_ratio(rows, result)) > MIN_VARIANCE_RATIO:
        warnings.append(
            f"the counts vary {ratio:.2g} times as much about their means as Poisson counts do, so that intervals "
            f"are too narrow: take a negative binomial model"
        )
    return warnings


def _surprise(rows: LinearObservations, before: LinearFit) -> float:
    """The score test of a shift of all linear predictors, the uncertainty of the weights included."""
    before = before.with_shift_in_intercept()
    mean, variance = before.weights.latent(rows.columns)
    _, first, second = expected_on_host(before.likelihood, rows.targets, mean + rows.offsets, variance)
    information = -rows.weights * second
    total = before.weights.frame.design(rows.columns).T @ information
    noise = np.sum(information) + total @ before.weights.as_prior().covariance @ total
    return float(rows.weights @ first / np.sqrt(max(noise, np.finfo(float).tiny)))


def _variance_ratio(rows: LinearObservations, result: LinearFit) -> float:
    """The variance about the mean in units of Poisson's, or 1 where chance could make it (Dean 1992)."""
    rates = np.exp(result.weights.latent(rows.columns)[0] + rows.offsets)
    squares = rows.weights @ (rows.targets - rates) ** 2
    excess = squares - rows.weights @ rows.targets
    chance = np.sqrt(2 * rows.weights @ rates**2)
    return float(squares / (rows.weights @ rates)) if excess > SURPRISING_ERRORS * chance else 1.0
