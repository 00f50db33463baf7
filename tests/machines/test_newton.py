"""All landmarks solved for at once: exact solutions, certificates of optimality, and an objective that only falls."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy.optimize import minimize
from scipy.special import expit, softmax

from thalweg.kernels import Gaussian
from thalweg.machines import (
    Auto,
    HuberLoss,
    LogisticLoss,
    Rows,
    Settings,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
    calibration,
    dense,
    fit,
)

N, ALPHA = 118, 0.03  # the last block has empty places
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 2))
NOISY = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=N)
WEIGHTS = rng.uniform(0.3, 3.0, size=N)
K = reference.gaussian(X, X, 0.75, 1.5)
SIGNS = np.where(NOISY > 0, 1.0, -1.0)[:, None]
THREE = np.eye(3)[np.digitize(NOISY, [-0.5, 0.5])]


@pytest.fixture
def way(request, monkeypatch):
    """How rows are solved for: by a factor, or by iterations."""
    if request.param == "stored":
        monkeypatch.setattr(dense, "_FEW", 0)
        monkeypatch.setattr(dense, "_FACTORISED", 0)
        monkeypatch.setattr(dense, "_GRAIN", 4)
    return request.param


def solution(loss, y, tol=1e-13, **options):
    """The fitted machine, its coefficients in the order of the rows, and f there."""
    method = Auto(block_size=32, double=True, tol=tol, **options)
    settings = Settings(loss=loss, kernel=Gaussian(0.75, 1.5), alpha=ALPHA, method=method)
    found = fit(Rows(X, y, WEIGHTS), settings, seed=0)
    rows, weights = (np.asarray(part) for part in (found.learner.expansion.blocks, found.learner.expansion.weights))
    assert not np.any(weights.reshape(-1, y.shape[1])[N:])
    there = X - found.offset
    place = [np.argmin(np.sum((rows.reshape(-1, 2)[:N] - row) ** 2, axis=1)) for row in there]
    return found, weights.reshape(-1, y.shape[1])[place], found.predict(X)


def falls(found, slack=1e-12):
    objectives = np.array([line["objective"] for line in found.history])
    return np.all(np.diff(objectives) <= slack * objectives[0])


@pytest.mark.parametrize("way", ["factorised", "stored"], indirect=True)
def test_squares_end_at_the_solution_of_the_linear_system(way):
    """(K + α/w) W = y, to 1e-6 and better in float64, and each step lowers the objective."""
    y = np.stack([NOISY, NOISY**2], axis=1)
    found, coefficients, values = solution(SquaredLoss(), y)
    exact = np.linalg.solve(K + np.diag(ALPHA / WEIGHTS), y)
    assert np.linalg.norm(values - K @ exact) < 1e-6 * np.linalg.norm(K @ exact)
    assert np.linalg.norm(coefficients - exact) < 1e-6 * np.linalg.norm(exact)
    assert found.double
    assert found.features == N
    assert (len(found.history) > 1) == (way != "factorised")
    assert falls(found)
    assert found.history[-1]["left"] <= 1e-13
    least = WEIGHTS @ np.sum((K @ exact - y) ** 2, axis=1) / 2 + ALPHA / 2 * np.sum(exact * (K @ exact))
    assert found.history[-1]["objective"] == pytest.approx(least, rel=1e-8)


def test_a_plain_fit_is_near_it_in_float32():
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(0.75, 1.5), alpha=ALPHA, method=Auto(block_size=32))
    found = fit(Rows(X, NOISY[:, None], WEIGHTS), settings, seed=0)
    exact = K @ np.linalg.solve(K + np.diag(ALPHA / WEIGHTS), NOISY)
    assert not found.double
    np.testing.assert_allclose(found.predict(X)[:, 0], exact, atol=0.02)


@pytest.mark.parametrize(
    ("loss", "y", "gradient"),
    [
        pytest.param(LogisticLoss(), (SIGNS + 1) / 2, lambda f, y: expit(f) - y, marks=pytest.mark.slow),
        (SoftmaxLoss(), THREE, lambda f, y: softmax(f, axis=1) - y),
        (SquaredHingeLoss(), SIGNS, lambda f, y: -y * np.maximum(1 - y * f, 0)),
        pytest.param(HuberLoss(0.4), NOISY[:, None], lambda f, y: np.clip(f - y, -0.4, 0.4), marks=pytest.mark.slow),
    ],
    ids=["logistic", "softmax", "squared hinge", "huber"],
)
@pytest.mark.parametrize("way", ["factorised", "stored"], indirect=True)
def test_smooth_losses_end_where_l_bfgs_does(loss, y, gradient, way):
    """With f = Lz and K = LLᵀ the problem is well conditioned; SciPy's L-BFGS solves it."""
    found, coefficients, values = solution(loss, y)
    assert falls(found)
    np.testing.assert_allclose(WEIGHTS[:, None] * gradient(values, y) + ALPHA * coefficients, 0, atol=1e-5)
    root = np.linalg.cholesky(K + 1e-12 * np.eye(N))

    def flat(z):
        z = z.reshape(y.shape)
        f = root @ z
        value = WEIGHTS @ np.asarray(loss.value(jnp.asarray(f), jnp.asarray(y))) + ALPHA / 2 * np.sum(z**2)
        return float(value), (root.T @ (WEIGHTS[:, None] * gradient(f, y)) + ALPHA * z).ravel()

    best = minimize(flat, np.zeros(y.size), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    assert found.history[-1]["objective"] == pytest.approx(best.fun, rel=1e-7)
    np.testing.assert_allclose(values, root @ best.x.reshape(y.shape), atol=1e-4)


@pytest.mark.parametrize("way", ["factorised", "stored"], indirect=True)
def test_what_is_said_of_rows_left_out_is_said_by_a_machine_without_them(way):
    """Residuals are of five folds: for each a machine that has all other rows, and the intercept of all."""
    found, _, _ = solution(SquaredLoss(), NOISY[:, None])
    rows, said = Rows(X, NOISY[:, None], WEIGHTS), np.full((N, 1), np.nan)
    for held in calibration.folds(rows, 0):
        kept = np.setdiff1d(np.arange(N), held)
        W = np.linalg.solve(K[np.ix_(kept, kept)] + np.diag(ALPHA / WEIGHTS[kept]), NOISY[kept])
        said[held, 0] = K[np.ix_(held, kept)] @ W
    off = calibration.residuals(calibration.Aside(rows, said))
    np.testing.assert_allclose(found.residuals, off, atol=1e-8 if way == "factorised" else 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["factorised", "stored"], indirect=True)
def test_three_thousand_rows_end_at_their_optimum(way):
    """Issue 18, must hold 3: squares to 1e-6 of the exact solution, the logistic loss where L-BFGS ends."""
    n = 3000
    x = rng.normal(size=(n, 4))
    y = np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.3 * rng.normal(size=(n, 1))
    weights = rng.uniform(0.5, 2.0, size=n)
    matrix = reference.gaussian(x, x, 1.2, 1.0)
    settings = Settings(
        loss=SquaredLoss(), kernel=Gaussian(1.2), alpha=0.02, method=Auto(block_size=512, double=True, tol=1e-13)
    )
    found = fit(Rows(x, y, weights), settings, seed=0)
    exact = matrix @ np.linalg.solve(matrix + np.diag(0.02 / weights), y)
    assert np.linalg.norm(found.predict(x) - exact) < 1e-6 * np.linalg.norm(exact)
    assert falls(found)
    labels = (y > 0).astype(float)
    found = fit(Rows(x, labels, weights), replace(settings, loss=LogisticLoss(), alpha=0.1), seed=0)
    assert falls(found)
    root = np.linalg.cholesky(matrix + 1e-10 * np.eye(n))

    def flat(z):
        f = root @ z
        value = weights @ (np.logaddexp(f, 0) - labels[:, 0] * f) + 0.1 / 2 * z @ z
        return value, root.T @ (weights * (expit(f) - labels[:, 0])) + 0.1 * z

    best = minimize(
        flat, np.zeros(n), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-6, "maxiter": 9999}
    )
    assert found.history[-1]["objective"] == pytest.approx(best.fun, rel=1e-6)
    np.testing.assert_allclose(found.predict(x)[:, 0], root @ best.x, atol=1e-2)


