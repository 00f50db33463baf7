"""The smoothed nuclear norm: min over θ in a box of tr (θθᵀ + εI)^½ + λ Σ_Ω (θ − R)², §5.1 of the spectral paper.

Four ways down. GD takes the exact gradient, (θθᵀ + εI)^(−½) θ + 2λ(θ − R)_Ω, by an eigendecomposition. SGD (Algorithm
1) estimates the first part from probes and random degrees: only products with θ and θᵀ, and θθᵀ is never formed.
SGD-DET does so with one fixed degree, which is biased. SVRG (Algorithm 2) corrects SGD by an exact gradient now and
then; both of its gradients share keys, interval, coefficients and law, which change with the snapshot only.

The interval is [ε, ε + u], with room for rounding below. ‖θ‖² ≤ max_i (Bx)_i/x_i with B = |θ||θ|ᵀ, for every positive
x (Collatz and Wielandt), and a few turns of the power method make x all but the best. With room for a round, u is
rounded up to one of few values, so that there are few tables and few programs; it is never more than what no point of
the box exceeds.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from thalweg import arguments
from thalweg.completion.factors import Ratings
from thalweg.descent import FISTA, Box, Constant, PolyakRuppert, Polynomial, Status, minimize
from thalweg.oracles import SVRG, Oracle
from thalweg.oracles.base import Out
from thalweg.padding import padded, padded_size
from thalweg.spectral import InfiniteVarianceWarning, ShiftedOperator, SpectralOracle
from thalweg.spectral.operators.gram import GramOperator

METHODS = ("gd", "sgd", "sgd-det", "svrg")

_ROOM = 2.0
"""By how much a norm may grow in a round before its bound does not hold; if it does, the round is repeated."""

_GRADES = 16.0
"""Upper ends of the interval, over ε, are rounded up to powers of this."""

_MOST = _GRADES**4
"""Room beyond which it is not for want of room that a round diverged."""

_ROUNDING = 1e-5
"""What products in float32 may take an eigenvalue below ε by, as a share of the upper end."""

_TURNS = 8
"""Of the power method."""


class Gram(eqx.Module):
    """θ ↦ θθᵀ + εI, by products with θ and θᵀ; θ no higher than wide.

    Examples
    --------
    >>> Gram(jnp.array(0.5))(jnp.ones((2, 3))).diagonal()
    Array([3.5, 3.5], dtype=float...)
    """

    smoothing: Float[Array, ""]

    def __call__(self, theta: Float[Array, "d r"]) -> ShiftedOperator:
        """A(θ)."""
        return ShiftedOperator(GramOperator(theta), self.smoothing)


class Misfit(eqx.Module):
    """λ Σ_Ω (θ − R)²; padding weighs 0.

    Examples
    --------
    >>> at = jnp.array([0]), jnp.array([1]), jnp.array([3.0]), jnp.array([2.0])
    >>> Misfit(*at)(jnp.ones((2, 2)))
    Array(8., dtype=float...)
    """

    rows: Int[Array, " n"]
    columns: Int[Array, " n"]
    values: Float[Array, " n"]
    weights: Float[Array, " n"]
    """λ, times the weight of a rating."""

    def __call__(self, theta: Float[Array, "d r"]) -> Float[Array, ""]:
        """The value."""
        return jnp.sum(self.weights * (theta[self.rows, self.columns] - self.values) ** 2)


class Relaxed(eqx.Module):
    """The problem: what is known, how it is smoothed and weighed, and the box.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([1, 2]), np.array([3.0, 4.0]), None, (2, 3))
    >>> problem = Relaxed.of(ratings, low=0.0, high=5.0, threshold=1.0, smoothing=0.5)
    >>> problem.known().tolist(), round(float(problem.value(problem.known())), 4)
    ([[0.0, 3.0, 0.0], [0.0, 0.0, 4.0]], 7.8553)
    """

    gram: Gram
    misfit: Misfit
    box: Box
    shape: tuple[int, int] = eqx.field(static=True)

    @staticmethod
    def of(
        ratings: Ratings,
        *,
        low: float = -np.inf,
        high: float = np.inf,
        threshold: float = 0.3,
        smoothing: float = 0.25,
        dtype: Any = np.float32,
    ) -> "Relaxed":
        """Weigh and smooth in units of the typical singular value s = (Σ_Ω R²/d)^½ of what is known.

        1/(2λ) is ``threshold``·s: what a step onto the ratings would be softened by. √ε is ``smoothing``·s: the size
        below which a singular value is a penalty no more.
        """
        if ratings.shape[0] > ratings.shape[1]:
            raise ValueError(f"ratings must have no more rows than columns, found {ratings.shape}: turn them")
        weights = np.ones(len(ratings.values)) if ratings.weights is None else ratings.weights / ratings.weights.mean()
        scale = float(np.sqrt(np.sum(weights * ratings.values**2) / ratings.shape[0])) or 1.0
        size = padded_size(len(ratings.values), 1024)
        laid = lambda entry, kind: jnp.asarray(padded(entry, size), kind)
        return Relaxed(
            Gram(jnp.asarray((smoothing * scale) ** 2, dtype)),
            Misfit(
                laid(ratings.rows, np.int32),
                laid(ratings.columns, np.int32),
                laid(ratings.values, dtype),
                laid(weights / (2 * threshold * scale), dtype),
            ),
            Box(jnp.asarray(low, dtype), jnp.asarray(high, dtype)),
            (int(ratings.shape[0]), int(ratings.shape[1])),
        )

    @property
    def smoothness(self) -> float:
        """L: the curvature is at most 1/√ε + 2λ."""
        return float(1 / np.sqrt(self.gram.smoothing) + 2 * np.max(self.misfit.weights))

    def known(self) -> Float[Array, "d r"]:
        """The ratings, and 0 elsewhere: where the paper starts. Of two ratings of a cell their sum, within the box."""
        misfit = self.misfit
        given = jnp.where(misfit.weights > 0, misfit.values, 0)
        return self.box.project(jnp.zeros(self.shape, given.dtype).at[misfit.rows, misfit.columns].add(given))

    def value(self, theta: Float[Array, "d r"]) -> float:
        """The objective, exactly and on the host."""
        squares = np.linalg.svd(np.asarray(theta, np.float64), compute_uv=False) ** 2
        return float(np.sum(np.sqrt(squares + float(self.gram.smoothing)))) + float(self.misfit(theta))

    def oracle(self, theta: Float[Array, "d r"], key: Key[Array, ""], **options: Any) -> "Sampled":
        """Unbiased gradients, and exact ones by its ``full``; options are those of a plan."""
        return Sampled(jnp.sqrt, self.gram, theta, key, g=self.misfit, **options)  # type: ignore[call-arg, arg-type]

    def interval(self, theta: Float[Array, "d r"], more: float = 1.0) -> tuple[float, float]:
        """One that holds the spectrum of A here, and as far as a round is expected to go, times ``more``."""
        least = float(self.gram.smoothing)
        reach = more * (_ROOM**2 * float(bound(theta)) + least)
        graded = least * _GRADES ** np.ceil(np.log(reach / least) / np.log(_GRADES) - 1e-6)
        ends = np.abs([float(self.box.lower), float(self.box.upper)])
        upper = float(min(max(graded, 2 * least), 1.01 * ends.max() ** 2 * np.prod(self.shape) + 2 * least))
        return least - min(_ROUNDING * upper, 0.5 * least), upper


@jax.jit
def bound(theta: Float[Array, "d r"]) -> Float[Array, ""]:
    """‖θ‖² or a little more, never less but for rounding.

    Examples
    --------
    >>> round(float(bound(jnp.array([[3.0, 0.0], [0.0, 4.0]]))), 3)
    16.0
    """
    sizes = jnp.abs(theta)

    def turn(vector: Array) -> Array:
        return jnp.matmul(sizes, jnp.matmul(sizes.T, vector, precision="highest"), precision="highest")

    def normed(_: Any, vector: Array) -> Array:
        image = turn(vector)
        return image / jnp.maximum(jnp.max(image), jnp.finfo(theta.dtype).tiny)

    vector = jax.lax.fori_loop(0, _TURNS, normed, jnp.ones(len(theta), theta.dtype))
    image = turn(vector)
    ratios = jnp.where(image > 0, image / vector, 0)
    return jnp.minimum(jnp.max(ratios), jnp.sum(sizes**2))


def factorised(gram: Gram, misfit: Misfit, theta: Float[Array, "d r"]) -> Out:
    """Value and exact gradient by an eigendecomposition of θθᵀ, whose eigenvalues rounding may have made negative.

    Examples
    --------
    >>> nothing = Misfit(*(jnp.zeros(1, kind) for kind in ("int32", "int32", "float32", "float32")))
    >>> factorised(Gram(jnp.array(16.0, "float32")), nothing, jnp.array([[3.0, 0.0]], "float32"))[0].tolist()
    [[0.6..., 0.0]]
    """
    product = partial(jnp.matmul, precision="highest")
    squares, vectors = jnp.linalg.eigh(product(theta, theta.T), symmetrize_input=False)
    roots = jnp.sqrt(jnp.maximum(squares, 0) + gram.smoothing)
    rest, slope = jax.value_and_grad(misfit)(theta)
    gradient = product(vectors / roots[None, :], product(vectors.T, theta)) + slope
    return Out(gradient, jnp.sum(roots) + rest, jnp.asarray(float(len(theta))))


class Factorised(Oracle):
    """The exact gradient at every step, and the value that comes with it.

    Examples
    --------
    >>> Factorised.full is None
    True
    """

    gram: Gram
    misfit: Misfit

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """That of :func:`factorised`; the key is not used."""
        return factorised(self.gram, self.misfit, x), state


class Sampled(SpectralOracle):
    """Unbiased gradients, and the exact one at a snapshot.

    >>> issubclass(Sampled, SpectralOracle)
    True
    """

    def full(self, x: PyTree[Array]) -> Out:
        """That of :func:`factorised`."""
        return factorised(self.operator, self.g, x)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Way:
    """How to go down.

    Examples
    --------
    >>> Way("sgd", law="theorem3", degree=15.0).round
    10
    """

    method: str = "svrg"
    """One of ``METHODS``."""
    step: float = 0.5
    """The step size, over 1/L; GD takes up to 2."""
    law: str = "optimal"
    """Of the degrees: see :func:`thalweg.spectral.plan`. SGD-DET has none."""
    degree: float | None = 15.0
    """The mean degree N, and the degree of SGD-DET; None: where variance times work is least."""
    probes: int = 64
    """M."""
    round: int = 10
    """Steps with one interval; of SVRG, T."""
    decay: float = np.inf
    """Steps after which those of SGD begin to fall as one over the root of their number."""
    restart: str = "mean"
    """Of SVRG, where the next snapshot is taken: at the mean of the steps, as in Algorithm 2, or at the "last"."""
    accelerated: bool = False
    """Whether GD has FISTA's momentum, for the length of a round; its step is then 1 at most."""


