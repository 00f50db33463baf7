"""What KL-proximal steps are compared with: gradients in (m, L), V = LLᵀ, and the proximal-point method.

Gradient descent, SGD and the adaptive methods know no geometry. They move the mean and the Cholesky factor of the
covariance, λ = {m, L}, along the gradient of the whole bound (Khan et al. 2016, appendix G)::

    minimize(NegativeBound(likelihood, K), Factored.prior(K), step=optax.adam(0.25), key=…)

The proximal-point method takes its step with f itself where the proximal-gradient method takes it with f made
linear (their section 4)::

    minimize(ProximalPoint(likelihood, term, divergence, size, inner=20), x0, term=term, divergence=divergence,
             step=size)
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number, whole
from thalweg.descent.terms import Term
from thalweg.gaussian import ExpectedLikelihood, Full, GaussianKL, Marginals
from thalweg.gaussian.posteriors import inverse
from thalweg.oracles.base import Oracle, Out


class Factored(NamedTuple):
    """N(mean, LLᵀ), ``factor`` the lower triangular L; what is above its diagonal is ignored, and has gradient zero.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> q = Factored.prior(jnp.array([[4.0, 2.0], [2.0, 2.0]]))
    >>> q.factor
    Array([[2., 0.],
           [1., 1.]], dtype=float...)
    """

    mean: Float[Array, " n"]
    factor: Float[Array, "n n"]

    @classmethod
    def prior(cls, covariance: Float[Array, "n n"]) -> "Factored":
        """N(0, covariance)."""
        factor = jnp.linalg.cholesky(covariance)
        return cls(jnp.zeros(factor.shape[0], factor.dtype), factor)

    def marginals(self, indices: Int[Array, " b"] | None = None) -> Marginals:
        """Of all inputs, or of those with the given indices."""
        factor = jnp.tril(self.factor)
        rows = factor if indices is None else factor[indices]
        return Marginals(self.mean if indices is None else self.mean[indices], jnp.sum(rows**2, axis=1))

    def kl_to_prior(self, prior_factor: Float[Array, "n n"]) -> Scalar:
        """KL[self ‖ N(0, K)] = ½(‖R⁻¹L‖² + ‖R⁻¹m‖² − n) + log|R| − log|L|, R the Cholesky factor of K."""
        both = jnp.concatenate([jnp.tril(self.factor), self.mean[:, None]], axis=1)
        whitened = solve_triangular(prior_factor, both, lower=True)
        # The sign of a column of L does not matter, and a long step may change it.
        log_ratio = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(prior_factor) / jnp.diagonal(self.factor))))
        return (jnp.sum(whitened**2) - self.mean.shape[0]) / 2 + log_ratio


class NegativeBound(Oracle):
    """−ELBO = −Σ E log p(y_n|z_n) + KL[q ‖ N(0, K)] of a :class:`Factored` posterior, and its gradient in (m, L).

    Parameters
    ----------
    likelihood
        The first sum, without a design; its batches and samples are the noise here, the KL is exact.
    covariance
        K.

    Examples
    --------
    >>> from thalweg.gaussian import GaussianNoise
    >>> bound = NegativeBound(ExpectedLikelihood(GaussianNoise(1.0), jnp.zeros(1)), jnp.eye(1))
    >>> round(float(bound.value(Factored.prior(jnp.eye(1)))), 4)  # (1 + log 2π)/2
    1.4189
    """

    likelihood: ExpectedLikelihood
    prior_factor: Float[Array, "n n"]
    prior_precision: Float[Array, "n n"]

    def __init__(self, likelihood: ExpectedLikelihood, covariance: Float[Array, "n n"]) -> None:
        self.likelihood = likelihood
        self.prior_factor = jnp.linalg.cholesky(covariance)
        self.prior_precision = inverse(covariance)

    @property
    def deterministic(self) -> bool:
        """Whether the likelihood's gradient is exact."""
        return self.likelihood.deterministic

    @property
    def fixed_work(self) -> float:
        """Examples per estimate."""
        return self.likelihood.fixed_work

    def init(self, x: PyTree[Array]) -> PyTree:
        """That of the likelihood."""
        return self.likelihood.init(x)

    def value(self, x: Factored) -> Scalar:
        """−ELBO by quadrature over all examples."""
        return self.likelihood.value(x) + x.kl_to_prior(self.prior_factor)

    def full(self, x: Factored) -> Out:
        """Value and gradient over all examples, by quadrature."""
        return self._with_prior(x, self.likelihood.full(x))

    def estimate(self, x: Factored, state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Value and gradient, the likelihood's part from a batch and from samples as it says."""
        out, state = self.likelihood.estimate(x, state, key)
        return self._with_prior(x, out), state

    def _with_prior(self, x: Factored, out: Out) -> Out:
        # One product with K⁻¹, where derivatives of the KL would solve with its factor twice in every step.
        factor, diagonal = jnp.tril(x.factor), jnp.diagonal(x.factor)
        pulls = Factored(self.prior_precision @ x.mean, jnp.tril(self.prior_precision @ factor))
        log_ratio = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.prior_factor) / diagonal)))
        value = (jnp.vdot(x.mean, pulls.mean) + jnp.vdot(factor, pulls.factor) - len(diagonal)) / 2 + log_ratio
        slope = pulls._replace(factor=pulls.factor - jnp.diag(1 / diagonal))
        return out._replace(gradient=trees.add(out.gradient, slope), value=out.value + value)


