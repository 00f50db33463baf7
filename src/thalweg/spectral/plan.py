"""The plan: everything about an estimate that must be concrete, made on the host.

Interval, coefficients, law and preconditioner are numbers that decide shapes, or that Python must look at. They are
gathered here once; the compiled estimate takes the plan as an argument.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from thalweg.spectral import degrees as laws
from thalweg.spectral.bounds import Spectrum
from thalweg.spectral.chebyshev import MAX_DEGREE, clenshaw, evaluate, series, to_unit
from thalweg.spectral.gradients import GRADIENTS
from thalweg.spectral.intervals import check_symmetric, find_interval, needs_positive, widen
from thalweg.spectral.operators import Operator, as_operator
from thalweg.spectral.precondition import LowRank, Preconditioner
from thalweg.spectral.probes import KINDS
from thalweg.spectral.recurrence import Tables
from thalweg.spectral.setup import make_preconditioner
from thalweg.spectral.tuning import Prediction, predict, thin


class Plan(eqx.Module):
    """A concrete plan for estimates of tr f(A); made by :func:`plan`, and reused for other keys and nearby parameters.

    Attributes
    ----------
    lower, upper
        The interval.
    mean_degree
        The mean N of the degree law.
    log_survival
        log S_j of the degree law (padded with −∞).
    rounding
        What rounding is expected to cost in the value, as one standard deviation.
    least_variance
        What degrees alone are predicted to make the value vary by.
    products
        Products with A spent on making the plan.
    samples
        f at a few points of the interval, by which it is known again.
    """

    tables: Tables
    log_survival: Float[Array, " n"]
    control: Float[Array, " n"]
    preconditioner: Preconditioner | None
    offset: Float[Array, ""]
    rounding: Float[Array, ""]
    least_variance: Float[Array, ""]
    lower: np.ndarray
    upper: np.ndarray
    mean_degree: np.ndarray
    products: np.ndarray
    samples: np.ndarray
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


def plan(
    f: Callable[[Any], Any] | str,
    A: Any,
    key: Key[Array, ""],
    *,
    dimension: int | None = None,
    probes: int = 32,
    degree: float | None = None,
    law: str = "optimal",
    rho: float | None = None,
    interval: tuple[float | None, float | None] | None = None,
    slack: float = 1.0,
    preconditioner: Any = None,
    probe: str = "rademacher",
    group: int | None = None,
    gradient: str | None = None,
    precision: str = "highest",
) -> Plan:
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
        How many probes one estimate draws: an even number (pairs make the error bar).
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
        A :class:`PivotedCholesky`, :class:`Nystrom`, :class:`Diagonal` or :class:`Own`.
    probe
        ``"rademacher"``, ``"gaussian"``, ``"sphere"`` or ``"orthogonal"``.
    group
        How many probes share a degree (the paper shares one among all). Groups are independent, and the error bar is
        made from them. Orthogonal probes are orthogonal within a group; 1 by default, 4 for them.
    gradient
        ``"series"`` or ``"paper"``: make the law suit this gradient too. None: a law for the value (the gradient is
        then ``"series"``, with a little more variance).
    precision
        The precision of matrix products on accelerators; ``"default"`` allows TF32.
    """
    operator = as_operator(A, dimension)
    if dimension is not None and dimension != operator.dimension:
        raise ValueError(f"dimension must be that of A, {operator.dimension}, or left out; found {dimension}")
    if not operator.concrete():
        raise TypeError(
            "a plan needs concrete arrays, and A is being traced by jit or vmap: make the plan outside, "
            "plan = thalweg.spectral.plan(f, A, key), and pass it in, logdet(A, key, plan=plan)"
        )
    operator.check_closed()
    operator = operator.frozen()
    units, group = _check_counts(probes, group, probe, operator.dimension)
    _check_names(law, gradient, slack)
    bounds_key, preconditioner_key, symmetry_key = jax.random.split(key, 3)
    check_symmetric(operator, symmetry_key)
    function, form = _function(f, preconditioner)
    if preconditioner is None:
        built, spent = None, 0
    else:
        built, spent = make_preconditioner(preconditioner, operator, preconditioner_key, probes)
    bounds = find_interval(function, operator, built, bounds_key, interval)
    lower, upper = widen(bounds.lower, bounds.upper, slack, needs_positive(function))
    dtype = operator.dtype
    # Ã = scale·A − shift is applied in the operator's precision: take as the interval what the rounded numbers mean.
    scale = float(np.asarray(2.0 / (upper - lower), dtype))
    shift = float(np.asarray((upper + lower) / (upper - lower), dtype))
    lower, upper = (shift - 1.0) / scale, (shift + 1.0) / scale
    value = series(function, lower, upper)
    slope = series((lambda x: 1.0 / x) if form == "inverse" else function, lower, upper, derivative=form != "inverse")
    nodes, weights = _density(bounds, lower, upper, value.size)
    centre = float(to_unit(1.0, lower, upper)) if isinstance(built, LowRank) else -1.0
    chosen, predicted = _choose_law(
        law, value, slope, degree, gradient, rho, nodes, weights, operator.dimension, units // 2, centre
    )
    laws.warn_if_infinite(value, chosen)
    return Plan(
        **_tables(chosen, value, slope, centre, predicted.coefficient, scale, shift, dtype),
        preconditioner=built,
        offset=_offset(form, built, dtype),
        rounding=jnp.asarray(_rounding(function, nodes, weights, lower, upper, operator), dtype),
        least_variance=jnp.asarray(predicted.degree / units, dtype),
        lower=np.asarray(lower),
        upper=np.asarray(upper),
        mean_degree=np.asarray(chosen.mean),
        products=np.asarray(spent + bounds.products),
        samples=_samples(f, lower, upper),
        dimension=operator.dimension,
        units=units,
        group=group,
        probe=probe,
        form=form,
        gradient=gradient or "series",
        precision=precision,
    )


