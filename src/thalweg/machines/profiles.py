"""Kernel matrices of some hundred rows by NumPy: where a program would take longer to compile than to run."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52

Function = Callable[[np.ndarray], np.ndarray]


class Profile(NamedTuple):
    """A correlation as a function of r², and its derivative there, taken as 0 where it is infinite."""

    value: Function
    slope: Function


def _matern12_slope(squares: np.ndarray) -> np.ndarray:
    root = np.sqrt(squares)
    return np.where(root > 0, -np.exp(-root) / (2 * np.where(root > 0, root, 1)), 0)


def _matern52(squares: np.ndarray) -> np.ndarray:
    root = np.sqrt(5 * squares)
    return (1 + root + root**2 / 3) * np.exp(-root)


def _matern32(squares: np.ndarray) -> np.ndarray:
    root = np.sqrt(3 * squares)
    return (1 + root) * np.exp(-root)


def _matern52_slope(squares: np.ndarray) -> np.ndarray:
    root = np.sqrt(5 * squares)
    return -5 / 6 * (1 + root) * np.exp(-root)


_PROFILES: dict[type[Kernel], Profile] = {
    Gaussian: Profile(lambda s: np.exp(-s / 2), lambda s: -np.exp(-s / 2) / 2),
    Matern12: Profile(lambda s: np.exp(-np.sqrt(s)), _matern12_slope),
    Matern32: Profile(_matern32, lambda s: -1.5 * np.exp(-np.sqrt(3 * s))),
    Matern52: Profile(_matern52, _matern52_slope),
}


def profile(kernel: Kernel) -> Profile | None:
    """The profile of a kernel; None where only the kernel itself knows.

    Examples
    --------
    >>> found = profile(Matern32(2.0))
    >>> float(found.value(np.array(0.0))), float(found.slope(np.array(0.0)))
    (1.0, -1.5)
    """
    return _PROFILES.get(type(kernel))


def scaled_squares(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """‖(x_i − y_j)/lengthscale‖².

    Examples
    --------
    >>> scaled_squares(Gaussian(2.0), np.zeros((1, 1)), np.array([[2.0], [4.0]]))
    array([[1., 4.]])
    """
    length = np.asarray(kernel.lengthscale, np.float64)
    # The median: beside a row of extreme size the others would lose their digits to a mean.
    middle = np.median(y, axis=0)
    x, y = (x - middle) / length, (y - middle) / length
    found = np.sum(x**2, axis=1)[:, None] + np.sum(y**2, axis=1)[None, :] - 2 * (x @ y.T)
    return np.maximum(found, 0)


def mean_squared_slopes(kernel: Kernel, x: np.ndarray, dual: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    """Σ_c mean_i (∂f_c(x_i)/∂x_ij)², for f_c = Σ_i dual_ic·k(·, x_i); None where only the kernel itself knows.

    Examples
    --------
    >>> x = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> mean_squared_slopes(Gaussian(), x, np.array([[1.0], [0.0]]), np.ones(2)).round(4)  # (e^(−1/2))² / 2
    array([0.1839, 0.    ])
    """
    known = profile(kernel)
    if known is None:
        return None
    length = np.asarray(kernel.lengthscale, np.float64)
    slope = 2 * float(kernel.variance) * known.slope(scaled_squares(kernel, x, x))
    total = np.zeros(x.shape[1])
    x = x - np.median(x, axis=0)
    for column in dual.T:
        each = slope * column[None, :]
        slopes = (np.sum(each, axis=1)[:, None] * x - each @ x) / length**2
        total += np.average(slopes**2, axis=0, weights=weights)
    return total
