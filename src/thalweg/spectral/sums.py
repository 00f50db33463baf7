"""The sums people ask for by name. Each plans by itself, or takes a plan.

Called on concrete arrays they raise where something is wrong, and widen an interval that turns out too narrow; under
jit or vmap they need a plan, and return a status instead.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.spectral.adaptive import Target, batches_wanted, refine
from thalweg.spectral.bounds import check_symmetric
from thalweg.spectral.estimate import Estimate, Plan, Status
from thalweg.spectral.exact import exact_sum, factorisation_is_cheaper
from thalweg.spectral.functions import Exponential, Power, entropy_density, named, reciprocal
from thalweg.spectral.operators import Operator, as_operator, gram_operator
from thalweg.spectral.operators.base import frozen, is_concrete, is_traced
from thalweg.spectral.plan import plan as make_plan

_WIDENINGS = 6
METHODS = ("stochastic", "exact", "auto")


def spectral_sum(
    f: Callable[[Any], Any] | str,
    A: Any,
    key: Key[Array, ""],
    *,
    plan: Plan | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    budget: int | None = None,
    method: str = "stochastic",
    **options: Any,
) -> Estimate:
    """Estimate tr f(A) without bias, with an error bar.

    ``jax.grad`` of the ``value`` is an unbiased estimate of the gradient.

    Parameters
    ----------
    f
        An elementwise function written in :mod:`jax.numpy`, analytic on the spectrum; or ``"log"`` or ``"inverse"``.
    A
        A symmetric operator: a dense array, a SciPy or JAX sparse matrix, a SciPy or lineax operator, an
        :class:`Operator`, or a function ``vectors -> vectors`` with ``dimension=``.
    key
        The source of all randomness.
    plan
        A plan made before by :func:`thalweg.spectral.plan` for the same ``f``; needed under jit and vmap.
    rtol, atol
        Draw more probes until the half-width of the 95 % interval is at most max(atol, rtol·|value|).
    budget
        With ``rtol`` or ``atol``: at most this many products (those of the plan apart, in multiples of one estimate's
        worth); ten thousand estimates' worth by default. The status says if it ended.
    method
        ``"stochastic"``; ``"exact"`` factorises the matrix; ``"auto"`` does so where that is predicted to be cheaper.
    **options
        Those of :func:`thalweg.spectral.plan`.

    Returns
    -------
    Estimate
        ``value``, ``standard_error``, ``interval(0.95)``, ``products``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> A = jnp.diag(jnp.array([1.0, 4.0, 9.0]))
    >>> result = spectral_sum(jnp.sqrt, A, jax.random.key(0), probes=4, rtol=0.05)
    >>> round(float(result.value), 0), result.message
    (6.0, "ok A factorisation would be cheaper: method='auto' uses it.")
    """
    return _summed(named(f), A, key, _target(rtol, atol), plan=plan, budget=budget, method=method, **options)


def _target(rtol: float | None, atol: float | None) -> Target | None:
    if rtol is None and atol is None:
        return None
    relative, absolute = (
        0.0 if tolerance is None else float(arguments.number(name, tolerance, above=0))
        for name, tolerance in (("rtol", rtol), ("atol", atol))
    )
    return lambda value: max(absolute, relative * abs(value))


def _summed(
    f: Callable[[Any], Any],
    A: Any,
    key: Key[Array, ""],
    target: Target | None,
    *,
    plan: Plan | None = None,
    budget: int | None = None,
    method: str = "stochastic",
    **options: Any,
) -> Estimate:
    """The sum; ``target`` is the half-width that is wanted, for a value of the sum."""
    arguments.one_of("method", method, METHODS)
    key = arguments.random_key("key", key)
    if budget is not None:
        budget = arguments.whole("budget", budget)
        if target is None:
            raise ValueError(f"budget limits what rtol or atol may spend, and neither is given; found budget={budget}")
    if plan is not None:
        _check_beside_plan(arguments.instance("plan", plan, Plan), f, method, options)
    operator = as_operator(A, options.get("dimension"))
    if method == "exact":
        return _exact(f, operator, key)
    if is_traced(key) or not is_concrete(operator):
        return _traced(plan, operator, key, target)
    spent = 0
    if plan is None:
        if "gradient" not in options and is_traced(operator):
            options["gradient"] = "series"
        plan_key, key = jax.random.split(key)
        if method == "auto" and factorisation_is_cheaper(f, operator, None):
            return _exact(f, operator, key)
        plan = make_plan(f, operator, plan_key, **options)
        if method == "auto" and factorisation_is_cheaper(f, operator, plan):
            return _exact(f, operator, key)
        plan, first, spent = _run_and_widen(plan, operator, plan_key, key, options)
    else:
        first = plan.estimate(operator, key)
    if first.outcome != Status.OK:
        raise ValueError(f"estimate failed: {first.message}")
    rounding = float(plan.rounding)
    cheaper = factorisation_is_cheaper(f, operator, plan, batches_wanted(first, target, rounding)[0])
    if method == "auto" and cheaper:
        return _exact(f, operator, key)
    draw = lambda index: plan.estimate(operator, jax.random.fold_in(key, index))
    result = refine(draw, first, target, budget, rounding)
    return dataclasses.replace(
        result,
        products=result.products + jnp.asarray(spent, result.products.dtype),
        advice="A factorisation would be cheaper: method='auto' uses it." if cheaper else "",
    )


def _check_beside_plan(plan: Plan, f: Callable[[Any], Any], method: str, options: dict[str, Any]) -> None:
    if plan.f != f:
        raise ValueError(
            f"plan was made for another function, {plan.f!r}: make one for {f!r}, the function of this sum, or call "
            "plan.estimate(A, key)"
        )
    if method != "stochastic":
        raise ValueError(f"method={method!r} makes no use of a plan: leave one of the two out")
    for name, value in options.items():
        if name != "dimension":
            raise ValueError(
                f"{name} belongs to the plan, and a plan is given: pass it to thalweg.spectral.plan, "
                f"found {name}={value!r}"
            )


def _traced(plan: Plan | None, operator: Operator, key: Key[Array, ""], target: Target | None) -> Estimate:
    if plan is None:
        raise TypeError(
            "a plan must be made outside jit and vmap, where arrays and keys are concrete: "
            "plan = thalweg.spectral.plan(f, A, key), then pass plan=plan"
        )
    if target is not None:
        raise ValueError(
            "rtol and atol decide by the first numbers how many more are drawn, which jit and vmap cannot do: "
            "leave them out there"
        )
    return plan.estimate(operator, key)


def _exact(f: Callable[[Any], Any], operator: Operator, key: Key[Array, ""]) -> Estimate:
    if is_concrete(operator) and not is_traced(key):
        check_symmetric(frozen(operator), key)
    return exact_sum(f, operator)


def _run_and_widen(
    plan: Plan, operator: Operator, plan_key: Any, key: Any, options: dict[str, Any]
) -> tuple[Plan, Estimate, int]:
    """Run an estimate; where the watch finds an eigenvalue outside an interval of our own making, widen it and redo.

    Returns the plan that held, its estimate, and the products spent before that estimate.
    """
    lower, upper = options.get("interval") or (None, None)
    own = {Status.BELOW: lower is None, Status.ABOVE: upper is None}
    first, spent = plan.estimate(operator, key), int(plan.products)
    for attempt in range(1, _WIDENINGS):
        if not own.get(first.outcome):
            break
        wider = {**options, "slack": options.get("slack", 1.0) * 1.5**attempt}
        plan = make_plan(plan.f, operator, plan_key, **wider)
        spent += int(jax.lax.stop_gradient(first.products)) + int(plan.products)
        first = plan.estimate(operator, key)
    return plan, first, spent


def logdet(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate log det A = tr log A of a positive definite A.

    Parameters
    ----------
    A, key, **options
        See :func:`spectral_sum`. With ``preconditioner=PivotedCholesky(…)``, ``Nystrom(…)`` or ``Jacobi()`` the
        degree and the variance fall, often by orders of magnitude.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> result = logdet(2.0 * jnp.eye(3), jax.random.key(0), probes=4)
    >>> round(float(result.value / jnp.log(2.0)), 4)
    3.0
    """
    return spectral_sum(jnp.log, A, key, **options)


