"""GP regression against dense linear algebra, automatic derivatives, scikit-learn, and itself by another way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from thalweg.kernels import Bias, Gaussian, Linear, Matern32, Periodic, Sum, White
from thalweg.processes import RegressorSettings, choosing, exact, fit_regressor, host, iterative, solves
from thalweg.processes.exact import Observations, Parameters
from thalweg.processes.given import Given
from thalweg.processes.means import Mean

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(40, 2))
TARGETS = np.stack([np.sin(2 * ROWS[:, 0]), ROWS[:, 1]], axis=1) + 0.1 * RNG.normal(size=(40, 2))
NEW = RNG.normal(size=(7, 2))
FIXED = RegressorSettings(learn=False, mean="zero")
KERNELS = {
    "ARD": Matern32([1.0, 2.0], 1.5),
    "sum": Gaussian(1.0) + White(0.3) + Linear(0.5),
    "product": Periodic(2.0) * Gaussian(3.0) + Bias(2.0),
}


def observations(mean="constant", weights=None):
    basis = Mean.of(mean, ROWS).basis(ROWS)
    counted = np.ones(40) if weights is None else weights
    scatter = np.where(counted > 1, np.arange(40) / 40, 0.0)
    known = np.linspace(0, 0.1, 40)
    return Observations.padded(ROWS, TARGETS, basis, known, counted, scatter, counted, np.log(counted))


def dense(parameters, rows):
    """−log p(y) with the coefficients of the mean at their best: rows repeated, no padding, its definition."""
    counts = np.asarray(rows.weights[:40]).astype(int)
    again, ends = np.repeat(np.arange(40), counts), np.cumsum(counts)
    # Two of the values at a place with scatter lie beside their mean.
    several, beside = counts > 1, np.zeros((len(again), 2))
    lengths = np.sqrt(np.asarray(rows.scatter[:40]) / 2)[several]
    beside[ends[several] - 1, 0], beside[ends[several] - 2, 0] = lengths, -lengths
    # A row meets its own repetitions in white noise too: the repetitions are observations of one value.
    A = parameters.kernel(ROWS)[again][:, again] + jnp.diag(parameters.noise + rows.known[again])
    H, y = rows.basis[again], rows.targets[again] + beside
    inverse = jnp.linalg.inv(A)
    left = y - (H @ jnp.linalg.solve(H.T @ inverse @ H, H.T @ inverse @ y) if H.shape[1] else 0)
    return jnp.trace(left.T @ inverse @ left) / 2 + jnp.linalg.slogdet(A)[1] + len(again) * jnp.log(2 * jnp.pi)


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("name", KERNELS)
def test_loss_and_slope_are_those_of_the_definition(name, mean):
    rows = observations(mean, weights=1.0 + np.arange(40) % 3)
    parameters = Parameters(KERNELS[name], jnp.asarray(0.2))
    loss, slope = exact.loss_and_slope(parameters, rows)
    expected, derivative = jax.value_and_grad(dense)(parameters, rows)
    assert loss == pytest.approx(float(expected), rel=1e-10)
    for mine, theirs, value in zip(*map(jax.tree.leaves, (slope, derivative, parameters)), strict=True):
        np.testing.assert_allclose(mine, theirs * value, rtol=1e-7, atol=1e-9)


def test_strips_of_the_covariance_and_of_its_derivative_are_the_whole(monkeypatch):
    rows = observations()._replace(
        real=jnp.ones(64), weights=jnp.ones(64), copies=jnp.ones(64)
    )  # many rows are not padded
    matrix = jnp.asarray(RNG.normal(size=(64, 64)))
    matrix = matrix + matrix.T
    pull, diagonal = (lambda part: part(matrix)), jnp.diag(matrix)
    parameters = Parameters(KERNELS["sum"], jnp.asarray(0.2))
    made = lambda: (
        exact.kernel_slope(KERNELS["sum"], rows.inputs, pull, diagonal),
        exact.covariance(parameters, rows),
    )
    whole = made()
    monkeypatch.setattr(exact, "_STRIP", 24)  # does not divide 64
    for mine, theirs in zip(*map(jax.tree.leaves, (made(), whole)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_slopes_from_draws_are_unbiased_and_their_variance_is_the_information_over_their_number(name, monkeypatch):
    rows, parameters = observations(weights=1.0 + np.arange(40) % 3), Parameters(KERNELS[name], jnp.asarray(0.2))
    whole, slope = exact.loss_and_slope(parameters, rows)
    monkeypatch.setattr(exact, "INVERTED", 0)
    drawn = jax.jit(jax.vmap(exact.loss_and_slope.__wrapped__, in_axes=(None, None, 0)))
    losses, found = drawn(parameters, rows, jnp.arange(400))
    np.testing.assert_allclose(losses, whole, rtol=1e-12)
    covariance = lambda logs: exact.covariance(jax.tree.map(lambda a, b: a * jnp.exp(b), parameters, logs), rows)
    inverse = jnp.linalg.inv(covariance(jax.tree.map(jnp.zeros_like, parameters)))
    turned = jax.tree.leaves(jax.jacfwd(covariance)(jax.tree.map(jnp.zeros_like, parameters)))
    for mine, theirs, change in zip(*map(jax.tree.leaves, (found, slope)), turned, strict=True):
        mine, change = mine.reshape(400, -1), change.reshape(64, 64, -1)
        error = np.std(mine, axis=0) / 20
        assert np.all(np.abs(np.mean(mine, axis=0) - np.ravel(theirs)) < 5 * error)
        # Two targets: twice the trace, four times the variance.
        information = 4 * jnp.einsum("ijp,jk,klp,li->p", change, inverse, change, inverse) / 2
        np.testing.assert_allclose(np.var(mine, axis=0), information / exact.DRAWN, rtol=0.4)


def test_scikit_learn_says_the_same_of_a_kernel_that_is_given():
    theirs = GaussianProcessRegressor(
        kernels.ConstantKernel(1.5) * kernels.Matern([1.0, 2.0], nu=1.5), alpha=0.2, optimizer=None
    ).fit(ROWS, TARGETS[:, 0])
    ours = fit_regressor(ROWS, TARGETS[:, :1], FIXED, KERNELS["ARD"], noise=0.2)
    assert ours.log_marginal_likelihood == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-9)
    mean, covariance = theirs.predict(NEW, return_cov=True)
    found, spread = ours.posterior.predict(NEW, full=True)
    np.testing.assert_allclose(found[:, 0], mean, atol=1e-9)
    np.testing.assert_allclose(spread, covariance, atol=1e-9)
    np.testing.assert_allclose(ours.posterior.predict(NEW)[1], np.diag(covariance), atol=1e-9)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_a_mean_of_flat_prior_is_the_limit_of_a_wide_one(mean):
    wide = Bias(1e5) if mean == "constant" else Bias(1e5) + Linear(1e5)
    limit = fit_regressor(ROWS, TARGETS, FIXED, KERNELS["ARD"] + wide, noise=0.2)
    found = fit_regressor(ROWS, TARGETS, RegressorSettings(learn=False, mean=mean), KERNELS["ARD"], noise=0.2)
    for mine, theirs in zip(found.posterior.predict(5 * NEW), limit.posterior.predict(5 * NEW), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)


def test_a_weight_of_two_is_the_row_twice_and_a_weight_of_zero_no_row():
    weights = np.array([2.0, 0.0] + [1.0] * 38)
    again = np.r_[0, 0, 2:40]
    weighted = fit_regressor(ROWS, TARGETS, FIXED, KERNELS["ARD"], noise=0.2, weights=weights).posterior.predict(NEW)
    repeated = fit_regressor(ROWS[again], TARGETS[again], FIXED, KERNELS["ARD"], noise=0.2).posterior.predict(NEW)
    for mine, theirs in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("rank", [1, 20])
def test_solves_are_solutions(rank):
    noise = jnp.linspace(0.05, 0.2, 40)
    right = jnp.asarray(np.concatenate([TARGETS, np.zeros((40, 1))], axis=1))
    preconditioner = solves.nystrom(KERNELS["ARD"], jnp.asarray(ROWS), noise, jax.random.key(0), rank)
    found = solves.solve(KERNELS["ARD"], jnp.asarray(ROWS), preconditioner, right, 1e-5, 200)
    expected = np.linalg.solve(np.asarray(KERNELS["ARD"](ROWS)) + np.diag(noise), right)
    assert found.residual <= 1e-5
    np.testing.assert_allclose(found.x, expected, atol=1e-4 * np.abs(expected).max())


def test_a_preconditioner_inverts_what_it_says_and_stores_no_row_for_each_pivot():
    kernel, noise, rank = KERNELS["ARD"], jnp.linspace(0.05, 0.2, 40), 20
    found = solves.nystrom(kernel, jnp.asarray(ROWS), noise, jax.random.key(0), rank)
    among = kernel(found.pivots) + 1.5e-6 * jnp.eye(rank)
    P = kernel(ROWS, found.pivots) @ jnp.linalg.solve(among, kernel(found.pivots, ROWS)) + jnp.diag(noise)
    np.testing.assert_allclose(found(P), np.eye(40), atol=1e-8)
    assert float(found.log_determinant()) == pytest.approx(float(jnp.linalg.slogdet(P)[1]), rel=1e-10)
    assert max(np.size(leaf) for leaf in jax.tree.leaves(found)) < 40 * rank


@pytest.mark.parametrize(("count", "here"), [(700, [True, False, False]), (5_000, [True, True, False, False])])
def test_an_accelerator_has_a_program_less_to_make_where_rows_are_many(monkeypatch, count, here):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for part, name in ((Observations, "prepare"), (choosing, "prepare_predictions")):
        monkeypatch.setattr(part, name, lambda *_: None)
    inputs = np.random.default_rng(0).normal(size=(count, 1))
    mean, ones = Mean.of("constant", inputs), np.ones(count)
    given = Given.of(inputs, inputs, 0 * ones, ones)
    levels = choosing.Levels(given, mean, False, given.merged(mean, False), True, 0)
    parts = levels.prepared(Parameters(KERNELS["ARD"], jnp.asarray(0.2)))
    assert [isinstance(part, host.HostRows) for part, _ in parts] == here


def test_a_solve_that_is_cut_short_says_so():
    right = jnp.asarray(TARGETS)
    preconditioner = solves.nystrom(Gaussian(3.0), jnp.asarray(ROWS), jnp.full(40, 1e-4), jax.random.key(0), 1)
    found = solves.solve(Gaussian(3.0), jnp.asarray(ROWS), preconditioner, right, 1e-6, 3)
    assert found.products == 3
    assert found.residual > 1e-6


@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_paths_have_the_mean_and_the_variances_of_the_exact_posterior(mean):
    settings = {way: RegressorSettings(way, learn=False, mean=mean) for way in ("exact", "iterative")}
    mine, theirs = (
        fit_regressor(ROWS, TARGETS, settings[way], KERNELS["ARD"], noise=0.2).posterior.predict(NEW)
        for way in ("iterative", "exact")
    )
    np.testing.assert_allclose(mine[0], theirs[0], atol=2e-3)
    # 64 samples: the standard error of a variance is √(2/64) of it, and random features add a few per cent.
    np.testing.assert_allclose(mine[1], theirs[1], rtol=5 * np.sqrt(2 / 64))


def test_samples_have_the_covariance_of_the_posterior():
    posterior = fit_regressor(ROWS, TARGETS, FIXED, KERNELS["ARD"], noise=0.2).posterior
    mean, covariance = posterior.predict(NEW, full=True)
    drawn = posterior.sample(NEW, 4000, np.random.default_rng(0))
    assert drawn.shape == (7, 2, 4000)
    deviations = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(drawn.mean(axis=2) - mean) < 5 * deviations[:, None] / np.sqrt(4000))
    found = np.cov(drawn[:, 0])
    errors = np.sqrt((covariance**2 + np.outer(deviations, deviations) ** 2) / 4000)
    assert np.all(np.abs(found - covariance) < 5 * errors)


def test_learning_finds_what_the_data_were_drawn_from():
    rows = RNG.uniform(-3, 3, size=(200, 2))
    truth = Gaussian([1.0, 30.0], 4.0)
    drawn = np.linalg.cholesky(np.asarray(truth(rows)) + 1e-8 * np.eye(200)) @ RNG.normal(size=200)
    found = fit_regressor(rows, (drawn + 0.3 * RNG.normal(size=200))[:, None], RegressorSettings(), Gaussian)
    kernel = found.posterior.kernel
    assert found.posterior.noise == pytest.approx(0.09, rel=0.35)
    assert kernel.lengthscale[0] == pytest.approx(1.0, rel=0.5)
    assert kernel.lengthscale[1] > 5


def test_sums_may_leave_every_single_term_behind(monkeypatch):
    """3,000 rows of protein: no term alone went on with 1,200 of them, and the search ended in a traceback."""
    for name, value in {"_LEVELS": (40, 60, 90), "_TELLING": 50, "_DOUBLED": 50}.items():
        monkeypatch.setattr(choosing, name, value)
    ahead = lambda self, parameters, rows: -1e6 if isinstance(parameters.kernel, Sum) else 0.0
    monkeypatch.setattr(choosing.Choice, "_handicap", ahead)
    rows = np.linspace(0, 6, 120)[:, None]
    found = fit_regressor(rows, np.sin(rows), RegressorSettings(restarts=0))
    assert isinstance(found.posterior.kernel, Sum)


@pytest.mark.parametrize("doubled", [False, True])
def test_where_one_family_is_fitted_more_rows_say_which(doubled, monkeypatch):
    monkeypatch.setattr(choosing, "_DEAR", 30)
    made = lambda kernel: (None, Parameters(kernel, np.asarray(0.1)))
    begun = [made(Gaussian()), made(Matern32())]
    begun = [made(Gaussian() + Gaussian()), *begun] if doubled else begun

    class Part:
        inputs = ROWS

        def loss(self, parameters):  # one of few rows says little of a sum before it is fitted to more
            return {Gaussian: 7.0, Matern32: 3.0, Sum: 100.0}[type(parameters.kernel)]

    choice = choosing.Choice([], True, 0, 1, True, np.ones(2, bool), 0, print)
    (kept,) = choice._close(begun, Part(), last=True)
    assert type(kept[1].kernel) is (Sum if doubled else Matern32)


def test_the_noise_beside_a_steep_plane_is_that_about_the_plane():
    steep = 1e6 * ROWS[:, :1] + np.random.default_rng(1).normal(size=(40, 1))
    found = fit_regressor(ROWS, steep, RegressorSettings(mean="linear", restarts=0), Gaussian).posterior
    assert 0.3 < float(found.kernel.variance + found.noise) < 3


def test_without_a_mean_the_kernel_accounts_for_the_level_of_the_targets():
    level = 1e3 + TARGETS[:, :1]
    settings = RegressorSettings(mean="zero", restarts=0)
    found = fit_regressor(ROWS, level, settings, Gaussian)
    assert found.posterior.kernel.variance > 2e5  # a prior about the variance of the targets has it at 5e4


@pytest.mark.filterwarnings("ignore:The optimal value found")
@pytest.mark.parametrize("scatter", [0.1, 1.5])
def test_rows_are_as_probable_as_scikit_learn_makes_them_with_the_same_kernel(scatter):
    """Features that say nothing, whose lengthscales have no end; and more noise than searches start with."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(40, 5))
    targets = np.sin(inputs[:, 0]) + inputs[:, 4] ** 2 / 2 + scatter * rng.normal(size=40)
    targets -= np.mean(targets)
    found = fit_regressor(inputs, targets[:, None], RegressorSettings(mean="zero"), Gaussian)
    theirs = kernels.ConstantKernel() * kernels.RBF(np.ones(5)) + kernels.WhiteKernel(0.1)
    best = GaussianProcessRegressor(theirs, n_restarts_optimizer=3, random_state=0).fit(inputs, targets)
    assert found.log_marginal_likelihood > best.log_marginal_likelihood_value_ - 0.1


