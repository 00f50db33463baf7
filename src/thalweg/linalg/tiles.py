"""A matrix on the host that is known by its tiles: stored once, or made anew for each product, on all cores.

A kernel matrix of n rows takes n² numbers. Where they fit in memory the lower triangle is stored, in strips of rows;
where they do not, each product makes tiles that stay in the processor's cache. Both are one object with one product.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg.threads import cores, in_threads

TILE_ROWS, TILE_COLUMNS = 64, 2048
"""A tile of float32 takes half a MiB, which a core's cache holds; operations on larger ones wait for the memory."""

Entries = Callable[[slice, slice], np.ndarray]


class Tiles:
    """A matrix A whose entries ``entries(rows, columns)`` gives, for slices of rows and columns.

    Parameters
    ----------
    entries
        The tile A[rows, columns], in the dtype of the products.
    shape
        Of A.
    dtype
        Of its entries.
    symmetric
        Whether A = Aᵀ: then each pair of entries is made once.
    stored
        Whether to keep the entries of a symmetric matrix: the lower triangle, in strips.

    Examples
    --------
    >>> A = np.arange(9.0).reshape(3, 3) + np.arange(9.0).reshape(3, 3).T
    >>> for stored in (False, True):
    ...     tiles = Tiles(lambda rows, columns: A[rows, columns], (3, 3), A.dtype, symmetric=True, stored=stored)
    ...     print(np.array_equal(tiles.apply(np.eye(3)), A))
    True
    True
    """

    def __init__(
        self, entries: Entries, shape: tuple[int, int], dtype: Any, *, symmetric: bool = False, stored: bool = False
    ) -> None:
        self.entries, self.shape, self.dtype, self.symmetric = entries, shape, np.dtype(dtype), symmetric
        self.strips: list[np.ndarray] | None = None
        if stored:
            blocks = self._blocks()
            self.strips = [np.empty((rows.stop - rows.start, rows.stop), dtype) for rows in blocks]
            in_threads(lambda pair: self._fill(*pair), list(zip(blocks, self.strips, strict=True)))

    def apply(self, block: np.ndarray) -> np.ndarray:
        """Return A times columns."""
        block = np.asarray(block, self.dtype)
        product = np.zeros((self.shape[0], block.shape[1]), self.dtype)
        if self.strips is not None:
            for rows, strip in zip(self._blocks(), self.strips, strict=True):
                product[rows] += _times(strip, block[: rows.stop])
                product[: rows.start] += _times(strip[:, : rows.start].T, block[rows])
            return product

        def add(rows: slice) -> None:
            for columns in _slices(self.shape[1], TILE_COLUMNS):
                product[rows] += self.entries(rows, columns) @ block[columns]

        in_threads(add, _slices(self.shape[0], TILE_ROWS))
        return product

    def to_dense(self) -> np.ndarray:
        """Return all entries."""
        whole = np.empty(self.shape, self.dtype)

        def put(rows: slice) -> None:
            # Beyond the diagonal other threads write, whose entries may differ in the last digit.
            for columns in _slices(rows.stop if self.symmetric else self.shape[1], TILE_COLUMNS):
                tile = self.entries(rows, columns)
                whole[rows, columns] = tile
                if self.symmetric:
                    whole[columns, rows] = tile.T

        # The last rows take longest, and come first.
        in_threads(put, _slices(self.shape[0], TILE_ROWS)[::-1])
        return whole

    def _blocks(self) -> list[slice]:
        return _slices(self.shape[0], TILE_COLUMNS)

    def _fill(self, rows: slice, strip: np.ndarray) -> None:
        for part in _slices(len(strip), TILE_ROWS):
            there = slice(rows.start + part.start, rows.start + part.stop)
            for columns in _slices(rows.stop, TILE_COLUMNS):
                strip[part, columns] = self.entries(there, columns)


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _times(matrix: np.ndarray, block: np.ndarray) -> np.ndarray:
    """A product by all cores, each with a share of the rows: threads of BLAS wait for one another on a busy machine."""
    if matrix.size < TILE_ROWS * TILE_COLUMNS:
        return matrix @ block
    parts = np.array_split(np.arange(len(matrix)), cores())
    shares = [matrix[part[0] : part[-1] + 1] for part in parts if len(part)]
    return np.concatenate(in_threads(lambda share: share @ block, shares))
