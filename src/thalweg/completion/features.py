"""What is known of a row before any of its ratings' values: side information, and which columns it has rated at all.

The second is the first singular vectors of the matrix of who rated what, each cell divided by the roots of the numbers
of ratings of its row and its column. A row's features are sums over the columns that it has rated, so that new rows
have them too.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.utils.extmath import randomized_svd

from thalweg.codec import storable

_POWERS = 3
"""Products with the matrix and its transpose in the search for its singular vectors."""

_RIDGE = 0.1
"""Of the regression of presence on side information, for each row."""


@storable
@dataclass(frozen=True)
class Describer:
    """How the features of one side are made: a constant, side information in standard units, and a basis of presence.

    Examples
    --------
    >>> describer = Describer.of(np.array([[1.0], [3.0], [np.nan]]))
    >>> describer.features(np.array([[5.0], [np.nan]]))
    array([[1., 3.],
           [1., 0.]])
    """

    centre: np.ndarray
    scale: np.ndarray
    basis: np.ndarray
    """For each row of the other side, what having rated it says."""
    typical: np.ndarray
    """What side information lets expect of presence: rows without ratings get that, and the rest is a feature."""

    @staticmethod
    def of(side: np.ndarray, basis: np.ndarray | None = None, rated: csr_matrix | None = None) -> "Describer":
        """Of side information with a line for each row, NaN where there is none, and of who rated what."""
        known = side[~np.isnan(side).any(axis=1)]
        if not len(known):
            known = np.zeros((1, side.shape[1]))
        spread = known.std(axis=0)
        level = spread > 1e-12 * np.maximum(np.abs(known).max(axis=0), 1e-300)
        scale = np.where(level, spread, np.inf)
        if basis is None or rated is None:
            return Describer(known.mean(axis=0), scale, np.zeros((0, 0)), np.zeros((side.shape[1] + 1, 0)))
        plain = Describer(known.mean(axis=0), scale, basis[:, :0], np.zeros((side.shape[1] + 1, 0)))
        told, ratings = plain.features(side), np.diff(rated.indptr)
        # Over ratings, not over rows: what is expected is the author of a typical one.
        gram = (told * ratings[:, None]).T @ told + np.diag([0.0] + [_RIDGE * len(side)] * side.shape[1])
        typical = np.linalg.lstsq(gram, (told * ratings[:, None]).T @ _present(rated, basis), rcond=None)[0]
        return replace(plain, basis=basis, typical=typical)

    def features(self, side: np.ndarray, rated: csr_matrix | None = None) -> np.ndarray:
        """A line for each row: 1, side information, presence. What is not known of a row is taken to be average."""
        told = np.nan_to_num((side - self.centre) / self.scale, nan=0.0)
        parts = [np.ones((len(side), 1)), told]
        if self.basis.shape[1]:
            present = np.zeros((len(side), self.basis.shape[1]))
            if rated is not None:
                rated = rated[:, : len(self.basis)]  # columns that came later say nothing by being rated
                some = (np.diff(rated.indptr) > 0)[:, None]
                present = np.where(some, _present(rated, self.basis) - np.hstack(parts) @ self.typical, 0.0)
            parts.append(present)
        return np.hstack(parts)


def _present(rated: csr_matrix, basis: np.ndarray) -> np.ndarray:
    return rated @ basis / np.sqrt(np.maximum(np.diff(rated.indptr), 1))[:, None]


def presence(rated: csr_matrix, components: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bases of presence: for columns, by which rows are described, and for rows, by which columns are.

    Examples
    --------
    >>> rated = csr_matrix(np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]))
    >>> for_rows, for_columns = presence(rated, 2, seed=0)
    >>> for_rows.shape, for_columns.shape
    ((4, 2), (3, 2))
    """
    rows = np.sqrt(np.maximum(np.asarray(rated.sum(axis=1)).ravel(), 1))
    columns = np.sqrt(np.maximum(np.asarray(rated.sum(axis=0)).ravel(), 1))
    even = rated.multiply(1 / rows[:, None]).multiply(1 / columns[None, :]).tocsr()
    left, strength, right = randomized_svd(even, components, n_iter=_POWERS, random_state=seed)
    # A row's feature is strength × left; divided by its spread over rows, all features have one size.
    strength = np.maximum(strength, 1e-9)
    for_rows = right.T / columns[:, None] / np.maximum(strength * left.std(axis=0), 1e-12)
    for_columns = left / rows[:, None] / np.maximum(strength * right.std(axis=1), 1e-12)
    return for_rows, for_columns
