"""The smoothed nuclear norm: min over θ in a box of tr (θθᵀ + εI)^½ + λ Σ_Ω (θ − R)², §5.1 of the spectral paper.

The gradient is Wθ + 2λ(θ − R)_Ω with W = (θθᵀ + εI)^(−½). Exactly, by an eigendecomposition; or Wθ from probes v and
random degrees, by products with θ and θᵀ alone, so that θθᵀ is never formed.

For one probe, ∂ tr √A = tr(W ∂A)/2 with ∂A = θ̇θᵀ + θθ̇ᵀ gives two halves, Wv(θᵀv)ᵀ and v(θᵀWv)ᵀ. W is symmetric, and
both have the mean Wθ; but the noise in a cell is ‖W_i‖‖θ_j‖ in one and ‖(Wθ)_j‖ in the other, where no singular value
exceeds 1. So the second is taken, twice.

The interval is [ε, ε + u], with room for rounding below. ‖θ‖² ≤ max_i (Bx)_i/x_i with B = |θ||θ|ᵀ, for every positive
x (Collatz and Wielandt), and a few power iterations make x nearly optimal. With room for a round, u is
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

from thalweg.completion.ratings import GRAIN, Ratings
from thalweg.descent import Box
from thalweg.linalg.operators.matrices import GramOperator
from thalweg.oracles import Oracle
from thalweg.oracles.base import Out
from thalweg.padding import padded, padded_size
from thalweg.spectral import ShiftedOperator, SpectralOracle

__all__ = ["Relaxed"]

GROWTH = 1.25
"""The factor by which a norm may grow in a round before its bound does not hold, and the round is repeated with more
room. Doubled, degrees double with the width of the interval."""

POWER_ITERATIONS = 8
"""Of the power method: with ratings, the error of its vector falls to an eighth or less in each. More gain nothing."""


@jax.custom_jvp
def _twice(x: Array) -> Array:
    """Return x, with twice its derivative."""
    return x


_twice.defjvps(lambda tangent, _, __: 2 * tangent)


class _HalfGram(GramOperator):
    """θθᵀ, whose derivative is 2θθ̇ᵀ in place of θ̇θᵀ + θθ̇ᵀ: see the head of this file."""

    def mv(self, block: Array) -> Array:
        """Return θ(θᵀV)."""
        tall = self.tall.astype(block.dtype)
        return jax.lax.stop_gradient(tall).T @ (_twice(tall) @ block)


def leading(theta: Float[Array, "d r"], start: Float[Array, " d"] | None = None) -> Float[Array, " d"]:
    """Return the left singular vector of the largest singular value, by the power method, as a constant."""
    theta = jax.lax.stop_gradient(theta)
    vector = jnp.ones(len(theta), theta.dtype) if start is None else start
    for _ in range(POWER_ITERATIONS):  # unrolled, so that the compiler merges two calls into one
        image = _squared(theta, vector)
        vector = image / jnp.maximum(jnp.linalg.norm(image), jnp.finfo(theta.dtype).tiny)
    return vector


def deflate(theta: Float[Array, "d r"]) -> Float[Array, "d r"]:
    """Return Pθ: θ without its leading singular value."""
    vector = leading(theta)
    return theta - vector[:, None] * jnp.matmul(vector, theta, precision="highest")[None, :]


def _squared(theta: Array, vector: Array) -> Array:
    return jnp.matmul(theta, jnp.matmul(theta.T, vector, precision="highest"), precision="highest")


class GramMap(eqx.Module):
    """θ ↦ θθᵀ + εI, by products with θ and θᵀ; θ no higher than wide. If deflated, PθθᵀP + εI."""

    smoothing: Float[Array, ""]
    deflated: bool = eqx.field(static=True, default=False)

    def __call__(self, theta: Float[Array, "d r"]) -> ShiftedOperator:
        """Return A(θ)."""
        return ShiftedOperator(_HalfGram(deflate(theta) if self.deflated else theta), self.smoothing)


class RatingMisfit(eqx.Module):
    """λ Σ_Ω (θ − R)²; padding has weight 0."""

    rows: Int[Array, " n"]
    columns: Int[Array, " n"]
    values: Float[Array, " n"]
    weights: Float[Array, " n"]
    """λ, times the weight of a rating."""

    def __call__(self, theta: Float[Array, "d r"]) -> Float[Array, ""]:
        """Return the value."""
        return (self.weights * (theta[self.rows, self.columns] - self.values) ** 2).sum()


class ExactPart(eqx.Module):
    """The part of the objective that is not estimated: the misfit and, if deflated, the leading singular value."""

    misfit: RatingMisfit
    gram: GramMap

    def __call__(self, theta: Float[Array, "d r"]) -> Float[Array, ""]:
        """Return the value."""
        rest = self.misfit(theta)
        if self.gram.deflated:
            along = jnp.matmul(leading(theta), theta, precision="highest")
            rest = rest + jnp.sqrt(jnp.sum(along**2) + self.gram.smoothing) - jnp.sqrt(self.gram.smoothing)
        return rest


class Relaxed(eqx.Module):
    """The problem: ratings with their weights, the smoothed nuclear norm, and the box.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([1, 2]), np.array([3.0, 4.0]), None, (2, 3))
    >>> problem = Relaxed.of(ratings, low=0.0, high=5.0, threshold=1.0, smoothing=0.5)
    >>> problem.known().tolist(), round(float(problem.value(problem.known())), 4)
    ([[0.0, 3.0, 0.0], [0.0, 0.0, 4.0]], 7.8553)
    """

    gram: GramMap
    misfit: RatingMisfit
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
        """Choose λ and ε by the typical singular value s = (Σ_Ω R²/d)^½ of the ratings.

        1/(2λ) is ``threshold``·s, by which singular values are soft-thresholded. √ε is ``smoothing``·s, below which
        they are hardly penalised.
        """
        if ratings.shape[0] > ratings.shape[1]:
            raise ValueError(f"ratings must have no more rows than columns, found {ratings.shape}: transpose them")
        weights = ratings.scaled_weights()
        scale = float(np.sqrt(np.sum(weights * ratings.values**2) / ratings.shape[0])) or 1.0
        size = padded_size(len(ratings.values), GRAIN)
        on_device = lambda entry, kind: jnp.asarray(padded(entry, size), kind)
        return Relaxed(
            GramMap(jnp.asarray((smoothing * scale) ** 2, dtype)),
            RatingMisfit(
                on_device(ratings.rows, np.int32),
                on_device(ratings.columns, np.int32),
                on_device(ratings.values, dtype),
                on_device(weights / (2 * threshold * scale), dtype),
            ),
            Box(jnp.asarray(low, dtype), jnp.asarray(high, dtype)),
            (int(ratings.shape[0]), int(ratings.shape[1])),
        )

    @property
    def smoothness(self) -> float:
        """L: the curvature is at most 1/√ε + 2λ."""
        return 1 / float(self.gram.smoothing) ** 0.5 + 2 * float(np.max(np.asarray(self.misfit.weights)))

    def known(self) -> Float[Array, "d r"]:
        """Return the ratings, and 0 elsewhere, where the paper starts; ratings of one cell are added within the box."""
        misfit, box = _on_host(self.misfit), _on_host(self.box)
        cells = np.zeros(self.shape, misfit.values.dtype)
        np.add.at(cells, (misfit.rows, misfit.columns), np.where(misfit.weights > 0, misfit.values, 0))
        return jnp.asarray(np.clip(cells, box.lower, box.upper))

    def value(self, theta: Float[Array, "d r"]) -> float:
        """Return the objective, exactly and on the host."""
        squares = np.linalg.svd(np.asarray(theta, np.float64), compute_uv=False) ** 2
        penalty = float(np.sum(np.sqrt(squares + float(self.gram.smoothing))))
        return penalty + float(_on_host(self.misfit)(np.asarray(theta)))

    def oracle(
        self, theta: Float[Array, "d r"], key: Key[Array, ""], deflated: bool = False, **options: Any
    ) -> "SampledNuclearOracle":
        """Return unbiased gradients, and exact ones by ``full``; options are those of :func:`thalweg.spectral.plan`."""
        gram = GramMap(self.gram.smoothing, deflated)
        return SampledNuclearOracle(jnp.sqrt, gram, theta, key, g=ExactPart(self.misfit, gram), **options)  # type: ignore[call-arg, arg-type]

    def interval(self, theta: Float[Array, "d r"], deflated: bool = False, repeats: int = 0) -> tuple[float, float]:
        """Return an interval that holds the spectrum of A here, and after a round unless the norm grows too much.

        What it may grow by is taken to the fourth power for each time that the round is repeated.
        """
        least = float(self.gram.smoothing)
        growth = GROWTH ** (2 * 4**repeats)
        reach = growth * (float(second(theta) if deflated else bound(theta)) + least)
        ends = np.abs([float(self.box.lower), float(self.box.upper)])
        most = ends.max() ** 2 * np.prod(self.shape) + 2 * least  # no point of the box has a larger norm
        power_of_two = least * 2.0 ** np.ceil(np.log2(reach / least))
        upper = max(float(min(power_of_two, most)), 2 * least)
        rounding = float(np.finfo(theta.dtype).eps) * np.sqrt(self.shape[1])
        return least - min(rounding * upper, 0.5 * least), upper


def _on_host(tree: Any) -> Any:
    """Return a tree of NumPy's arrays, for what is computed once: nothing is compiled for it."""
    return jax.tree.map(np.asarray, tree)


