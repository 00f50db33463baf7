"""The bound maximised by natural-gradient steps, driven from the host.

Each step is the KL-proximal step of :class:`~thalweg.gaussian.divergence.GaussianKL` with the share ρ = β/(1 + β) of
the way, extrapolated from the last few: a whole one, ρ = 1, is Newton's. A step is halved until it improves the bound,
but for rounding, or shortens the natural gradient, which alone tells where the nodes of a quadrature hide the little
that is left to gain. Steps end where neither improves. Arrays of NumPy need no compiling.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.descent import History, Status
from thalweg.gaussian.divergence import GaussianKL
from thalweg.linalg import namespace
from thalweg.runs import Run
from thalweg.trees import call

MIN_DEVICE_NUMBERS = 2**24
"""Numbers in a design from which a step takes the host about a second, and so longer than compiling is worth: twice as
many only delay the use of a GPU."""

ROUNDING = 100
"""Relative errors, in units of float64's, of a bound that is a sum over many rows. With ten, steps would be halved for
nothing; with a thousand, they could circle around the optimum."""

MEMORY = 4
"""Points from which the next is extrapolated. With half as many, separable classes take twice the steps; with more,
nothing is gained."""


class AscentResult(NamedTuple):
    """The posterior that natural-gradient steps ended with, and how they got there."""

    x: Any
    loss: float
    """−bound."""
    steps: int
    status: Status
    history: History


class _Point(NamedTuple):
    """A posterior x, its −bound, the gradient of f, where a whole step leads, and the natural gradient's length."""

    x: Any
    loss: Any
    gradient: Any
    target: Any
    residual: Any


def place(parts: Any, numbers: int) -> Any:
    """Put the arrays of a problem of so many numbers where steps are fast: on the host, or on an accelerator."""
    on_device = jax.default_backend() != "cpu" and numbers >= MIN_DEVICE_NUMBERS
    return jax.tree.map(jnp.asarray if on_device else np.asarray, parts)


def maximise_bound(oracle: Any, term: Any, *starts: Any, tol: float, max_iter: int) -> AscentResult:
    """Take steps until the natural gradient is as short as ``tol``.

    Parameters
    ----------
    oracle
        f = −E log p, with the method ``full``.
    term
        h, the KL to the prior.
    *starts
        Posteriors of NumPy's arrays, or of JAX's, as those of ``oracle`` and ``term`` are: steps begin at the
        one with the highest bound.

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit, Full, KLToNormal
    >>> from thalweg.gaussian.oracle import WeightLikelihood
    >>> ones, prior = np.ones(1), Full(np.zeros(1), np.eye(1), np.eye(1))
    >>> likelihood = WeightLikelihood(BernoulliLogit(), targets=ones, weights=ones, offset=0 * ones, design=np.eye(1))
    >>> result = maximise_bound(likelihood, KLToNormal(prior), prior, tol=1e-6, max_iter=100)
    >>> result.x.mean.round(4), result.status.name
    (array([0.4131]), 'CONVERGED')
    """
    evaluate_at, step, *of_points = _ON_HOST if namespace(starts[0].mean) is np else _COMPILED

    def evaluate(x: Any) -> _Point:
        point = evaluate_at(oracle, term, x)
        return point._replace(loss=float(point.loss), residual=float(point.residual))

    status, least_share = Status.STEPS_SPENT, np.sqrt(np.finfo(float).eps)
    with Run("natural-gradient steps", total=max_iter) as run, np.errstate(all="ignore"):
        point = min(map(evaluate, starts), key=lambda point: np.nan_to_num(point.loss, nan=np.inf))
        recent = [point]
        for number in range(1, max_iter + 1):
            rounding = ROUNDING * np.finfo(float).eps * abs(point.loss)
            share, ahead = 1.0, evaluate(_extrapolated(recent, term, *of_points))
            while not (ahead.loss <= point.loss + rounding or _closer(ahead, point)) and share > least_share:
                share, recent = (share if len(recent) > 1 else share / 2), [point]
                ahead = evaluate(step(point.x, point.gradient, _size(share), term))
            gains = ahead.loss < point.loss - rounding or _closer(ahead, point)
            if not (gains or ahead.residual <= tol):
                status = Status.STAGNATED
                break
            run.keep(ahead, step=number, value=ahead.loss, residual=ahead.residual, size=float(_size(share)))
            run.advance(note=f"natural gradient {ahead.residual:.1e}")
            recent, point = [*recent[1 - MEMORY :], ahead], ahead
            if ahead.residual <= tol:
                status = Status.CONVERGED
                break
    status = Status.INTERRUPTED if run.interrupted else status
    point = run.kept or point
    names = "step", "value", "residual", "size", "seconds"
    columns = {name: [record[name] for record in run.records] for name in names}
    history = History(columns | {"work": columns["step"], "seconds": np.cumsum(columns["seconds"])})
    return AscentResult(point.x, point.loss, len(run.records), status, history)


def _evaluate(oracle: Any, term: Any, x: Any) -> _Point:
    out = oracle.full(x)
    target = call(_DIVERGENCE, "step", x, out.gradient, np.inf, term)
    residual = call(_DIVERGENCE, "residual_norm", x, target, np.inf)
    loss = out.value + call(term, "value", x) + 0 * residual  # no number where no step leads on
    return _Point(x, loss, out.gradient, target, residual)


def _closer(ahead: _Point, point: _Point) -> bool:
    """Whether the natural gradient is shorter, and so short that it would gain less than half a nat."""
    return ahead.residual < min(point.residual, 1)


def _size(share: float) -> Any:
    """β, of which a step takes the share β/(1 + β) of the way."""
    return np.divide(share, 1 - share)


def _inner(a: _Point, b: _Point) -> Any:
    """Return the inner product of the natural gradients at two points."""
    return a.x.inner(a.target, b.x, b.target)


def _combine(coefficients: np.ndarray, points: list[_Point], term: Any) -> Any:
    """Return the posterior whose natural parameters combine those of the points' targets."""
    naturals = zip(*(point.target.natural() for point in points), strict=True)
    combined = [sum(c * part for c, part in zip(coefficients, parts, strict=True)) for parts in naturals]
    return points[0].x.from_natural(*combined, term)


def _extrapolated(recent: list[_Point], term: Any, inner: Callable[..., Any], combine: Callable[..., Any]) -> Any:
    """Combine the targets of the last points so that the natural gradient vanishes, if it is linear (Anderson 1965).

    Along some directions whole steps circle around the optimum, along others they creep towards it.
    """
    products = np.array([[float(inner(a, b)) for a in recent] for b in recent])
    if len(recent) == 1 or not np.all(np.isfinite(products)):
        return recent[-1].target
    products = (products + products.T) / 2 + np.finfo(float).eps * np.trace(products) * np.eye(len(recent))
    coefficients = np.linalg.lstsq(products, np.ones(len(recent)), rcond=None)[0]
    missing = MEMORY - len(recent)  # As many points each time, so that one program does.
    padded = np.append(coefficients / coefficients.sum(), np.zeros(missing))
    return combine(padded, recent + recent[-1:] * missing, term)


_DIVERGENCE = GaussianKL()
_ON_HOST: tuple[Callable[..., Any], ...] = (_evaluate, _DIVERGENCE.step, _inner, _combine)
_COMPILED = tuple(map(jax.jit, _ON_HOST))
