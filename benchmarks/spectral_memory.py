"""The peak memory of the gradient does not grow with the degree, from 20 to 320: both gradient estimators.

Measured twice: as the temporary memory the compiler reserves, and as the peak resident memory of a fresh process.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._common import report, table
from thalweg.spectral import FunctionOperator, plan

D, DEGREES = 200_000, (20, 80, 320)


def multiply(theta, diagonal, block):
    return (theta[0] + theta[1] * diagonal)[:, None] * block


def gradient_of(gradient, degree):
    diagonal = jnp.linspace(1.0, 1000.0, D)
    theta = jnp.array([1.0, 1.0])
    operator = lambda t: FunctionOperator(multiply, t, diagonal, dimension=D)
    p = plan(
        "log",
        operator(theta),
        jax.random.key(0),
        probes=8,
        degree=degree,
        law="fixed",
        gradient=gradient,
        interval=(1.0, 1100.0),
    )
    return jax.jit(jax.grad(lambda t, key: p.estimate(operator(t), key).value)), theta


def child(gradient, degree):
    import resource

    run, theta = gradient_of(gradient, degree)
    jax.block_until_ready(run(theta, jax.random.key(1)))
    temporary = run.lower(theta, jax.random.key(1)).compile().memory_analysis().temp_size_in_bytes
    print(temporary / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    columns: dict[str, list] = {"gradient": [], "degree": [], "compiled MiB": [], "resident MiB": []}
    growth = {}
    for gradient in ("series", "paper"):
        figures = []
        for degree in DEGREES:
            command = [sys.executable, "-m", "benchmarks.spectral_memory", gradient, str(degree)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            figures.append([float(x) for x in output[-2:]])
            columns["gradient"].append(gradient)
            columns["degree"].append(degree)
            columns["compiled MiB"].append(figures[-1][0])
            columns["resident MiB"].append(figures[-1][1])
        ratios = np.asarray(figures[-1]) / np.asarray(figures[0])
        growth[gradient] = {"compiled": float(ratios[0]), "resident": float(ratios[1])}
    table(columns)
    worst = max(value for row in growth.values() for value in row.values())
    report("peak memory of the gradient is flat from degree 20 to 320", growth, worst <= 1.05, table=columns)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    if len(sys.argv) == 3:
        child(sys.argv[1], int(sys.argv[2]))
    else:
        main()
