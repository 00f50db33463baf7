"""Σ w ℓ(f(x), y) + α/2·‖f‖² where the kernel matrix K is in memory: Newton steps on the host, where nothing compiles.

With f = K W the optimum has g = ∇ℓ(f) + αW/w = 0 in every row. A Newton step δ solves

    (K + α/(w h)) δ = −g/h,    h = ℓ″(f),

by a few conjugate gradients, preconditioned by the Nyström approximation of some landmarks (Frangella, Tropp and Udell,
2023; for what that leaves out, its mean is on the diagonal). For the squared loss that is the linear system
(K + α/w) W = y. Losses with kinks have no curvature there and are not solved so. Squares of few rows are factorised,
which also tells what would be said of rows left out:

    y_H − f₋H(x_H) = (A⁻¹_HH)⁻¹ (A⁻¹ (y − intercept))_H,    A = K + α/w.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, get_lapack_funcs, solve_triangular

from thalweg.machines.losses import Loss
from thalweg.threads import enough_threads

MOST = 8192
"""Rows whose matrix is stored: 256 MiB in float32."""

LEAST_DIAGONAL = {np.dtype("float32"): 1e-3, np.dtype("float64"): 1e-10}
"""Below this, in units of k(x, x), a matrix may have no factor in a precision; iterations make good what is added."""

# Squares of no more rows are factorised, and of twice as many if there are several outputs: iterations take longer
# then. To a coarse tolerance what a factor in float32 finds is enough.
_FACTORISED, _COARSE = 4096, 1e-3
# Up to 4,096 rows one thread: on a busy machine two take nine times as long to factorise so many as one.
_ROWS_PER_THREAD = 4
# A Newton step is solved until this part of its residual is left, or so many iterations are made. Rows whose loss has
# no curvature are solved at once, and what is left of them says nothing of the others.
_LEFT, _LEFT_OF_PIECES, _ITERATIONS = 0.1, 1e-3, 50
# Where a line search cuts a step below the first part, what was left of it points astray. From there on steps are
# solved more closely: else they get shorter and shorter, far from the optimum (ten classes ended at 1.6 times it).
_CUT, _CLOSELY, _MORE_ITERATIONS = 0.5, 0.01, 100
# Steps that gain this part of what the one before did, or more, are taken to go on like that.
_SLOWEST = 0.9
# Landmarks of the preconditioner: so many, or all outputs together the second number, but no more than this part of the
# rows. For each output there is a product of their features in each step, which soon takes longer than iterations.
_LANDMARKS, _TOGETHER, _PART, _GRAIN = 512, 1024, 1 / 8, 32
# Of so few rows the whole matrix is inverted for each output.
_FEW = 512
# Added to the diagonal of a matrix of landmarks, in units of k(x, x): what rounding may take from its eigenvalues.
_JITTER = {np.dtype("float32"): 3e-5, np.dtype("float64"): 1e-8}
# Curvatures below this part of the largest count as that much.
_LEAST_CURVATURE = 1e-4
# A line search ends with an interval of 2 to the power of −this, or, if it has found no way to go yet, of −that.
_HALVINGS, _MOST_HALVINGS = 8, 40
# A step that gains a smaller part of what the one before did may have been cut short: as if it had gained this.
_FASTEST = 0.1
# A factorised system is solved to this part of its residual.
_EXACT = 1e-10


class Step(NamedTuple):
    """The objective after a step, the part of it that further steps would gain, and products with K made."""

    objective: float
    left: float
    products: int


class Basis(NamedTuple):
    """G with GᵀG ≈ K, and the mean of what that leaves of the diagonal."""

    features: np.ndarray
    left: float


class Dense:
    """Newton steps from W = 0 for a loss that is smooth; rows of weight 0 are left out.

    Parameters
    ----------
    matrix
        K; products are in its precision, all else in float64.
    targets, weights
        Of the rows.
    loss, ridge, intercept
        ℓ, α and what is added to K W.
    tol
        It is ``done`` when further steps would lower the objective by this part or less.
    alike
        Steps with the same K, whose preconditioner serves.

    Examples
    --------
    >>> from thalweg.machines import SquaredLoss
    >>> x, y = np.arange(4.0), np.sin(np.arange(4.0))[:, None]
    >>> K = np.exp(-((x[:, None] - x) ** 2) / 2)
    >>> dense = Dense(K, y, np.ones(4), SquaredLoss(), 0.1, np.zeros(1), tol=1e-4)
    >>> step = dense.step()
    >>> dense.done, bool(abs(dense.weights - np.linalg.solve(K + 0.1 * np.eye(4), y)).max() < 1e-8)
    (True, True)
    >>> others = np.linalg.solve(K[1:, 1:] + 0.1 * np.eye(3), y[1:])
    >>> bool(abs(dense.without(np.array([0]), 1e-4) - K[:1, 1:] @ others).max() < 1e-8)
    True
    """

    def __init__(
        self,
        matrix: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray,
        loss: Loss,
        ridge: float,
        intercept: np.ndarray,
        tol: float,
        alike: "Dense | None" = None,
    ) -> None:
        self.matrix, self.targets, self.ridge, self.tol = matrix, targets, ridge, tol
        self.loss: Any = loss
        self.intercept, self.row_weights = np.asarray(intercept, float), weights
        self.there = (weights > 0)[:, None]
        self.some = np.where(self.there, weights[:, None], 1.0)
        self.weights = np.zeros(targets.shape)
        self.values = self.weights + self.intercept
        self.done = False
        self._gained, self._stuck, self._closely = 0.0, False, False
        self._factorised = loss.quadratic and len(matrix) <= _FACTORISED * (1 if targets.shape[1] == 1 else 2)
        self._basis: Basis | None = None if alike is None else alike._basis
        self._solver: Any = None

    def step(self) -> Step:
        """Make a Newton step."""
        closely = self._closely
        with enough_threads(len(self.matrix) // _ROWS_PER_THREAD):
            step = self._step()
        self.done = not step.left > self.tol and closely == self._closely
        return step

    def without(self, held: np.ndarray, tol: float) -> np.ndarray:
        """What a machine that has not learned from some rows says of them, solved to a tolerance."""
        if self._factorised and self.done:
            with enough_threads(len(self.matrix) // _ROWS_PER_THREAD):
                one = np.zeros((len(self.matrix), len(held)))
                one[held, np.arange(len(held))] = 1
                part = solve_triangular(self._solver.factor, one, lower=True, overwrite_b=True, check_finite=False)
                off = cho_solve(cho_factor(part.T @ part, lower=True), self.weights[held])
            return self.targets[held] - off
        weights = self.row_weights.copy()
        weights[held] = 0
        other = Dense(self.matrix, self.targets, weights, self.loss, self.ridge, self.intercept, tol, alike=self)
        for _ in range(_ITERATIONS):
            other.step()
            if other.done:
                break
        return other.values[held]

    def _step(self) -> Step:
        loss, f = self.loss, self.values
        curvature = np.maximum(np.asarray(loss.curvatures(f, self.targets)), _LEAST_CURVATURE * loss.curvature)
        if self._solver is None or not loss.quadratic:
            self._solver = self._factor() if self._factorised else self._preconditioner(curvature)
        gradient, diagonal = self._slope(self.weights, f), self.ridge / (self.some * curvature)
        residual = self._projected(-gradient / curvature)
        exact = _EXACT if self.tol < _COARSE else _LEFT
        part = exact if self._factorised else _LEFT_OF_PIECES if loss.piecewise else _LEFT
        part, most = (min(part, _CLOSELY), _MORE_ITERATIONS) if self._closely else (part, _ITERATIONS)
        change, values, products = np.zeros_like(f), np.zeros_like(f), 0
        direction = self._solver(residual)
        square = begun = self._inner(residual, direction)
        enough = part**2 * begun
        while True:
            while products < most and np.any(square > enough):
                image = self._times(direction)
                whole = self._projected(image + diagonal * direction)
                size = _ratio(square, self._inner(direction, whole))
                change, values = change + size * direction, values + size * image
                residual = residual - size * whole
                steepest, before = self._solver(residual), square
                square = self._inner(residual, steepest)
                direction = steepest + _ratio(square, before) * direction
                products += 1
            slopes = self._along(0.0, change, values)
            gained = -float(slopes[0] if loss.centred else np.sum(slopes)) / 2
            enough = part**2 * enough  # What was solved too coarsely can point uphill, and so can rounding.
            if gained > 0 or products == most or not np.any(square > enough):
                break
        self._stuck = gained <= 0 and products == most
        t = self._length(change, values)
        self._closely = self._closely or bool(np.any(t < _CUT))
        self.weights, self.values = self.weights + t * change, f + t * values
        objective, gained = self.objective(), max(gained, 0.0)
        ratio = min(max(gained / self._gained, _FASTEST), _SLOWEST) if self._gained else _SLOWEST
        ratio = float(np.sum(square) / max(np.sum(begun), np.finfo(float).tiny)) if self._factorised else ratio
        self._gained = gained
        left = gained * ratio / (1 - min(ratio, _SLOWEST)) / max(abs(objective), np.finfo(float).tiny)
        return Step(objective, left, products)

    def objective(self) -> float:
        """Σ w ℓ(f(x), y) + α/2·‖f‖²."""
        losses = np.asarray(self.loss.value(self.values, self.targets))
        return float(self.row_weights @ losses + self.ridge / 2 * np.vdot(self.weights, self.values - self.intercept))

    def lost(self) -> float:
        """The part that rounding has left unsolved: of the slope at first, where no step leads further down, or of f.

        With next to no ridge weights are so large that sums of them say nothing.
        """
        none = np.zeros_like(self.weights)
        begun = np.linalg.norm(self._slope(none, none + self.intercept))
        reach = np.max(np.abs(np.where(self.there, self.targets - self.intercept, 0.0)))
        if not (begun and reach):
            return 0.0
        slope = np.linalg.norm(self._slope(self.weights, self.values)) if self._stuck else 0.0
        off = np.max(np.abs(self._times(self.weights) + self.intercept - self.values))
        return float(max(slope / begun, off / reach))

    def _slope(self, weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        """∇ℓ(f) + αW/w, which is 0 in every row of the optimum."""
        gradient = np.asarray(self.loss.gradient(values, self.targets))
        return np.where(self.there, gradient + self.ridge * weights / self.some, 0.0)

    def _along(self, t: Any, change: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The slope of the objective along a step, at parts of it."""
        slope = self._slope(self.weights + t * change, self.values + t * values)
        return self._inner(self.row_weights[:, None] * slope, values)

    def _length(self, change: np.ndarray, values: np.ndarray) -> np.ndarray:
        """How far the objective falls along a step, at most to its end."""
        one = np.ones(change.shape[1])
        low, high = 0 * one, one
        downhill = self._along(one, change, values) <= 0
        if self.loss.quadratic or np.all(downhill):
            return one
        for halvings in range(_MOST_HALVINGS):
            if halvings >= _HALVINGS and np.all(downhill | (low > 0)):
                break
            middle = (low + high) / 2
            uphill = self._along(middle, change, values) > 0
            low, high = np.where(uphill, low, middle), np.where(uphill, middle, high)
        return np.where(downhill, one, low)

    def _times(self, v: np.ndarray) -> np.ndarray:
        return np.asarray(self.matrix @ v.astype(self.matrix.dtype), np.float64)

    def _projected(self, v: np.ndarray) -> np.ndarray:
        """Less the mean over outputs where the loss does not see it, and 0 where a row is left out."""
        return np.where(self.there, v - np.mean(v, axis=1, keepdims=True) if self.loss.centred else v, 0.0)

    def _inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Inner products, of each output for itself where the loss is a sum over them."""
        found = np.sum(a * b, axis=0)
        return np.full_like(found, np.sum(found)) if self.loss.centred else found

    def _factor(self) -> "Factor":
        diagonal = np.maximum(self.ridge / self.some[:, 0], LEAST_DIAGONAL[self.matrix.dtype] * self.matrix[0, 0])
        return Factor(self.matrix, diagonal, self.there[:, 0])

    def _preconditioner(self, curvature: np.ndarray) -> Any:
        if len(self.matrix) <= _FEW:
            return _Inverse(self.matrix, self.ridge / (self.some * curvature), self)
        curvature = curvature[:, :1] if self.loss.quadratic else curvature  # Squares are alike in all outputs.
        if self._basis is None:
            self._basis = _basis(self.matrix, self.there[:, 0], curvature.shape[1])
        diagonal = self.ridge / (self.some * curvature) + self._basis.left
        return _Nystroem(self._basis.features, diagonal, self)


class Factor:
    """(K + D)⁻¹ by a factorisation; rows that are not there are those of the unit matrix.

    Examples
    --------
    >>> Factor(np.eye(2), np.ones(2), np.array([True, False]))(np.ones(2))
    array([0.5, 1. ])
    """

    def __init__(self, matrix: np.ndarray, diagonal: np.ndarray, there: np.ndarray) -> None:
        whole = matrix.copy() if np.all(there) else np.where(there[:, None] & there[None, :], matrix, 0)
        whole[np.diag_indices(len(whole))] += np.where(there, diagonal, 1).astype(matrix.dtype)
        self.factor, failed = get_lapack_funcs("potrf", [whole])(whole.T, lower=1, overwrite_a=1, clean=0)
        if failed:
            raise LinAlgError(f"the leading minor of order {failed} is not positive definite")

    def __call__(self, v: np.ndarray) -> np.ndarray:
        """The product with v, in float64."""
        return cho_solve((self.factor, True), v.astype(self.factor.dtype), check_finite=False).astype(np.float64)


class _Inverse:
    """E_c = (K + D_c)⁻¹ for each output; where outputs sum to 0, E_c (v_c + μ) with the μ for which these do."""

    def __init__(self, matrix: np.ndarray, diagonal: np.ndarray, problem: Dense) -> None:
        self.problem = problem
        self.factors = [Factor(matrix, column, problem.there[:, 0]) for column in diagonal.T]
        if problem.loss.centred:
            one = np.eye(len(matrix))
            self.sum = cho_factor(np.sum([factor(one) for factor in self.factors], axis=0), lower=True)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        if self.problem.loss.centred:
            v = v - cho_solve(self.sum, np.sum(self._times(v), axis=1))[:, None]
        return self.problem._projected(self._times(v))

    def _times(self, v: np.ndarray) -> np.ndarray:
        return np.stack([factor(column) for factor, column in zip(self.factors, v.T, strict=True)], axis=1)


class _Nystroem:
    """(D + GᵀG)⁻¹ for each output."""

    def __init__(self, features: np.ndarray, diagonal: np.ndarray, problem: Dense) -> None:
        # In float64: where one direction holds nearly all of K, float32 leaves nothing of the others.
        self.features, self.diagonal, self.problem = features, diagonal, problem
        roots = np.sqrt(np.where(problem.there, 1 / diagonal, 0))
        grams = (part @ part.T for part in (features * root for root in roots.T))  # of one array: half the products
        self.factors = [cho_factor(gram + np.eye(len(gram)), lower=True) for gram in grams]

    def __call__(self, v: np.ndarray) -> np.ndarray:
        problem, diagonal = self.problem, np.broadcast_to(self.diagonal, v.shape)
        # The inverse within the outputs that sum to 0, of D exactly: oblique, not the mean.
        share = 1 / diagonal / np.sum(1 / diagonal, axis=1, keepdims=True) if problem.loss.centred else 0.0
        v = v - np.sum(share * v, axis=1, keepdims=True)
        scaled = v / diagonal
        inner = self.features @ scaled
        if len(self.factors) == 1:
            inner = cho_solve(self.factors[0], inner)
        else:
            inner = np.stack([cho_solve(one, inner[:, c]) for c, one in enumerate(self.factors)], axis=1)
        found = scaled - (self.features.T @ inner) / diagonal
        return problem._projected(found - share * np.sum(found, axis=1, keepdims=True))


def drawn(left: np.ndarray, but: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Places that are drawn without replacement in proportion to what is ``left`` there, but for some.

    Examples
    --------
    >>> drawn(np.array([1.0, 0.0, 1.0]), np.array([0]), 1, np.random.default_rng(0)).tolist()
    [2]
    """
    # The largest of log p + Gumbel noise are such a draw.
    lots = np.log(np.maximum(left, 1e-12)) + rng.gumbel(size=len(left))
    lots[but] = -np.inf
    return np.argsort(-lots)[:count]


