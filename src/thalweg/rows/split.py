"""Duplicate rows, and random orders that keep copies together.

Rows may be the same for two reasons. *Copies* (a bootstrap, an oversampled class, a table joined twice) hold nothing
new: rows held out must not be copies of rows learned from. *Repeats* (a table of codes, a designed experiment) are
observations of their own: new rows will repeat inputs too. Copies have the same target; and rows with a feature that is
continuous do not repeat by chance.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["Duplicates", "duplicates_are_copies", "find_duplicates", "random_order"]

CHANCE = 0.05
"""Rows are copies if at most this share of them disagrees with the first of its duplicates in the target, and if a
feature has a value of its own in all but this share of the distinct rows."""

_DIGITS = 9
"""Digits by which projections of rows are compared first: with more of them rounding would tell equal rows apart."""


class Duplicates(NamedTuple):
    """Rows grouped by their features.

    Examples
    --------
    >>> find_duplicates(np.array([[3.0, 1.0], [5.0, 0.0], [3.0, 1.0]]))
    Duplicates(first=array([0, 1]), group=array([0, 1, 0]))
    """

    first: np.ndarray
    """The index of the first row of each group, ascending."""
    group: np.ndarray
    """The group of each row."""

    def merge(self, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted mean target of each group, and its total weight.

        Duplicate rows share one landmark: the least-squares solution is the same, and the system is smaller.
        """
        total = np.bincount(self.group, weights)
        sums = [np.bincount(self.group, weights * column) for column in targets.T]
        return np.stack(sums, axis=1) / total[:, None], total


def find_duplicates(x: np.ndarray) -> Duplicates:
    """Group rows whose features are equal: by their products with one vector, which are then checked.

    Examples
    --------
    >>> found = find_duplicates(np.array([[1.0], [2.0], [1.0]]))
    >>> found.group.tolist(), found.first.tolist()
    ([0, 1, 0], [0, 1])
    """
    with np.errstate(all="ignore"):
        along = x @ np.random.default_rng(0).normal(size=x.shape[1])
        rounded = np.round(along / np.max(np.abs(along), initial=np.finfo(float).tiny), _DIGITS)
    group = np.ravel(np.unique(rounded, return_inverse=True)[1])
    first = _first(group)
    apart = np.any(x != x[first[group]], axis=1)
    group[apart] = len(first) + np.arange(np.count_nonzero(apart))
    first = _first(group)
    order = np.argsort(first)
    rank = np.empty(len(order), int)
    rank[order] = np.arange(len(order))
    return Duplicates(first[order], rank[group])


def _first(group: np.ndarray) -> np.ndarray:
    """The index at which each of the numbers 0, 1, … occurs first."""
    found = np.zeros(np.max(group, initial=-1) + 1, int)
    found[group[::-1]] = np.arange(len(group))[::-1]  # the last assignment to an index wins
    return found


def duplicates_are_copies(x: np.ndarray, targets: np.ndarray, duplicates: Duplicates) -> bool:
    """Whether duplicate rows are copies, which hold nothing new, rather than repeated observations.

    Examples
    --------
    >>> x = np.repeat(np.linspace(0, 1, 50), 2)[:, None]
    >>> noisy = np.random.default_rng(0).normal(size=(100, 1))
    >>> duplicates_are_copies(x, x, find_duplicates(x)), duplicates_are_copies(x, noisy, find_duplicates(x))
    (True, False)
    """
    first, group = duplicates
    further = np.ones(len(group), bool)
    further[first] = False
    if not np.any(further):
        return False
    differs = np.any(targets[further] != targets[first[group[further]]], axis=1)
    distinct_values = max(len(np.unique(column)) for column in x[first].T)
    return bool(np.mean(differs) <= CHANCE and distinct_values >= (1 - CHANCE) * len(first))


def random_order(count: int, seed: object, group: np.ndarray | None = None) -> np.ndarray:
    """Return a random order of rows; rows of one group follow each other, so that a prefix holds all of them or none.

    Examples
    --------
    >>> order = random_order(6, 0, group=np.array([0, 1, 2, 0, 1, 2]))
    >>> (order[::2] % 3 == order[1::2] % 3).all()
    np.True_
    """
    order = np.random.default_rng(seed).permutation(count)  # type: ignore[arg-type]
    if group is None:
        return order
    position = np.full(np.max(group) + 1, count)
    np.minimum.at(position, group[order], np.arange(count))
    return order[np.argsort(position[group[order]], kind="stable")]
