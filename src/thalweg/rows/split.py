"""Duplicate rows, and random orders that keep copies together.

Rows may be the same for two reasons. *Copies* (a bootstrap, an oversampled class, a table joined twice) hold nothing
new: rows held out must not be copies of rows learned from. *Repeats* (a table of codes, a designed experiment) are
observations of their own: new rows will repeat inputs too. Copies have the same target; and rows with a feature that is
continuous do not repeat by chance.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

__all__ = ["Duplicates", "duplicates_are_copies", "find_duplicates", "random_order"]

CHANCE = 0.05
"""Rows are copies if at most this share of them disagrees with the first of its duplicates in the target, and if a
feature has a value of its own in all but this share of the distinct rows."""


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
        return self.sum(weights[:, None] * targets) / total[:, None], total

    def sum(self, columns: np.ndarray) -> np.ndarray:
        """Return the sum of each group, for each column."""
        return np.stack([np.bincount(self.group, column) for column in np.asarray(columns).T], axis=1)


def find_duplicates(rows: Iterable[np.ndarray]) -> Duplicates:
    """Group rows whose features are equal, by a hash of each: all but the hashes may be read piece by piece.

    Examples
    --------
    >>> found = find_duplicates(np.array([[1.0], [2.0], [1.0]]))
    >>> found.group.tolist(), found.first.tolist()
    ([0, 1, 0], [0, 1])
    """
    # 0.0 turns -0.0, which is equal to it, into itself.
    codes = np.fromiter((hash((row + 0.0).tobytes()) for row in rows), np.int64)
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return Duplicates(first[order], np.argsort(order)[group])


def duplicates_are_copies(distinct: np.ndarray, targets: np.ndarray, duplicates: Duplicates) -> bool:
    """Whether duplicate rows are copies, which hold nothing new, rather than repeated observations.

    Parameters
    ----------
    distinct
        Features of some distinct rows.
    targets, duplicates
        Of all rows.

    Examples
    --------
    >>> x = np.repeat(np.linspace(0, 1, 50), 2)[:, None]
    >>> found, noisy = find_duplicates(x), np.random.default_rng(0).normal(size=(100, 1))
    >>> duplicates_are_copies(x[found.first], x, found), duplicates_are_copies(x[found.first], noisy, found)
    (True, False)
    """
    first, group = duplicates
    further = np.ones(len(group), bool)
    further[first] = False
    if not np.any(further):
        return False
    differs = np.any(targets[further] != targets[first[group[further]]], axis=1)
    distinct_values = max(len(np.unique(column)) for column in distinct.T)
    return bool(np.mean(differs) <= CHANCE and distinct_values >= (1 - CHANCE) * len(distinct))


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
