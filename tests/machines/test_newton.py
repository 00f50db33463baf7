"""Newton steps on a stored kernel matrix: the optimum of every smooth loss, held-out rows, and warnings."""

import signal
from functools import cache

import numpy as np
import pytest
import reference
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning

from thalweg.kernels import Gaussian
from thalweg.kernels.host import kernel_tiles
from thalweg.linalg import Factor, LowRank
from thalweg.machines import (
    Auto,
    HuberLoss,
    LogisticLoss,
    Settings,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
    Table,
    calibration,
    fit,
)
from thalweg.machines.newton import KernelMatrix, Newton, kernel_matrix
from thalweg.rows import find_duplicates
from thalweg.threads import enough_threads

N, ALPHA = 61, 0.03
KERNEL = Gaussian(0.75, 1.5)
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 2))
NOISY = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=N)
WEIGHTS = rng.uniform(0.3, 3.0, size=N)
K = reference.gaussian(X, X, 0.75, 1.5)
SIGNS = np.where(NOISY > 0, 1.0, -1.0)[:, None]
LOSSES = {
    "squared": (SquaredLoss(), np.stack([NOISY, NOISY**2], axis=1)),
    "logistic": (LogisticLoss(), (SIGNS + 1) / 2),
    "softmax": (SoftmaxLoss(), np.eye(3)[np.digitize(NOISY, [-0.5, 0.5])]),
    "squared hinge": (SquaredHingeLoss(), SIGNS),
    "huber": (HuberLoss(0.4), NOISY[:, None]),
}


def not_dense(matrix):
    """The same matrix by its products and columns alone: there is no factor to precondition with."""
    return KernelMatrix(matrix.apply, matrix.columns, matrix.diagonal, None)


@cache
def solution(name):
    """That of all rows, which its looks at others leave as it is."""
    return newton(name)


def newton(name, matrix=None, weights=WEIGHTS, tol=1e-13, intercept=0.0):
    loss, y = LOSSES[name]
    matrix = kernel_matrix(KERNEL, X, on_host=True) if matrix is None else matrix
    found = Newton(matrix, y, weights, loss, ALPHA, np.full(y.shape[1], intercept))
    found.solve(tol)
    return found


def minimiser(loss, y, weights=WEIGHTS, intercept=0.0):
    """The least objective and f there, by L-BFGS in z with f = Lz and K = LLᵀ, which is well conditioned."""
    root = np.linalg.cholesky(K + 1e-12 * np.eye(N))

    def flat(z):
        z = z.reshape(y.shape)
        f = root @ z + intercept
        value = weights @ np.asarray(loss.value(f, y)) + ALPHA / 2 * np.sum(z**2)
        return float(value), (root.T @ (weights[:, None] * np.asarray(loss.gradient(f, y))) + ALPHA * z).ravel()

    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000, "maxfun": 10_000}
    with enough_threads(N):
        best = minimize(flat, np.zeros(y.size), jac=True, method="L-BFGS-B", options=options)
    return best.fun, root @ best.x.reshape(y.shape) + intercept


def test_the_squared_loss_ends_at_the_solution_of_the_linear_system():
    """(K + α/w) W = y, by a factor and by conjugate gradients with a low-rank preconditioner."""
    _, y = LOSSES["squared"]
    exact = np.linalg.solve(K + np.diag(ALPHA / WEIGHTS), y)
    matrix = kernel_matrix(KERNEL, X, on_host=True)
    for kind, given in ((Factor, matrix), (LowRank, not_dense(matrix))):
        found = newton("squared", given)
        assert isinstance(found._solver, kind)
        assert np.linalg.norm(found.weights - exact) < 1e-6 * np.linalg.norm(exact)
        least = WEIGHTS @ np.sum((K @ exact - y) ** 2, axis=1) / 2 + ALPHA / 2 * np.sum(exact * (K @ exact))
        assert found.objective() == pytest.approx(least, rel=1e-8)
        assert found.gap <= 1e-13


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_ends_where_a_general_minimiser_does(name):
    (loss, y), intercept = LOSSES[name], 0.4
    found = newton(name, intercept=intercept)
    least, values = minimiser(loss, y, intercept=intercept)
    assert found.objective() == pytest.approx(least, rel=1e-7)
    np.testing.assert_allclose(found.values, values, atol=1e-4)
    np.testing.assert_allclose(found.values, K @ found.weights + intercept, atol=1e-9)
    gradient = WEIGHTS[:, None] * loss.gradient(found.values, y) + ALPHA * found.weights
    if loss.centred:  # the mean over outputs is none of the loss's business
        gradient -= gradient.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(gradient, 0, atol=1e-5)


