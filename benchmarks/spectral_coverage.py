"""Stated 95 % intervals cover the truth in 93–98 % of 1,000 runs, on eight matrix families.

Fixed probes and ``rtol`` mode both; beside it what the error bars of matfree and imate cover with as many probes at a
truncation where they are biased.
"""

import sys

import imate
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.stats
from matfree import decomp, funm, stochtrace

from benchmarks._common import report
from benchmarks._matrices import families
from thalweg.spectral import logdet, plan

RUNS, PROBES, STEPS = 1000, 32, 4


def covered(values, errors, truth, quantile):
    return float(np.mean(np.abs(np.asarray(values) - truth) <= quantile * np.asarray(errors)))


def ours_fixed(A, keys):
    p = plan("log", A, jax.random.key(0), probes=PROBES)
    e = jax.jit(jax.vmap(lambda key: p.estimate(A, key)))(keys)
    return p, e


def ours_rtol(A, p, keys, rtol):
    hits, batches = [], []
    for key in keys:
        e = logdet(A, key, plan=p, rtol=rtol)
        hits.append([float(x) for x in e.interval(0.95)])
        batches.append(float(e.products))
    return np.asarray(hits), np.asarray(batches)


def by_matfree(A, keys):
    integrand = funm.monte_carlo_funm_sym_logdet(decomp.tridiag_sym(STEPS))
    sampler = stochtrace.sampler_signs(jnp.ones(A.shape[0]), num=PROBES)
    run = stochtrace.estimator_monte_carlo_mean_and_sem(integrand, sampler)
    return jax.jit(jax.vmap(lambda key: run(lambda v: A @ v, key)))(keys)


def by_imate(A, runs):
    results = []
    for seed in range(runs):
        value, info = imate.logdet(
            A,
            method="slq",
            lanczos_degree=STEPS,
            min_num_samples=PROBES,
            max_num_samples=PROBES,
            seed=seed + 1,
            error_rtol=1e-12,
            num_threads=1,
            return_info=True,
        )
        results.append((value, info["error"]["absolute_error"]))
    return np.asarray(results)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    keys = jax.random.split(jax.random.key(7), runs)
    z = scipy.stats.norm.ppf(0.975)
    rows = {}
    print(f"{'family':18s} {'fixed':>7s} {'rtol':>7s} {'matfree':>8s} {'imate':>7s}")
    for name, A in families().items():
        dense = A.toarray() if scipy.sparse.issparse(A) else A
        A = jnp.asarray(dense)
        truth = float(np.linalg.slogdet(dense)[1])
        p, e = ours_fixed(A, keys)
        quantile = scipy.stats.t.ppf(0.975, e.degrees_of_freedom)
        fixed = covered(e.value, e.standard_error, truth, quantile)
        # A tolerance about half of what one batch reaches: several batches are drawn.
        rtol = 0.5 * quantile * float(jnp.median(e.standard_error)) / abs(truth)
        ends, _ = ours_rtol(A, p, keys, rtol)
        adaptive = float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])))
        mean, sem = by_matfree(A, keys)
        theirs = by_imate(np.asarray(dense), min(runs, 300))
        # imate reports a half-width at 95 %.
        slq = float(np.mean(np.abs(theirs[:, 0] - truth) <= theirs[:, 1]))
        rows[name] = {"fixed": fixed, "rtol": adaptive, "matfree": covered(mean, sem, truth, z), "imate": slq}
        print(f"{name:18s} {fixed:7.1%} {adaptive:7.1%} {rows[name]['matfree']:8.1%} {slq:7.1%}", flush=True)
    figures = [row[mode] for row in rows.values() for mode in ("fixed", "rtol")]
    report(
        "95 % intervals cover in 93-98 % of 1,000 runs on eight families, fixed probes and rtol mode",
        {"lowest": min(figures), "highest": max(figures)},
        all(0.93 <= figure <= 0.98 for figure in figures),
        runs=runs,
        lanczos_steps_of_peers=STEPS,
        families=rows,
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
