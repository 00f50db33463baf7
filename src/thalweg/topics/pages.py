"""Documents of any length in arrays of one shape: pages of a few distinct words each, as many as a document needs.

A long document has many pages and a short one few, so that nothing is padded to the longest document: what is wasted is
the rest of each last page. Sums over a document are sums over pages, and then over its few pages.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

from thalweg.linalg import namespace
from thalweg.linalg.arrays import AnyArray
from thalweg.padding import MAX_TEMPORARY_NUMBERS, padded, padded_size

SIZE_GRAIN = 8
"""Documents, pages and words of a page are filled up to multiples of this: batches of about one size share a compiled
program. Doubled, small batches waste up to twice as much."""


class Pages(NamedTuple):
    """Documents cut into pages of distinct words; the pages of a document follow one another."""

    document: Int[AnyArray, " p"]
    """The document that a page belongs to, in order; empty pages at the end belong to the last."""
    words: Int[AnyArray, "p w"]
    counts: Float[AnyArray, "p w"]

    def total(self, of_pages: Any, documents: int) -> Any:
        """Sum over the pages of each document."""
        if namespace(of_pages) is np:
            return np.add.reduceat(of_pages, np.searchsorted(self.document, np.arange(documents)))
        return jax.ops.segment_sum(of_pages, self.document, documents, indices_are_sorted=True)


class BatchShape(NamedTuple):
    """The size of a batch: documents, pages, and distinct words of a page."""

    documents: int
    pages: int
    width: int


class DocumentBatch(NamedTuple):
    """Documents ready for a compiled program, filled up to a shape with empty ones."""

    pages: Pages
    design: Float[np.ndarray, "d p"]
    counted: Float[np.ndarray, " d"]
    """1 for documents to learn from, 0 for those that are only scored or were filled up."""
    rows: Int[np.ndarray, " n"]


def page_width(counts: csr_array) -> int:
    """Return a width of pages that wastes little: about a quarter of a typical document's distinct words.

    Examples
    --------
    >>> page_width(csr_array(np.ones((5, 130))))
    32
    """
    typical = float(np.median(np.diff(counts.indptr))) if counts.shape[0] else 0.0
    return padded_size(max(int(typical) // 4, 1), SIZE_GRAIN)


def page_counts(counts: csr_array, width: int) -> Int[np.ndarray, " d"]:
    """Return the pages of each document, at least one."""
    return np.maximum(-(-np.diff(counts.indptr) // width), 1)


def batch_shape(counts: csr_array, parts: Sequence[np.ndarray]) -> BatchShape:
    """Return a shape that every part of a table fits into.

    Examples
    --------
    >>> batch_shape(csr_array(np.ones((5, 130))), [np.arange(3), np.arange(3, 5)])
    BatchShape(documents=8, pages=16, width=32)
    """
    width = page_width(counts)
    pages = page_counts(counts, width)
    most = max(int(pages[part].sum()) for part in parts)
    return BatchShape(padded_size(max(map(len, parts)), SIZE_GRAIN), padded_size(most, SIZE_GRAIN), width)


def make_pages(counts: csr_array, shape: BatchShape) -> Pages:
    """Cut documents, one a row, into pages of NumPy arrays, filled up to a shape.

    Examples
    --------
    >>> table = csr_array(np.array([[2, 0, 1], [1, 1, 1], [0, 0, 0]]))
    >>> make_pages(table, BatchShape(documents=4, pages=5, width=2)).document
    array([0, 1, 1, 2, 3], dtype=int32)
    """
    lengths, of_each = np.diff(counts.indptr), page_counts(counts, shape.width)
    document = np.full(shape.pages, max(shape.documents - 1, 0), np.int32)
    document[: of_each.sum()] = np.repeat(np.arange(len(lengths)), of_each)
    first = np.cumsum(of_each) - of_each
    index = np.arange(counts.nnz) - np.repeat(counts.indptr[:-1], lengths)
    page = np.repeat(first, lengths) + index // shape.width
    words = np.zeros((shape.pages, shape.width), np.int32)
    values = np.zeros((shape.pages, shape.width), np.float32)
    words[page, index % shape.width] = counts.indices
    values[page, index % shape.width] = counts.data
    return Pages(document, words, values)


def make_batches(counts: csr_array, design: np.ndarray, parts: Sequence[np.ndarray]) -> Iterator[DocumentBatch]:
    """Make batches of one shape of parts of a table, given by their rows.

    Examples
    --------
    >>> next(make_batches(csr_array(np.eye(3, dtype=int)), np.ones((3, 1)), [np.arange(2)])).counted
    array([1., 1., 0., 0., 0., 0., 0., 0.], dtype=float32)
    """
    shape = batch_shape(counts, parts)
    for rows in parts:
        weights = padded(np.ones(len(rows), np.float32), shape.documents)
        yield DocumentBatch(make_pages(counts[rows], shape), padded(design[rows], shape.documents), weights, rows)


def split_rows(count: int, cells_per_document: float) -> list[Int[np.ndarray, " n"]]:
    """Split rows into the fewest parts of about one size whose documents fit into memory together.

    Examples
    --------
    >>> [len(part) for part in split_rows(5, MAX_TEMPORARY_NUMBERS / 2)]
    [2, 2, 1]
    """
    parts = min(count, int(np.ceil(count * cells_per_document / MAX_TEMPORARY_NUMBERS)))
    return np.array_split(np.arange(count), max(parts, 1))
