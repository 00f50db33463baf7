"""The rates of equations.md §1, on problems whose optimum is known."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from thalweg.descent import (
    FISTA,
    L1,
    AdaptiveRestart,
    Descent,
    Euclidean,
    HeavyBall,
    NegativeEntropy,
    Nesterov,
    PolyakRuppert,
    Simplex,
)
from thalweg.oracles import SVRG, Exact, MiniBatch


@eqx.filter_jit
def scanned(descent, x, steps):
    """Methods that differ in their numbers alone share this program."""

    def step(state, key):
        state, info = descent.update(state, key)
        return state, (state.x, info)

    return jax.lax.scan(step, descent.init(x), jax.random.split(jax.random.key(0), steps))[1]


def trajectory(descent, x, steps):
    """Iterates x_1 … x_steps and infos."""
    return jax.tree.map(np.asarray, scanned(descent, x, steps))


LOW, HIGH = 0.5, 40.0
CURVATURES = np.linspace(LOW, HIGH, 30)
KAPPA = HIGH / LOW
START = np.ones(30)


def quadratic(x):
    return 0.5 * jnp.sum(CURVATURES * x**2)


@pytest.mark.parametrize("beta", [0.01, 2 / (LOW + HIGH), 0.0498])
def test_gradient_descent_contracts_by_the_stated_factor(beta):
    xs, _ = trajectory(Descent(quadratic, step=beta), START, 400)
    errors = np.linalg.norm(xs, axis=1)
    measured = (errors[399] / errors[299]) ** (1 / 100)
    stated = max(abs(1 - beta * LOW), abs(1 - beta * HIGH))
    assert measured == pytest.approx(stated, rel=0.01)
    assert np.all(errors[1:] <= stated * errors[:-1] * (1 + 1e-12))


def test_heavy_ball_reaches_its_asymptotic_rate():
    beta = 4 / (np.sqrt(LOW) + np.sqrt(HIGH)) ** 2
    rate = (np.sqrt(KAPPA) - 1) / (np.sqrt(KAPPA) + 1)
    xs, _ = trajectory(Descent(quadratic, step=beta, momentum=HeavyBall(rate**2)), START, 120)
    errors = np.linalg.norm(xs, axis=1)
    # At the optimal parameters the error is (polynomial in k) · rate^k, hence the allowance above one.
    measured = (errors[119] / errors[59]) ** (1 / 60)
    assert rate <= measured <= rate * 1.03
    plain = (KAPPA - 1) / (KAPPA + 1)
    assert measured < plain**4


@cache
def hardest(dimension):
    """Nesterov's worst function, its optimum in closed form, and L = 4."""
    solution = 1 - np.arange(1, dimension + 1) / (dimension + 1)

    def f(x):
        return 0.5 * (x[0] ** 2 + jnp.sum(jnp.diff(x) ** 2) + x[-1] ** 2) - x[0]

    return f, solution


@pytest.mark.parametrize("momentum", [Nesterov(), FISTA()])
def test_accelerated_bound_on_the_hardest_smooth_function(momentum):
    f, solution = hardest(100)
    # Half of the linear part, since the gradient vanishes there.
    best, distance = -solution[0] / 2, float(np.sum(solution**2))
    k = np.arange(1, 501)
    bound = 2 * 4 * distance / (k + 1) ** 2
    _, info = trajectory(Descent(f, step=1 / 4, momentum=momentum), np.zeros(100), 500)
    assert np.all(info.value - best <= bound)
    # The bound tells methods apart: gradient descent breaks it.
    _, plain = trajectory(Descent(f, step=1 / 4), np.zeros(100), 500)
    assert np.any(plain.value - best > bound)


@pytest.fixture(scope="module")
def lasso():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(40, 100))
    b = rng.normal(size=40)
    bound = float(np.linalg.norm(A, 2) ** 2)
    f = lambda x: 0.5 * jnp.sum((A @ x - b) ** 2)
    descent = Descent(f, term=L1(3.0), step=1 / bound, momentum=AdaptiveRestart())
    xs, _ = trajectory(descent, np.zeros(100), 3000)
    x = xs[-1]
    # The optimality conditions certify the reference, independently of the method.
    slope = A.T @ (b - A @ x)
    assert np.all(np.abs(slope) <= 3.0 + 1e-9)
    assert np.allclose(slope[x != 0], 3.0 * np.sign(x[x != 0]), atol=1e-9)
    return f, bound, x, 0.5 * np.sum((A @ x - b) ** 2) + 3.0 * np.sum(np.abs(x))


