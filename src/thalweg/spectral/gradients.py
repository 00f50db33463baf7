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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from thalweg.linalg.operators.base import Operator
from thalweg.spectral.precondition import whitened_product
from thalweg.spectral.recurrence import Forms, block_widths, sweep

GRADIENTS = ("series", "paper")


class FormInputs(eqx.Module):
    """The inputs of quadratic forms that are held constant under differentiation.

    ``probes`` are the v; ``degrees`` their degrees, and ``second`` a second, independent draw of them (used by the
    gradient of the preconditioned inverse, a product of two truncated series).
    """

    plan: Any
    probes: Float[Array, "d m"]
    degrees: Int[Array, " m"]
    second: Int[Array, " m"]

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the widths through which the block shrinks."""
        return block_widths(self.plan.units, self.plan.group)

    @property
    def start(self) -> Array:
        """w_0: the probe, or P^(−½) v for the trace of the inverse, tr A⁻¹ = tr P^(−½) B⁻¹ P^(−½)."""
        return self.half(self.probes) if self.plan.form == "inverse" else self.probes

    def half(self, block: Array) -> Array:
        """P^(−½) V."""
        preconditioner = self.plan.preconditioner
        return block if preconditioner is None else preconditioner.inverse_root(block)

    def apply(self, operator: Operator) -> Callable[[Array], Array]:
        """V ↦ P^(−½) A P^(−½) V."""
        return partial(whitened_product, operator, self.plan.preconditioner)


@eqx.filter_custom_jvp
def quadratic_forms(operator: Operator, inputs: FormInputs) -> Forms:
    """Return the randomly truncated quadratic forms of A; their mean has an unbiased derivative."""
    width, group = inputs.widths[0], operator.column_group
    run: Any = partial(sweep, inputs.apply(operator), inputs.plan.tables, stride=operator.stride)
    with jax.default_matmul_precision(inputs.plan.precision):
        start = inputs.start
        if group is None or width <= group or width % group:
            return run(start, inputs.degrees, inputs.widths)[0]
        # One loop to compile instead of one for every width of a block that shrinks.
        blocks = start.reshape(start.shape[0], -1, group).transpose(1, 0, 2)
        forms = jax.lax.map(lambda part: run(*part, (group,))[0], (blocks, inputs.degrees.reshape(-1, group)))
        return Forms(
            mean=jnp.mean(forms.mean),
            values=forms.values.ravel(),
            squares=forms.squares.ravel(),
            outside=forms.outside[jnp.argmax(jnp.abs(forms.outside))],
            products=jnp.sum(forms.products),
        )


@quadratic_forms.def_jvp
def _quadratic_forms_jvp(primals: tuple, tangents: tuple) -> tuple[Forms, Forms]:
    (operator, inputs), (tangent, _) = primals, tangents
    rule = _paper if inputs.plan.gradient == "paper" else _series
    with jax.default_matmul_precision(inputs.plan.precision):
        forms, derivative = rule(operator, inputs, tangent)
        derivative = derivative + _control(operator, inputs, tangent)
    return forms, Forms(derivative.astype(forms.mean.dtype), None, None, None, None)  # type: ignore[arg-type]


def _derivative(function: Callable[[Operator], Array], operator: Operator, tangent: PyTree) -> Array:
    """Return the derivative along a tangent, which is None for fields that are not differentiated."""
    moving, rest = _split(operator, tangent)
    return jax.jvp(lambda part: function(eqx.combine(part, rest)), (moving,), (tangent,))[1]


def _split(operator: Operator, tangent: PyTree) -> tuple[Operator, Operator]:
    return eqx.partition(operator, jax.tree.map(lambda leaf: leaf is not None, tangent, is_leaf=lambda x: x is None))


def _series(operator: Operator, inputs: FormInputs, tangent: PyTree) -> tuple[Forms, Array]:
    start = inputs.start
    draws = (inputs.degrees, inputs.second) if inputs.plan.form == "inverse" else (inputs.degrees,)
    forms, vectors, _ = sweep(inputs.apply(operator), inputs.plan.tables, start, inputs.degrees, inputs.widths, draws)
    left = inputs.half(vectors[0])
    if inputs.plan.form == "inverse":
        # ∂ tr A⁻¹ = −tr(A⁻¹ ∂A A⁻¹): two independent truncations of B⁻¹ around ∂A.
        left, right = -left, inputs.half(vectors[1])
    else:
        right = inputs.half(start)
    change = _derivative(lambda moving: moving.mv(right), operator, tangent)
    return forms, jnp.sum(left * change) / start.shape[1]


def _paper(operator: Operator, inputs: FormInputs, tangent: PyTree) -> tuple[Forms, Array]:
    start, tables = inputs.start, inputs.plan.tables
    degrees = jnp.maximum(inputs.degrees, 1)
    apply = inputs.apply(operator)
    forms, _, last = sweep(apply, tables, start, inputs.degrees, inputs.widths, keep_last=True)
    count = start.shape[1]
    moving, rest = _split(operator, tangent)
    shifted = lambda block: tables.scale * apply(block) - tables.shift * block
    weigh = lambda j: jnp.where(j <= inputs.degrees, tables.weights.at[j].get(mode="fill", fill_value=0), 0)

    def accumulate(total: PyTree, adjoint: Array, state: Array, factor: Array) -> PyTree:
        right = inputs.half(state)
        _, pull = jax.vjp(lambda part: eqx.combine(part, rest).mv(right), moving)
        (part,) = pull(inputs.half(factor * tables.scale / count * adjoint))
        return jax.tree.map(jnp.add, total, part)

    def body(carry: tuple) -> tuple:
        # Holds w_j, w_{j−1} and y_{j+1}, y_{j+2}; adds the term y_jᵀ dÃ w_{j−1}.
        j, state, before, adjoint, after, total = carry
        active = (j <= degrees)[None, :]
        both = shifted(jnp.concatenate([adjoint, before], axis=1))
        latest = weigh(j)[None, :] * start + 2.0 * both[:, :count] - after
        total = accumulate(total, jnp.where(active, latest, 0), before, jnp.where(j == 1, 1.0, 2.0))
        back = 2.0 * both[:, count:] - state
        state, before = jnp.where(active, before, state), jnp.where(active, back, before)
        return j - 1, state, before, latest, adjoint, total

    zero = jnp.zeros_like(start)
    carry = (jnp.max(degrees), *last, zero, zero, jax.tree.map(jnp.zeros_like, moving))
    gradient = jax.lax.while_loop(lambda c: c[0] >= 1, body, carry)[-1]
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(tangent), strict=True)
    return forms, sum((jnp.sum(g * t) for g, t in pairs), jnp.zeros((), start.dtype))


def _control(operator: Operator, inputs: FormInputs, tangent: PyTree) -> Array:
    """Return the derivative of a control variate of mean zero, which takes the variance away as P → A.

    For log det: tr(P₀⁻¹∂P) − (P₀^(−½)v)ᵀ ∂P (P₀^(−½)v), where P₀ is the preconditioner of the plan and P(θ) the same
    construction at θ with its pivots frozen; for P₀ = P(θ) the first term is ∂ log det P. With P₀ in both terms it
    has mean zero also where the plan was made at another θ.
    """
    preconditioner = inputs.plan.preconditioner
    if preconditioner is None:
        return jnp.zeros((), inputs.probes.dtype)
    vectors, sign, power = inputs.half(inputs.probes), 1.0, 1
    if inputs.plan.form == "inverse":
        vectors, sign, power = inputs.half(vectors), -1.0, 2
    return sign * _derivative(lambda moving: preconditioner.control(moving, vectors, power), operator, tangent)
