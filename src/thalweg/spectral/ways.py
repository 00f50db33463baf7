"""The ways to a sum: exact where that is cheaper, else stochastic, with the preconditioner that suits."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, frozen, is_concrete, is_traced, widened
from thalweg.linalg.operators.convert import as_operator, check_dimension, is_wide
from thalweg.spectral.adaptive import MOST_BATCHES, Target, batches_wanted, judged, refine
from thalweg.spectral.automatic import automatic
from thalweg.spectral.bounds import IllConditionedError
from thalweg.spectral.estimate import Estimate, EstimateStatus, Plan
from thalweg.spectral.exact import (
    by_cholesky,
    exact_at_last,
    exact_at_once,
    exact_instead,
    exact_is_possible,
    exact_sum,
    factorisation_is_cheaper,
    warn_if_long,
)
from thalweg.spectral.plan import check_options
from thalweg.spectral.plan import plan as make_plan

_WIDENINGS = 6
_WORTH = 3e-4
"""The standard error for each dimension up to which an estimate is taken where a factorisation would take longer."""
METHODS = ("auto", "exact", "stochastic")


def target_of(rtol: float | None, atol: float | None) -> Target | None:
    """The half-width that is wanted, for a value of the sum; None if nothing is."""
    if rtol is None and atol is None:
        return None
    relative, absolute = (
        0.0 if tolerance is None else arguments.real(name, tolerance, above=0)
        for name, tolerance in (("rtol", rtol), ("atol", atol))
    )
    return lambda value: max(absolute, relative * abs(value))


def in_float64(A: Any, key: Any, plan: Plan | None, call: Callable[[], Estimate]) -> Estimate:
    """What ``call`` makes; in float64, and as NumPy's numbers, for data of the host that JAX would cut to float32."""
    if jax.config.read("jax_enable_x64") or plan is not None or not is_wide(A) or is_traced((key, jnp.zeros(()))):
        return call()
    with jax.enable_x64(True):
        # JAX's float64 would lose its digits at the first operation outside.
        return jax.tree.map(np.asarray, call())


def summed(
    f: Callable[[Any], Any],
    A: Any,
    key: Key[Array, ""],
    target: Target | None,
    *,
    plan: Plan | None = None,
    budget: int | None = None,
    method: str = "auto",
    **options: Any,
) -> Estimate:
    """The sum; ``target`` is the half-width that is wanted, for a value of the sum."""
    arguments.one_of("method", method, METHODS)
    key = arguments.random_key("key", key)
    if budget is not None:
        budget = arguments.whole("budget", budget)
        if target is None:
            raise ValueError(f"budget limits what rtol or atol may spend, and neither is given; found budget={budget}")
    defaults = _defaults(options)
    dimension = options.pop("dimension", None)
    if plan is not None:
        _check_beside_plan(arguments.instance("plan", plan, Plan), f, method, options)
    traced = is_traced((key, jnp.zeros(())))
    operator = as_operator(A, dimension)
    check_dimension(operator, dimension)
    call = _Call(f, operator, key, target, budget, method)
    if plan is not None or traced or not is_concrete(operator):
        return call.planned(plan, traced)
    check_options(f, operator, **{**defaults, **options})
    if method == "exact" or (method == "auto" and exact_at_once(f, operator)):
        return call.exact()
    try:
        return call.stochastic(options)
    except IllConditionedError as reason:
        if method == "auto" and exact_is_possible(operator):
            warn_if_long(f, operator, reason)
            return call.exact()
        if operator.dtype == np.float64 or is_traced(operator):
            raise
    with jax.enable_x64(True):
        found = call._replace(operator=widened(operator)).stochastic(options)
    error = np.hypot(float(found.standard_error), 0.5 * float(jnp.finfo(operator.dtype).eps) * float(found.value))
    found = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), found)
    return dataclasses.replace(found, standard_error=jnp.asarray(error, operator.dtype))


