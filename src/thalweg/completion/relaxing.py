"""The smoothed nuclear norm, minimised in four ways, a round of steps at a time; ratings in, all cells out.

GD takes exact gradients, SGD (Algorithm 1 of the spectral paper) estimated ones; SGD-DET estimates with one fixed
degree, which is biased. SVRG (Algorithm 2) corrects SGD by an exact gradient at the head of each round; both of its
gradients share keys, interval, coefficients and law, which change with the snapshot only.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from thalweg import arguments
from thalweg.completion.completed import CompletionResult, Filled, additive_effects
from thalweg.completion.fitting import PATIENCE
from thalweg.completion.nuclear import ExactNuclearOracle, Relaxed
from thalweg.completion.ratings import Ratings
from thalweg.descent import FISTA, Constant, PolyakRuppert, Polynomial, Result, Status, minimize
from thalweg.oracles import SVRG
from thalweg.runs import Run
from thalweg.spectral import InfiniteVarianceWarning

__all__ = ["Path", "Relaxation", "Way", "descend", "relax"]

METHODS = ("gd", "sgd", "sgd-det", "svrg")

MAX_EXACT_SIDE = 1500
"""The smaller side up to which an eigendecomposition takes less time than an estimate of as little variance. At twice
as much, it takes eight times as long."""

SMOOTHING = {"gd": 0.1, "svrg": 0.5}
"""√ε over the typical singular value: exact gradients allow it to be small, the variance of estimated ones grows as it
falls. Doubled, predictions are those of a weaker penalty."""


@dataclass(frozen=True)
class Way:
    """How to minimise.

    Examples
    --------
    >>> Way("sgd", law="theorem3", degree=15.0).round
    10
    """

    method: str = "svrg"
    """One of ``METHODS``."""
    step: float = 0.5
    """The step size, over 1/L; GD takes up to 2."""
    law: str = "optimal"
    """Of the degrees: see :func:`thalweg.spectral.plan`. SGD-DET has none."""
    degree: float | None = 15.0
    """The mean degree N, and the degree of SGD-DET; None: where variance times work is least."""
    probes: int = 64
    """M."""
    group: int = 1
    """How many of them share a degree; all of them do in Algorithms 1 and 2."""
    round: int = 10
    """Steps with one interval; of SVRG, T."""
    decay: float = np.inf
    """Steps after which those of SGD begin to fall as one over the root of their number."""
    restart: str = "mean"
    """Of SVRG, where the next snapshot is taken: at the mean of the steps, as in Algorithm 2, or at the "last"."""
    precision: str = "highest"
    """Of the products of an estimate on an accelerator: see :func:`thalweg.spectral.plan`."""
    deflated: bool = False
    """Whether the leading singular value is left out of estimates and computed exactly: for positive ratings."""
    accelerated: bool = False
    """Whether GD has FISTA's momentum, for the length of a round; its step is then 1 at most."""


@dataclass(frozen=True)
class Path:
    """The last θ, and after each round the seconds, what was watched, and the objective (an estimate, of SGD).

    Examples
    --------
    >>> Path(np.zeros((1, 1)), [0.0, 1.0], [2.0, 1.0], [5.0], Status.STEPS_SPENT).arrival(1.5)
    1.0
    """

    theta: Any
    seconds: list[float]
    watched: list[float]
    values: list[float]
    status: Status
    repeated: int = 0
    """Rounds made again because the spectrum had left the interval; they are on the clock."""

    def arrival(self, level: float) -> float:
        """Return the seconds until what was watched was first as small; infinite if never."""
        reached = np.flatnonzero(np.asarray(self.watched) <= level)
        return self.seconds[reached[0]] if reached.size else np.inf


