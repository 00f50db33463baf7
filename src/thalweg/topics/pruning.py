"""Fewer topics out of many, by leaving out those that the others can do without.

Anchor words miss some topics and find others twice. With more topics than asked for, hardly any is missed; after a few
passes, one that was found twice, or that is a mixture of others, is told by its words: a mixture of the other topics
gives them almost the same probabilities.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

_FIRST, _MORE = 40, 10
"""Steps of EM for the mixtures, at first and after one topic was left out."""
_UNIGRAM = 0.01
"""How much of each topic is what all write, so that no word is impossible."""


def pruned(words: Float[np.ndarray, "v m"], topics: int) -> Float[np.ndarray, "v k"]:
    """How often each of ``topics`` topics wrote each word, those left out that lose least.

    What is lost with a topic is the log-likelihood of its words if the best mixture of the others had written them.

    Examples
    --------
    The second topic is a mixture of the first and the third:

    >>> pruned(np.array([[9.0, 5.0, 0.0], [1.0, 3.0, 4.0], [0.0, 2.0, 4.0]]), 2).T
    array([[9., 1., 0.],
           [0., 4., 4.]])
    """
    shared = words.sum(axis=1, keepdims=True) / max(words.sum(), 1e-30)
    totals = np.maximum(words.sum(axis=0), 1e-30)
    chances = np.maximum((1 - _UNIGRAM) * words / totals + _UNIGRAM * shared, 1e-30)
    chances, totals = (jnp.asarray(part, jnp.float32) for part in (chances, totals))
    kept = _kept(chances, totals, words.shape[1] - topics)
    return words[:, np.asarray(kept)]


@jax.jit
def _kept(chances: Float[Array, "v m"], totals: Float[Array, " m"], surplus: Array | int) -> Array:
    """Which topics stay if ``surplus`` of them go, one after another."""
    count = len(totals)

    def better(_: Array, weights: Array) -> Array:
        return weights * (chances.T @ (chances / jnp.maximum(chances @ weights, 1e-30)))

    def without(gone: Array, weights: Array) -> Array:
        """Mixtures of topics that are left, other than the topic itself."""
        allowed = ~gone[:, None] & ~jnp.eye(count, dtype=bool)
        weights = jnp.where(allowed, weights + 1e-6, 0)
        return weights / jnp.maximum(jnp.sum(weights, axis=0, keepdims=True), 1e-30)

    def one(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        gone, weights = state
        mixed = jnp.maximum(chances @ weights, 1e-30)
        lost = totals * jnp.sum(chances * jnp.log(chances / mixed), axis=0)
        gone = gone | (jnp.arange(count) == jnp.argmin(jnp.where(gone, jnp.inf, lost)))
        return gone, lax.fori_loop(0, _MORE, better, without(gone, weights))

    none = jnp.zeros(count, bool)
    weights = without(none, jnp.full((count, count), 1 / count, chances.dtype))
    weights = lax.fori_loop(0, _FIRST, better, weights)
    return ~lax.fori_loop(0, surplus, one, (none, weights))[0]
