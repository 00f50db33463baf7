"""Kernels from plain data, as a file holds them: nothing is run, and what is unknown is refused."""

from typing import Any

from thalweg.kernels.base import Kernel
from thalweg.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern12, Matern32, Matern52

_KNOWN: dict[str, type[Kernel]] = {
    kind.__name__: kind for kind in (Gaussian, Matern12, Matern32, Matern52, Laplacian, Cauchy)
}
_FIELDS = ("name", "lengthscale", "variance")


def from_description(description: dict[str, Any]) -> Kernel:
    """Return the kernel that :meth:`Kernel.describe` described.

    Parameters
    ----------
    description
        A dict of ``name``, ``lengthscale`` (a number or a list of numbers) and ``variance`` (a number).

    Examples
    --------
    >>> from_description({"name": "Matern32", "lengthscale": 2.0, "variance": 1.0})
    Matern32(lengthscale=2, variance=1)
    >>> from_description({"name": "Sinc", "lengthscale": 2.0, "variance": 1.0})
    Traceback (most recent call last):
        ...
    ValueError: description names the unknown kernel 'Sinc'; known are Gaussian, Matern12, Matern32, ...
    """
    if not isinstance(description, dict) or set(description) != set(_FIELDS):
        found = sorted(map(str, description)) if isinstance(description, dict) else description
        raise ValueError(f"description must be a dict of {', '.join(_FIELDS)}, found {found!r}")
    name, lengthscale, variance = (description[field] for field in _FIELDS)
    kind = kind_of(name)
    numbers = [*lengthscale, variance] if isinstance(lengthscale, list) else [lengthscale, variance]
    if not all(type(number) in (int, float) for number in numbers):
        raise ValueError(f"description must hold numbers, found lengthscale={lengthscale!r}, variance={variance!r}")
    return kind(lengthscale, variance)


def kind_of(name: Any) -> type[Kernel]:
    """Return the class of kernels of this name.

    Examples
    --------
    >>> kind_of("Matern32").__name__
    'Matern32'
    """
    if not isinstance(name, str) or name not in _KNOWN:
        raise ValueError(f"description names the unknown kernel {name!r}; known are {', '.join(_KNOWN)}")
    return _KNOWN[name]
