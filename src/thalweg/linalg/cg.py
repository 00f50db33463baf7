"""Preconditioned conjugate gradients for many right sides at once, on the host or on a device.

The one direct way to a large system: a Newton step of a kernel machine, the weights of a Gaussian process, the products
of an inverse with probes. A column that has converged stands still. The coefficients of the steps are kept, since they
are those of Lanczos' method (Saad, 2003, section 6.7.3).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from thalweg.compiling import quick_jit
from thalweg.linalg.arrays import namespace, ratio, replaced, while_loop

__all__ = ["CGResult", "conjugate_gradients", "joint_inner", "traced_conjugate_gradients"]

_QUICKLY_COMPILED_ROWS = 1024
"""Systems of no more rows are solved in less time than a compiler takes to optimise the program."""


class CGState(NamedTuple):
    """Where conjugate gradients are."""

    x: Any
    residual: Any
    direction: Any
    energy: Any
    """⟨r, P⁻¹r⟩ of each column."""
    norms: Any
    """‖r‖ of each column."""
    goal: Any
    """What it must come down to."""
    active: Any
    """Columns that are not solved yet, and along which A is positive."""
    iterations: Any
    sizes: Any
    """The length of each step so far and of each column; 0 where a column had converged."""
    ratios: Any


class CGResult(NamedTuple):
    """The solution, how it was reached, and the relative residual of each column.

    Examples
    --------
    >>> result = conjugate_gradients(lambda block: 2.0 * block, np.ones((3, 1)))
    >>> result.iterations, float(result.residuals[0])
    (1, 0.0)
    """

    x: Any
    iterations: int
    residuals: np.ndarray
    sizes: np.ndarray
    ratios: np.ndarray


Apply = Callable[[Any], Any]
Inner = Callable[[Any, Any], Any]


def columns_inner(a: Any, b: Any) -> Any:
    """⟨a, b⟩ of each column, of complex ones the real part: columns are solved independently."""
    return (a.conj() * b).real.sum(axis=0)


def joint_inner(a: Any, b: Any) -> Any:
    """⟨a, b⟩ of all columns together, once for each: for an operator that mixes columns.

    Examples
    --------
    >>> joint_inner(np.ones((2, 3)), np.ones((2, 3)))
    array([6., 6., 6.])
    """
    return namespace(a).full(a.shape[1], (a * b).sum(), a.dtype)


def conjugate_gradients(
    apply: Apply,
    right: Any,
    *,
    precondition: Apply | None = None,
    tol: Any = 1e-6,
    max_iter: int = 1000,
    inner: Inner = columns_inner,
    watch: Callable[[Any, int], bool | None] | None = None,
    at_once: int = 1,
) -> CGResult:
    """Solve A x = right for each column.

    Parameters
    ----------
    apply
        ``apply(block) -> A block``, A symmetric and positive definite. Arrays that it needs on a device are leaves of
        it (a bound method of a module, ``jax.tree_util.Partial``), so that nothing is compiled again for new ones.
    right
        The right sides as columns, of NumPy or of JAX.
    precondition
        ``precondition(block) -> P⁻¹ block``, P near A.
    tol
        A column is solved when ‖r‖ ≤ tol·‖right‖; a number, or one for each column.
    max_iter
        Products with A, at most.
    inner
        Inner products: of each column, or :func:`joint_inner`.
    watch
        ``watch(x, iterations)``, called on the host between steps; True ends the iteration. Interrupts arrive there.
    at_once
        Steps that a device makes between two looks of the host.

    Examples
    --------
    >>> A = np.array([[4.0, 1.0], [1.0, 3.0]])
    >>> result = conjugate_gradients(lambda block: A @ block, np.array([[1.0], [2.0]]))
    >>> result.x.round(6).ravel().tolist(), result.iterations
    ([0.090909, 0.636364], 2)
    """
    xp = namespace(right)
    if xp is np:
        begin, advance, at_once = _begin, _advance, 1
    else:
        begin, advance = _begin_compiled, _advance_compiled
        apply, precondition = (_as_leaf(function) for function in (apply, precondition))
    state = begin(precondition, right, tol, max_iter, inner)
    norms = np.asarray(state.norms)
    while np.any(np.asarray(state.active)) and int(state.iterations) < max_iter:
        end = np.asarray(min(int(state.iterations) + at_once, max_iter))
        state = advance(apply, precondition, state, end, inner)
        if watch is not None and watch(state.x, int(state.iterations)):
            break
    left = np.asarray(state.norms) / np.maximum(norms, np.finfo(norms.dtype).tiny)
    sizes, ratios = (np.asarray(part)[: int(state.iterations)] for part in (state.sizes, state.ratios))
    return CGResult(state.x, int(state.iterations), left, sizes, ratios)


def traced_conjugate_gradients(apply: Apply, right: Any, tol: Any, max_iter: int) -> CGState:
    """Solve A x = right for each column within a compiled program, where the host has no look in between.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[4.0, 1.0], [1.0, 3.0]])
    >>> solve = jax.jit(lambda right: traced_conjugate_gradients(lambda block: A @ block, right, 1e-5, 9).x)
    >>> solve(np.array([[1.0], [2.0]])).round(4).ravel()
    Array([0.0909, 0.6364], dtype=float...)
    """
    return _advance(apply, None, _begin(None, right, tol, max_iter, columns_inner), max_iter, columns_inner)


def _begin(precondition: Apply | None, right: Any, tol: Any, max_iter: int, inner: Inner) -> CGState:
    xp = namespace(right)
    z = right if precondition is None else precondition(right)
    norms, count, x = xp.sqrt(inner(right, right)), xp.asarray(0), xp.zeros_like(right)
    goal = tol * norms
    # Two arrays: on the host coefficients are written in place.
    sizes, ratios = (xp.zeros((max_iter, right.shape[1]), right.dtype) for _ in range(2))
    return CGState(x, right, z, inner(right, z), norms, goal, norms > goal, count, sizes, ratios)


def _iterate(apply: Apply, precondition: Apply | None, state: CGState, inner: Inner) -> CGState:
    """One step. A column that is solved stands still: rounding would take it away again."""
    xp = namespace(state.x)
    image = apply(state.direction)
    curvature = inner(state.direction, image)
    # Where an operator or a preconditioner has lost its definiteness to rounding, a column stands still too.
    live = state.active & (curvature > 0) & (state.energy > 0)
    size = xp.where(live, ratio(state.energy, curvature), 0).astype(state.x.dtype)
    x, residual = state.x + size[None, :] * state.direction, state.residual - size[None, :] * image
    z = residual if precondition is None else precondition(residual)
    energy = inner(residual, z)
    following = xp.where(live, ratio(energy, state.energy), 0).astype(state.x.dtype)
    direction = z + following[None, :] * state.direction
    norms = xp.where(live, xp.sqrt(inner(residual, residual)), state.norms)
    count = state.iterations
    sizes, ratios = replaced(state.sizes, count, size), replaced(state.ratios, count, following)
    active = live & (norms > state.goal)
    return CGState(x, residual, direction, energy, norms, state.goal, active, count + 1, sizes, ratios)


def _as_leaf(function: Any) -> Any:
    leaf = function is None or isinstance(function, jax.tree_util.Partial)
    return function if leaf else jax.tree_util.Partial(function)


def _advance(apply: Apply, precondition: Apply | None, state: CGState, end: Any, inner: Inner) -> CGState:
    """Step until all columns have come to their goal, or ``end`` steps are made."""
    xp = namespace(state.x)
    return while_loop(
        lambda state: xp.any(state.active) & (state.iterations < end),
        lambda state: _iterate(apply, precondition, state, inner),
        state,
        xp,
    )


_begin_compiled = quick_jit(
    lambda precondition, right, *_: len(right) <= _QUICKLY_COMPILED_ROWS, static_argnums=(3, 4)
)(_begin)
_advance_compiled = quick_jit(
    lambda apply, precondition, state, *_: len(state.x) <= _QUICKLY_COMPILED_ROWS, static_argnums=4
)(_advance)