def check_planned(plan: Plan, f: Callable[[Any], Any] | str) -> None:
    """Refuse a plan that was made for another function: its coefficients are not those of ``f``."""
    arrays = (plan.lower, plan.upper, plan.samples)
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        return
    lower, upper, planned = (np.asarray(array, float) for array in arrays)
    found = _samples(f, float(lower), float(upper))
    if not np.allclose(found, planned, rtol=1e-6, atol=1e-6 * float(np.max(np.abs(planned))), equal_nan=True):
        raise ValueError(
            f"plan was made for another function: there f({upper:.4g}) is {planned[-1]:.6g}, here it is "
            f"{found[-1]:.6g}. Make one for this sum."
        )


def _samples(f: Callable[[Any], Any] | str, lower: float, upper: float) -> np.ndarray:
    function, _ = _function(f, None)
    return evaluate(function, np.linspace(lower, upper, 4)[1:])


def _function(f: Any, preconditioner: Any) -> tuple[Callable[[Any], Any], str]:
    if f == "log":
        return jnp.log, "log" if preconditioner is not None else "plain"
    if f == "inverse":
        if preconditioner is not None:
            # tr A⁻¹ = tr P⁻¹ + tr P^(−½)(B⁻¹ − I)P^(−½): the first term is known, the second vanishes as P → A.
            return lambda x: 1.0 / x - 1.0, "inverse"
        return lambda x: 1.0 / x, "plain"
    if preconditioner is not None:
        raise ValueError("a preconditioner works for log and 1/x only: f must be 'log' or 'inverse'")
    if not callable(f):
        raise TypeError(f"f must be a function written in jax.numpy, 'log' or 'inverse'; found {f!r}")
    return f, "plain"


def _offset(form: str, built: Preconditioner | None, dtype: Any) -> Array:
    if built is None:
        return jnp.zeros((), dtype)
    known = built.log_determinant if form == "log" else built.inverse_trace
    if not bool(jnp.isfinite(known)):
        name = "log_determinant" if form == "log" else "inverse_trace"
        raise ValueError(f"the preconditioner's {name} must be finite for this sum, found {float(known)}: pass {name}=")
    return jnp.asarray(known, dtype)


def _check_counts(probes: int, group: int | None, probe: str, dimension: int) -> tuple[int, int]:
    if probe not in KINDS:
        raise ValueError(f"probe must be one of {', '.join(KINDS)}; found {probe!r}")
    if group is None:
        wide = probe == "orthogonal" and isinstance(probes, int | np.integer)
        group = next((g for g in range(min(4, dimension), 1, -1) if wide and probes % (2 * g) == 0), 1)
    group = int(group)
    if group < 1:
        raise ValueError(f"group must be at least 1, found {group}")
    if probe == "orthogonal" and group > dimension:
        raise ValueError(
            f"group: at most {dimension} probes can be orthogonal in {dimension} dimensions, found {group}"
        )
    if not isinstance(probes, int | np.integer) or probes < 2 * group or probes % (2 * group):
        raise ValueError(
            f"probes must be a positive multiple of {2 * group} (pairs of groups of {group} make the error bar), "
            f"found {probes!r}"
        )
    return int(probes) // group, group


def _check_names(law: str, gradient: str | None, slack: float) -> None:
    if law not in laws.LAWS:
        raise ValueError(f"law must be one of {', '.join(laws.LAWS)}; found {law!r}")
    if gradient is not None and gradient not in GRADIENTS:
        raise ValueError(f"gradient must be None or one of {', '.join(GRADIENTS)}; found {gradient!r}")
    if not slack >= 1:
        raise ValueError(f"slack must be at least 1, found {slack}")


