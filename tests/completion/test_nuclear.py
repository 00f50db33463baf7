"""The smoothed nuclear norm: unbiased gradients, the optimum as smoothing vanishes, the box, and bounds that hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.completion import Ratings, Relaxation, Relaxed, Way, descend, relax
from thalweg.completion.nuclear import bound, exact_gradient, second
from thalweg.descent import Status
from thalweg.linalg.operators.matrices import GramOperator
from thalweg.spectral import ShiftedOperator, SpectralOracle

SHAPE = (6, 9)


def some_ratings(seed=0, count=30):
    rng = np.random.default_rng(seed)
    rows, columns = np.divmod(rng.permutation(SHAPE[0] * SHAPE[1])[:count], SHAPE[1])
    level = 3 + rng.normal(size=SHAPE[0])[rows] * rng.normal(size=SHAPE[1])[columns]
    return Ratings(rows, columns, np.clip(level, 0.5, 5.0), None, SHAPE)


@pytest.fixture(scope="module")
def problem():
    return Relaxed.of(some_ratings(), low=0.0, high=5.0, threshold=0.2, smoothing=0.6, dtype=np.float64)


@pytest.fixture(scope="module")
def least(problem):
    """The minimiser, by exact gradients."""
    way = Way("gd", 1.0, round=200, accelerated=True)
    return descend(problem, problem.known(), way, jax.random.key(0), rounds=1).theta


@pytest.fixture(scope="module")
def theta():
    return jnp.asarray(np.random.default_rng(1).uniform(0, 5, SHAPE))


def objective(theta, problem):
    squares = jnp.linalg.svd(theta, compute_uv=False) ** 2
    return jnp.sum(jnp.sqrt(squares + problem.gram.smoothing)) + problem.misfit(theta)


def test_the_exact_gradient_is_that_of_the_objective(problem, theta):
    out = exact_gradient(problem.gram, problem.misfit, theta)
    value, gradient = jax.jit(jax.value_and_grad(objective))(theta, problem)
    np.testing.assert_allclose(out.gradient, gradient, rtol=1e-9)
    np.testing.assert_allclose(out.value, value, rtol=1e-12)
    assert problem.value(theta) == pytest.approx(float(value), rel=1e-12)


@jax.jit
def estimates(oracle, theta, keys):
    return jax.vmap(lambda key: oracle.estimate(theta, (), key)[0].gradient)(keys)


def deviations(problem, theta, law, deflated=False):
    """By how many standard errors the mean of many estimates is off, cell by cell."""
    interval = problem.interval(theta, deflated)
    oracle = problem.oracle(
        theta, jax.random.key(0), deflated, law=law, degree=8.0, probes=4, interval=interval, slack=1.0
    )
    gradients = np.asarray(estimates(oracle, theta, jax.random.split(jax.random.key(1), 2000)))
    mean = np.asarray(exact_gradient(problem.gram, problem.misfit, theta).gradient)
    return (gradients.mean(axis=0) - mean) / (gradients.std(axis=0) / np.sqrt(len(gradients)))


@pytest.mark.filterwarnings("ignore::thalweg.spectral.InfiniteVarianceWarning")
@pytest.mark.parametrize("law", ["theorem3", "poisson", "negative_binomial", "optimal"])
def test_gradients_are_unbiased_under_every_law(problem, theta, law):
    assert np.max(np.abs(deviations(problem, theta, law))) < 5


def test_gradients_with_the_leading_value_apart_are_unbiased_too(problem):
    ratings = jnp.asarray(np.asarray(problem.known()) + 1.0)  # one singular value is far above the others
    values = np.linalg.svd(np.asarray(ratings), compute_uv=False)
    assert problem.interval(ratings, True)[1] < 0.5 * problem.interval(ratings)[1]
    assert 0.9 * values[1] ** 2 < float(second(ratings)) <= 1.001 * values[1] ** 2
    assert np.max(np.abs(deviations(problem, ratings, "theorem3", deflated=True))) < 5


@pytest.mark.slow
def test_the_half_that_is_taken_has_less_noise_than_both(problem):
    """θ of one large singular value and small others: the noise of one half is of its size, of the other below 1."""
    theta = jnp.asarray(4.5 + 0.1 * np.random.default_rng(2).uniform(size=SHAPE))
    both = lambda x: ShiftedOperator(GramOperator(x), problem.gram.smoothing)
    options = {"degree": 30.0, "probes": 4, "interval": problem.interval(theta), "slack": 1.0}
    mean = np.asarray(exact_gradient(problem.gram, problem.misfit, theta).gradient)
    noise = []
    for operator in (problem.gram, both):
        oracle = SpectralOracle(jnp.sqrt, operator, theta, jax.random.key(0), g=problem.misfit, **options)
        gradients = np.asarray(estimates(oracle, theta, jax.random.split(jax.random.key(1), 400)))
        noise.append(np.sqrt(np.mean((gradients - mean) ** 2)))
    assert noise[0] < 0.5 * noise[1]


def test_gradients_of_a_fixed_degree_are_not(problem, theta):
    assert np.max(np.abs(deviations(problem, theta, "fixed"))) > 5


def test_the_optimum_is_that_of_proximal_gradient_as_smoothing_vanishes():
    ratings, threshold = some_ratings(2), 0.2
    plain = Relaxed.of(ratings, low=-50.0, high=50.0, threshold=threshold, dtype=np.float64)
    weights, cells = np.zeros(SHAPE), np.asarray(plain.known())
    weights[ratings.rows, ratings.columns] = np.asarray(plain.misfit.weights)[: len(ratings.values)]
    step, target, ahead, gaps = 1 / (2 * weights.max()), cells, cells, []
    for count in range(3000):  # FISTA
        left, values, right = np.linalg.svd(ahead - step * 2 * weights * (ahead - cells), full_matrices=False)
        before, target = target, left * np.maximum(values - step, 0) @ right
        ahead = target + count / (count + 3) * (target - before)
    for smoothing in (0.1, 0.01, 0.001):
        problem = Relaxed.of(ratings, low=-50.0, high=50.0, threshold=threshold, smoothing=smoothing, dtype=np.float64)
        way = Way("gd", 1.0, round=3000, accelerated=True)
        path = descend(problem, plain.known(), way, jax.random.key(0), rounds=1)
        gaps.append(np.max(np.abs(np.asarray(path.theta) - target)))
    assert gaps[0] > 4 * gaps[1] > 16 * gaps[2]
    assert gaps[2] < 0.01


@pytest.mark.parametrize("method", ["svrg", "sgd"])
def test_stochastic_ways_end_near_the_optimum_and_in_the_box(problem, least, method):
    start = problem.known()
    step, decay = (0.3, np.inf) if method == "svrg" else (0.1, 40.0)
    way = Way(method, step, probes=16, round=20, restart="last", decay=decay)
    path = descend(problem, start, way, jax.random.key(1), rounds=10, watch=lambda theta: np.asarray(theta).min())
    assert min(path.watched) >= 0
    assert np.max(np.asarray(path.theta)) <= 5
    gained = problem.value(start) - problem.value(least)
    assert problem.value(path.theta) - problem.value(least) < {"svrg": 0.01, "sgd": 0.1}[method] * gained
    assert len(path.seconds) == len(path.watched) == 11


@pytest.mark.slow
def test_the_mean_of_a_round_is_where_algorithm_2_goes_on(problem):
    paths = [
        descend(
            problem,
            problem.known(),
            Way("svrg", 0.3, probes=16, round=20, restart=restart),
            jax.random.key(1),
            rounds=1,
        )
        for restart in ("mean", "last")
    ]
    values = [problem.value(path.theta) for path in paths]
    assert values[1] < values[0] < problem.value(problem.known())


def test_bounds_hold_and_are_tight():
    rng = np.random.default_rng(3)
    for matrix in (rng.uniform(0, 5, SHAPE), rng.normal(size=SHAPE), np.eye(*SHAPE), np.zeros(SHAPE)):
        norm = np.linalg.norm(matrix, 2) ** 2
        assert float(bound(jnp.asarray(matrix))) >= norm * (1 - 1e-12)
        if np.all(matrix >= 0):
            assert float(bound(jnp.asarray(matrix))) <= norm * 1.001


def test_a_norm_that_outgrows_its_interval_repeats_the_round(problem):
    # From nothing at all the first interval holds next to nothing.
    nothing, most = jnp.asarray(np.zeros(SHAPE)), jnp.asarray(np.full(SHAPE, 5.0))
    assert problem.interval(nothing)[1] < 0.1 * problem.interval(most)[1]
    path = descend(problem, nothing, Way("sgd", 0.1, probes=16, round=20, decay=40.0), jax.random.key(1), rounds=3)
    assert path.status is Status.STEPS_SPENT
    assert np.all(np.isfinite(path.theta))
    assert problem.value(path.theta) < problem.value(nothing)


def test_a_matrix_higher_than_wide_is_transposed():
    ratings, options = some_ratings(4), Relaxation(low=0.5, high=5.0, rounds=3)
    wide, high = relax(ratings, options), relax(ratings.transposed, options)
    np.testing.assert_allclose(wide.model.values, high.model.values.T, atol=1e-4)
    with pytest.raises(ValueError, match="transpose them"):
        Relaxed.of(ratings.transposed)
    with pytest.raises(ValueError, match="GiB"):
        relax(ratings._replace(shape=(10**5, 10**6)), options)


def test_it_stops_by_the_error_of_a_validation_set(capsys):
    options = Relaxation(low=0.5, high=5.0, held_out=0.2, rounds=40)
    result = relax(some_ratings(5, 50), options, verbose=True)
    errors = result.history["held_out_rmse"]
    assert result.status is Status.CONVERGED
    assert len(errors) == len(result.history["objective"]) < 40
    assert f"round {len(errors)}: objective" in capsys.readouterr().out


@pytest.mark.slow
def test_a_fit_by_svrg_is_that_by_exact_gradients():
    ratings = some_ratings(6, 40)
    options = Relaxation(low=0.5, high=5.0, smoothing=0.5, rounds=40, tol=1e-7)
    direct = relax(ratings, options)
    sampled = relax(ratings, options, Way("svrg", 0.3, degree=None, probes=32, round=10, restart="last"))
    assert sampled.history["objective"][-1] == pytest.approx(direct.history["objective"][-1], rel=2e-3)
    assert np.max(np.abs(sampled.model.values - direct.model.values)) < 0.1