def trace_inverse(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate tr A⁻¹ of a positive definite A; options as for :func:`logdet`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> round(float(trace_inverse(2.0 * jnp.eye(3), jax.random.key(0), probes=4).value), 4)
    1.5
    """
    return spectral_sum(reciprocal, A, key, **options)


def entropy(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate the von Neumann entropy −tr A log A of a positive definite A; options as for :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> round(float(entropy(jnp.eye(3) / 3, jax.random.key(0), probes=4).value), 4)
    1.0986
    """
    return spectral_sum(entropy_density, A, key, **options)


def trace_exp(A: Any, key: Key[Array, ""], *, time: float = 1.0, **options: Any) -> Estimate:
    """Estimate tr exp(tA), t = ``time``; options as for :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> round(float(trace_exp(jnp.zeros((3, 3)), jax.random.key(0), probes=4).value), 4)
    3.0
    """
    time = float(arguments.number("time", time))
    return spectral_sum(jnp.exp if time == 1 else Exponential(time), A, key, **options)


def estrada(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate the Estrada index tr exp(A) of the graph with adjacency matrix A; options as for :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> triangle = jnp.ones((3, 3)) - jnp.eye(3)
    >>> round(float(estrada(triangle, jax.random.key(0), method="exact").value), 4)  # e² + 2/e
    8.1248
    """
    return spectral_sum(jnp.exp, A, key, **options)


def nuclear_norm(X: Any, key: Key[Array, ""], *, smoothing: float = 0.0, **options: Any) -> Estimate:
    """Estimate Σ_i √(σ_i² + ε), the nuclear norm of any real matrix X (smoothed by ε = ``smoothing``).

    √x is singular at zero: a rank-deficient X needs a positive ``smoothing``, as in section 5.1 of the paper.

    Parameters
    ----------
    X
        A dense or SciPy sparse matrix, rectangular or not; or a symmetric operator.
    key
        The source of all randomness.
    smoothing
        ε.
    **options
        See :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> round(float(nuclear_norm(2.0 * jnp.eye(3, 4), jax.random.key(0), probes=4).value), 4)
    6.0
    """
    return schatten_norm(X, key, p=1.0, smoothing=smoothing, **options)


def schatten_norm(X: Any, key: Key[Array, ""], *, p: float, smoothing: float = 0.0, **options: Any) -> Estimate:
    """Estimate the Schatten norm (Σ_i (σ_i² + ε)^(p/2))^(1/p) of any real matrix X.

    The sum under the root is estimated without bias. For p ≠ 1 the root is not linear: it biases the norm by the order
    of its squared relative standard error, and the standard error is carried through the root to first order.

    Parameters
    ----------
    X
        A dense or SciPy sparse matrix, rectangular or not; or a symmetric operator.
    key
        The source of all randomness.
    p
        Any positive number.
    smoothing
        ε; not needed for an even integer p.
    **options
        See :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> round(float(schatten_norm(2.0 * jnp.eye(3, 4), jax.random.key(0), p=2, probes=4).value), 4)  # √12
    3.4641
    """
    p, smoothing = float(arguments.number("p", p, above=0)), float(arguments.number("smoothing", smoothing, least=0))
    gram = gram_operator(X, smoothing, options.get("dimension"))
    function = jnp.sqrt if p == 1 else Power(0.5 * p)
    if smoothing > 0 and options.get("plan") is None:
        lower, upper = options.get("interval") or (None, None)
        options["interval"] = (smoothing * (1 - 1e-3) if lower is None else lower, upper)
    wanted = _target(options.pop("rtol", None), options.pop("atol", None))
    # The norm is (sum)^(1/p): what is wanted of the norm, carried back to the sum.
    target = None if wanted is None else lambda total: wanted(total ** (1 / p)) * p * total ** (1 - 1 / p)
    result = _summed(function, gram, key, target, **options)
    if p == 1:
        return result
    norm = result.value ** (1.0 / p)
    error = jax.lax.stop_gradient(norm / (p * result.value)) * result.standard_error
    return eqx.tree_at(lambda e: (e.value, e.standard_error), result, (norm, error))
