"""The fit of a linear model, to some observations or to a stream of them, with a prior scale given or learned."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from thalweg.descent import Status
from thalweg.gaussian.linear.observations import Observations
from thalweg.gaussian.linear.scales import loosely, over_scales
from thalweg.gaussian.linear.search import Search, Solution
from thalweg.gaussian.linear.targets import WIDEST, Targets
from thalweg.gaussian.linear.weights import Frame
from thalweg.threads import enough_threads

_WIDE = 1.25
"""The prior scale where none is given and none is learned, for features in standard deviations."""

_EVENED = 2.0
"""So much wider the prior may be where Jeffreys' prior is there too."""

_ROUNDS = 2
"""So often leverages are found anew."""

_REMEMBERED, _NUMBERS = 2048, 2**20
"""Rows of a stream, and numbers in them, up to which all of them are fitted to again with each batch."""

FEW = 10
"""With fewer examples than so many for each feature the scale is learned."""


class Prior(NamedTuple):
    """Prior standard deviations: one for all weights, or one per weight, or how they are chosen; the intercept's.

    Examples
    --------
    >>> Prior(2.0, intercept=10.0).scales(2.0, features=2)
    array([10.,  2.,  2.])
    """

    scale: float | np.ndarray | str = "auto"
    """``"learn"``: averaged over one scale for all features in standard deviations; ``"auto"``: so where examples are
    few, wide elsewhere."""
    intercept: float | None = 10.0
    """Of the linear predictor where every feature is at its mean, around that of the intercept alone; None for none."""

    def scales(self, scale: Any, features: int) -> np.ndarray:
        """That of each weight, the intercept's first."""
        scales = np.array(np.broadcast_to(scale, features), dtype=np.float64)
        return scales if self.intercept is None else np.append(self.intercept, scales)

    def frame(self, targets: Targets, rows: Observations, scale: Any) -> Frame:
        """The coordinates in which this prior is N(0, I)."""
        intercept = self.intercept is not None
        level = targets.level(rows) if intercept else 0.0
        return Frame.of(rows, self.scales(scale, rows.columns.shape[1] - intercept), intercept, level)


def fit(targets: Targets, rows: Observations, prior: Prior, search: Search) -> Solution:
    """The posterior given these observations and no others, with a prior scale given, chosen or averaged over.

    Examples
    --------
    >>> from thalweg.gaussian.linear import Measurements
    >>> rows = Observations(np.ones((2, 1)), np.array([1.0, 3.0]), np.ones(2))
    >>> found = fit(Measurements(1.0), rows, Prior(scale=1.0, intercept=None), Search(1e-6, 10))
    >>> found.weights.coefficients()[0].round(4)  # (1 + 3)/(2 + 1)
    array([1.3333])
    """
    with jax.enable_x64(True), enough_threads(min(rows.columns.shape)):
        rows = rows.less_offsets().compressed() if targets.remembers else rows
        at_scale = partial(_at_scale, targets, rows, prior)
        if not isinstance(prior.scale, str):
            solution = at_scale(prior.scale, search)
        else:
            sizes, varies = _sizes(targets, rows, prior)
            few = np.sum(rows.weights) < FEW * len(sizes)
            few = bool(few or prior.scale == "learn")
            if targets.evens(rows, few):
                solution = _evened(targets, rows, prior, search)
            elif np.any(varies) and few:
                # Each column that varies has the same part in the spread of the linear predictor.
                units = sizes * np.sqrt(np.sum(varies))
                solution = over_scales(lambda spread, *how: at_scale(spread / units, *how), search)
            else:
                solution = at_scale(wide_scales(targets, rows, prior), search)
    return solution._replace(stream=rows if targets.remembers else None)


