"""Kernel regression: scikit-learn's kernel ridge where there is one block, quantiles, robustness, several targets."""

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge

from thalweg import KernelRegressor
from thalweg.kernels import Gaussian, Matern32
from thalweg.machines import DSG, Auto, HuberLoss, QuantileLoss

GAMMA = 1 / (2 * 0.7**2)


@pytest.fixture(scope="module")
def curve():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(60, 1))
    return X, 100 + 20 * np.sin(2 * X[:, 0]) + 3 * rng.normal(size=60)


def test_one_block_is_kernel_ridge_of_standardised_targets(curve):
    X, y = curve
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=len(y))
    for w in (None, weights):
        mean = np.average(y, weights=w)
        scale = np.sqrt(np.average((y - mean) ** 2, weights=w))
        ridge = KernelRidge(alpha=0.3, kernel="rbf", gamma=GAMMA).fit(X, (y - mean) / scale, sample_weight=w)
        model = KernelRegressor(Gaussian(0.7), alpha=0.3, method=Auto(tol=1e-10)).fit(X, y, sample_weight=w)
        new = np.linspace(-4, 4, 31)[:, None]
        np.testing.assert_allclose(model.predict(new), mean + scale * ridge.predict(new), rtol=1e-9)
        assert model.score(X, y) > 0.9


@pytest.mark.parametrize("method", ["auto", pytest.param("dsg", marks=pytest.mark.slow)])
def test_weights_and_alpha_can_be_scaled_together(curve, method):
    X, y = curve
    options = {"kernel": Gaussian(0.7), "method": method, "random_state": 0, "max_iter": 2}
    one = KernelRegressor(alpha=0.3, **options).fit(X, y, sample_weight=np.ones(60))
    small = KernelRegressor(alpha=0.3e-3, **options).fit(X, y, sample_weight=np.full(60, 1e-3))
    np.testing.assert_allclose(small.predict(X), one.predict(X), rtol=1e-3)


def test_one_block_of_other_kernels_is_kernel_ridge_too(curve):
    X, y = curve
    kernel = Matern32(0.7, 2.5)
    mean, scale = y.mean(), y.std()
    ridge = KernelRidge(alpha=0.3, kernel="precomputed").fit(np.asarray(kernel(X)), (y - mean) / scale)
    model = KernelRegressor(kernel, alpha=0.3, method=Auto(tol=1e-10)).fit(X, y)
    np.testing.assert_allclose(model.predict(X), mean + scale * ridge.predict(np.asarray(kernel(X))), rtol=1e-9)


@pytest.mark.slow
def test_blocks_converge_to_kernel_ridge(curve):
    """Passes over blocks in float32, to the digits that float32 has."""
    X, y = curve
    exact = KernelRegressor(Gaussian(0.7), alpha=0.3).fit(X, y).predict(X)
    every_row = Auto(block_size=16, early_stopping=False)
    model = KernelRegressor(Gaussian(0.7), alpha=0.3, method=every_row, max_iter=300, random_state=0).fit(X, y)
    assert model.n_features_used_ == 60
    np.testing.assert_allclose(model.predict(X), exact, atol=0.02)


@pytest.mark.slow
def test_a_block_filled_by_calls_is_one_block(curve):
    """The first call sets the scale of the targets; after that, calls that fill one block are one call."""
    X, y = curve
    options = {"kernel": Gaussian(0.7), "alpha": 0.3, "method": Auto(block_size=64, tol=1e-6)}
    calls = KernelRegressor(**options).partial_fit(X[:20], y[:20])
    calls.partial_fit(X[20:30], y[20:30]).partial_fit(X[30:], y[30:])
    scale, mean = y[:20].std(), y[:20].mean()
    ridge = KernelRidge(alpha=0.3, kernel="rbf", gamma=GAMMA).fit(X, (y - mean) / scale)
    np.testing.assert_allclose(calls.predict(X), mean + scale * ridge.predict(X), rtol=1e-4)
    assert (calls.n_features_used_, [line["features"] for line in calls.history_]) == (60, [20, 30, 60])


@pytest.mark.slow
def test_several_targets_are_each_its_own(curve):
    X, y = curve
    both = np.stack([y, -5 * y + X[:, 0]], axis=1)
    model = KernelRegressor(Gaussian(0.7), alpha=0.3, method=Auto(tol=1e-10)).fit(X, both)
    assert model.predict(X).shape == (60, 2)
    for column in range(2):
        alone = KernelRegressor(Gaussian(0.7), alpha=0.3, method=Auto(tol=1e-10)).fit(X, both[:, column])
        np.testing.assert_allclose(model.predict(X)[:, column], alone.predict(X), rtol=1e-9)
    # A matrix of one column stays a matrix.
    assert model.fit(X, both[:, :1]).predict(X).shape == (60, 1)


@pytest.mark.slow
def test_predictions_follow_the_units_of_the_targets(curve):
    X, y = curve
    for loss in ("squared", "huber", "quantile"):
        model = KernelRegressor(Gaussian(0.7), alpha=0.3, loss=loss, method=Auto(tol=1e-9))
        plain = model.fit(X, y).predict(X)
        np.testing.assert_allclose(model.fit(X, 1e-3 * y - 7).predict(X), 1e-3 * plain - 7, rtol=1e-7)


