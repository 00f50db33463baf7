"""The search of :class:`~thalweg.descent.Monotone` driven from the host: one attempt is all that is compiled.

:func:`~thalweg.minimize` compiles steps, search, records and stopping rules into one loop, which is right for many
cheap steps. Where a step factorises a matrix, and a few dozen of them are enough, that program takes longer to compile
than to run, and between two milliseconds of LAPACK a visit to the host costs nothing. The parts are those of a
:class:`~thalweg.descent.Descent`, and so are the iterates.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.descent import Descent, History, Status
from thalweg.descent.display import Bar
from thalweg.descent.engines import join, split

_PATIENCE = 50
"""Steps without a gain above rounding after which a search has stagnated."""


class Attempt(NamedTuple):
    """Where a step led, and all that is known there."""

    x: PyTree[Array]
    gradient: PyTree[Array]
    value: Scalar
    """f."""
    objective: Scalar
    """f + h."""
    size: Scalar
    residual: Scalar
    """‖G‖ of the step."""


class Found(NamedTuple):
    """The end of a search: where it led (the start, if no step could be taken), and why it ended."""

    last: Attempt
    steps: int
    status: Status
    history: History


def _attempt(rest: Any, arrays: tuple, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar) -> Attempt:
    descent: Descent = join(rest, arrays)
    term, divergence = descent.term, descent.divergence
    size = divergence.admissible(centre, gradient, size, term)
    x = divergence.step(centre, gradient, size, term)
    out = descent.oracle.full(x)
    objective = out.value + term.value(x)
    return Attempt(x, out.gradient, out.value, objective, size, divergence.residual_norm(centre, x, size))


@lru_cache(maxsize=32)
def _compiled(rest: Any, options: tuple) -> Callable[..., Attempt]:
    return jax.jit(partial(_attempt, rest), compiler_options=dict(options))


def _descending(attempt: Callable[..., Attempt], here: Attempt, rule: Any) -> Iterator[tuple[Attempt, int]]:
    """Yield the attempts that ``Monotone`` accepts, and how many were made for each; ends where it accepts none."""
    dtype = here.value.dtype
    limits = np.finfo(dtype)
    size, shrink, grow = float(rule.initial), float(rule.shrink), float(rule.grow)
    largest = 0.0
    while True:
        largest = max(largest, abs(float(here.value)))
        allowed = float(here.objective) + 10 * limits.eps * largest
        tried = 0
        while True:
            tried += 1
            there = attempt(here.x, here.gradient, np.asarray(size, dtype))
            size = float(there.size)
            if float(there.objective) <= allowed:
                break
            size *= shrink
            if not size > limits.tiny**0.5:
                return
        yield there, tried
        here = there
        size = min(size * grow if tried == 1 else size, float(limits.max) ** 0.25)


def search(
    descent: Descent,
    x0: PyTree,
    *,
    steps: int,
    tol: float,
    progress: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Found:
    """Run a method whose oracle is exact and whose step is ``Monotone``, without momentum or averaging.

    Parameters
    ----------
    descent
        The method.
    x0
        Where to start.
    steps
        The most steps to take.
    tol
        Stop when ‖G_k‖ is at most this; also when many steps have gained nothing but rounding.
    progress
        Show a progress bar.
    compiler_options
        Passed on to ``jax.jit``.
    """
    started = time.perf_counter()
    x = descent.init(x0).x
    arrays, rest = split(descent)
    attempt = partial(_compiled(rest, tuple(sorted((compiler_options or {}).items()))), arrays)
    # A step of size 0 stays where it is, and so evaluates the start by what is compiled for all steps.
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), x)
    here = attempt(x, nothing, np.zeros((), trees.dtype(x)))._replace(x=x)
    lowest, lowest_at = np.inf, 0
    history, work, status = History(), 0.0, Status.STEPS_SPENT
    with Bar(steps, 0) if progress else nullcontext() as bar:
        try:
            taken = 0
            for there, tried in islice(_descending(attempt, here, descent.step), steps):
                here, taken = there, taken + 1
                value, residual = float(here.objective), float(here.residual)
                work += tried * (descent.oracle.fixed_work or 1.0)
                seconds = time.perf_counter() - started
                row = (taken, value, residual, float(here.size), work, seconds)
                history.append({name: [entry] for name, entry in zip(History.names, row, strict=True)})
                if bar is not None:
                    bar.show(taken, history)
                if residual <= tol:
                    status = Status.CONVERGED
                    break
                if value < lowest - 100 * np.finfo(here.value.dtype).eps * abs(value):
                    lowest, lowest_at = value, taken
                elif taken >= lowest_at + _PATIENCE:
                    status = Status.STAGNATED
                    break
            else:
                status = Status.STEPS_SPENT if taken == steps else Status.DIVERGED
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
    return Found(here, taken, status, history)
