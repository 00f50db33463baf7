"""The bare ``logdet(A, key)`` over families of matrices, one core: against our best hand-picked options and the peers.

Every contender has a time (CPU seconds, the least of a few calls) and an error; what is compared is the time to the
bare call's own error: an estimator with twice the standard error takes four times as long, and never becomes exact.
matfree's error is its own standard error, without the bias of its Lanczos steps. Some families by name, the others as
they were: ``python -m benchmarks.defaults_spectral "RBF, 6000"``.
"""

import benchmarks._one_core  # noqa: F401, I001

import gc
import json
import sys
import time

import imate
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse
from matfree import decomp, funm, stochtrace
from scipy.spatial.distance import cdist

from benchmarks._common import RESULTS, report, table
from benchmarks._matrices import laplacian, rbf, wishart
from thalweg.kernels import Gaussian
from thalweg.spectral import Jacobi, KernelOperator, PivotedCholesky, ShiftedOperator, as_operator, logdet

LANCZOS, PROBES, LARGEST, LONG = 100, 30, 6000, 8.0
STOCHASTIC = {"method": "stochastic"}
EXACT = 1e-9
"""Errors below this are rounding: nobody is asked for less."""


def matern(d):
    r = np.sqrt(3.0) * cdist(*2 * [np.random.default_rng(1).uniform(size=(d, 2))]) / 0.3
    return (1 + r) * np.exp(-r) + 0.05 * np.eye(d)


def graph(d):
    """The Laplacian of a random graph, shifted."""
    pairs = np.random.default_rng(2).integers(0, d, (2, 4 * d))
    W = scipy.sparse.coo_matrix((np.ones(4 * d), pairs), (d, d)).tocsr()
    W = ((W + W.T) > 0).astype(float)
    return (scipy.sparse.diags(np.asarray(W.sum(1)).ravel() + 0.1) - W).tocsr()


def random_sparse(d):
    B = scipy.sparse.random(d, d, 5 / d, "csr", random_state=3)
    return (B @ B.T + scipy.sparse.diags(np.random.default_rng(3).uniform(0.1, 10.0, d))).tocsr()


def low_rank(d):
    U = np.random.default_rng(4).standard_normal((d, 20))
    return U @ U.T + np.diag(np.random.default_rng(5).uniform(0.5, 1.0, d))


def kernel_operator(d):
    points = jnp.asarray(np.random.default_rng(6).uniform(size=(d, 2)))
    return ShiftedOperator(KernelOperator(Gaussian(lengthscale=0.2), points), 0.01)


FAMILIES = {
    "covariance, 300": (lambda: wishart(300), {}),
    "covariance, 3000": (lambda: wishart(3000), {}),
    "RBF, 5000": (lambda: rbf(5000, 0.1, 0.01), {"preconditioner": PivotedCholesky(noise=0.01)}),
    "RBF, 6000": (lambda: rbf(6000, 0.1, 0.01), {"preconditioner": PivotedCholesky(noise=0.01)}),
    "Matérn, 4000": (lambda: matern(4000), {"preconditioner": PivotedCholesky(noise=0.05)}),
    "Toeplitz, 3000": (lambda: scipy.linalg.toeplitz(0.9 ** np.arange(3000)), {}),
    "low rank + diagonal, 4000": (lambda: low_rank(4000), {"preconditioner": PivotedCholesky(noise=0.5)}),
    "compound symmetry, 2000": (lambda: 0.7 * np.eye(2000) + 0.3, {"preconditioner": PivotedCholesky(noise=0.7)}),
    "diag(logspace), 2000": (lambda: np.diag(np.logspace(-8, 0, 2000)), {"preconditioner": Jacobi()}),
    "graph Laplacian, 20000": (lambda: graph(20_000), {"preconditioner": Jacobi()}),
    "grid Laplacian, 90000": (lambda: laplacian(300, 0.01), {}),
    "random sparse, 20000": (lambda: random_sparse(20_000), {"preconditioner": Jacobi()}),
    "kernel operator, 6000": (lambda: kernel_operator(6_000), {"preconditioner": PivotedCholesky()}),
}