def test_constant_targets_are_predicted(curve):
    X, _ = curve
    np.testing.assert_allclose(KernelRegressor(Gaussian(0.7)).fit(X, np.full(60, 4.2)).predict(X), 4.2, rtol=1e-12)
    for count in (1, 2, 60):  # of 3, whose mean is exact: nothing is left to learn
        assert np.all(KernelRegressor().fit(X[:count], np.full(count, 3.0)).predict(X) == 3.0)


def quantile_by_its_dual(X, y, quantile, alpha):
    """min ½aᵀKa/α − ⟨y, a⟩ over the box (q − 1) ≤ a ≤ q, which the coefficients αW solve."""
    K = np.exp(-GAMMA * (X - X.T) ** 2)
    found = minimize(
        lambda a: (a @ K @ a / (2 * alpha) - a @ y, K @ a / alpha - y),
        np.zeros(len(y)),
        jac=True,
        bounds=[(quantile - 1, quantile)] * len(y),
        method="L-BFGS-B",
        options={"maxiter": 50_000, "maxfun": 100_000, "ftol": 1e-16, "gtol": 1e-11},
    )
    return K @ found.x / alpha


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.2, 0.5])
def test_one_block_of_quantile_losses_is_solved(curve, quantile):
    """Accelerated for ever, the rounds of a block would circle about the solution."""
    X, y = curve
    model = KernelRegressor(Gaussian(0.7), alpha=0.3, loss=QuantileLoss(quantile), method=Auto(tol=1e-8)).fit(X, y)
    exact = quantile_by_its_dual(X, (y - y.mean()) / y.std(), quantile, 0.3)
    np.testing.assert_allclose((model.predict(X) - y.mean()) / y.std(), exact, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantiles_cover_as_often_as_they_say(quantile):
    """Within three standard deviations of the coverage by a sample quantile of 500 rows."""
    rng = np.random.default_rng(0)

    def sample(rows):
        X = rng.uniform(-3, 3, size=(rows, 1))
        spread = 0.3 + 0.2 * np.abs(X[:, 0])
        return X, np.sin(X[:, 0]) + spread * rng.exponential(size=rows), np.sin(X[:, 0]) - spread * np.log(1 - quantile)

    X, y, _ = sample(500)
    model = KernelRegressor(Gaussian(1.5), loss=QuantileLoss(quantile), alpha=1.0, random_state=0).fit(X, y)
    new, targets, exact = sample(4000)
    assert abs(np.mean(targets <= model.predict(new)) - quantile) < 3 * np.sqrt(quantile * (1 - quantile) / 500)
    assert np.mean(np.abs(model.predict(new) - exact)) < {0.1: 0.06, 0.5: 0.12, 0.9: 0.3}[quantile]


@pytest.mark.parametrize("quantile", [pytest.param(0.1, marks=pytest.mark.slow), 0.9])
def test_quantiles_of_few_rows_cover_new_ones_as_often_as_they_say(quantile):
    """Where the ridge is chosen, within four standard errors of three fits."""
    covered = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(1100, 3))
        y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * np.exp(X[:, 0] / 2) * rng.normal(size=1100)
        model = KernelRegressor(Gaussian, loss=QuantileLoss(quantile), random_state=0).fit(X[:100], y[:100])
        covered.append(np.mean(y[100:] <= model.predict(X[100:])))
        low, high = model.predict_interval(X[100:], level=0.8)
        assert np.mean((low <= y[100:]) & (y[100:] <= high)) > 0.6
    assert abs(np.mean(covered) - quantile) < 4 * np.sqrt(quantile * (1 - quantile) / 100 / 3)


@pytest.mark.filterwarnings("ignore:the optimum was not reached")
def test_huber_losses_of_clean_targets_are_solved():
    """Nearly all residuals are beyond the width at first: a Newton step may be a thousand times too long."""
    rng = np.random.default_rng(24)
    X = rng.normal(size=(400, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    model = KernelRegressor(loss="huber", random_state=0).fit(X[:200], y[:200])
    assert model.score(X[200:], y[200:]) > 0.95


def test_huber_losses_shrug_at_outliers(curve):
    X, y = curve
    wild = y.copy()
    wild[::10] += 500
    new = np.linspace(-3, 3, 31)[:, None]
    truth = 100 + 20 * np.sin(2 * new[:, 0])
    error = lambda **options: np.median(
        np.abs(KernelRegressor(Gaussian(0.7), alpha=0.3, **options).fit(X, wild).predict(new) - truth)
    )
    assert error(loss=HuberLoss(0.05)) < 0.3 * error(loss="squared")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "features"), [(Auto, "landmarks"), (Auto, "quasi"), (DSG, "random")])
