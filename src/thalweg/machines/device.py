"""Squares of some thousand rows on a device, where a factor of their kernel matrix is made in a few milliseconds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.kernels.distances import squared_distances
from thalweg.machines.dense import MOST
from thalweg.machines.learners import in_precision
from thalweg.machines.losses import SquaredLoss
from thalweg.machines.methods import Settings


def squares_on_device(settings: Settings) -> bool:
    """Whether trials are squares that are solved here.

    Examples
    --------
    >>> squares_on_device(Settings(loss=SquaredLoss())) == (jax.default_backend() != "cpu")
    True
    """
    return settings.method.visits and settings.loss.quadratic and jax.default_backend() != "cpu"


def soon_tried(rows: int, settings: Settings) -> bool:
    """Whether families of kernels and units of features are found by trials alone.

    Fewer rows have fewer to spare for a slice.

    Examples
    --------
    >>> soon_tried(2000, Settings(loss=SquaredLoss()))
    False
    """
    told = settings.loss.by_squares and not settings.loss.robust
    return rows > MOST and told and settings.metric != "diagonal" and squares_on_device(by_squares(settings))


def by_squares(settings: Settings) -> Settings:
    """The settings with squares for the loss.

    Examples
    --------
    >>> from thalweg.machines import LogisticLoss
    >>> by_squares(Settings(loss=LogisticLoss())).loss
    SquaredLoss()
    """
    return replace(settings, loss=SquaredLoss())


class Squares:
    """Kernel ridge regression of some rows, judged on others, all of them on a device and in float64.

    Parameters
    ----------
    families
        Of kernels that there may be, or a kernel: one program serves them all.
    rows, others
        Features.
    known, truth
        Targets of either, and their weights.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> x, y = np.array([[0.0], [3.0]]), (np.array([[1.0], [0.0]]), np.ones(2))
    >>> found = Squares((Gaussian,), x, x, y, y).solve(Gaussian, 1.0, 0.1, 1.0)  # rows that hardly know each other
    >>> [np.asarray(part).round(6).ravel().tolist() for part in found]
    [[0.5, -0.0], [0.5, 0.0], [0.0625]]
    """

    def __init__(
        self,
        families: Sequence[Any],
        rows: Float[np.ndarray, "n d"],
        others: Float[np.ndarray, "m d"],
        known: tuple[np.ndarray, np.ndarray],
        truth: tuple[np.ndarray, np.ndarray],
    ) -> None:
        self.families, self.rows, self.others = families, rows, others
        self._placed = dict[int, Any]()
        with jax.enable_x64(True):
            kernels = tuple(family if isinstance(family, Kernel) else family() for family in families)
            self._kernels = in_precision(kernels, np.float64)
            both = lambda parts: tuple(jnp.asarray(np.asarray(part, float)) for part in parts)
            self._known, self._truth = both(known), both(truth)

    def solve(self, family: Any, unit: Any, times: float, alpha: float) -> tuple[Array, Array, Array]:
        """Weights of the rows, values at the others and the mean loss there, all of which may still be on their way.

        Of a kernel that is given, or of one of the family with a multiple of a unit as its lengthscale.
        """
        with jax.enable_x64(True):
            if id(unit) not in self._placed:
                self._placed[id(unit)] = unit, jnp.asarray(self.rows / unit), jnp.asarray(self.others / unit)
            _, x, others = self._placed[id(unit)]
            told = np.array([self.families.index(family), 1.0 if isinstance(family, Kernel) else times, alpha])
            return _solved(self._kernels, x, self._known, told, others, self._truth)


@quick_jit(lambda *_: False, tuned=False)
def _solved(
    kernels: tuple[Kernel, ...],
    x: Float[Array, "n d"],
    known: tuple[Float[Array, "n c"], Float[Array, " n"]],
    told: Float[Array, "3"],
    others: Float[Array, "m d"],
    truth: tuple[Float[Array, "m c"], Float[Array, " m"]],
) -> tuple[Float[Array, "n c"], Float[Array, "m c"], Scalar]:
    """W = (K + alpha/weights)⁻¹ y, f = k(others, x) W, and the mean of ‖f − truth‖²/2.

    Which of the kernels, the multiple of the lengthscale and alpha are one array, which is sent at once.
    """
    (which, times, alpha), (y, weights) = told, known
    x, others = x / times, others / times
    among, between = (_matrix(kernels, which.astype(int), *pair) for pair in ((x, None), (others, x)))
    factor = jax.scipy.linalg.cho_factor(among + jnp.diag(alpha / weights), lower=True)
    found = jax.scipy.linalg.cho_solve(factor, y)
    values = jnp.matmul(between, found, precision="highest")
    return found, values, jnp.average(jnp.sum((values - truth[0]) ** 2, axis=1) / 2, weights=truth[1])


def _matrix(kernels: tuple[Kernel, ...], which: Array, x: Array, y: Array | None) -> Array:
    """That of one kernel; those of lengthscale 1 share their distances."""
    if len(kernels) == 1:
        return kernels[0](x, y)
    profiles = [lambda squares, kernel=kernel: kernel.variance * kernel.profile(squares) for kernel in kernels]
    return jax.lax.switch(which, profiles, squared_distances(x, y, jnp.ones((), x.dtype)))
