"""Differentiable quadratic forms: mean_i v_iᵀ p̂_n(A(θ)) v_i with an unbiased gradient of tr f(A(θ)).

Interval, coefficients and law are held constant under differentiation: any fixed valid interval is unbiased, and
differentiating S would bias. Two estimators of the gradient are offered.

``"series"`` uses ∂ tr f(A) = tr(f′(A) ∂A): with u = f̂′(A)v, the randomly truncated series of f′, the tangent is
uᵀ ∂A[θ̇] v. One vector-Jacobian product whatever the degree and the number of parameters. It is not the derivative
of the value estimate at a fixed key, so finite differences of the value do not reproduce it.

``"paper"`` is equation (12), the derivative of the value estimate at a fixed key. Its reverse pass runs in constant
memory because the recurrence runs backwards, w_{j−1} = 2Ãw_j − w_{j+1}, beside Clenshaw's adjoint recurrence
y_j = (b_j/S_j) v + 2Ãy_{j+1} − y_{j+2}: d(vᵀp̂_n(Ã)v) = Σ_{j=0}^{n−1} (2 − [j=0]) y_{j+1}ᵀ dÃ w_j.

Both are `custom_jvp` rules whose loops run on primals only, so that grad, jvp, jit and vmap all work.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from thalweg.spectral.precondition import Preconditioner
from thalweg.spectral.recurrence import Swept, Tables, sweep
from thalweg.spectral.sparse import SparseProduct

GRADIENTS = ("series", "paper")


class Spec(NamedTuple):
    """What the compiler must know: everything that is not an array."""

    multiply: Callable[..., Any]
    widths: tuple[int, ...]
    form: str
    gradient: str
    precision: str
    stride: int


class Forms(NamedTuple):
    """The mean of the quadratic forms, their values and ‖w_0‖² one by one, and the watchman's report."""

    mean: Float[Array, ""]
    values: Float[Array, " m"]
    squares: Float[Array, " m"]
    outside: Float[Array, ""]
    products: Float[Array, ""]


class Inputs(NamedTuple):
    """Arrays that are held constant under differentiation.

    ``probes`` are the v; ``degrees`` their degrees, and ``second`` a second, independent draw of them (used by the
    gradient of the preconditioned inverse, a product of two truncated series).
    """

    data: PyTree
    tables: Tables
    preconditioner: Preconditioner | None
    probes: Array
    degrees: Array
    second: Array


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def quadratic_forms(spec: Spec, theta: PyTree[Array], inputs: Inputs) -> Forms:
    """Return the randomly truncated quadratic forms at θ; their mean has an unbiased derivative with respect to θ."""
    with jax.default_matmul_precision(spec.precision):
        start = _start(spec, inputs)
        product, advance = spec.multiply, None
        if isinstance(product, SparseProduct) and product.in_strips(theta) and inputs.preconditioner is None:
            start = product.padded(theta, start)
            advance = _in_strips(product, theta, inputs)
        apply = _apply(spec, theta, inputs)
        swept = sweep(apply, inputs.tables, start, inputs.degrees, spec.widths, stride=spec.stride, advance=advance)
    return _forms(swept)


@quadratic_forms.defjvp
def _quadratic_forms_jvp(spec: Spec, primals: tuple, tangents: tuple) -> tuple[Forms, Forms]:
    theta, inputs = primals
    with jax.default_matmul_precision(spec.precision):
        rule = _paper if spec.gradient == "paper" else _series
        forms, derivative = rule(spec, theta, inputs, tangents[0])
        control = _control(spec, theta, inputs, tangents[0])
    zeros = jax.tree.map(jnp.zeros_like, forms)
    return forms, zeros._replace(mean=(derivative + control).astype(forms.mean.dtype))


def _forms(swept: Swept) -> Forms:
    return Forms(jnp.mean(swept.values), swept.values, swept.squares, swept.outside, swept.products)


def _start(spec: Spec, inputs: Inputs) -> Array:
    """w_0: the probe, or P^(−½) v for the trace of the inverse, tr A⁻¹ = tr P^(−½) B⁻¹ P^(−½)."""
    return _half(inputs, inputs.probes) if spec.form == "inverse" else inputs.probes


def _half(inputs: Inputs, block: Array) -> Array:
    return block if inputs.preconditioner is None else inputs.preconditioner.inverse_root(block)


def _apply(spec: Spec, theta: PyTree[Array], inputs: Inputs) -> Callable[[Array], Array]:
    return lambda block: _half(inputs, spec.multiply(theta, inputs.data, _half(inputs, block)))