@pytest.mark.parametrize("loss", ["squared", "huber", "quantile"])
def test_every_loss_learns_by_every_kind_of_step(method, features, loss):
    X, y = make_friedman1(1500, noise=0.5, random_state=0)
    model = KernelRegressor(
        loss=loss, method=method(features=features, block_size=128), bandwidth=1.0, alpha=0.1, random_state=0
    )
    model.fit(X[:1000], y[:1000])
    assert model.score(X[1000:], y[1000:]) > 0.85


def test_a_median_is_not_moved_by_outliers():
    """Ridge and lengthscale are chosen without them."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(200, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=200)
    y[:4] += 1e4
    found = KernelRegressor(loss="quantile", random_state=0).fit(X, y).predict(X)
    assert np.median(np.abs(found - np.sin(2 * X[:, 0]))) < 0.3
    assert 0.4 < np.mean(y < found) < 0.6


def test_hubers_width_is_in_a_spread_that_outliers_leave_alone():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, size=(300, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=300)
    y[:15] += 1000 * rng.normal(size=15)
    Z = np.linspace(0.2, 5.8, 200)[:, None]
    model = KernelRegressor(loss="huber", random_state=0).fit(X, y)
    assert np.sqrt(np.mean((model.predict(Z) - np.sin(Z[:, 0])) ** 2)) < 0.3


@pytest.mark.slow
def test_copies_of_rows_are_not_taken_for_new_ones():
    """Validation sets hold no copies of rows learned from: intervals would be far too narrow."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1650, 6))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=1650)
    copied = rng.permutation(np.tile(np.arange(650), 2))
    model = KernelRegressor(random_state=0).fit(X[copied], y[copied])
    low, high = model.predict_interval(X[650:], level=0.9)
    assert np.mean((low < y[650:]) & (y[650:] < high)) > 0.8
    assert model.score(X[650:], y[650:]) > 0.95


@pytest.mark.parametrize(
    ("rows", "count", "size", "most"),
    [(300, 18, 30.0, 0.4), pytest.param(500, 1, 1e6, 0.25, marks=pytest.mark.slow)],
)
def test_outliers_do_not_choose_the_kernel_of_a_robust_loss(rows, count, size, most):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=1000)
    seen = y.copy()
    seen[rng.choice(rows, count, replace=False)] += size
    model = KernelRegressor(loss="huber", random_state=0).fit(X[:rows], seen[:rows])
    assert np.sqrt(np.mean((model.predict(X[500:]) - y[500:]) ** 2)) < most * y.std()


def test_rows_of_weight_0_have_no_say_in_the_scale_of_a_robust_loss():
    """A weight of 2 is the row twice, and one of 0 none."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(200, 3)), rng.integers(4, size=200)
    y = np.where(weights > 0, np.sin(X[:, 0]) + 0.1 * rng.normal(size=200), 1e3)
    options = {"loss": "huber", "kernel": Gaussian(1.0), "alpha": 0.1, "method": Auto(tol=1e-10), "random_state": 0}
    found = KernelRegressor(**options).fit(X, y, sample_weight=weights).predict(X)
    there, again = weights > 0, np.repeat(np.arange(200), weights)
    without = KernelRegressor(**options).fit(X[there], y[there], sample_weight=weights[there]).predict(X)
    np.testing.assert_allclose(found, without, atol=1e-9)
    np.testing.assert_allclose(found, KernelRegressor(**options).fit(X[again], y[again]).predict(X), atol=1e-6)


NOISELESS = {
    "a polynomial": (250, 1, lambda x: x[:, 0] ** 3 - 2 * x[:, 0]),
    "a sine": (500, 2, lambda x: np.sin(3 * x[:, 0])),
    "a sum of sines": (800, 3, lambda x: np.sin(2 * x[:, 0]) + np.sin(3 * x[:, 1]) + 0.5 * x[:, 2]),
    "a sine among ten": (2000, 10, lambda x: np.sin(2 * x[:, 0])),
    "a line among twenty": (1000, 20, lambda x: x[:, 0] - 2 * x[:, 5]),
    "a square among twenty": (2000, 20, lambda x: x[:, 3] ** 2 + x[:, 0]),
}
QUICK = ("a polynomial",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NOISELESS])
def test_noiseless_targets_are_fitted_or_warned_of(name):
    rows, features, function = NOISELESS[name]
    x = np.random.default_rng(0).normal(size=(rows, features))
    y = function(x)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = KernelRegressor(random_state=0).fit(x, y).predict(x)
    honest = any(issubclass(one.category, ConvergenceWarning) for one in told)
    assert honest or np.sqrt(np.mean((found - y) ** 2)) <= 1e-3 * np.std(y)
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("rows", [120, pytest.param(5288, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alpha", [1e-16, 1e-10, 1e-6])
def test_a_ridge_that_is_lost_to_rounding_gives_sane_predictions_or_a_warning(rows, alpha):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(rows, 2))
    y = np.sin(2 * x[:, 0]) * x[:, 1] + 0.1 * rng.normal(size=rows)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = KernelRegressor(Gaussian(1.0), alpha=alpha).fit(x, y).predict(x)
    honest = any(issubclass(one.category, ConvergenceWarning) for one in told)
    assert honest or np.sqrt(np.mean((found - y) ** 2)) < 0.12
