"""Bad input gets an error that names the argument, says what was found, and what would work."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental.sparse import BCOO, BCSR
from spectral_matrices import rbf, with_spectrum

import thalweg.spectral as sp

KEY = jax.random.key(0)
A = rbf(12, noise=0.5)
DIAGONAL = jnp.array([[0, 0], [1, 1], [2, 2]])
plan = cache(lambda: sp.plan("log", A, KEY, probes=4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sp.logdet(np.ones((3, 4)), KEY), ValueError, r"square, found shape \(3, 4\)"),
        (lambda: sp.logdet(np.ones(3), KEY), ValueError, r"square, found shape \(3,\)"),
        (lambda: sp.logdet(scipy.sparse.eye(3, 4), KEY), ValueError, r"square, found shape \(3, 4\)"),
        (lambda: sp.logdet(np.zeros((0, 0)), KEY), ValueError, "empty"),
        (lambda: sp.nuclear_norm(np.zeros((0, 3)), KEY), ValueError, "empty"),
        (lambda: sp.logdet(np.triu(A), KEY), ValueError, "symmetric"),
        (lambda: sp.logdet(lambda v: v[:-1], KEY, dimension=5), ValueError, "same shape"),
        (lambda: sp.logdet(with_spectrum([-1.0, 1.0, 2.0, 3.0]), KEY), ValueError, "positive definite"),
        (lambda: sp.trace_inverse(-A, KEY), ValueError, "positive definite"),
        (lambda: sp.entropy(np.diag([1.0, -0.1]), KEY), ValueError, "positive semi-definite.*-0.1"),
        (lambda: sp.logdet(np.where(A > 1.4, np.nan, A), KEY), ValueError, "NaN or infinity"),
        (lambda: sp.logdet(1j * A, KEY), TypeError, "real"),
        (lambda: sp.logdet("matrix", KEY), TypeError, "found str"),
        (lambda: sp.logdet(A, KEY, probes=0), ValueError, "probes must be a whole number of at least 2, found 0"),
        (lambda: sp.logdet(A, KEY, probes=3), ValueError, "probes must be a multiple of 2.*found 3"),
        (lambda: sp.logdet(A, KEY, probes=6, group=2), ValueError, "multiple of 4"),
        (
            lambda: sp.logdet(A, KEY, probes=4, group=4, rtol=0.1, method="stochastic"),
            ValueError,
            "rtol and atol need an error bar, and one degree for all 4 probes has none",
        ),
        (lambda: sp.logdet(A, KEY, probe="dirac"), ValueError, "rademacher"),
        (lambda: sp.logdet(A, KEY, law="cauchy"), ValueError, "poisson"),
        (lambda: sp.logdet(A, KEY, gradient="finite"), ValueError, "'series', 'paper', found 'finite'"),
        (lambda: sp.logdet(A, KEY, method="magic"), ValueError, "'auto', 'exact', 'stochastic'"),
        (lambda: sp.logdet(A, KEY, degree=-1.0), ValueError, "degree"),
        (lambda: sp.logdet(A, KEY, rtol=0.0), ValueError, "rtol must be a finite number above 0"),
        (lambda: sp.logdet(A, KEY, slack=0.5), ValueError, "slack"),
        (lambda: sp.logdet(A, KEY, interval=(2.0, 1.0)), ValueError, "lower < upper"),
        (lambda: sp.logdet(A, KEY, interval=(3.0, 4.0), method="stochastic"), ValueError, "does not hold the spectrum"),
        (
            lambda: sp.logdet(A, KEY, interval=(-1.0, 20.0), method="stochastic"),
            ValueError,
            "not finite on the interval",
        ),
        (lambda: sp.logdet(A, 0), TypeError, "key must be one JAX random key.*found 0"),
        (lambda: sp.plan("log", A, None), TypeError, "key must be one JAX random key.*found None"),
        (lambda: plan().estimate(A, 1), TypeError, "key must be one JAX random key.*found 1"),
        (lambda: sp.spectral_sum(3.0, A, KEY), TypeError, "f must be a function"),
        (lambda: sp.spectral_sum(jnp.exp, A, KEY, preconditioner=sp.Jacobi()), ValueError, "log and 1/x only"),
        (lambda: sp.logdet(A, KEY, preconditioner="cholesky"), TypeError, "PivotedCholesky"),
        (
            lambda: sp.logdet(A, KEY, preconditioner=sp.PivotedCholesky(rank=13), method="stochastic"),
            ValueError,
            "rank of PivotedCholesky must be a whole number from 1 to 12, found 13",
        ),
        (
            lambda: sp.logdet(A, KEY, preconditioner=sp.PivotedCholesky(noise=-1.0)),
            ValueError,
            "noise of PivotedCholesky must be a finite number above 0",
        ),
        (
            lambda: sp.logdet(
                lambda v: 2 * v, KEY, dimension=5, preconditioner=sp.PivotedCholesky(noise=0.5), method="stochastic"
            ),
            NotImplementedError,
            "products only, not its diagonal.*Nystrom",
        ),
        (
            lambda: sp.trace_inverse(A, KEY, preconditioner=sp.Own(lambda v: v, 0.0), method="stochastic"),
            ValueError,
            "inverse_trace",
        ),
        (lambda: sp.schatten_norm(A, KEY, p=0.0), ValueError, "p must be a finite number above 0"),
        (lambda: sp.nuclear_norm(A, KEY, smoothing=-1.0), ValueError, "smoothing"),
        (lambda: sp.logdet(A, KEY, method="exact").interval(1.5), ValueError, "level"),
        (lambda: sp.logdet(-A, KEY, method="exact"), ValueError, "must be positive definite"),
        (lambda: sp.logdet(A, KEY, interval=5), ValueError, r"interval must be \(lower, upper\).*found 5"),
        (
            lambda: sp.logdet(A, KEY, interval=(1.0, np.inf)),
            ValueError,
            "ends of interval must be a finite number, found inf",
        ),
        (lambda: sp.logdet(A, KEY, dimension=7), ValueError, "dimension must be that of A, 12, or left out, found 7"),
        (lambda: sp.logdet(A, KEY, rtol=0.1, budget=0), ValueError, "budget must be a whole number.*found 0"),
        (lambda: sp.estrada(np.triu(A), KEY, method="exact"), ValueError, "symmetric"),
        (lambda: sp.trace_inverse(np.ones((3, 3)), KEY, method="exact"), ValueError, "positive definite"),
        (lambda: sp.trace_inverse(np.diag([1.0, -1.0, 3.0]), KEY, method="auto"), ValueError, "positive definite"),
        (
            lambda: sp.logdet(BCOO((jax.device_put(np.ones(3, complex)), DIAGONAL), shape=(3, 3)), KEY),
            TypeError,
            "real and symmetric, found dtype complex",
        ),
        (
            lambda: sp.logdet(BCSR(jax.device_put((np.ones(3), np.arange(3), np.arange(4))), shape=(3, 3)), KEY),
            TypeError,
            "a BCOO matrix of JAX.*found BCSR",
        ),
        (
            lambda: sp.logdet(
                BCOO(jax.device_put((np.ones((3, 1)), np.arange(3).reshape(3, 1, 1))), shape=(3, 3)), KEY
            ),
            ValueError,
            "plain, found n_batch=1",
        ),
        (lambda: sp.logdet(A, KEY, budget=10), ValueError, "budget limits.*found budget=10"),
        (lambda: sp.trace_inverse(A, KEY, plan=plan()), ValueError, "plan was made for another function"),
        (lambda: sp.logdet(A, KEY, plan=plan(), probes=64), ValueError, "probes belongs to the plan.*found probes=64"),
        (lambda: sp.logdet(A, KEY, plan=plan(), method="exact"), ValueError, "method='exact' makes no use of a plan"),
        (lambda: plan().estimate(rbf(9), KEY), ValueError, "dimension 9"),
        (lambda: sp.FunctionOperator(3, (), dimension=2), TypeError, "callable"),
        (lambda: sp.FunctionOperator(lambda t, v: v, (), dimension=0), ValueError, "dimension must be a whole number"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_plan_inside_jit_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="plan=plan"):
        jax.jit(lambda a: sp.logdet(a, KEY, method="stochastic").value)(jnp.asarray(A))
    with pytest.raises(TypeError, match="plan=plan"):
        jax.vmap(lambda key: sp.logdet(A, key, method="stochastic").value)(jax.random.split(KEY, 2))


def test_a_function_that_closes_over_what_is_differentiated_is_refused():
    p = sp.plan("log", lambda v: 2.0 * v, KEY, dimension=5)
    value = lambda s: p.estimate(lambda v: s * v, KEY).value
    square = lambda s: sp.nuclear_norm(sp.FunctionOperator(lambda theta, v: s * v, (), dimension=5), KEY).value
    for function in (jax.jit(jax.grad(value)), jax.grad(value), jax.grad(square), jax.jit(value)):
        with pytest.raises(TypeError, match=r"closes over a value being traced.*pass that value as an argument"):
            function(2.0)


def test_tolerances_inside_jit_and_vmap_are_refused():
    with pytest.raises(ValueError, match=r"rtol and atol.*leave them out there"):
        jax.vmap(lambda key: sp.logdet(A, key, plan=plan(), rtol=0.1).value)(jax.random.split(KEY, 2))


def test_a_coefficient_too_large_for_float32_is_refused():
    with jax.enable_x64(False), pytest.raises(ValueError, match="too large for float32"):
        sp.trace_exp(jnp.asarray(with_spectrum(np.linspace(1.0, 120.0, 8)), jnp.float32), KEY)


@pytest.mark.parametrize("negative", [0.0, -3.0])
def test_a_matrix_that_is_not_positive_definite_is_refused_with_a_bound_of_its_smallest_eigenvalue(negative):
    """By the factor that failed: the eigenvalues of a large matrix would take six times as long."""
    d = 300
    diagonal = np.where(np.arange(d) == d - 2, negative, 2.0)
    A = np.diag(diagonal) + np.diag(np.where(np.arange(d - 1) < d - 4, 0.5, 0.0), 1)
    for total in (sp.logdet, sp.trace_inverse):
        with pytest.raises(sp.NotPositiveDefiniteError, match=f"smallest eigenvalue is at most {negative:.0f} up to"):
            total(0.5 * (A + A.T), KEY, method="exact")
