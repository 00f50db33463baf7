"""Matrix families and exact answers for the tests of spectral sums."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse


def rotation(rng, d):
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return q * np.sign(np.diagonal(r))


def with_spectrum(eigenvalues, seed=0):
    q = rotation(np.random.default_rng(seed), len(eigenvalues))
    A = (q * eigenvalues) @ q.T
    return 0.5 * (A + A.T)


def _distances(d, seed):
    x = np.random.default_rng(seed).uniform(size=(d, 2))
    return np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))


def rbf(d, scale=0.2, noise=0.05, seed=0):
    return np.exp(-0.5 * (_distances(d, seed) / scale) ** 2) + noise * np.eye(d)


def matern(d, scale=0.3, noise=0.05, seed=1):
    r = np.sqrt(3.0) * _distances(d, seed) / scale
    return (1 + r) * np.exp(-r) + noise * np.eye(d)


def laplacian(side, shift=0.1):
    line = scipy.sparse.diags([-np.ones(side - 1), 2 * np.ones(side), -np.ones(side - 1)], [-1, 0, 1])
    eye = scipy.sparse.eye(side)
    return (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line) + shift * scipy.sparse.eye(side**2)).tocsr()


def graph(d, degree=6, seed=2):
    """A normalised graph Laplacian of a random graph, shifted."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(size=(d, d)) < degree / d, 1)
    W = (upper | upper.T).astype(float) + np.eye(d)
    scale = 1 / np.sqrt(W.sum(1))
    return 1.05 * np.eye(d) - scale[:, None] * W * scale


def wishart(d, seed=3):
    X = np.random.default_rng(seed).standard_normal((d, 2 * d))
    return X @ X.T / (2 * d)


def near_singular(d, seed=4):
    return with_spectrum(np.append(np.linspace(0.5, 1.5, d - 2), [1e-3, 3e-3]), seed)


def clustered(d, seed=5):
    return with_spectrum(np.repeat([0.02, 0.5, 1.0], [d // 3, d // 3, d - 2 * (d // 3)]), seed)


def low_rank(d, rank=8, noise=0.1, seed=6):
    return with_spectrum(np.append(np.linspace(5.0, 20.0, rank) + noise, np.full(d - rank, noise)), seed)


def families(d=64):
    return {
        "dense RBF": rbf(d),
        "Matérn": matern(d),
        "sparse Laplacian": laplacian(int(np.sqrt(d))),
        "graph": graph(d),
        "Wishart": wishart(d),
        "near-singular": near_singular(d),
        "clustered": clustered(d),
        "low-rank + noise": low_rank(d),
    }


FUNCTIONS = {
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "inverse": lambda x: 1.0 / x,
    "exp": jnp.exp,
    "xlogx": lambda x: x * jnp.log(x),
}


def exact(f, A):
    """Return tr f(A) by eigenvalues, for a function of NumPy: nothing is compiled."""
    A = A.toarray() if scipy.sparse.issparse(A) else np.asarray(A)
    return float(np.sum(f(np.linalg.eigvalsh(A))))


def random_keys(count, seed=0):
    """Return independent keys made by NumPy: nothing is compiled."""
    words = np.random.default_rng(seed).integers(2**32, size=(count, 2), dtype=np.uint32)
    return jax.random.wrap_key_data(words)


def masses_of(law):
    """Pr(n = j) for j = 0 … J; the last one holds everything from J on."""
    return -np.diff(np.append(law.survival, 0.0))
