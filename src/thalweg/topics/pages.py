"""Documents of any length in arrays of one shape: pages of a few distinct words each, as many as a document needs."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array

from thalweg.padding import padded_size

_WIDTHS = (8, 16, 32, 64)


class Pages(NamedTuple):
    """Documents cut into pages of ``width`` distinct words; the pages of a document follow one another.

    A long document has many pages and a short one few, so that nothing is padded to the longest document: what is
    wasted is the rest of each last page. Sums over a document are sums over pages, and then over its few pages.
    """

    document: Int[Array, " p"]
    """The document that a page belongs to, in order; empty pages at the end belong to the last."""
    words: Int[Array, "p w"]
    counts: Float[Array, "p w"]

    def total(self, of_pages: Array, documents: int) -> Array:
        """Sums over the pages of each document."""
        return jax.ops.segment_sum(of_pages, self.document, documents, indices_are_sorted=True)


def page_width(counts: csr_array) -> int:
    """A width of pages that wastes little: about a quarter of a usual document's distinct words.

    Examples
    --------
    >>> page_width(csr_array(np.ones((5, 130))))
    32
    """
    usual = float(np.median(np.diff(counts.indptr))) if counts.shape[0] else 0.0
    return min(_WIDTHS, key=lambda width: abs(4 * width - usual))


def page_count(counts: csr_array, width: int) -> int:
    """How many pages the documents take."""
    return int(np.sum(-(-np.diff(counts.indptr) // width)))


def page_shape(counts: csr_array, parts: Sequence[np.ndarray], documents: int, pages: int) -> tuple[int, int, int]:
    """Documents, pages and their width that every part of a table fits into, filled up to multiples.

    Examples
    --------
    >>> page_shape(csr_array(np.ones((5, 130))), [np.arange(3), np.arange(3, 5)], documents=8, pages=16)
    (8, 16, 32)
    """
    width = page_width(counts)
    most = max(1, *(page_count(counts[part], width) for part in parts))
    return padded_size(max(map(len, parts)), documents), padded_size(most, pages), width


def paged(counts: csr_array, width: int, documents: int, pages: int) -> Pages:
    """The documents, one a row, as pages; filled up with empty documents and pages to the sizes given.

    Examples
    --------
    >>> table = csr_array(np.array([[2, 0, 1], [1, 1, 1], [0, 0, 0]]))
    >>> paged(table, 2, documents=4, pages=4).document
    Array([0, 1, 1, 3], dtype=int32)
    """
    lengths = np.diff(counts.indptr)
    of_each = -(-lengths // width)
    count = int(of_each.sum())
    document = np.full(pages, max(documents - 1, 0), np.int32)
    document[:count] = np.repeat(np.arange(len(lengths)), of_each)
    first = np.cumsum(of_each) - of_each
    place = np.arange(counts.nnz) - np.repeat(counts.indptr[:-1], lengths)
    page = np.repeat(first, lengths) + place // width
    words = np.zeros((pages, width), np.int32)
    values = np.zeros((pages, width), np.float32)
    words[page, place % width] = counts.indices
    values[page, place % width] = counts.data
    return Pages(*map(jnp.asarray, (document, words, values)))
