"""A learned metric: slopes are derivatives, features that matter are found, and noise leaves units as they were."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
from thalweg.machines.choice import choose
from thalweg.machines.folds import sample, two_at_once
from thalweg.machines.metric import learned_unit, mean_squared_slopes
from threadpoolctl import threadpool_info

from thalweg import KernelClassifier, KernelRegressor, load
from thalweg.kernels import Gaussian, Laplacian, Matern12, Matern32
from thalweg.machines import Auto, Rows, Settings, SquaredLoss
from thalweg.threads import enough_threads

MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 4.0)


def learned(x, y, **options):
    seen = sample(Rows(x, y.reshape(len(x), -1), np.ones(len(x))), 0)
    return learned_unit(seen, 1.0, MULTIPLIERS, Gaussian, **options)


def test_two_calls_at_once_leave_the_threads_of_blas_as_they_were():
    def threads():
        return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]

    def overlapping(wait, stay):
        time.sleep(wait)
        with enough_threads(1):
            time.sleep(stay)
            return threads()

    before = threads()
    # The first to begin is the first to end, and the other is still at it.
    assert all(set(found) == {1} for found in two_at_once(overlapping, [0.0, 0.05], [0.1, 0.2]))
    assert threads() == before


@pytest.mark.parametrize("kernel", [Gaussian(0.7), Matern32(2.0)])
def test_slopes_are_those_of_finite_differences(kernel):
    rng = np.random.default_rng(0)
    x, dual, weights = rng.normal(size=(12, 2)), rng.normal(size=(12, 3)), rng.uniform(0.5, 2.0, 12)
    f = lambda points: np.asarray(kernel(jnp.asarray(points), jnp.asarray(x))) @ dual
    expected = []
    for j in range(2):
        step = 1e-5 * np.eye(2)[j]
        slopes = (f(x + step) - f(x - step)) / 2e-5
        expected.append(np.average(np.sum(slopes**2, axis=1), weights=weights))
    np.testing.assert_allclose(mean_squared_slopes(weights, kernel, x, dual), expected, rtol=1e-5)


def three_of_fifty(rows, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 50))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]


def test_second_units_are_softer():
    """Issue 18, 1: on bike and covtype what matters less counted for too little."""
    x, y = three_of_fifty(300)
    sharp, soft = (np.std(x, axis=0) / unit for unit in learned(x, y, sure=-np.inf))
    np.testing.assert_allclose(np.log(soft), 0.7 * np.log(sharp), atol=1e-12)


def test_three_features_of_fifty_are_found_and_the_error_falls_by_half():
    x, y = three_of_fifty(900)
    new, truth = three_of_fifty(500, seed=1)
    error = {}
    for metric in ("auto", "none"):
        model = KernelRegressor(metric=metric, random_state=0).fit(x, y)
        error[metric] = np.sqrt(np.mean((model.predict(new) - truth) ** 2))
        if metric == "auto":
            assert set(np.argsort(model.feature_scales_)[-3:]) == {0, 1, 2}
            assert np.sort(model.feature_scales_)[-4] < 0.2
    assert error["auto"] < 0.5 * error["none"]


def test_a_classifier_finds_them_too():
    x, y = three_of_fifty(900)
    new, truth = three_of_fifty(500, seed=1)
    scores = [KernelClassifier(metric=m, random_state=0).fit(x, y > 0).score(new, truth > 0) for m in ("auto", "none")]
    assert 1 - scores[0] < 0.6 * (1 - scores[1])


def test_where_nothing_can_be_gained_units_stay():
    kept = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(120, 4))
        y = rng.normal(size=120) if seed % 2 else np.sum(np.sin(x), axis=1) + 0.5 * rng.normal(size=120)
        kept += learned(x, y) != []
    assert kept <= 3


def test_units_follow_the_features_and_constants_keep_theirs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3))
    y = np.sin(2 * x[:, 0]) + 0.3 * x[:, 1]
    factors = np.array([1e3, 1e-3, 1.0])
    seen = [sample(Rows(np.c_[z, np.full(160, 7.0)], y[:, None], np.ones(160)), 0) for z in (x, x * factors)]
    plain, scaled = (
        learned_unit(one, np.append(unit, 1.0), MULTIPLIERS, Matern32)[0]
        for one, unit in zip(seen, (np.ones(3), factors), strict=True)
    )
    np.testing.assert_allclose(scaled[:3], plain[:3] * factors, rtol=1e-6)
    assert np.all(np.isfinite(plain))


def test_few_rows_and_one_feature_learn_no_metric():
    rng = np.random.default_rng(0)
    assert learned(rng.normal(size=(60, 3)), rng.normal(size=60)) == []
    assert learned(rng.normal(size=(200, 1)), rng.normal(size=200)) == []
    assert learned(rng.normal(size=(200, 2)), np.zeros(200)) == []


def test_diagonal_asks_nobody():
    rng = np.random.default_rng(1)
    assert learned(rng.normal(size=(120, 4)), rng.normal(size=120), sure=-np.inf) != []


def test_the_family_is_chosen_by_rows_left_out():
    x = np.sort(np.random.default_rng(0).uniform(0, 10, 150))[:, None]
    rough = np.where(np.floor(x[:, 0]) % 2 == 0, 1.0, -1.0)
    smooth = np.sin(x[:, 0])
    assert isinstance(KernelRegressor(random_state=0).fit(x, smooth).kernel_, Gaussian)
    assert isinstance(KernelRegressor(random_state=0).fit(x, rough).kernel_, Matern12)


@pytest.mark.slow
def test_a_kernel_that_is_given_leaves_the_ridge_to_be_found_on_a_slice():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=(2000, 1))
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), method=Auto(block_size=512))
    kernel, alpha, _ = choose(Rows(x, y, np.ones(2000)), settings, 0, np.float32)
    assert float(kernel.lengthscale) == 1.0
    assert 1e-3 <= alpha <= 1.0


def test_a_metric_for_a_kernel_that_has_lengthscales_is_refused():
    with pytest.raises(ValueError, match=r"metric='diagonal' learns lengthscales, and kernel=Gaussian.* has them"):
        KernelRegressor(Gaussian(1.0), metric="diagonal").fit(np.eye(3), np.arange(3.0))


def test_a_stream_that_begins_with_few_rows_is_told():
    with pytest.warns(UserWarning, match="first batch of a stream .* has 3 rows: with fewer than 40 they are a guess"):
        KernelRegressor(random_state=0).partial_fit(np.eye(3), np.arange(3.0))


def rotated(rows, seed):
    """Ten features, of which two directions matter that are along none of them."""
    x = np.random.default_rng(seed).normal(size=(rows, 10))
    along = x @ np.linalg.qr(np.random.default_rng(0).normal(size=(10, 2)))[0]
    return x, np.sin(2 * along[:, 0]) + along[:, 1]


def test_a_map_finds_directions_that_units_cannot_tell(tmp_path):
    """Must exist 3 of issue 18: the error is less than half that of learned units, and files hold the map."""
    (x, y), (new, truth) = rotated(500, 1), rotated(500, 2)
    units, turned = (KernelRegressor(metric=metric, random_state=0).fit(x, y) for metric in ("diagonal", "full"))
    error = [np.sqrt(np.mean((model.predict(new) - truth) ** 2)) for model in (units, turned)]
    assert error[1] < 0.5 * error[0]
    assert turned._machine.map.shape[1] < 10
    assert turned.feature_scales_.shape == (10,)
    turned.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(new), turned.predict(new))
    again.partial_fit(*rotated(30, 3))
    assert np.sqrt(np.mean((again.predict(new) - truth) ** 2)) < 0.5 * error[0]


def test_a_map_is_refused_where_there_is_none():
    x, y = rotated(100, 1)
    with pytest.raises(ValueError, match=r"metric='full' is for Gaussian and Matern kernels, found kernel=Laplacian"):
        KernelRegressor(Laplacian, metric="full").fit(x, y)
    with pytest.raises(ValueError, match=r"metric='full' learns lengthscales, and kernel=Gaussian.* has them"):
        KernelRegressor(Gaussian(1.0), metric="full").fit(x, y)
    with pytest.raises(ValueError, match=r"metric='full' takes up to 1000 features, found 1001"):
        KernelRegressor(metric="full").fit(np.random.default_rng(0).normal(size=(100, 1001)), y)
    few = KernelRegressor(metric="full", random_state=0).fit(x[:30], y[:30])  # too few rows to learn a map by
    assert few._machine.map is None
