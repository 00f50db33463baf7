"""Kernels by their names."""

from typing import Any

from thalweg.errors import IncompatiblePartsError
from thalweg.kernels.base import Kernel
from thalweg.kernels.forms import Stationary
from thalweg.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern12, Matern32, Matern52

__all__ = ["as_kernel", "kernel_or_class"]

_FAMILIES = Gaussian, Matern12, Matern32, Matern52, Laplacian, Cauchy
_NAMES = {"rbf": Gaussian} | {family.__name__.lower(): family for family in _FAMILIES}


def kernel_or_class(value: Any, *, stationary: bool = False) -> Kernel | type[Stationary]:
    """Return a kernel as it is, and the class that a word or a class stands for, whose lengthscale is then to be found.

    With ``stationary`` a kernel that is not is refused.

    Examples
    --------
    >>> kernel_or_class("matern32")
    <class 'thalweg.kernels.stationary.Matern32'>
    >>> kernel_or_class("matern")
    Traceback (most recent call last):
        ...
    ValueError: kernel must be one of 'rbf', 'gaussian', 'matern12', 'matern32', 'matern52', 'laplacian', 'cauchy', a
    kernel such as Gaussian(1.0), or a class of kernels with a lengthscale such as Matern32, found 'matern'
    """
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    if isinstance(value, Kernel) and stationary and not value.stationary:
        raise IncompatiblePartsError(f"kernel must be stationary such as Gaussian(1.0), found {value}")
    if isinstance(value, Kernel) or (isinstance(value, type) and issubclass(value, Stationary)):
        return value
    error = ValueError if isinstance(value, str) else TypeError
    raise error(
        f"kernel must be one of {', '.join(map(repr, _NAMES))}, a kernel such as Gaussian(1.0), or a class of kernels "
        f"with a lengthscale such as Matern32, found {value!r}"
    )


def as_kernel(value: Any) -> Kernel:
    """Return a kernel, a word or a class standing for one of lengthscale and variance 1.

    Examples
    --------
    >>> as_kernel("rbf")
    Gaussian(lengthscale=1, variance=1)
    """
    found = kernel_or_class(value)
    return found if isinstance(found, Kernel) else found()
