"""GPRegressor never wrong in silence: float32 rows, kernels, noises, scales and offsets at random, from a seed."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from thalweg import GPRegressor
from thalweg.kernels import Bias, Gaussian, Laplacian, Linear, Matern12, Matern32, Matern52, Periodic, White

EXACT = (
    lambda scale: None,
    lambda scale: "rbf",
    lambda scale: Matern12(scale),
    lambda scale: Matern52(scale, 3.0),
    lambda scale: Gaussian(scale) + Linear(1.0) + White(0.1),
    lambda scale: Periodic(scale) * Gaussian(scale) + Bias(1.0),
    lambda scale: Laplacian(scale) * 2.0,
)
ITERATIVE = (lambda scale: "matern32", lambda scale: Gaussian(scale) + Matern32(2 * scale))
WORDS = ("the covariance of the rows is singular in float64", "conjugate gradients broke down")
"""Errors that say what is wrong, and what to do."""


def case(seed):
    """A model and rows for it."""
    rng = np.random.default_rng(seed)
    count, features = (1, 2, 7, 24, 24, 24)[rng.integers(6)], (1, 3)[rng.integers(2)]
    X = rng.normal(size=(count, features))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=count)
    match rng.integers(6):
        case 0:
            X = X[rng.integers(max(1, count // 3), size=count)]  # rows that are equal, with values that are not
        case 1:
            y = np.full(count, y[0])
        case 2:
            X[:, 0] = 1.0
        case 3:
            X[:] = 1.0
    scale, size = 10.0 ** rng.choice([-8, -3, 0, 0, 3, 8], size=2)
    X = scale * X + rng.choice([0, 0, 1e3, 1e8]) * rng.choice([1.0, scale])
    y = size * y + rng.choice([0, 0, 1e8]) * rng.choice([1.0, size])
    given = rng.integers(3)  # a noise that is learned, or given, or the kernel given too
    noise = None if given == 0 else size**2 * 10.0 ** rng.uniform(-8, 1)
    iterative = rng.integers(4) == 0
    kernels = ITERATIVE if iterative else EXACT
    kernel = kernels[rng.integers(len(kernels))](scale)
    learn = given < 2 or not hasattr(kernel, "variance")
    mean = ("constant", "constant", "zero", "linear")[rng.integers(4)]
    method = "iterative" if iterative else "auto"
    model = GPRegressor(kernel, noise=noise, mean=mean, method=method, learn=learn, restarts=0, random_state=0)
    return model, X.astype(np.float32), y.astype(np.float32)


def fitted_well(seed):
    """Fit, and say whether there was anything to fit; what is found must be finite, deviations above 0."""
    model, X, y = case(seed)
    new = np.concatenate([X[:3], X[:3] * 1.5, X[:3] + X.std()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # which says in words how far a solve came
        try:
            model.fit(X, y)
        except ValueError as error:
            if not any(word in str(error) for word in WORDS):
                raise
            return False
    mean, std = model.predict(new, return_std=True)
    assert np.all(np.isfinite(mean)), f"case {seed}"
    assert np.all(np.isfinite(std)), f"case {seed}"
    assert np.all(std >= 0), f"case {seed}"
    assert np.all(model.latent(new)[1] >= 0), f"case {seed}"
    assert np.all(np.isfinite(model.sample_y(new, 2))), f"case {seed}"
    # Where nothing is learned, the iterative way has no need of it.
    assert np.isfinite(model.log_marginal_likelihood_) or (model.method_ == "iterative" and not model.learn)
    # No mean beyond anything that was seen: twice the range of y, and a plane may go on.
    if model.mean != "linear" and not np.any(new != new[:1]):
        assert np.all(np.abs(mean - y.mean()) <= 2 * np.ptp(y) + 1e-3 * np.abs(y).max() + 1e-6), f"case {seed}"
    return True


@pytest.mark.filterwarnings("ignore:y does not vary")
@pytest.mark.parametrize("first", range(0, 5, 5))
def test_a_few_odd_fits_are_right_or_say_what_is_wrong(first):
    for seed in range(first, first + 5):
        fitted_well(seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:y does not vary")
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_odd_fits_are_right_or_say_what_is_wrong(first):
    done = [fitted_well(seed) for seed in range(first, first + 100)]
    assert np.mean(done) > 0.8
