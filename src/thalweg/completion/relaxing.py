"""Ratings in, all cells out, by the smoothed nuclear norm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.completion.dense import Filled, levels
from thalweg.completion.descending import Way, descend
from thalweg.completion.factors import Ratings
from thalweg.completion.nuclear import Relaxed
from thalweg.descent import Status

_FACTORISED = 1500
"""The smaller side up to which an eigendecomposition takes less time than a gradient of so little variance."""

_SMOOTHING = {True: 0.1, False: 0.5}
"""√ε with exact gradients, where it should be small, and with estimated ones, whose variance it governs."""

_MOST_CELLS = 2**30
"""Of θ, which is dense: 4 GiB of them."""

_PATIENCE = 3
"""Rounds without a better held-out error after which a fit ends."""


@dataclass(frozen=True)
class Relaxation:
    """How to complete a matrix by the nuclear norm.

    Examples
    --------
    >>> Relaxation().threshold
    0.1
    """

    threshold: float = 0.1
    """1/(2λ), over the typical singular value of what is known."""
    smoothing: float | None = None
    """√ε, over the same; None: small where gradients are exact, larger where they are estimated."""
    low: float = -np.inf
    """The least rating there is."""
    high: float = np.inf
    """The largest."""
    held_out: float = 0.0
    """The share of ratings on which errors are watched, to stop when they rise."""
    rounds: int = 50
    """The most rounds of steps."""
    tol: float = 2e-4
    """The fall of the objective in a round, as a share of it, below which a fit has converged."""
    seed: int = 0
    """Of probes, degrees, and what is held out."""


class Settled(NamedTuple):
    """The completed matrix, and how it came about.

    Examples
    --------
    >>> Settled._fields
    ('model', 'history', 'status')
    """

    model: Filled
    history: dict[str, np.ndarray]
    status: Status


def suited(sides: tuple[int, int]) -> Way:
    """SVRG for a matrix of this shape; exact gradients with momentum where they are cheaper still.

    Examples
    --------
    >>> suited((300, 5000)).method, suited((4000, 6000)).method
    ('gd', 'svrg')
    """
    if min(sides) <= _FACTORISED:
        return Way("gd", 1.0, round=20, accelerated=True)
    return Way("svrg", 1.0, degree=None, probes=256, round=5, restart="last")


def relax(
    ratings: Ratings,
    options: Relaxation,
    way: Way | None = None,
    show: Callable[[str], Any] | None = None,
    start: Filled | None = None,
) -> Settled:
    """Find the θ of least smoothed nuclear norm and misfit, from the levels of rows and columns or from an earlier θ.

    Parameters
    ----------
    ratings
        What is known.
    options
        The problem.
    way
        How to go down; :func:`suited` to the shape if None.
    show
        Called with a line after each round.
    start
        An earlier result of the same rows and columns.

    Examples
    --------
    >>> row, column = np.divmod(np.arange(48), 6)
    >>> ratings = Ratings(row, column, 3 + np.sin(row) * np.cos(column), None, (8, 6))
    >>> found = relax(ratings, Relaxation(threshold=0.05, low=1.0, high=5.0))
    >>> bool(np.std(found.model.predict(row, column) - ratings.values) < 0.2)
    True
    """
    if ratings.shape[0] * ratings.shape[1] > _MOST_CELLS:
        gibibytes = 4 * ratings.shape[0] * ratings.shape[1] / 2**30
        raise ValueError(
            f"the nuclear norm is of all cells, and {ratings.shape[0]:,} × {ratings.shape[1]:,} of them would take "
            f"{gibibytes:.0f} GiB: use method='factors'"
        )
    aside = np.random.default_rng(options.seed).random(len(ratings.values)) < options.held_out
    train, held = ratings.part(~aside), ratings.part(aside)
    turned = ratings.shape[0] > ratings.shape[1]
    low = train.turned if turned else train
    way = suited(ratings.shape) if way is None else way
    smoothing = options.smoothing if options.smoothing is not None else _SMOOTHING[way.method == "gd"]
    if start is None:
        centre, by_row, by_column = levels(train)
        first = centre + by_row[:, None] + by_column[None, :]
    else:
        first = start.values
    first = np.clip(first, options.low, options.high).astype(np.float32)
    best: list[tuple[float, np.ndarray]] = []

    def laid(theta: Any) -> np.ndarray:
        return np.asarray(theta).T if turned else np.asarray(theta)

    def error(theta: Any) -> float:
        found = float(np.sqrt(np.mean((laid(theta)[held.rows, held.columns] - held.values) ** 2)))
        if not best or found < best[0][0]:
            best[:] = [(found, laid(theta))]
        return found

    def ended(values: list[float], errors: list[float]) -> bool:
        if show is not None:
            watched = f", held-out RMSE {errors[-1]:.4f}" if errors else ""
            show(f"round {len(values)}: objective {values[-1]:.6g}{watched}")
        if errors:
            return len(errors) - int(np.argmin(errors)) > _PATIENCE
        return len(values) > 1 and values[-2] - values[-1] <= options.tol * abs(values[-1])

    with jax.enable_x64(False):
        problem = Relaxed.of(low, low=options.low, high=options.high, threshold=options.threshold, smoothing=smoothing)
        path = descend(
            problem,
            jnp.asarray(first.T if turned else first),
            way,
            jax.random.key(options.seed),
            rounds=options.rounds,
            watch=error if len(held.values) else None,
            stop=ended,
        )
    history = {"objective": np.array(path.values), "seconds": np.array(path.seconds[1:])}
    if path.watched:
        history["held_out_rmse"] = np.array(path.watched[1:])
    theta = best[0][1] if best else laid(path.theta)
    return Settled(Filled.of(theta, train, options.low, options.high), history, path.status)
