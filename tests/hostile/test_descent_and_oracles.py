# ruff: noqa: E501
"""Hostile inputs to descent and oracles: every call gives a clear error, which names the argument and what was found,
or the right answer.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from thalweg import files
from thalweg.descent import (
    FISTA,
    L1,
    L2,
    AdaptiveRestart,
    Affine,
    Backtracking,
    BarzilaiBorwein,
    BernoulliFamily,
    Box,
    Bregman,
    BurgEntropy,
    Checkpoint,
    Constant,
    Descent,
    DiagonalMetric,
    Dilated,
    ElasticNet,
    GaussianFamily,
    GroupLasso,
    HalfSpace,
    HeavyBall,
    Huber,
    InverseLipschitz,
    InverseTime,
    KLToCentre,
    KLToPrior,
    L1Ball,
    L2Ball,
    LInfBall,
    LogBarrier,
    MatrixMetric,
    Moments,
    Monotone,
    NegativeEntropy,
    Nesterov,
    NonNegative,
    NuclearNorm,
    OptaxStep,
    PerLeaf,
    Plateau,
    PolyakRuppert,
    Polynomial,
    PSDCone,
    Rank,
    Scaled,
    Schedule,
    Seconds,
    Simplex,
    SpectralBox,
    SquaredL2,
    Stagnation,
    Status,
    Steps,
    Suffix,
    Tolerance,
    TotalVariation1D,
    Translated,
    Weighted,
    Work,
    as_optax,
    minimize,
)
from thalweg.oracles import SVRG, Exact, FiniteDifferences, LooplessSVRG, MiniBatch, Reparameterised, ScoreFunction

NAN, INF = float("nan"), float("inf")
ROWS = np.random.default_rng(0).normal(size=(8, 3))
X = np.zeros(3)


def bowl(x):
    return jnp.sum((x - 1) ** 2)


def losses(x, rows):
    return jnp.sum((x[None] - rows) ** 2, axis=-1)


def batches(**options):
    return MiniBatch(losses, ROWS, 4, **options)


def solve(x0=X, oracle=bowl, **options):
    """A run by the engine that compiles less; its program is shared by all that change nothing but the start."""
    return minimize(oracle, x0, **{"steps": 200, "engine": "host", **options})


def raises(kind, words):
    """The call ends in an error that says so."""
    return kind, words


def near(wanted, **tolerance):
    """The call gives this answer."""
    return lambda found: np.testing.assert_allclose(np.asarray(found, float), wanted, **{"rtol": 1e-3, **tolerance})


def says(status):
    """The run ends in this way, with a finite point."""

    def check(result):
        assert result.status is status, result.message
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.x))

    return check


CASES = {
    # Where to start.
    "x0 of NaN": (lambda: solve(jnp.array([0.0, NAN, 0.0])), raises(ValueError, r"x0 must be finite, found nan at index \(1,\)")),
    "x0 infinite": (lambda: solve(np.array([0.0, 0.0, -INF])), raises(ValueError, r"x0 must be finite, found -inf")),
    "x0 a word": (lambda: solve("start"), raises(TypeError, "x0 must be an array of numbers, found str")),
    "x0 of words": (lambda: solve(np.array(["1", "2", "3"])), raises(TypeError, "x0 must be an array of numbers")),
    "x0 of objects": (lambda: solve(np.array([1.0, None, 2.0], object)), raises(TypeError, "x0 must be an array of numbers")),
    "x0 complex": (lambda: solve(np.ones(3, complex)), raises(TypeError, "x0 must hold real numbers, found dtype complex")),
    "x0 boolean": (lambda: solve(np.ones(3, bool)), raises(TypeError, "x0 must hold real numbers, found dtype bool")),
    "x0 None": (lambda: solve(None), raises(ValueError, "x0 holds no array")),
    "x0 an empty dict": (lambda: solve({}), raises(ValueError, "x0 holds no array")),
    "x0 of no entries": (lambda: solve(np.zeros(0)), raises(ValueError, "x0 holds no number")),
    "x0 a leaf that is wrong": (lambda: solve({"a": X, "b": jnp.array([INF])}, lambda x: bowl(x["a"])), raises(ValueError, r"x0\['b'\] must be finite")),
    "x0 masked": (lambda: solve(np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])), raises(TypeError, "x0 must not be masked")),
    "x0 of integers": (lambda: solve(np.zeros(3, int)).x, near(1.0)),
    "x0 big-endian": (lambda: solve(np.zeros(3, ">f8")).x, near(1.0)),
    "x0 non-contiguous": (lambda: solve(np.zeros((3, 2))[:, 0]).x, near(1.0)),
    "x0 read-only": (lambda: solve(np.broadcast_to(0.0, 3)).x, near(1.0)),
    "x0 a list is a tree": (lambda: solve([0.0, 0.0], lambda x: (x[0] - 1) ** 2 + (x[1] - 2) ** 2).x, near([1.0, 2.0])),
    "x0 a Python number": (lambda: solve(5, lambda x: (x - 1.0) ** 2).x, near(1.0)),
    "x0 huge": (lambda: solve(np.full(3, 1e150)).x, near(1.0)),
    "x0 tiny": (lambda: solve(np.full(3, 1e-300)).x, near(1.0)),
    "x0 half precision": (lambda: solve(np.zeros(3, jnp.float16)).x, near(1.0, rtol=1e-2)),
    "x0 the optimum": (lambda: solve(np.ones(3)).x, near(1.0)),
    "x0 traced": (lambda: jax.jit(lambda x: solve(x).x)(X), raises(TypeError, "minimize cannot be traced")),
    # The function.
    "oracle a word": (lambda: minimize("bowl", X), raises(TypeError, "oracle must be an Oracle or a function x -> scalar, found str")),
    "oracle None": (lambda: minimize(None, X), raises(TypeError, "oracle must be an Oracle .* found NoneType")),
    "oracle a class": (lambda: minimize(MiniBatch, X), raises(TypeError, "oracle must be an instance, found the class MiniBatch")),
    "oracle returns a vector": (lambda: minimize(lambda x: x, X), raises(ValueError, "must return a scalar, found an array of shape")),
    "oracle returns a word": (lambda: minimize(lambda x: "high", X), raises(TypeError, "oracle=Exact failed")),
    "oracle returns None": (lambda: minimize(lambda x: None, X), raises(TypeError, "oracle=Exact failed")),
    "oracle returns a boolean": (lambda: minimize(lambda x: jnp.sum(x) > 0, X), raises(TypeError, "oracle=Exact failed")),
    "oracle returns complex": (lambda: minimize(lambda x: jnp.sum(x).astype(complex), X), raises(TypeError, "oracle=Exact failed")),
    "oracle of two arguments": (lambda: minimize(lambda x, y: bowl(x), X), raises(TypeError, "oracle=Exact failed .* missing 1 required")),
    "oracle wants another shape": (lambda: minimize(lambda x: jnp.sum(np.ones((2, 2)) @ x), X), raises(TypeError, r"oracle=Exact failed at a point of x0's shape \(3,\)")),
    "oracle computes with NumPy": (lambda: minimize(lambda x: np.sum(np.asarray(x) ** 2), X), raises(TypeError, "oracle=Exact failed")),
    "oracle branches on x": (lambda: minimize(lambda x: bowl(x) if x[0] > 0 else bowl(-x), X), raises(TypeError, "oracle=Exact failed")),
    "oracle NaN everywhere": (lambda: solve(oracle=lambda x: jnp.sum(x) * NAN), says(Status.DIVERGED)),
    "oracle infinite": (lambda: solve(oracle=lambda x: jnp.sum(x) + INF), says(Status.STEPS_SPENT)),
    "oracle unbounded below": (lambda: solve(oracle=lambda x: -jnp.sum(x**2), x0=np.ones(3), step=1.0), says(Status.STEPS_SPENT)),
    "oracle constant": (lambda: solve(oracle=lambda x: 0.0 * jnp.sum(x)), says(Status.CONVERGED)),
    "oracle NaN beyond a line": (lambda: solve(np.full(3, 0.1), lambda x: jnp.sum(x - jnp.log(x))).x, near(1.0)),
    "Exact of no function": (lambda: Exact(3.0), raises(TypeError, "function of Exact must be callable, found 3.0")),
    "Exact with negative work": (lambda: Exact(bowl, work=-1.0), raises(ValueError, "work of Exact must be a finite number of at least 0, found -1.0")),
    "Exact with work a word": (lambda: Exact(bowl, work="much"), raises(TypeError, "work of Exact must be .* found 'much'")),
    "differences of no function": (lambda: FiniteDifferences("f"), raises(TypeError, "function of FiniteDifferences must be callable, found 'f'")),
    "differences with no spacing": (lambda: FiniteDifferences(bowl, 0.0), raises(ValueError, "spacing of FiniteDifferences must be a finite number above 0")),
    # Options of a run.
    "steps of zero": (lambda: solve(steps=0), raises(ValueError, "steps must be a whole number from 1 to 2147483647, found 0")),
    "steps negative": (lambda: solve(steps=-5), raises(ValueError, "steps must be a whole number .* found -5")),
    "steps a fraction": (lambda: solve(steps=10.5), raises(TypeError, "steps must be a whole number .* found 10.5")),
    "steps a boolean": (lambda: solve(steps=True), raises(TypeError, "steps must be a whole number .* found True")),
    "steps too many": (lambda: solve(steps=2**40), raises(ValueError, "steps must be a whole number .* found 1099511627776")),
    "stride of zero": (lambda: solve(stride=0), raises(ValueError, "stride must be a whole number .* found 0")),
    "stride longer than the run": (lambda: solve(stride=10**6).x, near(1.0)),
    "tol negative": (lambda: solve(tol=-1.0), raises(ValueError, "tol must be a finite number of at least 0, found -1.0")),
    "tol of NaN": (lambda: solve(tol=NAN), raises(ValueError, "tol must be a finite number of at least 0, found nan")),
    "tol a word": (lambda: solve(tol="small"), raises(TypeError, "tol must be None, a number or a StoppingRule, found 'small'")),
    "tol a boolean": (lambda: solve(tol=True), raises(TypeError, "tol must be None, a number or a StoppingRule, found True")),
    "tol a class": (lambda: solve(tol=Tolerance), raises(TypeError, "tol must be None, a number or a StoppingRule")),
    "tol of noise": (lambda: minimize(batches(), X, step=0.1, tol=1e-3, key=jax.random.key(0)), raises(TypeError, "tol=0.001 is compared with .* noise of oracle=MiniBatch")),
    "key an integer": (lambda: solve(key=0), raises(TypeError, "key must be one JAX random key .* found 0")),
    "key several": (lambda: solve(key=jax.random.split(jax.random.key(0))), raises(TypeError, "key must be one JAX random key")),
    "key missing": (lambda: minimize(batches(), X, step=0.1), raises(ValueError, "key must be given: oracle=MiniBatch is random")),
    "callback no function": (lambda: solve(callback=3), raises(TypeError, "callback must be a function of a Snapshot, found 3")),
    "engine unknown": (lambda: solve(engine="gpu"), raises(ValueError, "engine must be one of 'compiled', 'host', found 'gpu'")),
    "progress a word": (lambda: solve(progress="no"), raises(TypeError, "progress must be True or False, found 'no'")),
    "compiler options a list": (lambda: solve(compiler_options=["fast"]), raises(TypeError, r"compiler_options must be a mapping or None, found \['fast'\]")),
    "checkpoint a number": (lambda: solve(checkpoint=3), raises(TypeError, "checkpoint must be a path or a Checkpoint, found int")),
    "checkpoint nowhere": (lambda: Checkpoint("no/such/folder/run"), raises(FileNotFoundError, "checkpoint: the folder .* does not exist")),
    "checkpoint never": (lambda: Checkpoint("run", every=-1), raises(ValueError, "every of Checkpoint must be a number of at least 0, found -1")),
    "term a word": (lambda: solve(term="l1"), raises(TypeError, "term must be a Term, found 'l1'")),
    "term a class": (lambda: solve(term=L1), raises(TypeError, "term must be a Term, found the class L1; call it first")),
    "divergence a word": (lambda: solve(divergence="kl"), raises(TypeError, "divergence must be a Divergence, found 'kl'")),
    "momentum a number": (lambda: solve(momentum=0.9), raises(TypeError, r"momentum must be a Momentum such as FISTA\(\), found 0.9")),
    "average a boolean": (lambda: solve(average=True), raises(TypeError, "average must be an Averaging .* found True")),
    "a step that noise forbids": (lambda: Descent(batches(), step=Backtracking()), raises(TypeError, "step=Backtracking needs exact gradients")),
    "no step for noise": (lambda: Descent(batches()), raises(TypeError, "step must be given: oracle=MiniBatch is noisy")),
    "momentum on the simplex": (lambda: Descent(bowl, momentum=FISTA(), divergence=NegativeEntropy()), raises(TypeError, "momentum=FISTA extrapolates")),
    "entropy with a nuclear norm": (lambda: Descent(bowl, term=NuclearNorm(), divergence=NegativeEntropy()), raises(TypeError, "NegativeEntropy has no closed-form step")),
    "average of ranks": (lambda: Descent(bowl, term=Rank(1), average=Suffix()), raises(TypeError, "average=Suffix can leave the domain of term=Rank")),
    # Steps and momentum.
    "step of zero": (lambda: solve(step=0.0), raises(ValueError, "step must be a finite number above 0, found 0.0")),
    "step of NaN": (lambda: Constant(NAN), raises(ValueError, "step must be a finite number above 0, found nan")),
    "step infinite": (lambda: solve(step=INF), raises(ValueError, "step must be a finite number above 0, found inf")),
    "step a boolean": (lambda: solve(step=True), raises(TypeError, "step must be a finite number above 0, found True")),
    "step complex": (lambda: Constant(1j), raises(TypeError, "step must be a finite number above 0, found 1j")),
    "step an array": (lambda: solve(step=np.ones(3)), raises(ValueError, "step must be a finite number above 0")),
    "step a word": (lambda: solve(step="adam"), raises(TypeError, "step must be a number, a schedule .* found 'adam'")),
    "step a class": (lambda: solve(step=Backtracking), raises(TypeError, "step must be an instance, found the class Backtracking")),
    "step no schedule": (lambda: solve(step=lambda count: np.ones(2)), raises(TypeError, "step must be a schedule count -> size; it returned")),
    "step a schedule that fails": (lambda: solve(step=lambda: 0.1), raises(TypeError, "step must be a schedule count -> size; calling it")),
    "step a schedule that turns negative": (lambda: solve(step=Schedule(lambda k: 0.1 - k.astype(float) * 0.01)), says(Status.DIVERGED)),
    "step far too long": (lambda: solve(step=1e6), says(Status.DIVERGED)),
    "Lipschitz of zero": (lambda: InverseLipschitz(0.0), raises(ValueError, "bound of InverseLipschitz must be a finite number above 0, found 0.0")),
    "backtracking that grows": (lambda: Backtracking(shrink=1.0), raises(ValueError, "shrink of Backtracking must be .* below 1, found 1.0")),
    "backtracking that shrinks": (lambda: Backtracking(grow=0.5), raises(ValueError, "grow of Backtracking must be .* at least 1, found 0.5")),
    "backtracking from far too long": (lambda: solve(step=Backtracking(1e30)).x, near(1.0)),
    "backtracking from far too short": (lambda: solve(step=Backtracking(1e-30)).x, near(1.0)),
    "monotone from nothing": (lambda: Monotone(-1.0), raises(ValueError, "initial of Monotone must be .* found -1.0")),
    "secant of an unknown kind": (lambda: BarzilaiBorwein("middle"), raises(ValueError, "kind of BarzilaiBorwein must be one of 'long', 'short'")),
    "polynomial of no power": (lambda: Polynomial(1.0, power=0.0), raises(ValueError, "power of Polynomial must be .* above 0, found 0.0")),
    "inverse time of NaN": (lambda: InverseTime(1.0, scale=NAN), raises(ValueError, "scale of Polynomial must be .* found nan")),
    "optimiser no optimiser": (lambda: OptaxStep(3.0), raises(TypeError, "transformation of OptaxStep must be an Optax optimiser, found 3.0")),
    "optimiser with a term": (lambda: Descent(bowl, term=L1(), step=optax.adam(0.1)), raises(TypeError, "step=OptaxStep adds an update of its own")),
    "heavy ball of one": (lambda: HeavyBall(1.0), raises(ValueError, "coefficient of HeavyBall must be .* below 1, found 1.0")),
    "Nesterov a word": (lambda: Nesterov("fast"), raises(TypeError, "coefficient of Nesterov must be .* found 'fast'")),
    "restart of nothing": (lambda: AdaptiveRestart(FISTA), raises(TypeError, "momentum of AdaptiveRestart must be a Momentum, found the class FISTA")),
    "mean of no power": (lambda: Weighted(0), raises(ValueError, "power of Weighted must be a whole number of at least 1, found 0")),
    "mean of a fraction": (lambda: Weighted(1.5), raises(TypeError, "power of Weighted must be a whole number .* found 1.5")),
    # When to stop.
    "tolerance negative": (lambda: Tolerance(-1e-3), raises(ValueError, "rtol of Tolerance must be .* found -0.001")),
    "tolerance for no look": (lambda: Tolerance(1e-3, in_a_row=0), raises(ValueError, "in_a_row of Tolerance must be .* found 0")),
    "stagnation without patience": (lambda: Stagnation(0), raises(ValueError, "patience of Stagnation must be .* found 0")),
    "plateau of one step": (lambda: Plateau(window=1), raises(ValueError, "window of Plateau must be .* at least 2, found 1")),
    "plateau of negative errors": (lambda: Plateau(errors=-1), raises(ValueError, "errors of Plateau must be .* found -1")),
    "budget of NaN": (lambda: Seconds(NAN), raises(ValueError, "limit of Seconds must be .* found nan")),
    "budget a word": (lambda: Work("1e6"), raises(TypeError, "limit of Work must be .* found '1e6'")),
    "rule or a number": (lambda: Steps(3) | 5, raises(TypeError, "unsupported operand")),
    "budget of nothing": (lambda: solve(tol=Steps(0)), says(Status.STEPS_SPENT)),
    # Terms.
    "weight negative": (lambda: L1(-1.0), raises(ValueError, "weight of L1 must be a finite number of at least 0, found -1.0")),
    "weight of NaN": (lambda: L1(np.array([1.0, NAN])), raises(ValueError, "weight of L1 must hold .* found nan at index 1")),
    "weight None": (lambda: L2(None), raises(TypeError, "weight of L2 must be .* found None")),
    "weight a boolean": (lambda: L1(True), raises(TypeError, "weight of L1 must be .* found True")),
    "weight complex": (lambda: SquaredL2(1j), raises(TypeError, "weight of SquaredL2 must be .* found 1j")),
    "weight of another shape": (lambda: solve(term=L1(np.ones(2))), raises(ValueError, r"weight of L1 must broadcast to the shape \(3,\) of x, found the shape \(2,\)")),
    "weight of nothing": (lambda: L1({}), raises(TypeError, "weight of L1 must be")),
    "elastic net with a word": (lambda: ElasticNet(l1="a"), raises(TypeError, "l1 of ElasticNet must be .* found 'a'")),
    "Huber without a width": (lambda: Huber(1.0, delta=0.0), raises(ValueError, "delta of Huber must be .* above 0, found 0.0")),
    "barrier of infinite weight": (lambda: LogBarrier(INF), raises(ValueError, "weight of LogBarrier must be .* found inf")),
    "box upside down": (lambda: Box(1.0, 0.0), raises(ValueError, "lower of Box must be ≤ upper, found lower = 1 and upper = 0")),
    "box of NaN": (lambda: Box(NAN, 1.0), raises(ValueError, "lower of Box must be .* found nan")),
    "box of shapes that differ": (lambda: Box(np.zeros(2), np.ones(3)), raises(ValueError, "lower and upper of Box must have matching shapes")),
    "box without room": (lambda: solve(term=Box(0.5, 0.5)).x, near(0.5)),
    "box without bounds": (lambda: solve(term=Box(-INF, INF)).x, near(1.0)),
    "simplex of nothing": (lambda: Simplex(0.0), raises(ValueError, "total of Simplex must be .* above 0, found 0.0")),
    "simplex of a scalar": (lambda: solve(np.zeros(()), term=Simplex()), raises(ValueError, r"Simplex: x must be a vector or an array of them")),
    "simplex from far": (lambda: Simplex().prox(jnp.array([1e200, -1e200, 1e200]), 1.0), near([0.5, 0.0, 0.5])),
    "simplex of equals": (lambda: Simplex().prox(np.full(4, 7.0), 1.0), near(0.25)),
    "ball of negative radius": (lambda: L2Ball(-1.0), raises(ValueError, "radius of L2Ball must be .* found -1.0")),
    "ball of infinite radius": (lambda: L1Ball(INF), raises(ValueError, "radius of L1Ball must be .* found inf")),
    "cube of no radius": (lambda: LInfBall(0), raises(ValueError, "radius of LInfBall must be .* found 0")),
    "ball from far": (lambda: L2Ball(1.0).prox(jnp.array([3e200, 4e200]), 1.0), near([0.6, 0.8])),
    "ball from its centre": (lambda: L2Ball(1.0).prox(np.zeros(2), 1.0), near(0.0)),
    "half-space of no normal": (lambda: HalfSpace(np.zeros(3), 1.0), raises(ValueError, "normal of HalfSpace must not be zero")),
    "equations of a vector": (lambda: Affine(np.ones(3), 1.0), raises(ValueError, r"matrix of Affine must be a matrix of shape \(m, n\), found the shape \(3,\)")),
    "equations of words": (lambda: Affine([["a", "b"]], [1.0]), raises(TypeError, "matrix of Affine must be a finite number, found array")),
    "equations of NaN": (lambda: Affine([[1.0, NAN]], [1.0]), raises(ValueError, "matrix of Affine must hold finite numbers, found nan")),
    "equations of zeros": (lambda: Affine(np.zeros((1, 3)), [1.0]), raises(ValueError, "rhs of Affine must be consistent")),
    "equations that contradict": (lambda: Affine([[1.0, 1.0], [1.0, 1.0]], [1.0, 2.0]), raises(ValueError, "rhs of Affine must be consistent with matrix")),
    "equations too few numbers": (lambda: Affine(np.eye(3), [1.0]), raises(ValueError, r"rhs of Affine must have the shape \(3,\), found \(1,\)")),
    "equations of another width": (lambda: solve(term=Affine(np.eye(2), np.ones(2))), raises(ValueError, "matrix of Affine must have one column for each of the 3 coordinates of x, found 2")),
    "equations twice": (lambda: Affine([[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0]).prox(np.zeros(2), 1.0), near(0.5)),
    "groups of fractions": (lambda: GroupLasso([0.5, 1.5]), raises(TypeError, "groups of GroupLasso must be integer labels")),
    "groups negative": (lambda: GroupLasso([0, -1]), raises(ValueError, "groups of GroupLasso must be labels ≥ 0, found -1")),
    "groups of nothing": (lambda: GroupLasso([]), raises(ValueError, "groups of GroupLasso must hold at least one label")),
    "groups beyond their count": (lambda: GroupLasso([0, 5], count=2), raises(ValueError, "count of GroupLasso must exceed the largest label 5, found 2")),
    "matrices of a vector": (lambda: solve(term=PSDCone()), raises(ValueError, r"PSDCone: x must be a square matrix, found the shape \(3,\)")),
    "spectral box upside down": (lambda: SpectralBox(2.0, 1.0), raises(ValueError, "lower of SpectralBox must be ≤ upper")),
    "rank of zero": (lambda: Rank(0), raises(ValueError, "rank of Rank must be a whole number of at least 1, found 0")),
    "rank a fraction": (lambda: Rank(1.5), raises(TypeError, "rank of Rank must be a whole number")),
    "variation of a scalar": (lambda: solve(np.zeros(()), term=TotalVariation1D()), raises(ValueError, "TotalVariation1D: x must be a vector")),
    "variation of one sample": (lambda: TotalVariation1D().prox(jnp.array([3.0]), 1.0), near(3.0)),
    "scaled by less than nothing": (lambda: -1.0 * L1(), raises(ValueError, "factor of Scaled must be .* found -1.0")),
    "scaled by a word": (lambda: "2" * L1(), raises(TypeError, "factor of Scaled must be .* found '2'")),
    "scaled no term": (lambda: Scaled(3.0, 2.0), raises(TypeError, "term of Scaled must be a Term, found 3.0")),
    "dilated by nothing": (lambda: Dilated(L1(), 0.0), raises(ValueError, "factor of Dilated must not be 0")),
    "translated to infinity": (lambda: Translated(L1(), INF), raises(ValueError, "shift of Translated must be .* found inf")),
    "per leaf of numbers": (lambda: PerLeaf({"a": 1.0}), raises(TypeError, "terms of PerLeaf must hold only Term instances, found 1.0")),
    "per leaf of another tree": (lambda: solve(term=PerLeaf({"a": L1()})), raises(ValueError, "terms of PerLeaf must be a prefix of the tree x")),
    "prox of complex": (lambda: L1().prox(np.ones(2, complex), 1.0), raises(TypeError, "x must be an array of real floating numbers, found the dtype complex")),
    "prox of integers": (lambda: L1(0.5).prox(jnp.arange(3), 1.0), raises(TypeError, "x must be an array of real floating numbers, found the dtype int")),
    "prox of a list": (lambda: L1().prox([3.0], 1.0), raises(TypeError, r"x\[0\] must be an array of real floating numbers, found float")),
    "prox of a negative step": (lambda: NonNegative().prox(X, -1.0), raises(ValueError, "step must be a number of at least 0, found -1.0")),
    "prox of a step of NaN": (lambda: L2().prox(X, NAN), raises(ValueError, "step must be a number of at least 0, found nan")),
    "prox of a step that is a word": (lambda: L1().prox(X, "1"), raises(TypeError, "step must be a number of at least 0, found '1'")),
    "prox of many steps that is not separable": (lambda: L2().prox(X, np.ones(3)), raises(ValueError, "L2 is not separable: step must be a scalar")),
    "prox of an infinite step": (lambda: L1().prox(np.ones(2), INF), near(0.0)),
    "prox of a step of zero": (lambda: L2().prox(np.ones(2), 0.0), near(1.0)),
    "prox of tiny numbers": (lambda: L2(0.5).prox(jnp.array([3e-300, 4e-300]), 1e-300), near([2.7e-300, 3.6e-300])),
    # Divergences.
    "entropy from zero": (lambda: solve(divergence=NegativeEntropy()), raises(ValueError, "x0 must be positive for divergence=NegativeEntropy.*found 0")),
    "Burg from below": (lambda: solve(-np.ones(3), divergence=BurgEntropy()), raises(ValueError, "x0 must be positive for divergence=BurgEntropy.*found -1")),
    "entropy from a vertex nearly": (lambda: solve(jnp.array([1.0, 1e-30, 1e-30]), term=Simplex(), divergence=NegativeEntropy()).x, near(1 / 3, rtol=1e-2)),
    "metric of zero": (lambda: DiagonalMetric(0.0), raises(ValueError, "weights of DiagonalMetric must be .* above 0, found 0.0")),
    "metric of another shape": (lambda: solve(divergence=DiagonalMetric(np.ones(2))), raises(ValueError, r"weights of DiagonalMetric must broadcast to the shape \(3,\) of x, found the shape \(2,\)")),
    "metric not square": (lambda: MatrixMetric(np.ones((2, 3))), raises(ValueError, r"matrix of MatrixMetric must be square, found shape \(2, 3\)")),
    "metric not symmetric": (lambda: MatrixMetric([[1.0, 2.0], [0.0, 1.0]]), raises(ValueError, "matrix of MatrixMetric must be symmetric")),
    "metric indefinite": (lambda: MatrixMetric(np.diag([1.0, -1.0])), raises(ValueError, "matrix of MatrixMetric must be positive definite, found the eigenvalue -1")),
    "metric of NaN": (lambda: MatrixMetric(np.full((2, 2), NAN)), raises(ValueError, "matrix of MatrixMetric must hold .* found nan")),
    "metric of another side": (lambda: solve(divergence=MatrixMetric(np.eye(2))), raises(ValueError, "matrix of MatrixMetric has side 2, x0 has 3 entries")),
    "Bregman of no function": (lambda: Bregman(3.0, jnp.exp), raises(TypeError, "potential of Bregman must be callable, found 3.0")),
    "family of a class": (lambda: KLToCentre(BernoulliFamily), raises(TypeError, "family of KLToCentre must be an ExponentialFamily, found the class BernoulliFamily")),
    "Gaussian without moments": (lambda: solve(divergence=KLToCentre(GaussianFamily())), raises(TypeError, "x0 must be the natural parameters of GaussianFamily")),
    "Gaussian of no covariance": (lambda: solve(Moments(np.zeros(2), np.eye(2)), divergence=KLToCentre(GaussianFamily())), raises(ValueError, "x0 must be natural parameters of GaussianFamily")),
    "prior of another shape": (lambda: solve(term=KLToPrior(BernoulliFamily(), np.zeros(2)), divergence=KLToCentre(BernoulliFamily())), raises(ValueError, r"prior of KLToPrior has shapes \(2,\), x0 has \(3,\)")),
    # Oracles.
    "batch of nothing": (lambda: MiniBatch(losses, ROWS, 0), raises(ValueError, "batch_size must be a whole number from 1 to 8, found 0")),
    "batch beyond the data": (lambda: MiniBatch(losses, ROWS, 9), raises(ValueError, "batch_size must be a whole number from 1 to 8, found 9")),
    "batch of a fraction": (lambda: MiniBatch(losses, ROWS, 2.0), raises(TypeError, "batch_size must be a whole number")),
    "data of two lengths": (lambda: MiniBatch(losses, (ROWS, ROWS[:3]), 2), raises(ValueError, "data must hold arrays of one common length")),
    "data a scalar": (lambda: MiniBatch(losses, 3.0, 1), raises(ValueError, "data must hold arrays of one common length")),
    "data of no rows": (lambda: MiniBatch(losses, ROWS[:0], 1), raises(ValueError, "data must hold at least one example, found none")),
    "data of words": (lambda: MiniBatch(losses, np.array(["a", "b"]), 1), raises(TypeError, "data must hold arrays of numbers")),
    "data None": (lambda: MiniBatch(losses, None, 1), raises(ValueError, "data must hold arrays")),
    "losses no function": (lambda: MiniBatch(3, ROWS, 1), raises(TypeError, "losses of MiniBatch must be callable, found 3")),
    "losses summed": (lambda: minimize(MiniBatch(lambda x, rows: jnp.sum(losses(x, rows)), ROWS, 4), X, step=0.1, key=jax.random.key(0), steps=2), raises(ValueError, r"losses must return one loss per example, shape \(4,\), found \(\)")),
    "replacement a word": (lambda: batches(replacement="no"), raises(TypeError, "replacement of MiniBatch must be True or False, found 'no'")),
    "weights too few": (lambda: batches(weights=np.ones(3)), raises(ValueError, r"weights must have shape \(8,\), one per example, found \(3,\)")),
    "weights negative": (lambda: batches(weights=-np.ones(8)), raises(ValueError, "weights must be finite, non-negative and not all 0")),
    "weights all zero": (lambda: batches(weights=np.zeros(8)), raises(ValueError, "weights must be finite, non-negative and not all 0")),
    "weights of words": (lambda: batches(weights=["a"] * 8), raises(TypeError, "weights must be")),
    "weights of integers": (lambda: batches(weights=np.arange(8)).weights.mean(), near(1.0)),
    "SVRG of a function": (lambda: SVRG(bowl, 10), raises(TypeError, "oracle must be an Oracle, found <function bowl")),
    "SVRG without a full gradient": (lambda: SVRG(Reparameterised(lambda x, key: x, 2), 10), raises(TypeError, r"oracle=Reparameterised has no full\(x\)")),
    "SVRG of no period": (lambda: SVRG(batches(), 0), raises(ValueError, "period of SVRG must be a whole number of at least 1, found 0")),
    "SVRG of an unknown restart": (lambda: SVRG(batches(), 5, restart="best"), raises(ValueError, "restart of SVRG must be one of 'mean', 'last', found 'best'")),
    "coin of nothing": (lambda: LooplessSVRG(batches(), 0.0), raises(ValueError, "probability of LooplessSVRG must be .* found 0.0")),
    "coin beyond one": (lambda: LooplessSVRG(batches(), 1.5), raises(ValueError, "probability of LooplessSVRG must be .* found 1.5")),
    "no samples": (lambda: Reparameterised(lambda x, key: x, 0), raises(ValueError, "samples must be a whole number of at least 1, found 0")),
    "one sample and a baseline": (lambda: ScoreFunction(bowl, bowl, bowl, 1), raises(ValueError, "samples must be a whole number of at least 2, found 1")),
    "integrand no function": (lambda: Reparameterised(3.0), raises(TypeError, "integrand of Reparameterised must be callable, found 3.0")),
    # Optax, files.
    "as_optax that looks ahead": (lambda: as_optax(step=0.1, momentum=FISTA()), raises(TypeError, "momentum=FISTA takes the gradient away from the parameters")),
    "as_optax of entropies": (lambda: as_optax(step=0.1, divergence=NegativeEntropy()), raises(TypeError, "divergence=NegativeEntropy has no additive steps")),
    "as_optax with a search": (lambda: as_optax(step=Backtracking()), raises(TypeError, "step=Backtracking needs exact gradients")),
    "update of a point": (lambda: Descent(bowl, step=0.1).update(X, jax.random.key(0)), raises(TypeError, "state must be a State such as descent.init")),
    "as_optax without parameters": (lambda: as_optax(step=0.1).update(X, as_optax(step=0.1).init(X)), raises(ValueError, "params must be passed to update")),
    "as_optax with another tree": (lambda: as_optax(step=0.1).update({"a": X}, as_optax(step=0.1).init(X), X), raises(ValueError, "returned a gradient with the tree")),
    "a file that is not there": (lambda: files.load("no-such-file.thalweg"), raises(FileNotFoundError, "no-such-file.thalweg")),
    "a result of another run": (lambda: solve(solve(step=0.1), step=0.1, momentum=FISTA()), raises(ValueError, "x0 is the Result of a run with another oracle, step, momentum or average")),
    "a mean that is exact": (lambda: solve(average=PolyakRuppert(), steps=5).x.shape, near((3,))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_clear_error_or_the_right_answer(name):
    call, expected = CASES[name]
    if callable(expected):
        expected(call())
        return
    kind, words = expected
    with pytest.raises(kind, match=words) as told:
        call()
    # What a user reads first is one message and no page.
    assert len(re.sub(r"-{5,}.*", "", str(told.value), flags=re.S)) < 1500


def test_the_table_is_long():
    assert len(CASES) >= 110