def _in_strips(product: SparseProduct, theta: PyTree[Array], inputs: Inputs) -> Callable[..., tuple]:
    """A step of the recurrence and its inner products in one pass, where that is the faster way."""
    scale, shift = 2.0 * inputs.tables.scale, 2.0 * inputs.tables.shift

    def whole(older: Array, newer: Array) -> tuple[Array, Array, Array]:
        latest = scale * product(theta, inputs.data, newer) - shift * newer - older
        return latest, jnp.sum(newer * latest, axis=0), jnp.sum(latest * latest, axis=0)

    # Strips are taken one after another: right for a core and its cache, wrong for a GPU.
    strips = partial(product.advance, theta, inputs.data, scale, shift)
    return lambda older, newer: jax.lax.platform_dependent(older, newer, cpu=strips, default=whole)


def _series(spec: Spec, theta: PyTree[Array], inputs: Inputs, tangent: PyTree) -> tuple[Forms, Array]:
    start = _start(spec, inputs)
    draws = (inputs.degrees, inputs.second) if spec.form == "inverse" else (inputs.degrees,)
    apply = _apply(spec, theta, inputs)
    swept = sweep(apply, inputs.tables, start, inputs.degrees, spec.widths, draws)
    left = _half(inputs, swept.vectors[0])
    if spec.form == "inverse":
        # ∂ tr A⁻¹ = −tr(A⁻¹ ∂A A⁻¹): two independent truncations of B⁻¹ around ∂A.
        left, right = -left, _half(inputs, swept.vectors[1])
    else:
        right = _half(inputs, start)
    product = lambda parameters: spec.multiply(parameters, inputs.data, right)
    _, moved = jax.jvp(product, (theta,), (tangent,))
    return _forms(swept), jnp.sum(left * moved) / start.shape[1]


def _paper(spec: Spec, theta: PyTree[Array], inputs: Inputs, tangent: PyTree) -> tuple[Forms, Array]:
    start = _start(spec, inputs)
    tables, degrees = inputs.tables, jnp.maximum(inputs.degrees, 1)
    apply = _apply(spec, theta, inputs)
    swept = sweep(apply, tables, start, inputs.degrees, spec.widths, keep_last=True)
    count = start.shape[1]
    shifted = lambda block: tables.scale * apply(block) - tables.shift * block
    weigh = lambda j: jnp.where(j <= inputs.degrees, tables.weights.at[j].get(mode="fill", fill_value=0), 0)

    def accumulate(total: PyTree, adjoint: Array, state: Array, factor: Array) -> PyTree:
        right = _half(inputs, state)
        _, pull = jax.vjp(lambda parameters: spec.multiply(parameters, inputs.data, right), theta)
        (part,) = pull(_half(inputs, factor * tables.scale / count * adjoint))
        return jax.tree.map(jnp.add, total, part)

    def body(carry: tuple) -> tuple:
        # Holds w_j, w_{j−1} and y_{j+1}, y_{j+2}; adds the term y_jᵀ dÃ w_{j−1}.
        j, state, before, adjoint, after, total = carry
        active = j <= degrees
        both = shifted(jnp.concatenate([adjoint, before], axis=1))
        latest = weigh(j) * start + 2.0 * both[:, :count] - after
        total = accumulate(total, jnp.where(active, latest, 0), before, jnp.where(j == 1, 1.0, 2.0))
        back = 2.0 * both[:, count:] - state
        state, before = jnp.where(active, before, state), jnp.where(active, back, before)
        return j - 1, state, before, latest, adjoint, total

    zero = jnp.zeros_like(start)
    carry = (jnp.max(degrees), *swept.last, zero, zero, jax.tree.map(jnp.zeros_like, theta))
    gradient = jax.lax.while_loop(lambda c: c[0] >= 1, body, carry)[-1]
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(tangent), strict=True)
    return _forms(swept), sum((jnp.sum(g * t) for g, t in pairs), jnp.zeros((), start.dtype))


def _control(spec: Spec, theta: PyTree[Array], inputs: Inputs, tangent: PyTree) -> Array:
    """The preconditioner as a control variate (equations.md §2): mean zero, and it takes the variance away as P → A.

    For log det: tr(P₀⁻¹∂P) − (P₀^(−½)v)ᵀ ∂P (P₀^(−½)v), where P₀ is the preconditioner of the plan and P(θ) the same
    construction at θ with its pivots frozen; for P₀ = P(θ) the first term is ∂ log det P. With P₀ in both terms it
    has mean zero also where the plan was made at another θ.
    """
    preconditioner = inputs.preconditioner
    if preconditioner is None or not preconditioner.parametric:
        return jnp.zeros((), inputs.probes.dtype)
    vectors, sign, power = _half(inputs, inputs.probes), 1.0, 1
    if spec.form == "inverse":
        vectors, sign, power = _half(inputs, vectors), -1.0, 2
    difference = lambda parameters: preconditioner.control(parameters, inputs.data, vectors, power)
    _, moved = jax.jvp(difference, (theta,), (tangent,))
    return sign * moved
