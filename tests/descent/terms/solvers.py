"""Brute force: minimise h(u) + ‖u − x‖²/(2t) on flat NumPy vectors, knowing nothing of Thalweg's formulas."""

import numpy as np
from scipy.optimize import lsq_linear, minimize


def by_coordinate(phi, low=-1e3, high=1e3):
    """Minimise Σφ_i(u_i) + (u_i − x_i)²/(2t) by golden sections on [low, high], all coordinates at once."""

    def solve(x, step):
        ratio = (5**0.5 - 1) / 2
        a, b = (np.broadcast_to(np.asarray(end, float), x.shape).copy() for end in (low, high))
        cost = lambda u: phi(u) + (u - x) ** 2 / (2 * step)
        for _ in range(120):
            c, d = b - ratio * (b - a), a + ratio * (b - a)
            left = cost(c) < cost(d)
            a, b = np.where(left, a, c), np.where(left, d, b)
        return (a + b) / 2

    return solve


def by_slsqp(constraints, bounds=None, start=None):
    """Project by sequential quadratic programming on the constraints."""

    def solve(x, step):
        first = np.full(x.shape, 0.1) if start is None else start
        fit = minimize(
            lambda u: 0.5 * np.sum((u - x) ** 2),
            first,
            jac=lambda u: u - x,
            method="SLSQP",
            bounds=bounds,
            constraints=constraints,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        return fit.x

    return solve


def by_dual_balls(groups, weights):
    """Σ w_g‖u_g‖ is the maximum of ⟨v, u⟩ over ‖v_g‖ ≤ w_g: solve the smooth dual in v instead."""

    def solve(x, step):
        inside = [
            {
                "type": "ineq",
                "fun": lambda v, m=groups == g, w=w: w**2 - np.sum(v[m] ** 2),
                "jac": lambda v, m=groups == g: -2 * v * m,
            }
            for g, w in enumerate(weights)
        ]
        return x - step * by_slsqp(inside)(x / step, 1.0)

    return solve


def by_l1_split(radius):
    """Project on the L1 ball with u = p − q, p ≥ 0, q ≥ 0, Σp + Σq ≤ radius."""

    def solve(x, step):
        n = x.size
        room = {"type": "ineq", "fun": lambda z: radius - z.sum(), "jac": lambda z: -np.ones(2 * n)}
        fit = minimize(
            lambda z: 0.5 * np.sum((z[:n] - z[n:] - x) ** 2),
            np.full(2 * n, 0.01),
            jac=lambda z: np.concatenate([z[:n] - z[n:] - x, x - z[:n] + z[n:]]),
            method="SLSQP",
            bounds=[(0, None)] * (2 * n),
            constraints=[room],
            options={"ftol": 1e-15, "maxiter": 500},
        )
        return fit.x[:n] - fit.x[n:]

    return solve


def by_rotations(low, high):
    """Project on symmetric matrices with bounded spectrum: search over rotations and eigenvalues."""

    def matrix(z):
        skew = np.array([[0, z[0], z[1]], [-z[0], 0, z[2]], [-z[1], -z[2], 0]])
        rotation = np.linalg.solve(np.eye(3) + skew, np.eye(3) - skew)
        return rotation @ np.diag(z[3:]) @ rotation.T

    def solve(x, step):
        target = x.reshape(3, 3)
        rng = np.random.default_rng(1)
        fits = [
            minimize(
                lambda z: 0.5 * np.sum((matrix(z) - target) ** 2),
                np.concatenate([rng.normal(size=3), rng.uniform(0.2, 0.8, 3)]),
                method="L-BFGS-B",
                bounds=[(None, None)] * 3 + [(low, high)] * 3,
                options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 500},
            )
            for _ in range(2)
        ]
        return matrix(min(fits, key=lambda fit: fit.fun).x).ravel()

    return solve


def by_factors(shape, rank, weight):
    """min over U, V of ½‖UVᵀ − X‖²/t + w/2(‖U‖² + ‖V‖²): nuclear norm, or the best matrix of a rank (w = 0)."""
    rows, columns = shape

    def split(z):
        return z[: rows * rank].reshape(rows, rank), z[rows * rank :].reshape(columns, rank)

    def solve(x, step):
        target = x.reshape(shape)
        scale = weight * step

        def cost(z):
            u, v = split(z)
            gap = u @ v.T - target
            gradient = np.concatenate([(gap @ v + scale * u).ravel(), (gap.T @ u + scale * v).ravel()])
            return 0.5 * np.sum(gap**2) + scale / 2 * np.sum(z**2), gradient

        rng = np.random.default_rng(1)
        options = {"gtol": 1e-10, "ftol": 1e-16, "maxiter": 5000, "maxfun": 20000}
        fits = [
            minimize(cost, rng.normal(size=(rows + columns) * rank), jac=True, method="L-BFGS-B", options=options)
            for _ in range(2)
        ]
        u, v = split(min(fits, key=lambda fit: fit.fun).x)
        return (u @ v.T).ravel()

    return solve


def by_dual_differences(rows, weight):
    """Total variation: x − Dᵀu with u the solution of a least-squares problem in a box."""

    def solve(x, step):
        signals = x.reshape(rows, -1)
        jumps = np.diff(np.eye(signals.shape[1]), axis=0)
        room = step * weight
        duals = [lsq_linear(jumps.T, s, bounds=(-room, room), method="bvls", tol=1e-15).x for s in signals]
        return np.concatenate([s - jumps.T @ u for s, u in zip(signals, duals, strict=True)])

    return solve


def shifted(solve, shift):
    return lambda x, step: shift + solve(x - shift, step)


def piecewise(solvers, cuts):
    """Solve each part of a flat vector on its own."""

    def solve(x, step):
        parts = np.split(x, cuts)
        return np.concatenate([one(part, step) for one, part in zip(solvers, parts, strict=True)])

    return solve
