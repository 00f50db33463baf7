"""The smoothed nuclear norm: min over θ in a box of tr (θθᵀ + εI)^½ + λ Σ_Ω (θ − R)², §5.1 of the spectral paper.

The gradient is Wθ + 2λ(θ − R)_Ω with W = (θθᵀ + εI)^(−½). Exactly, by an eigendecomposition; or Wθ from probes v and
random degrees, by products with θ and θᵀ alone, so that θθᵀ is never formed.

For one probe, ∂ tr √A = tr(W ∂A)/2 with ∂A = θ̇θᵀ + θθ̇ᵀ gives two halves, Wv(θᵀv)ᵀ and v(θᵀWv)ᵀ. W is symmetric, and
both have the mean Wθ; but the noise in a cell is ‖W_i‖‖θ_j‖ in one and ‖(Wθ)_j‖ in the other, where no singular value
exceeds 1. So the second is taken, twice.

The interval is [ε, ε + u], with room for rounding below. ‖θ‖² ≤ max_i (Bx)_i/x_i with B = |θ||θ|ᵀ, for every positive
x (Collatz and Wielandt), and a few turns of the power method make x all but the best. With room for a round, u is
rounded up to a power of two times ε, so that there are few tables and few programs; it is never more than what no point
of the box exceeds. A narrow interval is worth it: degrees grow as the root of its ends' ratio.

Of ratings one singular value is far above all others: that of their mean. It alone makes the interval wide, and most of
the noise is about it. ``deflated`` estimates take it out: with u its left singular vector and P = I − uuᵀ,

    tr √A = (‖uᵀθ‖² + ε)^½ − √ε + tr (PθθᵀP + εI)^½,

whose gradient at fixed u is that of tr √A, because u is where the split stands still. The first two terms are exact,
and the interval has to hold the rest only.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from thalweg.completion.factors import Ratings
from thalweg.descent import Box
from thalweg.linalg.operators.gram import GramOperator
from thalweg.oracles import Oracle
from thalweg.oracles.base import Out
from thalweg.padding import padded, padded_size
from thalweg.spectral import ShiftedOperator, SpectralOracle

_ROOM = 1.25
"""By how much a norm may grow in a round before its bound does not hold; if it does, the round is repeated."""

GRADES = 2.0
"""Upper ends of the interval, over ε, are powers of this."""

_ROUNDING = 1e-5
"""What products in float32 may take an eigenvalue below ε by, as a share of the upper end."""

_TURNS = 8
"""Of the power method: with ratings, an error of its vector falls to an eighth or less at a turn."""


@jax.custom_jvp
def _twice(x: Array) -> Array:
    """x, with twice its derivative."""
    return x


_twice.defjvps(lambda tangent, _, __: 2 * tangent)


class _Halved(GramOperator):
    """θθᵀ, of whose derivative θθ̇ᵀ is taken twice in place of θ̇θᵀ + θθ̇ᵀ: see the head of this file."""

    def mv(self, block: Array) -> Array:
        """θ(θᵀV)."""
        tall = self.tall.astype(block.dtype)
        return jax.lax.stop_gradient(tall).T @ (_twice(tall) @ block)


def leading(theta: Float[Array, "d r"]) -> Float[Array, " d"]:
    """The left singular vector of the largest singular value, by the power method; no derivative is taken of it.

    Examples
    --------
    >>> leading(jnp.array([[3.0, 0.0], [0.0, 1.0]])).round(4).tolist()
    [1.0, 0.0]
    """
    theta = jax.lax.stop_gradient(theta)
    vector = jnp.ones(len(theta), theta.dtype)
    for _ in range(_TURNS):  # written out: where it is asked for twice, the compiler then does it once
        image = _squared(theta, vector)
        vector = image / jnp.maximum(jnp.linalg.norm(image), jnp.finfo(theta.dtype).tiny)
    return vector


def _squared(theta: Array, vector: Array) -> Array:
    return jnp.matmul(theta, jnp.matmul(theta.T, vector, precision="highest"), precision="highest")


class Gram(eqx.Module):
    """θ ↦ θθᵀ + εI, by products with θ and θᵀ; θ no higher than wide. If deflated, PθθᵀP + εI.

    Examples
    --------
    >>> Gram(jnp.array(0.5))(jnp.ones((2, 3))).diagonal()
    Array([3.5, 3.5], dtype=float...)
    """

    smoothing: Float[Array, ""]
    deflated: bool = eqx.field(static=True, default=False)

    def __call__(self, theta: Float[Array, "d r"]) -> ShiftedOperator:
        """A(θ)."""
        if self.deflated:
            vector = leading(theta)
            theta = theta - vector[:, None] * jnp.matmul(vector, theta, precision="highest")[None, :]
        return ShiftedOperator(_Halved(theta), self.smoothing)


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


class Rest(eqx.Module):
    """What an estimate of the trace leaves out, and is known exactly: the misfit and, if deflated, the leading value.

    Examples
    --------
    >>> nothing = Misfit(*(jnp.zeros(1, kind) for kind in ("int32", "int32", "float32", "float32")))
    >>> gram = Gram(jnp.array(16.0, "float32"), deflated=True)
    >>> round(float(Rest(nothing, gram)(jnp.array([[3.0, 0.0]], "float32"))), 4)
    1.0
    """

    misfit: Misfit
    gram: Gram

    def __call__(self, theta: Float[Array, "d r"]) -> Float[Array, ""]:
        """The value."""
        rest = self.misfit(theta)
        if self.gram.deflated:
            along = jnp.matmul(leading(theta), theta, precision="highest")
            rest = rest + jnp.sqrt(jnp.sum(along**2) + self.gram.smoothing) - jnp.sqrt(self.gram.smoothing)
        return rest


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

    def oracle(
        self, theta: Float[Array, "d r"], key: Key[Array, ""], deflated: bool = False, **options: Any
    ) -> "Sampled":
        """Unbiased gradients, and exact ones by its ``full``; options are those of a plan."""
        gram = Gram(self.gram.smoothing, deflated)
        return Sampled(jnp.sqrt, gram, theta, key, g=Rest(self.misfit, gram), **options)  # type: ignore[call-arg, arg-type]

    def interval(self, theta: Float[Array, "d r"], more: float = 1.0, deflated: bool = False) -> tuple[float, float]:
        """One that holds the spectrum of A here, and as far as a round is expected to go, times ``more``."""
        least = float(self.gram.smoothing)
        reach = more * (_ROOM**2 * float(second(theta) if deflated else bound(theta)) + least)
        ends = np.abs([float(self.box.lower), float(self.box.upper)])
        most = float(1.01 * ends.max() ** 2 * np.prod(self.shape) + 2 * least)
        graded = least * GRADES ** np.ceil(np.log(reach / least) / np.log(GRADES) - 1e-6)
        upper = max(float(min(graded, most)), 2 * least)
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

    def normed(_: Any, vector: Array) -> Array:
        image = _squared(sizes, vector)
        return image / jnp.maximum(jnp.max(image), jnp.finfo(theta.dtype).tiny)

    vector = jax.lax.fori_loop(0, _TURNS, normed, jnp.ones(len(theta), theta.dtype))
    image = _squared(sizes, vector)
    ratios = jnp.where(image > 0, image / vector, 0)
    return jnp.minimum(jnp.max(ratios), jnp.sum(sizes**2))


@jax.jit
def second(theta: Float[Array, "d r"]) -> Float[Array, ""]:
    """The square of the second singular value or a little less: the power method, the leading vector taken out.

    Examples
    --------
    >>> round(float(second(jnp.array([[3.0, 0.0], [0.0, 2.0]]))), 3)
    4.0
    """
    first = leading(theta)

    def turn(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        vector = carry[0] - first * jnp.sum(first * carry[0])
        vector = vector / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(theta.dtype).tiny)
        image = _squared(theta, vector)
        return image, jnp.linalg.norm(image)

    start = jnp.cos(jnp.arange(len(theta), dtype=theta.dtype)), jnp.zeros((), theta.dtype)
    return jax.lax.fori_loop(0, 2 * _TURNS, turn, start)[1]


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
    """The exact gradient at every step, and the value that comes with it."""

    gram: Gram
    misfit: Misfit

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """That of :func:`factorised`; the key is not used."""
        return factorised(self.gram, self.misfit, x), state


class Sampled(SpectralOracle):
    """Unbiased gradients, and the exact one at a snapshot."""

    def full(self, x: PyTree[Array]) -> Out:
        """That of :func:`factorised`."""
        return factorised(self.operator, self.g.misfit, x)  # type: ignore[arg-type, union-attr]
