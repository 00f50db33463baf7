"""The fit of a linear model, to some observations or to a stream of them, with a prior scale given or learned."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.descent import Status
from thalweg.gaussian.likelihood import expected_on_host
from thalweg.gaussian.likelihoods import Poisson
from thalweg.gaussian.linear.observations import LinearObservations
from thalweg.gaussian.linear.scales import average_over_scales
from thalweg.gaussian.linear.solution import AscentSettings, LinearFit, LinearProblem
from thalweg.gaussian.linear.targets import ROWS_PER_FEATURE, WIDEST_SCALE, TargetModel
from thalweg.gaussian.linear.weights import PriorFrame
from thalweg.runs import Run
from thalweg.threads import enough_threads

__all__ = ["LinearModel", "misfit_warnings"]

WIDE_SCALE = 1.25
"""The prior scale where none is given and none is learned, for features in standard deviations: 2.5 for two of them, as
in R's rstanarm. Twice as wide, few examples lead further away from 0."""

JEFFREYS_ROUNDS = 2
"""How often leverages are computed: they change by a per cent or so the third time."""

MAX_REMEMBERED_ROWS = 2048
"""Rows of a stream up to which all of them are fitted to again with each batch: twice as many would take some tenths of
a second each time."""

SURPRISING_ERRORS = 6.0
"""Standard errors by which data contradict a model from which a warning is worth it: with half as many, one stream of a
hundred batches in three would warn by chance."""


