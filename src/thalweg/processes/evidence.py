"""The parameters that make rows most probable: a quasi-Newton method on their logarithms that keeps the best it saw."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from thalweg.descent import Status
from thalweg.processes.exact import Parameters

_FURTHEST = np.log(1e5)
"""How far a search may take a parameter from where it starts, as a logarithm."""

_GAIN = 0.02
"""Nats: a search ends where two steps together gain less."""

_SPREAD = 3.0
"""Standard deviation of the weak normal prior of each logarithm around its start."""


class Optimum(NamedTuple):
    """What a search found, and how it ended."""

    parameters: Parameters
    loss: float
    steps: int
    status: Status
    origin: Parameters
    """The point that the prior is around."""


class Rows(Protocol):
    """What a search needs of rows."""

    def loss_and_slope(self, parameters: Parameters) -> tuple[Any, Parameters]:
        """−log p(y), and its derivative in the logarithms of all parameters."""


def maximise(
    rows: Rows,
    start: Parameters,
    origin: Parameters,
    max_iter: int,
    learn_noise: bool,
    least_noise: float,
    unit: float = 1.0,
) -> Optimum:
    """Make the rows most probable, under a weak prior around an origin.

    The first step is as long as the derivative in units of ``unit`` nats.
    """
    structure = jax.tree.structure(start)
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(start)]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    flat = lambda tree: np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])
    # A noise of 0, which may be given, has no logarithm.
    first, centre = (np.log(np.maximum(flat(tree), np.finfo(np.float64).tiny)) for tree in (start, origin))
    best: tuple[float, np.ndarray] = (np.inf, first)
    evaluations = 0

    def unflat(logs: np.ndarray) -> Parameters:
        parts = np.split(np.exp(logs), ends)
        return jax.tree.unflatten(structure, [jnp.asarray(p.reshape(s)) for p, s in zip(parts, shapes, strict=True)])

    def penalised(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, evaluations
        evaluations += 1
        value, slope = rows.loss_and_slope(unflat(logs))
        away = (logs - centre) / _SPREAD
        total, pull = float(value) + float(away @ away) / 2, flat(slope) + away / _SPREAD
        if not np.isfinite(total) or not np.all(np.isfinite(pull)):
            return 1e10 + abs(best[0] if np.isfinite(best[0]) else 0.0), np.zeros_like(logs)
        if total < best[0]:
            best = total, logs.copy()
        return total / unit, pull / unit

    passed: list[float] = []

    def settled() -> bool:
        return len(passed) > 2 and passed[-3] - passed[-1] < _GAIN

    def look(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        passed.append(unit * intermediate_result.fun)
        if settled():
            raise StopIteration

    lower, upper = centre - _FURTHEST, centre + _FURTHEST
    # The noise is the last leaf.
    lower[-1] = min(np.log(least_noise), centre[-1]) if learn_noise else centre[-1]
    upper[-1] = upper[-1] if learn_noise else centre[-1]
    begin = np.clip(first, lower, upper)
    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": 0.0, "gtol": 1e-2 / unit, "maxls": 8}
    try:
        bounds = np.stack([lower, upper], 1)
        ended = scipy.optimize.minimize(
            penalised, begin, jac=True, bounds=bounds, method="L-BFGS-B", options=options, callback=look
        )
        done = (ended.success or settled()) and np.isfinite(best[0])
        status = Status.CONVERGED if done else Status.STEPS_SPENT
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    found = unflat(best[1])
    found = found if learn_noise else Parameters(found.kernel, origin.noise)
    return Optimum(found, best[0], evaluations, status, origin)
