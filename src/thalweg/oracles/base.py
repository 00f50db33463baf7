"""The gradient oracle ĝ: the contract that descent and every oracle stand on.

An oracle answers one question, "what is the gradient at x, roughly, and what did it cost to find out?".
It is a pytree (an :class:`equinox.Module`): its arrays travel through ``jit`` as arguments, so data are never
baked into compiled code.

The one law
-----------
The same ``(state, key)`` gives the same noise, whatever ``x``. Variance reduction, common random numbers,
reproducibility and the tests rest on it.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree, Scalar
from scipy.sparse import issparse

from thalweg import arguments, trees

__all__ = ["Exact", "Oracle", "Out"]


class Out(NamedTuple):
    """What an oracle returns: an unbiased gradient, the value where it comes for free, and the work done.

    ``value`` is NaN where the oracle has none. ``work`` counts examples, matrix products or features, so that
    histories can be plotted against it.

    Examples
    --------
    >>> Out(gradient=1.0, value=2.0, work=3.0).work
    3.0
    """

    gradient: PyTree[Array]
    value: Scalar
    work: Scalar


def differentiate(function: Callable[[PyTree[Array]], Scalar], x: PyTree[Array], work: float) -> Out:
    """Return value and gradient of a function at ``x``, with the work that it counts for."""
    value, gradient = jax.value_and_grad(function)(x)
    return Out(gradient, value, jnp.asarray(work))


class Oracle(trees.Part):
    """Base class of gradient oracles; a subclass must define :meth:`estimate`.

    ``value(x)`` and ``full(x)`` are optional: an oracle that can afford them defines them, the others leave
    them ``None``. Backtracking needs ``value``; SVRG needs ``full`` of the oracle it wraps. ``period`` is the
    number of steps between two calls of :meth:`renew`, or ``None`` if the oracle has no outer loop.

    Examples
    --------
    >>> Exact(lambda x: x**2).deterministic
    True
    """

    deterministic: ClassVar[Any] = False
    """Whether the key is ignored, so that the gradient is exact."""

    value: ClassVar[Any] = None
    full: ClassVar[Any] = None
    period: ClassVar[Any] = None

    @property
    def vanishing_noise(self) -> bool:
        """Whether the noise goes to zero as the iterates converge, as in variance-reduced methods."""
        return self.deterministic

    def init(self, x: PyTree[Array]) -> PyTree:
        """Return the state to carry from one estimate to the next (an empty tuple by default)."""
        return ()

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Estimate the gradient at ``x``; the same ``(state, key)`` gives the same noise, whatever ``x``."""
        raise NotImplementedError(f"{type(self).__name__} must define estimate(x, state, key)")

    def renew(self, x: PyTree[Array], state: PyTree) -> tuple[PyTree[Array], PyTree]:
        """Close an outer iteration (every ``period`` steps): return the iterate and state to go on from."""
        return x, state


class Exact(Oracle):
    """The exact gradient of a function, by automatic differentiation.

    Parameters
    ----------
    function
        ``function(x, *args) -> scalar``.
    *args
        Further arguments, never differentiated. Pass arrays here rather than closing over them: they are
        then arguments of the compiled step and not constants in it.
    work
        What one evaluation counts for in the history (for a sum over n examples, n).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> oracle = Exact(lambda x, a: jnp.sum(a * x**2), jnp.array([1.0, 3.0]))
    >>> out, _ = oracle.estimate(jnp.ones(2), oracle.init(jnp.ones(2)), jax.random.key(0))
    >>> out.gradient
    Array([2., 6.], dtype=float...)
    """

    # The key is ignored.
    deterministic: ClassVar[bool] = True

    function: Callable[..., Any] = eqx.field(static=True)
    args: tuple
    work: float = eqx.field(static=True)

    def __init__(self, function: Callable[..., Any], *args: Any, work: float = 1.0) -> None:
        self.function = arguments.function("function of Exact", function)
        if sparse := [arg for arg in jax.tree.leaves(args) if issparse(arg)]:
            raise TypeError(
                f"args of Exact must be arrays that JAX multiplies, found SciPy's {type(sparse[0]).__name__}: pass "
                f"jax.experimental.sparse.BCOO.from_scipy_sparse(...) of it"
            )
        self.args = args
        arguments.number("work of Exact", work, least=0)
        self.work = float(work)

    def value(self, x: PyTree[Array]) -> Scalar:
        """Evaluate the function at ``x``."""
        return self.function(x, *self.args)

    def full(self, x: PyTree[Array]) -> Out:
        """Return value and exact gradient at ``x``."""
        return differentiate(self._scalar, x, self.work)

    def _scalar(self, x: PyTree[Array]) -> Scalar:
        value = self.function(x, *self.args)
        if not hasattr(value, "shape") and not isinstance(value, int | float | complex):
            raise TypeError(f"the function must return a scalar, found {value!r}")
        if jnp.shape(value) != ():
            raise ValueError(f"the function must return a scalar, found an array of shape {jnp.shape(value)}")
        return jnp.asarray(value)  # a plain number where nothing depends on x

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Return the exact gradient; ``state`` and ``key`` are not used."""
        return self.full(x), state


def as_oracle(oracle: Oracle | Callable[..., Any]) -> Oracle:
    """Return ``oracle`` itself, or the exact gradient of it if it is a plain function ``x -> scalar``."""
    if isinstance(oracle, Oracle):
        return oracle
    if isinstance(oracle, type):
        raise TypeError(f"oracle must be an instance, found the class {oracle.__name__}; call it first")
    if callable(oracle):
        return Exact(oracle)
    raise TypeError(f"oracle must be an Oracle or a function x -> scalar, found {type(oracle).__name__}")
