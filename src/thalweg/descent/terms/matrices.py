"""Terms on matrices: PSD cone, spectral box, nuclear norm, rank. Leading axes hold independent matrices."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from thalweg.arguments import number, whole
from thalweg.descent.terms.base import Indicator, Leafwise
from thalweg.descent.terms.boxes import check_order
from thalweg.descent.terms.norms import Multiple

__all__ = ["NuclearNorm", "PSDCone", "Rank", "SpectralBox"]


def _transpose(x: Array) -> Array:
    return jnp.swapaxes(x, -1, -2)


def _map_singular_values(x: Array, change: Any) -> Array:
    left, values, right = jnp.linalg.svd(x, full_matrices=False)
    return jnp.matmul(left * change(values)[..., None, :], right, precision="highest")


class SpectralBox(Indicator):
    """The symmetric matrices with all eigenvalues in [lower, upper], for each leaf.

    The projection takes the symmetric part and clips its eigenvalues.

    Parameters
    ----------
    lower, upper
        Numbers, possibly infinite.

    Examples
    --------
    >>> SpectralBox(0.0, 1.0).indicator
    True
    """

    axes: ClassVar[int] = 2
    square: ClassVar[bool] = True
    factorises: ClassVar[bool] = True
    fitting: ClassVar[tuple[str, ...]] = ("lower", "upper")

    lower: Any = eqx.field(converter=partial(number, "lower of SpectralBox", finite=False))
    upper: Any = eqx.field(converter=partial(number, "upper of SpectralBox", finite=False))

    def __check_init__(self) -> None:
        check_order("SpectralBox", self.lower, self.upper)

    def project_leaf(self, leaf: Array, lower: Array, upper: Array) -> Array:
        """Clip the eigenvalues of the symmetric part; the result is symmetric to the last bit."""
        values, vectors = jnp.linalg.eigh(leaf / 2 + _transpose(leaf) / 2, symmetrize_input=False)
        clipped = vectors * jnp.clip(values, lower, upper)[..., None, :]
        # GPUs would otherwise multiply in reduced precision, which is not feasible to rounding.
        product = jnp.matmul(clipped, _transpose(vectors), precision="highest")
        return product / 2 + _transpose(product) / 2


class PSDCone(SpectralBox):
    """The symmetric positive semi-definite matrices, for each leaf.

    The projection takes the symmetric part and sets its negative eigenvalues to 0.

    Examples
    --------
    >>> import numpy as np
    >>> PSDCone().prox(np.diag([2.0, -1.0]), 1.0)
    Array([[2., 0.],
           [0., 0.]], dtype=float...)
    """

    def __init__(self) -> None:
        super().__init__(0.0, jnp.inf)


class NuclearNorm(Multiple, Leafwise):
    """h(x) = weight·Σσ(x), the sum of the singular values of each leaf, summed over the leaves.

    The prox soft-thresholds the singular values at step·weight.

    Parameters
    ----------
    weight
        A number.

    Examples
    --------
    >>> import numpy as np
    >>> NuclearNorm(1.0).prox(np.diag([3.0, 0.5]), 1.0)
    Array([[2., 0.],
           [0., 0.]], dtype=float...)
    """

    axes: ClassVar[int] = 2
    factorises: ClassVar[bool] = True

    def leaf_value(self, leaf: Array, weight: Array) -> Array:
        """weight·σ(x)."""
        return weight * jnp.linalg.svd(leaf, compute_uv=False)

    def leaf_prox(self, leaf: Array, step: Array, weight: Array) -> Array:
        """Soft-threshold the singular values."""
        return _map_singular_values(leaf, lambda values: jnp.maximum(values - step * weight, 0))


class Rank(Indicator):
    """The matrices of rank at most k, for each leaf. The set is not convex.

    The projection keeps the k largest singular values; where the k-th and the next are equal it is one of
    several nearest points.

    Parameters
    ----------
    rank
        k, a positive integer. A leaf with fewer rows or columns than k is left as it is.

    Examples
    --------
    >>> Rank(2).convex, Rank(2).factorises
    (False, True)
    """

    axes: ClassVar[int] = 2
    factorises: ClassVar[bool] = True
    # The mean of two matrices of rank k may have rank 2k.
    convex: ClassVar[bool] = False

    rank: int = eqx.field(static=True, converter=partial(whole, "rank of Rank"))

    def project_leaf(self, leaf: Array) -> Array:
        """Keep the largest singular values."""
        if self.rank >= min(leaf.shape[-2:]):
            return leaf
        kept = jnp.arange(min(leaf.shape[-2:])) < self.rank
        return _map_singular_values(leaf, lambda values: jnp.where(kept, values, 0))
