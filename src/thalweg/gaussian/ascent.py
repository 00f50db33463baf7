"""The bound maximised by natural-gradient steps, driven from the host.

Each step is the KL-proximal step of :class:`~thalweg.gaussian.divergence.GaussianKL` with the share ρ = β/(1 + β) of
the way: a whole one, ρ = 1, is Newton's. A step is halved until it lowers −bound or shortens the natural gradient: the
latter alone tells where rounding, or nodes of a quadrature, hide what is left to gain. Arrays of NumPy need no
compiling; for arrays of JAX one program makes a step and evaluates where it leads.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.descent import History, Status
from thalweg.gaussian.divergence import GaussianKL
from thalweg.gaussian.posteriors import Implicit
from thalweg.linalg import namespace
from thalweg.runs import Run

MIN_DEVICE_NUMBERS = 2**24
"""Numbers in a design from which a step takes the host about a second, and so longer than compiling is worth: twice as
many only delay the use of a GPU."""


class AscentResult(NamedTuple):
    """The posterior that natural-gradient steps ended with, and how they got there."""

    x: Any
    loss: float
    """−bound."""
    steps: int
    status: Status
    history: History


class _Point(NamedTuple):
    """A posterior, its −bound, the gradient of f there, and the natural gradient of the step that led to it."""

    x: Any
    loss: Any
    gradient: Any
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
    step = _step if namespace(starts[0].mean) is np else _compiled_step
    status, share, residual, before = Status.STEPS_SPENT, 1.0, 0.0, None
    with Run("natural-gradient steps", total=max_iter) as run, np.errstate(all="ignore"):
        for start in starts:
            point = step(oracle, term, start, jax.tree.map(np.zeros_like, start), np.float64(0))
            if np.isfinite(point.loss):
                break
        for number in range(1, max_iter + 1):
            ahead = step(oracle, term, point.x, point.gradient, _size(share))
            while not (ahead.loss <= point.loss or ahead.residual < residual):
                share /= 2
                if share < np.finfo(float).eps:
                    break
                ahead = step(oracle, term, point.x, point.gradient, _size(share))
            else:
                way = _way(ahead.x, point.x, share)
                point, residual = ahead, float(ahead.residual)
                size = _size(share)
                run.keep(point, step=number, value=float(point.loss), residual=residual, size=size, work=1.0)
                run.advance(note=f"natural gradient {residual:.1e}")
                if residual <= tol:
                    status = Status.CONVERGED
                    break
                share, before = _next_share(share, way, before), (share, way)
                continue
            status = Status.STAGNATED
            break
    status = Status.INTERRUPTED if run.interrupted else status
    columns = {name: [record[name] for record in run.records] for name in History.names}
    history = History(columns | {name: np.cumsum(columns[name]) for name in ("work", "seconds")})
    point = run.kept or point
    return AscentResult(point.x, float(point.loss), len(run.records), status, history)


def _step(oracle: Any, term: Any, centre: Any, gradient: Any, size: Any) -> _Point:
    x = _DIVERGENCE.step(centre, gradient, size, term)
    out = oracle.full(x)
    return _Point(x, out.value + term.value(x), out.gradient, _DIVERGENCE.residual_norm(centre, x, size))


_DIVERGENCE = GaussianKL()
_compiled_step = jax.jit(_step)


def _size(share: float) -> np.float64:
    """β, of which a step takes the share β/(1 + β) of the way."""
    return np.divide(share, 1 - share)


def _way(x: Any, centre: Any, share: float) -> tuple[Any, Any]:
    """The whole way that a step took a share of: the change of the mean, and its dual in the metric of the prior."""
    mean = (x.mean - centre.mean) / share
    return mean, (x.weights - centre.weights) / share if isinstance(x, Implicit) else mean


def _next_share(share: float, way: tuple[Any, Any], before: tuple[float, tuple[Any, Any]] | None) -> float:
    """Estimate the share that would leave nothing of the way, by what the last step left of it.

    Along the slowest direction a share ρ leaves 1 − ρ(1 − μ) of the way, and 1/(1 − μ) would leave nothing.
    """
    if before is None:
        return share
    taken, (mean, dual) = before
    left = float(way[0] @ dual) / max(float(mean @ dual), np.finfo(float).tiny)
    return float(np.clip(taken / max(1 - left, taken), share / 2, min(2 * share, 1.0)))
