"""What :mod:`thalweg.machines.kept` does, with the whole kernel matrix on a device, which has more memory than time."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.machines.dense import LEAST_DIAGONAL
from thalweg.machines.kept import BLOCK, Gradients
from thalweg.padding import padded

_product = partial(jnp.matmul, precision="highest")


class _System(NamedTuple):
    """K, the inverses of the factors of its diagonal blocks, and what D is, with rows in blocks of one size.

    Rows of padding are those of the unit matrix.
    """

    matrix: Float[Array, "blocks rows n"]
    inverses: Float[Array, "blocks rows rows"]
    diagonal: Float[Array, "blocks rows 1"]
    raised: Float[Array, "blocks rows 1"]
    """What had to be added to it for a factor."""


class _State(NamedTuple):
    """Conjugate gradients of all outputs side by side."""

    weights: Float[Array, "blocks rows c"]
    left: Float[Array, "blocks rows c"]
    steepest: Float[Array, "blocks rows c"]
    direction: Float[Array, "blocks rows c"]
    square: Float[Array, "1 1 c"]


class KeptOnDevice(Gradients):
    """Weights W of the rows, and what they say of rows held out; parameters as in :class:`thalweg.machines.kept.Kept`.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> x, y = np.arange(5.0, dtype="f")[:, None], np.sin(np.arange(5.0))[:, None]
    >>> kept = KeptOnDevice(Gaussian(), x, y, np.full(5, 0.1), held=x[:1], size=2)
    >>> list(kept.meet())
    [2, 2, 2]
    >>> for _ in range(5):
    ...     left = kept.step()
    >>> K = np.exp(-((x - x.T) ** 2) / 2)
    >>> bool(abs(kept.weights - np.linalg.solve(K + 0.1 * np.eye(5), y)).max() < 1e-4), bool(left < 1e-6)
    (True, True)
    """

    def __init__(
        self,
        kernel: Kernel,
        x: np.ndarray,
        targets: np.ndarray,
        diagonal: np.ndarray,
        held: np.ndarray,
        size: int | None = None,
    ) -> None:
        count = -(-len(x) // (size or BLOCK))
        self._shape, self._rows, self._dtype = (count, -(-len(x) // count)), len(x), x.dtype
        self.kernel, self.begun, self.met = kernel, False, False
        self._x, self._targets = self._placed(x), self._placed(targets)
        self._there = self._placed(np.ones((len(x), 1)))
        self._held = jnp.asarray(held)
        rows = self._shape[1]
        empty = lambda width: jnp.zeros((count, rows, width), x.dtype)
        self._system = _System(empty(count * rows), empty(rows), *self._of_diagonal(diagonal))
        none = jnp.zeros_like(self._targets)
        self._state = _State(none, none, none, none, none[:1, :1])

    @property
    def weights(self) -> np.ndarray:
        """On the host, a row for each."""
        found = np.asarray(self._state.weights)
        return found.reshape(-1, found.shape[2])[: self._rows]

    def begin(self, weights: np.ndarray) -> None:
        """Begin with weights that were found before: nothing is solved for when blocks are met."""
        self._state, self.begun = self._state._replace(weights=self._placed(weights)), True

    def meet(self) -> Iterator[int]:
        """Find the matrix block by block, solve for each of them in turn, and yield its number of rows."""
        for block in range(self._shape[0]):
            self._system, weights = _met(
                self._system, self._state.weights, self.kernel, self._x, self._there, self._targets, block, self.begun
            )
            self._state = self._state._replace(weights=weights)
            yield self._shape[1]
        self.met = True
        self._between = _between(self.kernel, self._held, self._x)
        self._state = _faced(self._system, self._targets, self._state.weights)

    def change(self, diagonal: np.ndarray) -> None:
        """Go on with another D."""
        self._system = _changed(self._system, *self._of_diagonal(diagonal))
        self._state = _faced(self._system, self._targets, self._state.weights)

    def step(self) -> float:
        """Make a step of conjugate gradients, and return the part of the objective that it gained."""
        self._state, gained = _stepped(self._system, self._targets, self._state)
        return float(gained)

    def values(self, some: slice = slice(None)) -> np.ndarray:
        """What is said of the rows held out, or of some of them."""
        return np.asarray(_said(self._between, self._state.weights))[some]

    def _placed(self, array: np.ndarray) -> Array:
        """In blocks, with padding."""
        count, rows = self._shape
        whole = padded(np.asarray(array, self._dtype), count * rows)
        return jnp.asarray(whole.reshape(count, rows, -1))

    def _of_diagonal(self, diagonal: np.ndarray) -> tuple[Array, Array]:
        least = LEAST_DIAGONAL[self._dtype] * float(self.kernel.variance)
        raised = self._placed(np.maximum(least - diagonal, 0))
        return jnp.where(self._there > 0, self._placed(diagonal), 1), raised


@quick_jit(lambda *_: False, tuned=False, donate_argnums=0)
def _met(
    system: _System, weights: Array, kernel: Kernel, x: Array, there: Array, targets: Array, block: Any, begun: Any
) -> tuple[_System, Array]:
    """With the rows of one more block, and weights solved for from those before unless they were begun with."""
    flat = lambda array: array.reshape(-1, array.shape[2])
    strip = kernel(x[block], flat(x)) * there[block] * flat(there).T
    own = block * x.shape[1] + jnp.arange(x.shape[1])[:, None] == jnp.arange(len(flat(x)))[None, :]
    strip = jnp.where(own, kernel.variance.astype(strip.dtype) * there[block], strip)
    inverse = _inverse(strip, system.diagonal[block] + system.raised[block], block)
    solved = _solve(inverse, targets[block] - _product(strip, flat(weights)))
    weights = weights.at[block].set(jnp.where(begun, weights[block], solved))
    matrix, inverses = system.matrix.at[block].set(strip), system.inverses.at[block].set(inverse)
    return system._replace(matrix=matrix, inverses=inverses), weights


@quick_jit(lambda *_: False, tuned=False, donate_argnums=0)
def _changed(system: _System, diagonal: Array, raised: Array) -> _System:
    blocks = jnp.arange(len(diagonal))
    inverse = lambda parts: _inverse(*parts)
    inverses = jax.lax.map(inverse, (system.matrix, diagonal + raised, blocks))
    return system._replace(inverses=inverses, diagonal=diagonal, raised=raised)


def _inverse(strip: Float[Array, "rows n"], diagonal: Float[Array, "rows 1"], block: Array) -> Array:
    """That of the lower factor of a block on the diagonal: products with it take less time than solving."""
    rows = len(strip)
    own = jax.lax.dynamic_slice_in_dim(strip, block * rows, rows, axis=1)
    factor = jnp.linalg.cholesky(own + jnp.diag(diagonal[:, 0]))
    return jax.scipy.linalg.solve_triangular(factor, jnp.eye(rows, dtype=strip.dtype), lower=True)


def _solve(inverse: Array, v: Float[Array, "rows c"]) -> Array:
    return _product(_product(inverse, v).T, inverse).T


@quick_jit(lambda *_: False, tuned=False)
def _faced(system: _System, targets: Array, weights: Array) -> _State:
    """Begin with conjugate gradients, from what a visit to all blocks makes of what is left."""
    image = _product(system.matrix, weights.reshape(-1, weights.shape[2])) + system.diagonal * weights
    left, steepest = _visited(system, targets - image)
    return _State(weights, left, steepest, steepest, _total(left, steepest))


@quick_jit(lambda *_: False, tuned=False)
def _stepped(system: _System, targets: Array, state: _State) -> tuple[_State, Scalar]:
    """As :meth:`thalweg.machines.kept.Kept.step` does."""
    step, times_step = _visited(system, state.direction, reverse=True)
    visited, times_visited = _visited(system, state.direction - times_step - system.raised * step)
    image, times_image = step + visited, times_step + times_visited
    size = _ratio(state.square, _total(state.direction, image))
    weights, left = state.weights + size * step, state.left - size * image
    steepest = state.steepest - size * times_image
    square = _total(left, steepest)
    direction = steepest + _ratio(square, state.square) * state.direction
    whole = jnp.maximum(jnp.sum(targets * weights), jnp.finfo(weights.dtype).tiny)
    return _State(weights, left, steepest, direction, square), jnp.sum(size * state.square) / whole


def _visited(system: _System, v: Array, reverse: bool = False) -> tuple[Array, Array]:
    """(L + B)⁻¹ v, or (B + Lᵀ)⁻¹ v, and B times that: blocks that are not yet met add nothing to the rows of one."""

    def visit(found: Array, block: Array) -> tuple[Array, Array]:
        times = v[block] - _product(system.matrix[block], found.reshape(-1, found.shape[2]))
        return found.at[block].set(_solve(system.inverses[block], times)), times

    return jax.lax.scan(visit, jnp.zeros_like(v), jnp.arange(len(v)), reverse=reverse)


@quick_jit(lambda *_: False, tuned=False)
def _between(kernel: Kernel, held: Array, x: Array) -> Array:
    return kernel(held, x.reshape(-1, x.shape[2]))


@quick_jit(lambda *_: False, tuned=False)
def _said(between: Array, weights: Array) -> Array:
    return _product(between, weights.reshape(-1, weights.shape[2]))


def _total(a: Array, b: Array) -> Array:
    """The products of columns."""
    return jnp.sum(a * b, axis=(0, 1), keepdims=True)


def _ratio(a: Array, b: Array) -> Array:
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
