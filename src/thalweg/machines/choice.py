"""A lengthscale and a ridge for data at hand: from the median distance, and by trial on a held-out slice."""

from functools import cache
from typing import Any

import jax
import numpy as np

from thalweg.kernels import Kernel, median_distance
from thalweg.machines.folds import left_out
from thalweg.machines.learners import in_precision, start
from thalweg.machines.methods import Settings
from thalweg.machines.rows import Rows

ENOUGH_ROWS = 2000
"""Fewer rows than this are not worth holding out a slice of: each is left out in turn."""

_PLAIN_ALPHA = 0.01
# Where the search begins and the directions it tries in turn, as factors of the multiplier and of the ridge; it goes on
# in a direction as long as that helps. A narrower kernel often needs a larger ridge.
_FIRST_MULTIPLIER = 0.5
# What is tried with fewer rows.
_MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 4.0)
_DIRECTIONS = ((0.5, 1.0), (0.5, 10.0), (2.0, 1.0), (1.0, 10.0), (1.0, 0.1), (0.5**0.5, 1.0), (2**0.5, 1.0))
_LIMITS = (1 / 32, 4.0), (1e-3, 100.0)
# All trials together may cost about this part of what learning costs, which is the product of rows and features.
_PART_OF_COST, _TRIALS = 0.05, 9
_FEWEST_TRIAL_ROWS, _MOST_TRIAL_ROWS, _SLICE_ROWS = 4096, 16_384, 2048
# Rows among which distances are measured.
_DISTANCE_ROWS = 2000


def choose(rows: Rows, settings: Settings, seed: int, dtype: Any) -> tuple[Kernel, float]:
    """Return a kernel and a ridge: those given, or the best on rows left out, one by one or as a slice.

    The search goes from one pair of a multiplier of the median distance and a ridge to a better one. A trial learns
    from as many rows as a small part of the cost of learning from all allows: the best lengthscale falls with the
    number of rows.
    """
    given, kernel = isinstance(settings.kernel, Kernel), settings.kernel
    search_kernel = not given and settings.bandwidth == "auto"
    search_alpha = settings.alpha == "auto"
    search = len(rows) >= ENOUGH_ROWS and (search_kernel or search_alpha)
    plain_alpha = 10 * _PLAIN_ALPHA if search and settings.loss.curvature >= 1 else _PLAIN_ALPHA
    alpha = plain_alpha if search_alpha else float(settings.alpha)
    plain = _FIRST_MULTIPLIER if search else settings.plain_bandwidth
    times = plain if search_kernel else 1.0 if given else float(settings.bandwidth)
    median = 1.0 if given else _median(rows, seed)

    def scaled(times: float) -> Kernel:
        return in_precision(kernel if isinstance(kernel, Kernel) else kernel(lengthscale=times * median), dtype)

    if not search and (search_kernel or search_alpha) and settings.loss.by_squares:
        several = _MULTIPLIERS if search_kernel else (times,)
        found = left_out(rows, settings.loss, several, scaled, seed)
        if found is not None:
            times, alpha = found[0], found[1] if search_alpha else alpha
    if not search:
        return scaled(times), alpha
    order = np.random.default_rng([seed, 1]).permutation(len(rows))
    held = rows.subset(np.sort(order[: min(_SLICE_ROWS, len(rows) // 4)]))
    order = order[len(held) :][: _trial_rows(len(rows), settings.max_features)]

    @cache
    def loss(times: float, alpha: float) -> float:
        # With room for all rows, so that the program which learns from them is compiled once.
        learner = start(settings, scaled(times), rows.x.shape[1], rows.outputs, len(rows), seed, dtype)
        if rows.table is not None and rows.counts is not None:
            learner = learner.at_level(settings.loss.level(rows.table, rows.counts), alpha)
        for _ in learner.learn(rows, order, alpha, len(order)):
            pass
        found, _ = learner.judged(held)
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
    return scaled(times), alpha


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
