"""Estimates under transformations, their status, their error bars, and the sums by name."""

import re
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
import scipy.stats
from jax.experimental.sparse import BCOO
from spectral_matrices import exact, families, laplacian, low_rank, random_keys, rbf, wishart, with_spectrum

import thalweg.spectral as sp
from thalweg.linalg.operators.convert import as_operator
from thalweg.linalg.operators.matrices import SparseOperator
from thalweg.spectral.bounds import find_spectrum, margin
from thalweg.spectral.estimate import Estimate, EstimateStatus, quantile
from thalweg.spectral.methods import refine
from thalweg.spectral.probes import draw_log_uniforms, draw_probes
from thalweg.spectral.recurrence import block_widths

A = rbf(30, noise=0.3)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def plan():
    return sp.plan("log", A, KEY, probes=4, gradient="series")


@pytest.fixture(scope="module")
def paper():
    return sp.plan("log", A, KEY, probes=4, gradient="paper", degree=12)


@pytest.mark.slow
def test_transformations_agree(plan):
    value = lambda a, key: plan.estimate(a, key).value
    given, tangent = jnp.asarray(A), jnp.asarray(with_spectrum(np.linspace(-1, 1, 30), 7))
    gradient = jax.grad(value)(given, KEY)
    assert jax.jit(value)(given, KEY) == pytest.approx(float(value(given, KEY)), rel=1e-12)
    assert jax.vmap(value, (None, 0))(given, KEY[None])[0] == pytest.approx(float(value(given, KEY)), rel=1e-12)
    forward = jax.jvp(lambda a: value(a, KEY), (given,), (tangent,))[1]
    assert forward == pytest.approx(float(jnp.sum(gradient * tangent)), rel=1e-9)
    assert np.asarray(jax.jit(jax.grad(value))(given, KEY)) == pytest.approx(np.asarray(gradient), rel=1e-9)


def test_the_papers_gradient_is_the_derivative_of_the_value(paper):
    """Equation (12) differentiates the value at a fixed key: finite differences reproduce it (the series' do not)."""

    @jax.jit
    def value_and_derivatives(t):
        value, forward = jax.linearize(lambda t: paper.estimate(A + t * np.eye(30), KEY).value, t)
        return value, forward(1.0), jax.linear_transpose(forward, t)(1.0)[0]

    step = 1e-5
    (below, *_), (_, *derivatives), (above, *_) = map(value_and_derivatives, (-step, 0.0, step))
    for derivative in derivatives:
        assert float(derivative) == pytest.approx((float(above) - float(below)) / (2 * step), rel=1e-6)


def test_the_same_key_gives_the_same_noise_whatever_the_operator(plan):
    draw = jax.jit(draw_probes, static_argnums=(0, 2, 3, 4, 5))
    assert np.all(np.abs(np.asarray(draw("rademacher", KEY, 30, 4, 1, jnp.float64))) == 1)
    first, second = (plan.estimate(s * A, KEY) for s in (1.0, 1.001))
    assert float(first.products) == float(second.products)
    assert float(second.value) - float(first.value) == pytest.approx(30 * np.log(1.001), rel=0.2)


def test_an_eigenvalue_outside_is_reported_never_a_number(plan):
    for factor, status in ((3.0, EstimateStatus.ABOVE), (0.1, EstimateStatus.BELOW)):
        e = plan.estimate(factor * A, KEY)
        assert int(e.status) == status
        assert "interval" in e.message
        with pytest.raises(ValueError, match="eigenvalue lies"):
            sp.logdet(factor * A, KEY, plan=plan)


class Understated(scipy.sparse.linalg.LinearOperator):
    """An operator whose products with single vectors, those of Lanczos' method, are too small."""

    def __init__(self, matrix):
        self.matrix = np.asarray(matrix)
        super().__init__(self.matrix.dtype, self.matrix.shape)

    def _matmat(self, block):
        return (0.7 if block.shape[1] == 1 else 1.0) * self.matrix @ block


def test_an_interval_that_proves_too_narrow_is_widened():
    e = sp.logdet(Understated(A), KEY, probes=4, degree=60, method="stochastic")
    assert e.upper >= np.linalg.eigvalsh(A)[-1]
    assert abs(float(e.value) - exact(np.log, A)) < 6 * float(e.standard_error)