def whole_rows(mean="constant"):
    """The rows of :func:`observations` for the iterative way."""
    padded = observations(mean, weights=1.0 + np.arange(40) % 3)
    return host.HostRows(*(np.asarray(part)[:40] for part in padded[:-1])), padded


@pytest.mark.parametrize("name", ["ARD", "product"])
def test_slopes_by_solves_are_unbiased(name, monkeypatch):
    monkeypatch.setattr(iterative, "_LOOSE", 1e-5)
    (rows, padded), mean = whole_rows(), Mean.of("constant", ROWS)
    with jax.enable_x64(True):
        parameters = Parameters(KERNELS[name], jnp.asarray(0.2))
        _, expected = exact.loss_and_slope(parameters, padded)
        found = [iterative.Climb(rows, mean, seed).slope(parameters) for seed in range(150)]
    for theirs, *mine in zip(*map(jax.tree.leaves, (expected, *found)), strict=True):
        mine = np.stack(mine).reshape(150, -1)
        error = np.std(mine, axis=0) / np.sqrt(150)
        assert np.all(np.abs(np.mean(mine, axis=0) - np.ravel(theirs)) < 5 * error + 1e-3)


def test_values_on_the_way_are_what_slopes_add_up_to(monkeypatch):
    rows, padded = whole_rows()
    monkeypatch.setattr(iterative.Climb, "slope", lambda self, parameters: exact.loss_and_slope(parameters, padded)[1])
    climb = iterative.Climb(rows, Mean.of("constant", ROWS), seed=0)
    way = [Parameters(Matern32([1.0, 2.0], 1.5 * np.exp(0.1 * k)), jnp.asarray(0.2)) for k in (0, 1, 2, 4, 3)]
    values = np.array([climb.loss_and_slope(one)[0] for one in way])
    expected = np.array([float(exact.loss_and_slope(one, padded)[0]) for one in way])
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(values, expected - expected[0], atol=0.02 * np.ptp(expected))


@pytest.mark.slow
@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_the_likelihood_of_the_iterative_way_is_the_exact_one_within_its_error(mean, monkeypatch):
    monkeypatch.setattr(iterative, "_rank", lambda: 4)
    rows, padded = whole_rows(mean)
    with jax.enable_x64(True):
        parameters = Parameters(KERNELS["ARD"], jnp.asarray(0.2))
        expected = float(exact.loss_and_slope(parameters, padded)[0])
        found = [iterative.posterior(parameters, Mean.of(mean, ROWS), rows, seed) for seed in range(12)]
    errors = np.array([one.loss - expected for one in found])
    reported = np.array([one.loss_error for one in found])
    assert np.all(reported > 0)
    assert abs(np.mean(errors)) < 5 * np.sqrt(np.mean(reported**2) / 12)
    assert 0.5 < np.std(errors) / np.sqrt(np.mean(reported**2)) < 2
