"""The estimate: draw probes and degrees, run the recurrence, make the error bar.

Error bars come from pairs. Degrees are stratified, so that probes in different strata differ systematically and the
plain sample variance is too wide; two units (a probe, or a group of probes that share a degree) in the same stratum are
independent and identically distributed, and their differences estimate the variance of the mean, probes and degrees
together: SE² = Σ (X_a − X_b)² / M², Student's t with M/2 degrees of freedom for M units; and never less than the
predicted deviation of the degrees alone. The error of a single unit is unknown, and is NaN.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float, Int, Key

from thalweg import arguments
from thalweg.linalg.arrays import scaled_norm
from thalweg.linalg.operators.base import Operator, frozen, is_traced
from thalweg.linalg.operators.convert import as_operator
from thalweg.outcomes import Outcome
from thalweg.spectral.gradients import FormInputs, quadratic_forms
from thalweg.spectral.precondition import Preconditioner
from thalweg.spectral.probes import draw_log_uniforms, draw_probes
from thalweg.spectral.recurrence import Tables

__all__ = ["Estimate", "EstimateStatus", "Plan"]

MAX_COMPARISONS = 2**16
"""Pairs of a table's entry and a uniform number that are all compared, which takes tens of microseconds: a bisection is
a loop, which takes as long as a tenth of the program to compile. Twice as many take twice as long."""


class EstimateStatus(Outcome):
    """How an estimate ended.

    Examples
    --------
    >>> EstimateStatus(1).name, EstimateStatus.BUDGET.advice
    ('BELOW', 'the budget of products ended before the tolerance was met; the error bar says how far it got')
    """

    OK = 0, "ok"
    BELOW = 1, "an eigenvalue lies below the interval: the value is void; make a plan with a lower lower end"
    ABOVE = 2, "an eigenvalue lies above the interval: the value is void; make a plan with a higher upper end"
    NOT_FINITE = 3, "the value is not finite: A is not, or not positive definite where f needs it, or f is too large"
    BUDGET = 4, "the budget of products ended before the tolerance was met; the error bar says how far it got"
    ROUNDING = 5, "rtol or atol is below what rounding costs in this precision; the error bar says how far it got"


class Estimate(eqx.Module):
    """An estimate of tr f(A) with its error bar; a pytree, whose ``value`` can be differentiated.

    Attributes
    ----------
    value
        The unbiased estimate.
    standard_error
        Its standard error: probes, degrees and rounding. NaN where all probes share one degree: nothing tells then.
    degrees_of_freedom
        Of the standard error; infinite for an exact value, 0 where it is unknown.
    products
        Products of A with one vector that were spent, those of the plan included where the call made one.
    lower, upper
        The interval used.
    status
        A :class:`EstimateStatus`, as an integer; 0 if all is well, and :attr:`message` says what it means.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array(1.0)
    >>> estimate = Estimate(one, one, one, one, one, np.array(0), degrees_of_freedom=8.0)
    >>> estimate
    Estimate(1 ± 1, ok)
    >>> low, high = estimate.interval(0.95)
    >>> round(float(high - low), 3)
    4.612
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
        """Return a confidence interval of the given level, by Student's t."""
        level = arguments.real("level", level, above=0, below=1)
        half = quantile(level, self.degrees_of_freedom) if self.degrees_of_freedom else np.nan
        return self.value - half * self.standard_error, self.value + half * self.standard_error

    def __repr__(self) -> str:
        if is_traced(self) or jnp.ndim(self.value):
            return super().__repr__()
        return f"Estimate({float(self.value):.10g} ± {float(self.standard_error):.2g}, {self.message})"

    @property
    def message(self) -> str:
        """What the status means, and what to do about it."""
        return ". ".join(part for part in (self.outcome.advice, self.advice) if part)

    @property
    def outcome(self) -> EstimateStatus:
        """The status as a :class:`EstimateStatus`, outside of compiled code."""
        return EstimateStatus(int(jax.lax.stop_gradient(self.status)))


def add_stored_rounding(error: Any, value: Any, dtype: Any) -> Any:
    """Return the error of a value stored in a dtype, which keeps no more digits than its own."""
    stored = 0.5 * float(jnp.finfo(dtype).eps) * jax.lax.stop_gradient(value)
    return np.hypot(error, stored) if isinstance(value, float) else jnp.hypot(error, stored)


def quantile(level: float, degrees_of_freedom: float) -> float:
    """Return the half-width of a two-sided interval, in standard errors."""
    return float(scipy.special.stdtrit(degrees_of_freedom, 0.5 + 0.5 * level))