def descend(
    problem: Relaxed,
    start: Float[Array, "d r"],
    way: Way,
    key: Key[Array, ""],
    *,
    rounds: int,
    seconds: float = np.inf,
    watch: Callable[[Array], float] | None = None,
    stop: Callable[[list[float], list[float]], bool] | None = None,
    verbose: bool = False,
) -> Path:
    """Minimise from a start, a round of steps at a time; what is watched is not on the clock.

    Parameters
    ----------
    problem
        What to minimise.
    start
        The initial θ.
    way
        The method and its settings.
    key
        Seeds probes and degrees.
    rounds, seconds
        The most of each.
    watch
        A number to be recorded after each round, and before the first.
    stop
        ``stop(values, watched) -> bool`` after each round: whether it was the last.
    verbose
        Whether to show a progress bar, and a line for each round.

    Examples
    --------
    >>> from thalweg.completion import Ratings
    >>> ratings = Ratings(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), np.array([3.0, 4.0, 4.0, 2.0]), None, (2, 3))
    >>> problem = Relaxed.of(ratings, low=0.0, high=5.0)
    >>> path = descend(problem, problem.known(), Way("gd", 1.5, round=5), jax.random.key(0), rounds=2)
    >>> bool(path.values[-1] < path.values[0])
    True
    """
    arguments.one_of("method", way.method, METHODS)
    path = Path(start, [0.0], [] if watch is None else [watch(start)], [], Status.STEPS_SPENT)
    gradients: tuple[Any, Any] = None, ExactNuclearOracle(problem.gram, problem.misfit)  # GD needs no interval
    with Run("rounds of steps", total=rounds, bar=verbose) as run, jax.default_matmul_precision("highest"):
        while path.status is Status.STEPS_SPENT and len(path.values) < rounds and path.seconds[-1] < seconds:
            path, gradients = _run_round(problem, way, path, gradients, jax.random.fold_in(key, len(path.values)))
            path.watched.extend([] if watch is None else [watch(path.theta)])
            if path.status is Status.STEPS_SPENT and stop is not None and stop(path.values, path.watched):
                path = replace(path, status=Status.CONVERGED)
            run.keep(path)
            run.advance()
            errors = f", watched {path.watched[-1]:.4f}" if path.watched else ""
            run.say(f"round {len(path.values)}: objective {path.values[-1]:.6g}{errors}")
    return replace(path, status=Status.INTERRUPTED) if run.interrupted else path


def _run_round(
    problem: Relaxed, way: Way, path: Path, gradients: tuple[Any, Any], key: Key[Array, ""]
) -> tuple[Path, tuple[Any, Any]]:
    """Return the path after one more round, and the interval of its gradients with their oracle.

    The round is repeated with more room where its norm outgrows the interval.
    """
    began, (interval, oracle) = time.perf_counter(), gradients
    plan_key, step_key = jax.random.split(key)
    for repeats in range(3):
        room = None if way.method == "gd" else problem.interval(path.theta, way.deflated, repeats)
        if repeats and room == interval:
            break
        if room != interval:
            interval, oracle = room, _sampled_oracle(problem, way, path.theta, plan_key, room)
        result, repeated = _take_steps(problem, way, oracle, path, step_key), path.repeated + repeats
        if result.status is not Status.DIVERGED:
            break
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    # Exact for SVRG and GD, though where the round began, or its last step did.
    svrg = way.method == "svrg"
    value = result.state.oracle.anchor.full.value if svrg else result.history.last["value"]
    after = replace(
        path,
        theta=jax.block_until_ready(result.x),
        seconds=[*path.seconds, path.seconds[-1] + time.perf_counter() - began],
        values=[*path.values, float(value)],
        status=Status.DIVERGED if result.status is Status.DIVERGED else path.status,
        repeated=repeated,
    )
    return after, (interval, oracle)


def _sampled_oracle(problem: Relaxed, way: Way, theta: Array, key: Key[Array, ""], interval: Any) -> Any:
    """Return the estimated gradients of a way, which need an interval that holds the spectrum."""
    law = "fixed" if way.method == "sgd-det" else way.law
    options = {name: getattr(way, name) for name in ("degree", "probes", "group", "precision")}
    with warnings.catch_warnings():
        # A law of infinite variance is chosen to be compared with others.
        warnings.simplefilter("ignore", InfiniteVarianceWarning)
        oracle = problem.oracle(theta, key, way.deflated, interval=interval, slack=1.0, law=law, **options)
    return SVRG(oracle, way.round, restart=way.restart) if way.method == "svrg" else oracle


def _take_steps(problem: Relaxed, way: Way, oracle: Any, path: Path, key: Key[Array, ""]) -> Result:
    size, before = way.step / problem.smoothness, way.decay + len(path.values) * way.round
    falls = way.method.startswith("sgd") and np.isfinite(way.decay)
    return minimize(
        oracle,
        path.theta,
        term=problem.box,
        step=Polynomial(size * (before / way.decay) ** -0.5, scale=before) if falls else Constant(size),
        momentum=FISTA() if way.accelerated and way.method == "gd" else None,
        average=PolyakRuppert() if way.method == "svrg" and way.restart == "mean" else None,
        steps=way.round,
        key=key,
        stride=way.round,
    )


