"""Losses of a prediction f against a target y, row by row, with the properties that methods rest on.

Predictions and targets are matrices of JAX or of NumPy, a row for each example. Labels are one-hot rows (0 and 1) for
:class:`SoftmaxLoss`, a column of 0 and 1 for :class:`LogisticLoss`, and −1 and 1 for the hinges.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg.arguments import number
from thalweg.codec import storable
from thalweg.linalg.arrays import AnyArray, namespace, special

__all__ = ["HuberLoss", "LogisticLoss", "Loss", "QuantileLoss", "SoftmaxLoss", "SquaredLoss"]
__all__ += ["HingeLoss", "SquaredHingeLoss"]

Outputs = Float[AnyArray, "n c"]
RowLosses = Float[AnyArray, " n"]


class Loss(eqx.Module):
    """A convex loss; a subclass defines :meth:`value` and :meth:`gradient`.

    Examples
    --------
    >>> class Absolute(Loss):
    ...     def value(self, f, y):
    ...         return jnp.sum(jnp.abs(f - y), axis=1)
    >>> Absolute().value(jnp.array([[3.0]]), jnp.array([[1.0]]))
    Array([2.], dtype=float...)
    """

    curvature: ClassVar[float] = 1.0
    """L with ℓ(f + u) ≤ ℓ(f) + ⟨∇ℓ(f), u⟩ + L/2·‖u‖²; of a loss with kinks, that of :meth:`smoothed_gradient`."""

    output_gradient_bound: ClassVar[float | None] = None
    """The largest |∂ℓ/∂f_c| of one output c; None if there is none."""

    smooth: ClassVar[bool] = True
    """Whether the gradient exists everywhere."""

    robust: ClassVar[bool] = False
    """Whether it is made for numbers of which some may be outliers."""

    quadratic: ClassVar[bool] = False
    """Whether the curvature is the same everywhere."""

    centred: ClassVar[bool] = False
    """Whether adding one number to all outputs of a row changes nothing."""

    probabilistic: ClassVar[bool] = False
    """Whether f holds log-odds, so that the loss is a negative log-likelihood of labels."""

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """The loss of each row."""
        raise NotImplementedError(f"{type(self).__name__} must define value(f, y)")

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """The gradient in f, or a subgradient at a kink."""
        raise NotImplementedError(f"{type(self).__name__} must define gradient(f, y)")

    def intercept(self, codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the constant f that fits labels of these total weights, one observation of all labels alike added.

        ``codes`` are the targets of the labels. It is 0 for losses of margins.

        Examples
        --------
        >>> LogisticLoss().intercept(np.array([[0.0], [1.0]]), np.array([899.5, 99.5])).round(4)  # log(0.1 / 0.9)
        array([-2.1972])
        """
        return np.zeros(codes.shape[1])

    def gradient_bound(self, outputs: int) -> float | None:
        """M, the largest norm of a gradient for so many outputs; None if there is none."""
        bound = self.output_gradient_bound
        return None if bound is None else bound * float(np.sqrt(outputs))

    def smoothed_gradient(self, f: Outputs, y: Outputs, dual: Outputs) -> Outputs:
        """argmax_a ⟨a, f⟩ − ℓ*(a) − ‖a − dual‖²/2, for a loss with kinks; the gradient itself for a smooth one.

        At a solution, where ``dual`` is a subgradient, it is that subgradient: smoothing does not move the solution.
        """
        return self.gradient(f, y)

    def curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """The second derivative of the loss in each output.

        For a :attr:`centred` loss it is a diagonal that acts as the Hessian does where the outputs sum to 0.

        Examples
        --------
        >>> SquaredHingeLoss().curvatures(jnp.array([[0.0], [2.0]]), jnp.ones((2, 1)))
        Array([[1.],
               [0.]], dtype=float...)
        """
        return jax.jvp(lambda f: self.gradient(f, y), (f,), (jnp.ones_like(f),))[1]

    def mean_curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """The second derivative in each output, or one for all outputs of a loss that ties them, its mean."""
        return self.curvatures(f, y)


