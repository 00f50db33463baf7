"""A Thalweg descent where Optax expects a transformation. (The other way is :class:`OptaxStep`.)"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import PyTree

from thalweg import trees
from thalweg.descent.divergences import Divergence
from thalweg.descent.iteration import Descent
from thalweg.descent.momentum import Momentum
from thalweg.descent.terms import Term
from thalweg.errors import IncompatiblePartsError
from thalweg.oracles.base import Oracle, Out

__all__ = ["as_optax"]


def as_optax(
    *, step: Any, term: Term | None = None, divergence: Divergence | None = None, momentum: Momentum | None = None
) -> Any:
    """Return a descent as an Optax gradient transformation, updates being x⁺ − x.

    Optax's caller computes the gradient at the parameters, so the gradient cannot be taken elsewhere: Nesterov and
    FISTA are refused, and so are steps that need the function. Everything else that moves in a linear geometry
    works, proximal terms included: ``params + updates`` is then the proximal point.

    Examples
    --------
    Proximal gradient in an Optax loop; the weights become exactly zero where the term says so:

    >>> import jax, numpy as np, optax
    >>> from thalweg.descent import L1, as_optax
    >>> transformation = as_optax(step=0.5, term=L1(0.1))
    >>> params = np.array([1.0, 0.05])
    >>> state = transformation.init(params)
    >>> updates, state = jax.jit(transformation.update)(np.array([0.2, 0.0]), state, params)
    >>> optax.apply_updates(params, updates)
    Array([0.85, 0.  ], dtype=float...)
    """
    import optax  # here, so that those who do not use it need not import it

    # An oracle that is never asked stands in for the gradients that Optax's caller computes.
    descent = Descent(Oracle(), term=term, divergence=divergence, step=step, momentum=momentum)
    if not descent.divergence.linear:
        raise IncompatiblePartsError(
            f"divergence={type(descent.divergence).__name__} has no additive steps, which Optax needs. Use Euclidean, "
            f"DiagonalMetric or MatrixMetric, or thalweg.descent.minimize."
        )
    if descent.momentum.looks_ahead:
        raise IncompatiblePartsError(
            f"momentum={type(descent.momentum).__name__} takes the gradient away from the parameters, but Optax's "
            f"caller takes it there. Use HeavyBall, or thalweg.descent.minimize."
        )

    def update(gradient: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        if params is None:
            raise ValueError("params must be passed to update: a proximal step depends on where it starts")
        state = state._replace(x=params)
        point, centre = descent.momentum.points(params, state.momentum)
        out = Out(gradient, jnp.full((), jnp.nan), jnp.ones(()))
        state, _ = descent.advance(state, point, centre, out, state.oracle)
        return trees.subtract(state.x, params), state

    return optax.GradientTransformation(descent.init, update)
