"""The baselines of Khan et al. (2016), appendix G, as steps for ``minimize``: (89) to (100)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

EPSILON = 1e-8
"""ε of the adaptive methods, from the code that the authors published."""


class AdadeltaState(NamedTuple):
    """The running means of squared gradients, s of (94), and of squared steps, δ of (96)."""

    squares: PyTree[Array]
    steps: PyTree[Array]


def adadelta(rate: float, decay: float, eps: float = EPSILON) -> optax.GradientTransformation:
    """Return Adadelta as in (94) to (96): δ accumulates the steps as they are taken, α₀ included.

    Optax's accumulates them without α₀. Where α₀ is not 1 the two are different methods.

    Examples
    --------
    >>> step, state = adadelta(0.5, 0.9).update(jnp.ones(1), adadelta(0.5, 0.9).init(jnp.ones(1)))
    >>> bool(jnp.allclose(state.steps, 0.1 * step**2))
    True
    """

    def init(x: PyTree[Array]) -> AdadeltaState:
        zeros = jax.tree.map(jnp.zeros_like, x)
        return AdadeltaState(zeros, zeros)

    def accumulate(sums: PyTree[Array], values: PyTree[Array]) -> PyTree[Array]:
        return jax.tree.map(lambda old, value: decay * old + (1 - decay) * value**2, sums, values)

    def update(
        gradient: PyTree[Array], state: AdadeltaState, x: PyTree[Array] = None
    ) -> tuple[PyTree[Array], AdadeltaState]:
        squares = accumulate(state.squares, gradient)
        scaled = lambda g, s, d: -rate * jnp.sqrt((d + eps) / (s + eps)) * g
        steps = jax.tree.map(scaled, gradient, squares, state.steps)
        return steps, AdadeltaState(squares, accumulate(state.steps, steps))

    return optax.GradientTransformation(init, update)


def optimizers(settings: Any) -> dict[str, optax.GradientTransformation]:
    """Return the five optimisers of Figure 2, with (α₀, κ or ρ) of a column of Table 1."""
    rate, power = settings.sgd
    return {
        "SGD": optax.sgd(lambda count: rate * (count + 1.0) ** -power),
        "AdaGrad": optax.adagrad(settings.adagrad, initial_accumulator_value=0.0, eps=EPSILON),
        "RMSprop": optax.rmsprop(settings.rmsprop[0], decay=settings.rmsprop[1], eps=EPSILON),
        "Adadelta": adadelta(*settings.adadelta),
        "Adam": optax.adam(settings.adam, eps=EPSILON),
    }
