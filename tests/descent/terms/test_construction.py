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
    "L1 of float32": lambda: T.L1(np.ones(3, np.float32)),
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
    (lambda: T.L1(-1.0), ValueError, r"weight of L1 must be a finite number of at least 0, found -1\.0"),
    (
        lambda: T.L1(np.array([1.0, -2.0])),
        ValueError,
        r"weight of L1 must hold finite numbers of at least 0, found -2 at index 1",
    ),
    (
        lambda: T.L1({"a": 1.0, "b": -3.0}),
        ValueError,
        r"weight of L1 must be a finite number of at least 0, found -3\.0",
    ),
    (lambda: T.L1(NAN), ValueError, "weight of L1 must be a finite number of at least 0, found nan"),
    (lambda: T.L1(INF), ValueError, "weight of L1 must be a finite number of at least 0, found inf"),
    (lambda: T.L1("1"), TypeError, "weight of L1 must be a finite number.*, found '1'"),
    (lambda: T.L1(None), TypeError, "weight of L1 must be a finite number.*, found None"),
    (lambda: T.L1(True), TypeError, "weight of L1 must be a finite number.*, found True"),
    (lambda: T.L1(1j), TypeError, "weight of L1 must be a finite number.*, found 1j"),
    (lambda: T.L1({}), TypeError, "weight of L1 must be a finite number.*, found {}"),
    (lambda: T.L2(-1.0), ValueError, "weight of L2 must be a finite number of at least 0"),
    (lambda: T.L2(np.ones(3)), ValueError, "weight of L2 must be a finite number of at least 0, found"),
    (lambda: T.L2([1.0]), ValueError, "weight of L2 must be a finite number of at least 0, found"),
    (lambda: T.SquaredL2(-1.0), ValueError, "weight of SquaredL2 must be a finite number of at least 0"),
    (lambda: T.ElasticNet(-1.0, 1.0), ValueError, "l1 of ElasticNet must be a finite number of at least 0"),
    (lambda: T.ElasticNet(1.0, -1.0), ValueError, "l2 of ElasticNet must be a finite number of at least 0"),
    (lambda: T.GroupLasso([0, 1], -1.0), ValueError, "weight of GroupLasso must be a finite number of at least 0"),
    (lambda: T.GroupLasso([0, -1]), ValueError, "groups of GroupLasso must be labels ≥ 0, found -1"),
    (lambda: T.GroupLasso(np.array([0.0, 1.0])), TypeError, "groups of GroupLasso must be integer labels, found"),
    (lambda: T.GroupLasso([]), ValueError, "groups of GroupLasso must hold at least one label"),
    (lambda: T.GroupLasso([0, 1], np.ones(3)), ValueError, r"weight of GroupLasso must .* shape \(2,\).*found \(3,\)"),
    (lambda: T.GroupLasso([0, 3], count=2), ValueError, "count of GroupLasso must exceed the largest label 3, found 2"),
    (lambda: T.Huber(-1.0), ValueError, "weight of Huber must be a finite number of at least 0"),
    (lambda: T.Huber(1.0, 0.0), ValueError, r"delta of Huber must be a finite number above 0, found 0\.0"),
    (lambda: T.LogBarrier(-1.0), ValueError, "weight of LogBarrier must be a finite number of at least 0"),
    (lambda: T.Box(1.0, 0.0), ValueError, "lower of Box must be ≤ upper, found lower = 1 and upper = 0"),
    (lambda: T.Box(np.array([0.0, 5.0]), 1.0), ValueError, "lower of Box must be ≤ upper, found lower = 5"),
    (lambda: T.Box(INF, INF), ValueError, "lower of Box must be ≤ upper, found lower = inf"),
    (lambda: T.Box(NAN, 1.0), ValueError, "lower of Box must be a number, found nan"),
    (lambda: T.Box(0.0, NAN), ValueError, "upper of Box must be a number, found nan"),
    (lambda: T.Box(np.zeros(2), np.ones(3)), ValueError, r"lower and upper of Box .* found \(2,\) and \(3,\)"),
    (lambda: T.Box({"a": 0.0}, {"b": 1.0}), ValueError, "lower and upper of Box must be trees of one structure"),
    (lambda: T.LInfBall(0.0), ValueError, r"radius of LInfBall must be a finite number above 0, found 0\.0"),
    (lambda: T.L1Ball(-1.0), ValueError, r"radius of L1Ball must be a finite number above 0, found -1\.0"),
    (lambda: T.L2Ball(INF), ValueError, "radius of L2Ball must be a finite number above 0, found inf"),
    (lambda: T.Simplex(0), ValueError, "total of Simplex must be a finite number above 0, found 0"),
    (lambda: T.HalfSpace(np.zeros(3), 1.0), ValueError, "normal of HalfSpace must not be zero"),
    (lambda: T.HalfSpace(np.ones(3), np.ones(3)), ValueError, "bound of HalfSpace must be a finite number"),
    (lambda: T.HalfSpace(np.ones(3), NAN), ValueError, "bound of HalfSpace must be a finite number"),
    (lambda: T.Affine([1.0], [1.0]), ValueError, r"matrix of Affine must be a matrix .* found the shape \(1,\)"),
    (
        lambda: T.Affine([[1.0, NAN]], [1.0]),
        ValueError,
        "matrix of Affine must hold finite numbers, found nan",
    ),
    (lambda: T.Affine([[1.0, 1.0]], [1.0, 2.0]), ValueError, r"rhs of Affine must have the shape \(1,\), found \(2,\)"),
    (lambda: T.Affine([[1.0, 1.0]], [INF]), ValueError, "rhs of Affine must hold finite numbers, found inf at index 0"),
    (
        lambda: T.Affine([[1.0, 1.0], [2.0, 2.0]], [1.0, 1.0]),
        ValueError,
        r"rhs of Affine must be consistent with matrix \(rank 1 of 2 rows\), found one at the distance 0\.447",
    ),
    (lambda: jax.jit(lambda a: T.Affine(a, [1.0]).basis)(np.ones((1, 2))), TypeError, "matrix of Affine .* concrete"),
    (lambda: T.SpectralBox(2.0, 1.0), ValueError, "lower of SpectralBox must be ≤ upper"),
    (lambda: T.NuclearNorm(-1.0), ValueError, "weight of NuclearNorm must be a finite number of at least 0"),
    (lambda: T.Rank(1.5), TypeError, r"rank of Rank must be a whole number of at least 1, found 1\.5"),
    (lambda: T.Rank(True), TypeError, "rank of Rank must be a whole number of at least 1, found True"),
    (lambda: T.Rank(0), ValueError, "rank of Rank must be a whole number of at least 1, found 0"),
    (lambda: T.TotalVariation1D(-1.0), ValueError, "weight of TotalVariation1D must be a finite number of at least 0"),
    (lambda: -1.0 * ONE, ValueError, r"factor of Scaled must be a finite number of at least 0, found -1\.0"),
    (lambda: T.Scaled(T.L1, 1.0), TypeError, "term of Scaled must be a Term, found the class L1; call it first"),
    (lambda: T.Scaled(1.0, 1.0), TypeError, "term of Scaled must be a Term, found 1.0"),
    (lambda: "2" * ONE, TypeError, "factor of Scaled must be a finite number.*, found '2'"),
    (lambda: T.Dilated(ONE, 0.0), ValueError, "factor of Dilated must not be 0"),
    (lambda: T.Translated(ONE, NAN), ValueError, "shift of Translated must be a finite number"),
    (lambda: T.L2(1.0) + T.NonNegative(), ValueError, "a term within NonNegative must be convex, a sum .* found L2"),
    (lambda: T.Rank(1) + T.Box(0.0, 1.0), ValueError, "a term within Box must be convex.* found Rank"),
    (lambda: ONE + T.LInfBall, TypeError, "unsupported operand"),
    (lambda: ONE + T.SquaredL2(1.0), TypeError, r"L1 \+ SquaredL2 has no closed-form step in general. ElasticNet is"),
    (lambda: T.PerLeaf({}), TypeError, "terms of PerLeaf must hold at least one Term"),
    (
        lambda: T.PerLeaf({"a": ONE, "b": None}),
        TypeError,
        "terms of PerLeaf must hold only Term .*found None; use Zero",
    ),
    (lambda: T.PerLeaf({"a": 1.0}), TypeError, r"terms of PerLeaf must hold only Term instances, found 1\.0"),
]


