"""The likelihood as an oracle: f(q) = −Σ w_n E_q log p(y_n|z_n) and its gradient, exact or from a batch and samples."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg.arguments import instance, numbers, whole
from thalweg.gaussian.expectations import Expectation, Quadrature
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.posteriors import Diagonal, Full, Marginals
from thalweg.oracles.base import Oracle, Out
from thalweg.oracles.minibatch import draw_batch, start_epoch

__all__ = ["ExpectedLikelihood"]


class ExpectedLikelihood(Oracle):
    """∇f for a posterior q, f(q) = −Σ_n w_n E_q log p(y_n|z_n): α_n = −E[(log p)′] and γ_n = −E[(log p)″].

    Parameters
    ----------
    likelihood
        p(y|z).
    targets
        The n targets y.
    design
        For posteriors over weights (:class:`Full`, :class:`Diagonal`): the design X, z = Xw. None for an
        :class:`Implicit` posterior, whose latent numbers are the z_n themselves.
    expectation
        How E log p is computed: :class:`Quadrature` (exact, the default), :class:`MonteCarlo`, :class:`ScoreSamples`.
    batch_size
        Examples per estimate, drawn without replacement, by epochs; None for all of them. Sums are scaled by n/B.
    weights
        Non-negative weights w of the examples; 1 by default.
    examples
        How many of the rows, from the first, batches are drawn from; the rest is padding of weight 0. All by default.
    offset
        The known part of each z: the posterior is over the rest. 0 by default.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from thalweg.gaussian import BernoulliLogit, Implicit
    >>> oracle = ExpectedLikelihood(BernoulliLogit(), np.array([0.0, 1.0]))
    >>> out = jax.jit(ExpectedLikelihood.full)(oracle, Implicit.prior(np.eye(2)))
    >>> out.gradient.mean
    Array([ 0.5, -0.5], dtype=float...)
    """

    likelihood: Likelihood
    targets: Float[Array, " n"]
    design: Float[Array, "n d"] | None
    expectation: Expectation
    weights: Float[Array, " n"] | None
    offset: Float[Array, " n"] | None
    batch_size: int | None = eqx.field(static=True)
    examples: int = eqx.field(static=True)

    def __init__(
        self,
        likelihood: Likelihood,
        targets: Any,
        design: Any = None,
        *,
        expectation: Expectation | None = None,
        batch_size: int | None = None,
        weights: Any = None,
        examples: int | None = None,
        offset: Any = None,
    ) -> None:
        self.likelihood = instance("likelihood", likelihood, Likelihood, "BernoulliLogit()")
        likelihood.check(targets)
        self.targets = jnp.asarray(targets, jnp.result_type(float))
        if self.targets.ndim != 1 or not self.targets.size:
            raise ValueError(f"targets must be a non-empty vector, found shape {self.targets.shape}")
        count = self.targets.shape[0]
        self.design = None if design is None else _of_targets("design", design, count, 2)
        self.weights = None if weights is None else numbers("weights", _of_targets("weights", weights, count), least=0)
        self.offset = None if offset is None else numbers("offset", _of_targets("offset", offset, count))
        self.expectation = instance("expectation", expectation or Quadrature(), Expectation, "Quadrature()")
        self.examples = count if examples is None else whole("examples", examples, most=count)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, most=self.examples)

    @property
    def deterministic(self) -> bool:
        """Whether all examples are used, and no samples."""
        return self.batch_size is None and self.expectation.deterministic

    @property
    def fixed_work(self) -> float:
        """Examples per estimate."""
        return float(self.batch_size or self.examples)

    def init(self, x: PyTree[Array]) -> PyTree:
        """An epoch that is about to begin; nothing where all examples are used."""
        return () if self.batch_size is None else start_epoch(self.examples)

    def value(self, x: PyTree[Array]) -> Scalar:
        """f by quadrature over all examples, whatever the estimates use."""
        expected = Quadrature()(self.likelihood, self.targets, *self._marginals(x)).value
        return -jnp.sum(expected if self.weights is None else self.weights * expected)

    def full(self, x: PyTree[Array]) -> Out:
        """Value and gradient over all examples, by quadrature."""
        return self._out(x, None, Quadrature(), None)

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Value and gradient, from a batch and from samples as asked for."""
        if self.batch_size is None:
            return self._out(x, None, self.expectation, key), state
        batch_key, sample_key = jax.random.split(key)
        indices, state = draw_batch(state, batch_key, self.batch_size)
        return self._out(x, indices, self.expectation, sample_key), state

    def _marginals(self, x: Any, indices: Int[Array, " b"] | None = None) -> Marginals:
        dimension, family, count = x.mean.shape[0], type(x).__name__, self.targets.shape[0]
        if isinstance(x, Full | Diagonal):
            if self.design is None:
                raise ValueError(f"design must be given for a {family} posterior over weights")
            if dimension != self.design.shape[1]:
                raise ValueError(
                    f"design has {self.design.shape[1]} columns, and the {family} posterior is over {dimension}"
                )
            mean, variance = x.marginals(_pick(self.design, indices))
        else:
            if self.design is not None:
                raise ValueError(
                    f"design must be None for the {family} posterior, which is over the examples themselves"
                )
            if dimension != count:
                raise ValueError(f"there are {count} targets, and the {family} posterior is over {dimension}")
            mean, variance = x.marginals(indices)
        return Marginals(mean if self.offset is None else mean + _pick(self.offset, indices), variance)

    def _out(self, x: Any, indices: Any, expectation: Expectation, key: Any) -> Out:
        marginals, pull_back = jax.vjp(lambda x: self._marginals(x, indices), x)
        used = self.examples if indices is None else indices.shape[0]
        factor = self.examples / used
        scale = factor if self.weights is None else factor * _pick(self.weights, indices)
        expected = expectation(self.likelihood, _pick(self.targets, indices), *marginals, key)
        (gradient,) = pull_back(Marginals(-scale * expected.first, -scale * expected.second / 2))
        return Out(gradient, -jnp.sum(scale * expected.value), jnp.asarray(float(used)))


class WeightLikelihood(NamedTuple):
    """f(q) = −Σ w_n E_q log p(y_n|z_n), z = offset + Xu, and its gradient for a posterior q over the weights u.

    Without a design X, q is an :class:`Implicit` posterior over z − offset. It is an exact :class:`ExpectedLikelihood`
    that takes arrays as they are, of NumPy or of JAX.
    """

    likelihood: Likelihood
    targets: Any
    weights: Any
    offset: Any
    design: Any

    def full(self, x: Any) -> Out:
        """Value and gradient."""
        mean, variance = x.marginals(self.design)
        expected = Quadrature()(self.likelihood, self.targets, mean + self.offset, variance)
        gradient = Marginals(-self.weights * expected.first, -self.weights * expected.second / 2)
        work: Any = float(len(self.targets))
        return Out(x.pull_back(self.design, gradient), -(self.weights @ expected.value), work)


def _pick(array: Array, indices: Int[Array, " b"] | None) -> Array:
    return array if indices is None else array[indices]


def _of_targets(name: str, value: Any, count: int, ndim: int = 1) -> Array:
    value = jnp.asarray(value, jnp.result_type(float))
    if value.ndim != ndim or len(value) != count:
        kind = f"vector of {count}" if ndim == 1 else f"matrix of {count} rows"
        raise ValueError(f"{name} must be a {kind}, one for each target, found shape {value.shape}")
    return value
