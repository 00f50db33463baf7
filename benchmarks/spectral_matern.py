"""The bare ``logdet(A, key)`` of an everyday GP, a Matérn-3/2 kernel in 8 dimensions with noise 0.01, beside the truth.

Usage: ``python -m benchmarks.spectral_matern [points]``. By default 36,000 points on a GPU, where the reference, a
Cholesky factorisation in float64, takes 10 GB and as much for its factor, and 8,000 on a CPU. The same matrix (points
rounded to float32) is given in float32, as JAX's default is, and in float64.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._common import report, table
from thalweg.kernels import Matern32
from thalweg.linalg.operators.base import in_float64
from thalweg.spectral import KernelOperator, ShiftedOperator, logdet

DIMENSIONS, LENGTHSCALE, NOISE = 8, 2.0, 0.01


@jax.jit
def reference(operator):
    factor = jnp.linalg.cholesky(operator.to_dense())
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(factor)))


def timed(operator, key):
    began = time.perf_counter()
    found = jax.block_until_ready(logdet(operator, key))
    return found, time.perf_counter() - began


def main() -> None:
    default = 8_000 if jax.default_backend() == "cpu" else 36_000
    count = int(sys.argv[1]) if len(sys.argv) > 1 else default
    points = np.random.default_rng(0).standard_normal((count, DIMENSIONS)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 2)
    columns: dict[str, list] = {
        name: [] for name in ("dtype", "value", "standard error", "deviation", "seconds", "products", "message")
    }

    def row(dtype, operator, key):
        found, seconds = timed(operator, key)
        entries = (dtype, float(found.value), float(found.standard_error), np.nan, seconds, float(found.products))
        for column, entry in zip(columns.values(), (*entries, found.message), strict=True):
            column.append(entry)
        print(entries, flush=True)

    with jax.enable_x64(False):
        narrow = ShiftedOperator(KernelOperator(Matern32(lengthscale=LENGTHSCALE), jnp.asarray(points)), NOISE)
        row("float32", narrow, keys[0])
    with jax.enable_x64(True):
        wide = in_float64(narrow)
        row("float64", wide, keys[1])
        began = time.perf_counter()
        exact = float(reference(wide))
        seconds = time.perf_counter() - began
    columns["deviation"] = [
        (value - exact) / error for value, error in zip(columns["value"], columns["standard error"], strict=True)
    ]
    table(columns)
    relative = max(columns["standard error"]) / abs(exact)
    report(
        f"bare logdet of a Matérn-3/2 kernel of {count} points in {DIMENSIONS} dimensions, noise {NOISE}: within five "
        "standard errors of the exact value, and these within a hundredth of it",
        {"deviations": columns["deviation"], "relative standard error": relative},
        max(map(abs, columns["deviation"])) < 5 and relative < 1e-2,
        exact=exact,
        seconds_of_reference=seconds,
        table=columns,
    )


if __name__ == "__main__":
    main()