def test_passes_that_are_asked_for_are_made():
    method = Auto(block_size=32)
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(0.75, 1.5), alpha=ALPHA, method=method, passes=2)
    found = fit(Rows(X, NOISY[:, None], WEIGHTS), settings, seed=0)
    assert found.passes == 2
    assert "objective" not in found.history[0]


def test_where_there_is_nothing_to_gain_a_step_ends():
    """Seen on rows of which float32 left nothing but rounding: the step looked for a way downhill for ever."""
    found = dense.Dense(K, np.zeros((N, 1)), WEIGHTS, SquaredLoss(), ALPHA, np.zeros(1), tol=1e-4)
    assert found.step().left == 0
    assert found.done
    assert not np.any(found.values)


def test_where_one_direction_holds_nearly_all_of_the_kernel_the_objective_falls_in_float32(monkeypatch):
    """Seen on 6,000 rows far apart in two features and near in the others: rounding left the preconditioner nothing."""
    monkeypatch.setattr(dense, "_FACTORISED", 0)
    x = np.random.default_rng(0).normal(size=(1500, 2)).astype(np.float32)
    y = np.sin(2 * x[:, :1]).astype(float)
    matrix = reference.gaussian(x, x, 12.0, 1.0)
    found = dense.Dense(matrix.astype(np.float32), y, np.ones(1500), SquaredLoss(), 1e-4, np.zeros(1), tol=1e-4)
    objectives = [found.step().objective for _ in range(4)]
    exact = np.linalg.solve(matrix + 1e-4 * np.eye(1500), y)
    assert objectives[-1] < 1.01 * 1e-4 / 2 * np.vdot(exact, y)
    assert np.all(np.diff(objectives) <= 1e-3 * objectives[-1])


@pytest.mark.parametrize("classes", [5, 10])
def test_steps_that_were_solved_too_coarsely_do_not_end_far_from_the_optimum(classes):
    """The line search cut them shorter and shorter: 600 rows of ten classes ended at 104.5, a minimum being 85.7."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8))
    labels = np.argmax(np.sin(x @ rng.normal(size=(8, classes))) + 0.3 * rng.normal(size=(600, classes)), axis=1)
    matrix = reference.gaussian(x, x, 2.0, 1.0)
    newton = dense.Dense(matrix, np.eye(classes)[labels], np.ones(600), SoftmaxLoss(), 1e-3, np.zeros(classes), 1e-8)
    while not newton.done:
        newton.step()
    slope = softmax(matrix @ newton.weights, axis=1) - np.eye(classes)[labels] + 1e-3 * newton.weights
    assert np.max(np.abs(slope)) < 1e-3
