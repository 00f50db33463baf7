"""The usual kernels written out in NumPy, for matrices on the host: nothing is compiled."""

import numpy as np
from jaxtyping import Float

from thalweg.kernels.base import Kernel, Sum
from thalweg.kernels.stationary import Gaussian, Matern12, Matern32, Matern52

_ORDERS: dict[type[Kernel], int | None] = {Matern12: 0, Matern32: 1, Matern52: 2, Gaussian: None}
"""Kernels that are written out, and how often their functions are differentiable."""

_FARTHEST = 70.0
"""exp(−70) is nothing beside 1, but not so small that arithmetic with it becomes slow."""


_AT_ONCE = 2**15
"""Entries that are worked on at a time: what is in the processor's cache need not be fetched for each operation."""


def written_out(kernel: Kernel) -> bool:
    """Whether :func:`value_and_rise` knows a kernel.

    Examples
    --------
    >>> written_out(Gaussian()), written_out(Gaussian() + Gaussian())
    (True, False)
    """
    return type(kernel) in _ORDERS


def summands(kernel: Kernel) -> tuple[Kernel, ...]:
    """What a kernel is the sum of, if all of it is written out; else nothing.

    Examples
    --------
    >>> len(summands(Gaussian() + Matern32() + Gaussian())), summands(Gaussian() * Gaussian())
    (3, ())
    """
    if type(kernel) is Sum:
        left, right = summands(kernel.k1), summands(kernel.k2)
        return left + right if left and right else ()
    return (kernel,) if written_out(kernel) else ()


def value_and_rise(
    kernel: Kernel, squares: Float[np.ndarray, "n m"], rise: bool = True
) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, "n m"]]:
    """A kernel by squared distances in units of its lengthscale, and, if asked for, its derivative in those.

    What rounding took below 0 counts as 0. Where rows are equal the derivative of Matern12 is infinite, and is taken as
    0. The array is written over.

    Examples
    --------
    >>> value_and_rise(Matern32(variance=2.0), np.zeros((1, 1)))
    (array([[2.]]), array([[-3.]]))
    """
    variance, order = float(kernel.variance), _ORDERS[type(kernel)]
    slopes = np.empty_like(squares) if rise else squares
    some = max(_AT_ONCE // max(squares.shape[1], 1), 1)
    for begin in range(0, len(squares), some):
        part = slice(begin, begin + some)
        value, slope = _profile(order, squares[part], variance, rise)
        if rise:  # first: it may be where the squares were
            slopes[part] = slope
        squares[part] = value
    return squares, slopes


def _profile(order: int | None, found: np.ndarray, variance: float, rise: bool) -> tuple[np.ndarray, np.ndarray]:
    if order is None:
        np.clip(found, 0, 2 * _FARTHEST, out=found)
        found *= -0.5
        np.exp(found, out=found)
        if variance != 1:
            found *= variance
        return found, -found / 2 if rise else found
    np.clip(found, 0, _FARTHEST**2 / (2 * order + 1), out=found)
    if order:
        found *= 2 * order + 1
    third = found * (1 / 3) if order == 2 else found
    np.sqrt(found, out=found)
    decay = np.negative(found, out=None if order or rise else found)
    np.exp(decay, out=decay)
    if variance != 1:
        decay *= variance
    match order:
        case 0:
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = np.where(found > 0, -decay / (2 * found), 0.0) if rise else decay
            return decay, slope
        case 1:
            found += 1
            found *= decay
            if rise:
                decay *= -1.5
            return found, decay
        case _:
            found += 1
            third += found
            third *= decay
            if rise:
                found *= decay
                found *= -5 / 6
            return third, found
