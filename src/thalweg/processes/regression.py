"""Gaussian process regression: which way to go, and the learning of the kernel and of the noise.

Kernels are in the units of the data. What makes a search independent of units is where it starts, at lengthscales of
√d standard deviations of each feature and at a share of the variance of the targets, and that it moves logarithms.
Everything here runs in float64, inside a scope.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from thalweg import trees
from thalweg.codec import storable
from thalweg.descent import Status
from thalweg.kernels import Gaussian, Kernel, Matern32, Matern52
from thalweg.processes import host, iterative
from thalweg.processes.evidence import Landscape, Optimum, maximise, plausible
from thalweg.processes.exact import Observations, Parameters
from thalweg.processes.iterative import PathwisePosterior
from thalweg.processes.means import KINDS, Mean
from thalweg.processes.posterior import ExactPosterior, MixedPosterior
from thalweg.threads import enough_threads

_FAMILIES: tuple[type[Kernel], ...] = (Matern32, Matern52, Gaussian)
"""The kernels that are compared where none is given."""

_LEVELS, _MORE = (150, 400, 1_200, 4_000), 1.5
"""Rows on which parameters are looked for before all rows are taken, if those are so many times more."""

_ROUGHLY, _CLOSELY = 1e-2, 1e-3
"""A gain in nats that is worth another step on the way, and on all rows."""

_SUBSET = 5_000
"""Rows that parameters are learned from where the covariance of all cannot be factorised."""

_CLOSE = 3.0
"""Nats by which a search may be behind the best and yet go on with more rows."""

_SAME = 0.1
"""Nats by which two searches for one kernel may differ that have come to the same place."""

_LAST_STEPS = 10
"""Steps of the search on all rows, where they are more than twice the last level."""

_EXACT_ON_CPU = 12_000
"""Rows up to which factorising on a CPU takes less time than solving."""

_MATRICES = 5
"""Matrices of n² numbers that exist at a time in a step of the exact way."""

_STARTING_NOISE, _LEAST_NOISE = 0.1, 1e-8
"""The share of the targets' variance that is noise: where a search starts, and the least that it may find."""

_UNCERTAIN, _DRAWS = 500, (16, 64)
"""Rows up to which the uncertainty of parameters is counted, and how many are drawn: more where rows are few."""

_RESTART_SPREAD = 1.0
"""Standard deviation of the logarithm of the parameters at a restart."""


@dataclass(frozen=True)
class RegressorSettings:
    """How to find the posterior and its parameters.

    Examples
    --------
    >>> RegressorSettings(learn=False).restarts
    1
    """

    methods: ClassVar[tuple[str, ...]] = ("auto", "exact", "iterative")
    means: ClassVar[tuple[str, ...]] = KINDS

    method: str = "auto"
    """One of ``methods``."""
    learn: bool = True
    """Whether to maximise the marginal likelihood over the kernel's parameters and the noise."""
    mean: str = "constant"
    """One of ``means``: what the function returns to far from the rows."""
    restarts: int = 1
    """How many more starting points to search from, on the first share of the rows."""
    max_iter: int = 100
    """How many steps a search takes at most."""


@storable
@dataclass(frozen=True)
class Regression:
    """A posterior, and how it was found.

    Examples
    --------
    >>> fit_regressor(np.zeros((1, 1)), np.ones((1, 1)), RegressorSettings()).solved
    True
    """

    posterior: ExactPosterior | MixedPosterior | PathwisePosterior
    method: str
    log_marginal_likelihood: float
    """Of the rows that parameters were learned from."""
    steps: int
    """How often the likelihood was evaluated."""
    status: Status

    @property
    def solved(self) -> bool:
        """Whether all solves came to their tolerance."""
        return self.posterior.residual <= iterative.TOLERANCE


