"""Visits to landmarks: the exact solution for the squared loss, optimality for the others, padding that is nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy.optimize import minimize
from thalweg.machines.functional import Batch
from thalweg.machines.visits import Examples, Visitor, absorb, fill, revisit

from thalweg.kernels import Gaussian, Laplacian, Matern32
from thalweg.machines import Auto, Points, Rows, Settings, empty, fit, host, predict
from thalweg.machines.losses import (
    HingeLoss,
    HuberLoss,
    LogisticLoss,
    QuantileLoss,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
)

SIZE, BLOCKS, D = 8, 3, 2
N = SIZE * BLOCKS - 3  # the last block has three empty places
ALPHA = 0.3
rng = np.random.default_rng(0)
X = rng.normal(size=(N, D))
NOISY = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=N)
WEIGHTS = rng.uniform(0.3, 3.0, size=N)
K = reference.gaussian(X, X, 0.8, 1.5)
KERNEL = Gaussian(0.8, 1.5)
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


def blocks(y, weights, x=X, filler=0.0):
    """The examples in blocks, with padding at the end."""
    pad = lambda array: np.concatenate([array, np.full((SIZE * BLOCKS - N, *array.shape[1:]), filler)])
    parts = pad(x), np.concatenate([y, np.repeat(y[:1], SIZE * BLOCKS - N, axis=0)])
    weights = np.concatenate([weights, np.zeros(SIZE * BLOCKS - N)])
    return Batch(*(part.reshape(BLOCKS, SIZE, *part.shape[1:]) for part in (*parts, weights)))


def absorbed(loss, batches, rounds=200, tol=1e-10, alpha=ALPHA):
    parts = Points(KERNEL, SIZE)
    visitor = Visitor(parts, loss, jnp.asarray(alpha), jnp.asarray(tol), rounds)
    outputs = batches.y.shape[2]
    examples = Examples(jnp.zeros((BLOCKS, SIZE, outputs)), jnp.zeros((BLOCKS, SIZE)))
    return visitor, *absorb(visitor, empty(parts, D, outputs, BLOCKS, jnp.float64), examples, batches)


def converged(loss, batches, sweeps=400, **options):
    visitor, expansion, examples, _ = absorbed(loss, batches, **options)
    expansion, residuals = revisit(visitor, expansion, examples, np.tile(np.arange(BLOCKS, dtype=np.int32), sweeps))
    return visitor, expansion, residuals


def coefficients(expansion):
    weights = np.asarray(expansion.scale * expansion.weights)
    return weights.reshape(-1, weights.shape[2])


slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("weights", [slow(np.ones(N)), WEIGHTS], ids=["plain", "weighted"])
def test_visits_to_several_blocks_converge_to_kernel_ridge(weights):
    """Σ w(f − y)²/2 + α/2·‖f‖² has the coefficients (K + α/w)⁻¹y."""
    loss, y = TARGETS["squared"]
    visitor, expansion, residuals = converged(loss, blocks(y, weights))
    exact = np.linalg.solve(K + np.diag(ALPHA / weights), y)
    found = coefficients(expansion)
    np.testing.assert_allclose(found[:N], exact, rtol=1e-6, atol=1e-8)
    assert (found[N:] == 0).all()
    assert residuals[-1] < 1e-8
    np.testing.assert_allclose(predict(visitor.coordinates, expansion, X), K @ exact, rtol=1e-6, atol=1e-8)


def test_one_visit_solves_for_a_block_with_the_others_held_fixed():
    loss, y = TARGETS["squared"]
    batches = blocks(y, WEIGHTS)
    _, expansion, examples, before = absorbed(loss, batches)
    first = np.linalg.solve(K[:SIZE, :SIZE] + np.diag(ALPHA / WEIGHTS[:SIZE]), y[:SIZE])
    second = slice(SIZE, 2 * SIZE)
    rest = y[second] - K[second, :SIZE] @ first
    np.testing.assert_allclose(expansion.weights[0], first, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(
        expansion.weights[1], np.linalg.solve(K[second, second] + np.diag(ALPHA / WEIGHTS[second]), rest), rtol=1e-7
    )
    # What was predicted before a batch was seen.
    np.testing.assert_array_equal(before[0], 0)
    np.testing.assert_allclose(before[1], K[second, :SIZE] @ first, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(examples.targets[1], batches.y[1])


def objective(loss, y, c):
    f = jnp.asarray(K) @ c
    return jnp.vdot(WEIGHTS, loss.value(f, jnp.asarray(y))) + ALPHA / 2 * jnp.vdot(c, f)


@pytest.mark.parametrize("name", [slow("logistic"), slow("softmax"), "squared_hinge", slow("huber")])
def test_smooth_losses_converge_to_the_minimiser(name):
    """∂ℓ·w + αW = 0 for each row; and L-BFGS on the same convex objective finds no lower value."""
    loss, y = TARGETS[name]
    _, expansion, _ = converged(loss, blocks(y, WEIGHTS))
    found = coefficients(expansion)[:N]
    gradient = np.asarray(loss.gradient(K @ found, jnp.asarray(y)))
    np.testing.assert_allclose(WEIGHTS[:, None] * gradient + ALPHA * found, 0, atol=1e-8)

    # With f = Lz and K = LLᵀ the problem is well conditioned.
    root = np.linalg.cholesky(K)
    fun = jax.jit(
        jax.value_and_grad(
            lambda z: jnp.vdot(WEIGHTS, loss.value(root @ z, jnp.asarray(y))) + ALPHA / 2 * jnp.vdot(z, z)
        )
    )

    def flat(z):
        value, slope = fun(z.reshape(y.shape))
        return float(value), np.asarray(slope).ravel()

    best = minimize(flat, np.zeros(y.size), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
    assert best.nfev < 500
    assert float(objective(loss, y, found)) <= best.fun + 1e-9
    np.testing.assert_allclose(K @ found, root @ best.x.reshape(y.shape), atol=1e-6)


@pytest.mark.parametrize("name", [slow("hinge"), "quantile"])
def test_losses_with_kinks_converge_to_the_minimiser(name):
    """The dual −αW/w lies in the subdifferential: at an end of it off the kink, anywhere in it on the kink.

    And the box-constrained dual problem, solved by another road, has the same solution.
    """
    loss, y = TARGETS[name]
    _, expansion, _ = converged(loss, blocks(y, WEIGHTS))
    found = coefficients(expansion)[:N]
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
    assert float(objective(loss, y, found)) == pytest.approx(-best.fun, rel=1e-8)
    np.testing.assert_allclose(f, K @ best.x / ALPHA, atol=1e-4)


def test_padded_rows_change_nothing():
    """Whatever lies in the empty places: features, and how many of them there are."""
    loss, y = TARGETS["logistic"]
    _, plain, _, values = absorbed(loss, blocks(y, WEIGHTS), rounds=7)
    _, other, _, other_values = absorbed(loss, blocks(y, WEIGHTS, filler=3.7), rounds=7)
    np.testing.assert_allclose(other.weights, plain.weights, rtol=1e-12, atol=1e-15)
    there = blocks(y, WEIGHTS).weights > 0
    np.testing.assert_allclose(other_values[there], values[there], rtol=1e-12)
    assert (np.asarray(plain.weights[-1, -3:]) == 0).all()


@pytest.mark.slow
def test_a_visit_ends_at_its_tolerance_or_after_its_rounds():
    loss, y = TARGETS["logistic"]
    batches = blocks(y, WEIGHTS)
    residual = {}
    for rounds, tol in ((1, 1e-12), (3, 1e-12), (200, 1e-3), (200, 1e-9)):
        _, expansion, *_ = absorbed(loss, batches, rounds=rounds, tol=tol)
        f = K[:SIZE, :SIZE] @ np.asarray(expansion.weights[0])
        dual = -ALPHA * np.asarray(expansion.weights[0]) / WEIGHTS[:SIZE, None]
        residual[rounds, tol] = np.abs(loss.gradient(f, jnp.asarray(y[:SIZE])) - dual).max()
    assert residual[1, 1e-12] > 2 * residual[3, 1e-12] > residual[200, 1e-3] > residual[200, 1e-9]
    assert residual[200, 1e-3] < 1e-3
    assert residual[200, 1e-9] < 1e-9


@pytest.mark.slow
def test_weights_are_repetitions():
    """A row of weight 2 is the row twice: the function is the same."""
    loss, y = TARGETS["logistic"]
    weights = np.ones(N)
    weights[:3] = 2
    visitor, weighted, _ = converged(loss, blocks(y, weights))
    rows = np.concatenate([np.arange(N), [0, 1, 2]])
    full = Batch(*(part.reshape(BLOCKS, SIZE, *part.shape[1:]) for part in (X[rows], y[rows], np.ones(N + 3))))
    _, repeated, _ = converged(loss, full)
    new = rng.normal(size=(5, D))
    np.testing.assert_allclose(
        predict(visitor.coordinates, weighted, new),
        predict(visitor.coordinates, repeated, new),
        atol=1e-6,
    )


@pytest.mark.slow
def test_single_precision_is_solved_as_far_as_it_goes():
    loss, y = TARGETS["squared"]
    with jax.enable_x64(False):
        batches = Batch(*(np.asarray(part, np.float32) for part in blocks(y, WEIGHTS)))
        parts = Points(Gaussian(0.8, 1.5), SIZE)
        visitor = Visitor(parts, loss, jnp.asarray(ALPHA), jnp.asarray(1e-6), 5)
        examples = Examples(jnp.zeros((BLOCKS, SIZE, 2)), jnp.zeros((BLOCKS, SIZE)))
        expansion, examples, _ = absorb(visitor, empty(parts, D, 2, BLOCKS, jnp.float32), examples, batches)
        expansion, _ = revisit(visitor, expansion, examples, np.tile(np.arange(BLOCKS, dtype=np.int32), 400))
        found = coefficients(expansion)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:N], np.linalg.solve(K + np.diag(ALPHA / WEIGHTS), y), atol=2e-4)


def test_visits_by_numpy_are_the_compiled_ones():
    """Of squares on a CPU none is compiled; a kernel that is not written out is, and so are other losses."""
    loss, y = TARGETS["squared"]
    visitor, *found = absorbed(loss, blocks(y, WEIGHTS), rounds=5)
    examples = Examples(jnp.zeros((BLOCKS, SIZE, 2)), jnp.zeros((BLOCKS, SIZE)))
    begun = empty(visitor.coordinates, D, 2, BLOCKS, jnp.float64)
    by_numpy = host.absorb(visitor, begun, examples, blocks(y, WEIGHTS))
    assert isinstance(by_numpy[2], np.ndarray)
    for ours, theirs in zip(jax.tree.leaves(by_numpy), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-8)
    order = np.array([2, 0, 1], np.int32)
    again, short = host.revisit(visitor, *by_numpy[:2], order)
    expected, residual = revisit(visitor, *found[:2], order)
    np.testing.assert_allclose(again.weights, expected.weights, atol=1e-8)
    assert np.all(short <= 1e-8)
    assert np.all(np.asarray(residual) <= 1e-8)
    more = Batch(*(np.concatenate([part[:3], 0 * part[3:SIZE]]) for part in (X + 0.1, y, WEIGHTS)))
    filled = [put(visitor, *found[:2], more, np.int32(SIZE - 3)) for put in (host.fill, fill)]
    for ours, theirs in zip(*map(jax.tree.leaves, filled), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-8)
    other = Visitor(Points(Laplacian(), SIZE), loss, jnp.asarray(ALPHA), jnp.asarray(0.1), 5)
    assert isinstance(host.absorb(other, begun, examples, blocks(y, WEIGHTS))[2], jax.Array)


@pytest.mark.parametrize("name", ["hinge", "quantile", "huber", "softmax"])
def test_the_rounds_of_a_lone_block_by_numpy_are_the_compiled_ones(name):
    loss, y = TARGETS[name]
    points = Points(KERNEL, N + 2)
    visitor = Visitor(points, loss, jnp.asarray(ALPHA), jnp.asarray(1e-9), 1000)
    batches = Batch(*(np.concatenate([part, part[:2]])[None] for part in (X, y, WEIGHTS)))
    batches.weights[0, -2:] = 0  # empty places
    outputs = y.shape[1]
    begun = empty(points, D, outputs, 1, jnp.float64)
    examples = Examples(jnp.zeros((1, N + 2, outputs)), jnp.zeros((1, N + 2)))
    by_numpy, compiled = (way(visitor, begun, examples, batches) for way in (host.absorb, absorb))
    assert isinstance(by_numpy[2], np.ndarray)
    np.testing.assert_allclose(by_numpy[0].weights, compiled[0].weights, atol=1e-7)
    assert np.all(np.asarray(by_numpy[0].weights)[0, -2:] == 0)


def test_an_interrupt_ends_the_rounds_of_a_lone_block_and_keeps_them(monkeypatch):
    """They were one program: it was up to ten seconds until 1,500 rows answered."""
    gradient, seen = QuantileLoss.smoothed_gradient, []

    def interrupted(loss, *given):
        seen.append(1)
        if len(seen) == 30:
            raise KeyboardInterrupt
        return gradient(loss, *given)

    monkeypatch.setattr(QuantileLoss, "smoothed_gradient", interrupted)
    settings = Settings(loss=QuantileLoss(0.5), kernel=KERNEL, alpha=0.01, method=Auto(tol=1e-12))
    with pytest.warns(UserWarning, match="interrupted in pass 1 of 1: the model keeps"):
        fitted = fit(Rows(X, NOISY[:, None], np.ones(N)), settings, seed=0)
    assert len(seen) == 30
    assert np.mean(np.abs(fitted.predict(X)[:, 0] - NOISY)) < 0.3 * np.mean(np.abs(NOISY))


@pytest.mark.parametrize("kernel", [Gaussian(5.0, 1.5), Matern32(np.linspace(4.0, 6.0, 40)), Laplacian(9.0)])
def test_features_by_tensor_cores_are_those_of_the_kernel(monkeypatch, kernel):
    x, block = (rng.normal(size=(rows, 40)).astype(np.float32) for rows in (12, 8))
    points = Points(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), kernel), block_size=8)
    exact = points.evaluate(jnp.asarray(x), jnp.asarray(block))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = points.evaluate(jnp.asarray(x), jnp.asarray(block))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=2e-5)
