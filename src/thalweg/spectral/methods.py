"""Choose between a factorisation and an estimate, and draw until the error bar is small enough.

Stopping when the running standard error happens to be small would favour runs that underestimate it, and their
intervals would cover too rarely. Stein's two-stage procedure (1945) does not: the variance is estimated once, from the
first batch; it decides how many batches are drawn in all; and the final interval uses that variance and its degrees of
freedom, not a new one. For normal batch means the coverage is then exact whatever the number of batches.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, frozen, in_float64, is_concrete, is_traced
from thalweg.linalg.operators.convert import as_operator, check_dimension, is_wide
from thalweg.spectral.chebyshev import Function, IllConditionedError
from thalweg.spectral.estimate import Estimate, EstimateStatus, Plan, add_stored_rounding, quantile
from thalweg.spectral.exact import EXACT_ROWS, by_cholesky, exact_rows, exact_sum
from thalweg.spectral.lowrank import find_preconditioner
from thalweg.spectral.plan import PlanOptions, make_plan

METHODS = ("auto", "exact", "stochastic")
MAX_DENSE_ROWS = 16_000
"""Rows of the largest matrix that is factorised unasked, where an estimate is no good: 2 GB, and about a minute for a
Cholesky factor. Twice as many take 8 GB and eight times as long."""
MAX_BATCHES = 10_000
"""Estimates that are drawn without a budget, in about a minute; a tolerance that takes more is reported after one."""
MAX_WIDENINGS = 5
"""How often an interval of our own that proves too narrow is widened, each time by half as much again as the last. The
last is seven times as wide; more would hide an operator that is not what the plan saw."""
WORTHWHILE_ERROR = 3e-4
"""The standard error for each dimension down to which an estimate replaces a factorisation that takes longer."""

Target = Callable[[float], float]
"""The wanted half-width of the interval, for a value."""


def target_of(rtol: float | None, atol: float | None) -> Target | None:
    """Return the wanted half-width of the 95 % interval as a function of the value; None without tolerances."""
    if rtol is None and atol is None:
        return None
    given = {"rtol": rtol, "atol": atol}
    relative, absolute = (0.0 if x is None else arguments.real(name, x, above=0) for name, x in given.items())
    return lambda value: max(absolute, relative * abs(value))


def call_in_float64(A: Any, key: Any, plan: Plan | None, call: Callable[[], Estimate]) -> Estimate:
    """Return what ``call`` does; in float64, and as NumPy's numbers, for data of the host that JAX would round."""
    if jax.config.read("jax_enable_x64") or plan is not None or not is_wide(A) or is_traced((key, jnp.zeros(()))):
        return call()
    with jax.enable_x64(True):
        # JAX's float64 would lose its digits at the first operation outside.
        return jax.tree.map(np.asarray, call())


def compute_sum(
    f: Function,
    A: Any,
    key: Key[Array, ""],
    target: Target | None,
    *,
    plan: Plan | None = None,
    budget: int | None = None,
    method: str = "auto",
    dimension: int | None = None,
    **options: Any,
) -> Estimate:
    """Compute or estimate the sum; ``target`` is the wanted half-width, for a value of the sum."""
    arguments.one_of("method", method, METHODS)
    key = arguments.random_key("key", key)
    if budget is not None:
        budget = arguments.whole("budget", budget)
        if target is None:
            raise ValueError(f"budget limits what rtol or atol may spend, and neither is given; found budget={budget}")
    settings = PlanOptions.of(options)
    if plan is not None:
        _check_beside_plan(arguments.instance("plan", plan, Plan), f, method, options)
    operator = check_dimension(as_operator(A, dimension), dimension)
    task = _SumTask(f, operator, key, target, budget, method)
    traced = is_traced((key, frozen(plan), jnp.zeros(()))) or not is_concrete(operator)
    if plan is not None or traced:
        return task.estimate_by(plan, traced)
    settings.check(f, operator.dimension)
    automatic = method == "auto" and by_cholesky(f) and "preconditioner" not in options
    if task.is_exact_at_once:
        return task.exact()
    try:
        return task.stochastic(settings, automatic)
    except IllConditionedError as reason:
        if method == "auto" and operator.materialised and operator.dimension <= MAX_DENSE_ROWS:
            return task.exact(instead=reason)
        if operator.dtype == np.float64 or is_traced(operator):
            raise
    with jax.enable_x64(True):
        result = task._replace(operator=in_float64(operator)).stochastic(settings, automatic)
    error = add_stored_rounding(float(result.standard_error), float(result.value), operator.dtype)
    result = jax.tree.map(np.asarray, result)
    return jax.device_put(dataclasses.replace(result, standard_error=np.asarray(error, operator.dtype)))