@dataclass(frozen=True)
class LinearModel:
    """Targets, the prior of the weights, and how the posterior is found.

    Examples
    --------
    >>> from thalweg.gaussian.linear import RealTargets
    >>> model = LinearModel(RealTargets(1.0), AscentSettings(1e-6, 10), prior_scale=1.0, intercept_scale=None)
    >>> batch = lambda y: LinearObservations(np.ones((1, 1)), np.array([y]), np.ones(1), np.zeros(1))
    >>> model.fit(batch(1.0).joined(batch(3.0))).weights.coefficients()[0].round(4)  # (1 + 3)/(2 + 1)
    array([1.3333])
    >>> model.continue_fit(batch(3.0), before=model.fit(batch(1.0))).weights.coefficients()[0].round(4)
    array([1.3333])
    """

    targets: TargetModel
    settings: AscentSettings
    prior_scale: float | np.ndarray | str = "auto"
    """Prior standard deviations of all weights, or of each; ``"learn"``: averaged over one scale for all features in
    standard deviations; ``"auto"``: so where examples are few, wide elsewhere."""
    intercept_scale: float | None = 10.0
    """That of the linear predictor where every feature is at its mean, around that of the intercept alone; None
    without an intercept."""

    def fit(self, rows: LinearObservations) -> LinearFit:
        """The posterior given these observations and no others, with a prior scale given, chosen or averaged over."""
        with one_thread_if_small(rows):
            rows = rows.less_offsets().compressed() if self.targets.compresses else rows
            by_rows = isinstance(self.prior_scale, str)
            result = self._fit_by_rows(rows) if by_rows else self._fit_at(rows, self.prior_scale)
        return result._replace(stream=rows if self.targets.compresses else None)

    def continue_fit(self, rows: LinearObservations, before: LinearFit | None) -> LinearFit:
        """The posterior given these observations and all ``before``, whose posterior is the prior of what comes next.

        That is Bayes' rule with a Gaussian in place of each intermediate posterior; for :class:`RealTargets` it is
        exact, and the prior scale is chosen by all batches. Elsewhere the first 2,048 rows are remembered, and the
        result is that of :meth:`fit` to all of them: one batch, of one class maybe, is too little for a Gaussian to
        stand for. The prior scale, and a dispersion that is learned, are those of the rows remembered.
        """
        if before is not None and before.stream is None:
            with one_thread_if_small(rows):
                problem = LinearProblem(rows, before.weights.frame, self.settings)
                before = before.with_shift_in_intercept()
                return problem.solve(before.likelihood, before, before)
        rows = rows.less_offsets() if self.targets.compresses else rows
        rows = rows if before is None or before.stream is None else before.stream.joined(rows)
        result, forgets = self.fit(rows), len(rows.targets) > MAX_REMEMBERED_ROWS
        return result if self.targets.compresses else result._replace(stream=None if forgets else rows)

    def _fit_by_rows(self, rows: LinearObservations) -> LinearFit:
        """Choose the prior by how many rows there are for each feature."""
        sizes, varies = self._sizes(rows)
        few = self.prior_scale == "learn" or np.sum(rows.weights) < ROWS_PER_FEATURE * len(sizes)
        few = few and self.targets.learns_scale(rows)
        if self.targets.uses_jeffreys(rows) and not few:
            return self._fit_with_jeffreys(rows)
        if few and np.any(varies):
            # Each column that varies has the same part in the spread of the linear predictor.
            units = sizes * np.sqrt(np.sum(varies))
            fit_at = lambda spread, nearby: self._fit_at(rows, spread / units, nearby)
            return average_over_scales(fit_at, self.settings.tol)
        return self._fit_at(rows, self.wide_scales(rows))

    def _fit_at(self, rows: LinearObservations, scale: Any, nearby: LinearFit | None = None) -> LinearFit:
        """The posterior for one prior scale; ``nearby`` is that for another, to start from."""
        problem = LinearProblem(rows, self.frame(rows, scale), self.settings)
        return self._finished(self.targets.posterior(problem, nearby), rows, scale)

    def _finished(self, result: LinearFit, rows: LinearObservations, scale: Any) -> LinearFit:
        return self.targets.allow_for_learning(result, float(np.sum(rows.weights)))._replace(prior_scale=scale)

    def _fit_with_jeffreys(self, rows: LinearObservations) -> LinearFit:
        """The posterior for a prior that says little, and that leads away from 0 no more than to it.

        A fit with a wide prior is followed by fits to the pseudo-observations that the last one leads to. The prior is
        wider for a feature whose weight turns out to be larger than it allows for: the scale at which the bound is
        highest, where that is above the wide one. Parameters of the likelihood are learned from what was seen alone.
        """
        scale = wide = self.targets.jeffreys_widening * self.wide_scales(rows)
        seen, targets, steps = rows, self.targets, 0
        with Run("Jeffreys' prior") as run:
            for number in range(1 + JEFFREYS_ROUNDS):
                if run.kept is not None:
                    seen = self.targets.pseudo_observations(rows, run.kept)
                    targets = self.targets.with_parameters_of(run.kept)
                problem = LinearProblem(seen, self.frame(rows, scale), self.settings, rough=number < JEFFREYS_ROUNDS)
                result = self._finished(targets.posterior(problem, run.kept), rows, scale)
                steps += result.steps
                run.keep(result._replace(steps=steps))
                if run.interrupted or not np.isfinite(result.elbo):
                    break
                scale = np.maximum(wide, scale * np.sqrt(result.weights.second_moments()))
            else:
                if self.intercept_scale is not None:
                    run.keep(self.targets.balance(rows, run.kept))
        return run.kept._replace(status=Status.INTERRUPTED) if run.interrupted else run.kept

    def frame(self, rows: LinearObservations, scale: Any) -> PriorFrame:
        """The coordinates in which the prior is N(0, I), with weights of this scale."""
        intercept = self.intercept_scale
        scales = np.array(np.broadcast_to(scale, rows.columns.shape[1] - (intercept is not None)), float)
        if intercept is None:
            return PriorFrame(None, scales)
        weights = rows.weights * rows.columns[:, 0]
        centre = weights @ rows.columns[:, 1:] / (weights @ rows.columns[:, 0])
        return PriorFrame(centre, np.append(intercept, scales), self.targets.intercept_only(rows))

    def _sizes(self, rows: LinearObservations) -> tuple[np.ndarray, np.ndarray]:
        """The unit of each column, its standard deviation or, if it is constant, its size; and whether it varies."""
        frame = self.frame(rows, 1.0)
        spreads = frame.spreads(rows)
        varies = spreads > 0
        largest = np.max(np.abs(rows.columns[:, frame.intercepts :]), axis=0)
        return np.where(varies, spreads, np.where(largest > 0, largest, 1.0)), varies

    def wide_scales(self, rows: LinearObservations) -> np.ndarray:
        """Prior scales that say little, whatever the units."""
        sizes, _ = self._sizes(rows)
        return WIDE_SCALE * self.targets.wide_scale(rows, self.frame(rows, WIDEST_SCALE / sizes)) / sizes


def one_thread_if_small(rows: LinearObservations) -> Any:
    """A scope in which BLAS keeps to one thread for a design that is no larger than a square one which does."""
    return enough_threads(int(np.sqrt(rows.columns.size)))


def misfit_warnings(rows: LinearObservations, result: LinearFit, before: LinearFit | None = None) -> list[str]:
    """Say what contradicts a posterior: a stream that is sorted, counts that vary more than they should.

    ``before`` is the posterior of the stream before these rows.

    Examples
    --------
    >>> from thalweg.gaussian.linear import CountTargets
    >>> rows = LinearObservations(np.ones((40, 1)), np.repeat([0.0, 30.0], 20), np.ones(40))
    >>> result = LinearModel(CountTargets(0.0), AscentSettings(1e-6, 100), 1.0, None).fit(rows)
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
    if isinstance(result.likelihood, Poisson) and (ratio := _variance_ratio(rows, result)) > 1:
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
