"""The Estrada index of a graph with a million edges.

tr exp(A) counts closed walks, weighted by the inverse factorials of their lengths; a network's redundancy is often read
from it. No eigenvalue is computed: eight probes and a few dozen products each are enough.
"""

import jax
import numpy as np
import scipy.sparse

from thalweg.spectral import estrada


def random_graph(nodes: int, edges: int) -> scipy.sparse.csr_matrix:
    ends = np.random.default_rng(0).integers(0, nodes, size=(2, int(1.01 * edges)))
    ends = ends[:, ends[0] != ends[1]]
    pairs = np.unique(np.sort(ends, axis=0), axis=1)
    pairs = pairs[:, np.random.default_rng(1).permutation(pairs.shape[1])[:edges]]
    ones = np.ones(pairs.shape[1])
    upper = scipy.sparse.coo_matrix((ones, (pairs[0], pairs[1])), shape=(nodes, nodes))
    return (upper + upper.T).tocsr()


def main(nodes: int = 500_000, edges: int = 1_000_000) -> None:
    A = random_graph(nodes, edges)
    result = estrada(A, jax.random.key(0), probes=8)
    low, high = result.interval(0.95)
    print(f"{A.nnz // 2} edges: Estrada index {float(result.value):.4g}")
    print(f"95 % interval [{float(low):.4g}, {float(high):.4g}]")
    print(f"{int(result.products)} products with A, spectrum in [{float(result.lower):.2f}, {float(result.upper):.2f}]")


if __name__ == "__main__":
    main()