class _SumTask(NamedTuple):
    f: Function
    operator: Operator
    key: Key[Array, ""]
    target: Target | None
    budget: int | None
    method: str

    @property
    def is_small(self) -> bool:
        """Whether a factorisation takes no longer than an estimate takes to plan."""
        return self.operator.dimension <= exact_rows(self.f, self.operator.materialised)

    @property
    def is_exact_at_once(self) -> bool:
        """Whether a factorisation is asked for, or the best choice of all."""
        return self.method == "exact" or (self.method == "auto" and self.is_small)

    @property
    def is_exact_soon(self) -> bool:
        """Whether a factorisation takes less than many estimates: as long as the largest Cholesky factor."""
        return self.operator.dimension <= MAX_DENSE_ROWS * exact_rows(self.f) / EXACT_ROWS["cholesky"]

    def exact(self, instead: Exception | None = None) -> Estimate:
        """Factorise; warn first where that takes minutes and nobody asked for it."""
        if instead is not None and not self.is_exact_soon:
            warnings.warn(
                f"An estimate failed: {instead} A dense matrix of side {self.operator.dimension:,} is factorised "
                "instead, which takes minutes, not to be interrupted from the keyboard. method='stochastic' refuses.",
                stacklevel=6,
            )
        result = exact_sum(self.f, self.operator)
        if self.target is None or is_traced(jax.lax.stop_gradient(result.value)):
            return result
        status = _batches(result, self.target, float(result.standard_error))[1]
        return dataclasses.replace(result, status=jnp.asarray(int(status), result.status.dtype))

    def stochastic(self, options: PlanOptions, automatic: bool) -> Estimate:
        """Estimate the sum, with an ``automatic`` preconditioner if asked; or factorise, where that proves cheaper."""
        f, operator, key = self.f, self.operator, self.key
        if options.gradient is None and is_traced(operator):
            options = dataclasses.replace(options, gradient="series")
        if automatic:
            dense = operator.calls_library and self.is_exact_soon
            chosen = find_preconditioner(frozen(operator), key, options.probes, WORTHWHILE_ERROR if dense else np.inf)
            if chosen is None and dense:
                return self.exact()
            options = dataclasses.replace(options, preconditioner=chosen)
        lower, upper = options.interval or (None, None)
        own = {EstimateStatus.BELOW: lower is None, EstimateStatus.ABOVE: upper is None}
        spent = 0
        for attempt in range(MAX_WIDENINGS + 1):
            # An eigenvalue outside an interval of our own making: widen it.
            wider = dataclasses.replace(options, slack=options.slack * 1.5**attempt)
            plan = make_plan(f, frozen(operator), key, wider)
            self.check_error_bar(plan)
            first, spent = plan.estimate(operator, key), spent + int(plan.products)
            if not own.get(first.outcome):
                break
            spent += int(jax.lax.stop_gradient(first.products))
        return self.refine(plan, first, spent)

    def check_error_bar(self, plan: Plan) -> None:
        """Refuse tolerances for a plan whose estimates have no error bar."""
        if self.target is not None and plan.units == 1:
            raise ValueError(
                f"rtol and atol need an error bar, and one degree for all {plan.probes} probes has none: leave group "
                f"out, or them"
            )

    def refine(self, plan: Plan, first: Estimate, spent: int) -> Estimate:
        """Draw as many estimates as the tolerance takes; or factorise, where that is cheaper than all of them."""
        if first.outcome != EstimateStatus.OK:
            raise ValueError(f"estimate failed: {first.message}")
        rounding = float(plan.rounding)
        wanted, _ = _batches(first, self.target, rounding)
        endless = self.budget is None and wanted > MAX_BATCHES
        cheaper = self._factorisation_is_cheaper(plan, wanted) or (endless and self.is_exact_soon)
        if self.method == "auto" and cheaper:
            return self.exact()
        advice = [first.advice, "A factorisation would be cheaper: method='auto' uses it." if cheaper else ""]
        if endless:
            advice.append(
                f"The tolerance would take about {wanted:.2g} estimates like this one, of {float(first.products):.0f} "
                f"products each; more than {MAX_BATCHES:,} are drawn only with a budget."
            )
        weights = np.asarray(plan.tables.weights)
        if not np.any(weights[1:]):
            advice.append(f"f is {weights[0]:.6g} wherever it was tried: what is narrower goes unseen.")
        draw = lambda index: plan.estimate(self.operator, jax.random.fold_in(self.key, index))
        result = refine(draw, first, self.target, self.budget, rounding)
        products = jnp.asarray(float(jax.lax.stop_gradient(result.products)) + spent, result.products.dtype)
        return dataclasses.replace(result, products=products, advice=" ".join(filter(None, advice)))

    def _factorisation_is_cheaper(self, plan: Plan, estimates: int) -> bool:
        if self.is_small:
            return True
        operator = self.operator
        # A Cholesky factor costs as much as d products with one vector, eigenvalues ten times as much.
        products = operator.dimension * (EXACT_ROWS["cholesky"] / exact_rows(self.f)) ** 3
        dense = operator.calls_library and operator.materialised and operator.dimension <= MAX_DENSE_ROWS
        return dense and products < plan.probes * float(plan.mean_degree) * estimates

    def estimate_by(self, plan: Plan | None, traced: bool) -> Estimate:
        """Use the user's plan; under jit and vmap only a factorisation does without one."""
        if plan is None:
            if self.is_exact_at_once:
                return self.exact()
            raise TypeError(
                "a plan must be made outside jit and vmap, where arrays and keys are concrete: "
                "plan = thalweg.spectral.plan(f, A, key), then pass plan=plan"
            )
        if traced and self.target is not None:
            raise ValueError(
                "rtol and atol decide by the first numbers how many more are drawn, which jit and vmap cannot do: "
                "leave them out there"
            )
        self.check_error_bar(plan)
        first = plan.estimate(self.operator, self.key)
        return first if traced else self._replace(method="stochastic").refine(plan, first, 0)


