"""Rows that a classifier is given more than once: copies, which are no new evidence for its kernel, or new labels."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from thalweg import processes
from thalweg.descent import Status

_SELDOM = 0.05
"""Where fewer than so many of the further labels of a row differ from its first, they are copies."""


class Labelled(NamedTuple):
    """Rows that differ in place or label, how often each counts, and the place of each.

    Examples
    --------
    >>> Labelled.of(np.array([[1.0], [2.0], [1.0]]), np.array([0, 1, 0]), None)
    Labelled(inputs=array([[1.],
           [2.]]), labels=array([0, 1]), weights=array([2., 1.]), places=array([0, 1]))
    """

    inputs: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> "Labelled":
        """Equal rows of one label are made one, of their weight, at the first of them."""
        _, places = np.unique(X, axis=0, return_inverse=True)
        pairs = places * (np.max(labels) + 1) + labels
        _, first, members = np.unique(pairs, return_index=True, return_inverse=True)
        order = np.argsort(first)
        kept, totals = first[order], np.bincount(members, weights)[order].astype(float)
        return cls(X[kept], labels[kept], totals, places[kept])

    def against_the_rest(self, positive: int) -> "Labelled":
        """With the label 1 for one class and 0 for all others."""
        return self._replace(labels=(self.labels == positive).astype(float))

    def process(self, settings: Any, kernel: Any, seed: int) -> processes.ProcessPosterior:
        """The posterior given all rows, with the kernel that they are evidence for.

        Copies of a row are all as it foretells, and would make a kernel likely that follows single rows: it is that of
        each row counted once.
        """
        fit = partial(processes.fit_classifier, self.inputs, self.labels)
        if not (settings.learn and self.copied):
            return fit(settings, kernel, self.weights, seed)
        learned = fit(settings, kernel, np.minimum(self.weights, 1.0), seed)
        if learned.status is Status.INTERRUPTED:
            return learned
        return fit(replace(settings, learn=False), learned.kernel, self.weights, seed)

    @property
    def copied(self) -> bool:
        """Whether rows count more than once, and have the same label then: independent ones would differ at times."""
        totals, ones = (np.bincount(self.places, weights) for weights in (self.weights, self.weights * self.labels))
        further = np.maximum(totals - 1, 0)
        apart = np.minimum(ones, totals - ones)[further > 0]
        return bool(np.sum(apart) < _SELDOM * np.sum(further))