def test_fista_keeps_the_rate_with_a_prox(lasso):
    f, bound, solution, best = lasso
    _, info = trajectory(Descent(f, term=L1(3.0), step=1 / bound, momentum=FISTA()), np.zeros(100), 400)
    k = np.arange(1, 401)
    assert np.all(info.value - best <= 2 * bound * np.sum(solution**2) / (k + 1) ** 2 + 1e-10)


def test_proximal_gradient_bound(lasso):
    f, bound, solution, best = lasso
    _, info = trajectory(Descent(f, term=L1(3.0), step=1 / bound), np.zeros(100), 400)
    k = np.arange(1, 401)
    assert np.all(info.value - best <= bound * np.sum(solution**2) / (2 * k) + 1e-10)
    assert np.all(np.diff(info.value) <= 1e-12)


@pytest.fixture(scope="module")
def absolute_deviations():
    """E|a·x − b| with a one-example batch: the mean gap after steps of a size, C² ≥ E‖ĝ‖², and G, how far 0 is off."""
    rng = np.random.default_rng(2)
    n, d = 200, 5
    a = rng.normal(size=(n, d))
    b = a @ rng.normal(size=d) + rng.normal(size=n)
    # Least absolute deviations as a linear program: the optimum, exactly.
    program = scipy.optimize.linprog(
        np.r_[np.zeros(d), np.full(2 * n, 1 / n)],
        A_eq=np.c_[a, np.eye(n), -np.eye(n)],
        b_eq=b,
        bounds=[(None, None)] * d + [(0, None)] * (2 * n),
    )
    C = float(np.sqrt(np.mean(np.sum(a**2, axis=1))))
    G = float(np.linalg.norm(program.x[:d]))
    oracle = MiniBatch(lambda x, batch: jnp.abs(batch[0] @ x - batch[1]), (a, b), batch_size=1)

    @jax.jit
    def mean_gap(size, steps):
        descent = Descent(oracle, step=size, average=PolyakRuppert())

        def gap(key):
            step = lambda k, state: descent.update(state, jax.random.fold_in(key, k))[0]
            state = jax.lax.fori_loop(0, steps, step, descent.init(np.zeros(d)))
            return oracle.value(descent.solution(state)) - program.fun

        return jnp.mean(jax.vmap(gap)(jax.random.split(jax.random.key(0), 50)))

    return mean_gap, C, G


@pytest.mark.parametrize("steps", [100, 1600])
def test_averaged_sgd_bound_in_mean_over_seeds(steps, absolute_deviations):
    gap, C, G = absolute_deviations
    mean_gap = lambda size: float(gap(size, steps))
    best_size = G / (C * np.sqrt(steps))
    assert 0 <= mean_gap(best_size) <= C * G / np.sqrt(steps)
    # The bound is one of that step: a step far longer or far shorter breaks it.
    assert mean_gap(1000 * best_size) > C * G / np.sqrt(steps)
    assert mean_gap(best_size / 1000) > C * G / np.sqrt(steps)