def _check_beside_plan(plan: Plan, f: Function, method: str, options: dict[str, Any]) -> None:
    if plan.f != f:
        raise ValueError(
            f"plan was made for another function, {plan.f!r}: make one for {f!r}, the function of this sum, or call "
            "plan.estimate(A, key)"
        )
    if method == "exact":
        raise ValueError(f"method={method!r} makes no use of a plan: leave one of the two out")
    for name, value in options.items():
        raise ValueError(
            f"{name} belongs to the plan, and a plan is given: pass it to thalweg.spectral.plan, found {name}={value!r}"
        )


def _batches(first: Estimate, target: Target | None, rounding: float) -> tuple[int, EstimateStatus]:
    """Return how many batches bring the error bar down to the target, and the status that the estimate then has.

    Only the error by probes and degrees averages out. Where rounding alone exceeds the target, as many batches are
    wanted as make the rest no larger than it.
    """
    if target is None:
        return 1, EstimateStatus.OK
    value, error = (float(jax.lax.stop_gradient(x)) for x in (first.value, first.standard_error))
    allowed = (target(value) / quantile(0.95, first.degrees_of_freedom)) ** 2
    if error**2 <= allowed:
        return 1, EstimateStatus.OK
    sampled, room = max(error**2 - rounding**2, 0.0), allowed - rounding**2
    ratio = sampled / max(room if room > 0 else rounding**2, np.finfo(float).tiny)
    status = EstimateStatus.OK if room > 0 else EstimateStatus.ROUNDING
    return int(np.ceil(np.clip(ratio, 1.0, 1e12))), status


def refine(
    draw: Callable[[int], Estimate], first: Estimate, target: Target | None, budget: int | None, rounding: float = 0.0
) -> Estimate:
    """Average as many batches as the first one says it takes; ``draw(i)`` makes the i-th."""
    wanted, status = _batches(first, target, rounding)
    if wanted == 1 and status == EstimateStatus.OK:
        return first
    if budget is not None:
        batches = min(wanted, max(1, int(budget // max(float(first.products), 1.0))))
    else:
        batches = wanted if wanted <= MAX_BATCHES else 1
    total, products = first.value, first.products
    for index in range(1, batches):
        batch = draw(index)
        if batch.outcome is not EstimateStatus.OK:
            raise ValueError(f"estimate failed in batch {index}: {batch.message}")
        total, products = total + batch.value, products + batch.products
    variance = float(jax.lax.stop_gradient(first.standard_error)) ** 2
    error = np.sqrt(max(variance - rounding**2, 0.0) / batches + rounding**2)
    met = batches == wanted or (budget is None and status == EstimateStatus.ROUNDING)
    return dataclasses.replace(
        first,
        value=total / batches,
        standard_error=jnp.asarray(error, first.value.dtype),
        products=products,
        status=jnp.asarray(int(status if met else EstimateStatus.BUDGET), first.status.dtype),
    )
