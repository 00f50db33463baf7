"""E log p(y|z) under z ~ N(m, v), with the gradients that a variational step needs.

All of them are called as ``expectation(likelihood, y, m, v, key)`` and return :class:`Expected`. For f = −E log p, the
gradients are α = ∇_m f = −``first`` and γ = 2∇_v f = −``second``.

=========================  ========================================================================================
:class:`Quadrature`        deterministic and accurate to about 1e-9 in float64; the default choice
:class:`MonteCarlo`        unbiased, from derivatives of log p at samples
:class:`ScoreSamples`     unbiased, from values of log p alone, and noisier; what the paper on PG-SVI uses
=========================  ========================================================================================
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg.arguments import flag, random_key, whole
from thalweg.gaussian.likelihood import Likelihood, Reals, aligned, expected_on_host
from thalweg.gaussian.special import Expected
from thalweg.linalg import namespace

__all__ = ["Expectation", "MonteCarlo", "Quadrature", "ScoreSamples"]


class Expectation(eqx.Module):
    """Base class of the ways to compute E log p; a subclass must define ``__call__``.

    Examples
    --------
    >>> [way.deterministic for way in (Quadrature(), MonteCarlo(10))]
    [True, False]
    """

    deterministic: ClassVar[bool] = False
    """Whether the key is ignored."""

    def __call__(
        self, likelihood: Likelihood, y: Reals, m: Reals, v: Reals, key: Key[Array, ""] | None = None
    ) -> Expected:
        """E log p(y|z) and its derivatives, elementwise; the same key gives the same noise, whatever m and v."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(likelihood, y, m, v, key)")


class Quadrature(Expectation):
    """Closed forms where they exist, quadrature that is dense where log p bends elsewhere.

    In float64, ``value``, ``first`` and ``second`` are right to 1e-9 (absolute, or relative where they exceed 1) for
    v up to 1e5, means within ten standard deviations plus 50, and bends at least 0.1 wide. This holds for a user's
    own ``log_prob`` too if it is smooth and grows no faster than a power of z. One that grows like eᶻ needs a closed
    form of its own, an override of :meth:`Likelihood.expected`, where v exceeds 4.

    ``value`` is differentiable in m and v, at no cost beyond ``first`` and ``second``, and in the likelihood's
    parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.gaussian.likelihoods import BernoulliProbit
    >>> y, m, v = np.array([1, 0]), np.array([0.0, 2.0]), np.array([1.0, 1e4])
    >>> expected = Quadrature()(BernoulliProbit(), y, m, v)
    >>> [round(float(value), 2) for value in expected.value]
    [-1.0, -2583.29]
    """

    deterministic: ClassVar[bool] = True

    def __call__(
        self, likelihood: Likelihood, y: Reals, m: Reals, v: Reals, key: Key[Array, ""] | None = None
    ) -> Expected:
        """E log p(y|z) and its derivatives; ``key`` is not used. Of NumPy's arrays they are NumPy's, too."""
        if namespace(y, m, v) is np:
            return expected_on_host(likelihood, y, m, v)
        return _expected(likelihood, *aligned(y, m, v))


def _plain(likelihood: Likelihood, y: Reals, m: Reals, v: Reals) -> Expected:
    return likelihood.expected(y, m, v)


_expected = eqx.filter_custom_jvp(_plain)


@_expected.def_jvp
def _expected_jvp(primals: tuple, tangents: tuple) -> tuple[Expected, Expected]:
    """Bonnet and Price for ``value`` in m and v; automatic differentiation for everything else."""
    likelihood, y, m, v = primals
    of_likelihood, of_y, of_m, of_v = tangents
    expected = _expected(*primals)
    # A computation of its own, so that the compiler drops it where only ``value`` is differentiated.
    _, tangent = eqx.filter_jvp(_plain, primals, tangents)
    value = jnp.zeros_like(m)
    if jax.tree.leaves((of_likelihood, of_y)):
        of_data = lambda likelihood, y: _plain(likelihood, y, m, v)
        _, of_parameters = eqx.filter_jvp(of_data, (likelihood, y), (of_likelihood, of_y))
        value += of_parameters.value
    if of_m is not None:
        value += expected.first * of_m
    if of_v is not None:
        value += expected.second / 2 * of_v
    return expected, tangent._replace(value=value)


class _Sampled(Expectation):
    """Expectations from samples z = m + √v·ε."""

    average: ClassVar[Callable[..., Expected]]
    """``average(likelihood, y, z, v, normals)`` is the mean over samples z, made of these normals ε."""

    samples: int = eqx.field(static=True, converter=partial(whole, "samples"))
    shared: bool = eqx.field(static=True, default=False, kw_only=True, converter=partial(flag, "shared"))

    def __call__(
        self, likelihood: Likelihood, y: Reals, m: Reals, v: Reals, key: Key[Array, ""] | None = None
    ) -> Expected:
        """E log p(y|z) and its derivatives, estimated."""
        y, m, v = aligned(y, m, v)
        shape = (1,) * m.ndim if self.shared else m.shape
        normals = jax.random.normal(random_key(f"key of {type(self).__name__}", key), (self.samples, *shape), m.dtype)
        return self.average(likelihood, y[None], m[None] + jnp.sqrt(v)[None] * normals, v, normals)


class MonteCarlo(_Sampled):
    """Means over samples z = m + √v·ε of log p and its first two derivatives: unbiased, all three.

    Parameters
    ----------
    samples
        How many for each element.
    shared
        Whether all elements share one set of normals ε: fewer random numbers, errors that are correlated.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from thalweg.gaussian.likelihoods import BernoulliLogit
    >>> sampled = jax.jit(MonteCarlo(1000))
    >>> expected = sampled(BernoulliLogit(), np.ones(2), np.zeros(2), np.ones(2), jax.random.key(0))
    >>> bool(np.all(abs(np.asarray(expected.first) - 0.5) < 0.05))
    True
    """

    def average(self, likelihood: Likelihood, y: Reals, z: Reals, v: Reals, normals: Reals) -> Expected:
        """Return the means of log p and of its derivatives."""
        return Expected(*(jnp.mean(part, axis=0) for part in likelihood.derivatives(y, z)))


class ScoreSamples(_Sampled):
    """Means of log p(y|z), of log p·ε/√v and of log p·(ε² − 1)/v: unbiased, from values of log p alone.

    These are the estimates of Khan et al. (2016), section 3.2. They need no derivatives, and are much noisier than
    those of :class:`MonteCarlo`, the more so the larger log p or the smaller v. The noise can make ``second`` positive
    even for a log-concave likelihood, so that γ < 0: whoever turns γ into a precision must guard against it.

    Parameters
    ----------
    samples
        How many for each element.
    shared
        Whether all elements share one set of normals ε, as in the code of the paper.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from thalweg.gaussian.likelihoods import BernoulliLogit
    >>> score = jax.jit(ScoreSamples(1000, shared=True))
    >>> expected = score(BernoulliLogit(), np.ones(2), np.zeros(2), np.ones(2), jax.random.key(0))
    >>> bool(np.all(abs(np.asarray(expected.first) - 0.5) < 0.2))
    True
    """

    def average(self, likelihood: Likelihood, y: Reals, z: Reals, v: Reals, normals: Reals) -> Expected:
        """Return the means of log p times functions of the normals."""
        log_prob = likelihood.log_prob(y, z)
        mean = lambda factor: jnp.mean(log_prob * factor, axis=0)
        return Expected(jnp.mean(log_prob, axis=0), mean(normals) / jnp.sqrt(v), mean(jnp.square(normals) - 1) / v)
