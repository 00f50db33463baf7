"""Newton steps on Σ w ℓ(f(x), y) + α/2·‖f‖² where the kernel matrix K is in memory; the squared loss takes one.

With f = K W + intercept the optimum has g = ∇ℓ(f) + αW/w = 0 in every row. A Newton step δ solves

    (K + α/(w h)) δ = −g/h,    h = ℓ″(f),

by the conjugate gradients of :mod:`thalweg.linalg`, on the host or on a device. For the squared loss that is the linear
system (K + α/w) W = y − intercept. They are preconditioned by a Cholesky factor of the system where that is cheap, and
by a Nyström approximation elsewhere. Losses with kinks have no curvature there and are not solved so.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from thalweg.kernels import Kernel
from thalweg.kernels.host import kernel_tiles
from thalweg.linalg import (
    Factor,
    LowRank,
    conjugate_gradients,
    factorise,
    joint_inner,
    leave_one_out,
    low_rank,
    nystrom_features,
)
from thalweg.linalg.arrays import matmul, namespace
from thalweg.linalg.cg import CGResult, columns_inner
from thalweg.machines.losses import Loss
from thalweg.rows import Duplicates
from thalweg.runs import Run
from thalweg.threads import enough_threads

MAX_FACTORISED_ROWS = 8192
"""Rows of a least-squares problem that is factorised: with twice as many a factor takes longer than its iterations."""

PRECONDITIONER_RANK = 1024
"""Columns of the Nyström approximation, shared among the outputs that each need one of their own: twice as many cost
four times as much to prepare, and save few iterations."""

MAX_NEWTON_STEPS, MAX_ITERATIONS = 100, 200
"""Newton steps of a fit, and conjugate gradients of a step: more do not help where rounding stops them."""

COARSE_TOL = 1e-3
"""Accuracy, as a share of the objective, of machines that are fitted to be validated only."""

LEAST_SQUARES_TOL = 1e-8
"""Relative residual of a least-squares problem: an iteration with a factor as preconditioner costs next to nothing."""

LEAST_ITERATED_RIDGE = 1e-3
"""The least ridge, in units of a row's weight, that is chosen where no factor solves for the weights: less of it gains
little, and takes many iterations."""

FORCING = 0.1
"""Relative residual of the first Newton steps; it falls with the gradient, so that the last ones converge faster than
any geometric series."""

LEAST_CURVATURE = 1e-4
"""The least curvature of a row, as a share of the loss's largest: rows on a flat piece would have none."""

_DEVICE_STRIP = 4096
"""Rows of a matrix that a device makes at a time: all of them at once would take the memory of several matrices."""


ROUNDING_SHARE = 0.05
"""The share of the residuals that rounding may move predictions by: with all of them, 3,000 rows are missed by up to
four times as much as in float64."""


def drowns_in_float32(ridge: float, rows: int) -> bool:
    """Whether rounding to float32 shows: weights are residuals over the ridge, and times eps·√rows move predictions.

    Examples
    --------
    >>> drowns_in_float32(1e-5, 5000), drowns_in_float32(1e-3, 5000)
    (True, False)
    """
    return ROUNDING_SHARE * ridge < float(np.finfo(np.float32).eps) * rows**0.5


class KernelMatrix(NamedTuple):
    """A kernel matrix in memory."""

    apply: Callable[[Any], Any]
    columns: Callable[[np.ndarray], Any]
    diagonal: np.ndarray
    dense: Any
    """All entries; None where the host stores the lower triangle alone."""


def kernel_matrix(kernel: Kernel, x: np.ndarray, on_host: bool) -> KernelMatrix:
    """Store the kernel matrix of rows, on the host or on the device.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> kernel_matrix(Gaussian(), np.zeros((2, 1)), on_host=True).apply(np.ones((2, 1)))
    array([[2.],
           [2.]])
    """
    diagonal = np.full(len(x), float(kernel.variance))
    if not on_host:
        dense: Any = _on_device(kernel, jnp.asarray(x))
        return KernelMatrix(Partial(matmul, dense), lambda indices: dense[:, indices], diagonal, dense)
    if len(x) > MAX_FACTORISED_ROWS:
        tiles = kernel_tiles(kernel, x, stored=True)
        some = lambda indices: kernel_tiles(kernel, x, x[indices]).to_dense()
        return KernelMatrix(tiles.apply, some, diagonal, None)
    return dense_matrix(kernel_tiles(kernel, x).to_dense())