def fit_regressor(
    inputs: np.ndarray,
    targets: np.ndarray,
    settings: RegressorSettings,
    kernel: Kernel | type[Kernel] | None = None,
    noise: float | None = None,
    known: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    seed: int = 0,
) -> Regression:
    """The posterior of a function given noisy values of it, and its kernel and noise if they are to be learned.

    Parameters
    ----------
    inputs, targets
        The rows, and one column or more of what was seen there; all columns have the same kernel.
    settings
        How to find them.
    kernel
        The kernel or the one to start from, or a class of which one is made with a lengthscale for each feature. By
        default the class among Matern32, Matern52 and Gaussian that makes the data most probable.
    noise
        The variance of the noise; learned by default.
    known
        Variances of noise that is known, one per row, beside ``noise``.
    weights
        How often each row counts (1 by default).
    seed
        Seeds the order of the rows, restarts and samples.

    Examples
    --------
    >>> inputs = np.linspace(0, 6, 30)[:, None]
    >>> found = fit_regressor(inputs, np.sin(inputs), RegressorSettings())
    >>> mean, variance = found.posterior.predict(np.array([[3.0], [50.0]]))
    >>> bool(abs(mean[0, 0] - np.sin(3.0)) < 0.01), bool(variance[1] > 100 * variance[0])
    (True, True)
    """
    ones = np.ones(len(inputs))
    inputs, targets, known, weights = _distinct(
        inputs, targets, 0 * ones if known is None else known, ones if weights is None else weights, kernel
    )
    mean = Mean.of(settings.mean, inputs, weights)
    rows = host.Rows(inputs, targets, mean.basis(inputs), known, weights)
    method = _way(len(rows.inputs)) if settings.method == "auto" else settings.method
    with jax.enable_x64(True), enough_threads(len(rows.inputs)):
        found = _learn(_starts(rows, mean, kernel, noise), rows, settings, method, noise is None, seed)
        if method == "exact":
            everything = _where_computed(rows)
            solution = everything.solution(found.parameters)
            loss = float(solution.loss)
            if not np.isfinite(loss):
                raise ValueError(
                    "the covariance of the rows is singular in float64: rows that are equal, or nearly so, need "
                    f"a noise above {float(found.parameters.noise):.3g}; raise noise"
                )
            posterior: ExactPosterior | MixedPosterior | PathwisePosterior
            if settings.learn and found.status is not Status.INTERRUPTED and len(rows.inputs) <= _UNCERTAIN:
                landscape = Landscape(rows, found.origin, noise is None)
                count = int(np.clip(_DRAWS[0] * _UNCERTAIN // len(rows.inputs), *_DRAWS))
                drawn = plausible(landscape, found.parameters, count, np.random.default_rng([seed, 1]))
                posterior = MixedPosterior.of(found.parameters, mean, rows, drawn)
            else:
                posterior = ExactPosterior.of(found.parameters, mean, rows.inputs, solution)
            posterior = posterior.calibrated() if settings.learn else posterior
        else:
            loss = found.loss
            variances = (float(found.parameters.noise) + rows.known) / rows.weights
            posterior = iterative.posterior(found.parameters, mean, rows.inputs, rows.targets, variances, seed)
    return Regression(posterior, method, -loss, found.steps, found.status)


def _distinct(
    inputs: np.ndarray, targets: np.ndarray, known: np.ndarray, weights: np.ndarray, kernel: Kernel | type | None
) -> tuple[np.ndarray, ...]:
    """Rows that count, equal ones made one of their total weight, in an order that does not depend on that given."""
    counted = weights > 0
    table = np.column_stack([inputs, targets, known])[counted]
    if isinstance(kernel, Kernel) and not kernel.stationary:  # Each row has its own white noise.
        order = np.lexsort(table.T)
        table, weights = table[order], weights[counted][order]
    else:
        table, which = np.unique(table, axis=0, return_inverse=True)
        weights = np.bincount(which.ravel(), weights[counted])
    width = inputs.shape[1]
    return table[:, :width], table[:, width:-1], table[:, -1], weights


def _where_computed(rows: host.Rows) -> host.Rows | Observations:
    return rows if host.serves(len(rows.inputs)) else Observations.padded(*rows)


def _way(rows: int) -> str:
    """The exact way while the matrices fit into memory and, on a CPU, while it is the faster one."""
    device = jax.devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None
    if limit is None:
        return "exact" if rows <= _EXACT_ON_CPU else "iterative"
    return "exact" if _MATRICES * 8 * rows**2 < 0.9 * limit else "iterative"


def _starts(rows: host.Rows, mean: Mean, kernel: Kernel | type[Kernel] | None, noise: float | None) -> list[Parameters]:
    """Where to start: kernels in the units of the data."""
    away = rows.targets - rows.targets[:1]
    away = away - np.average(away, axis=0, weights=rows.weights)
    spread = float(np.mean(np.average(away**2, axis=0, weights=rows.weights)))
    least = (1e-12 * float(np.max(np.abs(rows.targets)))) ** 2  # constant up to rounding
    variance = spread if spread > least else 1.0
    families = (kernel,) if isinstance(kernel, type) else _FAMILIES
    lengthscales = mean.scale * np.sqrt(rows.inputs.shape[1])
    kernels = [kernel] if isinstance(kernel, Kernel) else [family(lengthscales, variance) for family in families]
    begun = trees.scalar(_STARTING_NOISE * variance if noise is None else noise)
    # In the precision of the scope: kernels made outside it may hold float32.
    return [Parameters(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), one), begun) for one in kernels]


