"""Rows as they were given, and those at one place made one."""

from typing import NamedTuple

import numpy as np

from thalweg.processes.host import HostRows
from thalweg.processes.means import Mean


class Given(NamedTuple):
    """Rows that count, as they came but for their order."""

    inputs: np.ndarray
    targets: np.ndarray
    known: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, inputs: np.ndarray, targets: np.ndarray, known: np.ndarray, weights: np.ndarray) -> "Given":
        """In an order that does not depend on that given."""
        counted = np.flatnonzero(weights > 0)
        table = np.column_stack([weights, targets, known, inputs])[counted]
        order = counted[np.lexsort(table.T)]
        return cls(inputs[order], targets[order], known[order], weights[order])

    def merged(self, mean: Mean, separate: bool, chosen: np.ndarray | None = None) -> HostRows:
        """Rows at one place made one, of their mean and their total weight, unless they are to stay ``separate``."""
        inputs, targets, known, weights = (array if chosen is None else array[np.sort(chosen)] for array in self)
        if separate:
            none = np.zeros(len(inputs))
            return HostRows(inputs, targets, mean.basis(inputs), known, weights, none, none + 1, none)
        # Equal places follow one another.
        places = np.column_stack([inputs, known])
        which = np.concatenate([[0], np.cumsum(np.any(places[1:] != places[:-1], axis=1))])
        first = np.concatenate([[True], which[1:] != which[:-1]])
        total = np.bincount(which, weights)
        offset = targets[first][which]  # near which nothing is lost to rounding
        near = np.stack([np.bincount(which, weights * part) for part in (targets - offset).T], axis=1) / total[:, None]
        away = targets - offset - near[which]
        scatter = np.bincount(which, weights * np.sum(away**2, axis=1))
        shift = np.log(total) - np.bincount(which, np.log(weights))
        inputs = inputs[first]
        basis, copies = mean.basis(inputs), np.bincount(which).astype(float)
        return HostRows(inputs, targets[first] + near, basis, known[first], total, scatter, copies, shift)