def test_svrg_converges_linearly_where_sgd_stalls():
    """Outer loops contract the gap by at least ρ = 1/(μη(1−2Lη)T) + 2Lη/(1−2Lη), in mean over seeds."""
    rng = np.random.default_rng(3)
    n, d = 100, 5
    a = rng.normal(size=(n, d))
    b = rng.normal(size=n)
    ridge = 0.5
    losses = lambda x, batch: 0.5 * (batch[0] @ x - batch[1]) ** 2 + ridge / 2 * jnp.sum(x**2)
    oracle = MiniBatch(losses, (a, b), batch_size=1)
    hessian = a.T @ a / n + ridge * np.eye(d)
    solution = np.linalg.solve(hessian, a.T @ b / n)
    best = np.mean((a @ solution - b) ** 2) / 2 + ridge / 2 * solution @ solution
    L = float(np.max(np.sum(a**2, axis=1))) + ridge
    mu = float(np.linalg.eigvalsh(hessian)[0])
    eta = 0.1 / L
    period = int(np.ceil(25 * L / mu))
    rho = 1 / (mu * eta * (1 - 2 * L * eta) * period) + 2 * L * eta / (1 - 2 * L * eta)
    assert rho < 0.8
    descent = Descent(SVRG(oracle, period), step=eta)
    sgd = Descent(oracle, step=eta)

    def outer(state, key):
        state, _ = jax.lax.scan(descent.update, state, jax.random.split(key, period))
        state = descent.renew(state)
        return state, oracle.value(state.x) - best

    def one_run(key):
        start = descent.init(np.zeros(d))
        _, gaps = jax.lax.scan(outer, start, jax.random.split(key, 12))
        last, _ = jax.lax.scan(sgd.update, sgd.init(np.zeros(d)), jax.random.split(key, 2000))
        return gaps, oracle.value(last.x) - best

    gaps, stalled = map(np.asarray, jax.jit(jax.vmap(one_run))(jax.random.split(jax.random.key(1), 10)))
    mean = np.mean(gaps, axis=0)
    first = np.mean(b**2) / 2 - best
    assert np.all(mean <= first * rho ** np.arange(1.0, 13.0))
    assert mean[-1] < 1e-4 * np.mean(stalled)


@pytest.fixture(scope="module")
def games():
    """min over the simplex of max_i aᵢ·x with entries ±1, whose value a linear program gives exactly."""

    def make(dimension):
        matrix = np.random.default_rng(dimension).choice([-1.0, 1.0], size=(50, dimension))
        cost = np.r_[np.zeros(dimension), 1.0]
        upper = np.c_[matrix, -np.ones(50)]
        total = np.r_[np.ones(dimension), 0.0][None]
        bounds = [(0, None)] * dimension + [(None, None)]
        program = scipy.optimize.linprog(cost, upper, np.zeros(50), total, [1.0], bounds, method="highs")
        return jnp.asarray(matrix), program.fun

    return {dimension: make(dimension) for dimension in (100, 3000)}


@pytest.mark.slow
def test_mirror_descent_pays_only_the_root_of_log_d(games):
    """Same problem, same oracle, each geometry with the step of its own theorem: √log d against √d."""
    steps = 400
    gaps = {}
    for dimension, (matrix, best) in games.items():
        oracle = Exact(lambda x, m: jnp.max(m @ x), matrix)
        sizes = {
            NegativeEntropy(): np.sqrt(2 * np.log(dimension) / steps),
            Euclidean(): np.sqrt(2) / np.sqrt(dimension * steps),
        }
        for geometry, size in sizes.items():
            descent = Descent(oracle, term=Simplex(), divergence=geometry, step=size)
            start = np.full(dimension, 1 / dimension)
            xs, _ = trajectory(descent, start, steps)
            points = np.concatenate([start[None], xs[:-1]])
            gaps[type(geometry).__name__, dimension] = np.max(np.asarray(matrix) @ points.mean(axis=0)) - best
        assert gaps["NegativeEntropy", dimension] <= np.sqrt(2 * np.log(dimension) / steps)
        assert gaps["NegativeEntropy", dimension] < gaps["Euclidean", dimension]
    advantage = {d: gaps["Euclidean", d] / gaps["NegativeEntropy", d] for d in games}
    assert advantage[100] > 2
    assert advantage[3000] > 1.4 * advantage[100]


def test_the_subgradient_method_converges_as_one_over_the_root_of_k():
    """max |A x − b|: the best of k steps of size R/(C√k) is within RC/√k, and is not much better than that."""
    rng = np.random.default_rng(4)
    a = rng.normal(size=(60, 30))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    solution = rng.normal(size=30)
    b = a @ solution
    # C = 1: a subgradient is a row of A, up to its sign.
    distance = float(np.linalg.norm(solution))
    largest = lambda x: jnp.max(jnp.abs(a @ x - b))
    for steps in (100, 400, 1600):
        _, info = trajectory(Descent(largest, step=distance / np.sqrt(steps)), np.zeros(30), 1600)
        best = float(np.min(info.value[:steps]))
        assert best <= distance / np.sqrt(steps)
        assert best >= 0.01 * distance / np.sqrt(steps)