@pytest.mark.parametrize("name", ["squared", pytest.param("softmax", marks=pytest.mark.slow)])
def test_the_device_ends_where_the_host_does(name):
    host, device = solution(name), newton(name, kernel_matrix(KERNEL, X, on_host=False))
    assert not isinstance(device.weights, np.ndarray)
    np.testing.assert_allclose(device.values, host.values, atol=1e-5)


def test_a_stored_matrix_in_tiles_is_the_matrix():
    """Beyond what is factorised the host stores the lower triangle in tiles; they can be made anew each time, too."""
    block = rng.normal(size=(N, 3))
    for stored in (True, False):
        tiles = kernel_tiles(KERNEL, X, stored=stored)
        np.testing.assert_allclose(tiles.apply(block), K @ block, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(tiles.to_dense(), K, rtol=1e-12, atol=1e-14)
    matrix = kernel_matrix(KERNEL, X, on_host=True)
    tiles = kernel_tiles(KERNEL, X, stored=True)
    exact = solution("logistic")
    found = newton("logistic", KernelMatrix(tiles.apply, matrix.columns, matrix.diagonal, None))
    np.testing.assert_allclose(found.values, exact.values, atol=1e-6)


@pytest.mark.parametrize("name", ["squared", "logistic", "huber"])
def test_rows_of_weight_0_are_left_out(name):
    loss, y = LOSSES[name]
    there = np.arange(N) % 3 > 0
    found = newton(name, weights=np.where(there, WEIGHTS, 0.0))
    part = kernel_matrix(KERNEL, X[there], on_host=True)
    alone = Newton(part, y[there], WEIGHTS[there], loss, ALPHA, np.zeros(y.shape[1]))
    alone.solve(1e-13)
    assert not np.any(found.weights[~there])
    np.testing.assert_allclose(found.weights[there], alone.weights, atol=1e-6)
    np.testing.assert_allclose(found.values[~there], K[~there][:, there] @ alone.weights, atol=1e-6)


def without(found, held, tol):
    """What a machine that has not learned from some rows predicts there."""
    weights = np.array(found.row_weights[:, 0])
    weights[held] = 0
    other = Newton(
        found.matrix, np.asarray(found.targets), weights, found.loss, found.ridge, np.asarray(found.intercept)
    )
    other.start(found.weights)
    other.solve(tol)
    return np.asarray(other.values)[held]


@pytest.mark.parametrize("name", LOSSES)
def test_rows_of_weight_0_are_predicted_by_a_machine_without_them(name):
    """By a solution that starts at the one with them."""
    loss, y = LOSSES[name]
    held = np.arange(0, N, 5)
    rest = np.setdiff1d(np.arange(N), held)
    alone = Newton(
        kernel_matrix(KERNEL, X[rest], on_host=True), y[rest], WEIGHTS[rest], loss, ALPHA, np.zeros(y.shape[1])
    )
    alone.solve(1e-13)
    expected = K[np.ix_(held, rest)] @ alone.weights
    np.testing.assert_allclose(without(solution(name), held, 1e-13), expected, atol=1e-6)
    if loss.quadratic:
        matrix = kernel_matrix(KERNEL, X, on_host=True)
        np.testing.assert_allclose(without(newton(name, not_dense(matrix)), held, 1e-13), expected, atol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_rows_left_out_one_by_one_are_predicted_as_by_machines_without_them(name):
    """Exactly for the squared loss; for others one step makes up for most of what a row is missed."""
    found, rows = solution(name), np.arange(0, N, 12)
    tol = 1e-13 if found.loss.quadratic else 1e-8
    exact = np.concatenate([without(found, rows[[k]], tol) for k in range(len(rows))])
    off = np.linalg.norm(found.leave_one_out()[rows] - exact) / np.linalg.norm(found.values[rows] - exact)
    assert off < (1e-6 if found.loss.quadratic else 0.5)


@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_copies_are_left_out_together(name):
    loss, y = LOSSES[name]
    copies = find_duplicates(X[np.arange(N) // 2])
    found = Newton(kernel_matrix(KERNEL, X[copies.first[copies.group]], True), y, WEIGHTS, loss, ALPHA, np.zeros(1))
    found.solve(1e-13)
    pairs = [np.flatnonzero(copies.group == group) for group in range(0, N // 2, 3)]
    exact, rows = np.concatenate([without(found, pair, 1e-13) for pair in pairs]), np.concatenate(pairs)
    off = np.linalg.norm(found.leave_one_out(copies)[rows] - exact) / np.linalg.norm(found.values[rows] - exact)
    assert off < (1e-6 if loss.quadratic else 0.1)


def test_separable_classes_left_out_have_the_loss_that_they_have_without_them():
    """Of a softmax, whose outputs are tied: taken apart, rows left out would look a tenth as hard as they are."""
    x, labels = load_wine(return_X_y=True)
    x, y, loss = ((x - x.mean(axis=0)) / x.std(axis=0))[::3], np.eye(3)[labels[::3]], SoftmaxLoss()
    found = Newton(kernel_matrix(Gaussian(8.0), x, True), y, np.ones(len(x)), loss, 1e-3, np.zeros(3))
    found.solve(1e-10)
    rows = np.arange(0, len(x), 15)
    exact = np.concatenate([without(found, rows[[k]], 1e-5) for k in range(len(rows))])
    mean = lambda values: float(np.mean(loss.value(values, y[rows])))
    assert mean(found.leave_one_out()[rows]) == pytest.approx(mean(exact), rel=0.3)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "squared"])
def test_each_step_lowers_the_objective_and_the_last_ones_converge_fast(name):
    loss, y = LOSSES[name]
    method = Auto(tol=1e-13)
    settings = Settings(loss=loss, kernel=KERNEL, alpha=ALPHA, method=method)
    history = fit(Table(X, y, WEIGHTS), settings, seed=0).history
    objectives, left = (np.array([record[key] for record in history]) for key in ("objective", "left"))
    assert np.all(np.diff(objectives) <= 1e-12 * objectives[0])
    assert left[-1] <= 1e-13
    assert len(history) < 20


def test_several_blocks_are_solved_for_at_once_in_float32():
    settings = Settings(loss=SquaredLoss(), kernel=KERNEL, alpha=ALPHA, method=Auto(block_size=32))
    found = fit(Table(X, NOISY[:, None], WEIGHTS), settings, seed=0)
    exact = K @ np.linalg.solve(K + np.diag(ALPHA / WEIGHTS), NOISY)
    assert not found.double
    assert (found.features, found.passes) == (N, 1)
    np.testing.assert_allclose(found.predict(X)[:, 0], exact, atol=1e-3)


@pytest.mark.parametrize("double", [True, False])
def test_residuals_are_of_machines_that_have_not_seen_the_rows(double):
    method = Auto(block_size=32, double=double, tol=1e-10)
    settings = Settings(loss=SquaredLoss(), kernel=KERNEL, alpha=ALPHA, method=method)
    table, values = Table(X, NOISY[:, None], WEIGHTS), np.full((N, 1), np.nan)
    found = fit(table, settings, seed=0)
    for row in range(N):
        rest = np.arange(N) != row
        W = np.linalg.solve(K[np.ix_(rest, rest)] + np.diag(ALPHA / WEIGHTS[rest]), NOISY[rest])
        values[row] = K[row, rest] @ W
    expected = calibration.sorted_residuals(calibration.HeldOut(table, values))
    np.testing.assert_allclose(found.residuals, expected, atol=1e-8 if double else 2e-3)


def test_passes_that_are_asked_for_are_made():
    method = Auto(block_size=32)
    settings = Settings(loss=SquaredLoss(), kernel=KERNEL, alpha=ALPHA, method=method, passes=2)
    found = fit(Table(X, NOISY[:, None], WEIGHTS), settings, seed=0)
    assert found.passes == 2
    assert "objective" not in found.history[0]


def test_where_there_is_nothing_to_gain_a_step_ends():
    for loss in (SquaredLoss(), HuberLoss()):
        found = Newton(kernel_matrix(KERNEL, X, True), np.zeros((N, 1)), WEIGHTS, loss, ALPHA, np.zeros(1))
        found.solve(1e-4)
        assert found.gap == 0
        assert not np.any(found.values)


def test_where_one_direction_holds_nearly_all_of_the_kernel_float32_finds_the_optimum():
    x = np.random.default_rng(0).normal(size=(800, 2)).astype(np.float32)
    y = np.sin(2 * x[:, :1]).astype(float)
    matrix = reference.gaussian(x, x, 12.0, 1.0)
    exact = np.linalg.solve(matrix + 1e-4 * np.eye(800), y)
    least = 1e-4 / 2 * np.vdot(exact, y)
    stored = kernel_matrix(Gaussian(12.0), x, on_host=True)
    for given in (stored, not_dense(stored)):
        found = Newton(given, y, np.ones(800), SquaredLoss(), 1e-4, np.zeros(1))
        found.solve(1e-4)
        residual = y - matrix @ found.weights
        reached = np.sum(residual**2) / 2 + 1e-4 / 2 * np.sum(found.weights * (matrix @ found.weights))
        assert reached < 1.02 * least


@pytest.mark.parametrize("classes", [5, 10])
def test_many_classes_end_at_their_optimum(classes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8))
    labels = np.argmax(np.sin(x @ rng.normal(size=(8, classes))) + 0.3 * rng.normal(size=(300, classes)), axis=1)
    stored = kernel_matrix(Gaussian(2.0), x, on_host=True)
    found = Newton(stored, np.eye(classes)[labels], np.ones(300), SoftmaxLoss(), 1e-3, np.zeros(classes))
    found.solve(1e-8)
    gradient = softmax(stored.dense @ found.weights, axis=1) - np.eye(classes)[labels] + 1e-3 * found.weights
    assert np.max(np.abs(gradient)) < 1e-3


def test_an_optimum_that_rounding_keeps_out_of_reach_is_warned_of():
    settings = Settings(loss=LogisticLoss(), kernel=KERNEL, alpha=ALPHA, method=Auto(tol=0.0))
    with pytest.warns(ConvergenceWarning, match="the optimum was not reached: a further step would lower"):
        found = fit(Table(X, (SIGNS + 1) / 2, WEIGHTS), settings, seed=0)
    assert found.history[-1]["left"] < 1e-10


class Interrupted(LogisticLoss):
    """The logistic loss, with Ctrl-C when its curvature is asked for the third time."""

    def curvatures(self, f, y):
        counted.append(1)
        if len(counted) == 3:
            signal.raise_signal(signal.SIGINT)
        return super().curvatures(f, y)


counted = []


def test_an_interrupt_keeps_the_steps_made_and_is_warned_of_once():
    settings = Settings(loss=Interrupted(), kernel=KERNEL, alpha=ALPHA)
    with pytest.warns(UserWarning, match="interrupted .*: the result is what was reached so far") as told:
        found = fit(Table(X, (SIGNS + 1) / 2, WEIGHTS), settings, seed=0)
    assert len(told) == 1
    assert len(found.history) == found.passes == 2
    assert np.mean((found.predict(X) > 0) == (SIGNS > 0)) > 0.8


@pytest.mark.slow
def test_three_thousand_rows_end_at_their_optimum():
    """The squared loss to 1e-6 of the exact solution, the logistic one where L-BFGS ends."""
    n = 3000
    x = rng.normal(size=(n, 4))
    y = np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.3 * rng.normal(size=(n, 1))
    weights = rng.uniform(0.5, 2.0, size=n)
    matrix = reference.gaussian(x, x, 1.2, 1.0)
    method = Auto(block_size=512, double=True, tol=1e-13)
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(1.2), alpha=0.02, method=method)
    found = fit(Table(x, y, weights), settings, seed=0)
    exact = matrix @ np.linalg.solve(matrix + np.diag(0.02 / weights), y)
    assert np.linalg.norm(found.predict(x) - exact) < 1e-6 * np.linalg.norm(exact)
    labels = (y > 0).astype(float)
    settings = Settings(loss=LogisticLoss(), kernel=Gaussian(1.2), alpha=0.1, method=method)
    found = fit(Table(x, labels, weights), settings, seed=0)
    root = np.linalg.cholesky(matrix + 1e-10 * np.eye(n))

    def flat(z):
        f = (root @ z)[:, None]
        value = weights @ np.asarray(LogisticLoss().value(f, labels)) + 0.1 / 2 * z @ z
        return value, root.T @ (weights * LogisticLoss().gradient(f, labels)[:, 0]) + 0.1 * z

    options = {"ftol": 1e-15, "gtol": 1e-6, "maxiter": 9999}
    best = minimize(flat, np.zeros(n), jac=True, method="L-BFGS-B", options=options)
    assert found.history[-1]["objective"] == pytest.approx(best.fun, rel=1e-6)
    np.testing.assert_allclose(found.predict(x)[:, 0], root @ best.x, atol=1e-2)