@storable
class SquaredLoss(Loss):
    """‖f − y‖²/2.

    Examples
    --------
    >>> SquaredLoss().value(np.array([[3.0]]), np.array([[1.0]]))
    array([2.])
    """

    quadratic = True

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """Half the squared distance."""
        return ((f - y) ** 2).sum(axis=1) / 2

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """The residual."""
        return f - y

    def curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """1."""
        return namespace(f).ones_like(f)

    def intercept(self, codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The mean target: far from all rows a rare class is as rare as it is among them."""
        counts = counts + 1 / len(counts)
        return counts @ codes / np.sum(counts)


@storable
class LogisticLoss(Loss):
    """log(1 + eᶠ) − y·f for y of 0 or 1, summed over columns.

    Examples
    --------
    >>> LogisticLoss().value(np.zeros((1, 1)), np.ones((1, 1))).round(4)  # log 2
    array([0.6931])
    """

    curvature = 0.25
    output_gradient_bound = 1.0
    probabilistic = True

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """The negative log-likelihood."""
        return (namespace(f).logaddexp(f, 0) - y * f).sum(axis=1)

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """The probability less the label."""
        return special(namespace(f)).expit(f) - y

    def curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """p(1 − p)."""
        p = special(namespace(f)).expit(f)
        return p * (1 - p)

    def intercept(self, codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The log-odds of each column."""
        counts = counts + 1 / len(counts)
        return np.log(counts @ codes) - np.log(counts @ (1 - codes))


@storable
class SoftmaxLoss(Loss):
    """log Σ_c exp(f_c) − ⟨y, f⟩ for one-hot y: multi-class logistic regression.

    Examples
    --------
    >>> round(SoftmaxLoss().gradient_bound(outputs=10), 4)  # √2, however many classes
    1.4142
    """

    centred = True
    curvature = 0.5
    output_gradient_bound = 1.0
    probabilistic = True

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """The negative log-likelihood."""
        return special(namespace(f)).logsumexp(f, axis=1) - (y * f).sum(axis=1)

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """The probabilities less the label."""
        return self.curvatures(f, y) - y

    def curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """The probabilities p: (diag p − ppᵀ)⁻¹ q is q/p but for its mean, where q sums to 0."""
        return namespace(f).exp(f - special(namespace(f)).logsumexp(f, axis=1, keepdims=True))

    def mean_curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """Σ p(1 − p)/(c − 1): the mean eigenvalue of diag p − ppᵀ where outputs sum to 0."""
        p = self.curvatures(f, y)
        return (p * (1 - p)).sum(axis=1, keepdims=True) / (p.shape[1] - 1)

    def intercept(self, codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logarithms of the frequencies less their mean: the outputs of f sum to 0."""
        logs = np.log((counts + 1 / len(counts)) @ codes)
        return logs - np.mean(logs)

    def gradient_bound(self, outputs: int) -> float | None:
        """√2, however many classes."""
        return float(np.sqrt(2))


@storable
class HingeLoss(Loss):
    """max(0, 1 − y·f) for y of −1 or 1, summed over columns: one class against the rest.

    Examples
    --------
    >>> HingeLoss().value(np.array([[0.25], [2.0]]), np.ones((2, 1)))
    array([0.75, 0.  ])
    """

    output_gradient_bound = 1.0
    smooth = False

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """What is missing of a margin of 1."""
        return namespace(f).maximum(0, 1 - y * f).sum(axis=1)

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """−y within the margin."""
        return namespace(f).where(y * f < 1, -y, 0)

    def smoothed_gradient(self, f: Outputs, y: Outputs, dual: Outputs) -> Outputs:
        """−y·clip(−y·dual + 1 − y·f, 0, 1)."""
        return -y * namespace(f).clip(-y * dual + 1 - y * f, 0, 1)


@storable
class SquaredHingeLoss(Loss):
    """max(0, 1 − y·f)²/2 for y of −1 or 1, summed over columns.

    Examples
    --------
    >>> SquaredHingeLoss().value(np.array([[0.0], [2.0]]), np.ones((2, 1)))
    array([0.5, 0. ])
    """

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """Half the square of what is missing of a margin of 1."""
        return (namespace(f).maximum(0, 1 - y * f) ** 2).sum(axis=1) / 2

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """−y times what is missing."""
        return -y * namespace(f).maximum(0, 1 - y * f)

    def curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """1 within the margin."""
        return (y * f < 1).astype(f.dtype)


@storable
class HuberLoss(Loss):
    """r²/2 of the residual up to ``width``, and linear beyond it, summed over columns.

    Examples
    --------
    >>> HuberLoss(1.0).value(np.array([[1.0], [3.0]]), np.zeros((2, 1)))
    array([0.5, 2.5])
    """

    robust = True
    width: Array

    def __init__(self, width: float = 1.35) -> None:
        self.width = number("width of HuberLoss", width, above=0)

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """A square that becomes a line."""
        size = abs(f - y)
        near = namespace(f).minimum(size, _like(f, self.width))
        return (near * (size - near / 2)).sum(axis=1)

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """The residual, clipped."""
        width = _like(f, self.width)
        return namespace(f).clip(f - y, -width, width)

    def curvatures(self, f: Outputs, y: Outputs) -> Outputs:
        """1 where it is a square."""
        return (abs(f - y) < _like(f, self.width)).astype(f.dtype)


@storable
class QuantileLoss(Loss):
    """The pinball loss max(q·(y − f), (1 − q)·(f − y)), summed over columns, whose minimiser is the q-quantile.

    Examples
    --------
    >>> QuantileLoss(0.9).value(np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]))
    array([0.9, 0.1])
    """

    robust = True
    smooth = False
    q: Array

    def __init__(self, q: float = 0.5) -> None:
        self.q = number("q of QuantileLoss", q, above=0, below=1)

    def value(self, f: Outputs, y: Outputs) -> RowLosses:
        """The residual, weighted by its sign."""
        q = _like(f, self.q)
        return namespace(f).maximum(q * (y - f), (1 - q) * (f - y)).sum(axis=1)

    def gradient(self, f: Outputs, y: Outputs) -> Outputs:
        """−q below the target, 1 − q above it."""
        xp, q = namespace(f), _like(f, self.q)
        return xp.where(f < y, 0, xp.where(f > y, 1, q)) - q

    def smoothed_gradient(self, f: Outputs, y: Outputs, dual: Outputs) -> Outputs:
        """clip(dual + f − y, −q, 1 − q)."""
        q = _like(f, self.q)
        return namespace(f).clip(dual + f - y, -q, 1 - q)


def _like(f: Any, parameter: Array) -> Any:
    """A parameter in the precision of f."""
    return np.asarray(parameter, f.dtype) if isinstance(f, np.ndarray) else parameter.astype(f.dtype)
