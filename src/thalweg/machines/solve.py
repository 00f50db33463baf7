"""All landmarks at once, to the optimum of Σ w ℓ(f(x), y) + α/2·‖f‖²: Newton steps by conjugate gradients.

With f = Σ W_j k(·, x_j) the optimum has g = ∇ℓ(f) + αW/w = 0 in every row. A Newton step δ solves

    (K + α/(w h)) δ = −g/h,    h = ℓ″(f),

by a few conjugate gradients, whose preconditioner has the Nyström approximation of some landmarks in place of K (as
Frangella, Tropp and Udell, 2023) and, for what that leaves out, its mean on the diagonal. K is stored where it has few
entries, and else made tile by tile, each of them serving two products: memory is then for the landmarks, one tile, and
a thousand numbers a row at most. For the squared loss all this is the linear system (K + α/w) W = y. Losses with kinks
have no curvature there and are not solved so.

Tiles may be in float32; all else is in float64, since what α leaves of the largest eigenvalues of K is lost in less.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Scalar

from thalweg.machines.coordinates import Points
from thalweg.machines.losses import Loss
from thalweg.threads import enough_threads

# Landmarks of the preconditioner, at most, and at most this part of the rows. The matrices of c outputs together have
# as many entries as one of the most.
_LANDMARKS, _PART, _GRAIN = 1024, 1 / 8, 32
# A Newton step is solved until this part of its residual is left, or so many iterations are made. Rows whose loss has
# no curvature are solved at once, and what is left of them says nothing of the others.
_LEFT, _LEFT_OF_PIECES, _ITERATIONS = 0.1, 1e-3, 50
# Steps that gain this part of what the one before did, or more, are taken to go on like that.
_SLOWEST = 0.9
# Curvatures below this part of the largest count as that much; a line search ends with an interval of 2 to the power
# of −this.
_LEAST_CURVATURE, _HALVINGS = 1e-4, 16
# Added to the diagonal of a matrix that is factorised, in units of it.
_JITTER = 1e-8
# Entries of K up to which it is stored: 256 MiB in float32.
STORED = 2**26

Values = Float[Array, "tiles rows c"]


class Problem(eqx.Module):
    """Landmarks in tiles with their targets and weights; a weight of 0 is an empty place, or a row left out."""

    points: Points
    """Their kernel in the precision of the tiles."""
    fine: Points
    """In float64."""
    loss: Loss
    ridge: Scalar
    tiles: Float[Array, "tiles rows d"]
    targets: Values
    weights: Float[Array, "tiles rows"]
    intercept: Float[Array, "1 1 c"]
    matrix: Float[Array, "n n"] | None = None
    """K, where it is stored."""

    @property
    def there(self) -> Array:
        """Whether a place has a row."""
        return (self.weights > 0)[:, :, None]

    @property
    def row_weights(self) -> Array:
        """Weights, 1 in empty places."""
        return jnp.where(self.there, self.weights[:, :, None], 1)


class State(NamedTuple):
    """The weights W, and f at the landmarks."""

    weights: Values
    values: Values


class Step(NamedTuple):
    """The objective after a step, the part of it that further steps would gain, and products with K made."""

    objective: float
    left: float
    products: int


class Newton:
    """Newton steps from W = 0, for a loss that is smooth.

    Parameters
    ----------
    problem
        What to solve, in float64 but for the tiles.
    tol
        It is ``done`` when further steps would lower the objective by this part or less.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import SquaredLoss
    >>> with jax.enable_x64(True):
    ...     points = Points(Gaussian(1.0), block_size=2)
    ...     x = jnp.arange(4.0).reshape(2, 2, 1)
    ...     problem = Problem(
    ...         points, points, SquaredLoss(), jnp.array(0.1), x, jnp.sin(x), jnp.ones((2, 2)), jnp.zeros((1, 1, 1))
    ...     )
    >>> newton = Newton(problem, tol=1e-12)
    >>> while not newton.done:
    ...     step = newton.step()
    >>> K = np.exp(-((np.arange(4.0)[:, None] - np.arange(4.0)) ** 2) / 2)
    >>> W = np.linalg.solve(K + 0.1 * np.eye(4), np.sin(np.arange(4.0)))
    >>> bool(abs(np.ravel(newton.state.weights) - W).max() < 1e-8)
    True
    """

    def __init__(self, problem: Problem, tol: float) -> None:
        self.problem, self.tol = problem, tol
        self.done = False
        self._gained = 0.0
        self._preconditioner: Preconditioner | None = None
        with jax.enable_x64(True):
            if problem.weights.size**2 <= STORED:
                problem = self.problem = replace(problem, matrix=_stored(problem.points, problem.tiles))
            zero = jnp.zeros_like(problem.targets)
            self.state = State(zero, zero + problem.intercept)
            self._basis = _basis(problem)

    def step(self) -> Step:
        """Make a Newton step."""
        with jax.enable_x64(True):
            problem = self.problem
            gradient, curvature = _slopes(problem, self.state)
            # Squares have the same curvature everywhere.
            if self._preconditioner is None or not problem.loss.quadratic:
                self._preconditioner = _preconditioner(problem, self._basis, curvature)
            search = _begun(problem, self._preconditioner, gradient, curvature)
            left = _LEFT_OF_PIECES if problem.loss.piecewise else _LEFT
            enough, products = left**2 * np.asarray(search.square), 0
            while True:
                while products < _ITERATIONS and np.any(np.asarray(search.square) > enough):
                    search = _iterated(problem, self._preconditioner, curvature, search)
                    products += 1
                state, *told = _moved(problem, self.state, search)
                objective, gained = map(float, told)
                if gained > 0 or products == _ITERATIONS:
                    break
                enough = left**2 * enough  # What was solved too coarsely can point uphill.
        self.state = state
        # A step beside the one before it tells what is still to gain.
        gained = max(gained, 0.0)
        ratio = min(gained / self._gained, _SLOWEST) if self._gained else _SLOWEST
        left = gained * ratio / (1 - ratio) / max(abs(objective), np.finfo(float).tiny)
        self._gained = gained
        self.done = not left > self.tol
        return Step(objective, left, products)


class _Basis(NamedTuple):
    features: Float[Array, "tiles r rows"]
    """G with GᵀG ≈ K, in the precision of the tiles."""
    left: Scalar
    """The mean of what GᵀG leaves of the diagonal of K."""


class Preconditioner(NamedTuple):
    """(D + GᵀG)⁻¹ for each output; ``inverse`` are inverse factors of 1 + G D⁻¹ Gᵀ."""

    features: Float[Array, "tiles r rows"]
    inverse: Float[Array, "c r r"]
    diagonal: Values


class _Search(NamedTuple):
    """Conjugate gradients on their way: δ, Kδ, the residual, the direction, and the squared length of the residual."""

    change: Values
    values: Values
    residual: Values
    direction: Values
    square: Float[Array, "1 1 c"]


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")


@jax.jit
def _stored(points: Points, tiles: Float[Array, "tiles rows d"]) -> Float[Array, "n n"]:
    """K, as symmetric as what is made tile by tile."""
    x = tiles.reshape(-1, tiles.shape[-1])
    found = jax.lax.map(lambda tile: points.evaluate(tile, x), tiles).reshape(len(x), len(x))
    return jnp.fill_diagonal((found + found.T) / 2, points.metric(x[:1])[0, 0], inplace=False)


def product(problem: Problem, v: Values) -> Values:
    """K v, if K is not stored tile by tile, each of which is made once for itself and its mirror image."""
    points, tiles, dtype = problem.points, problem.tiles, v.dtype
    v = v.astype(tiles.dtype)
    if problem.matrix is not None:
        return _times(problem.matrix, v.reshape(-1, v.shape[-1])).reshape(v.shape).astype(dtype)

    def row(i: Any, out: Values) -> Values:
        def column(j: Any, carry: tuple[Values, Array]) -> tuple[Values, Array]:
            out, total = carry
            tile = points.evaluate(tiles[i], tiles[j])
            return out.at[j].add(_times(v[i].T, tile).T.astype(dtype)), total + _times(tile, v[j]).astype(dtype)

        own = _times(points.metric(tiles[i]), v[i]).astype(dtype)
        out, total = jax.lax.fori_loop(i + 1, len(tiles), column, (out, own))
        return out.at[i].add(total)

    return jax.lax.fori_loop(0, len(tiles), row, jnp.zeros(v.shape, dtype))


def objective(problem: Problem, state: State) -> Scalar:
    """Σ w ℓ(f(x), y) + α/2·‖f‖²."""
    losses = problem.loss.value(*_flat(state.values, problem.targets))
    norm = jnp.vdot(state.weights, state.values - problem.intercept)
    return jnp.vdot(problem.weights.ravel(), losses) + problem.ridge / 2 * norm


@jax.jit
def _slopes(problem: Problem, state: State) -> tuple[Values, Values]:
    """How far each row is from optimal, and the curvature of its loss."""
    curvature = problem.loss.curvatures(*_flat(state.values, problem.targets)).reshape(state.values.shape)
    return _short_of_optimal(problem, state), jnp.maximum(curvature, _LEAST_CURVATURE * problem.loss.curvature)


@jax.jit
def _begun(problem: Problem, preconditioner: Preconditioner, gradient: Values, curvature: Values) -> _Search:
    residual = _projected(problem, -gradient / curvature)
    direction = _preconditioned(problem, preconditioner, residual)
    zero = jnp.zeros_like(residual)
    return _Search(zero, zero, residual, direction, _inner(problem, residual, direction))


@jax.jit
def _iterated(problem: Problem, preconditioner: Preconditioner, curvature: Values, search: _Search) -> _Search:
    """One iteration of conjugate gradients for (K + α/(w h)) δ = −g/h."""
    diagonal = problem.ridge / (problem.row_weights * curvature)
    values = jnp.where(problem.there, product(problem, search.direction), 0)
    image = values + _projected(problem, diagonal * search.direction)
    size = _ratio(search.square, _inner(problem, search.direction, image))
    residual = search.residual - size * image
    steepest = _preconditioned(problem, preconditioner, residual)
    square = _inner(problem, residual, steepest)
    return _Search(
        search.change + size * search.direction,
        search.values + size * values,
        residual,
        steepest + _ratio(square, search.square) * search.direction,
        square,
    )


@jax.jit
def _moved(problem: Problem, state: State, search: _Search) -> tuple[State, Scalar, Scalar]:
    """Go along δ as far as the objective falls, at most to its end; return the objective and about what was gained."""

    def along(t: Float[Array, "1 1 c"]) -> State:
        return State(state.weights + t * search.change, state.values + t * search.values)

    def slope(t: Float[Array, "1 1 c"]) -> Float[Array, "1 1 c"]:
        return _inner(problem, problem.weights[:, :, None] * _short_of_optimal(problem, along(t)), search.values)

    def halved(_: Any, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        uphill = slope(middle) > 0
        return jnp.where(uphill, low, middle), jnp.where(uphill, middle, high)

    zero = jnp.zeros_like(search.square)
    low, _ = jax.lax.fori_loop(0, _HALVINGS, halved, (zero, zero + 1))
    found = along(jnp.where(slope(zero + 1) <= 0, 1, low))
    slopes = slope(zero)
    gained = -(slopes[0, 0, 0] if problem.loss.centred else jnp.sum(slopes)) / 2
    return found, objective(problem, found), gained


def _flat(*parts: Values) -> tuple[Array, ...]:
    return tuple(part.reshape(-1, part.shape[-1]) for part in parts)


def _short_of_optimal(problem: Problem, state: State) -> Values:
    gradient = problem.loss.gradient(*_flat(state.values, problem.targets))
    found = gradient.reshape(state.values.shape) + problem.ridge * state.weights / problem.row_weights
    return jnp.where(problem.there, found, 0)


def _projected(problem: Problem, v: Values) -> Values:
    """Less the mean over outputs where the loss does not see it, and 0 in empty places."""
    v = v - jnp.mean(v, axis=-1, keepdims=True) if problem.loss.centred else v
    return jnp.where(problem.there, v, 0)


def _inner(problem: Problem, a: Values, b: Values) -> Float[Array, "1 1 c"]:
    """Inner products, of each output for itself where the loss is a sum over them."""
    found = jnp.sum(a * b, axis=(0, 1), keepdims=True)
    return jnp.full_like(found, jnp.sum(found)) if problem.loss.centred else found


def _ratio(a: Array, b: Array) -> Array:
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _basis(problem: Problem) -> _Basis:
    """Half of the landmarks are any rows, the others are drawn by how much of them the first half leaves out.

    Two rounds of randomly pivoted Cholesky (Chen, Epperly, Tropp and Webber, 2024).
    """
    rows, outputs = int(np.max(np.flatnonzero(problem.weights))) + 1, problem.targets.shape[-1]
    most = min(_LANDMARKS / outputs**0.5, _PART * rows)
    count = min(max(int(most) // _GRAIN, 1) * _GRAIN, rows)
    first = np.arange(max(count // 2, 1))
    _, left = _explained(problem, first, rows)
    # The largest of log p + Gumbel noise are drawn without replacement in proportion to p.
    lots = np.log(np.maximum(left, 1e-12)) + np.random.default_rng(0).gumbel(size=rows)
    lots[first] = -np.inf
    others = np.argsort(-lots)[: count - len(first)]
    features, left = _explained(problem, np.concatenate([first, others]), rows)
    return _Basis(features, jnp.asarray(np.mean(left)))


def _explained(problem: Problem, chosen: np.ndarray, rows: int) -> tuple[Array, np.ndarray]:
    """G of chosen landmarks, and what it leaves of k(x, x) for each row."""
    landmarks = problem.tiles.reshape(-1, problem.tiles.shape[-1])[chosen].astype(jnp.float64)
    matrix = np.array(_matrix(problem.fine, landmarks))
    variance = matrix[0, 0]
    matrix[np.diag_indices(len(chosen))] += _JITTER * variance
    with enough_threads(len(chosen)):
        factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True)
        root = scipy.linalg.solve_triangular(factor, np.eye(len(chosen)), lower=True)
    features, squares = _features(problem, landmarks, root)
    return features, np.maximum(variance - np.asarray(squares).ravel()[:rows], 0.0)


@jax.jit
def _matrix(points: Points, x: Array) -> Array:
    return points.metric(x)


@jax.jit
def _features(problem: Problem, landmarks: Array, root: Array) -> tuple[Array, Array]:
    """G, and the squared lengths of its columns."""

    def of_tile(x: Array) -> tuple[Array, Array]:
        found = _times(root, problem.fine.evaluate(landmarks, x.astype(root.dtype)))
        return found.astype(x.dtype), jnp.sum(found**2, axis=0)

    return jax.lax.map(of_tile, problem.tiles)


def _preconditioner(problem: Problem, basis: _Basis, curvature: Values) -> Preconditioner:
    diagonal, inner = _gram(problem, basis, curvature)
    matrices = np.array(inner)
    unit = np.eye(matrices.shape[-1])
    with enough_threads(len(unit)):
        for matrix in matrices:
            factor = scipy.linalg.cholesky(matrix + unit, lower=True)
            matrix[:] = scipy.linalg.solve_triangular(factor, unit, lower=True)
    return Preconditioner(basis.features, jnp.asarray(matrices), diagonal)


@jax.jit
def _gram(problem: Problem, basis: _Basis, curvature: Values) -> tuple[Values, Float[Array, "c r r"]]:
    """D, and G D⁻¹ Gᵀ for each output."""
    diagonal = problem.ridge / (problem.row_weights * curvature) + basis.left
    shares = jnp.where(problem.there, 1 / diagonal, 0)

    def add(total: Array, tile: tuple[Array, Array]) -> tuple[Array, None]:
        features, share = tile[0].astype(total.dtype), tile[1]
        return total + jax.lax.map(lambda s: _times(features * s[None, :], features.T), share.T), None

    count = basis.features.shape[1]
    start = jnp.zeros((curvature.shape[-1], count, count), curvature.dtype)
    return diagonal, jax.lax.scan(add, start, (basis.features, shares))[0]


def _preconditioned(problem: Problem, preconditioner: Preconditioner, v: Values) -> Values:
    features, inverse, diagonal = preconditioner
    # The inverse within the outputs that sum to 0, of D exactly: oblique, not the mean.
    share = 1 / diagonal / jnp.sum(1 / diagonal, axis=-1, keepdims=True)
    v = v - jnp.sum(share * v, axis=-1, keepdims=True) if problem.loss.centred else v
    scaled = v / diagonal

    def gather(total: Array, tile: tuple[Array, Array]) -> tuple[Array, None]:
        return total + _times(tile[0].astype(total.dtype), tile[1]), None

    start = jnp.zeros((features.shape[1], v.shape[-1]), v.dtype)
    inner = jax.lax.scan(gather, start, (features, scaled))[0]
    inner = _times(inverse.mT, _times(inverse, inner.T[:, :, None]))[:, :, 0].T
    spread = jax.lax.map(lambda tile: _times(inner.T, tile.astype(inner.dtype)).T, features)
    found = scaled - spread / diagonal
    return _projected(
        problem, found - share * jnp.sum(found, axis=-1, keepdims=True) if problem.loss.centred else found
    )