@pytest.mark.parametrize(("make", "error", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_wrong(make, error, message):
    with pytest.raises(error, match=message):
        make()


VECTOR, TREE = np.ones(4), {"w": np.ones(4), "b": np.ones(())}
UNFIT = [
    (T.L1(np.ones(3)), VECTOR, r"weight of L1 must broadcast to the shape \(4,\) of x, found the shape \(3,\)"),
    (T.L1(np.ones((2, 4))), VECTOR, r"weight of L1 must broadcast .* found the shape \(2, 4\)"),
    (T.L1({"w": 1.0}), TREE, "weight of L1 must be one array or a tree like x.*found the structure"),
    (T.L1({"w": np.ones(4), "b": np.ones(2)}), TREE, r"weight of L1 .* shape \(\) of x\['b'\], found the shape \(2,\)"),
    (T.SquaredL2([1.0, 1.0]), VECTOR, "weight of SquaredL2 must .*a list is a tree"),
    (T.ElasticNet(1.0, np.ones(3)), VECTOR, "l2 of ElasticNet must broadcast"),
    (T.GroupLasso([0, 1, 1]), VECTOR, "groups of GroupLasso must broadcast"),
    (T.Huber(1.0, np.ones(3)), VECTOR, "delta of Huber must broadcast"),
    (T.LogBarrier(np.ones(3)), VECTOR, "weight of LogBarrier must broadcast"),
    (T.Box(0.0, np.ones(3)), VECTOR, "upper of Box must broadcast"),
    (T.Box(np.zeros(3), 1.0), VECTOR, "lower of Box must broadcast"),
    (T.HalfSpace(np.ones(3), 1.0), VECTOR, "normal of HalfSpace must broadcast"),
    (T.Affine(np.ones((1, 3)), [1.0]), VECTOR, "matrix of Affine must have one column for each of the 4 .* found 3"),
    (T.Simplex(), TREE, r"Simplex: x\['b'\] must be a vector or an array of them, found the shape \(\)"),
    (T.PSDCone(), np.ones((2, 3)), r"PSDCone: x must be a square matrix, found the shape \(2, 3\)"),
    (T.SpectralBox(0, 1), {"a": VECTOR}, r"SpectralBox: x\['a'\] must be a square matrix, found the shape \(4,\)"),
    (T.NuclearNorm(1.0), VECTOR, r"NuclearNorm: x must be a matrix, found the shape \(4,\)"),
    (T.Rank(1), VECTOR, r"Rank: x must be a matrix, found the shape \(4,\)"),
    (
        T.TotalVariation1D(1.0),
        TREE,
        r"TotalVariation1D: x.* must be a vector or an array of them, found",
    ),
    (T.Translated(ONE, np.ones(3)), VECTOR, "shift of Translated must broadcast"),
    (T.Translated(T.L1(np.ones(3)), 0.0), VECTOR, "weight of L1 must broadcast"),
    (2.0 * T.PSDCone(), VECTOR, "PSDCone: x must be a square matrix"),
    (T.Dilated(T.Rank(1), 2.0), VECTOR, "Rank: x must be a matrix"),
    (T.PerLeaf({"w": ONE}), TREE, "terms of PerLeaf must be a prefix of the tree x"),
    (T.PerLeaf({"w": ONE}), VECTOR, "terms of PerLeaf must be a prefix of the tree x"),
    (T.PerLeaf({"w": T.Rank(1), "b": ONE}), TREE, "Rank: x must be a matrix"),
]


@pytest.mark.parametrize(("term", "x", "message"), UNFIT, ids=[message[:40] for _, _, message in UNFIT])
def test_check_refuses(term, x, message):
    with pytest.raises(ValueError, match=message):
        term.check(x)


def test_check_accepts(case):
    case.term.check(case.like)
