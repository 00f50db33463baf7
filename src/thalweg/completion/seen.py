"""Which cells of a matrix were rated."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from thalweg.codec import check_sparse, storable
from thalweg.completion.factors import Ratings


def cells(ratings: Ratings) -> csr_matrix:
    """Which cells have a rating, each once."""
    ones = np.ones(len(ratings.values), np.float32)
    cells = csr_matrix((ones, (ratings.rows, ratings.columns)), ratings.shape)
    cells.data[:] = 1
    return cells


@storable
@dataclass(frozen=True)
class Seen:
    """The columns that each row has rated, one row after the other, and where each row starts.

    Examples
    --------
    >>> seen = Seen.of(Ratings(np.array([0, 0, 2]), np.array([1, 3, 0]), np.ones(3), None, (3, 4)))
    >>> seen.of_row(0).tolist(), seen.by_row.tolist(), seen.by_column.tolist()
    ([1, 3], [2, 0, 1], [1, 1, 0, 1])
    """

    columns: np.ndarray
    starts: np.ndarray
    width: int
    """How many columns there are."""

    @staticmethod
    def of(ratings: Ratings) -> "Seen":
        """Those that have a rating."""
        return Seen.where(cells(ratings))

    @staticmethod
    def where(cells: csr_matrix) -> "Seen":
        """Those that a sparse matrix stores."""
        return Seen(cells.indices.astype(np.int32), cells.indptr.astype(np.int64), cells.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.starts) - 1, self.width

    @property
    def matrix(self) -> csr_matrix:
        """1 for each."""
        return csr_matrix((np.ones(len(self.columns), np.float32), self.columns, self.starts), self.shape)

    @property
    def by_row(self) -> np.ndarray:
        """How many each row has."""
        return np.diff(self.starts)

    @property
    def by_column(self) -> np.ndarray:
        """How many each column has."""
        return np.bincount(self.columns, minlength=self.width)

    def of_row(self, row: int) -> np.ndarray:
        """The columns of a row."""
        return self.columns[self.starts[row] : self.starts[row + 1]]

    def check_stored(self) -> None:
        """Refuse columns that there are not, and rows that do not follow one another."""
        check_sparse(self.columns, self.starts, self.shape)