def _defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options of a plan; refuse what is none."""
    known = {name: option.default for name, option in inspect.signature(make_plan).parameters.items()}
    for name in ("f", "A", "key"):
        known.pop(name)
    for name in options:
        if name not in known:
            raise TypeError(
                f"a spectral sum has no option {name!r}, found {name}={options[name]!r}; it has plan, rtol, atol, "
                f"budget, method, {', '.join(known)}"
            )
    known.pop("dimension")
    return known


class _Call(NamedTuple):
    """What is asked for."""

    f: Callable[[Any], Any]
    operator: Operator
    key: Key[Array, ""]
    target: Target | None
    budget: int | None
    method: str

    def exact(self) -> Estimate:
        """The sum by a factorisation."""
        return judged(exact_sum(self.f, self.operator), self.target)

    def stochastic(self, options: dict[str, Any]) -> Estimate:
        """Estimate the sum, with the preconditioner that suits."""
        f, operator, key = self.f, self.operator, self.key
        if "gradient" not in options and is_traced(operator):
            options = {**options, "gradient": "series"}
        if self.method == "auto" and by_cholesky(f) and "preconditioner" not in options:
            instead = exact_instead(f, operator)
            chosen = automatic(frozen(operator), key, options.get("probes", 32), _WORTH if instead else np.inf)
            if chosen is None and instead:
                return self.exact()
            options = {**options, "preconditioner": chosen}
        plan = make_plan(f, operator, key, **options)
        return self.refined(*_run_and_widen(plan, operator, key, options))

    def refined(self, plan: Plan, first: Estimate, spent: int) -> Estimate:
        """As many estimates as the tolerance takes; or a factorisation, where that is cheaper than all of them."""
        if first.outcome != EstimateStatus.OK:
            raise ValueError(f"estimate failed: {first.message}")
        if self.target is not None and plan.units == 1:
            raise ValueError(
                f"rtol and atol need an error bar, and one degree for all {plan.probes} probes has none: leave group "
                f"out, or them"
            )
        rounding = float(plan.rounding)
        wanted = batches_wanted(first, self.target, rounding)[0]
        endless = self.budget is None and wanted > MOST_BATCHES
        cheaper = factorisation_is_cheaper(self.f, self.operator, plan, wanted)
        cheaper = cheaper or (endless and exact_at_last(self.f, self.operator))
        if self.method == "auto" and cheaper:
            return self.exact()
        advice = "A factorisation would be cheaper: method='auto' uses it." if cheaper else ""
        if endless:
            advice += (
                f" The tolerance would take about {wanted:.2g} estimates like this one, of {float(first.products):.0f} "
                f"products each; more than {MOST_BATCHES:,} are drawn only with a budget."
            )
        weights = np.asarray(plan.tables.weights)
        if not np.any(weights[1:]):
            advice += f" f is {weights[0]:.6g} wherever it was tried: what is narrower goes unseen."
        advice = f"{first.advice} {advice}"
        draw = lambda index: plan.estimate(self.operator, jax.random.fold_in(self.key, index))
        result = refine(draw, first, self.target, self.budget, rounding)
        return dataclasses.replace(
            result,
            products=jnp.asarray(float(jax.lax.stop_gradient(result.products)) + spent, result.products.dtype),
            advice=advice.strip(),
        )

    def planned(self, plan: Plan | None, traced: bool) -> Estimate:
        """The sum by a plan of the user's; or under jit and vmap, where only a factorisation does without one."""
        if plan is None:
            if self.method == "exact" or (self.method == "auto" and exact_at_once(self.f, self.operator)):
                return self.exact()
            raise TypeError(
                "a plan must be made outside jit and vmap, where arrays and keys are concrete: "
                "plan = thalweg.spectral.plan(f, A, key), then pass plan=plan"
            )
        first = plan.estimate(self.operator, self.key)
        if not (traced or is_traced(jax.lax.stop_gradient(first.status))):
            return self._replace(method="stochastic").refined(plan, first, 0)
        if self.target is not None:
            raise ValueError(
                "rtol and atol decide by the first numbers how many more are drawn, which jit and vmap cannot do: "
                "leave them out there"
            )
        return first


def _check_beside_plan(plan: Plan, f: Callable[[Any], Any], method: str, options: dict[str, Any]) -> None:
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


def _run_and_widen(plan: Plan, operator: Operator, key: Any, options: dict[str, Any]) -> tuple[Plan, Estimate, int]:
    """Run an estimate; where the watch finds an eigenvalue outside an interval of our own making, widen it and redo.

    Returns the plan that held, its estimate, and the products spent before that estimate.
    """
    lower, upper = options.get("interval") or (None, None)
    own = {EstimateStatus.BELOW: lower is None, EstimateStatus.ABOVE: upper is None}
    first, spent = plan.estimate(operator, key), int(plan.products)
    for attempt in range(1, _WIDENINGS):
        if not own.get(first.outcome):
            break
        wider = {**options, "slack": options.get("slack", 1.0) * 1.5**attempt}
        plan = make_plan(plan.f, operator, key, **wider)
        spent += int(jax.lax.stop_gradient(first.products)) + int(plan.products)
        first = plan.estimate(operator, key)
    return plan, first, spent
