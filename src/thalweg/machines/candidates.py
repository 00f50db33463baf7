"""A choice of a kernel and a ridge, and the kernel matrices of some rows with it."""

from threading import Lock, local
from typing import Any, NamedTuple

import numpy as np

from thalweg.kernels import Kernel
from thalweg.kernels.profiles import written_out
from thalweg.machines.folds import Distances

# Distances are kept in no more units than are searched in turns.
_UNITS = 6


class Choice(NamedTuple):
    """A family of kernels or a kernel, a lengthscale and a multiple of it, and a ridge.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> Choice(Gaussian, 3.0, 2.0, 0.1).kernel
    Gaussian(lengthscale=6, variance=1)
    """

    family: Any
    base: Any
    times: float
    alpha: float

    @property
    def kernel(self) -> Kernel:
        """The kernel of the family, or the kernel that was given."""
        return kernel_of(self.family, self.times * self.base)


def kernel_of(family: Any, lengthscale: Any) -> Kernel:
    """A kernel of the family, or the kernel that was given.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> kernel_of(Gaussian, 2.0)
    Gaussian(lengthscale=2, variance=1)
    """
    return family if isinstance(family, Kernel) else family(lengthscale=lengthscale)


class Matrices:
    """Kernel matrices among some rows and of others with them, in float32.

    Distances in the last units are kept, and the last result of each thread.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> x = np.array([[0.0], [2.0]])
    >>> among, between = Matrices(x, x[:1]).of(Choice(Gaussian, 1.0, 2.0, 0.1))
    >>> among.shape, between.round(3).tolist()
    ((2, 2), [[1.0, 0.6069999933242798]])
    """

    def __init__(self, rows: np.ndarray, others: np.ndarray) -> None:
        self.rows, self.others = rows, others
        self.known: dict[int, tuple[Distances, Distances]] = {}
        self.last, self.changing = local(), Lock()

    def forget(self) -> None:
        """Let go of what is kept."""
        self.known, self.last = {}, local()

    def of(self, choice: Choice) -> tuple[np.ndarray, np.ndarray]:
        """The matrix among the rows, and that of the others with them."""
        place = (id(choice.family), id(choice.base), choice.times)
        if getattr(self.last, "place", None) != place:
            self.last.found = None  # its room is for the next
            self.last.place, self.last.found = place, self._made(choice)
        return self.last.found

    def _made(self, choice: Choice) -> tuple[np.ndarray, np.ndarray]:
        kernel, unit, times = choice.kernel, choice.base, choice.times
        if not written_out(kernel):
            unit, times = 1.0, 1.0
        elif isinstance(choice.family, Kernel):
            unit, times = np.asarray(kernel.lengthscale, float), 1.0
        kernel = type(kernel)(lengthscale=1.0, variance=kernel.variance) if written_out(kernel) else kernel
        both = self.known.get(id(choice.base))
        if both is None:
            x, y = ((part / unit).astype(np.float32) for part in (self.rows, self.others))
            both = Distances(x), Distances(y, x)
            with self.changing:
                self.known[id(choice.base)] = both
                self.known = dict(list(self.known.items())[-_UNITS:])
        return both[0].kernel(kernel, times), both[1].kernel(kernel, times)