def _learn(
    starts: list[Parameters], rows: host.Rows, settings: RegressorSettings, method: str, free: bool, seed: int
) -> Optimum:
    """Search from all starts on few rows, and from the best of what they found on more, and on all."""
    if not settings.learn:
        return Optimum(starts[0], np.nan, 0, Status.CONVERGED, starts[0])
    rng = np.random.default_rng(seed)
    count = len(rows.inputs)
    order = np.random.default_rng(seed).permutation(count)
    last = count if method == "exact" else min(count, _SUBSET)
    least_noise = _LEAST_NOISE / _STARTING_NOISE * float(starts[0].noise)
    begun = [(start, start) for start in starts]
    begun += [(start, _moved(start, rng)) for _ in range(settings.restarts) for start in starts]
    steps = 0
    for size in [*(size for size in _LEVELS if _MORE * size < last), last]:
        data = _where_computed(rows.take(np.sort(order[:size])))
        limit = settings.max_iter if size <= 2 * _LEVELS[-1] else min(settings.max_iter, _LAST_STEPS)
        worth = _CLOSELY if size == last else _ROUGHLY
        found: list[Optimum] = []
        with enough_threads(size):
            for origin, start in begun:
                found.append(maximise(data, start, origin, limit, free, least_noise, worth))
                steps += found[-1].steps
                if found[-1].status is Status.INTERRUPTED:
                    break
        best = min(found, key=lambda one: one.loss)._replace(status=found[-1].status)
        # On few rows families hardly differ: all places that are close go on, each once.
        places: list[Optimum] = []
        for one in sorted(found, key=lambda one: one.loss):
            if one.loss < best.loss + _CLOSE and not any(_same_place(one, other) for other in places):
                places.append(one)
        begun = [(one.origin, one.parameters) for one in places[: len(_FAMILIES)]] or begun[:1]
        if best.status is Status.INTERRUPTED:
            break
    return best._replace(steps=steps)


def _same_place(one: Optimum, other: Optimum) -> bool:
    alike = type(one.parameters.kernel) is type(other.parameters.kernel)
    return alike and abs(one.loss - other.loss) < _SAME


def _moved(start: Parameters, rng: np.random.Generator) -> Parameters:
    return jax.tree.map(lambda leaf: leaf * np.exp(_RESTART_SPREAD * rng.standard_normal(np.shape(leaf))), start)
