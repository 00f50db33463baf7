"""The estimate: draw probes and degrees, run the recurrence, make the error bar.

Error bars come from pairs. Degrees are stratified, so that probes in different strata differ systematically and the
plain sample variance is too wide; two units (a probe, or a group of probes that share a degree) in the same stratum are
independent and alike, and their differences estimate the variance of the mean, probes and degrees together:
SE² = Σ (X_a − X_b)² / M², Student's t with M/2 degrees of freedom for M units; and never less than what the degrees
alone are predicted to make of it.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, Int, Key

from thalweg.spectral.gradients import Inputs, Spec, quadratic_forms
from thalweg.spectral.operators import Operator, as_operator
from thalweg.spectral.plan import Plan
from thalweg.spectral.probes import draw_log_uniforms, draw_probes
from thalweg.spectral.recurrence import block_widths

OK, BELOW, ABOVE, NOT_FINITE, BUDGET, ROUNDING = 0, 1, 2, 3, 4, 5

_MEANING = {
    OK: "ok",
    BELOW: "an eigenvalue lies below the interval: the value is void; make a plan with a lower lower end",
    ABOVE: "an eigenvalue lies above the interval: the value is void; make a plan with a higher upper end",
    NOT_FINITE: "the value is not finite: a product with A was not",
    BUDGET: "the budget of products ended before the tolerance was met; the error bar says how far it got",
    ROUNDING: "the tolerance is below what rounding costs in this precision; the error bar says how far it got",
}


class Estimate(eqx.Module):
    """An estimate of tr f(A) with its error bar; a pytree, whose ``value`` can be differentiated.

    Attributes
    ----------
    value
        The unbiased estimate.
    standard_error
        Its standard error: probes, degrees and rounding.
    degrees_of_freedom
        Of the standard error; infinite for an exact value.
    products
        Products of A with one vector that were spent, those of the plan included where the call made one.
    lower, upper
        The interval used.
    status
        0 if all is well; :attr:`message` says what it means.
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]
    products: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    status: Int[Array, ""]
    degrees_of_freedom: float = eqx.field(static=True)
    advice: str = eqx.field(static=True, default="")

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return a confidence interval of the given level, by Student's t.

        Examples
        --------
        >>> import jax, jax.numpy as jnp
        >>> from thalweg.spectral import logdet
        >>> low, high = logdet(jnp.diag(jnp.linspace(1.0, 2.0, 50)), jax.random.key(0)).interval(0.95)
        >>> bool(low <= high)
        True
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, found {level}")
        half = quantile(level, self.degrees_of_freedom) * self.standard_error
        return self.value - half, self.value + half

    @property
    def message(self) -> str:
        """What the status means, and what to do about it."""
        return " ".join(part for part in (_MEANING[int(self.status)], self.advice) if part)


def quantile(level: float, degrees_of_freedom: float) -> float:
    """The half-width of a two-sided interval, in standard errors."""
    if np.isinf(degrees_of_freedom):
        return float(scipy.stats.norm.ppf(0.5 + 0.5 * level))
    return float(scipy.stats.t.ppf(0.5 + 0.5 * level, degrees_of_freedom))


def estimate(plan: Plan, A: Any, key: Key[Array, ""]) -> Estimate:
    """Estimate tr f(A) by a plan: pure, for use under jit, vmap, grad and jvp.

    Nothing is raised here; look at ``status``. Gradients are those of ``value``: the standard error is held constant.

    Parameters
    ----------
    plan
        From :func:`thalweg.spectral.plan`.
    A
        The operator: the one planned for, or one with other parameters whose spectrum the plan's interval still holds.
    key
        The same key gives the same probes and degrees, whatever A.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from thalweg.spectral import estimate, plan
    >>> A = jnp.diag(jnp.linspace(1.0, 2.0, 50))
    >>> p = plan("log", A, jax.random.key(0))
    >>> values = jax.vmap(lambda key: estimate(p, A, key).value)(jax.random.split(jax.random.key(1), 3))
    >>> bool(jnp.allclose(values, jnp.sum(jnp.log(jnp.linspace(1.0, 2.0, 50))), rtol=1e-2))
    True
    """
    operator = as_operator(A, plan.dimension)
    if operator.dimension != plan.dimension:
        raise ValueError(f"A has dimension {operator.dimension}, the plan was made for {plan.dimension}")
    operator.check_closed()
    return _estimate(plan, operator, key)


@eqx.filter_jit
def _estimate(plan: Plan, operator: Operator, key: Key[Array, ""]) -> Estimate:
    dtype = plan.tables.weights.dtype
    probe_key, degree_key, second_key = jax.random.split(key, 3)
    probes = draw_probes(plan.probe, probe_key, plan.dimension, plan.units, plan.group, dtype)
    degrees = _draw_degrees(plan, degree_key, dtype)
    second = _draw_degrees(plan, second_key, dtype) if plan.form == "inverse" else degrees
    spread = lambda n: jnp.repeat(n, plan.group)
    stride = 2 if operator.kind == "sparse" else 1
    spec = Spec(
        operator.multiply, block_widths(plan.units, plan.group), plan.form, plan.gradient, plan.precision, stride
    )
    constants = jax.lax.stop_gradient((operator.data, plan.tables, plan.preconditioner))
    forms = quadratic_forms(spec, operator.theta, Inputs(*constants, probes, spread(degrees), spread(second)))
    control = plan.control[degrees]
    squares = forms.squares.reshape(plan.units, plan.group)
    units = jnp.mean(forms.values.reshape(plan.units, plan.group), axis=1) - control * jnp.mean(squares, axis=1)
    # The control variate does not depend on θ: it shifts the value and leaves the derivative alone.
    value = plan.offset + forms.mean + jax.lax.stop_gradient(jnp.mean(units) - forms.mean)
    pairs = jax.lax.stop_gradient(units).reshape(plan.units // 2, 2)
    variance = jnp.sum((pairs[:, 0] - pairs[:, 1]) ** 2) / plan.units**2
    # Where probes hardly vary (A is nearly diagonal) a pair differs only if its degrees do, which is rare.
    variance = jnp.maximum(variance, jax.lax.stop_gradient(plan.least_variance))
    error = jnp.sqrt(variance + jax.lax.stop_gradient(plan.rounding) ** 2)
    status = jnp.where(forms.outside > 0, ABOVE, jnp.where(forms.outside < 0, BELOW, OK))
    status = jnp.where(jnp.isfinite(value), status, jnp.where(status == OK, NOT_FINITE, status))
    return Estimate(
        value=value,
        standard_error=error,
        products=forms.products,
        lower=jnp.asarray(plan.lower, dtype),
        upper=jnp.asarray(plan.upper, dtype),
        status=status,
        degrees_of_freedom=plan.units / 2,
    )


def _draw_degrees(plan: Plan, key: Key[Array, ""], dtype: Any) -> Int[Array, " units"]:
    """n = #{j ≥ 1 : S_j > u}, u stratified."""
    logs = draw_log_uniforms(key, plan.units, dtype)
    return jnp.searchsorted(-plan.log_survival[1:], -logs, side="left")