def _density(bounds: Spectrum, lower: float, upper: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Ritz values on [−1, 1] and their weights, few enough for the tables of all degrees."""
    nodes = np.clip(to_unit(bounds.nodes, lower, upper), -1.0, 1.0)
    return thin(nodes, bounds.weights, max(8, min(400, 10_000_000 // max(size, 1))))


def _choose_law(
    name: str,
    value: np.ndarray,
    slope: np.ndarray,
    degree: float | None,
    gradient: str | None,
    rho: float | None,
    nodes: np.ndarray,
    weights: np.ndarray,
    dimension: int,
    strata: int,
    centre: float,
) -> tuple[laws.Law, Prediction]:
    size = max(value.size, slope.size)
    padded = np.append(value, np.zeros(size - value.size))
    last = size - 1 if gradient else value.size - 1
    # What (12) truncates are the coefficients of the derivative of the polynomial: j b_j.
    other = slope if gradient != "paper" else np.arange(value.size) * value

    def best(mean: float) -> laws.Law:
        mean = min(mean, float(max(last, 1)))
        return laws.joint(padded, other, mean) if gradient else laws.optimal(padded, mean)

    predicted = lambda law: predict(padded, law, nodes, weights, dimension, strata, centre)
    if degree is None:
        grid = np.unique(np.minimum(np.geomspace(4.0, max(4.0, last), 16), max(last, 1)))
        candidates = [best(mean) for mean in grid]
        values = [predicted(law) for law in candidates]
        scores = [figure.variance * figure.work for figure in values]
        if gradient:
            # Value and gradient each in units of what their probes alone would vary by.
            slopes = [predict(slope, law, nodes, weights, dimension, strata, centre) for law in candidates]
            excess = lambda figure: figure.variance / max(figure.probe, np.finfo(np.float64).tiny)
            scores = [(excess(v) + excess(s)) * v.work for v, s in zip(values, slopes, strict=True)]
        degree = float(grid[int(np.argmin(scores))])
    if not degree > 0:
        raise ValueError(f"degree (the mean of the law) must be positive, found {degree}")
    if name == "optimal":
        law = best(degree)
    elif name == "theorem3":
        law = laws.theorem3(padded, degree, rho)
    else:
        law = laws.LAWS[name](padded, degree)
    found = predicted(_floored(law))
    # The control variate has mean zero only under a law that leaves nothing out.
    return law, found._replace(coefficient=0.0) if law.biased else found


def _floored(law: laws.Law) -> laws.Law:
    """The law as it is sampled: no degree rarer than the uniform numbers can draw."""
    if law.name == "fixed":
        return law
    return law._replace(log_survival=np.maximum(law.log_survival, np.log(laws.FLOOR)))


def _tables(
    law: laws.Law,
    value: np.ndarray,
    slope: np.ndarray,
    centre: float,
    coefficient: float,
    scale: float,
    shift: float,
    dtype: Any,
) -> dict[str, Any]:
    """Weights b_j/S_j and the control variate of every degree, padded to a power of two: few shapes to compile for."""
    size = law.log_survival.size
    logs = _floored(law).log_survival
    length = max(8, 1 << (size - 1).bit_length())
    if length > 2 * MAX_DEGREE:
        raise ValueError(f"the series has {size} coefficients: the interval is too wide; use a preconditioner")

    def weigh(b: np.ndarray) -> np.ndarray:
        padded = np.zeros(length)
        inverse = np.where(np.isneginf(logs), 0.0, np.exp(-np.maximum(logs, -700.0)))
        padded[: b.size] = b * inverse[: b.size]
        return padded

    weights = weigh(value)
    if not np.max(np.abs(weights)) < float(jnp.finfo(dtype).max):
        raise ValueError(
            f"f is too large for {dtype} on the interval: a coefficient is {np.max(np.abs(weights)):.3g}. "
            "Use float64, or scale f."
        )
    signs = np.cos(np.arange(length) * np.arccos(np.clip(centre, -1.0, 1.0)))
    control = np.cumsum(weights * signs) - clenshaw(value, centre)
    padded_logs = np.full(length, -np.inf)
    padded_logs[:size] = logs
    tables = Tables(
        jnp.asarray(scale, dtype),
        jnp.asarray(shift, dtype),
        jnp.asarray(weights, dtype),
        jnp.asarray(weigh(slope), dtype),
    )
    return {
        "tables": tables,
        "log_survival": jnp.asarray(padded_logs, dtype),
        "control": jnp.asarray(coefficient * control, dtype),
    }


def _rounding(
    function: Callable[[Any], Any],
    nodes: np.ndarray,
    weights: np.ndarray,
    lower: float,
    upper: float,
    operator: Operator,
) -> float:
    """What rounding is expected to cost: a product moves an eigenvalue by a fraction of eps·‖A‖, f by f′ times that."""
    points = 0.5 * (upper - lower) * nodes + 0.5 * (upper + lower)
    points = np.clip(points, lower, upper)
    slopes = np.abs(evaluate(function, points, derivative=True))
    values = np.abs(evaluate(function, points))
    eps = float(jnp.finfo(operator.dtype).eps)
    moved = 0.1 * (upper - lower) * float(weights @ slopes) + float(weights @ values)
    return eps * operator.dimension * moved
