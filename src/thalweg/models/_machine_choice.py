"""A lengthscale and a ridge for data at hand: from the median distance, and by trial on a held-out slice."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.arguments import number
from thalweg.kernels import Gaussian, Kernel, median_distance
from thalweg.machines.learners import Learner
from thalweg.machines.rows import Rows

ENOUGH_ROWS = 2000
"""Fewer rows than this are not worth holding out a slice of: the multiplier and the ridge are the plain ones."""

PLAIN_ALPHA = 0.01
_ALPHAS = (0.001, 0.01, 0.1, 1.0)
_MULTIPLIERS = (1.0, 0.5, 0.25, 0.125)
_BESIDE = 2**0.5
# All trials together may cost this part of what learning costs, which is the product of rows and features.
_PART_OF_COST, _TRIALS = 0.1, 9
_FEWEST_TRIAL_ROWS, _MOST_TRIAL_ROWS, _SLICE_ROWS = 4096, 32_768, 2048
# Rows among which distances are measured.
_DISTANCE_ROWS = 2000


class Chosen(NamedTuple):
    """What was chosen."""

    kernel: Kernel
    alpha: float


class Trial(NamedTuple):
    """How a choice is tried: a new learner for a kernel, and the mean loss of predictions on rows."""

    learner: Callable[[Kernel, int], Learner]
    loss: Callable[[np.ndarray, Rows], float]


def choose(
    kernel: Any,
    multiplier: Any,
    alpha: Any,
    plain_multiplier: float,
    rows: Rows,
    features: int,
    trial: Trial,
    seed: int,
    dtype: Any,
) -> Chosen:
    """Return a kernel and a ridge: those given, the plain ones for few rows, else the best on a held-out slice.

    First the multipliers of the median distance are tried with the plain ridge, then two beside the best, then ridges
    with the best of all. A trial learns from as many rows as a small part of the cost of learning from all allows: the
    best lengthscale falls with the number of rows.
    """
    given_kernel = isinstance(kernel, Kernel)
    search_kernel = not given_kernel and isinstance(multiplier, str)
    search_alpha = isinstance(alpha, str)
    alpha = PLAIN_ALPHA if search_alpha else float(number("alpha", alpha, above=0))
    if given_kernel:
        make = lambda times: _cast(kernel, dtype)
        times = 1.0
    else:
        median = _median(rows, seed)
        kind: Any = kernel or Gaussian
        make = lambda times: _cast(kind(lengthscale=times * median), dtype)
        times = plain_multiplier if search_kernel else float(number("bandwidth", multiplier, above=0))
    if len(rows) < ENOUGH_ROWS or not (search_kernel or search_alpha):
        return Chosen(make(times), alpha)
    order = np.random.default_rng([seed, 1]).permutation(len(rows))
    held = rows.subset(np.sort(order[: min(_SLICE_ROWS, len(rows) // 4)]))
    order = order[len(held) :][: _trial_rows(len(rows), features)]

    @cache
    def loss(times: float, alpha: float) -> float:
        learner = trial.learner(make(times), len(order))
        for _ in learner.learn(rows, order, alpha, len(order)):
            pass
        found = trial.loss(learner.predict(held.features(slice(None), dtype)), held)
        return found if np.isfinite(found) else np.inf

    if search_kernel:
        at_plain_ridge = lambda candidate: loss(candidate, alpha)
        times = min(_MULTIPLIERS, key=at_plain_ridge)
        times = min((times, times * _BESIDE, times / _BESIDE), key=at_plain_ridge)
    if search_alpha:
        alpha = min(_ALPHAS, key=lambda candidate: loss(times, candidate))
    return Chosen(make(times), alpha)


def _trial_rows(rows: int, features: int) -> int:
    """Rows m of a trial, whose cost is about m²/2."""
    cost = rows * min(rows, features) / (2 if rows <= features else 1)
    share = int((2 * _PART_OF_COST * cost / _TRIALS) ** 0.5)
    return min(max(share, _FEWEST_TRIAL_ROWS), _MOST_TRIAL_ROWS)


def _median(rows: Rows, seed: int) -> float:
    """The median distance between rows that differ, so that a row given twice counts as one of weight two does."""
    chosen = np.arange(len(rows))
    if len(rows) > _DISTANCE_ROWS:
        chosen = np.sort(np.random.default_rng([seed, 0]).permutation(len(rows))[:_DISTANCE_ROWS])
    different = np.unique(rows.features(chosen, np.float64), axis=0)
    return median_distance(different, jax.random.key(0)) if len(different) > 1 else 1.0


def _cast(kernel: Kernel, dtype: Any) -> Kernel:
    """In the precision of the machine: kernels made outside its scope may hold another."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), kernel)
