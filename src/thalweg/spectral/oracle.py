"""Spectral sums as gradient oracles: SGD and SVRG (Algorithms 1 and 2 of the paper) need no more code."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree, Scalar

from thalweg.linalg.operators.base import Operator
from thalweg.oracles.base import Oracle, Out, differentiate
from thalweg.spectral.estimate import Plan
from thalweg.spectral.exact import exact_sum
from thalweg.spectral.plan import plan as make_plan

__all__ = ["SpectralOracle"]


class _Options(dict):
    """The options of a plan, which do not tell oracles apart: those that differ in them alone share their programs."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Options)


class SpectralOracle(Oracle):
    """Unbiased gradients of tr f(A(θ)) + g(θ), problem (4) of the paper.

    The plan is part of the oracle: interval, coefficients, law and preconditioner are the same for every θ, and the
    same key gives the same probes and degrees, so that SVRG's two gradients share all their randomness. The interval
    must hold the spectrum wherever θ goes: make it with ``slack``, or make a new oracle with :meth:`replanned` now and
    then. Where an eigenvalue is found outside, the gradient is NaN: never a number.

    Parameters
    ----------
    f
        See :func:`thalweg.spectral.spectral_sum`.
    operator
        ``operator(theta) -> Operator``: a function, or a module whose arrays are then arguments of what is compiled.
    theta
        Where the plan is made.
    key
        For the plan.
    g
        The rest of the objective, ``g(theta) -> scalar``, differentiated exactly: a function or a module.
    **options
        Those of :func:`thalweg.spectral.plan`; ``slack`` is 1.5 and ``gradient`` is ``"series"`` unless given.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from thalweg.spectral import FunctionOperator
    >>> scaled = lambda theta: FunctionOperator(lambda t, v: t[:, None] * v, theta, dimension=3)
    >>> oracle = SpectralOracle("log", scaled, np.array([1.0, 2.0, 4.0]), jax.random.key(0), probes=4)
    >>> out, _ = oracle.estimate(np.array([1.0, 2.0, 4.0]), (), jax.random.key(1))
    >>> bool(np.allclose(out.gradient, np.array([1.0, 0.5, 0.25]), atol=0.1))
    True
    """

    plan: Plan
    functions: PyTree[Array]
    """The arrays of A(θ) and g(θ), if they are modules: arguments of compiled programs."""
    frames: tuple[Any, Any] = eqx.field(static=True)
    options: _Options = eqx.field(static=True)

    def __init__(
        self,
        f: Callable[[Any], Any] | str,
        operator: Callable[[Any], Operator],
        theta: PyTree[Array],
        key: Key[Array, ""],
        *,
        g: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        settings: dict[str, Any] = {"slack": 1.5, "gradient": "series", **options}
        self.plan = make_plan(f, operator(theta), key, **settings)
        self.functions, self.frames = eqx.partition((operator, g), eqx.is_array)
        self.options = _Options(options)

    @property
    def operator(self) -> Callable[[Any], Operator]:
        """A(θ)."""
        return eqx.combine(self.functions, self.frames)[0]

    @property
    def g(self) -> Callable[[Any], Any] | None:
        """The rest of the objective."""
        return eqx.combine(self.functions, self.frames)[1]

    def rest(self, theta: PyTree[Array]) -> Any:
        """Return g(θ), 0 without g."""
        return 0.0 if self.g is None else self.g(theta)

    def replanned(self, theta: PyTree[Array], key: Key[Array, ""], **changes: Any) -> "SpectralOracle":
        """Return the same oracle with a plan made at another θ, by the same options but for the ``changes``."""
        return SpectralOracle(self.plan.f, self.operator, theta, key, g=self.g, **{**self.options, **changes})

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Estimate value and gradient at ``x``; work counts products with A."""

        def objective(theta: PyTree[Array]) -> tuple[Array, Any]:
            result = self.plan.estimate(self.operator(theta), key)
            return result.value + self.rest(theta), (result.status, result.products)

        (value, (status, products)), gradient = jax.value_and_grad(objective, has_aux=True)(x)
        void = lambda leaf: jnp.where(status == 0, leaf, jnp.nan)
        return Out(jax.tree.map(void, gradient), void(value), products), state

    def value(self, x: PyTree[Array]) -> Scalar:
        """Evaluate the objective exactly, by a factorisation of the dense matrix."""
        return exact_sum(self.plan.f, self.operator(x)).value + self.rest(x)

    def full(self, x: PyTree[Array]) -> Out:
        """Return value and exact gradient at ``x``, by a factorisation of the dense matrix; work is its dimension."""
        return differentiate(self.value, x, float(self.plan.dimension))