@dataclass(frozen=True)
class Path:
    """Where it ended, and after each round the seconds, what was watched, and the objective (an estimate, of SGD).

    Examples
    --------
    >>> Path(np.zeros((1, 1)), [0.0, 1.0], [2.0, 1.0], [5.0], 8.0, Status.STEPS_SPENT).arrival(1.5)
    1.0
    """

    theta: Any
    seconds: list[float]
    watched: list[float]
    values: list[float]
    products: float
    status: Status

    def arrival(self, level: float) -> float:
        """Seconds until what was watched was first as small; infinite if never."""
        reached = np.flatnonzero(np.asarray(self.watched) <= level)
        return self.seconds[reached[0]] if reached.size else np.inf


def descend(
    problem: Relaxed,
    start: Float[Array, "d r"],
    way: Way,
    key: Key[Array, ""],
    *,
    rounds: int,
    seconds: float = np.inf,
    watch: Callable[[Array], float] | None = None,
    stop: Callable[[list[float], list[float]], bool] | None = None,
) -> Path:
    """Go down from a start, a round of steps at a time; what is watched is not on the clock.

    Parameters
    ----------
    problem
        What to minimise.
    start
        θ to start from.
    way
        The method and its settings.
    key
        Of probes and degrees.
    rounds, seconds
        The most of each.
    watch
        A number to be kept after each round, and before the first.
    stop
        ``stop(values, watched) -> bool`` after each round: whether it was the last.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), np.array([3.0, 4.0, 4.0, 2.0]), None, (2, 3))
    >>> problem = Relaxed.of(ratings, low=0.0, high=5.0)
    >>> path = descend(problem, problem.known(), Way("gd", 1.5, round=5), jax.random.key(0), rounds=2)
    >>> bool(path.values[-1] < path.values[0])
    True
    """
    arguments.one_of("method", way.method, METHODS)
    oracle: Any = None
    theta, clock, products, interval = start, 0.0, 0.0, (np.inf, np.inf)
    times, watched, values = [0.0], [] if watch is None else [watch(start)], []
    status, done, more = Status.STEPS_SPENT, 0, 1.0
    options = {"law": "fixed" if way.method == "sgd-det" else way.law, "degree": way.degree, "probes": way.probes}
    with jax.default_matmul_precision("highest"):
        while done < rounds and clock < seconds:
            begun = time.perf_counter()
            key_of_plan, key_of_steps = jax.random.split(jax.random.fold_in(key, done))
            if way.method == "gd":
                oracle = Factorised(problem.gram, problem.misfit)
            elif problem.interval(theta, more) != interval:
                interval = problem.interval(theta, more)
                oracle = _planned(problem, theta, key_of_plan, interval, options)
                oracle = SVRG(oracle, way.round, restart=way.restart) if way.method == "svrg" else oracle
            result = minimize(
                oracle,
                theta,
                term=problem.box,
                step=_step(way, problem.smoothness, done),
                momentum=FISTA() if way.accelerated and way.method == "gd" else None,
                average=PolyakRuppert() if way.method == "svrg" and way.restart == "mean" else None,
                steps=way.round,
                key=key_of_steps,
                stride=way.round,
            )
            if result.status is Status.DIVERGED and more < _MOST and problem.interval(theta, _MOST)[1] > interval[1]:
                # The norm has outgrown its bound: from the same place again, with more room.
                more *= _GRADES
                clock += time.perf_counter() - begun
                continue
            more, done = 1.0, done + 1
            theta = jax.block_until_ready(result.x)
            clock, products = clock + time.perf_counter() - begun, products + result.work
            times.append(clock)
            values.append(_value(way, result))
            watched += [] if watch is None else [watch(theta)]
            if result.status in (Status.DIVERGED, Status.INTERRUPTED):
                status = result.status
                break
            if stop is not None and stop(values, watched):
                status = Status.CONVERGED
                break
    return Path(theta, times, watched, values, products, status)


def _planned(
    problem: Relaxed, theta: Array, key: Key[Array, ""], interval: tuple[float, float], options: dict
) -> Sampled:
    with warnings.catch_warnings():
        # Whoever asks for such a law wants to see what it does.
        warnings.simplefilter("ignore", InfiniteVarianceWarning)
        return problem.oracle(theta, key, interval=interval, slack=1.0, **options)


def _step(way: Way, smoothness: float, done: int) -> Constant | Polynomial:
    size = way.step / smoothness
    if not way.method.startswith("sgd") or not np.isfinite(way.decay):
        return Constant(size)
    before = way.decay + done * way.round
    return Polynomial(size * (before / way.decay) ** -0.5, scale=before)


def _value(way: Way, result: Any) -> float:
    """Of SVRG and GD exact, though of where the round began, or where its last step did."""
    if way.method == "svrg":
        return float(result.state.oracle.anchor.full.value)
    return float(result.history.last["value"])