class Plan(eqx.Module):
    """A concrete plan for estimates of tr f(A); made by :func:`plan`, and reused for other keys and nearby parameters.

    Attributes
    ----------
    f
        The function.
    lower, upper
        The interval.
    mean_degree
        The mean N of the degree law.
    log_survival
        log S_j of the degree law (padded with −∞).
    control
        The control variate of every degree.
    preconditioner
        The preconditioner, built.
    offset
        The part of the sum that the preconditioner gives.
    rounding
        The expected rounding error of the value, as one standard deviation.
    least_error
        The predicted deviation of the value by degrees alone.
    products
        Products with A spent on making the plan.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from thalweg.spectral import plan
    >>> plan("log", 2.0 * np.eye(3), jax.random.key(0), probes=4).probes
    4
    """

    tables: Tables
    log_survival: Float[Array, " n"]
    control: Float[Array, " n"]
    preconditioner: Preconditioner | None
    offset: Float[Array, ""]
    rounding: Float[Array, ""]
    least_error: Float[Array, ""]
    lower: np.ndarray
    upper: np.ndarray
    mean_degree: np.ndarray
    products: np.ndarray
    f: Callable[[Any], Any] = eqx.field(static=True)
    dimension: int = eqx.field(static=True)
    units: int = eqx.field(static=True)
    group: int = eqx.field(static=True)
    probe: str = eqx.field(static=True)
    form: str = eqx.field(static=True)
    gradient: str = eqx.field(static=True)
    precision: str = eqx.field(static=True)

    @property
    def probes(self) -> int:
        """How many probes one estimate draws."""
        return self.units * self.group

    def estimate(self, A: Any, key: Key[Array, ""]) -> Estimate:
        """Estimate tr f(A): pure, for use under jit, vmap, grad and jvp.

        Nothing is raised for what A holds; look at ``status``. Gradients are those of ``value``: the standard error is
        held constant.

        Parameters
        ----------
        A
            The operator planned for, or one with other parameters whose spectrum the plan's interval still holds.
        key
            The same key gives the same probes and degrees, whatever A.

        Examples
        --------
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from thalweg.spectral import plan
        >>> p = plan("log", 2.0 * np.eye(3), jax.random.key(0), probes=4, slack=1.2)
        >>> round(float(p.estimate(2.1 * np.eye(3), jax.random.key(1)).value / jnp.log(2.1)), 4)
        3.0
        """
        operator = as_operator(A, self.dimension)
        if operator.dimension != self.dimension:
            raise ValueError(f"A must have the plan's dimension {self.dimension}, found dimension {operator.dimension}")
        # The coefficients say what f is: any function in its place, so that all share the same compiled code.
        traced = is_traced((operator, key, self, jnp.zeros(())))
        run = _compiled if traced else operator.compile(_estimate, repeated=True)
        # Keys are split out here, by a program that serves operators of any size.
        return run(dataclasses.replace(self, f=abs), operator, jax.random.split(arguments.random_key("key", key), 3))


def _estimate(plan: Plan, operator: Operator, keys: Key[Array, " 3"]) -> Estimate:
    dtype = plan.tables.weights.dtype
    probe_key, degree_key, second_key = keys
    probes = draw_probes(plan.probe, probe_key, plan.dimension, plan.units, plan.group, dtype)
    degrees = _draw_degrees(plan, degree_key, dtype)
    second = _draw_degrees(plan, second_key, dtype) if plan.form == "inverse" else degrees
    draws = (jnp.repeat(each, plan.group) for each in (degrees, second))
    forms = quadratic_forms(operator, FormInputs(frozen(plan), probes, *draws))
    by_unit = lambda array: jnp.mean(array.reshape(plan.units, plan.group), axis=1)
    units = by_unit(forms.values) - plan.control[degrees] * by_unit(forms.squares)
    # The control variate does not depend on θ: it shifts the value and leaves the derivative alone.
    value = plan.offset + forms.mean + jax.lax.stop_gradient(jnp.mean(units) - forms.mean)
    error = _standard_error(plan, *jax.lax.stop_gradient((units, value)))
    status = jnp.select(
        [forms.outside > 0, forms.outside < 0, ~jnp.isfinite(value)],
        [int(EstimateStatus.ABOVE), int(EstimateStatus.BELOW), int(EstimateStatus.NOT_FINITE)],
        int(EstimateStatus.OK),
    )
    return Estimate(
        value=value,
        standard_error=error,
        products=forms.products,
        lower=jnp.asarray(plan.lower, dtype),
        upper=jnp.asarray(plan.upper, dtype),
        status=status,
        degrees_of_freedom=float(plan.units // 2),
        advice=_NO_ERROR_BAR if plan.units == 1 else "",
    )


_NO_ERROR_BAR = "All probes share one degree: the error is unknown. Use group=1 for an error bar."


def _standard_error(plan: Plan, units: Float[Array, " units"], value: Float[Array, ""]) -> Float[Array, ""]:
    if plan.units == 1:
        return jnp.asarray(jnp.nan, units.dtype)
    pairs = units.reshape(plan.units // 2, 2)
    sampled = scaled_norm(pairs[:, 0] - pairs[:, 1]) / plan.units
    # Where probes hardly vary (A is nearly diagonal) a pair differs only if its degrees do, which is rare.
    sampled = jnp.maximum(sampled, jax.lax.stop_gradient(plan.least_error))
    # The preconditioner's part may be all there is of the sum, and is rounded too.
    return scaled_norm(jnp.stack([sampled, jax.lax.stop_gradient(plan.rounding), jnp.finfo(value.dtype).eps * value]))


_compiled = eqx.filter_jit(_estimate)


def _draw_degrees(plan: Plan, key: Key[Array, ""], dtype: Any) -> Int[Array, " units"]:
    """Draw n = #{j ≥ 1 : S_j > u}, u stratified."""
    logs = draw_log_uniforms(key, plan.units, dtype)
    few = plan.log_survival.size * plan.units <= MAX_COMPARISONS
    return jnp.searchsorted(-plan.log_survival[1:], -logs, side="left", method="compare_all" if few else "scan")