def dense_matrix(dense: np.ndarray) -> KernelMatrix:
    """Return a kernel matrix of which all entries are on the host.

    Examples
    --------
    >>> dense_matrix(np.eye(2)).apply(np.ones((2, 1))).ravel()
    array([1., 1.])
    """
    apply = lambda block: (dense @ block.astype(dense.dtype, copy=False)).astype(block.dtype, copy=False)
    return KernelMatrix(apply, lambda indices: dense[:, indices], np.array(np.diagonal(dense), float), dense)


@jax.jit
def _on_device(kernel: Kernel, x: Any) -> Any:
    size, strip = len(x), min(_DEVICE_STRIP, len(x))

    def put(step: Any, whole: Any) -> Any:
        first = jnp.minimum(step * strip, size - strip)
        part = kernel(jax.lax.dynamic_slice_in_dim(x, first, strip), x)
        return jax.lax.dynamic_update_slice_in_dim(whole, part, first, 0)

    return jax.lax.fori_loop(0, -(-size // strip), put, jnp.zeros((size, size), x.dtype))


class Newton:
    """Newton steps from W = 0 for a smooth loss; rows of weight 0 are left out.

    Parameters
    ----------
    matrix
        K.
    targets, weights
        Of the rows, on the host.
    loss, ridge, intercept
        ℓ, α and what is added to K W.
    seed
        Draws the columns of the preconditioner.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import SquaredLoss
    >>> x, y = np.arange(4.0)[:, None], np.sin(np.arange(4.0))[:, None]
    >>> K = kernel_matrix(Gaussian(), x, on_host=True)
    >>> newton = Newton(K, y, np.ones(4), SquaredLoss(), 0.1, np.zeros(1))
    >>> newton.solve(tol=1e-4)
    >>> exact = np.linalg.solve(K.dense + 0.1 * np.eye(4), y)
    >>> bool(abs(newton.weights - exact).max() < 1e-8), newton.gap <= 1e-4
    (True, True)
    """

    def __init__(
        self,
        matrix: KernelMatrix,
        targets: np.ndarray,
        weights: np.ndarray,
        loss: Loss,
        ridge: float,
        intercept: np.ndarray,
        seed: int = 0,
    ) -> None:
        on_host = matrix.dense is None or isinstance(matrix.dense, np.ndarray)
        put = (lambda a: np.asarray(a, float)) if on_host else (lambda a: jnp.asarray(a, matrix.dense.dtype))
        self.xp: Any = np if on_host else jnp
        self.matrix, self.loss, self.ridge, self.seed = matrix, loss, ridge, seed
        self.targets, self.intercept = put(targets), put(intercept)
        self.row_weights = put(weights)[:, None]
        self.counted = self.row_weights > 0
        self.weights = self.xp.zeros_like(self.targets)
        self.values = self.weights + self.intercept[None, :]
        self.gap, self.products = np.inf, 0
        """The share of the objective that a further step would gain, and products with K so far."""
        self._first_gradient = float(self.xp.linalg.norm(self._gradient()))
        self._features: Any = None
        self._solver: Factor | LowRank | None = None
        self._forcing = FORCING

    def start(self, weights: Any) -> None:
        """Go on from other weights."""
        self.weights = self.xp.where(self.counted, self.xp.asarray(weights), 0)
        self.values = self.matrix.apply(self.weights) + self.intercept[None, :]

    def solve(self, tol: float, run: Run | None = None, watch: Callable[[Any], bool] | None = None) -> None:
        """Make steps until a further one would gain no more than the share ``tol`` of the objective.

        A run keeps the weights after each step. ``watch(weights)`` is asked between the iterations of a least-squares
        problem; true ends them.
        """
        for _ in range(MAX_NEWTON_STEPS):
            with enough_threads(len(self.targets) // 4):
                self._step(watch if self.loss.quadratic else None)
            if run is not None:
                run.keep(self.weights, objective=self.objective(), left=self.gap, products=self.products)
                run.advance(note=f"objective {run.records[-1]['objective']:.6g}")
            if self.gap <= tol or self.loss.quadratic or (watch is not None and watch(self.weights)):
                break

    def objective(self) -> float:
        """Σ w ℓ(f(x), y) + α/2·‖f‖²."""
        return float(self._objective(self.weights, self.values))

    def leave_one_out(self, copies: Duplicates | None = None) -> np.ndarray:
        """Return what f would be at each row without it: for the squared loss exactly, for others by one Newton step.

        It is :func:`~thalweg.linalg.leave_one_out` with d = α/(w ℓ″(f)), for each output apart. Outputs that a softmax
        ties have one ℓ″, and one system serves all of them. Copies are left out together: they are one row of the sum
        of their forces and of their 1/d.

        Examples
        --------
        >>> from thalweg.kernels import Gaussian
        >>> from thalweg.machines import SquaredLoss
        >>> x, y = np.arange(4.0)[:, None], np.sin(np.arange(4.0))[:, None]
        >>> K = kernel_matrix(Gaussian(), x, on_host=True)
        >>> newton = Newton(K, y, np.ones(4), SquaredLoss(), 0.1, np.zeros(1))
        >>> newton.solve(tol=1e-4)
        >>> others = np.linalg.solve(K.dense[1:, 1:] + 0.1 * np.eye(3), y[1:])
        >>> bool(np.isclose(newton.leave_one_out()[0], K.dense[0, 1:] @ others).all())
        True
        """
        diagonals = self.ridge / (self.row_weights * self._floored(type(self.loss).mean_curvatures))
        forces, dense = self.weights, self.matrix.dense
        if copies is not None:
            diagonals, forces = 1 / self.xp.asarray(copies.sum(1 / diagonals)), self.xp.asarray(copies.sum(forces))
            dense = dense[np.ix_(copies.first, copies.first)]
        with enough_threads(len(diagonals) // 4):
            if isinstance(self._solver, Factor) and copies is None:  # one system for all outputs
                diagonals = diagonals + self._solver.raised
                spreads = self._solver.inverse_diagonal()[:, None]
            else:
                each = [factorise(dense, diagonal).inverse_diagonal() for diagonal in diagonals.T]
                spreads = self.xp.stack(each, axis=1)
        change = leave_one_out(0, forces, spreads, diagonals)
        return np.asarray(self.values + (change if copies is None else change[copies.group]))

    def _floored(self, curvatures: Callable[..., Any]) -> Any:
        """ℓ″ by a method of the loss, where it is not too small to divide by."""
        return self.xp.maximum(curvatures(self.loss, self.values, self.targets), LEAST_CURVATURE * self.loss.curvature)

    def _step(self, watch: Callable[[Any], bool] | None) -> None:
        loss, xp = self.loss, self.xp
        curvature = self._floored(type(loss).curvatures)
        gradient = self._gradient()
        diagonal = self.ridge / (xp.where(self.counted, self.row_weights, 1) * curvature)
        forcing = min(self._forcing, float(xp.linalg.norm(gradient)) / max(self._first_gradient, np.finfo(float).tiny))
        found = self._solve_system(diagonal, -gradient / curvature, forcing, watch)
        step, change = found.x, self.matrix.apply(found.x)
        slope = float(xp.sum(self.row_weights * gradient * change))
        before = self._objective(self.weights, self.values)
        length = 1.0 if loss.quadratic else self._length(step, change, slope, before)
        self.weights, self.values = self.weights + length * step, self.values + length * change
        if loss.quadratic:
            self.gap = float(np.max(found.residuals, initial=0.0)) ** 2
        else:
            self.gap = abs(slope) / 2 / max(abs(float(before)), np.finfo(float).tiny)
            self._forcing *= FORCING if length < 0.25 else 1  # solved for too coarsely, a step soon leads uphill
        self.products += found.iterations + 1

    def _solve_system(self, diagonal: Any, right: Any, tol: float, watch: Callable[[Any], bool] | None) -> CGResult:
        centred, start = self.loss.centred, self.weights
        project = Partial(_project, self.counted) if not centred else Partial(_project_centred, self.counted)
        solver = self._precondition(diagonal)
        if isinstance(solver, Factor):  # what rounding made necessary is a part of the ridge
            diagonal = diagonal + solver.raised
        return conjugate_gradients(
            Partial(_system, self.matrix.apply, diagonal, project),
            project(right),
            precondition=Partial(_preconditioned, solver, project),
            tol=LEAST_SQUARES_TOL if self.loss.quadratic else tol,
            max_iter=MAX_ITERATIONS,
            inner=joint_inner if centred else columns_inner,
            watch=None if watch is None else lambda x, _: watch(start + x),
        )

    def _precondition(self, diagonal: Any) -> Factor | LowRank:
        if self._solver is not None and self.loss.quadratic:
            return self._solver
        rows, xp = len(self.targets), self.xp
        # The squared loss has one system for all outputs.
        diagonal = diagonal[:, :1] if self.loss.quadratic else diagonal
        dense = self.matrix.dense
        if self.loss.quadratic and rows <= MAX_FACTORISED_ROWS and dense is not None:
            counted = self.counted
            masked = dense if bool(xp.all(counted)) else xp.where(counted & counted.T, dense, 0)
            self._solver = factorise(masked, xp.where(counted[:, 0], diagonal[:, 0], 1))
            return self._solver
        if self._features is None:
            rank = min(max(PRECONDITIONER_RANK // diagonal.shape[1], 64), max(rows // 4, min(rows, 64)))
            rng = np.random.default_rng([self.seed, 6])
            self._features = nystrom_features(self.matrix.columns, self.matrix.diagonal, rank, rng)
        features, left = self._features
        features = xp.where(self.counted, features, 0)
        self._solver = low_rank(features.astype(diagonal.dtype), diagonal + float(np.mean(left)))
        return self._solver

    def _gradient(self) -> Any:
        """∇ℓ(f) + αW/w, which is 0 in every row of the optimum."""
        gradient = type(self.loss).gradient(self.loss, self.values, self.targets)
        ridged = self.ridge * self.weights / self.xp.where(self.counted, self.row_weights, 1)
        return self.xp.where(self.counted, gradient + ridged, 0)

    def _objective(self, weights: Any, values: Any) -> Any:
        # By its class: Equinox takes 50 µs to bind a method.
        losses = self.row_weights[:, 0] @ type(self.loss).value(self.loss, values, self.targets)
        return losses + self.ridge / 2 * self.xp.sum(weights * (values - self.intercept[None, :]))

    def _length(self, step: Any, change: Any, slope: float, before: Any) -> float:
        """The longest of 1, ½, ¼, … at which the objective falls by a tenth of what the slope promises, or nearly 0."""
        length = 1.0 if slope <= 0 else 0.0
        while length > np.finfo(np.float32).eps:
            after = self._objective(self.weights + length * step, self.values + length * change)
            if float(after - before) <= 0.1 * length * slope:
                return length
            length /= 2
        return length


def _project(counted: Any, block: Any) -> Any:
    return namespace(block).where(counted, block, 0)


def _project_centred(counted: Any, block: Any) -> Any:
    """Less the mean over outputs, which the loss does not see."""
    return _project(counted, block - block.mean(axis=1, keepdims=True))


def _system(apply: Callable[[Any], Any], diagonal: Any, project: Callable[[Any], Any], block: Any) -> Any:
    return project(apply(block) + diagonal * block)


def _preconditioned(solver: Factor | LowRank, project: Callable[[Any], Any], block: Any) -> Any:
    return project(solver.solve(block).astype(block.dtype))