@dataclass(frozen=True)
class Relaxation:
    """How to complete a matrix by the nuclear norm.

    Examples
    --------
    >>> Relaxation().threshold
    0.1
    """

    threshold: float = 0.1
    """1/(2λ), over the typical singular value of the ratings."""
    smoothing: float | None = None
    """√ε, over the same; None: small where gradients are exact, larger where they are estimated."""
    low: float = -np.inf
    """The least rating there is."""
    high: float = np.inf
    """The largest."""
    held_out: float = 0.0
    """The share of ratings that is a validation set, whose error ends the fit when it rises."""
    rounds: int = 50
    """The most rounds of steps."""
    tol: float = 2e-4
    """The fall of the objective in a round, as a share of it, below which a fit has converged."""
    seed: int = 0
    """Seeds probes, degrees, and the validation set."""


def suited(shape: tuple[int, int]) -> Way:
    """Return SVRG for a matrix of this shape, or exact gradients with momentum where they are cheaper.

    Examples
    --------
    >>> suited((300, 5000)).method, suited((4000, 6000)).method
    ('gd', 'svrg')
    """
    if min(shape) <= MAX_EXACT_SIDE:
        return Way("gd", 1.0, round=20, accelerated=True)
    return Way("svrg", 1.0, degree=None, probes=256, round=5, restart="last")


def relax(
    ratings: Ratings, options: Relaxation, way: Way | None = None, verbose: bool = False, start: Filled | None = None
) -> CompletionResult:
    """Minimise smoothed nuclear norm and misfit, from additive effects of rows and columns or from an earlier result.

    Parameters
    ----------
    ratings
        The ratings.
    options
        The problem.
    way
        How to minimise; :func:`suited` to the shape if None.
    verbose
        Whether to show a progress bar, and a line for each round.
    start
        An earlier result of the same rows and columns.

    Examples
    --------
    >>> row, column = np.divmod(np.arange(48), 6)
    >>> ratings = Ratings(row, column, 3 + np.sin(row) * np.cos(column), None, (8, 6))
    >>> result = relax(ratings, Relaxation(threshold=0.05, low=1.0, high=5.0))
    >>> bool(np.std(result.model.predict(row, column) - ratings.values) < 0.2)
    True
    """
    if ratings.shape[0] * ratings.shape[1] > np.iinfo(np.int32).max:  # by which JAX counts entries
        gibibytes = 4 * ratings.shape[0] * ratings.shape[1] / 2**30
        raise ValueError(
            f"the nuclear norm is of all cells, and {ratings.shape[0]:,} × {ratings.shape[1]:,} of them would take "
            f"{gibibytes:.0f} GiB: use method='factors'"
        )
    train, validation = ratings.split(options.held_out, np.random.default_rng(options.seed))
    is_tall = ratings.shape[0] > ratings.shape[1]
    oriented = lambda theta: theta.T if is_tall else theta
    way = suited(ratings.shape) if way is None else way
    smoothing = options.smoothing or SMOOTHING["gd" if way.method == "gd" else "svrg"]
    centre, by_row, by_column = additive_effects(train)
    initial = centre + by_row[:, None] + by_column[None, :] if start is None else start.values
    best: dict[float, np.ndarray] = {}

    def validation_error(theta: Array) -> float:
        cells = np.asarray(oriented(theta))
        error = float(np.sqrt(np.mean((cells[validation.rows, validation.columns] - validation.values) ** 2)))
        if error < min(best, default=np.inf):
            best.clear()
            best[error] = cells
        return error

    def stop(values: list[float], errors: list[float]) -> bool:
        if errors:
            return len(errors) - int(np.argmin(errors)) > PATIENCE
        return len(values) > 1 and values[-2] - values[-1] <= options.tol * abs(values[-1])

    with jax.enable_x64(False):
        problem = Relaxed.of(
            train.transposed if is_tall else train,
            low=options.low,
            high=options.high,
            threshold=options.threshold,
            smoothing=smoothing,
        )
        path = descend(
            problem,
            jnp.asarray(oriented(np.clip(initial, options.low, options.high).astype(np.float32))),
            way,
            jax.random.key(options.seed),
            rounds=options.rounds,
            watch=validation_error if len(validation.values) else None,
            stop=stop,
            verbose=verbose,
        )
    history = {"objective": np.array(path.values), "seconds": np.array(path.seconds[1:])}
    if path.watched:
        history["held_out_rmse"] = np.array(path.watched[1:])
    cells = next(iter(best.values()), np.asarray(oriented(path.theta)))
    model = Filled(cells.astype(np.float32), by_row, by_column, centre, options.low, options.high, train)
    return CompletionResult(model, history, path.status)
