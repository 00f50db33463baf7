"""The exact way on a CPU: LAPACK on the host, and the usual kernels written out, so that nothing is compiled.

The formulas are those of :mod:`thalweg.processes.exact`. A factorisation and an inverse from it (``potrf``, ``potri``)
take n³ operations where triangular solves with the identity take 7/3 n³, and derivatives are taken of one triangle.
Of many rows the inverse is estimated, as there.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs
from scipy.spatial.distance import cdist

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.kernels.profiles import summands, value_and_rise
from thalweg.padding import padded
from thalweg.processes.exact import (
    DRAWN,
    INVERTED,
    Parameters,
    Solution,
    few,
    information,
    kernel_slope,
    length,
    mixed,
    solved,
)

_KEPT = 4_000
"""Rows up to which the matrices of all terms of a sum are kept; those of more are made twice."""

AT_HAND = 500
"""Rows of a single factorisation that are left to the host even if there is a GPU."""


class Lapack:
    """The solves of SciPy without its checks, which of few rows take ten times as long as the solves.

    Factors are in the order of columns, as LAPACK leaves them, or they are copied.
    """

    @staticmethod
    def solve_triangular(factor: np.ndarray, right: np.ndarray, lower: bool, trans: int = 0) -> np.ndarray:
        """L⁻¹ right, or L⁻ᵀ right."""
        return dtrtrs(factor, right, lower=lower, trans=trans)[0] if right.size else right

    @staticmethod
    def cho_solve(factor: tuple[np.ndarray, bool], right: np.ndarray) -> np.ndarray:
        """(LLᵀ)⁻¹ right."""
        return dpotrs(factor[0], right, lower=factor[1])[0] if right.size else right


@storable
class HostRows(NamedTuple):
    """Rows of a regression on the host; :class:`~thalweg.processes.exact.Observations` says what they are."""

    inputs: np.ndarray
    targets: np.ndarray
    basis: np.ndarray
    known: np.ndarray
    weights: np.ndarray
    scatter: np.ndarray
    copies: np.ndarray
    shift: np.ndarray

    @property
    def real(self) -> np.ndarray:
        """All of them."""
        return np.ones(len(self.inputs))

    def variances(self, noise: Any) -> np.ndarray:
        """Those of the noise at the rows."""
        return (noise + self.known) / self.weights

    def constant(self, noise: float) -> float:
        """What −log p(y) holds beside the quadratic form and the determinant of the covariance of the rows."""
        variances = noise + self.known
        several = self.copies > 1
        repeats = np.sum((self.copies - 1)[several] * np.log(2 * np.pi * variances[several])) + np.sum(self.shift)
        scatter = np.sum(self.scatter[several] / variances[several])
        outputs = self.targets.shape[1]
        return (outputs * (len(self.inputs) * np.log(2 * np.pi) + repeats) + scatter) / 2

    def repeats_slope(self, noise: Any) -> np.ndarray:
        """Twice the derivative, in the noise, of what several values at one place add to −log p(y)."""
        variances = np.where(self.copies > 1, noise + self.known, 1.0)
        return (self.targets.shape[1] * (self.copies - 1) - self.scatter / variances) / variances

    def solution(self, parameters: Parameters) -> Solution:
        """The factor of A, and what follows from it; a loss of NaN where A has none."""
        return self._solution(parameters, matrix(parameters.kernel, self.inputs))

    def loss(self, parameters: Parameters) -> Any:
        """−log p(y)."""
        return self.solution(parameters).loss

    def knows(self, kernel: Kernel) -> bool:
        """Whether :meth:`loss_slope_and_information` can be asked of it."""
        return bool(summands(kernel))

    def loss_and_slope(self, parameters: Parameters) -> tuple[float, Parameters]:
        """−log p(y), and its derivative in the logarithms of all parameters."""
        return self._evaluated(parameters, informed=False)[:2]

    def loss_slope_and_information(self, parameters: Parameters) -> tuple[float, Parameters, np.ndarray]:
        """Those, and the average information of :func:`~thalweg.processes.exact.information`."""
        return self._evaluated(parameters, informed=True)

    def _evaluated(self, parameters: Parameters, informed: bool) -> tuple[float, Parameters, np.ndarray]:
        kernel = parameters.kernel
        terms = summands(kernel)
        keep = len(terms) == 1 or len(self.inputs) <= _KEPT
        kept = [_matrix_and_rise(term, self.inputs) for term in terms] if keep else []
        covariance = reduce(np.add, (part for part, _ in kept)) if kept else matrix(kernel, self.inputs)
        found = self._solution(parameters, covariance)
        if not np.isfinite(found.loss):
            return np.nan, jax.tree.map(np.zeros_like, parameters), np.zeros((0, 0))
        outputs = self.targets.shape[1]
        inverse = _inverse(found.factor)
        pull = dsyrk(-0.5, found.weights, outputs / 2, inverse, lower=1, overwrite_c=1)
        diagonal = pull.diagonal().copy()
        noise = parameters.noise * np.sum(diagonal / self.weights + self.repeats_slope(parameters.noise) / 2)
        columns = mixed(found.weights, np) if informed else None
        slope, moved = slopes(kernel, self.inputs, pull, columns, kept)
        told = np.zeros((0, 0))
        if columns is not None:
            every = np.concatenate([*moved, (columns * (parameters.noise / self.weights)[:, None])[:, None]], axis=1)
            told = information(every, found, parameters.noise, self, np, Lapack)
        return float(found.loss), Parameters(slope, np.asarray(noise)), told

    def _solution(self, parameters: Parameters, covariance: np.ndarray) -> Solution:
        noisy = covariance.copy()
        noisy[np.diag_indices_from(noisy)] += self.variances(parameters.noise)
        # The transpose is in the order that LAPACK reads, and the matrix is symmetric.
        factor, failed = dpotrf(noisy.T, lower=1, clean=1, overwrite_a=1)
        if failed or not np.isfinite(factor[-1, -1]):
            return Solution(factor, *(np.full((1, 1), np.nan),) * 4, np.asarray(np.nan))
        return solved(factor, parameters.noise, self, np, Lapack)


def _inverse(factor: Any) -> np.ndarray:
    """The lower triangle of A⁻¹, or of what has it as its mean if rows are many; the upper one is 0."""
    if len(factor) <= INVERTED:
        return dpotri(factor, lower=1)[0]
    normal = np.random.default_rng(0).standard_normal((len(factor), DRAWN))
    return dsyrk(1 / DRAWN, Lapack.solve_triangular(factor, normal, lower=True, trans=1), lower=1)


def serves(rows: int, at_hand: int = AT_HAND) -> bool:
    """Whether the host is what computes: where there is nothing else, or not worth a transfer and a new program."""
    return rows <= at_hand or jax.default_backend() == "cpu"


def diagonal(kernel: Kernel, new: np.ndarray) -> np.ndarray:
    """k(x, x) for each row."""
    if kernel.stationary:
        return np.full(len(new), float(kernel.variance))
    return np.asarray(_diagonal(_of_arrays(kernel), padded(new, length(len(new)))))[: len(new)]


def matrix(kernel: Kernel, inputs: np.ndarray, new: np.ndarray | None = None) -> np.ndarray:
    """k(inputs, new), or k(inputs, inputs) with what a kernel has on its diagonal alone."""
    terms = summands(kernel)
    if terms:
        found = _matrix_and_rise(terms[0], inputs, new, rise=False)[0]
        for term in terms[1:]:
            found += _matrix_and_rise(term, inputs, new, rise=False)[0]
        return found
    sizes = [len(inputs), len(inputs if new is None else new)]
    points = [None if rows is None else padded(rows, length(len(rows))) for rows in (inputs, new)]
    return np.array(_matrix(_of_arrays(kernel), *points))[: sizes[0], : sizes[1]]


def slopes(
    kernel: Kernel,
    inputs: np.ndarray,
    pull: np.ndarray,
    columns: np.ndarray | None = None,
    kept: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> tuple[Kernel, list[np.ndarray]]:
    """Derivatives of Σ pull·K in the logarithms of a kernel's parameters, and of K·columns by terms, if written out.

    The upper triangle of ``pull`` is 0. ``kept`` are the matrices of the kernel's terms and their rises, if at hand;
    they are used up.
    """
    terms = summands(kernel)
    moved: list[np.ndarray] = []
    if terms:
        each: list[np.ndarray] = []
        centred = inputs - (inputs[0] + np.mean(inputs - inputs[0], axis=0))
        for term, part in zip(terms, kept or (_matrix_and_rise(term, inputs) for term in terms), strict=True):
            scaled = centred / term.lengthscale
            moved += [] if columns is None else [_moves(term, scaled, columns, *part)]
            each += _derivatives(term, scaled, pull, *part)
        return of_family(kernel, *each), moved
    size = length(len(pull))
    pull = pull + np.tril(pull, -1).T
    pull = padded(padded(pull, size), size, axis=1)
    slope = _slope(_of_arrays(kernel), padded(inputs, size), pull)
    return jax.tree.map(lambda a, b: np.asarray(a) * b, slope, kernel), moved


def _derivatives(
    kernel: Kernel, scaled: np.ndarray, pull: np.ndarray, covariance: np.ndarray, rise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Those of Σ pull·K in the logarithms of lengthscales and variance; the upper triangle of ``pull`` is 0."""
    # One triangle is counted twice, the diagonal once.
    variance = 2 * np.vdot(pull.T, covariance) - pull.diagonal() @ covariance.diagonal()
    rise *= pull.T
    sums = rise.sum(axis=0) + rise.sum(axis=1)
    lengths = -4 * (sums @ scaled**2 - 2 * np.sum(scaled * (rise @ scaled), axis=0))
    return (lengths if np.ndim(kernel.lengthscale) else np.sum(lengths)), variance


