"""Terms made of terms: traits, conventions at infinity, and the parts of a tree."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.descent import terms as T

from .cases import PROX, prox_and_values


class WithoutProx(T.Term):
    prox: ClassVar = None

    def value(self, x):
        return jnp.sum(x)


def test_traits_follow_the_parts():
    for wrap in (lambda h: 2.0 * h, lambda h: T.Translated(h, 1.0), lambda h: T.Dilated(h, 2.0)):
        for h in (T.L1(1.0), T.L2(1.0), T.Rank(1), T.Box(0.0, 1.0)):
            wrapped = wrap(h)
            for trait in ("convex", "separable", "indicator", "proximable"):
                assert getattr(wrapped, trait) == getattr(h, trait)
    parts = T.PerLeaf({"a": T.Box(0.0, 1.0), "b": T.Zero()})
    assert (parts.convex, parts.separable, parts.indicator) == (True, True, True)
    parts = T.PerLeaf({"a": T.L1(1.0), "b": T.Rank(1)})
    assert (parts.convex, parts.separable, parts.indicator) == (False, False, False)


def test_a_term_without_prox_shows_through():
    bare = WithoutProx()
    assert not bare.proximable
    assert not (2.0 * bare).proximable
    assert not T.PerLeaf((T.Zero(), bare)).proximable
    assert (2.0 * bare).value(np.ones(3)) == 6.0


def test_scaled_by_zero_keeps_the_domain():
    outside = np.array([-1.0, 1.0])
    for h in (T.NonNegative(), T.LogBarrier(1.0)):
        both = jax.jit(lambda x, h=h: ((0.0 * h).value(x), h.value((0.0 * h).prox(x, 1.0))))
        there, projected = both(outside)
        assert there == np.inf
        assert projected < np.inf
    np.testing.assert_array_equal(PROX(0.0 * T.L1(1.0), outside, 1.0), outside)


def test_translated_set_far_from_the_origin():
    """x − shift cancels ten digits; the point is feasible all the same, and a point off the set is not."""
    far = 1e10 + np.arange(4.0)
    ball = T.Translated(T.L2Ball(1e-3), far)
    p, value, _ = prox_and_values(ball, far + 1.0, 1.0)
    assert value == 0.0
    assert prox_and_values(ball, np.asarray(p) + 0.1, 1.0)[2] == np.inf


def test_per_leaf_takes_a_prefix():
    """One term may cover a whole subtree, as one vector."""
    x = {"net": {"a": np.array([3.0]), "b": np.array([4.0])}, "bias": np.array(9.0)}
    out = PROX(T.PerLeaf({"net": T.L2Ball(1.0), "bias": T.Zero()}), x, 1.0)
    np.testing.assert_allclose(out["net"]["a"], [0.6], atol=1e-15)
    np.testing.assert_allclose(out["net"]["b"], [0.8], atol=1e-15)
    assert out["bias"] == 9.0


def test_per_leaf_divides_a_tree_of_steps():
    x = (np.array([3.0, 3.0]), np.array(3.0))
    steps = (np.array([1.0, 2.0]), np.array(0.5))
    first, second = PROX(T.PerLeaf((T.L1(1.0), T.L1(2.0))), x, steps)
    np.testing.assert_allclose(first, [2.0, 1.0])
    np.testing.assert_allclose(second, 2.0)


def test_groups_reach_across_leaves():
    x = {"a": np.array([3.0, 0.1]), "b": np.array([4.0])}
    term = T.GroupLasso({"a": np.array([0, 1]), "b": np.array([0])}, 2.5)
    out = PROX(term, x, 1.0)
    np.testing.assert_allclose(out["a"], [1.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(out["b"], [2.0], atol=1e-15)
