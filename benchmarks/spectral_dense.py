"""log det of a dense RBF kernel matrix, one core: against matfree's Lanczos estimator and Cholesky."""

import benchmarks._one_core  # noqa: F401, I001

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from matfree import decomp, funm, stochtrace

from benchmarks._common import ratio, report, side_by_side, table
from benchmarks._matrices import rbf
from thalweg.spectral import PivotedCholesky, logdet

NOISE, PROBES, LANCZOS, LANCZOS_PROBES = 0.01, 16, 100, 30


def main(d: int = 4000) -> None:
    dense = rbf(d, 0.1, NOISE)
    A = jnp.asarray(dense)
    keys = iter(jax.random.split(jax.random.key(0), 1000))
    results: dict[str, list[float]] = {"thalweg": [], "matfree": [], "Cholesky": []}

    def ours():
        results["thalweg"].append(
            float(
                logdet(
                    A, next(keys), method="stochastic", probes=PROBES, preconditioner=PivotedCholesky(noise=NOISE)
                ).value
            )
        )

    def cholesky():
        root = scipy.linalg.cholesky(dense, lower=True, check_finite=False)
        results["Cholesky"].append(2 * float(np.sum(np.log(np.diagonal(root)))))

    integrand = funm.monte_carlo_funm_sym_logdet(decomp.tridiag_sym(LANCZOS))
    sampler = stochtrace.sampler_signs(jnp.ones(d), num=LANCZOS_PROBES)
    run = stochtrace.estimator_monte_carlo(integrand, sampler)
    compiled = jax.jit(lambda a, key: run(lambda v, m: m @ v, key, a))

    def matfree():
        results["matfree"].append(float(compiled(A, next(keys))))

    contenders = {"thalweg": ours, "Cholesky": cholesky}
    if d <= 5000:
        contenders["matfree"] = matfree
    seconds = side_by_side(contenders, repeats=5 if d <= 5000 else 1)
    truth = results["Cholesky"][0]
    errors = {name: float(np.sqrt(np.mean((np.asarray(results[name]) / truth - 1) ** 2))) for name in contenders}
    table(
        {
            "method": list(contenders),
            "seconds": [float(np.median(seconds[name])) for name in contenders],
            "rms relative error": [errors[name] for name in contenders],
        }
    )
    figure = {"Cholesky / thalweg": ratio(seconds, "Cholesky", "thalweg")}
    holds = figure["Cholesky / thalweg"] > 1
    if "matfree" in contenders:
        figure["matfree / thalweg"] = ratio(seconds, "matfree", "thalweg")
        holds = holds and figure["matfree / thalweg"] >= 10 and errors["thalweg"] <= errors["matfree"]
    report(
        f"dense RBF log det, d = {d}, one core: faster than Cholesky"
        + (", and 10 x faster than matfree at no larger error" if "matfree" in contenders else ""),
        figure,
        holds,
        dimension=d,
        errors=errors,
        seconds={name: times.tolist() for name, times in seconds.items()},
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
