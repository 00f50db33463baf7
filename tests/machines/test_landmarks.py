"""Block updates: the exact solution for the squared loss, the optimum of the others, padding that is nothing."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy.optimize import minimize

from thalweg.kernels import Gaussian, Laplacian
from thalweg.machines import Auto, Settings, Table, fit
from thalweg.machines.landmarks import solve_block
from thalweg.machines.losses import (
    HingeLoss,
    HuberLoss,
    LogisticLoss,
    QuantileLoss,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
)
from thalweg.machines.start import start_learner
from thalweg.rows import FeatureFrame

SIZE, BLOCKS, D = 11, 2, 2
N = SIZE * BLOCKS - 3  # the last block has three empty places
ALPHA = 2.0
rng = np.random.default_rng(0)
X = rng.normal(size=(N, D))
NOISY = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=N)
WEIGHTS = rng.uniform(0.3, 3.0, size=N)
K = reference.gaussian(X, X, 0.5, 1.5)
KERNEL = Gaussian(0.5, 1.5)
SIGNS = np.where(NOISY > 0, 1.0, -1.0)[:, None]
TARGETS = {
    "squared": (SquaredLoss(), np.stack([NOISY, NOISY**2], axis=1)),
    "logistic": (LogisticLoss(), (SIGNS + 1) / 2),
    "softmax": (SoftmaxLoss(), np.eye(3)[np.digitize(NOISY, [-0.5, 0.5])]),
    "hinge": (HingeLoss(), SIGNS),
    "squared_hinge": (SquaredHingeLoss(), SIGNS),
    "huber": (HuberLoss(0.4), NOISY[:, None]),
    "quantile": (QuantileLoss(0.7), NOISY[:, None]),
}
SMOOTH = [name for name, (loss, _) in TARGETS.items() if loss.smooth]
KINKED = [name for name, (loss, _) in TARGETS.items() if not loss.smooth]


def learner(loss, y, weights=WEIGHTS, x=X, dtype=np.float64, sweeps=0):
    """A machine whose blocks are the rows in order, after some sweeps over all of them."""
    table = Table(x, y, weights)
    settings = Settings(loss=loss, method=Auto(block_size=SIZE, tol=1e-10), max_features=SIZE * BLOCKS)
    found = start_learner(settings, KERNEL, D, y.shape[1], None, 0, dtype)
    list(found.learn(table, np.arange(len(x)), ALPHA, 1.0))
    for _ in range(sweeps):
        list(found.again(table, np.arange(len(x)), ALPHA, 1.0))
    return found


def coefficients(found):
    return found.landmarks()[1]


def objective(loss, y, c, weights=WEIGHTS):
    f = K @ c
    return float(weights @ loss.value(f, y) + ALPHA / 2 * np.sum(c * f))


def test_sweeps_over_several_blocks_converge_to_kernel_ridge():
    """Σ w(f − y)²/2 + α/2·‖f‖² has the coefficients (K + α/w)⁻¹y."""
    loss, y = TARGETS["squared"]
    found = learner(loss, y, sweeps=40)
    exact = np.linalg.solve(K + np.diag(ALPHA / WEIGHTS), y)
    np.testing.assert_allclose(coefficients(found), exact, rtol=1e-6, atol=1e-8)
    assert found.features == N
    assert not np.any(found.expansion.weights[-1, -3:])
    np.testing.assert_allclose(found.predict(X, FeatureFrame()), K @ exact, rtol=1e-6, atol=1e-8)


def test_an_update_solves_for_a_block_with_the_others_held_fixed():
    loss, y = TARGETS["squared"]
    table = Table(X, y, WEIGHTS)
    settings = Settings(loss=loss, method=Auto(block_size=SIZE, tol=1e-10))
    found, before = start_learner(settings, KERNEL, D, 2, None, 0, np.float64), []
    assert list(found.learn(table, np.arange(N), ALPHA, 1.0, before)) == [SIZE, N - SIZE]
    first = np.linalg.solve(K[:SIZE, :SIZE] + np.diag(ALPHA / WEIGHTS[:SIZE]), y[:SIZE])
    second = slice(SIZE, N)
    rest = y[second] - K[second, :SIZE] @ first
    np.testing.assert_allclose(found.expansion.weights[0], first, rtol=1e-9, atol=1e-10)
    exact = np.linalg.solve(K[second, second] + np.diag(ALPHA / WEIGHTS[second]), rest)
    np.testing.assert_allclose(found.expansion.weights[1][: N - SIZE], exact, rtol=1e-7)
    # What was predicted before a block was learned from.
    np.testing.assert_array_equal(before[0][1], 0)
    np.testing.assert_allclose(before[1][1][: N - SIZE], K[second, :SIZE] @ first, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(found.examples.targets[1][: N - SIZE], y[second])


def own_objective(loss, y, c, rows):
    """Σ w ℓ(f) over the rows of a block, and the ridge of the block's own part of f."""
    inner = K[np.ix_(rows, rows)] @ c[rows]
    return float(WEIGHTS[rows] @ loss.value((K @ c)[rows], y[rows]) + ALPHA / 2 * np.sum(c[rows] * inner))


