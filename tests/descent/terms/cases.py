"""One table of cases, with independent solvers for each.

Everything here is written on flat NumPy vectors and knows nothing of Thalweg's formulas: a case says what its
function is (``value``), how to draw points where it is finite (``member``), and how to minimise
h(u) + ‖u − x‖²/(2t) by brute force (``solve``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from thalweg.descent import terms as T

from .solvers import (
    by_coordinate,
    by_dual_balls,
    by_dual_differences,
    by_factors,
    by_l1_split,
    by_rotations,
    by_slsqp,
    piecewise,
    shifted,
)

PROX = jax.jit(lambda term, x, step: term.prox(x, step))


@jax.jit
def prox_and_values(term, x, step):
    """The prox, and the term's values there and at x, as one program: compiling is most of the time of these tests."""
    p = term.prox(x, step)
    return p, term.value(p), term.value(x)


ROWS = jax.jit(jax.vmap(lambda term, x, step: term.prox(x, step), in_axes=(None, 0, 0)))


@dataclass(frozen=True)
class Case:
    name: str
    term: T.Term
    like: Any  # a tree of zeros of x's shape
    value: Callable  # flat -> float, finite where member() draws
    member: Callable  # rng -> flat
    solve: Callable  # flat, step -> flat
    accuracy: float = 1e-6  # of ``solve``, not of the term

    @cached_property
    def size(self):
        return sum(leaf.size for leaf in jax.tree.leaves(self.like))

    def tree(self, flat, dtype=np.float64):
        """The vector, or a stack of vectors, as a tree of NumPy's arrays: nothing is compiled to make it."""
        leaves, structure = jax.tree.flatten(self.like)
        flat = np.asarray(flat, dtype)
        parts = np.split(flat, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=-1)
        shaped = [part.reshape(flat.shape[:-1] + leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def prox(self, flat, step):
        return flatten(prox_and_values(self.term, self.tree(flat), np.float64(step))[0])

    def h(self, flat):
        return float(prox_and_values(self.term, self.tree(flat), np.float64(1.0))[2])

    def __repr__(self):
        return self.name


def flatten(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


# --- functions and points ----------------------------------------------------------------------------------


def total(phi):
    return lambda u: float(np.sum(phi(u)))


def nothing(u):
    return 0.0


def anywhere(n):
    return lambda rng: 2 * rng.normal(size=n)


def symmetric(rng, low, high):
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return (rotation @ np.diag(rng.uniform(low, high, 3)) @ rotation.T).ravel()


def singular_values(u, shape):
    return np.linalg.svd(u.reshape(shape), compute_uv=False)


def huber(u, weight, delta):
    return weight * np.where(np.abs(u) <= delta, u**2 / 2, delta * (np.abs(u) - delta / 2))


def make_cases():
    rng = np.random.default_rng(0)
    n = 5
    vector = np.zeros(n)
    tree = {"a": np.zeros((2, 2)), "b": np.zeros(3)}
    w = rng.uniform(0.1, 2.0, n)
    w7 = rng.uniform(0.1, 2.0, 7)
    w_tree = {"a": w7[:4].reshape(2, 2), "b": w7[4:]}
    lower, upper = -rng.uniform(0, 1, n), rng.uniform(0, 2, n)
    labels = np.array([0, 1, 0, 2, 1])
    matrix = rng.normal(size=(2, 7))
    deficient = np.vstack([matrix, matrix[0] - 2 * matrix[1]])
    inside = rng.normal(size=7)
    normal = rng.normal(size=7)
    shift = rng.normal(size=n)
    null = np.eye(7) - np.linalg.pinv(matrix) @ matrix
    l1_points = lambda n, r: lambda rng: r * rng.uniform() * rng.dirichlet(np.ones(n)) * rng.choice([-1, 1], n)
    unit = lambda z: z / np.linalg.norm(z)
    ball = lambda n, r: lambda rng: r * rng.uniform() * unit(rng.normal(size=n))
    abs_w = lambda u: w * np.abs(u)
    net = lambda u: 0.7 * np.abs(u) + 0.4 * u**2 / 2
    group_value = lambda labels, weights: (
        lambda u: sum(wg * np.linalg.norm(u[labels == g]) for g, wg in enumerate(weights))
    )
    equal = {"type": "eq", "fun": lambda u: matrix @ (u - inside), "jac": lambda u: matrix}
    below = {"type": "ineq", "fun": lambda u: 0.3 - normal @ u, "jac": lambda u: -normal}
    short = {"type": "ineq", "fun": lambda u: 1.5**2 - u @ u, "jac": lambda u: -2 * u}
    ones = {"type": "eq", "fun": lambda u: np.array([u.sum() - 2.0]), "jac": lambda u: np.ones((1, u.size))}
    simplex = by_slsqp([ones], bounds=[(0, None)] * n)

    def log(u):
        return -0.8 * np.log(np.maximum(u, 1e-300))

    half = lambda rng: (lambda z: z - max(0.0, normal @ z - 0.3) * 1.5 * normal / (normal @ normal))(rng.normal(size=7))
    tv = lambda u: 0.7 * np.abs(np.diff(u.reshape(2, 6), axis=1)).sum()
    leafwise = {"a": T.L1(0.6), "b": T.Zero(), "c": T.Box(-0.5, 0.5)}
    leafwise_like = {"a": np.zeros(3), "b": np.zeros(()), "c": np.zeros((1, 2))}
    leafwise_solve = piecewise(
        [by_coordinate(lambda u: 0.6 * np.abs(u)), lambda x, t: x, by_coordinate(np.zeros_like, -0.5, 0.5)], [3, 4]
    )
    leafwise_point = lambda rng: np.concatenate([rng.normal(size=4), rng.uniform(-0.5, 0.5, 2)])

    rows = np.repeat(np.arange(2), 3)
    return [
        Case("Zero", T.Zero(), tree, nothing, anywhere(7), lambda x, t: x),
        Case("L1-weighted", T.L1(w), vector, total(abs_w), anywhere(n), by_coordinate(abs_w)),
        Case(
            "L1-tree",
            T.L1(w_tree),
            tree,
            total(lambda u: w7 * np.abs(u)),
            anywhere(7),
            by_coordinate(lambda u: w7 * np.abs(u)),
        ),
        Case(
            "L2",
            T.L2(1.3),
            tree,
            lambda u: 1.3 * np.linalg.norm(u),
            anywhere(7),
            by_dual_balls(np.zeros(7), [1.3]),
        ),
        Case(
            "SquaredL2",
            T.SquaredL2(w_tree),
            tree,
            total(lambda u: w7 * u**2 / 2),
            anywhere(7),
            by_coordinate(lambda u: w7 * u**2 / 2),
        ),
        Case("ElasticNet", T.ElasticNet(0.7, 0.4), vector, total(net), anywhere(n), by_coordinate(net)),
        Case(
            "GroupLasso",
            T.GroupLasso(labels, [0.5, 1.0, 2.0]),
            vector,
            group_value(labels, [0.5, 1.0, 2.0]),
            anywhere(n),
            by_dual_balls(labels, [0.5, 1.0, 2.0]),
        ),
        Case(
            "GroupLasso-rows",
            T.GroupLasso(np.arange(2)[:, None], 0.8),
            np.zeros((2, 3)),
            group_value(rows, [0.8, 0.8]),
            anywhere(6),
            by_dual_balls(rows, [0.8, 0.8]),
        ),
        Case(
            "Huber",
            T.Huber(0.9, 0.6),
            vector,
            total(lambda u: huber(u, 0.9, 0.6)),
            anywhere(n),
            by_coordinate(lambda u: huber(u, 0.9, 0.6)),
        ),
        Case(
            "LogBarrier",
            T.LogBarrier(0.8),
            vector,
            total(log),
            lambda rng: rng.exponential(size=n) + 1e-3,
            by_coordinate(log, low=1e-12),
        ),
        Case(
            "Box",
            T.Box(lower, upper),
            vector,
            nothing,
            lambda rng: rng.uniform(lower, upper),
            by_coordinate(np.zeros_like, lower, upper),
        ),
        Case(
            "NonNegative",
            T.NonNegative(),
            tree,
            nothing,
            lambda rng: rng.exponential(size=7),
            by_coordinate(np.zeros_like, 0.0),
        ),
        Case(
            "LInfBall",
            T.LInfBall(1.2),
            tree,
            nothing,
            lambda rng: rng.uniform(-1.2, 1.2, 7),
            by_coordinate(np.zeros_like, -1.2, 1.2),
        ),
        Case(
            "Simplex-rows",
            T.Simplex(2.0),
            np.zeros((2, n)),
            nothing,
            lambda rng: 2 * rng.dirichlet(np.ones(n), 2).ravel(),
            piecewise([simplex, simplex], [n]),
        ),
        Case("L1Ball", T.L1Ball(1.5), tree, nothing, l1_points(7, 1.5), by_l1_split(1.5)),
        Case("L2Ball", T.L2Ball(1.5), tree, nothing, ball(7, 1.5), by_slsqp([short])),
        Case(
            "HalfSpace",
            T.HalfSpace({"a": normal[:4].reshape(2, 2), "b": normal[4:]}, 0.3),
            tree,
            nothing,
            half,
            by_slsqp([below]),
        ),
        Case(
            "Affine",
            T.Affine(matrix, matrix @ inside),
            tree,
            nothing,
            lambda rng: inside + null @ rng.normal(size=7),
            by_slsqp([equal], start=inside),
        ),
        Case(
            "Affine-deficient",
            T.Affine(deficient, deficient @ inside),
            tree,
            nothing,
            lambda rng: inside + null @ rng.normal(size=7),
            by_slsqp([equal], start=inside),
        ),
        Case(
            "PSDCone",
            T.PSDCone(),
            np.zeros((3, 3)),
            nothing,
            lambda rng: symmetric(rng, 0, 3),
            by_rotations(0.0, None),
            1e-4,
        ),
        Case(
            "SpectralBox",
            T.SpectralBox(-0.5, 0.9),
            np.zeros((3, 3)),
            nothing,
            lambda rng: symmetric(rng, -0.5, 0.9),
            by_rotations(-0.5, 0.9),
            1e-4,
        ),
        Case(
            "NuclearNorm",
            T.NuclearNorm(0.8),
            np.zeros((3, 4)),
            lambda u: 0.8 * singular_values(u, (3, 4)).sum(),
            anywhere(12),
            by_factors((3, 4), 3, 0.8),
            1e-4,
        ),
        Case(
            "Rank",
            T.Rank(2),
            np.zeros((4, 3)),
            nothing,
            lambda rng: (rng.normal(size=(4, 2)) @ rng.normal(size=(2, 3))).ravel(),
            by_factors((4, 3), 2, 0.0),
            1e-4,
        ),
        Case(
            "TotalVariation1D",
            T.TotalVariation1D(0.7),
            np.zeros((2, 6)),
            tv,
            anywhere(12),
            by_dual_differences(2, 0.7),
            1e-8,
        ),
        Case(
            "Translated-L1",
            T.Translated(T.L1(w), shift),
            vector,
            total(lambda u: w * np.abs(u - shift)),
            anywhere(n),
            by_coordinate(lambda u: w * np.abs(u - shift)),
        ),
        Case(
            "Translated-Simplex",
            T.Translated(T.Simplex(2.0), shift),
            vector,
            nothing,
            lambda rng: shift + 2 * rng.dirichlet(np.ones(n)),
            shifted(simplex, shift),
        ),
        Case(
            "Scaled",
            3.0 * T.Huber(0.3, 0.6),
            vector,
            total(lambda u: huber(u, 0.9, 0.6)),
            anywhere(n),
            by_coordinate(lambda u: huber(u, 0.9, 0.6)),
        ),
        Case(
            "Dilated",
            T.Dilated(T.ElasticNet(0.7, 0.4), -1.5),
            vector,
            total(lambda u: net(-1.5 * u)),
            anywhere(n),
            by_coordinate(lambda u: net(-1.5 * u)),
        ),
        Case(
            "Within",
            T.L1(w) + T.Box(lower, upper),
            vector,
            total(abs_w),
            lambda rng: rng.uniform(lower, upper),
            by_coordinate(abs_w, lower, upper),
        ),
        Case(
            "PerLeaf",
            T.PerLeaf(leafwise),
            leafwise_like,
            lambda u: 0.6 * np.abs(u[:3]).sum(),
            leafwise_point,
            leafwise_solve,
        ),
    ]


CASES = make_cases()
