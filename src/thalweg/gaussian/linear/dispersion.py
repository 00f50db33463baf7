"""The dispersion of counts at which the bound is highest: a search that goes between it and the weights."""

import numpy as np
from scipy.optimize import minimize_scalar

from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.likelihoods import NegativeBinomial, Poisson
from thalweg.gaussian.linear.mixture import Mixture
from thalweg.gaussian.linear.observations import Observations
from thalweg.gaussian.linear.search import bound_of_each, pad_rows
from thalweg.gaussian.linear.weights import Weights

_DISPERSIONS = (1e-6, 1e4)
"""Between these the dispersion is learned. At the lower end the counts are Poisson for all that data can tell."""

_NEAR = 0.5
"""So near to the last logarithm of the dispersion the next is looked for first."""


def dispersion_at(log: float) -> float:
    """Exactly the lowest at the lower end."""
    return float(np.exp(log)) if log > np.log(_DISPERSIONS[0]) else _DISPERSIONS[0]


def extrapolated(*moves: tuple[float, float]) -> float:
    """Where a map that has led from each first to each second number would lead in the end, were it linear."""
    (before, _), (now, led) = moves[0], moves[-1]
    last, move = moves[0][1] - before, led - now
    if len(moves) == 1 or move == last:
        return led
    further = -move / (move - last) * (now - before)
    # At most as far as e² times further, and within the range.
    return float(np.clip(now + np.clip(further, -2.0, 2.0), *np.log(_DISPERSIONS)))


def between(ahead: float, better: float, ends: list[float | None], halve: bool) -> float:
    """The first of two guesses that is between the ends, or the middle of them, which it is now and then anyhow."""
    low, high = (end if end is not None else limit for end, limit in zip(ends, np.log(_DISPERSIONS), strict=True))
    inside = lambda log: (low < log or ends[0] is None) and (log < high or ends[1] is None)
    if None not in ends and (halve or not (inside(ahead) or inside(better))):
        return float(low + high) / 2
    return ahead if inside(ahead) else better


def log_prior(log: float) -> float:
    """That of the square root of the dispersion, exponential of mean 1; without it a few counts leave it anywhere."""
    return -float(np.exp(log / 2))


def likelihood_of(dispersion: float) -> Likelihood:
    """Of counts, or of rates: counts divided by exposures."""
    return NegativeBinomial(dispersion, whole=False) if dispersion else Poisson(whole=False)


def best_dispersion(rows: Observations, weights: Weights | Mixture, sharp: float, near: float | None) -> float:
    """The logarithm of the dispersion at which bound and prior are highest for this posterior; ``near`` is a guess."""
    mean, variance = weights.latent(rows.columns)
    *arrays, counts = pad_rows(rows.targets, mean + rows.offsets, variance, rows.weights)
    loss = lambda log: -counts @ np.asarray(bound_of_each(likelihood_of(np.exp(log)), *arrays)) - log_prior(log)
    lowest, highest = np.log(_DISPERSIONS)
    bounds = (lowest, highest) if near is None else (max(near - _NEAR, lowest), min(near + _NEAR, highest))
    found = float(minimize_scalar(loss, bounds=bounds, options={"xatol": sharp}).x)
    if near is not None and min(found - bounds[0], bounds[1] - found) < _NEAR / 100:
        return best_dispersion(rows, weights, sharp, None)
    # Next to the lower end the bound is flat but for rounding: without this the search would never settle.
    return found if found > lowest + 0.1 else float(lowest)
