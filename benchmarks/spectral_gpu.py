"""Spectral sums on whatever device JAX has: correctness in float32 and float64, and products per second.

Usage: ``python -m benchmarks.spectral_gpu [d] [bandwidth in GB/s]``. The dimension is 30,000 by default (7.2 GB in
float64); the bandwidth is that of an H200's memory by default, 4,800 GB/s. A product with one block of 16 probes must
read the matrix once, so that bandwidth / (bytes of the matrix) bounds the block products per second.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._common import report, table
from benchmarks._matrices import rbf
from thalweg.spectral import FunctionOperator, PivotedCholesky, kernel_operator, plan, spectral_sum

KEYS, PROBES = 2000, 16


def kernel(theta, X, Y):
    squares = jnp.sum((X[:, None] - Y[None]) ** 2, -1)
    return theta[0] * jnp.exp(-0.5 * squares / theta[1] ** 2)


def noise(theta):
    return theta[2] ** 2


def unbiased(dtype) -> float:
    """The largest distance from exact of value and gradient, plain and preconditioned, in standard errors."""
    points = jnp.asarray(np.random.default_rng(0).uniform(size=(24, 2)), dtype)
    theta = jnp.asarray([1.0, 0.3, 0.4], dtype)
    operator = lambda t: kernel_operator(kernel, t, points, noise)
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        wide = lambda t: kernel(t, np.asarray(points, np.float64), np.asarray(points, np.float64))
        exact = lambda t: jnp.linalg.slogdet(wide(t) + noise(t) * jnp.eye(24))[1]
        truth = np.append(*map(np.atleast_1d, jax.value_and_grad(exact)(jnp.asarray(np.asarray(theta), jnp.float64))))
    worst = 0.0
    for options in ({}, {"preconditioner": PivotedCholesky(rank=8)}):
        for gradient in ("series", "paper"):
            p = plan("log", operator(theta), jax.random.key(1), probes=4, gradient=gradient, **options)
            run = jax.value_and_grad(lambda t, key, p=p: p.estimate(operator(t), key).value)
            values, gradients = jax.jit(jax.vmap(run, (None, 0)))(theta, jax.random.split(jax.random.key(2), KEYS))
            found = np.concatenate([np.asarray(values)[:, None], np.asarray(gradients)], axis=1).astype(np.float64)
            error = np.sqrt(found.var(0) / KEYS + (1e-5 * np.abs(truth)) ** 2 * (dtype == jnp.float32))
            worst = max(worst, float(np.max(np.abs(found.mean(0) - truth) / error)))
    return worst


def covered(dtype) -> float:
    """The share of 1,000 intervals that cover, and of the other sums' within five standard errors."""
    A = rbf(300, 0.2, 0.1)
    truth = np.linalg.slogdet(A)[1]
    B = jnp.asarray(A, dtype)
    p = plan("log", B, jax.random.key(0), probes=PROBES)
    e = jax.jit(jax.vmap(lambda key: p.estimate(B, key)))(jax.random.split(jax.random.key(3), 1000))
    low, high = e.interval(0.95)
    for f in (jnp.sqrt, jnp.exp, lambda x: x * jnp.log(x), lambda x: 1.0 / x):
        with jax.enable_x64(True):
            exact = float(np.sum(np.asarray(f(jnp.asarray(np.linalg.eigvalsh(A))))))
        result = spectral_sum(f, B, jax.random.key(4), method="stochastic")
        assert abs(float(result.value) - exact) < 5 * float(result.standard_error), (f, dtype)
    return float(np.mean((np.asarray(low) <= truth) & (truth <= np.asarray(high))))


def products(d, dtype) -> tuple[float, float]:
    """Block products a second of one estimate, and of the bare product."""
    A = jax.random.normal(jax.random.key(0), (d, d), dtype) / jnp.asarray(np.sqrt(d), dtype)
    A = jax.jit(lambda a: 0.25 * (a + a.T) + 3.0 * jnp.eye(d, dtype=dtype), donate_argnums=0)(A)
    operator = FunctionOperator(lambda a, block: a @ block, A, dimension=d)
    p = plan("log", operator, jax.random.key(1), probes=PROBES, degree=200, law="fixed", interval=(0.5, 6.0))
    jax.block_until_ready(p.estimate(operator, jax.random.key(2)).value)
    began = time.perf_counter()
    result = jax.block_until_ready(p.estimate(operator, jax.random.key(3)))
    ours = float(result.products) / PROBES / (time.perf_counter() - began)
    with jax.default_matmul_precision("highest"):
        chain = jax.jit(lambda a, v: jax.lax.fori_loop(0, 100, lambda i, w: 0.1 * (a @ w), v))
        block = jnp.ones((d, PROBES), dtype)
        jax.block_until_ready(chain(A, block))
        began = time.perf_counter()
        jax.block_until_ready(chain(A, block))
        bare = 100 / (time.perf_counter() - began)
    return ours, bare


def main() -> None:
    d = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    bandwidth = float(sys.argv[2]) if len(sys.argv) > 2 else 4800.0
    columns: dict[str, list] = {
        name: [] for name in ("dtype", "deviation", "coverage", "products/s", "bare/s", "bound/s")
    }
    holds = True
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            deviation, coverage = unbiased(dtype), covered(dtype)
            ours, bare = products(d, dtype)
        bound = bandwidth * 1e9 / (d * d * jnp.dtype(dtype).itemsize)
        for name, figure in zip(columns, (jnp.dtype(dtype).name, deviation, coverage, ours, bare, bound), strict=True):
            columns[name].append(figure)
        holds = holds and deviation < 5 and 0.93 <= coverage <= 0.98
    table(columns)
    share = [a / b for a, b in zip(columns["products/s"], columns["bound/s"], strict=True)]
    report(
        "the essential checks hold in float32 and float64 on this device; products per second against the bandwidth",
        {"share of the bandwidth bound": dict(zip(columns["dtype"], share, strict=True))},
        holds,
        dimension=d,
        bandwidth=bandwidth,
        columns=columns,
    )


if __name__ == "__main__":
    main()