def _basis(matrix: np.ndarray, there: np.ndarray, outputs: int) -> Basis:
    """Half of the landmarks are any rows, the others are drawn by how much of them the first half leaves out.

    Two rounds of randomly pivoted Cholesky (Chen, Epperly, Tropp and Webber, 2024).
    """
    rows = np.flatnonzero(there)
    count = int(min(_LANDMARKS, max(_TOGETHER / outputs, 2 * _GRAIN), _PART * len(rows))) // _GRAIN * _GRAIN
    first = rows[: max(count // 2, 1)]
    left = _explained(matrix, first)[1]
    others = rows[drawn(left[rows], np.arange(len(first)), count - len(first), np.random.default_rng(0))]
    features, left = _explained(matrix, np.concatenate([first, others]))
    return Basis(features, float(np.mean(left[rows])))


def _explained(matrix: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """G of chosen landmarks, and what it leaves of k(x, x) for each row."""
    inner = matrix[np.ix_(chosen, chosen)].astype(np.float64)
    variance = inner[0, 0]
    inner[np.diag_indices(len(inner))] += _JITTER[matrix.dtype] * variance
    factor = cholesky(inner, lower=True, overwrite_a=True)
    features = solve_triangular(factor, matrix[chosen].astype(np.float64), lower=True, overwrite_b=True)
    left = np.maximum(variance - np.sum(features**2, axis=0), 0.0)
    return features, left


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b > 0, a / np.where(b > 0, b, 1), 0)
