"""The prior scale of a generalised linear model, learned by maximising the bound: empirical Bayes."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from thalweg.descent import Result
from thalweg.models._weights import Weights

_FACTOR, _MOST_FACTORS = 4.0, 5
"""The search moves by this factor, and at most so often: to 1024 times the scale it starts from, or to 1/1024."""


class Solution(NamedTuple):
    """What a fit or a batch leads to, kept when all of it has succeeded."""

    weights: Weights
    result: Result
    steps: int
    elbo: float
    learned: Mapping[str, Any] = MappingProxyType({})
    """Further attributes."""


def with_best_scale(solve: Callable[[float, Solution | None], Solution], start: float, tol: float) -> Solution:
    """The solution at the scale where the bound is highest, to ``tol`` of the logarithm of the scale.

    From ``start`` the scale follows the slope of the bound, by factors, until the slope changes its sign, and the
    zero between is found by Brent's method. Where it does not change, the scale is the last one.

    Parameters
    ----------
    solve
        The posterior for a scale, given one for another scale to start from.
    start
        The scale to start from.
    """
    latest, steps = None, 0

    def solution(log: float) -> Solution:
        nonlocal latest, steps
        latest = solve(float(np.exp(log)), latest)
        steps += latest.steps
        return latest

    @cache
    def slope(log: float) -> float:
        return solution(log).weights.slope_in_scale()

    log = np.log(start)
    direction = np.sign(slope(log))
    for _ in range(_MOST_FACTORS):
        last, log = log, log + direction * np.log(_FACTOR)
        if direction * slope(log) <= 0:
            log = brentq(slope, last, log, xtol=tol)
            break
    return solution(log)._replace(steps=steps)
