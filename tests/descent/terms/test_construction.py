"""Right and wrong arguments; the message names the term, the argument, what was expected and what was found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import terms as T

NAN, INF = float("nan"), float("inf")
ONE = T.L1(1.0)

RIGHT = {
    "L1 of an integer": lambda: T.L1(2),
    "L1 of zero": lambda: T.L1(0.0),
    "L1 of a tree": lambda: T.L1({"a": 1.0, "b": np.ones(3)}),
    "L1 of float32": lambda: T.L1(jnp.ones(3, jnp.float32)),
    "Box without bounds": lambda: T.Box(-INF, INF),
    "Box that is a point": lambda: T.Box(1.0, 1.0),
    "Box of a number and a tree": lambda: T.Box(0.0, {"a": 1.0, "b": np.ones(3)}),
    "SpectralBox with one bound": lambda: T.SpectralBox(0.0, INF),
    "Rank of a NumPy integer": lambda: T.Rank(np.int64(3)),
    "GroupLasso of lists": lambda: T.GroupLasso([0, 1, 1], [1.0, 2.0]),
    "GroupLasso with an empty group": lambda: T.GroupLasso([0, 2], count=4),
    "Affine of integers": lambda: T.Affine([[1, 1]], [1]),
    "Affine without equations that bind": lambda: T.Affine([[0.0, 0.0]], [0.0]),
    "product from the right": lambda: ONE * 2,
    "product with NumPy": lambda: np.float64(2.0) * ONE,
    "product with JAX": lambda: jnp.asarray(2.0) * ONE,
    "Scaled by zero": lambda: 0.0 * ONE,
    "Dilated by a negative number": lambda: T.Dilated(ONE, -1.0),
    "PerLeaf of one term": lambda: T.PerLeaf(ONE),
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_right(make):
    term = make()
    assert isinstance(term, T.Term)
    floats = [leaf for leaf in jax.tree.leaves(term) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert not any(leaf.weak_type for leaf in floats)


WRONG = [
    (lambda: T.L1(-1.0), ValueError, r"L1: weight must be ≥ 0, found -1\.0"),
    (lambda: T.L1(np.array([1.0, -2.0])), ValueError, r"L1: weight must be ≥ 0, found \[ ?1\. +-2\.\]"),
    (lambda: T.L1({"a": 1.0, "b": -3.0}), ValueError, r"L1: weight must be ≥ 0, found -3\.0"),
    (lambda: T.L1(NAN), ValueError, "L1: weight must not be NaN, found nan"),
    (lambda: T.L1(INF), ValueError, "L1: weight must be finite, found inf"),
    (lambda: T.L1("1"), TypeError, "L1: weight must be a number or an array, found '1'"),
    (lambda: T.L1(None), TypeError, "L1: weight must be a number or an array, found None"),
    (lambda: T.L1(True), TypeError, "L1: weight must be a number or an array, found True"),
    (lambda: T.L1(1j), TypeError, "L1: weight must be a number or an array, found 1j"),
    (lambda: T.L1({}), TypeError, "L1: weight must be a number or an array, found {}"),
    (lambda: T.L2(-1.0), ValueError, "L2: weight must be ≥ 0"),
    (lambda: T.L2(np.ones(3)), TypeError, r"L2: weight must be a single number, found an array of shape \(3,\)"),
    (lambda: T.L2([1.0]), TypeError, r"L2: weight must be a single number, found \[1\.0\]"),
    (lambda: T.SquaredL2(-1.0), ValueError, "SquaredL2: weight must be ≥ 0"),
    (lambda: T.ElasticNet(-1.0, 1.0), ValueError, "ElasticNet: l1 must be ≥ 0"),
    (lambda: T.ElasticNet(1.0, -1.0), ValueError, "ElasticNet: l2 must be ≥ 0"),
    (lambda: T.GroupLasso([0, 1], -1.0), ValueError, "GroupLasso: weight must be ≥ 0"),
    (lambda: T.GroupLasso([0, -1]), ValueError, "GroupLasso: groups must be labels ≥ 0, found -1"),
    (lambda: T.GroupLasso(np.array([0.0, 1.0])), TypeError, "GroupLasso: groups must be integer labels, found"),
    (lambda: T.GroupLasso([]), ValueError, "GroupLasso: groups must hold at least one label"),
    (lambda: T.GroupLasso([0, 1], np.ones(3)), ValueError, r"GroupLasso: weight must .* shape \(2,\).*found \(3,\)"),
    (lambda: T.GroupLasso([0, 3], count=2), ValueError, "GroupLasso: count must exceed the largest label 3, found 2"),
    (lambda: T.Huber(-1.0), ValueError, "Huber: weight must be ≥ 0"),
    (lambda: T.Huber(1.0, 0.0), ValueError, r"Huber: delta must be > 0, found 0\.0"),
    (lambda: T.LogBarrier(-1.0), ValueError, "LogBarrier: weight must be ≥ 0"),
    (lambda: T.Box(1.0, 0.0), ValueError, "Box: lower must be ≤ upper, found lower = 1 and upper = 0"),
    (lambda: T.Box(np.array([0.0, 5.0]), 1.0), ValueError, "Box: lower must be ≤ upper, found lower = 5"),
    (lambda: T.Box(INF, INF), ValueError, "Box: lower must be ≤ upper, found lower = inf"),
    (lambda: T.Box(NAN, 1.0), ValueError, "Box: lower must not be NaN"),
    (lambda: T.Box(0.0, NAN), ValueError, "Box: upper must not be NaN"),
    (lambda: T.Box(np.zeros(2), np.ones(3)), ValueError, r"Box: lower and upper .* found \(2,\) and \(3,\)"),
    (lambda: T.Box({"a": 0.0}, {"b": 1.0}), ValueError, "Box: lower and upper must be trees of one structure"),
    (lambda: T.LInfBall(0.0), ValueError, r"LInfBall: radius must be > 0, found 0\.0"),
    (lambda: T.L1Ball(-1.0), ValueError, r"L1Ball: radius must be > 0, found -1\.0"),
    (lambda: T.L2Ball(INF), ValueError, "L2Ball: radius must be finite, found inf"),
    (lambda: T.Simplex(0), ValueError, r"Simplex: total must be > 0, found 0\.0"),
    (lambda: T.HalfSpace(np.zeros(3), 1.0), ValueError, "HalfSpace: normal must not be zero"),
    (lambda: T.HalfSpace(np.ones(3), np.ones(3)), TypeError, "HalfSpace: bound must be a single number"),
    (lambda: T.HalfSpace(np.ones(3), NAN), ValueError, "HalfSpace: bound must not be NaN"),
    (lambda: T.Affine([1.0], [1.0]), ValueError, r"Affine: matrix must be a matrix .* found the shape \(1,\)"),
    (lambda: T.Affine([[1.0, NAN]], [1.0]), ValueError, "Affine: matrix must be finite"),
    (lambda: T.Affine([[1.0, 1.0]], [1.0, 2.0]), ValueError, r"Affine: rhs must have the shape \(1,\), found \(2,\)"),
    (lambda: T.Affine([[1.0, 1.0]], [INF]), ValueError, "Affine: rhs must be finite"),
    (
        lambda: T.Affine([[1.0, 1.0], [2.0, 2.0]], [1.0, 1.0]),
        ValueError,
        r"Affine: rhs must be consistent with matrix \(rank 1 of 2 rows\), found one at the distance 0\.447",
    ),
    (lambda: jax.jit(lambda a: T.Affine(a, [1.0]).basis)(jnp.ones((1, 2))), TypeError, "Affine: matrix .* concrete"),
    (lambda: T.SpectralBox(2.0, 1.0), ValueError, "SpectralBox: lower must be ≤ upper"),
    (lambda: T.NuclearNorm(-1.0), ValueError, "NuclearNorm: weight must be ≥ 0"),
    (lambda: T.Rank(1.5), TypeError, r"Rank: rank must be an integer, found 1\.5"),
    (lambda: T.Rank(True), TypeError, "Rank: rank must be an integer, found True"),
    (lambda: T.Rank(0), ValueError, "Rank: rank must be ≥ 1, found 0"),
    (lambda: T.TotalVariation1D(-1.0), ValueError, "TotalVariation1D: weight must be ≥ 0"),
    (lambda: -1.0 * ONE, ValueError, r"Scaled: factor must be ≥ 0, found -1\.0"),
    (lambda: T.Scaled(T.L1, 1.0), TypeError, "Scaled: term must be an instance, found the class L1; call it first"),
    (lambda: T.Scaled(1.0, 1.0), TypeError, "Scaled: term must be a Term, found float"),
    (lambda: "2" * ONE, TypeError, "Scaled: factor must be a number or an array, found '2'"),
    (lambda: T.Dilated(ONE, 0.0), ValueError, "Dilated: factor must not be 0"),
    (lambda: T.Translated(ONE, NAN), ValueError, "Translated: shift must not be NaN"),
    (lambda: T.PerLeaf({}), TypeError, "PerLeaf: terms must hold at least one Term"),
    (lambda: T.PerLeaf({"a": ONE, "b": None}), TypeError, "PerLeaf: terms must hold only Term .*found None; use Zero"),
    (lambda: T.PerLeaf({"a": 1.0}), TypeError, r"PerLeaf: terms must hold only Term instances, found 1\.0"),
]


@pytest.mark.parametrize(("make", "error", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_wrong(make, error, message):
    with pytest.raises(error, match=message):
        make()


VECTOR, TREE = jnp.ones(4), {"w": jnp.ones(4), "b": jnp.ones(())}
UNFIT = [
    (T.L1(np.ones(3)), VECTOR, r"L1: weight must broadcast to the shape \(4,\) of x, found the shape \(3,\)"),
    (T.L1(np.ones((2, 4))), VECTOR, r"L1: weight must broadcast .* found the shape \(2, 4\)"),
    (T.L1({"w": 1.0}), TREE, "L1: weight must be one array or a tree like x.*found the structure"),
    (T.L1({"w": np.ones(4), "b": np.ones(2)}), TREE, r"L1: weight .* shape \(\) of x\['b'\], found the shape \(2,\)"),
    (T.SquaredL2([1.0, 1.0]), VECTOR, "SquaredL2: weight must .*a list is a tree"),
    (T.ElasticNet(1.0, np.ones(3)), VECTOR, "ElasticNet: l2 must broadcast"),
    (T.GroupLasso([0, 1, 1]), VECTOR, "GroupLasso: groups must broadcast"),
    (T.Huber(1.0, np.ones(3)), VECTOR, "Huber: delta must broadcast"),
    (T.LogBarrier(np.ones(3)), VECTOR, "LogBarrier: weight must broadcast"),
    (T.Box(0.0, np.ones(3)), VECTOR, "Box: upper must broadcast"),
    (T.Box(np.zeros(3), 1.0), VECTOR, "Box: lower must broadcast"),
    (T.HalfSpace(np.ones(3), 1.0), VECTOR, "HalfSpace: normal must broadcast"),
    (T.Affine(np.ones((1, 3)), [1.0]), VECTOR, "Affine: matrix must have one column for each of the 4 .* found 3"),
    (T.Simplex(), TREE, r"Simplex: x\['b'\] must have a last axis .* found the shape \(\)"),
    (T.PSDCone(), jnp.ones((2, 3)), r"PSDCone: x must be a square matrix, found the shape \(2, 3\)"),
    (T.SpectralBox(0, 1), {"a": VECTOR}, r"SpectralBox: x\['a'\] must be a square matrix, found the shape \(4,\)"),
    (T.NuclearNorm(1.0), VECTOR, r"NuclearNorm: x must be a matrix, found the shape \(4,\)"),
    (T.Rank(1), VECTOR, r"Rank: x must be a matrix, found the shape \(4,\)"),
    (T.TotalVariation1D(1.0), TREE, r"TotalVariation1D: x\['b'\] must have at least one axis, found a scalar"),
    (T.Translated(ONE, np.ones(3)), VECTOR, "Translated: shift must broadcast"),
    (T.Translated(T.L1(np.ones(3)), 0.0), VECTOR, "L1: weight must broadcast"),
    (2.0 * T.PSDCone(), VECTOR, "PSDCone: x must be a square matrix"),
    (T.Dilated(T.Rank(1), 2.0), VECTOR, "Rank: x must be a matrix"),
    (T.PerLeaf({"w": ONE}), TREE, "PerLeaf: terms must be a prefix of the tree x"),
    (T.PerLeaf({"w": ONE}), VECTOR, "PerLeaf: terms must be a prefix of the tree x"),
    (T.PerLeaf({"w": T.Rank(1), "b": ONE}), TREE, "Rank: x must be a matrix"),
]


@pytest.mark.parametrize(("term", "x", "message"), UNFIT, ids=[message[:40] for _, _, message in UNFIT])
def test_check_refuses(term, x, message):
    with pytest.raises(ValueError, match=message):
        term.check(x)


def test_check_accepts(case):
    case.term.check(case.like)
