"""The plan: everything about an estimate that must be concrete, made on the host.

Interval, coefficients, law and preconditioner are numbers that decide shapes, or that Python must look at. They are
gathered here once; the compiled estimate takes the plan as an argument.
"""

from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, frozen, is_concrete, is_traced
from thalweg.linalg.operators.convert import as_operator, check_dimension
from thalweg.spectral import bounds, chebyshev
from thalweg.spectral import degrees as laws
from thalweg.spectral.chebyshev import Function, IllConditionedError, evaluate, series
from thalweg.spectral.estimate import Plan
from thalweg.spectral.exact import by_cholesky
from thalweg.spectral.functions import named, reciprocal
from thalweg.spectral.gradients import GRADIENTS
from thalweg.spectral.precondition import PreconditionerRequest
from thalweg.spectral.probes import KINDS
from thalweg.spectral.recurrence import Tables
from thalweg.spectral.tuning import Tuner, thin

__all__ = ["plan"]

MAX_CONDITION = 1e7
"""κ = upper/lower beyond which a series that is singular at 0 is refused: it has about 18√κ terms, each a product.
Twice as much takes 1.4 times as many."""


@dataclass(frozen=True)
class PlanOptions:
    """The options of :func:`plan`, with their defaults."""

    probes: int = 32
    degree: float | None = None
    law: str = "optimal"
    rho: float | None = None
    interval: tuple[float | None, float | None] | None = None
    slack: float = 1.0
    preconditioner: Any = None
    probe: str = "rademacher"
    group: int | None = None
    gradient: str | None = None
    precision: str = "highest"

    @classmethod
    def of(cls, options: dict[str, Any]) -> "PlanOptions":
        """Return the options, and refuse unknown ones."""
        known = [field.name for field in fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise TypeError(
                    f"a spectral sum has no option {name!r}, found {name}={value!r}; it has plan, rtol, atol, "
                    f"budget, method, dimension, {', '.join(known)}"
                )
        return cls(**options)

    def check(self, f: Function, dimension: int) -> tuple[int, int]:
        """Check all of them, and return how many groups of how many probes there are."""
        arguments.one_of("law", self.law, laws.LAWS)
        arguments.one_of("precision", self.precision, ("default", "high", "highest"))
        arguments.one_of("probe", self.probe, KINDS)
        if self.gradient is not None:
            arguments.one_of("gradient", self.gradient, GRADIENTS)
        for name, value, above in (("degree", self.degree, 0.0), ("rho", self.rho, 1.0)):
            if value is not None:
                arguments.real(name, value, above=above)
        arguments.real("slack", self.slack, least=1)
        bounds.check_interval(self.interval)
        _form(f, self.preconditioner)
        probes, group, together = self.probes, self.group, self.probe == "orthogonal"
        arguments.whole("probes", probes, least=1 if group == 1 else 2)
        if group is None:
            group = next((g for g in range(min(4, dimension), 1, -1) if together and probes % (2 * g) == 0), 1)
        # No more probes than there are dimensions can be orthogonal.
        arguments.whole("group", group, most=dimension if together else None)
        if probes % (2 * group) and probes != group:
            raise ValueError(
                f"probes must be a multiple of {2 * group} (pairs of groups of {group} make the error bar), found "
                f"{probes}"
            )
        return probes // group, group


def plan(f: Function | str, A: Any, key: Key[Array, ""], *, dimension: int | None = None, **options: Any) -> Plan:
    """Make a plan for tr f(A).

    Parameters
    ----------
    f
        An elementwise function written in :mod:`jax.numpy`, analytic on the interval; or ``"log"`` or ``"inverse"``,
        the two that can be preconditioned.
    A
        See :func:`thalweg.spectral.as_operator`.
    key
        For the search of the interval and of the preconditioner: independent of the keys of the estimates.
    dimension
        The length of the vectors, if ``A`` is a plain function.
    probes
        How many probes one estimate draws: an even number (pairs make the error bar) unless all share one degree.
    degree
        The mean degree N; chosen by variance × work if None.
    law
        One of ``"optimal"``, ``"theorem3"``, ``"geometric"``, ``"poisson"``, ``"negative_binomial"``, ``"fixed"``
        (biased).
    rho
        The ρ of Theorem 3; fitted to the coefficients if None.
    interval
        ``(lower, upper)``, either of them None to be found.
    slack
        Widen the interval by this factor, so that the plan stays valid while parameters move.
    preconditioner
        A :class:`PivotedCholesky`, :class:`Nystrom`, :class:`Jacobi` or :class:`Own`.
    probe
        ``"rademacher"``, ``"gaussian"``, ``"sphere"`` or ``"orthogonal"``.
    group
        How many probes share a degree. Groups are independent, and the error bar is made from them. With as many as
        there are probes one degree serves them all, which is the paper's estimator (12); its error bar is unknown, and
        NaN. Orthogonal probes are orthogonal within a group; 1 by default, 4 for them.
    gradient
        ``"series"`` or ``"paper"``: make the law suit this gradient too. None: a law for the value (the gradient is
        then ``"series"``, with a little more variance).
    precision
        The precision of matrix products on accelerators; ``"default"`` allows TF32.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> p = plan(jnp.sqrt, 4.0 * np.eye(3), jax.random.key(0), probes=4)
    >>> round(float(p.estimate(4.0 * np.eye(3), jax.random.key(1)).value), 4)
    6.0
    """
    operator = check_dimension(as_operator(A, dimension), dimension)
    key = arguments.random_key("key", key)
    if not is_concrete(operator) or is_traced((key, jnp.zeros(()))):
        raise TypeError(
            "a plan needs concrete arrays, and A is being traced by jit or vmap: make the plan outside, "
            "plan = thalweg.spectral.plan(f, A, key), and pass it in, plan.estimate(A, key)"
        )
    return make_plan(named(f), frozen(operator), key, PlanOptions.of(options))


def make_plan(f: Function, operator: Operator, key: Key[Array, ""], options: PlanOptions) -> Plan:
    """Make a plan for a function and an operator that have been checked."""
    units, group = options.check(f, operator.dimension)
    function, form = _form(f, options.preconditioner)
    given, positive = bounds.check_interval(options.interval), chebyshev.needs_positive(function)
    ratio = bounds.check_symmetric(operator, key)
    if given[0] is None and positive:
        bounds.refuse_null_constant(ratio, operator.dtype, by_cholesky(f))
    built = options.preconditioner and options.preconditioner.build(operator, key, options.probes)
    definite = positive or built is not None
    spectrum = bounds.find_spectrum(operator, built, key, positive=definite, given=given, function=function)
    lower, upper = bounds.widen(spectrum.lower, spectrum.upper, options.slack, positive)
    if positive and given[0] is None and upper > MAX_CONDITION * lower:
        raise IllConditionedError(
            f"A is too ill-conditioned for products alone: its eigenvalues reach from about {lower:.2g} to "
            f"{upper:.2g}. Use a preconditioner, shift it (A + εI), or use method='exact' where it fits."
        )
    # The map Ã = scale·A − shift onto [−1, 1] is applied in the operator's precision: take as the interval what the
    # rounded numbers mean.
    scale = float(np.asarray(2.0 / (upper - lower), operator.dtype))
    shift = float(np.asarray((upper + lower) / (upper - lower), operator.dtype))
    lower, upper = (shift - 1.0) / scale, (shift + 1.0) / scale
    to_unit = lambda x: chebyshev.to_unit(x, lower, upper)
    value = series(function, lower, upper, at=np.clip(spectrum.nodes, lower, upper))
    tuner = Tuner(
        value,
        series(reciprocal if form == "inverse" else function, lower, upper, derivative=form != "inverse"),
        *thin(np.clip(to_unit(spectrum.nodes), -1.0, 1.0), spectrum.weights, value.size),
        dimension=operator.dimension,
        strata=max(1, units // 2),
        centre=-1.0 if built is None or built.least() is None else float(to_unit(1.0)),
        probe_share=bounds.off_diagonal_share(operator, key) if options.probe == "rademacher" and not built else 1.0,
    )
    law = tuner.choose(options.law, options.degree, options.gradient, options.rho)
    laws.warn_if_infinite(value, law)
    predicted = tuner.predict(value, law.floored)
    weighted, slopes, log_survival, control = _tables(tuner, law, predicted.coefficient, operator.dtype)
    scalar = lambda x: jnp.asarray(x, operator.dtype)
    return Plan(
        tables=Tables(scalar(scale), scalar(shift), weighted, slopes),
        log_survival=log_survival,
        control=control,
        preconditioner=built,
        offset=scalar(0.0 if built is None else built.offset(form)),
        rounding=scalar(_rounding(function, tuner, lower, upper, operator.dtype)),
        least_error=scalar(np.sqrt(max(predicted.degree, 0.0) / units)),
        lower=np.asarray(lower),
        upper=np.asarray(upper),
        mean_degree=np.asarray(law.mean),
        products=np.asarray(spectrum.products + (0 if built is None else built.products)),
        f=f,
        dimension=operator.dimension,
        units=units,
        group=group,
        probe=options.probe,
        form=form,
        gradient=options.gradient or "series",
        precision=options.precision,
    )


def _form(f: Function, preconditioner: Any) -> tuple[Function, str]:
    """Return the function that is expanded, and how tr f(A) follows from its sum."""
    if preconditioner is None:
        return f, "plain"
    arguments.instance(
        "preconditioner",
        preconditioner,
        PreconditionerRequest,  # type: ignore[type-abstract]
        "PivotedCholesky(), Nystrom(), Jacobi() or Own(...)",
    )
    if f is jnp.log:
        return f, "log"
    if f is reciprocal:
        return _excess, "inverse"
    raise ValueError("a preconditioner works for log and 1/x only: f must be 'log' or 'inverse'")


def _excess(x: Any) -> Any:
    """tr A⁻¹ = tr P⁻¹ + tr P^(−½)(B⁻¹ − I)P^(−½): the first term is known, the second vanishes as P → A."""
    return 1.0 / x - 1.0


def _tables(tuner: Tuner, law: laws.Law, coefficient: float, dtype: Any) -> list[Array]:
    """b_j/S_j, b′_j/S_j, log S_j and the control variate, padded to a power of two: few shapes to compile for."""
    logs = law.floored.log_survival
    length = max(256, 1 << (logs.size - 1).bit_length())
    inverse = np.where(np.isneginf(logs), 0.0, np.exp(-np.maximum(logs, -700.0)))
    weigh = lambda b: np.append(b * inverse[: b.size], np.zeros(length - b.size))
    weights = weigh(tuner.value)
    if not np.max(np.abs(weights)) < float(jnp.finfo(dtype).max):
        raise ValueError(
            f"f is too large for {dtype} on the interval: a coefficient is {np.max(np.abs(weights)):.3g}. "
            "Use float64, or scale f."
        )
    signs = np.cos(np.arange(length) * np.arccos(np.clip(tuner.centre, -1.0, 1.0)))
    control = coefficient * (np.cumsum(weights * signs) - chebyshev.chebval(tuner.centre, tuner.value))
    padded = np.append(logs, np.full(length - logs.size, -np.inf))
    return [jax.device_put(table.astype(dtype)) for table in (weights, weigh(tuner.slope), padded, control)]


def _rounding(function: Function, tuner: Tuner, lower: float, upper: float, dtype: Any) -> float:
    """Return the expected rounding error: a product moves an eigenvalue by a fraction of eps·‖A‖, f by f′ times it."""
    points = np.clip(chebyshev.from_unit(tuner.nodes, lower, upper), lower, upper)
    slopes, values = (np.abs(evaluate(function, points, derivative=derivative)) for derivative in (True, False))
    moved = 0.1 * (upper - lower) * float(tuner.weights @ slopes) + float(tuner.weights @ values)
    # Also where eigenvalues may lie between the nodes; and the rounding of the coefficients, all of one sign.
    degrees = np.arange(tuner.value.size)
    anywhere = np.sqrt(tuner.dimension) * np.linalg.norm(degrees * tuner.value)
    series = tuner.dimension * np.sqrt(degrees.size) * chebyshev.EPS * np.sum(np.abs(tuner.value))
    return float(np.hypot(float(jnp.finfo(dtype).eps) * np.hypot(tuner.dimension * moved, anywhere), series))