@jax.jit
def bound(theta: Float[Array, "d r"]) -> Float[Array, ""]:
    """Return ‖θ‖² or a little more, never less but for rounding."""
    sizes = jnp.abs(theta)
    vector = leading(sizes)
    image = _squared(sizes, vector)
    return jnp.minimum(jnp.max(jnp.where(image > 0, image / vector, 0)), jnp.sum(sizes**2))


@jax.jit
def second(theta: Float[Array, "d r"]) -> Float[Array, ""]:
    """Return the square of the second singular value or a little less: the power method without the leading vector."""
    rest = deflate(theta)
    # A start of ones would be close to the vector that was taken out.
    vector = leading(rest, jnp.cos(jnp.arange(len(theta), dtype=theta.dtype)))
    return jnp.linalg.norm(_squared(rest, vector))


@jax.jit
def exact_gradient(gram: GramMap, misfit: RatingMisfit, theta: Float[Array, "d r"]) -> Out:
    """Return value and exact gradient by an eigendecomposition of θθᵀ."""
    product = partial(jnp.matmul, precision="highest")
    squares, vectors = jnp.linalg.eigh(product(theta, theta.T), symmetrize_input=False)
    roots = jnp.sqrt(jnp.maximum(squares, 0) + gram.smoothing)  # rounding may make squares negative
    rest, derivative = jax.value_and_grad(misfit)(theta)
    gradient = product(vectors / roots[None, :], product(vectors.T, theta)) + derivative
    return Out(gradient, jnp.sum(roots) + rest, jnp.asarray(float(len(theta))))


class ExactNuclearOracle(Oracle):
    """The exact gradient at every step, and the value that comes with it."""

    gram: GramMap
    misfit: RatingMisfit

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Return :func:`exact_gradient`; the key is not used."""
        return exact_gradient(self.gram, self.misfit, x), state


class SampledNuclearOracle(SpectralOracle):
    """Unbiased gradients, and the exact one at a snapshot."""

    def full(self, x: PyTree[Array]) -> Out:
        """Return :func:`exact_gradient`."""
        return exact_gradient(self.operator, self.g.misfit, x)  # type: ignore[union-attr]