def _moves(
    kernel: Kernel, scaled: np.ndarray, columns: np.ndarray, covariance: np.ndarray, rise: np.ndarray
) -> np.ndarray:
    """Derivatives of K·columns in the logarithms of lengthscales and variance: (rows, parameters, columns)."""
    size, features = scaled.shape
    # The square of a difference, opened up: x² − 2xx' + x'².
    powers = np.concatenate([np.ones((size, 1)), scaled, scaled**2], axis=1)
    found = (rise @ (powers[:, :, None] * columns[:, None]).reshape(size, -1)).reshape(size, 1 + 2 * features, -1)
    x = scaled[:, :, None]
    moved = -2 * (x**2 * found[:, :1] - 2 * x * found[:, 1 : 1 + features] + found[:, 1 + features :])
    if not np.ndim(kernel.lengthscale):
        moved = np.sum(moved, axis=1, keepdims=True)
    return np.concatenate([moved, (covariance @ columns)[:, None]], axis=1)


def _matrix_and_rise(
    kernel: Kernel, inputs: np.ndarray, new: np.ndarray | None = None, rise: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The matrix of a kernel that is written out, and its derivative in the squared distance if that is asked for."""
    lengths = np.asarray(kernel.lengthscale)
    left = inputs / lengths
    return value_and_rise(kernel, cdist(left, left if new is None else new / lengths, "sqeuclidean"), rise)


def of_family(kernel: Kernel, *leaves: Any) -> Kernel:
    """One with other parameters; a constructor would send them to an accelerator, and they would come back."""
    return jax.tree.unflatten(jax.tree.structure(kernel), [np.asarray(leaf) for leaf in leaves])


def _of_arrays(kernel: Kernel) -> Kernel:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), kernel)


_matrix = quick_jit(few)(lambda kernel, x, y: kernel.matrix(x, y))
_diagonal = quick_jit(few)(lambda kernel, x: kernel.diagonal(x))


@quick_jit(few)
def _slope(kernel: Kernel, inputs: Any, pull: Any) -> Kernel:
    return kernel_slope(kernel, inputs, lambda part: part(pull), jnp.diag(pull))
