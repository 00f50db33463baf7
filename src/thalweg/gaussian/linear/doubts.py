"""What observations say against a posterior: a stream that is sorted, counts that vary more than they should."""

import jax
import numpy as np

from thalweg.gaussian.likelihoods import Poisson
from thalweg.gaussian.linear.observations import Observations
from thalweg.gaussian.linear.search import Solution, expected

_SURPRISING, _VARIED = 6.0, 1.2
"""Standard errors, and by how much variances are larger, from which it is said."""


def doubts(rows: Observations, solution: Solution, before: Solution | None = None) -> list[str]:
    """Sentences, none where nothing speaks against it; ``before`` is what the stream was before these rows.

    Examples
    --------
    >>> from thalweg.gaussian.linear import Counts, Prior, Search, fit
    >>> rows = Observations(np.ones((40, 1)), np.repeat([0.0, 30.0], 20), np.ones(40))
    >>> doubts(rows, fit(Counts(0.0), rows, Prior(1.0, None), Search(1e-6, 100)))[0]  # doctest: +ELLIPSIS
    'the counts vary 15 times as much about their means as Poisson counts do, so that intervals are too narrow: ...'
    """
    found = []
    with jax.enable_x64(True):
        if before is not None and before.stream is None and (errors := abs(_surprise(rows, before))) > _SURPRISING:
            found.append(
                f"the targets of this batch are {errors:.0f} standard errors from what those before it foretell. Where "
                f"rows come in an order, by target or by time, a stream is off and its intervals are too narrow: "
                f"shuffle them, or give all to fit"
            )
        if isinstance(solution.likelihood, Poisson) and (ratio := _variation(rows, solution)) > _VARIED:
            found.append(
                f"the counts vary {ratio:.2g} times as much about their means as Poisson counts do, so that intervals "
                f"are too narrow: take a negative binomial model"
            )
    return found


def _surprise(rows: Observations, before: Solution) -> float:
    """The score test of a shift of all linear predictors, the uncertainty of the weights included."""
    before = before.settled()
    mean, variance = before.weights.latent(rows.columns)
    _, first, second = expected(before.likelihood, rows.targets, mean + rows.offsets, variance)
    information = -rows.weights * np.asarray(second)
    pull = before.weights.frame.design(rows.columns).T @ information
    noise = np.sum(information) + pull @ np.asarray(before.weights.as_prior().covariance) @ pull
    return float(rows.weights @ np.asarray(first) / np.sqrt(max(noise, np.finfo(float).tiny)))


def _variation(rows: Observations, solution: Solution) -> float:
    """The variance about the mean in units of Poisson's, or 1 where chance could make it (Dean 1992)."""
    rates = np.exp(solution.weights.latent(rows.columns)[0] + rows.offsets)
    squares = rows.weights @ (rows.targets - rates) ** 2
    excess = squares - rows.weights @ rows.targets
    chance = np.sqrt(2 * rows.weights @ rates**2)
    return float(squares / (rows.weights @ rates)) if excess > _SURPRISING * chance else 1.0
