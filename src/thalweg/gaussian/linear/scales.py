"""The prior scale where none is given: searched over its whole range, and averaged over.

It is counted as the prior standard deviation of a typical example's linear predictor, less the intercept's part, and
has a weak prior itself, half-Cauchy of scale 1: effects of any size are possible, and none at all is not certain.
"""

from collections.abc import Callable

import numpy as np
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import CubicHermiteSpline
from scipy.optimize import brentq

from thalweg.descent import Status
from thalweg.gaussian.linear.mixture import Mixture
from thalweg.gaussian.linear.search import Search, Solution
from thalweg.gaussian.linear.weights import Weights

_MIDDLE, _STEPS = 6, np.log(10.0) / 2
_GRID = np.arange(-_MIDDLE, _MIDDLE + 1) * _STEPS
"""Logarithms of the spreads looked at first: from 1e-3 to 1e3."""

_LOOSE = Search(1e-3, 200)
"""How well they are looked at: bounds to about 1e-6 nats."""

_MEMBERS = 7
"""So many scales are averaged over, each standing for an equal share of the probability."""

_LITTLE = 1e-3
"""Members with a smaller share are left out."""

Solve = Callable[[float, Search, Solution | None], Solution]
"""The posterior for a spread, given how to search, and one for another spread to start from."""


def loosely(search: Search) -> Search:
    """The same search, to no more than bounds of a scale need."""
    return search._replace(tol=max(search.tol, _LOOSE.tol), max_iter=min(search.max_iter, _LOOSE.max_iter))


class _Scales:
    """What is known of the density of the logarithm of the scale, up to a constant, and the posteriors found for it."""

    def __init__(self, solve: Solve) -> None:
        self.solve = solve
        self.latest: Solution | None = None
        self.steps = 0
        self.known: dict[float, tuple[float, float]] = {}

    def at(self, log: float, search: Search) -> Solution:
        """The posterior there; the density and its slope are noted."""
        spread = float(np.exp(log))
        found = self.solve(spread, search, self.latest)
        self.steps += found.steps
        if found.status is Status.DIVERGED or not np.isfinite(found.elbo):
            self.known[log] = (-np.inf, 0.0)
            return found
        self.latest = found
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        assert isinstance(found.weights, Weights)
        square = spread**2
        slope = found.weights.slope_in_scale() + (1 - square) / (1 + square)
        self.known[log] = (found.elbo + found.log_prior + log - np.log1p(square), slope)
        return found

    def slope(self, log: float, search: Search) -> float:
        """That of the density; the arcsinh tames those of many thousands."""
        if log not in self.known:
            self.at(log, search)
        return float(np.arcsinh(self.known[log][1]))

    def best(self, search: Search) -> float:
        """Where the density is highest, over the whole range."""
        loose = loosely(search)
        # From the middle upwards, then from there downwards: each starts from its neighbour.
        self.at(0.0, loose)
        middle = self.latest
        for log in _GRID[_MIDDLE + 1 :]:
            self.at(log, loose)
        self.latest = middle
        for log in _GRID[:_MIDDLE][::-1]:
            self.at(log, loose)
        place = int(np.argmax([self.known[log][0] for log in _GRID]))
        start = float(_GRID[place])
        slope = lambda log: self.slope(log, search)
        beyond = place + int(np.sign(slope(start)))
        if beyond == place or not 0 <= beyond < len(_GRID) or slope(start) * slope(float(_GRID[beyond])) > 0:
            return start
        return float(brentq(slope, start, float(_GRID[beyond]), xtol=max(search.tol, 1e-6)))

    def members(self, search: Search) -> tuple[list[Solution], np.ndarray]:
        """Posteriors at quantiles of the scale, and their shares of the probability."""
        logs, density = self._interpolated()
        mass = cumulative_trapezoid(np.exp(density - density.max()), logs, initial=0.0)
        quantiles = np.interp((np.arange(_MEMBERS) + 0.5) / _MEMBERS, mass / mass[-1], logs)
        found = [self.at(float(log), search) for log in quantiles]
        # The interpolated density was not exact: the shares make up for it.
        values = np.array([self.known[float(log)][0] for log in quantiles]) - np.interp(quantiles, logs, density)
        shares = np.exp(values - values.max())
        shares /= shares.sum()
        kept = shares > _LITTLE
        return [part for part, is_kept in zip(found, kept, strict=True) if is_kept], shares[kept] / shares[kept].sum()

    def _interpolated(self) -> tuple[np.ndarray, np.ndarray]:
        """A fine grid of logarithms of the scale, and the density there, from its values and slopes."""
        logs = np.array(sorted(log for log, (value, _) in self.known.items() if np.isfinite(value)))
        values, slopes = np.array([self.known[log] for log in logs]).T
        fine = np.unique(np.concatenate([np.linspace(logs[0], logs[-1], 4001), logs]))
        return fine, np.minimum(CubicHermiteSpline(logs, values, slopes)(fine), values.max())


def over_scales(solve: Solve, search: Search) -> Solution:
    """The posterior averaged over the prior scale; its bound, likelihood and scale are those of the most probable.

    The density of the scale is that of its prior times e to the bound. It is looked at over the whole range, each
    posterior starting from that of a neighbour, and its highest point found by Brent's method. The posteriors averaged
    are those at its quantiles. An interruption keeps the last posterior found.
    """
    scales = _Scales(solve)
    try:
        highest = scales.best(search)
        best = scales.at(highest, search)
        if not np.isfinite(scales.known[highest][0]):  # Rounding can carry a tight search away.
            best = scales.at(highest, loosely(search))
        if not np.isfinite(scales.known[highest][0]):
            return best._replace(steps=scales.steps)
        members, shares = scales.members(search)
    except KeyboardInterrupt:
        if scales.latest is None:
            raise
        return scales.latest._replace(status=Status.INTERRUPTED, steps=scales.steps)
    worst = next((part for part in members if not part.status.success), best)
    weights = Mixture(best.weights.frame, tuple(part.weights for part in members), shares)  # type: ignore[misc]
    return best._replace(weights=weights, steps=scales.steps, status=worst.status, history=worst.history)
