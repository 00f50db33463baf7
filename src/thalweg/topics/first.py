"""Documents of a stream that are kept until there are enough to start from."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

from thalweg.codec import check_sparse, storable


@storable
class FirstDocuments(NamedTuple):
    """A sparse table of their counts, and their covariates."""

    data: Float[np.ndarray, " e"]
    indices: Int[np.ndarray, " e"]
    indptr: Int[np.ndarray, " n"]
    design: Float[np.ndarray, "n p"]
    begun: int
    """How many of them topics began from."""

    @classmethod
    def of(cls, counts: csr_array, design: np.ndarray, begun: int) -> "FirstDocuments":
        """Those of a table."""
        return cls(counts.data, counts.indices, counts.indptr, design, begun)

    def table(self, words: int) -> csr_array:
        """Their counts of so many words."""
        return csr_array((self.data, self.indices, self.indptr), shape=(len(self.design), words))

    def check_stored(self) -> None:
        """Refuse a table that is none, as a file could hold it; of how many words it is, topics know."""
        words = int(np.max(self.indices, initial=-1)) + 1
        check_sparse(self.indices, self.indptr, (len(self.design), words))
        if len(self.data) != len(self.indices) or not np.all(np.isfinite(self.data)):
            raise ValueError("counts of other words, or that are no finite numbers")
