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
# Where the search begins and the directions it tries in turn, as factors of the multiplier and of the ridge; it goes on
# in a direction as long as that helps. A narrower kernel often needs a larger ridge.
_FIRST_MULTIPLIER = 0.5
_DIRECTIONS = ((0.5, 1.0), (0.5, 10.0), (2.0, 1.0), (1.0, 10.0), (1.0, 0.1), (0.5**0.5, 1.0), (2**0.5, 1.0))
_LIMITS = (1 / 32, 4.0), (1e-3, 100.0)
# All trials together may cost about this part of what learning costs, which is the product of rows and features.
_PART_OF_COST, _TRIALS = 0.05, 9
_FEWEST_TRIAL_ROWS, _MOST_TRIAL_ROWS, _SLICE_ROWS = 4096, 16_384, 2048
# Rows among which distances are measured.
_DISTANCE_ROWS = 2000


class Chosen(NamedTuple):
    """What was chosen."""

    kernel: Kernel
    alpha: float


class Trial(NamedTuple):
    """How a choice is tried: a new learner for a kernel, the mean loss of predictions on rows, its curvature bound."""

    learner: Callable[[Kernel, int], Learner]
    loss: Callable[[np.ndarray, Rows], float]
    curvature: float


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

    The search goes from one pair of a multiplier of the median distance and a ridge to a better one. A trial learns
    from as many rows as a small part of the cost of learning from all allows: the best lengthscale falls with the
    number of rows.
    """
    search_kernel = not isinstance(kernel, Kernel) and isinstance(multiplier, str)
    search_alpha = isinstance(alpha, str)
    search = len(rows) >= ENOUGH_ROWS and (search_kernel or search_alpha)
    plain_alpha = 10 * PLAIN_ALPHA if search and trial.curvature >= 1 else PLAIN_ALPHA
    alpha = plain_alpha if search_alpha else float(number("alpha", alpha, above=0))
    if isinstance(kernel, Kernel):
        make = lambda times: _cast(kernel, dtype)
        times = 1.0
    else:
        kind: Any = kernel or Gaussian
        median = _median(rows, seed)
        make = lambda times: _cast(kind(lengthscale=times * median), dtype)
        plain = _FIRST_MULTIPLIER if search else plain_multiplier
        times = plain if search_kernel else float(number("bandwidth", multiplier, above=0))
    if not search:
        return Chosen(make(times), alpha)
    order = np.random.default_rng([seed, 1]).permutation(len(rows))
    held = rows.subset(np.sort(order[: min(_SLICE_ROWS, len(rows) // 4)]))
    order = order[len(held) :][: _trial_rows(len(rows), features)]

    @cache
    def loss(times: float, alpha: float) -> float:
        # With room for all rows, so that the program which learns from them is compiled once.
        learner = trial.learner(make(times), len(rows))
        for _ in learner.learn(rows, order, alpha, len(order)):
            pass
        found = trial.loss(learner.predict(held.features(slice(None), dtype)), held)
        return found if np.isfinite(found) else np.inf

    for narrower, stronger in _DIRECTIONS:
        if (narrower != 1 and not search_kernel) or (stronger != 1 and not search_alpha):
            continue
        while True:
            next_times, next_alpha = times * narrower, alpha * stronger
            inside = all(low <= x <= high for x, (low, high) in zip((next_times, next_alpha), _LIMITS, strict=True))
            if not inside or not loss(next_times, next_alpha) < loss(times, alpha):
                break
            times, alpha = next_times, next_alpha
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
    with np.errstate(over="ignore"):
        return median_distance(different, jax.random.key(0)) if len(different) > 1 else 1.0


def _cast(kernel: Kernel, dtype: Any) -> Kernel:
    """In the precision of the machine: kernels made outside its scope may hold another."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), kernel)
