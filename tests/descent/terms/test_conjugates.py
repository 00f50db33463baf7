"""Moreau's decomposition: x = prox_{th}(x) + t·prox_{h*/t}(x/t), with the conjugate h* known on its own."""

import numpy as np
import pytest

from thalweg.descent import terms as T

from .cases import PROX

RNG = np.random.default_rng(8)
MATRIX, INSIDE, NORMAL = RNG.normal(size=(2, 6)), RNG.normal(size=6), RNG.normal(size=6)
LABELS = np.array([0, 1, 1, 0, 2, 2])


def term(h):
    """The prox of h/t, for a conjugate that is a term itself."""
    return lambda z, t: np.asarray(PROX(h, z, 1 / t))


def decompose(h, conjugate, x, step):
    """The two parts of x, which must add up to it."""
    return np.asarray(PROX(h, x, step)) + step * conjugate(x / step, step)


def bisect(function, low, high):
    """The root of an increasing function."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2


def largest_entry(scale):
    """The prox of (scale·max)/t: lower the top entries to a level so that they give up scale/t in all."""

    def prox(z, t):
        level = bisect(lambda s: scale / t - np.maximum(z - s, 0).sum(), z.min() - scale / t, z.max())
        return np.minimum(z, level)

    return prox


def largest_size(scale):
    """The prox of (scale·‖·‖_∞)/t."""

    def prox(z, t):
        if np.abs(z).sum() <= scale / t:
            return np.zeros_like(z)
        level = bisect(lambda s: scale / t - np.maximum(np.abs(z) - s, 0).sum(), 0.0, np.abs(z).max())
        return np.clip(z, -level, level)

    return prox


def box_support(low, high):
    """The prox of (Σ max(low·y, high·y))/t: a soft threshold that is not symmetric."""
    return lambda z, t: np.where(z > high / t, z - high / t, np.where(z < low / t, z - low / t, 0.0))


def ray(normal, bound):
    """The prox of (λ·bound on the ray λ·normal, λ ≥ 0)/t."""
    return lambda z, t: max(0.0, (normal @ z - bound / t) / (normal @ normal)) * normal


def row_space(matrix, inside):
    """The prox of (⟨inside, y⟩ on the span of the rows)/t."""
    return lambda z, t: np.linalg.pinv(matrix) @ matrix @ (z - inside / t)


def huber_conjugate(weight, delta):
    """y²/(2·weight) on |y| ≤ weight·delta."""
    return lambda z, t: np.clip(z / (1 + 1 / (t * weight)), -weight * delta, weight * delta)


def net_conjugate(l1, l2):
    """max(|y| − l1, 0)²/(2·l2): beyond l1, a square around l1."""

    def prox(z, t):
        beyond = (np.abs(z) + l1 / (t * l2)) / (1 + 1 / (t * l2))
        return np.where(np.abs(z) <= l1, z, np.sign(z) * beyond)

    return prox


def product_of_balls(labels, weight):
    def prox(z, t):
        out = z.copy()
        for g in np.unique(labels):
            out[labels == g] *= min(1.0, weight / np.linalg.norm(z[labels == g]))
        return out

    return prox


PAIRS = {
    "L1": (T.L1(0.7), term(T.LInfBall(0.7))),
    "LInfBall": (T.LInfBall(0.7), term(T.L1(0.7))),
    "L2": (T.L2(0.7), term(T.L2Ball(0.7))),
    "L2Ball": (T.L2Ball(0.7), term(T.L2(0.7))),
    "SquaredL2": (T.SquaredL2(0.7), term(T.SquaredL2(1 / 0.7))),
    "NonNegative": (T.NonNegative(), term(T.Dilated(T.NonNegative(), -1.0))),
    "LogBarrier": (T.LogBarrier(0.7), term(T.Dilated(T.LogBarrier(0.7), -1.0))),
    "Zero": (T.Zero(), lambda z, t: 0 * z),
    "Simplex": (T.Simplex(0.7), largest_entry(0.7)),
    "L1Ball": (T.L1Ball(0.7), largest_size(0.7)),
    "Box": (T.Box(-0.2, 0.7), box_support(-0.2, 0.7)),
    "HalfSpace": (T.HalfSpace(NORMAL, 0.2), ray(NORMAL, 0.2)),
    "Affine": (T.Affine(MATRIX, MATRIX @ INSIDE), row_space(MATRIX, INSIDE)),
    "Huber": (T.Huber(0.7, 0.6), huber_conjugate(0.7, 0.6)),
    "ElasticNet": (T.ElasticNet(0.7, 0.4), net_conjugate(0.7, 0.4)),
    "GroupLasso": (T.GroupLasso(LABELS, 0.7), product_of_balls(LABELS, 0.7)),
    "Translated": (T.Translated(T.L1(0.7), 2.0), lambda z, t: np.clip(z - 2.0 / t, -0.7, 0.7)),
    "Scaled": (T.Scaled(T.L1(0.35), 2.0), term(T.LInfBall(0.7))),
    "Dilated": (T.Dilated(T.LInfBall(1.4), 2.0), term(T.L1(0.7))),
}
MATRICES = {
    "PSDCone": (T.PSDCone(), term(T.Dilated(T.PSDCone(), -1.0))),
    "NuclearNorm": (T.NuclearNorm(0.7), term(T.SpectralBox(-0.7, 0.7))),
    "SpectralBox": (T.SpectralBox(-0.7, 0.7), term(T.NuclearNorm(0.7))),
}


@pytest.mark.parametrize("step", [0.1, 1.0, 7.0])
@pytest.mark.parametrize(("h", "conjugate"), PAIRS.values(), ids=PAIRS)
def test_moreau(h, conjugate, step):
    for x in (RNG.normal(size=6), 5 * RNG.normal(size=6), np.array([1.0, 1.0, 0.0, -2.0, -2.0, 0.7])):
        np.testing.assert_allclose(decompose(h, conjugate, x, step), x, rtol=0, atol=1e-12 * max(1, np.abs(x).max()))


@pytest.mark.parametrize("step", [0.1, 1.0, 7.0])
@pytest.mark.parametrize(("h", "conjugate"), MATRICES.values(), ids=MATRICES)
def test_moreau_on_symmetric_matrices(h, conjugate, step):
    for _ in range(3):
        x = 2 * RNG.normal(size=(4, 4))
        x = x + x.T
        np.testing.assert_allclose(decompose(h, conjugate, x, step), x, rtol=0, atol=1e-12)
