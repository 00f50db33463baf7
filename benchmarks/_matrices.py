"""Matrix families with very different spectra, small enough to know the truth."""

import numpy as np
import scipy.sparse


def with_spectrum(eigenvalues, seed):
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(eigenvalues),) * 2))
    q = q * np.sign(np.diagonal(r))
    A = (q * eigenvalues) @ q.T
    return 0.5 * (A + A.T)


def rbf(d, scale, noise, seed=0):
    x = np.random.default_rng(seed).uniform(size=(d, 2))
    squares = np.sum(x**2, axis=1)
    K = squares[:, None] + squares[None] - 2 * x @ x.T
    np.multiply(K, -0.5 / scale**2, out=K)
    np.exp(K, out=K)
    K = 0.5 * (K + K.T)
    K[np.diag_indices(d)] = 1.0 + noise
    return K


def matern(d, scale, noise, seed=1):
    x = np.random.default_rng(seed).uniform(size=(d, 2))
    r = np.sqrt(3.0 * ((x[:, None] - x[None]) ** 2).sum(-1)) / scale
    return (1 + r) * np.exp(-r) + noise * np.eye(d)


def laplacian(side, shift):
    line = scipy.sparse.diags([-np.ones(side - 1), 2 * np.ones(side), -np.ones(side - 1)], [-1, 0, 1])
    eye = scipy.sparse.eye(side)
    return (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line) + shift * scipy.sparse.eye(side**2)).tocsr()


def laplacian_logdet(side, shift):
    line = 2 - 2 * np.cos(np.pi * np.arange(1, side + 1) / (side + 1))
    return float(np.sum(np.log(line[:, None] + line[None] + shift)))


def graph(d, degree, seed=2):
    upper = np.triu(np.random.default_rng(seed).uniform(size=(d, d)) < degree / d, 1)
    W = (upper | upper.T).astype(float) + np.eye(d)
    scale = 1 / np.sqrt(W.sum(1))
    return 1.05 * np.eye(d) - scale[:, None] * W * scale


def wishart(d, seed=3):
    X = np.random.default_rng(seed).standard_normal((d, 2 * d))
    return X @ X.T / (2 * d)


def families(d=100):
    return {
        "dense RBF": rbf(d, 0.2, 0.05),
        "Matérn": matern(d, 0.3, 0.05),
        "sparse Laplacian": laplacian(int(np.sqrt(d)), 0.1),
        "graph": graph(d, 6),
        "Wishart": wishart(d),
        "near-singular": with_spectrum(np.append(np.linspace(0.5, 1.5, d - 2), [1e-3, 3e-3]), 4),
        "clustered": with_spectrum(np.repeat([0.02, 0.5, 1.0], [d // 3, d // 3, d - 2 * (d // 3)]), 5),
        "low-rank + noise": with_spectrum(np.append(np.linspace(5.0, 20.0, 8), np.full(d - 8, 0.1)), 6),
    }
