"""All landmarks at once, to the optimum of Σ w ℓ(f(x), y) + α/2·‖f‖²: Newton steps by conjugate gradients.

A Newton step δ solves

    (K + α/(w h)) δ = −g/h,    h = ℓ″(f),

by a few conjugate gradients. For the squared loss that is the linear system (K + α/w) W = y. Losses with kinks have no
curvature there and are not solved so.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from thalweg.machines.nystroem import Basis, Preconditioner, basis, preconditioned, preconditioner
from thalweg.machines.problem import (
    Problem,
    State,
    Values,
    inner,
    objective,
    product,
    projected,
    short_of_optimal,
    slopes,
)

# A Newton step is solved until this part of its residual is left, or so many iterations are made. Rows whose loss has
# no curvature are solved at once, and what is left of them says nothing of the others.
LEFT, LEFT_OF_PIECES, ITERATIONS = 0.1, 1e-3, 50
# Steps that gain this part of what the one before did, or more, are taken to go on like that.
SLOWEST = 0.9
# A line search ends with an interval of 2 to the power of −this.
_HALVINGS = 16


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
    alike
        Steps for the same landmarks, with other weights perhaps: their preconditioner serves.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points, SquaredLoss
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
    >>> bool(abs(np.ravel(newton.weights) - W).max() < 1e-8)
    True
    """

    def __init__(self, problem: Problem, tol: float, alike: "Newton | None" = None) -> None:
        self.tol = tol
        self.done = False
        self._gained = 0.0
        self._preconditioner: Preconditioner | None = None
        with jax.enable_x64(True):
            self.problem = problem
            zero = jnp.zeros_like(problem.targets)
            self.state = State(zero, zero + problem.intercept)
            self._basis: Basis = basis(problem) if alike is None else alike._basis

    @property
    def weights(self) -> np.ndarray:
        """W, a row for each landmark."""
        return np.reshape(self.state.weights, (-1, self.state.weights.shape[-1]))

    def step(self) -> Step:
        """Make a Newton step."""
        with jax.enable_x64(True):
            problem = self.problem
            gradient, curvature = slopes(problem, self.state)
            # Squares have the same curvature everywhere.
            if self._preconditioner is None or not problem.loss.quadratic:
                self._preconditioner = preconditioner(problem, self._basis, curvature)
            search = _begun(problem, self._preconditioner, gradient, curvature)
            left = LEFT_OF_PIECES if problem.loss.piecewise else LEFT
            enough, products = left**2 * np.asarray(search.square), 0
            while True:
                while products < ITERATIONS and np.any(np.asarray(search.square) > enough):
                    search = _iterated(problem, self._preconditioner, curvature, search)
                    products += 1
                state, *told = _moved(problem, self.state, search)
                objective, gained = map(float, told)
                enough = left**2 * enough  # What was solved too coarsely can point uphill, and so can rounding.
                if gained > 0 or products == ITERATIONS or not np.any(np.asarray(search.square) > enough):
                    break
        self.state = state
        # A step beside the one before it tells what is still to gain.
        gained = max(gained, 0.0)
        ratio = min(gained / self._gained, SLOWEST) if self._gained else SLOWEST
        left = gained * ratio / (1 - ratio) / max(abs(objective), np.finfo(float).tiny)
        self._gained = gained
        self.done = not left > self.tol
        return Step(objective, left, products)


class _Search(NamedTuple):
    """Conjugate gradients on their way: δ, Kδ, the residual, the direction, and the squared length of the residual."""

    change: Values
    values: Values
    residual: Values
    direction: Values
    square: Float[Array, "1 1 c"]


@jax.jit
def _begun(problem: Problem, preconditioner: Preconditioner, gradient: Values, curvature: Values) -> _Search:
    residual = projected(problem, -gradient / curvature)
    direction = preconditioned(problem, preconditioner, residual)
    zero = jnp.zeros_like(residual)
    return _Search(zero, zero, residual, direction, inner(problem, residual, direction))


@jax.jit
def _iterated(problem: Problem, preconditioner: Preconditioner, curvature: Values, search: _Search) -> _Search:
    """One iteration of conjugate gradients for (K + α/(w h)) δ = −g/h."""
    diagonal = problem.ridge / (problem.row_weights * curvature)
    values = jnp.where(problem.there, product(problem, search.direction), 0)
    image = values + projected(problem, diagonal * search.direction)
    size = _ratio(search.square, inner(problem, search.direction, image))
    residual = search.residual - size * image
    steepest = preconditioned(problem, preconditioner, residual)
    square = inner(problem, residual, steepest)
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
        return inner(problem, problem.weights[:, :, None] * short_of_optimal(problem, along(t)), search.values)

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


def _ratio(a: Array, b: Array) -> Array:
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