@jax.jit
def many(p, matrix, keys):
    return jax.vmap(lambda key: p.estimate(matrix, key))(keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense RBF", "sparse Laplacian", "low-rank + noise", "diagonal"])
def test_intervals_cover_and_error_bars_are_true(name):
    """Eight families, a thousand runs and rtol mode: `benchmarks/spectral_coverage.py` and the slow test below.

    Rademacher probes know a diagonal matrix exactly: all error is the degrees', and pairs rarely show it.
    """
    B = {**families(), "diagonal": np.diag(np.linspace(1.0, 5.0, 64))}[name]
    B = jnp.asarray(B.toarray() if hasattr(B, "toarray") else B)
    e = many(sp.plan("log", B, KEY), B, jax.random.split(KEY, 1000))
    low, high = e.interval(0.95)
    truth = exact(np.log, B)
    covered = float(jnp.mean((low <= truth) & (truth <= high)))
    if name == "diagonal":
        assert covered >= 0.93
    else:
        assert 0.93 <= covered <= 0.98
        assert float(jnp.mean(e.standard_error**2)) == pytest.approx(float(jnp.var(e.value)), rel=0.15)


@pytest.mark.slow
def test_rounding_does_not_average_out():
    with jax.enable_x64(False):
        B = 3.0 * jnp.eye(200, dtype=jnp.float32)
        first = sp.logdet(B, KEY, probes=4, method="stochastic")
        e = sp.logdet(B, KEY, probes=4, atol=float(first.standard_error) / 8, method="stochastic")
        assert e.status == EstimateStatus.ROUNDING
        assert "rounding" in e.message
        assert abs(float(e.value) - 200 * np.log(3.0)) < 5 * float(e.standard_error)


@pytest.mark.parametrize("method", ["exact", "stochastic"])
def test_a_tolerance_below_rounding_is_reported_at_once(method):
    B = with_spectrum(np.linspace(1.0, 3.0, 30))
    e = sp.logdet(B, KEY, probes=4, rtol=1e-30, method=method)
    assert e.status == EstimateStatus.ROUNDING
    assert "rtol" in e.message
    assert e.products < 200
    assert abs(float(e.value) - exact(np.log, B)) < 5 * float(e.standard_error)
    if method == "stochastic":
        assert sp.logdet(B, KEY, probes=4, rtol=1e-30, budget=600, method=method).products > 300


def test_a_tolerance_that_takes_too_many_estimates_is_reported_after_the_first():
    for B in (with_spectrum([0.5, 2.0] * 15), with_spectrum(np.linspace(1.0, 3.0, 30))):
        e = sp.logdet(B, KEY, probes=4, rtol=1e-7, method="stochastic")
        assert e.status == EstimateStatus.BUDGET
        assert e.products < 200
        low, high = e.interval(0.999)
        assert float(low) <= exact(np.log, B) <= float(high)
        assert re.search(r"would take about [\d.e+]+ estimates like this one, of \d+ products each", e.message)
        assert sp.logdet(B, KEY, probes=4, rtol=1e-7, budget=600, method="stochastic").products > 300


def test_auto_factorises_where_a_tolerance_takes_too_many_estimates():
    """The operator is known by products alone, and has too many rows to be factorised at once."""
    diagonal = np.linspace(1.0, 5.0, 1001)[:, None]
    product = lambda v: diagonal * v + 0.8 * v[::-1]
    e = sp.logdet(product, KEY, dimension=1001, rtol=1e-6, probes=4)
    assert e.status == EstimateStatus.OK
    assert "factorisation" in e.message


FEW_PROBES = {"probes": 8, "method": "stochastic"}


@pytest.mark.parametrize("p", [pytest.param(0.5, marks=pytest.mark.slow), 3.0])
def test_tolerances_of_a_schatten_norm_are_those_of_the_norm(p):
    X = np.random.default_rng(0).standard_normal((30, 60))
    norm = np.sum(np.linalg.svd(X, compute_uv=False) ** p) ** (1 / p)
    for tolerance in ({"rtol": 0.02}, {"atol": 0.02 * norm}):
        low, high = sp.schatten_norm(X, KEY, p=p, **tolerance, **FEW_PROBES).interval(0.95)
        assert float(high - low) / 2 <= 0.021 * norm
        assert abs(0.5 * float(low + high) - norm) <= 0.05 * norm


@pytest.mark.slow
def test_auto_counts_what_a_tolerance_takes():
    B = wishart(250)
    assert sp.logdet(B, KEY, method="auto", probes=4, rtol=1e-5).standard_error < 1e-9
    assert "cheaper" in sp.logdet(B, KEY, probes=4, rtol=1e-5, budget=2000, method="stochastic").message


def test_half_precision_is_computed_in_single():
    B = np.diag(np.arange(2.0, 32.0)) + 0.5 * (np.eye(30, k=1) + np.eye(30, k=-1))
    e = sp.logdet(jnp.asarray(B, jnp.bfloat16), KEY, probes=4, method="stochastic")
    assert e.value.dtype == jnp.float32
    low, high = e.interval(0.999)
    assert float(low) <= np.linalg.slogdet(B)[1] <= float(high)


@pytest.mark.slow
def test_nuclear_norm_of_a_sparse_matrix_of_jax():
    X = np.random.default_rng(0).standard_normal((9, 6)) * (np.random.default_rng(1).random((9, 6)) < 0.5)
    X = X + np.eye(9, 6)
    # Wide, and with room for more entries than there are.
    low, high = sp.nuclear_norm(BCOO.fromdense(jnp.asarray(X.T), nse=40), KEY, probes=4, method="stochastic").interval(
        0.999
    )
    assert low <= np.sum(np.linalg.svd(X, compute_uv=False)) <= high


@pytest.mark.parametrize("dimension", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_orthogonal_probes_in_few_dimensions(dimension):
    B = np.diag(np.arange(1.0, dimension + 1))
    e = sp.logdet(B, KEY, probe="orthogonal", probes=6, method="stochastic")
    assert float(e.value) == pytest.approx(np.sum(np.log(np.arange(1.0, dimension + 1))), abs=0.5)


@pytest.mark.slow
def test_steins_rule_covers_where_naive_stopping_does_not():
    """On normal batches: the rule in `refine` has its nominal coverage at any tolerance."""
    rng = np.random.default_rng(0)
    units, tolerance = 4, 0.35
    zero, ok = jnp.zeros(()), jnp.asarray(0)
    quantiles = [quantile(0.95, count * units / 2) for count in range(1, 1000)]

    def draw():
        x = rng.standard_normal((units // 2, 2))
        return x.mean(), np.sum((x[:, 0] - x[:, 1]) ** 2) / units**2

    def batch():
        mean, variance = draw()
        return Estimate(
            value=np.float64(mean),
            standard_error=np.sqrt(variance),
            products=np.float64(1.0),
            lower=zero,
            upper=zero,
            status=ok,
            degrees_of_freedom=units / 2,
        )

    def stein():
        e = refine(lambda index: batch(), batch(), lambda value: tolerance, None)
        low, high = e.interval(0.95)
        assert high - low <= 2 * tolerance * (1 + 1e-12)
        return low <= 0.0 <= high

    def naive():
        """Stop as soon as the running error bar is small enough."""
        half, drawn = np.inf, []
        while half > tolerance:
            drawn.append(draw())
            mean, variance = np.mean(drawn, axis=0)
            half = quantiles[len(drawn) - 1] * np.sqrt(variance / len(drawn))
        return abs(mean) <= half

    assert 0.92 <= np.mean([stein() for _ in range(400)]) <= 0.985
    many = 2000
    assert np.mean([naive() for _ in range(many)]) < 0.95 - 5 * np.sqrt(0.95 * 0.05 / many)


@pytest.mark.slow
@pytest.mark.parametrize("name", families())
def test_intervals_cover_in_rtol_mode(name):
    B = families()[name]
    B = jnp.asarray(B.toarray() if hasattr(B, "toarray") else B)
    truth = exact(np.log, B)
    p = sp.plan("log", B, KEY)
    rtol = float(1.0 * sp.logdet(B, KEY, plan=p).standard_error) / abs(truth)
    hits = 0
    for key in jax.random.split(jax.random.key(11), 500):
        low, high = sp.logdet(B, key, plan=p, rtol=rtol).interval(0.95)
        hits += bool(low <= truth <= high)
    # 500 runs have a standard error of one per cent.
    assert 0.92 <= hits / 500 <= 0.985


def test_rtol_and_budget():
    tight = sp.logdet(A, KEY, rtol=0.1, probes=12, method="stochastic")
    low, high = tight.interval(0.95)
    assert int(tight.status) == 0
    # The tolerance is relative to the value of the first batch.
    assert float(high - low) <= 2 * 0.125 * abs(float(tight.value))
    short = sp.logdet(A, KEY, probes=4, rtol=1e-4, budget=200, method="stochastic")
    assert int(short.status) == EstimateStatus.BUDGET
    assert "budget" in short.message


def test_named_sums():
    X = np.random.default_rng(3).standard_normal((30, 60))
    singular = np.linalg.svd(X, compute_uv=False)
    # A positive matrix whose sums share the programs of the norms.
    W, wishart_matrix = sp.gram_operator(X / 60**0.5), wishart(30)
    cases = {
        "trace_inverse": (sp.trace_inverse(W, KEY, **FEW_PROBES), exact(np.reciprocal, wishart_matrix)),
        "entropy": (sp.entropy(W, KEY, **FEW_PROBES), -exact(lambda x: x * np.log(x), wishart_matrix)),
        "trace_exp": (
            sp.trace_exp(W, KEY, time=-2.0, **FEW_PROBES),
            exact(lambda x: np.exp(-2.0 * x), wishart_matrix),
        ),
        "estrada": (sp.estrada(W, KEY, **FEW_PROBES), exact(np.exp, wishart_matrix)),
        "nuclear": (sp.nuclear_norm(X, KEY, **FEW_PROBES), singular.sum()),
        "smoothed": (sp.nuclear_norm(X.T, KEY, smoothing=2.0, **FEW_PROBES), np.sqrt(singular**2 + 2.0).sum()),
        "schatten": (sp.schatten_norm(X, KEY, p=3.0, **FEW_PROBES), np.sum(singular**3) ** (1 / 3)),
    }
    for name, (found, truth) in cases.items():
        assert abs(float(found.value) - truth) < 5 * float(found.standard_error), name
        assert float(found.standard_error) < 0.2 * abs(truth), name


def test_exact_and_auto():
    for f, by_numpy in (("log", np.log), ("inverse", np.reciprocal), (jnp.sqrt, np.sqrt)):
        truth = exact(by_numpy, A)
        for method in ("exact", "auto"):
            e = sp.spectral_sum(f, A, KEY, method=method)
            assert float(e.value) == pytest.approx(truth, rel=1e-9)
            assert float(e.standard_error) < 1e-12 * max(1.0, abs(truth))
    assert "method='auto'" in sp.logdet(A, KEY, probes=4, method="stochastic").advice
    gradient = jax.grad(lambda a: sp.logdet(a, KEY, method="exact").value)(jnp.asarray(A))
    assert np.asarray(gradient) == pytest.approx(np.linalg.inv(A), rel=1e-6)


@pytest.mark.parametrize(
    ("preconditioner", "rel"), [(None, 0.2), (sp.PivotedCholesky(rank=20, noise=0.29), 0.05)], ids=["none", "pivoted"]
)
def test_a_gradient_needs_no_plan_and_goes_through_a_preconditioner(preconditioner, rel):
    options = {"probes": 4, "preconditioner": preconditioner, "method": "stochastic"}
    value = lambda s: sp.logdet(s * A, KEY, **options).value
    assert float(jax.grad(value)(1.0)) == pytest.approx(30.0, rel=rel)


def test_float32_says_what_rounding_costs():
    B = with_spectrum(np.geomspace(1e-4, 10.0, 30), 3)
    key, options = jax.random.key(1), {"interval": (5e-5, 10.5), "probes": 4, "degree": 100}
    assert float(sp.plan("log", jnp.asarray(B, jnp.float32), key, **options).rounding) > 1e-3
    assert float(sp.plan("log", B, key, **options).rounding) < 1e-6


def test_lanczos_intervals_hold():
    for name, B in families().items():
        values = np.linalg.eigvalsh(B.toarray() if hasattr(B, "toarray") else B)
        for positive in (True, False):
            found = find_spectrum(as_operator(B), None, KEY, positive=positive)
            assert found.lower <= values[0], name
            assert found.upper >= values[-1], name
            assert found.upper - found.lower < 1.6 * (values[-1] - values[0]) + 0.1 * values[-1], name
            assert np.sum(found.weights) == pytest.approx(1.0)
    assert margin(10**6, 60) < 0.02


def test_degrees_are_stratified_in_pairs_with_all_their_bits():
    draw = jax.vmap(lambda key: draw_log_uniforms(key, 8, jnp.float32))
    logs = np.asarray(jax.jit(lambda key: draw(jax.random.split(key, 20000)))(KEY))
    u = np.exp(logs.astype(np.float64))
    stratum = np.floor(u * 4 * (1 - 1e-6))
    assert np.all(stratum == np.arange(8) // 2)
    assert scipy.stats.kstest(u[:, 0] * 4, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(u[:, 7] * 4 - 3, "uniform").pvalue > 1e-3
    assert len(np.unique(logs[:, 0])) > 19000


def test_block_widths():
    assert block_widths(32, 1) == (32, 16, 8)
    assert block_widths(2, 3) == (6,)
    assert block_widths(4, 1) == (4,)


def test_the_oracle_obeys_its_law_and_is_exact_where_asked():
    B = jnp.asarray(low_rank(12, rank=3))
    operator = lambda t: sp.FunctionOperator(_scaled, t, B, dimension=12)
    theta = np.array([0.5, 1.0])
    oracle = sp.SpectralOracle("log", operator, theta, KEY, probes=4, g=lambda t: jnp.sum(t**2))
    full = jax.jit(sp.SpectralOracle.full)(oracle, theta)
    assert float(full.value) == pytest.approx(float(oracle.value(theta)))
    compiled = jax.jit(jax.vmap(lambda o, t, key: o.estimate(t, (), key)[0], (None, None, 0)))
    keys = random_keys(500)
    run = lambda o, t: jax.tree.map(np.asarray, compiled(o, jnp.asarray(t), keys))
    outs = run(oracle, theta)
    error = outs.gradient.std(0) / np.sqrt(500)
    assert np.all(np.abs(outs.gradient.mean(0) - full.gradient) < 5 * error)
    assert np.all(outs.work > 0)
    # The same key, another θ: the same noise, so the difference is far less noisy than either.
    near = run(oracle, theta * 1.01).gradient
    assert np.all((near - outs.gradient).std(0) < 0.1 * near.std(0))
    assert np.all(np.isnan(run(oracle, theta * 30.0).gradient))
    moved = oracle.replanned(theta * 30.0, KEY)
    assert moved.plan.probes == 4
    assert oracle.replanned(theta, KEY, probes=8).plan.probes == 8
    assert np.all(np.isfinite(run(moved, theta * 30.0).gradient))


def _scaled(theta, matrix, block):
    return theta[0] * (matrix @ block) + theta[1] * block


class AllColumnsAtOnce(SparseOperator):
    column_group: ClassVar[None] = None


@pytest.mark.slow
@pytest.mark.parametrize("side", [9, 260])
def test_columns_in_groups_make_the_estimate_of_the_whole_block(side):
    """A sparse matrix takes its columns eight at a time: fewer loops to compile, the same sums."""
    A = sp.as_operator(laplacian(side, 0.5))
    p = sp.plan("log", A, KEY, probes=16)
    grouped = p.estimate(A, KEY)
    whole = p.estimate(AllColumnsAtOnce(laplacian(side, 0.5)), KEY)
    assert float(grouped.value) == pytest.approx(float(whole.value), rel=1e-12)
    assert float(grouped.standard_error) == pytest.approx(float(whole.standard_error), rel=1e-9)
    narrow = eqx.tree_at(lambda p: p.tables.scale, p, 1.2 * p.tables.scale)
    assert narrow.estimate(A, KEY).outcome in (sp.EstimateStatus.ABOVE, sp.EstimateStatus.BELOW)
