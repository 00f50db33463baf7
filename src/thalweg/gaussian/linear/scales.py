"""The prior scale where none is given: the posterior is averaged over it.

It is counted as the prior standard deviation of a typical example's linear predictor, less the intercept's part, and
has a weak prior itself, half-Cauchy of scale 1: effects of any size are possible, and none at all is not certain. Its
posterior density is that of its prior times e to the bound, which is an integral to be taken, not a score to be
compared: :mod:`thalweg.selection` has no part in it.
"""

from collections.abc import Callable

import numpy as np
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import CubicHermiteSpline

from thalweg.descent import Status
from thalweg.gaussian.linear.solution import LinearFit
from thalweg.gaussian.linear.targets import climb
from thalweg.gaussian.linear.weights import PosteriorMixture
from thalweg.runs import Run

LOG_SPREADS = np.linspace(-3, 3, 13) * np.log(10.0)
"""Logarithms of the spreads at which the density is computed first. Half of them can miss a mode, which is about a
factor of three wide where there are few examples."""

MEMBERS = 7
"""Scales that are averaged over, each standing for an equal share of the probability: twice as many change intervals by
less than a hundredth of their width."""

FitAtSpread = Callable[[float, LinearFit | None], LinearFit]
"""The posterior for a spread, given one for another spread to start from."""


class _ScaleDensity:
    """The density of the logarithm of the scale, up to a constant, and the posteriors found for it."""

    def __init__(self, fit_at: FitAtSpread, run: Run) -> None:
        self.fit_at, self.run = fit_at, run
        self.nearby: LinearFit | None = None
        self.steps = 0
        self.known: dict[float, tuple[float, float]] = {}

    def fit(self, log: float) -> LinearFit:
        """Find the posterior there, and note the density and its derivative."""
        spread = float(np.exp(log))
        fit = self.fit_at(spread, self.nearby)
        self.steps += fit.steps
        if not np.isfinite(fit.elbo):
            self.known[log] = (-np.inf, 0.0)
            return fit
        self.nearby = fit
        self.run.keep(fit)
        if self.run.interrupted:
            raise KeyboardInterrupt
        square = spread**2
        # At the best posterior the bound changes with the scale of the prior by Σ(m² + V − 1).
        slope = float(np.sum(fit.weights.second_moments() - 1)) + (1 - square) / (1 + square)
        self.known[log] = (fit.elbo + fit.log_prior + log - np.log1p(square), slope)
        return fit

    def slope(self, log: float) -> float:
        """The derivative of the log density; the arcsinh tames one of many thousands."""
        if log not in self.known:
            self.fit(log)
        return float(np.arcsinh(self.known[log][1]))

    def mode(self, tolerance: float) -> float:
        """Where the density is highest, over the whole range."""
        middle = len(LOG_SPREADS) // 2
        # From the middle upwards, then from there downwards: each starts from its neighbour.
        self.fit(LOG_SPREADS[middle])
        centre = self.nearby
        for log in LOG_SPREADS[middle + 1 :]:
            self.fit(log)
        self.nearby = centre
        for log in LOG_SPREADS[:middle][::-1]:
            self.fit(log)
        best = max(LOG_SPREADS, key=lambda log: self.known[log][0])
        step = LOG_SPREADS[1] - LOG_SPREADS[0]
        return climb(self.slope, best, step, (LOG_SPREADS[0], LOG_SPREADS[-1]), tolerance)

    def members(self) -> tuple[list[LinearFit], np.ndarray]:
        """Posteriors at quantiles of the scale, and their shares of the probability."""
        logs, density = self._interpolated()
        mass = cumulative_trapezoid(np.exp(density - density.max()), logs, initial=0.0)
        quantiles = np.interp((np.arange(MEMBERS) + 0.5) / MEMBERS, mass / mass[-1], logs)
        fits = [self.fit(float(log)) for log in quantiles]
        # The interpolated density was not exact: the shares make up for it.
        values = np.array([self.known[float(log)][0] for log in quantiles]) - np.interp(quantiles, logs, density)
        shares = np.exp(values - values.max())
        return fits, shares / shares.sum()

    def _interpolated(self) -> tuple[np.ndarray, np.ndarray]:
        """A fine grid of logarithms of the scale, and the density there, from its values and derivatives."""
        logs = np.array(sorted(log for log, (value, _) in self.known.items() if np.isfinite(value)))
        values, slopes = np.array([self.known[log] for log in logs]).T
        fine = np.unique(np.concatenate([np.linspace(logs[0], logs[-1], 4001), logs]))
        return fine, np.minimum(CubicHermiteSpline(logs, values, slopes)(fine), values.max())


def average_over_scales(fit_at: FitAtSpread, tolerance: float) -> LinearFit:
    """Average the posterior over the prior scale; bound, likelihood and scale are those of the most probable one.

    The density of the scale is computed over the whole range, each posterior starting from that of a neighbour, and its
    mode found by Brent's method. The posteriors averaged are those at its quantiles. After Ctrl-C it is the last one
    found.
    """
    with Run("prior scales") as run:
        density = _ScaleDensity(fit_at, run)
        best = density.fit(density.mode(tolerance))
        if not np.isfinite(best.elbo):
            return best._replace(steps=density.steps)
        members, shares = density.members()
    if run.interrupted:
        return run.kept._replace(status=Status.INTERRUPTED, steps=density.steps)
    worst = next((part for part in members if not part.status.success), best)
    weights = PosteriorMixture(**vars(best.weights), members=tuple(part.weights for part in members), shares=shares)
    return best._replace(weights=weights, steps=density.steps, status=worst.status, history=worst.history)
