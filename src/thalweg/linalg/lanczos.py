"""Gauss quadrature from the coefficients of Lanczos' method, which are those of conjugate gradients."""

import numpy as np
import scipy.linalg


def log_quadrature(sizes: np.ndarray, ratios: np.ndarray) -> float:
    """Return zᵀ log(A) z / zᵀz from the steps of conjugate gradients that solved A x = z from 0.

    Their sizes and ratios are the entries of Lanczos' tridiagonal matrix (Saad, 2003, section 6.7.3). With a
    preconditioner P the matrix is P^(−½) A P^(−½), and z is P^(−½) times the right side. Steps of size 0 were not made.

    Examples
    --------
    >>> from thalweg.linalg import conjugate_gradients
    >>> A, z = np.diag([1.0, 4.0]), np.array([[1.0], [1.0]])
    >>> steps = conjugate_gradients(lambda block: A @ block, z)
    >>> round(log_quadrature(steps.sizes[:, 0], steps.ratios[:, 0]), 4)  # (log 1 + log 4) / 2
    0.6931
    """
    count = int(np.sum(sizes > 0))
    if not count:  # solved at once, or not at all
        return 0.0
    sizes, ratios = np.asarray(sizes[:count], float), np.asarray(ratios[: count - 1], float)
    diagonal = 1 / sizes
    diagonal[1:] += ratios / sizes[:-1]
    values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, np.sqrt(ratios) / sizes[:-1])
    return float(vectors[0] ** 2 @ np.log(np.maximum(values, np.finfo(np.float64).tiny)))
