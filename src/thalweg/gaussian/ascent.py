"""The bound maximised by natural-gradient steps, driven from the host.

Each step is the KL-proximal step of :class:`~thalweg.gaussian.divergence.GaussianKL` with the share ρ = β/(1 + β) of
the way: a whole one, ρ = 1, is Newton's. A step is halved until it improves the bound, but for rounding, or shortens
the natural gradient, which alone tells where the nodes of a quadrature hide the little that is left to gain. Steps end
where neither improves. Arrays of NumPy need no compiling.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.descent import History, Status
from thalweg.gaussian.divergence import GaussianKL
from thalweg.linalg import namespace
from thalweg.runs import Run

MIN_DEVICE_NUMBERS = 2**24
"""Numbers in a design from which a step takes the host about a second, and so longer than compiling is worth: twice as
many only delay the use of a GPU."""

ROUNDING = 100
"""Relative errors, in units of float64's, of a bound that is a sum over many rows. With ten, steps would be halved for
nothing; with a thousand, they could circle around the optimum."""


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
        Posteriors of NumPy's arrays, or of JAX's, as those of ``oracle`` and ``term`` are: steps begin at the first
        whose bound is finite.

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
    place_of = _HOST if namespace(starts[0].mean) is np else _DEVICE
    move = partial(_move, place_of, oracle, term)
    status, share, least_share = Status.STEPS_SPENT, 1.0, np.sqrt(np.finfo(float).eps)
    with Run("natural-gradient steps", total=max_iter) as run, np.errstate(all="ignore"):
        point = _first_finite(place_of.evaluate, oracle, term, starts)
        for number in range(1, max_iter + 1):
            rounding = ROUNDING * np.finfo(float).eps * abs(point.loss)
            ahead = move(point, share)
            while not (ahead.loss <= point.loss + rounding or ahead.residual < point.residual) and share > least_share:
                share /= 2
                ahead = move(point, share)
            gains = ahead.loss < point.loss - rounding or ahead.residual < point.residual
            if not (gains or ahead.residual <= tol):
                status = Status.STAGNATED
                break
            residual = float(ahead.residual)
            run.keep(ahead, step=number, value=float(ahead.loss), residual=residual, size=float(_size(share)))
            run.advance(note=f"natural gradient {residual:.1e}")
            share, point = _next_share(share, point, ahead), ahead
            if residual <= tol:
                status = Status.CONVERGED
                break
    status = Status.INTERRUPTED if run.interrupted else status
    point = run.kept or point
    return AscentResult(point.x, float(point.loss), len(run.records), status, _history(run.records))


def _history(records: list[dict[str, Any]]) -> History:
    columns = {name: [record[name] for record in records] for name in ("step", "value", "residual", "size", "seconds")}
    return History(columns | {"work": columns["step"], "seconds": np.cumsum(columns["seconds"])})


def _evaluate(oracle: Any, term: Any, x: Any) -> _Point:
    out = oracle.full(x)
    whole: Any = np.inf
    target = _DIVERGENCE.step(x, out.gradient, whole, term)
    residual = _DIVERGENCE.residual_norm(x, target, whole)
    return _Point(x, out.value + term.value(x), out.gradient, target, residual)


def _first_finite(evaluate: Callable[..., _Point], oracle: Any, term: Any, starts: tuple) -> _Point:
    for start in starts:
        point = evaluate(oracle, term, start)
        if np.isfinite(point.loss):
            break
    return point


def _size(share: float) -> np.float64:
    """β, of which a step takes the share β/(1 + β) of the way."""
    return np.divide(share, 1 - share)


def _next_share(share: float, before: _Point, point: _Point) -> float:
    """Estimate the share that would leave nothing of the way, by what the last step left of it.

    Along the slowest direction a share ρ leaves 1 − ρ(1 − μ) of the way, and 1/(1 − μ) would leave nothing: whole steps
    can circle around the optimum. Growth is slow, since the estimate may be of another direction than the next step's.
    """
    ratio = float(_inner_product(point, before)) / max(float(_inner_product(before, before)), np.finfo(float).tiny)
    return float(np.clip(share / max(1 - ratio, share), share / 2, min(1.2 * share, 1.0)))


def _inner_product(point: _Point, other: _Point) -> Any:
    """That of the ways from two points to their targets which makes the symmetric KL a square, to first order."""
    shift, other_shift = point.target.mean - point.x.mean, other.target.mean - other.x.mean
    precisions, covariances = point.target.precision - point.x.precision, other.target.covariance - other.x.covariance
    return shift @ (point.x.precision @ other_shift) - (precisions * covariances).sum() / 2


class _Place(NamedTuple):
    """The functions of a step, as they are or compiled."""

    evaluate: Callable[..., _Point]
    step: Callable[..., Any]


def _move(place: _Place, oracle: Any, term: Any, point: _Point, share: float) -> _Point:
    x = point.target if share == 1 else place.step(point.x, point.gradient, _size(share), term)
    return place.evaluate(oracle, term, x)


_DIVERGENCE = GaussianKL()
_HOST, _DEVICE = _Place(_evaluate, _DIVERGENCE.step), _Place(jax.jit(_evaluate), jax.jit(_DIVERGENCE.step))