def contenders_of(A, picked):
    """Functions of a key that return a value and its standard error."""
    ours = lambda **options: lambda key: _pair(logdet(A, key, **options))
    dense = isinstance(A, np.ndarray)
    named = {"bare": ours(), "ours: plain": ours(**STOCHASTIC)}
    if picked:
        named["ours: preconditioned"] = ours(**STOCHASTIC, **picked)
    if dense and len(A) <= LARGEST:
        named["ours: exact"] = ours(method="exact")
        named["Cholesky"] = lambda key: (2 * np.sum(np.log(np.diagonal(np.linalg.cholesky(A)))), 0.0)
    operator = as_operator(A)
    steps = min(LANCZOS, operator.dimension - 1)
    integrand = funm.monte_carlo_funm_sym_logdet(decomp.tridiag_sym(steps, reortho="none"))
    sampler = stochtrace.sampler_signs(jnp.ones(operator.dimension), num=PROBES)
    run = stochtrace.estimator_monte_carlo_mean_and_sem(integrand, sampler)
    compiled = jax.jit(lambda op, key: run(lambda v, o: o @ v, key, op))
    named["matfree"] = lambda key: tuple(map(float, compiled(operator, key)))
    if scipy.sparse.issparse(A):
        named["imate"] = lambda key: _imate(A)
    return named


def _pair(e):
    return float(e.value), float(e.standard_error)


def _imate(A):
    value, info = imate.logdet(
        A, method="slq", return_info=True, orthogonalize=0, min_num_samples=PROBES, max_num_samples=PROBES
    )
    return float(value), float(info["error"]["absolute_error"]) / 1.96


def measure(name, repeats):
    """CPU seconds, wall seconds, standard errors and values of every contender, taken in turns; minima of the times."""
    build, picked = FAMILIES[name]
    A = build()
    keys = iter(jax.random.split(jax.random.key(0), 10_000))
    named = contenders_of(A, picked)
    found: dict[str, list] = {label: [] for label in named}
    for turn in range(repeats + 1):
        for label, call in named.items():
            # What took long is not run again and again: its share of noise is small.
            if turn > 1 and found[label][0][0] > LONG:
                continue
            began = time.process_time(), time.perf_counter()
            try:
                pair = call(next(keys))
            except ValueError:  # a refusal is no answer: too ill-conditioned for a plain estimate
                pair = (np.nan, np.inf)
            if turn > 0:  # the first compiles
                found[label].append((time.process_time() - began[0], time.perf_counter() - began[1], *pair))
    outcome = {}
    for label, runs in found.items():
        cpu, wall, values, errors = (np.array(column) for column in zip(*runs, strict=True))
        outcome[label] = [min(cpu), min(wall), max(float(np.sqrt(np.mean(errors**2))), EXACT), values[-1]]
    wanted = outcome["bare"][2]
    for row in outcome.values():
        # An estimator with twice the standard error takes four times as long, and never becomes exact.
        factor = 1.0 if row[2] <= wanted else (np.inf if wanted <= 1e3 * EXACT else (row[2] / wanted) ** 2)
        row.insert(3, row[0] * factor)
    return outcome


def main(names=None, repeats: int = 3) -> None:
    """Measure the families named, or all; what is known of the others is kept."""
    file = RESULTS / "defaults_spectral.json"
    known = json.loads(file.read_text())["details"]["outcomes"] if names and file.exists() else {}
    outcomes = {name: known[name] for name in FAMILIES if name in known}
    for name in names or FAMILIES:
        outcomes[name] = measure(name, repeats)
        print(name, {label: [float(f"{x:.3g}") for x in row] for label, row in outcomes[name].items()}, flush=True)
        summarise(outcomes)
        gc.collect()
        jax.clear_caches()


def summarise(outcomes) -> None:
    """Print and write what is known so far."""
    rows, worst, peers = [], {}, {}
    for name, outcome in outcomes.items():
        bare = outcome["bare"][0]
        worst[name] = bare / min(row[3] for label, row in outcome.items() if label.startswith("ours"))
        peers[name] = bare / max(outcome[label][3] for label in ("Cholesky", "matfree") if label in outcome)
        rows += [(name, label, *row[:4], bare / row[3], row[4]) for label, row in outcome.items()]
    titles = ("family", "method", "CPU s", "wall s", "standard error", "CPU s at equal error", "bare / this", "value")
    table(dict(zip(titles, map(list, zip(*rows, strict=True)), strict=True)))
    report(
        "logdet(A, key) without options: within 1.3 x of our best hand-picked options at equal error, and never slower "
        "than both Cholesky and matfree",
        {"worst ratio to hand-picked": max(worst.values()), "worst ratio to the slower peer": max(peers.values())},
        len(outcomes) == len(FAMILIES) and max(worst.values()) <= 1.3 and max(peers.values()) <= 1.0,
        ratios=worst,
        peers=peers,
        outcomes=outcomes,
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(sys.argv[1:])