def fit_further(
    targets: Targets, rows: Observations, prior: Prior, search: Search, before: Solution | None
) -> Solution:
    """The posterior given these observations and all ``before``: the posterior so far is the prior of what comes next.

    That is Bayes' rule with a Gaussian in place of each intermediate posterior; for :class:`Measurements` it is exact,
    and the prior scale is chosen by all batches. Elsewhere the first 2,048 rows are remembered, and what is found is
    the posterior given all of them, with a wide prior if none is given: one batch, of one class maybe, is too little
    for a Gaussian to stand for. The prior scale, and a dispersion that is learned, are those of the rows remembered.

    Examples
    --------
    >>> from thalweg.gaussian.linear import Measurements
    >>> parts = Prior(scale=1.0, intercept=None), Search(1e-6, 10)
    >>> batch = lambda y: Observations(np.ones((1, 1)), np.array([y]), np.ones(1))
    >>> first = fit_further(Measurements(1.0), batch(1.0), *parts, before=None)
    >>> fit_further(Measurements(1.0), batch(3.0), *parts, before=first).weights.coefficients()[0].round(4)
    array([1.3333])
    """
    if targets.remembers:
        rows = rows.less_offsets()
        rows = rows if before is None or before.stream is None else before.stream.joined(rows)
        return fit(targets, rows, prior, search)
    with jax.enable_x64(True), enough_threads(rows.columns.shape[1]):
        if before is not None and before.stream is None:
            return targets.at(before.likelihood, rows, before.weights.frame, search, before.settled())
        if before is not None:
            rows = before.stream.joined(rows)  # type: ignore[union-attr]
        scale = wide_scales(targets, rows, prior) if isinstance(prior.scale, str) else prior.scale
        solution = _at_scale(targets, rows, prior, scale, search, targets.resumed(before))
    many = len(rows.targets) > _REMEMBERED or rows.columns.size > _NUMBERS
    return solution._replace(stream=None if many else rows)


def _at_scale(
    targets: Targets, rows: Observations, prior: Prior, scale: Any, search: Search, nearby: Solution | None = None
) -> Solution:
    """The posterior for one prior scale; ``nearby`` is that for another, to start from."""
    return targets.posterior(rows, prior.frame(targets, rows, scale), search, nearby)._replace(prior_scale=scale)


def _evened(targets: Targets, rows: Observations, prior: Prior, search: Search) -> Solution:
    """The posterior for a prior that says little, and that leads away from 0 no more than to it.

    It is wider for a feature whose weight turns out to be larger than it allows for: the scale at which the bound is
    highest, where that is above the wide one.
    """
    wide = scale = _EVENED * wide_scales(targets, rows, prior)
    solution, steps = _at_scale(targets, rows, prior, scale, loosely(search)), 0
    for how in [loosely(search)] * (_ROUNDS - 1) + [search]:
        steps += solution.steps
        if solution.status in (Status.INTERRUPTED, Status.DIVERGED) or not np.isfinite(solution.elbo):
            break
        scale = np.maximum(wide, scale * np.sqrt(solution.weights.second_moments()))  # type: ignore[union-attr]
        evened = targets.evened(rows, solution)
        solution = targets.posterior(evened, prior.frame(targets, rows, scale), how, solution)
    solution = solution._replace(prior_scale=scale, steps=steps + solution.steps)
    return solution if prior.intercept is None else targets.balanced(rows, solution)


def _sizes(targets: Targets, rows: Observations, prior: Prior) -> tuple[np.ndarray, np.ndarray]:
    """What each column is counted in: its standard deviation where it varies, which is said too, or what is there."""
    frame = prior.frame(targets, rows, 1.0)
    spreads = frame.spreads(rows)
    varies = spreads > 0
    largest = np.max(np.abs(rows.columns[:, frame.intercepts :]), axis=0)
    return np.where(varies, spreads, np.where(largest > 0, largest, 1.0)), varies


def wide_scales(targets: Targets, rows: Observations, prior: Prior) -> np.ndarray:
    """Prior scales that say little, whatever the units."""
    sizes, _ = _sizes(targets, rows, prior)
    return _WIDE * targets.unit(rows, prior.frame(targets, rows, WIDEST / sizes)) / sizes