class ProximalPoint(Oracle):
    """∇f at the proximal point argmin f + h + D(· ‖ x)/β instead of at x, found by ``inner`` iterations.

    A step of size β with this gradient leads to the proximal point, where one with ∇f(x) leads to the minimiser of
    its linear model: each inner iteration is a proximal-gradient step from x with the gradient at the last one's end.
    They converge where β is small enough for proximal-gradient steps themselves to converge.

    Parameters
    ----------
    oracle
        f; exact.
    term, divergence, size
        h, D and β, as they are given to the iteration.
    inner
        How many iterations; 1 is the proximal-gradient method.

    Examples
    --------
    >>> from thalweg.gaussian import GaussianNoise, KLToProcess
    >>> f, h = ExpectedLikelihood(GaussianNoise(1.0), jnp.zeros(1)), KLToProcess(jnp.eye(1))
    >>> ProximalPoint(f, h, GaussianKL(), 0.5, inner=3).deterministic
    True
    """

    oracle: Oracle
    term: Term
    divergence: GaussianKL
    size: Array
    inner: int = eqx.field(static=True)

    def __init__(self, oracle: Oracle, term: Term, divergence: GaussianKL, size: Any, inner: int = 20) -> None:
        if not oracle.deterministic:
            raise ValueError(f"oracle of ProximalPoint must be exact, found a noisy {type(oracle).__name__}")
        self.oracle, self.term, self.divergence = oracle, term, divergence
        self.size, self.inner = number("size of ProximalPoint", size, above=0), whole("inner", inner)

    deterministic: ClassVar[bool] = True

    def value(self, x: PyTree[Array]) -> Scalar:
        """f(x)."""
        return self.oracle.value(x)

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """f(x), the gradient at the proximal point in the coordinates of x, and the work of all iterations."""
        first = self.oracle.full(x)

        def iterate(_: Any, gradient: PyTree) -> PyTree:
            ahead = self.divergence.step(x, gradient, self.size, self.term)
            return self._seen_from(x, ahead, self.oracle.full(ahead).gradient)

        gradient = jax.lax.fori_loop(1, self.inner, iterate, first.gradient)
        return Out(gradient, first.value, self.inner * first.work), state

    def _seen_from(self, x: Any, ahead: Any, gradient: Any) -> Any:
        """(α, Γ/2) at x of the function linear in (m, V + mmᵀ) with the given gradient ahead: ∇_μ f = (α − Γm, Γ/2)."""
        if self.divergence.coordinates == "moments":
            return gradient
        back = x.mean - ahead.mean
        turned = gradient.covariance @ back if isinstance(x, Full) else gradient.variance * back
        return gradient._replace(mean=gradient.mean + 2 * turned)