@pytest.mark.parametrize("name", TARGETS)
def test_every_update_lowers_the_objective_of_its_block(name):
    loss, y = TARGETS[name]
    found, table = learner(loss, y), Table(X, y, WEIGHTS)
    before, updates = coefficients(found), 0
    for _ in range(3):
        for _ in found.again(table, np.arange(N), ALPHA, 1.0):
            now = coefficients(found)
            blocks = np.unique(np.flatnonzero(np.any(now != before, axis=1)) // SIZE)
            assert len(blocks) <= 1  # none where a block is updated twice in a row
            for block in blocks:
                rows = np.flatnonzero(np.arange(N) // SIZE == block)
                assert own_objective(loss, y, now, rows) < own_objective(loss, y, before, rows)
            before, updates = now, updates + len(blocks)
    assert updates >= 3


def test_every_update_of_the_squared_loss_lowers_the_dual_objective():
    """½⟨W, KW⟩ + α/2·Σ W²/w − ⟨W, y⟩, which the coefficients of kernel ridge regression minimise."""
    loss, y = TARGETS["squared"]
    dual = lambda c: np.sum(c * (K @ c / 2 + ALPHA / 2 * c / WEIGHTS[:, None] - y))
    found, table = learner(loss, y), Table(X, y, WEIGHTS)
    values = [0.0, dual(coefficients(found))]
    for _ in range(4):
        for _ in found.again(table, np.arange(N), ALPHA, 1.0):
            values.append(dual(coefficients(found)))
    assert np.all(np.diff(values) <= 1e-12)
    assert values[-1] < values[1] - 0.1


@pytest.mark.parametrize("name", [name for name in SMOOTH if name != "squared"])
def test_smooth_losses_converge_to_the_minimiser(name):
    """∂ℓ·w + αW = 0 for each row; and L-BFGS on the same convex objective finds no lower value."""
    loss, y = TARGETS[name]
    found = coefficients(learner(loss, y, sweeps=40))
    np.testing.assert_allclose(WEIGHTS[:, None] * loss.gradient(K @ found, y) + ALPHA * found, 0, atol=1e-8)
    root = np.linalg.cholesky(K)  # with f = Lz and K = LLᵀ the problem is well conditioned

    def flat(z):
        f = root @ z.reshape(y.shape)
        value = WEIGHTS @ loss.value(f, y) + ALPHA / 2 * z @ z
        return float(value), (root.T @ (WEIGHTS[:, None] * loss.gradient(f, y))).ravel() + ALPHA * z

    best = minimize(flat, np.zeros(y.size), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
    assert objective(loss, y, found) <= best.fun + 1e-9
    np.testing.assert_allclose(K @ found, root @ best.x.reshape(y.shape), atol=1e-6)


@pytest.mark.parametrize("name", KINKED)
def test_losses_with_kinks_converge_to_the_minimiser(name):
    """The dual −αW/w lies in the subdifferential: at an end of it off the kink, anywhere in it on the kink.

    And the box-constrained dual problem, solved by another road, has the same solution.
    """
    loss, y = TARGETS[name]
    found = coefficients(learner(loss, y, sweeps=60))
    dual, f = (-ALPHA * found / WEIGHTS[:, None])[:, 0], (K @ found)[:, 0]
    # Hinge: the part of the subgradient −y, from 0 to 1, by the margin; quantile: dual + q by the residual.
    side, part = (1 - y[:, 0] * f, -dual * y[:, 0]) if name == "hinge" else (f - y[:, 0], dual + 0.7)
    assert (part > -1e-9).all()
    assert (part < 1 + 1e-9).all()
    np.testing.assert_allclose(part[side > 1e-5], 1, atol=1e-6)
    np.testing.assert_allclose(part[side < -1e-5], 0, atol=1e-6)
    on_the_kink = np.abs(side) < 1e-5
    assert 0 < on_the_kink.sum() < N

    # min ½aᵀKa/α − ⟨b, a⟩ over the box of a = αW: of hinge 0 ≤ y·a ≤ w, of quantile (q − 1)w ≤ a ≤ qw.
    bounds = [
        sorted((0.0, sign * w)) if name == "hinge" else (-0.3 * w, 0.7 * w)
        for sign, w in zip(y[:, 0], WEIGHTS, strict=True)
    ]
    best = minimize(
        lambda a: (a @ K @ a / (2 * ALPHA) - a @ y[:, 0], K @ a / ALPHA - y[:, 0]),
        np.zeros(N),
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": 10000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-10},
    )
    assert objective(loss, y, found) == pytest.approx(-best.fun, rel=1e-8)
    np.testing.assert_allclose(f, K @ best.x / ALPHA, atol=1e-4)


def solved(name, rounds, tol=1e-12, weights=WEIGHTS, put=np.asarray):
    """The weights of all rows as one block, and what is left of the gradient."""
    loss, y = TARGETS[name]
    zero = np.zeros_like(y)
    arrays = (put(part) for part in (K, zero, y, weights, zero))
    return solve_block(*arrays, loss, ALPHA, tol, rounds)


@pytest.mark.parametrize("name", ["logistic", "quantile"])
def test_padded_rows_change_nothing(name):
    """A row of weight 0 has no weight in f, and the others are solved for as if it were not there."""
    loss, y = TARGETS[name]
    there = np.arange(N) < N - 4
    found, _ = solved(name, 9, weights=np.where(there, WEIGHTS, 0))
    kept, alone = np.ix_(there, there), np.zeros_like(y[there])
    expected, _ = solve_block(K[kept], alone, y[there], WEIGHTS[there], alone, loss, ALPHA, 1e-12, 9)
    assert not np.any(found[~there])
    np.testing.assert_allclose(found[there], expected, rtol=1e-9, atol=1e-12)


def test_a_block_is_solved_for_to_its_tolerance_or_for_its_rounds():
    loss, y = TARGETS["logistic"]
    left = {}
    for rounds, tol in ((2, 1e-12), (4, 1e-12), (200, 1e-3), (200, 1e-9)):
        weights, _ = solved("logistic", rounds, tol)
        left[rounds, tol] = np.abs(loss.gradient(K @ weights, y) + ALPHA * weights / WEIGHTS[:, None]).max()
    assert left[2, 1e-12] > 2 * left[4, 1e-12] > left[200, 1e-3] > left[200, 1e-9]
    assert left[200, 1e-3] < 1e-3
    assert left[200, 1e-9] < 1e-9


def test_weights_are_repetitions():
    """A row of weight 2 is the row twice: the function is the same."""
    loss, y = TARGETS["logistic"]
    weights = np.ones(N)
    weights[:3] = 2
    rows = np.concatenate([np.arange(N), [0, 1, 2]])
    once, twice = learner(loss, y, weights, sweeps=30), learner(loss, y[rows], np.ones(N + 3), X[rows], sweeps=30)
    new = np.random.default_rng(1).normal(size=(5, D))
    np.testing.assert_allclose(*(found.predict(new, FeatureFrame()) for found in (once, twice)), atol=1e-5)


def test_single_precision_is_solved_as_far_as_it_goes():
    loss, y = TARGETS["squared"]
    found = coefficients(learner(loss, y, dtype=np.float32, sweeps=40))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.linalg.solve(K + np.diag(ALPHA / WEIGHTS), y), atol=2e-4)


@pytest.mark.parametrize("name", ["squared", "quantile", "softmax"])
def test_host_and_device_solve_a_block_alike(name):
    """One function, by NumPy and compiled."""
    expected, left = solved(name, 300, 1e-10)
    found, other = jax.jit(lambda: solved(name, 300, 1e-10, put=jnp.asarray))()
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert max(float(left), float(other)) <= 1e-9


def test_a_kernel_without_a_numpy_implementation_is_solved_for_by_compiled_programs():
    _, y = TARGETS["squared"]
    kernel = Laplacian(1.5)
    settings = Settings(loss=SquaredLoss(), kernel=kernel, alpha=ALPHA, method=Auto(block_size=32, tol=1e-10), passes=1)
    found = fit(Table(X, y, WEIGHTS), settings, seed=0)
    matrix = np.asarray(kernel(jnp.asarray(X)))
    exact = matrix @ np.linalg.solve(matrix + np.diag(ALPHA / WEIGHTS), y)
    np.testing.assert_allclose(found.predict(X), exact, atol=1e-8)


class Interrupted(QuantileLoss):
    """The median, with Ctrl-C in its thirtieth gradient."""

    def smoothed_gradient(self, f, y, dual):
        counted.append(1)
        if len(counted) == 30:
            signal.raise_signal(signal.SIGINT)
        return super().smoothed_gradient(f, y, dual)


counted = []


def test_an_interrupt_ends_the_rounds_of_a_lone_block_and_keeps_them():
    settings = Settings(loss=Interrupted(0.5), kernel=KERNEL, alpha=0.01, method=Auto(tol=1e-12))
    with pytest.warns(UserWarning, match="interrupted .*: the result is what was reached so far"):
        found = fit(Table(X, NOISY[:, None], np.ones(N)), settings, seed=0)
    assert len(counted) == 30
    assert np.all(np.isfinite(found.predict(X)))
